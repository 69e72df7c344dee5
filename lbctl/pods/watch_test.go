package pods

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"lbdrain/internal/handshake"
	"lbdrain/lbctl/hold"
)

// agent is a scripted agent: it sees each request and says what is answered.
type agent struct {
	t    testing.TB
	l    net.Listener
	seen chan seen

	mu    sync.Mutex
	conns int
}

// seen is a request, and where to answer it. No answer closes the connection.
type seen struct {
	conn   int
	method string
	path   string
	prefer string
	etag   string
	auth   string
	body   string
	answer chan string
}

func newAgent(t testing.TB) *agent {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, l: l, seen: make(chan seen)}
	t.Cleanup(func() { l.Close() })
	go func() {
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a.mu.Lock()
			a.conns = n
			a.mu.Unlock()
			go a.serve(n, c)
		}
	}()
	return a
}

func (a *agent) serve(n int, c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body, _ := io.ReadAll(req.Body)
		s := seen{
			n, req.Method, req.URL.RequestURI(), req.Header.Get("Prefer"), req.Header.Get("If-None-Match"),
			req.Header.Get("Authorization"), string(body), make(chan string),
		}
		select {
		case a.seen <- s:
		case <-a.t.Context().Done():
			return
		}
		text, ok := <-s.answer
		if !ok {
			return
		}
		io.WriteString(c, text)
	}
}

// next is the next request.
func (a *agent) next() seen {
	a.t.Helper()
	select {
	case s := <-a.seen:
		return s
	case <-time.After(20 * time.Second):
		a.t.Fatal("no request came")
	}
	panic("unreachable")
}

func status(state string, seq uint64) handshake.Status {
	s := handshake.Status{Version: 1, State: state, Instance: "one", Seq: seq}
	if state == "DRAINING" {
		s.Drain = &handshake.Drain{DrainID: handshake.DrainID{Instance: "one", Seq: seq}}
	}
	return s
}

func answer(code int, s handshake.Status) string {
	b, _ := json.Marshal(s)
	return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s", code, len(b), b)
}

// run starts a watch that ends with the test.
func run(t testing.TB, a *agent, o Options) (*Watch, chan error) {
	t.Helper()
	trouble := make(chan error, 100)
	o.Changed = func() {}
	o.Trouble = func(err error) { trouble <- err }
	if o.Interval == 0 {
		o.Interval = time.Second
	}
	w := New(a.l.Addr().String(), o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		for {
			select {
			case s := <-a.seen:
				close(s.answer)
			case <-done:
				return
			}
		}
	})
	return w, trouble
}

// TestConversation is a pod's whole life on one connection: watch, greeting, held
// GET, the drain, acknowledgements, the end.
func TestConversation(t *testing.T) {
	a := newAgent(t)
	w, _ := run(t, a, Options{LB: "lb1", Token: "secret"})
	w.Hello(handshake.Ack{Version: 1, Interval: handshake.Millis(time.Second)})
	s := a.next()
	if s.method != "GET" || s.path != "/drain/status?lb=lb1" || s.prefer != "" || s.auth != "Bearer secret" {
		t.Fatalf("first %+v", s)
	}
	s.answer <- answer(200, status("OPEN", 1))
	s = a.next()
	if s.method != "PUT" || s.path != "/drain/lbs/lb1" || !strings.Contains(s.body, `"drain":null`) {
		t.Fatalf("greeting %+v", s)
	}
	s.answer <- answer(200, status("OPEN", 1))
	s = a.next()
	if s.method != "GET" || s.prefer != "wait=25" || s.etag != `"one.1"` {
		t.Fatalf("held %+v", s)
	}
	if p := w.Pod(); p.Phase != hold.Open || !p.Lost.IsZero() {
		t.Errorf("%+v", p)
	}
	drain := handshake.DrainID{Instance: "one", Seq: 2}
	w.Say(handshake.Ack{Drain: &handshake.DrainID{Instance: "one", Seq: 1}}) // another drain's: never sent
	s.answer <- answer(200, status("DRAINING", 2))
	eventually(t, func() bool { return w.Pod().Drain == drain })
	w.Say(handshake.Ack{Version: 1, Drain: &drain})
	if s = a.next(); s.method != "PUT" || !strings.Contains(s.body, `"seq":2`) {
		t.Fatalf("acknowledgement %+v", s)
	}
	s.answer <- answer(200, status("CLOSED", 4))
	eventually(t, func() bool { return w.Pod().Phase == hold.Leaving && w.Pod().Drain.Seq == 4 })
	if s.conn != 1 {
		t.Errorf("connection %d, want the one of the watch", s.conn)
	}
	s = a.next() // nothing to say: asked once an interval
	if s.method != "GET" || s.prefer != "" {
		t.Errorf("%+v", s)
	}
	close(s.answer)
	eventually(t, func() bool { return !w.Pod().Lost.IsZero() })
}

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("never happened")
}

