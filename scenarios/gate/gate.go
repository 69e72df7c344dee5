// Package gate is a TCP door in front of a port, for faults that the program behind
// it cannot be asked to show: it can be shut, it can hang, and it can fail HAProxy's
// health check while everything else passes.
package gate

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Way is what the gate does with its connections.
type Way int

// The ways of a gate.
const (
	Pass   Way = iota // to the port behind it
	Refuse            // nobody listens, open connections are reset
	Hang              // accepts, and neither reads nor writes
	Fail              // answers GET /health_check.html with 503, passes all else
)

// Gate stands at one address.
type Gate struct {
	listen, to string

	mu     sync.Mutex
	way    Way
	ln     net.Listener
	conns  map[net.Conn]bool
	change chan struct{} // closed and renewed at every change of way
	closed bool
}

// New opens a gate at listen that passes to to.
func New(listen, to string) (*Gate, error) {
	g := &Gate{listen: listen, to: to, conns: map[net.Conn]bool{}, change: make(chan struct{})}
	if err := g.open(); err != nil {
		return nil, err
	}
	return g, nil
}

func (g *Gate) open() error {
	ln, err := net.Listen("tcp", g.listen)
	if err != nil {
		return fmt.Errorf("open gate: %w", err)
	}
	g.ln = ln
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go g.serve(conn)
		}
	}()
	return nil
}

// Set changes the way, for open connections too, except that Fail only looks at the
// first bytes of new ones.
func (g *Gate) Set(w Way) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.way
	g.way = w
	close(g.change)
	g.change = make(chan struct{})
	switch {
	case w == Refuse && was != Refuse:
		g.shut()
	case w != Refuse && was == Refuse:
		return g.open()
	}
	return nil
}

func (g *Gate) shut() {
	g.ln.Close()
	for c := range g.conns {
		if t, ok := c.(*net.TCPConn); ok {
			t.SetLinger(0)
		}
		c.Close()
	}
}

// Close ends the gate and its connections.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.closed, g.way = true, Refuse
		close(g.change) // whoever hangs may go
		g.change = make(chan struct{})
		g.shut()
	}
}

func (g *Gate) hold(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.way == Refuse {
		c.Close()
		return false
	}
	g.conns[c] = true
	return true
}

func (g *Gate) drop(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
	c.Close()
}

// now is the way, and a channel that closes when it changes.
func (g *Gate) now() (Way, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.way, g.change
}

// healthLine is how HAProxy's check begins in the canonical configuration.
const healthLine = "GET /health_check.html"

func (g *Gate) serve(conn net.Conn) {
	if !g.hold(conn) {
		return
	}
	defer g.drop(conn)
	in := bufio.NewReader(conn)
	if way, _ := g.now(); way == Fail {
		// HAProxy sends a check's request with the connection; its agent-check is silent.
		conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		first, _ := in.Peek(len(healthLine)) // a deadline is an answer: silent
		conn.SetReadDeadline(time.Time{})
		if string(first) == healthLine {
			_, _ = io.WriteString(conn, "HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n") // HAProxy may have left
			return
		}
	}
	if way, change := g.now(); way == Hang {
		<-change
	}
	back, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", g.to)
	if err != nil {
		return // closed without a byte: whoever is behind is gone
	}
	if !g.hold(back) {
		return
	}
	defer g.drop(back)
	done := make(chan struct{}, 2)
	go func() { g.pipe(back, in); done <- struct{}{} }()
	go func() { g.pipe(conn, back); done <- struct{}{} }()
	<-done
}

// pipe copies until one side ends, and stands still while the gate hangs.
func (g *Gate) pipe(to io.Writer, from io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		for way, change := g.now(); way == Hang; way, change = g.now() {
			<-change
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
