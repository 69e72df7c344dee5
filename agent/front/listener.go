package front

import (
	"bufio"
	"bytes"
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"lbdrain/agent/balancers"
)

const (
	maxConns     = 1024     // of one listener; each costs up to 50 kB
	kernelBuffer = 64 << 10 // each way; left alone it grows to megabytes, charged to the pod
	maxLine      = 256      // bytes of an agent-send line
	lineLimit    = time.Second
	headerLimit  = 5 * time.Second
	bodyLimit    = 5 * time.Second
	idleLimit    = 2 * time.Minute
	writeLimit   = 5 * time.Second // a peer that reads nothing
	lingerLimit  = 100 * time.Millisecond
	maxHeader    = 16 << 10
	acceptPause  = time.Millisecond // a closed descriptor is free when its reader has let go
	keepIdle     = 10 * time.Second // a black-holed watcher is noticed after keepIdle+3·keepInterval
	keepInterval = 2 * time.Second
)

// conn is an accepted connection with the bytes that were looked at.
type conn struct {
	net.Conn
	raw  net.Conn // as accepted
	r    *bufio.Reader
	peer balancers.Peer
	busy atomic.Bool // a handler runs
	held atomic.Bool // its answer is held
	kept atomic.Bool // it carries a watch

	problem func(code int, why string) []byte
}

func (c *conn) Read(b []byte) (int, error) { return c.r.Read(b) }

// serverError is how net/http refuses what it cannot read, past any handler
// (net/http server.go, conn.serve).
var serverError = regexp.MustCompile(`^HTTP/1\.1 ([45]\d\d) [^\r\n]*\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n(.*)$`)

// expectationFailed begins the one it sends without a body (sendExpectationFailed).
var expectationFailed = []byte("HTTP/1.1 417 ")

// Write gives such a refusal the body that all errors have. One that asks again
// and again and reads nothing must not hold its goroutine for good.
func (c *conn) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(writeLimit))
	var refusal []byte
	if m := serverError.FindSubmatch(b); m != nil {
		code, _ := strconv.Atoi(string(m[1]))
		refusal = c.problem(code, string(m[2]))
	} else if bytes.HasPrefix(b, expectationFailed) {
		refusal = c.problem(http.StatusExpectationFailed, "Expect: only 100-continue is met")
	} else {
		return c.Conn.Write(b)
	}
	if _, err := c.Conn.Write(refusal); err != nil {
		return 0, err
	}
	return len(b), nil
}

// CloseWrite ends our side and leaves the peer time to read.
func (c *conn) CloseWrite() {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite()
	}
}

// port is one listener: it accepts, looks at the first bytes, answers polls and
// hands HTTP connections over through Accept.
type port struct {
	net.Listener
	front   *Front
	control bool
	http    chan *conn
	done    chan struct{}
	once    sync.Once

	mu    sync.Mutex
	conns *list.List // *conn, oldest first
}

// Listen opens host:port or unix:PATH for [Front.Serve]. An old socket file of a
// dead agent is replaced.
func Listen(ctx context.Context, network, addr string) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: 3}}
	ln, err := lc.Listen(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return ln, nil
}

var lastConn atomic.Uint64

func (p *port) run() {
	for {
		nc, err := p.Listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				p.Close()
				return
			}
			// Out of descriptors: somebody has to go before the next.
			p.evict()
			time.Sleep(acceptPause)
			continue
		}
		if t, ok := nc.(*net.TCPConn); ok {
			_ = t.SetReadBuffer(kernelBuffer)
			_ = t.SetWriteBuffer(kernelBuffer)
		}
		c := &conn{Conn: nc, raw: nc, r: bufio.NewReaderSize(nc, 2*maxLine), peer: balancers.Peer{
			Addr: addrOf(nc.RemoteAddr()), Conn: lastConn.Add(1), Trusted: p.control,
		}, problem: p.front.rawProblem}
		p.add(c)
		go p.greet(c)
	}
}

// add keeps the connection in the order of arrival until it is closed.
func (p *port) add(c *conn) {
	p.mu.Lock()
	e := p.conns.PushBack(c)
	full := p.conns.Len() > maxConns
	p.mu.Unlock()
	c.Conn = &tracked{Conn: c.Conn, gone: func() {
		p.mu.Lock()
		p.conns.Remove(e)
		p.mu.Unlock()
		if c.kept.Load() {
			p.front.cfg.Pod.Hang(c.peer.Conn)
		}
	}}
	if full {
		p.evict()
	}
}

// use is what a connection is used for, for evict.
type use uint8

const (
	idle    use = iota // between requests, or its first has not come yet
	working            // a handler runs
	holding            // its answer is held
	watched            // it carries a watch
	uses
)

func (c *conn) use() use {
	switch {
	case c.kept.Load():
		return watched
	case c.held.Load():
		return holding
	case c.busy.Load():
		return working
	}
	return idle
}

// evict closes a connection of the use that most have: a flood pays for itself,
// and a single check, hook or watch never does. Of those that should be short it
// is the oldest, of those that are meant to last the newest: the kubelet's hook
// came before the flood. The connection that has just come is left alone.
func (p *port) evict() {
	var n [uses]int
	var oldest, newest [uses]*conn
	p.mu.Lock()
	for e := p.conns.Front(); e != nil && e.Next() != nil; e = e.Next() {
		c := e.Value.(*conn)
		u := c.use()
		if n[u]++; oldest[u] == nil {
			oldest[u] = c
		}
		newest[u] = c
	}
	p.mu.Unlock()
	most := idle
	for u := range uses {
		if n[u] > n[most] {
			most = u
		}
	}
	victim := oldest[most]
	if most == holding || most == watched {
		victim = newest[most]
	}
	if victim != nil {
		victim.Close()
	}
}

// tracked runs gone once, at the first Close.
type tracked struct {
	net.Conn
	once sync.Once
	gone func()
}

func (t *tracked) Close() error {
	err := t.Conn.Close()
	t.once.Do(t.gone)
	return err
}

func (t *tracked) CloseWrite() error {
	if h, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

// Accept hands over connections that speak HTTP.
func (p *port) Accept() (net.Conn, error) {
	select {
	case c := <-p.http:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close ends the listener; connections live on.
func (p *port) Close() error {
	p.once.Do(func() { close(p.done) })
	return p.Listener.Close()
}

func addrOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		addr, _ := netip.AddrFromSlice(t.IP)
		return addr.Unmap()
	}
	return netip.Addr{}
}