// TestSilent: a PUT without an answer within the interval ends the connection.
func TestSilent(t *testing.T) {
	a := newAgent(t)
	w, trouble := run(t, a, Options{LB: "lb1", Interval: 50 * time.Millisecond})
	a.next().answer <- answer(200, status("DRAINING", 2))
	drain := handshake.DrainID{Instance: "one", Seq: 2}
	w.Say(handshake.Ack{Version: 1, Drain: &drain})
	a.next() // never answered
	s := a.next()
	if s.conn != 2 || s.method != "GET" {
		t.Errorf("%+v, want a new connection", s)
	}
	if err := <-trouble; err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("%v", err)
	}
	s.answer <- answer(200, status("DRAINING", 2))
}

// TestRefused: a 403 or 409 is said once, and tried again; the watch goes on.
func TestRefused(t *testing.T) {
	a := newAgent(t)
	w, trouble := run(t, a, Options{LB: "lb1"})
	w.Hello(handshake.Ack{Version: 1, Interval: handshake.Millis(time.Second)})
	a.next().answer <- answer(200, status("OPEN", 1))
	a.next().answer <- "HTTP/1.1 403 Forbidden\r\nContent-Length: 29\r\n\r\n{\"error\":\"a stranger's word\"}"
	if err := <-trouble; err == nil || !strings.Contains(err.Error(), "403 a stranger's word") {
		t.Errorf("%v", err)
	}
	s := a.next()
	if s.method != "GET" || s.prefer != "wait=1" || s.conn != 1 {
		t.Fatalf("%+v", s)
	}
	s.answer <- "HTTP/1.1 304 Not Modified\r\n\r\n"
	if s = a.next(); s.method != "PUT" {
		t.Fatalf("%+v, want the greeting again", s)
	}
	s.answer <- answer(200, status("OPEN", 1))
	if err := <-trouble; err != nil {
		t.Errorf("%v", err)
	}
}

// TestAttend: a held GET is given up where a fresh answer is needed, and the pod
// is not lost meanwhile.
func TestAttend(t *testing.T) {
	a := newAgent(t)
	w, _ := run(t, a, Options{})
	s := a.next()
	if s.path != "/drain/status" {
		t.Errorf("an observer named itself: %+v", s)
	}
	s.answer <- answer(200, status("OPEN", 1))
	a.next().answer <- "HTTP/1.1 304 Not Modified\r\n\r\n"
	if s = a.next(); s.prefer != "wait=25" {
		t.Fatalf("%+v", s)
	}
	before := w.Pod().Heard
	eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.sleeper != nil })
	w.Attend(true)
	for range 3 {
		s = a.next()
		if s.prefer != "" && s.prefer != "wait=1" {
			t.Fatalf("%+v", s)
		}
		if p := w.Pod(); !p.Lost.IsZero() || p.Phase != hold.Open {
			t.Errorf("%+v", p)
		}
		s.answer <- answer(200, status("OPEN", 1))
	}
	if w.Attend(false); !w.Pod().Heard.After(before) {
		t.Error("nothing fresh was heard")
	}
}

