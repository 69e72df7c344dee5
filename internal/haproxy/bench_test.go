package haproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	cn "github.com/haproxytech/client-native/v5/runtime"
	"github.com/haproxytech/client-native/v5/runtime/options"
)

// many is a configuration of n servers in ten backends b0…b9.
func many(n int) string {
	var b strings.Builder
	b.WriteString("frontend f\n    bind DIR/f.sock\n    default_backend b0\n")
	for be := range 10 {
		fmt.Fprintf(&b, "backend b%d\n    option httpchk GET /health\n", be)
		for s := range n / 10 {
			fmt.Fprintf(&b, "    server s%d 127.77.%d.%d:30080 check port 30180 inter 1h agent-check agent-port 30180 agent-inter 1h on-marked-down shutdown-sessions\n",
				s+1, 2+s/250, 1+s%250)
		}
	}
	return b.String()
}

var sizes = []int{10, 1000, 10000}

// one is what a drain looks at: one server in one of ten backends.
var one = Scope{Servers: []Name{{"b7", "s1"}}}

func BenchmarkRead(b *testing.B) {
	for _, n := range sizes {
		p := start(b, many(n))
		for name, scope := range map[string]Scope{
			"all": {}, "backend": {Backends: []string{"b7"}}, "server": one,
		} {
			b.Run(fmt.Sprintf("servers=%d/%s", n, name), func(b *testing.B) {
				c := p.client(Options{})
				b.ReportAllocs()
				for b.Loop() {
					if _, err := c.Read(context.Background(), scope); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		p.down()
	}
}

// One turn is what a step of a drain costs: connect, read, one command, read
// back, close.
func BenchmarkTurn(b *testing.B) {
	for _, n := range sizes {
		p := start(b, many(n))
		b.Run(fmt.Sprintf("servers=%d", n), func(b *testing.B) {
			c := p.client(Options{})
			b.ReportAllocs()
			states := []State{Drain, Ready}
			for i := 0; b.Loop(); i++ {
				t, err := c.Turn(context.Background(), one, func(Read) ([]Command, error) {
					return []Command{SetState("b7", "s1", states[i%2])}, nil
				})
				if err != nil || t.Err() != nil {
					b.Fatal(err, t.Err())
				}
			}
		})
		p.down()
	}
}

// pair is the same work done twice: theirs is client-native's runtime client or
// the bare socket.
type pair struct {
	name         string
	ours, theirs func() error
}

func pairs(c *Client, native cn.Runtime) []pair {
	turn := func() error {
		t, err := c.Turn(context.Background(), one, func(Read) ([]Command, error) {
			return []Command{SetState("b7", "s1", Drain)}, nil
		})
		return errors.Join(err, t.Err())
	}
	readAll := func() error {
		_, err := c.Read(context.Background(), Scope{})
		return err
	}
	set := func() error {
		if err := native.SetServerState("b7", "s1", "drain"); err != nil {
			return err
		}
		_, err := native.GetServersState("b7")
		return err
	}
	return []pair{
		// Ours reads sessions and admin bits before and after; theirs as little
		// as it can, and no sessions.
		{"turn/SetServerState+GetServersState", turn, set},
		// The same facts: before, command, after.
		{"turn/GetStats+SetServerState+GetServersState+GetStats", turn, func() error {
			native.GetStats()
			err := set()
			native.GetStats()
			return err
		}},
		{"read/GetServersState+GetStats", readAll, func() error {
			for i := range 10 {
				if _, err := native.GetServersState(fmt.Sprint("b", i)); err != nil {
					return err
				}
			}
			native.GetStats()
			return nil
		}},
		{"read/bare-show-stat", readAll, func() error {
			_, err := raw(c.Socket().Address, "show stat\n")
			return err
		}},
	}
}

// Both sides of a pair run turn and turn about in one run; theirs/ours is the
// ratio of their times.
func BenchmarkAgainst(b *testing.B) {
	for _, n := range sizes {
		p := start(b, many(n))
		c := p.client(Options{Timeout: time.Minute})
		native, err := cn.New(context.Background(), options.Sockets(map[int]string{1: c.Socket().Address}))
		if err != nil {
			b.Fatal(err)
		}
		for _, pair := range pairs(c, native) {
			b.Run(fmt.Sprintf("servers=%d/%s", n, pair.name), pair.run)
		}
		p.down()
	}
}

func (p pair) run(b *testing.B) {
	var ours, theirs time.Duration
	for b.Loop() {
		began := time.Now()
		if err := p.ours(); err != nil {
			b.Fatal(err)
		}
		ours += time.Since(began)
		began = time.Now()
		if err := p.theirs(); err != nil {
			b.Fatal(err)
		}
		theirs += time.Since(began)
	}
	b.ReportMetric(float64(ours.Microseconds())/float64(b.N), "µs-ours")
	b.ReportMetric(float64(theirs.Microseconds())/float64(b.N), "µs-theirs")
	b.ReportMetric(float64(theirs)/float64(ours), "theirs/ours")
}

// raw is what `echo … | socat - UNIX-CONNECT:…` does.
func raw(path, line string) (int, error) {
	nc, err := net.Dial("unix", path)
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	if _, err := io.WriteString(nc, line); err != nil {
		return 0, err
	}
	n, err := io.Copy(io.Discard, nc)
	return int(n), err
}

// The parsers alone, without a HAProxy that takes its time.
func BenchmarkParse(b *testing.B) {
	says := bytes.NewBufferString("\n> admin\n\n> " + fakeInfo + "\n> ")
	stateHead, stateRow, _ := strings.Cut(fakeState, "port\n")
	statHead, statRow, _ := strings.Cut(fakeStat, "\n")
	says.WriteString(stateHead + "port\n")
	const n = 10000
	for i := range n {
		says.WriteString(strings.ReplaceAll(stateRow[:strings.Index(stateRow, "\n")+1], "s1", fmt.Sprint("s", i)))
	}
	says.WriteString("\n> " + statHead + "\n")
	for i := range n {
		says.WriteString(strings.ReplaceAll(statRow[:strings.Index(statRow, "\n")+1], "s1", fmt.Sprint("s", i)))
	}
	says.WriteString("\n> ")
	b.SetBytes(int64(says.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if r, err := hear(says.Bytes()); err != nil || len(r.Servers) != n {
			b.Fatal(err, len(r.Servers))
		}
	}
}
