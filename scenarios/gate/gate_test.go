package gate

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// echo answers every line with itself, and greets nobody.
func echo(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.83.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	return ln.Addr().String()
}

func open(t *testing.T) (*Gate, string) {
	ln, err := net.Listen("tcp", "127.83.1.2:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	g, err := New(addr, echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g, addr
}

func dial(t *testing.T, addr string) net.Conn {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// say sends a line and reads one.
func say(c net.Conn, line string) (string, error) {
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", err
	}
	got, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(got), err
}

func TestPassAndRefuse(t *testing.T) {
	g, addr := open(t)
	c := dial(t, addr)
	if got, err := say(c, "hello"); got != "hello" || err != nil {
		t.Fatalf("%q %v", got, err)
	}
	if err := g.Set(Refuse); err != nil {
		t.Fatal(err)
	}
	if _, err := say(c, "still there?"); err == nil {
		t.Error("an open connection survived")
	}
	if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v, want refused", err)
	}
	if err := g.Set(Pass); err != nil {
		t.Fatal(err)
	}
	if got, err := say(dial(t, addr), "again"); got != "again" || err != nil {
		t.Errorf("%q %v", got, err)
	}
}

func TestHang(t *testing.T) {
	g, addr := open(t)
	old := dial(t, addr)
	if _, err := say(old, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := g.Set(Hang); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]net.Conn{"old": old, "new": dial(t, addr)} {
		c.SetDeadline(time.Now().Add(50 * time.Millisecond))
		var timeout net.Error
		if got, err := say(c, "hello"); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("%s connection: %q %v, want silence", name, got, err)
		}
	}
	if err := g.Set(Pass); err != nil {
		t.Fatal(err)
	}
	if got, err := say(dial(t, addr), "again"); got != "again" || err != nil {
		t.Errorf("%q %v", got, err)
	}
}

func TestFail(t *testing.T) {
	g, addr := open(t)
	watch := dial(t, addr)
	if _, err := say(watch, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := g.Set(Fail); err != nil {
		t.Fatal(err)
	}
	if got, err := say(dial(t, addr), "GET /health_check.html HTTP/1.0\r\n\r"); got != "HTTP/1.0 503 Service Unavailable" || err != nil {
		t.Errorf("check: %q %v", got, err)
	}
	if got, err := say(dial(t, addr), "GET /drain/wait HTTP/1.1"); got != "GET /drain/wait HTTP/1.1" || err != nil {
		t.Errorf("other request: %q %v", got, err)
	}
	if got, err := say(watch, "still here"); got != "still here" || err != nil {
		t.Errorf("open connection: %q %v", got, err)
	}
	silent := dial(t, addr)
	if _, err := silent.Write(nil); err != nil {
		t.Fatal(err)
	}
	if got, err := say(silent, "up"); got != "up" || err != nil {
		t.Errorf("silent peer: %q %v", got, err)
	}
}