// TestNotAnAgent: what is no status is left alone, and never taken for one.
func TestNotAnAgent(t *testing.T) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK",
		"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"status\":\"ok\"}",
		"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n" + strings.Repeat(" ", 70000),
		"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
		"SSH-2.0-OpenSSH_9.2\r\n", "", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"version\"",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
	} {
		a := newAgent(t)
		w, trouble := run(t, a, Options{LB: "lb1", Interval: 100 * time.Millisecond})
		s := a.next()
		if text == "" {
			close(s.answer)
		} else {
			s.answer <- text
		}
		if err := <-trouble; err == nil {
			t.Errorf("%.40q was taken", text)
		}
		if p := w.Pod(); p.Phase != hold.Unknown {
			t.Errorf("%.40q: %+v", text, p)
		}
	}
}

// TestStorm: an agent that answers at once what should be held, refuses for ever, or
// hangs up after each answer, is asked no faster for it.
func TestStorm(t *testing.T) {
	seq := uint64(1)
	for name, misbehave := range map[string]func(seen) string{
		"304 at once":  func(seen) string { return "HTTP/1.1 304 Not Modified\r\n\r\n" },
		"held at once": func(seen) string { return answer(200, status("OPEN", 1)) },
		"another instance each time": func(seen) string {
			s := status("OPEN", 1)
			seq++
			s.Instance = fmt.Sprint(seq)
			return answer(200, s)
		},
		"409 of another drain each time": func(s seen) string {
			seq++
			if s.method == "PUT" {
				return answer(409, status("DRAINING", seq))
			}
			return answer(200, status("DRAINING", seq))
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t)
			w, _ := run(t, a, Options{LB: "lb1"})
			w.Hello(handshake.Ack{Version: 1, Interval: handshake.Millis(time.Second)})
			began := time.Now()
			a.next().answer <- answer(200, status("OPEN", 1))
			for range 2 * burst {
				s := a.next()
				s.answer <- misbehave(s)
				if strings.HasPrefix(name, "409") {
					eventually(t, func() bool { return w.Pod().Drain.Seq == seq })
				}
				drain := w.Pod().Drain
				w.Say(handshake.Ack{Version: 1, Drain: &drain})
			}
			if took := time.Since(began); took < burst/2*pace {
				t.Errorf("%d exchanges in %v", 2*burst, took)
			}
		})
	}
}

// TestEndlessHead: an answer whose head does not end is given up at its bound, not
// kept for as long as it comes.
func TestEndlessHead(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	line := []byte("X-Pad: " + strings.Repeat("x", 4000) + "\r\n")
	sent := make(chan int, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		n, _ := c.Write([]byte("HTTP/1.1 200 OK\r\n"))
		for err == nil && n < 64<<20 {
			var m int
			m, err = c.Write(line)
			n += m
		}
		sent <- n
	}()
	trouble := make(chan error, 10)
	w := New(l.Addr().String(), Options{
		LB: "lb1", Interval: 20 * time.Second, Changed: func() {}, Trouble: func(err error) { trouble <- err },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	if err := <-trouble; !errors.Is(err, errStranger) {
		t.Errorf("%v", err)
	}
	if n := <-sent; n >= 64<<20 {
		t.Errorf("%d bytes of a head were read", n)
	}
}

// TestManyPods bounds what an idle watch costs: one goroutine, and little memory.
func TestManyPods(t *testing.T) {
	const n = 200
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	held := make(chan struct{}, n)
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Prefer") == "wait=25" {
			held <- struct{}{}
			<-r.Context().Done()
			return
		}
		b, _ := json.Marshal(status("OPEN", 1))
		w.Write(b)
	}))
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range n {
		w := New(l.Addr().String(), Options{Interval: time.Second, Changed: func() {}})
		all.Go(func() { w.Run(ctx) })
	}
	for range n {
		<-held
	}
	stacks := make([]byte, 8<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if got := strings.Count(string(stacks), "pods.(*Watch).Run("); got > n {
		t.Errorf("%d goroutines for %d pods", got, n)
	}
	cancel()
	all.Wait()
}
