package inflight

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// loopback is an address of this test's own: other tests listen on the same
// ports, and Envoy shares a port silently (SO_REUSEPORT).
func loopback(t testing.TB) string {
	t.Helper()
	var b [3]byte
	rand.Read(b[:])
	return fmt.Sprintf("127.%d.%d.%d", 64+b[0]%60, b[1], 1+b[2]%250)
}

// await polls a condition that other processes bring about.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-limit:
			t.Fatalf("waited in vain for: %s", what)
		case <-tick.C:
		}
	}
}

func listenOn(t testing.TB, network, addr string) *net.TCPListener {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// connect gives both ends of a connection, the client's from its own address.
func connect(t testing.TB, l *net.TCPListener, to, from string) (server, client *net.TCPConn) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); c.Close() })
	return s.(*net.TCPConn), c.(*net.TCPConn)
}

// fill writes to a peer that does not read until nothing more fits.
func fill(t testing.TB, c *net.TCPConn) (written int) {
	t.Helper()
	chunk := make([]byte, 1<<20)
	for {
		c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		n, err := c.Write(chunk)
		written += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return written
		}
		if err != nil || written > 1<<30 {
			t.Fatalf("%d bytes went into a peer that does not read, %v", written, err)
		}
	}
}

func read(t testing.TB, spec string) func() Reading {
	t.Helper()
	s, err := Parse(spec, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return func() Reading { return s.Read(context.Background()) }
}

func TestSocketsOfARealPort(t *testing.T) {
	addr, other := loopback(t), loopback(t)
	l := listenOn(t, "tcp4", addr+":0")
	port := l.Addr().(*net.TCPAddr).Port
	at := fmt.Sprintf("%s:%d", addr, port)
	all, tx := read(t, "sockets="+at), read(t, "sockets-tx="+at)
	anywhere, elsewhere := read(t, fmt.Sprintf("sockets=%d", port)), read(t, fmt.Sprintf("sockets=%s:%d", other, port))
	counts := func() string {
		return fmt.Sprint(all().Count, " ", tx().Count, " ", anywhere().Count, " ", elsewhere().Count)
	}
	if got := counts(); got != "0 0 0 unknown" {
		t.Errorf("listening: %s", got)
	}
	if n := elsewhere().Note; n != fmt.Sprintf("nobody has listened on port %d yet: is it the data port, and in this network namespace?", port) {
		t.Errorf("note %q", n)
	}
	server, client := connect(t, l, at, "127.0.0.2")
	if got := counts(); got != "1 0 1 unknown" {
		t.Errorf("one connection: %s", got)
	}
	// The client does not read: what does not fit its window stays in the queue.
	n := fill(t, server)
	if got := counts(); got != "1 1 1 unknown" {
		t.Errorf("bytes to send: %s", got)
	}
	if _, err := io.CopyN(io.Discard, client, int64(n)); err != nil {
		t.Fatal(err)
	}
	await(t, "the send queue to be empty", func() bool { return tx().Count.Zero() })
	// Half-closed by the client: CLOSE_WAIT still counts, the answer may follow.
	client.CloseWrite()
	if b, err := io.ReadAll(server); len(b) != 0 || err != nil {
		t.Fatal(b, err)
	}
	if got := counts(); got != "1 0 1 unknown" {
		t.Errorf("CLOSE_WAIT: %s", got)
	}
	// The server closes second: LAST_ACK, then nothing.
	server.Close()
	await(t, "no socket to be left", func() bool { return all().Count.Zero() })
}

// The server closes first: FIN_WAIT2 counts, TIME_WAIT does not, and a port that
// was seen once is believed to be empty without a listener too.
func TestSocketsClosedByTheServer(t *testing.T) {
	addr := loopback(t)
	l := listenOn(t, "tcp4", addr+":0")
	port, at := l.Addr().(*net.TCPAddr).Port, l.Addr().String()
	all := read(t, "sockets="+at)
	server, client := connect(t, l, at, "127.0.0.2")
	server.CloseWrite()
	if b, err := io.ReadAll(client); len(b) != 0 || err != nil {
		t.Fatal(b, err)
	}
	await(t, "FIN_WAIT2", func() bool { return states(t, port)[unix.BPF_TCP_FIN_WAIT2] == 1 })
	if n := all().Count; n != known(1) {
		t.Errorf("FIN_WAIT2: %v", n)
	}
	client.Close()
	await(t, "TIME_WAIT", func() bool { return states(t, port)[timeWait] > 0 })
	if n := all().Count; !n.Zero() {
		t.Errorf("TIME_WAIT: %v", n)
	}
	l.Close()
	await(t, "nobody to listen", func() bool { return states(t, port)[listen] == 0 })
	if n := all().Count; !n.Zero() {
		t.Errorf("closed: %v", n)
	}
}

func states(t testing.TB, port int) map[uint8]int {
	t.Helper()
	n := map[uint8]int{}
	err := diagSockets(time.Now().Add(Limit), uint16(port), func(c conn) {
		if c.local.Port() == uint16(port) {
			n[c.state]++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A listener on [::] takes IPv4 connections: the kernel shows them among IPv6's,
// and a balancer is known by its IPv4 address.
func TestPeers(t *testing.T) {
	addr := loopback(t)
	l := listenOn(t, "tcp", "[::]:0")
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	to := fmt.Sprintf("%s:%d", addr, port)
	_, first := connect(t, l, to, "127.0.0.3")
	connect(t, l, to, "127.0.0.2")
	connect(t, l, to, "127.0.0.3")
	peers := func(at string) []string {
		t.Helper()
		p, err := Peers(netip.AddrPortFrom(map[bool]netip.Addr{true: {}, false: parseAddr(at)}[at == ""], port))
		if err != nil {
			t.Fatal(err)
		}
		var s []string
		for _, a := range p {
			s = append(s, a.String())
		}
		return s
	}
	two := []string{"127.0.0.2", "127.0.0.3"}
	for at, want := range map[string][]string{
		"": two, "0.0.0.0": two, "::": two, addr: two, "::ffff:" + addr: two, "127.0.0.1": nil,
	} {
		if got := peers(at); !slices.Equal(got, want) {
			t.Errorf("on %q: %v, want %v", at, got, want)
		}
	}
	if r := read(t, fmt.Sprintf("sockets=%s", to))(); r.Count != known(3) {
		t.Errorf("%+v", r)
	}
	// A reset leaves nothing behind.
	first.SetLinger(0)
	first.Close()
	await(t, "one of two to be left", func() bool { return states(t, int(port))[unix.BPF_TCP_ESTABLISHED] == 2 })
	if got := peers(addr); !slices.Equal(got, two) {
		t.Errorf("after a reset: %v", got)
	}
}

func parseAddr(s string) netip.Addr {
	a, _ := netip.ParseAddr(s)
	return a
}

// Netlink and the text say the same of every socket of a port: one of IPv4
// alone, and one that takes both.
func TestNetlinkEqualsProc(t *testing.T) {
	addr := loopback(t)
	for network, on := range map[string]string{"tcp4": addr + ":0", "tcp": "[::]:0"} {
		l := listenOn(t, network, on)
		port := uint16(l.Addr().(*net.TCPAddr).Port)
		to := fmt.Sprintf("%s:%d", addr, port)
		full, _ := connect(t, l, to, "127.0.0.2")
		fill(t, full)
		half, _ := connect(t, l, to, "127.0.0.3")
		half.CloseWrite()
		await(t, "FIN_WAIT2", func() bool { return states(t, int(port))[unix.BPF_TCP_FIN_WAIT2] == 1 })
		want := 3
		if network == "tcp" {
			connect(t, l, fmt.Sprintf("[::1]:%d", port), "::1")
			want++
		}
		list := func(sockets func(func(conn)) error) []string {
			t.Helper()
			var s []string
			if err := sockets(func(c conn) {
				if c.state == listen {
					c.pending = 0 // netlink gives the backlog's size here
				}
				if c.local.Port() == port {
					s = append(s, fmt.Sprintf("%v %v %d %d", c.local, c.remote, c.state, c.pending))
				}
			}); err != nil {
				t.Fatal(err)
			}
			slices.Sort(s)
			return s
		}
		soon := time.Now().Add(Limit)
		diag := list(func(f func(conn)) error { return diagSockets(soon, port, f) })
		proc := list(func(f func(conn)) error { return procSockets(soon, "/proc/net", port, f) })
		if d := cmp.Diff(diag, proc); d != "" || len(diag) != want {
			t.Errorf("%s: %d sockets by netlink, want %d, -netlink +proc:\n%s", network, len(diag), want, d)
		}
	}
}

// A kernel that cannot list sockets says so at the end of an empty list.
func TestNetlinkWithoutHandlerIsNoEmptyList(t *testing.T) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	request := diagRequest(unix.AF_INET, 80)
	request[17] = 99 // a protocol that nobody handles, as TCP is without tcp_diag
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	err = diagAnswers(fd, make([]byte, 64<<10), time.Now().Add(Limit), func(conn) { t.Error("a socket") })
	if err != syscall.ENOENT {
		t.Errorf("%v, want %v", err, syscall.ENOENT)
	}
}

func TestPastTheDeadline(t *testing.T) {
	past := time.Now().Add(-time.Second)
	if err := diagSockets(past, 1, func(conn) {}); err == nil {
		t.Error("netlink: no error")
	}
	if err := procSockets(past, "/proc/net", 1, func(conn) {}); err == nil {
		t.Error("text: no error")
	}
	ctx, cancel := context.WithDeadline(context.Background(), past)
	defer cancel()
	s := &sockets{named: named{"sockets"}, at: netip.MustParseAddrPort("127.0.0.1:1")}
	if r := s.Read(ctx); r.Count.Known || r.Note == "" {
		t.Errorf("%+v", r)
	}
}

const headline = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

// As another kernel printed it: port 8080 of 127.0.0.1 with 0x1234 bytes to send.
const goodLine = "   1: 0100007F:1F90 0200007F:C001 01 00001234:00000000 01:00000014 00000000     0        0 15825 1 00000000a3790a67 20 4 30 10 -1\n"

func TestProcText(t *testing.T) {
	dir := t.TempDir()
	run := func(tcp, tcp6 string) (string, error) {
		t.Helper()
		for name, text := range map[string]string{"tcp": tcp, "tcp6": tcp6} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		err := procSockets(time.Now().Add(time.Minute), dir, 8080, func(c conn) { fmt.Fprintf(&out, "%v %v %d %d\n", c.local, c.remote, c.state, c.pending) })
		return out.String(), err
	}
	six := strings.NewReplacer("0100007F", "0000000000000000FFFF00000100007F", "0200007F", "B80D01200000000000000000FFFFFFFF").Replace(goodLine)
	got, err := run(headline+goodLine, headline+six)
	want := "127.0.0.1:8080 127.0.0.2:49153 1 4660\n127.0.0.1:8080 [2001:db8::ffff:ffff]:49153 1 4660\n"
	if err != nil || got != want {
		t.Errorf("%s%v, want\n%s", got, err, want)
	}
	for name, text := range map[string]string{
		"empty":            "",
		"half a headline":  headline[:20],
		"half a line":      headline + goodLine[:60],
		"no newline":       headline + strings.TrimSuffix(goodLine, "\n"),
		"no address":       headline + strings.Replace(goodLine, "0100007F", "0100007", 1),
		"no port":          headline + strings.Replace(goodLine, ":1F90", "", 1),
		"no hexadecimal":   headline + strings.Replace(goodLine, "0100007F", "0100007G", 1),
		"no state":         headline + strings.Replace(goodLine, " 01 ", " xx ", 1),
		"negative queue":   headline + strings.Replace(goodLine, "00001234", "-0001234", 1),
		"no second queue":  headline + strings.Replace(goodLine, ":00000000 01:", " 01:", 1),
		"blank line":       headline + "\n",
		"a line too long":  headline + strings.Repeat(" ", 70<<10) + goodLine,
		"somebody's text":  "hello\nworld\n",
		"fields run short": headline + "1: 0100007F:1F90\n",
	} {
		if got, err := run(text, headline); err == nil {
			t.Errorf("%s was taken as %q", name, got)
		}
	}
	os.Remove(filepath.Join(dir, "tcp6"))
	var n int
	os.WriteFile(filepath.Join(dir, "tcp"), []byte(headline+goodLine), 0o600)
	if err := procSockets(time.Now().Add(time.Minute), dir, 8080, func(conn) { n++ }); err != nil || n != 1 {
		t.Errorf("without IPv6: %d, %v", n, err)
	}
	os.Remove(filepath.Join(dir, "tcp"))
	if err := procSockets(time.Now().Add(time.Minute), dir, 8080, func(conn) {}); err == nil {
		t.Error("no file at all is no error")
	}
}

func TestParseDiagRefuses(t *testing.T) {
	good := make([]byte, 72)
	good[0] = unix.AF_INET
	if _, err := parseDiag(good); err != nil {
		t.Error(err)
	}
	for _, b := range [][]byte{nil, good[:71], append([]byte{99}, good[1:]...)} {
		if c, err := parseDiag(b); err == nil {
			t.Errorf("%s was taken as %+v", hex.EncodeToString(b), c)
		}
	}
}

// One connection among 1,000 of other ports: what netlink filters, the text has
// to be read and thrown away.
func BenchmarkSockets(b *testing.B) {
	other, l := listenOn(b, "tcp4", loopback(b)+":0"), listenOn(b, "tcp4", loopback(b)+":0")
	for range 1000 {
		connect(b, other, other.Addr().String(), "127.0.0.2")
	}
	connect(b, l, l.Addr().String(), "127.0.0.2")
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	for name, sockets := range map[string]func(func(conn)) error{
		"netlink": func(f func(conn)) error { return diagSockets(time.Now().Add(Limit), port, f) },
		"proc":    func(f func(conn)) error { return procSockets(time.Now().Add(Limit), "/proc/net", port, f) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				n := 0
				if err := sockets(func(conn) { n++ }); err != nil || n != 2 {
					b.Fatal(n, err)
				}
			}
		})
	}
}
