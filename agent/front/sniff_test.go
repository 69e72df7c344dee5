package front

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"
)

// An agent that was not given the CPU for longer than FirstByte must still see
// that a health check has arrived.
func TestThrottled(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := &conn{Conn: nc, raw: nc, r: bufio.NewReaderSize(nc, 2*maxLine)}
	if c.pending() {
		t.Error("nothing was sent")
	}
	const check = "GET /health_check.html HTTP/1.0\r\n\r\n"
	if _, err := client.Write([]byte(check)); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); !c.pending(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("the bytes never arrived")
		}
	}
	_ = c.SetReadDeadline(time.Unix(1, 0)) // long over
	if _, err := c.r.Peek(1); !os.IsTimeout(err) {
		t.Fatalf("peek: %v", err)
	}
	p := &port{front: New(Config{FirstByte: time.Nanosecond})}
	b, err := p.firstBytes(c)
	if err != nil || listen(b) != speaksHTTP {
		t.Errorf("%q, %v", b, err)
	}
}

// Who was late once is waited for longer, and nobody else is.
func TestLateCheck(t *testing.T) {
	f := New(Config{FirstByte: 20 * time.Millisecond})
	lb, other := netip.MustParseAddr("203.0.113.211"), netip.MustParseAddr("203.0.113.210")
	f.lateCheck(lb)
	if f.patience(lb) != 100*time.Millisecond || f.patience(other) != 20*time.Millisecond {
		t.Errorf("%s and %s", f.patience(lb), f.patience(other))
	}
	for a := netip.MustParseAddr("10.0.0.1"); f.lates.Load() < maxLate; a = a.Next() {
		f.lateCheck(a)
	}
	f.lateCheck(other)
	if f.lates.Load() != maxLate || f.patience(other) != 20*time.Millisecond {
		t.Error("not bounded")
	}
}
