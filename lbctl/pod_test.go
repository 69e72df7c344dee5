package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lbdrain/internal/handshake"
)

// pod is a data server and an agent that says what the test wants: the documents
// of the handshake, the health page and the agent-check word on one port.
type pod struct {
	t           testing.TB
	ip          string
	data, agent int
	running     atomic.Int32
	checks      atomic.Int32  // health checks answered
	polls       atomic.Int32  // agent checks answered
	hung        chan struct{} // closed: hanging requests end

	mu       sync.Mutex
	status   handshake.Status
	changed  chan struct{}
	word     string
	health   int
	acks     []handshake.Ack
	conns    map[string]bool // on which acknowledgements came
	listener net.Listener
	open     []net.Conn
}

func newPod(t testing.TB, ip string) *pod {
	t.Helper()
	p := &pod{
		t: t, ip: ip, hung: make(chan struct{}), changed: make(chan struct{}), conns: map[string]bool{},
		word: "up", health: 200,
	}
	p.status = handshake.Status{Version: 1, Ready: true, State: "OPEN", Instance: "one", Seq: 1, Since: handshake.At(time.Now())}
	data, agent := listen(t, ip), listen(t, ip)
	p.data, p.agent = port(data), port(agent)
	s := &httptest.Server{Listener: data, Config: &http.Server{Handler: http.HandlerFunc(p.work)}}
	s.Start()
	t.Cleanup(func() {
		p.letGo()
		s.CloseClientConnections()
		s.Close()
	})
	p.answer(agent)
	t.Cleanup(p.stopAgent)
	return p
}

// work serves /hang until the test lets go, everything else at once.
func (p *pod) work(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.URL.Path, "hang") {
		p.running.Add(1)
		defer p.running.Add(-1)
		p.mu.Lock()
		hung := p.hung
		p.mu.Unlock()
		select {
		case <-hung:
		case <-r.Context().Done():
		}
	}
	fmt.Fprintln(w, p.ip)
}

// letGo ends the hanging requests.
func (p *pod) letGo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.hung:
	default:
		close(p.hung)
	}
}

// edit changes what the agent says.
func (p *pod) edit(f func(*handshake.Status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.status)
	close(p.changed)
	p.changed = make(chan struct{})
}

// drain begins one.
func (p *pod) drain() {
	p.mu.Lock()
	p.word = "drain"
	p.acks = nil
	p.mu.Unlock()
	p.edit(func(s *handshake.Status) {
		s.Seq++
		s.State = "DRAINING"
		s.Drain = &handshake.Drain{
			DrainID: handshake.DrainID{Instance: s.Instance, Seq: s.Seq}, Finish: true,
			Deadline: handshake.At(time.Now().Add(time.Minute)),
		}
	})
}

// reopen makes it OPEN, as instance.
func (p *pod) reopen(instance string) {
	p.mu.Lock()
	p.word = "up"
	p.mu.Unlock()
	p.edit(func(s *handshake.Status) { s.Seq, s.State, s.Drain, s.Instance = s.Seq+1, "OPEN", nil, instance })
}

func (p *pod) say(word string, health int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.word, p.health = word, health
}

// after waits until n more of what counter counts have come.
func after(t testing.TB, what string, counter *atomic.Int32, n int32) {
	t.Helper()
	from := counter.Load()
	eventually(t, fmt.Sprintf("%d more %s", n, what), func() bool { return counter.Load() >= from+n })
}

// lastWord is what the newest acknowledgement of a drain amounts to.
func (p *pod) lastWord() handshake.Word {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.acks) - 1; i >= 0; i-- {
		if p.acks[i].Drain != nil {
			return p.acks[i].Word()
		}
	}
	return handshake.None
}

// startAgent is the agent back on its port.
func (p *pod) startAgent() {
	p.t.Helper()
	var l net.Listener
	eventually(p.t, "the agent's port is free", func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", net.JoinHostPort(p.ip, strconv.Itoa(p.agent)))
		return err == nil
	})
	p.answer(l)
}

// answer is the agent's life on a listener.
func (p *pod) answer(l net.Listener) {
	web := &handed{addr: l.Addr(), conns: make(chan net.Conn)}
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	go http.Serve(web, p.mux())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(web.conns)
				return
			}
			p.mu.Lock()
			p.open = append(p.open, c)
			p.mu.Unlock()
			go p.front(c, web)
		}
	}()
}

// stopAgent ends it as kill -9 does.
func (p *pod) stopAgent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener.Close()
	for _, c := range p.open {
		c.Close()
	}
	p.open = nil
}

// front tells a silent peer, the agent check, from HTTP.
func (p *pod) front(c net.Conn, web *handed) {
	r := bufio.NewReader(c)
	c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
	if _, err := r.Peek(1); err != nil {
		p.mu.Lock()
		word := p.word
		p.mu.Unlock()
		fmt.Fprintln(c, word)
		p.polls.Add(1)
		c.Close()
		return
	}
	c.SetReadDeadline(time.Time{})
	defer func() { _ = recover() }() // the listener was closed meanwhile
	web.conns <- peeked{c, r}
}

func (p *pod) mux() *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("GET /health_check.html", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		w.WriteHeader(p.health)
		p.checks.Add(1)
	})
	m.HandleFunc("GET /drain/status", p.answerStatus)
	m.HandleFunc("PUT /drain/lbs/{lb}", p.takeAck)
	m.HandleFunc("DELETE /drain/lbs/{lb}", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	return m
}

func (p *pod) answerStatus(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	s, changed := p.status, p.changed
	p.mu.Unlock()
	if n, err := strconv.Atoi(strings.TrimPrefix(r.Header.Get("Prefer"), "wait=")); err == nil && r.Header.Get("If-None-Match") == s.ETag() {
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-time.After(time.Duration(n) * time.Second):
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	p.mu.Lock()
	s = p.status
	p.mu.Unlock()
	p.write(w, 200, s)
}

func (p *pod) takeAck(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	a, derr := handshake.DecodeAck(body)
	if err := errors.Join(err, derr); err != nil {
		p.t.Errorf("acknowledgement: %v: %s", err, body)
		w.WriteHeader(400)
		return
	}
	p.mu.Lock()
	s := p.status
	code := 200
	if a.Drain != nil && (s.Drain == nil || *a.Drain != s.Drain.DrainID) {
		code = 409
	} else {
		p.acks = append(p.acks, a)
		p.conns[r.RemoteAddr] = true
	}
	p.mu.Unlock()
	p.write(w, code, s)
}

func (p *pod) write(w http.ResponseWriter, code int, s handshake.Status) {
	b, err := json.Marshal(s)
	if err != nil {
		p.t.Error(err)
	}
	w.Header().Set("ETag", s.ETag())
	w.WriteHeader(code)
	w.Write(b)
}

// handed is a listener whose connections are handed over.
type handed struct {
	addr  net.Addr
	conns chan net.Conn
}

func (h *handed) Accept() (net.Conn, error) {
	c, ok := <-h.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (h *handed) Close() error   { return nil }
func (h *handed) Addr() net.Addr { return h.addr }

type peeked struct {
	net.Conn
	r *bufio.Reader
}

func (p peeked) Read(b []byte) (int, error) { return p.r.Read(b) }
