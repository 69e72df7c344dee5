package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lbdrain/internal/handshake"
)

// An idle pod behind a balancer that acknowledges: the hook ends with 0, the
// receipt names everything, SIGTERM ends serve with 0.
func TestDrainWithLBCtl(t *testing.T) {
	t.Parallel()
	src := newSource(t, 1)
	p := serveAgent(t, src.flag())
	p.balancer("lb1:admin.sock").admit()
	h := p.hook()
	p.await("held_zero")
	s := p.status()
	if s.State != "DRAINING" || s.Drain == nil || !s.Drain.Finish || !s.Ready {
		t.Errorf("with a request in flight: %+v", s)
	}
	src.n.Store(0)
	if code := h.exit(); code != 0 {
		t.Errorf("hook: %d", code)
	}
	if s := p.status(); s.State != "CLOSED" || s.Ready || !s.Progress.InFlight["http"].Zero() {
		t.Errorf("after the drain: %+v", s)
	}
	r := p.await("receipt")
	if lbs := fmt.Sprint(r["lbs"]); r["outcome"] != "drained" || !strings.Contains(lbs, "held_zero:20") || !strings.Contains(lbs, "old_sessions_unknown:true") {
		t.Errorf("receipt %v", r)
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("serve: %d", code)
	}
	var moves []string
	for _, e := range p.events("transition") {
		moves = append(moves, fmt.Sprint(e["from"], "→", e["to"]))
	}
	if d := cmp.Diff([]string{"OPEN→DRAINING", "DRAINING→CLOSING", "CLOSING→CLOSED"}, moves); d != "" {
		t.Error(d)
	}
}

// SIGTERM alone does the same, and a second one changes nothing.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	src := newSource(t, 1)
	p := serveAgent(t, src.flag())
	p.balancer("lb1").admit()
	p.signal(syscall.SIGTERM)
	p.await("held_zero")
	p.signal(syscall.SIGTERM)
	eventually(t, "two SIGTERMs in the log", func() bool { return len(p.events("sigterm")) == 2 })
	if a := p.get("/health_check.html"); a.code != 200 {
		t.Errorf("health while draining: %d", a.code)
	}
	src.n.Store(0)
	if code := p.exit(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// Without a source nothing is known, unless every balancer acknowledges.
func TestNoSourceButAcknowledged(t *testing.T) {
	t.Parallel()
	p := serveAgent(t)
	p.balancer("lb1").admit()
	if code := p.hook().exit(); code != 0 {
		t.Errorf("hook: %d", code)
	}
}

// The curl lines of the seven-step shell hook, unchanged.
func TestOldHook(t *testing.T) {
	t.Parallel()
	p := serveAgent(t)
	for _, c := range []struct {
		path, state string
		health      int
		word        string
	}{
		{"/drain", "DRAINING", 200, "drain\n"},
		{"/close-lb", "CLOSING", 503, "drain\n"},
		{"/close", "CLOSED", 503, "down\n"},
	} {
		for range 2 { // saying it twice changes nothing
			out, err := exec.Command("curl", "-fsS", "-m", "5", "-X", "POST", p.control(c.path)).CombinedOutput()
			if err != nil {
				t.Fatalf("POST %s: %v: %s", c.path, err, out)
			}
			if s := p.status(); s.State != c.state {
				t.Errorf("after %s: %s", c.path, s.State)
			}
		}
		if a, w := p.get("/health_check.html"), p.word(); a.code != c.health || w != c.word {
			t.Errorf("after %s: health %d, word %q", c.path, a.code, w)
		}
	}
	if a := p.post("/reopen"); a.code != 409 || !strings.Contains(a.body, `"state":"CLOSED"`) {
		t.Errorf("reopen: %v", a)
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// A person's drain stays, is joined by the hook, and reopens.
func TestByHand(t *testing.T) {
	t.Parallel()
	src := newSource(t, 0)
	p := serveAgent(t, src.flag(), "--lb-buffer", "0.2")
	for _, path := range []string{"/close-lb", "/close"} {
		if a := p.post(path); a.code != 409 || !strings.Contains(a.body, `"state":"OPEN"`) {
			t.Errorf("%s in OPEN: %v", path, a)
		}
	}
	p.post("/drain")
	if a := do(t, "POST", p.control("/drain"), "", "Prefer", "wait=1"); a.code != 200 || a.header.Get("Preference-Applied") != "wait=1" {
		t.Errorf("held: %v", a)
	}
	if s := p.status(); s.State != "DRAINING" || s.Drain.Finish || !s.Drain.Deadline.IsZero() {
		t.Errorf("a person's drain: %+v", s)
	}
	p.post("/close-lb")
	if a := p.post("/reopen"); a.code != 200 || !strings.HasPrefix(a.header.Get("Warning"), "199 - ") || !strings.Contains(a.body, `"warning":"HAProxy may`) {
		t.Errorf("reopen from CLOSING: %v", a)
	}
	if w := p.word(); w != "up ready\n" {
		t.Errorf("after the reopen: %q", w)
	}
	p.post("/drain")
	if a := do(t, "POST", p.control("/drain?finish"), "", "Prefer", "wait=999"); a.header.Get("Preference-Applied") != "wait=300" || !strings.Contains(a.body, `"state":"CLOSED"`) {
		t.Errorf("finish: %v", a)
	}
	if a := p.post("/drain"); a.code != 409 {
		t.Errorf("drain in CLOSED: %v", a)
	}
	if a := p.post("/drain?finish"); a.code != 200 {
		t.Errorf("joining a finished drain: %v", a)
	}
	if code := p.hook().exit(); code != 0 {
		t.Errorf("hook after the end: %d", code)
	}
}

func TestFault(t *testing.T) {
	t.Parallel()
	p := serveAgent(t)
	p.post("/fault")
	got := fmt.Sprintf("%d %d %d %s %d", p.get("/health_check.html").code, p.get("/health").code, p.get("/live").code, strings.TrimSpace(p.word()), p.post("/drain").code)
	if want := "503 503 500 down #fault 409"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if code := p.hook().exit(); code != 1 {
		t.Errorf("hook: %d", code)
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 1 {
		t.Errorf("exit %d", code)
	}
}

// The deadline: hold keeps answering until the sources are zero, and both the
// hook and serve end with 3.
func TestDeadlineHold(t *testing.T) {
	t.Parallel()
	src := newSource(t, 2)
	p := serveAgent(t, src.flag(), "--drain-timeout", "0.3")
	p.balancer("lb1").admit()
	h := p.hook()
	wait := do(t, "GET", p.url("/drain/wait"), "")
	if code := h.exit(); code != 3 || !strings.Contains(h.text(), "in flight http 2") {
		t.Errorf("hook: %d %s", code, h.text())
	}
	if wait.code != 200 || !strings.Contains(wait.body, `"timed_out":true`) {
		t.Errorf("wait: %v", wait)
	}
	p.signal(syscall.SIGTERM)
	p.await("sigterm")
	if s, a := p.status(), p.get("/health_check.html"); s.State != "DRAINING" || a.code != 200 {
		t.Errorf("held past the deadline: %s, health %d", s.State, a.code)
	}
	src.n.Store(0)
	if code := p.exit(); code != 3 {
		t.Errorf("exit %d", code)
	}
}

func TestDeadlineClose(t *testing.T) {
	t.Parallel()
	src := newSource(t, 2)
	p := serveAgent(t, src.flag(), "--drain-timeout", "0.3", "--on-deadline", "close")
	if code := p.hook().exit(); code != 3 {
		t.Errorf("hook: %d", code)
	}
	if s, a, w := p.status(), p.get("/health_check.html"), p.word(); s.State != "CLOSED" || a.code != 503 || w != "down\n" {
		t.Errorf("%s, health %d, word %q", s.State, a.code, w)
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 3 {
		t.Errorf("exit %d", code)
	}
}

// A source that hangs moves neither the deadline nor anybody's answer, and is
// never zero.
func TestSourceHangs(t *testing.T) {
	t.Parallel()
	src := newSource(t, 0)
	src.hang.Store(true)
	p := serveAgent(t, src.flag(), "--drain-timeout", "0.5", "--lb-buffer", "0.1")
	h := p.hook()
	eventually(t, "draining", func() bool { return p.status().State == "DRAINING" })
	if code := h.exit(); code != 3 {
		t.Errorf("hook: %d", code)
	}
}

// kill -9 in mid-drain: the hook finds the restarted agent DRAINING and joins.
func TestRestartIsJoined(t *testing.T) {
	t.Parallel()
	src := newSource(t, 1)
	state := filepath.Join(t.TempDir(), "state.json")
	h, env := host(), []string{"POD_UID=uid-1"}
	p := serveOn(t, h, env, src.flag(), "--state-file", state, "--rejoin", "30s")
	p.balancer("lb1").admit()
	hook := p.hook()
	p.await("held_zero")
	eventually(t, "the state file", func() bool {
		b, _ := os.ReadFile(state)
		return strings.Contains(string(b), `"DRAINING"`) && strings.Contains(string(b), `"lb1"`)
	})
	p.signal(syscall.SIGKILL)
	p.exit()
	n := serveOn(t, h, env, src.flag(), "--state-file", state, "--rejoin", "30s")
	if e := n.await("rejoin"); e["was"] != "DRAINING" || e["finish"] != true {
		t.Errorf("rejoin %v", e)
	}
	if s := n.status(); s.State != "DRAINING" || s.Seq < 2 {
		t.Errorf("after the restart: %+v", s)
	}
	// Its address has neither checked nor polled the new process.
	b := n.balancer("lb1")
	if a, err := b.watch(0); err != nil || a.code != 200 {
		t.Fatalf("watch: %v %v", a, err)
	}
	eventually(t, "an acknowledgement is taken", func() bool {
		a, err := b.put(b.ackBody(0, 2))
		return err == nil && a.code == 200
	})
	src.n.Store(0)
	eventually(t, "the hook's end", func() bool {
		_, _ = b.put(b.ackBody(0, 2))
		select {
		case <-hook.done:
			return true
		default:
			return false
		}
	})
	if hook.code != 0 {
		t.Errorf("hook: %d", hook.code)
	}
}

// Only the container was restarted: nobody joins, the pod is OPEN again. What
// another pod has left is not ours, and a person's drain stays.
func TestRestartAlone(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state.json")
	h := host()
	start := func(uid string) *pod {
		return serveOn(t, h, []string{"POD_UID=" + uid}, "--state-file", state, "--rejoin", "0.3")
	}
	end := func(p *pod, has string) {
		eventually(t, "state file with "+has, func() bool {
			b, _ := os.ReadFile(state)
			return strings.Contains(string(b), has)
		})
		p.signal(syscall.SIGKILL)
		p.exit()
	}
	p := start("a")
	p.post("/drain?finish")
	end(p, `"finish":true`)
	p = start("a")
	p.await("reopened")
	if s := p.status(); s.State != "OPEN" || s.Drain != nil || s.Seq < 3 {
		t.Errorf("not joined: %+v", s)
	}
	p.post("/drain")
	end(p, `"DRAINING"`)
	p = start("a")
	if s := p.status(); s.State != "DRAINING" || s.Drain.Finish {
		t.Errorf("a person's drain: %+v", s)
	}
	p.post("/drain?finish")
	end(p, `"finish":true`)
	if s := start("b").status(); s.State != "OPEN" {
		t.Errorf("another pod's file: %+v", s)
	}
}

// What the acknowledgement is refused for, and that it changes nothing.
func TestRefusedAcknowledgements(t *testing.T) {
	t.Parallel()
	src := newSource(t, 1)
	p := serveAgent(t, src.flag())
	b := p.balancer("lb1")
	if a, err := b.put(b.ackBody(0, 2)); err != nil || a.code != 403 || !strings.Contains(a.body, `"state":"OPEN"`) {
		t.Errorf("a stranger: %v %v", a, err)
	}
	p.get("/health_check.html")
	b.watch(0)
	p.post("/drain?finish")
	b.watch(0)
	good := b.ackBody(0, 2)
	for _, c := range []struct {
		name, body string
		code       int
		says       string
	}{
		{"another drain's", strings.Replace(good, `"seq":1`, `"seq":7`, 1), 409, `"error":"the acknowledgement is for another drain"`},
		{"another instance's", regexp.MustCompile(`"instance":"[^"]*"`).ReplaceAllString(good, `"instance":"x"`), 409, `"state":"DRAINING"`},
		{"no JSON", "hello", 400, "want a JSON object"},
		{"field missing", strings.Replace(good, `"queued":0,`, "", 1), 400, `servers[0].queued`},
		{"too long", good + strings.Repeat(" ", handshake.MaxBody), 400, "too large"},
	} {
		if a, err := b.put(c.body); err != nil || a.code != c.code || !strings.Contains(a.body, c.says) {
			t.Errorf("%s: %v %v", c.name, a, err)
		}
	}
	if a := do(t, "PUT", p.url("/drain/lbs/"+strings.Repeat("x", 129)), good); a.code != 400 {
		t.Errorf("a name that is too long: %v", a)
	}
	// A body that was too long costs the connection, so the watch is made anew.
	eventually(t, "watch", func() bool { a, err := b.watch(0); return err == nil && a.code < 400 })
	other := p.balancer("lb1")
	if a, err := other.watch(0); err != nil || a.code != 409 || !strings.Contains(a.body, "another live watcher") {
		t.Errorf("a second watcher: %v %v", a, err)
	}
	for _, lb := range p.status().Progress.LBs {
		if lb.Evidence != handshake.Watching && lb.Evidence != handshake.None {
			t.Errorf("something was taken: %+v", lb)
		}
	}
	if a, err := b.put(good); err != nil || a.code != 200 {
		t.Errorf("the good one: %v %v", a, err)
	}
	if a := do(t, "DELETE", p.url("/drain/lbs/nobody"), ""); a.code != 204 {
		t.Errorf("DELETE: %v", a)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := serveAgent(t, "--lb-token-file", file, "--control-token-file", file)
	bearer := []string{"Authorization", "Bearer sesame"}
	if a := do(t, "POST", p.control("/drain"), ""); a.code != 401 || a.header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("without: %v", a)
	}
	if a := do(t, "POST", p.control("/drain"), "", "Authorization", "Bearer sesame2"); a.code != 401 {
		t.Errorf("wrong: %v", a)
	}
	if a := do(t, "GET", p.url("/drain/status?lb=x"), ""); a.code != 401 {
		t.Errorf("watch without: %v", a)
	}
	if a := p.get("/drain/status"); a.code != 200 {
		t.Errorf("reading needs none: %v", a)
	}
	if h := p.hook(); h.exit() != 1 || !strings.Contains(h.text(), "hint: --control-token-file") {
		t.Errorf("hook without: %s", h.text())
	}
	if a := do(t, "POST", p.control("/drain"), "", bearer...); a.code != 200 {
		t.Errorf("with: %v", a)
	}
	b := p.balancer("x")
	b.last, _ = handshake.DecodeStatus([]byte(p.get("/drain/status").body))
	if a := do(t, "PUT", p.url("/drain/lbs/x"), b.ackBody(0, 2), bearer...); a.code != 200 {
		t.Errorf("acknowledgement with: %v", a)
	}
}

// Paths, methods, entity tags and holding.
func TestHTTP(t *testing.T) {
	t.Parallel()
	p := serveAgent(t, "--wait-start", "0.1")
	for _, c := range []struct {
		method, url string
		code        int
		allow       string
	}{
		{"GET", p.url("/"), 404, ""},
		{"GET", p.url("/drain"), 404, ""},
		{"POST", p.url("/drain"), 404, ""},
		{"POST", p.url("/close"), 404, ""},
		{"POST", p.url("/health"), 405, "GET, HEAD"},
		{"GET", p.control("/drain"), 405, "POST"},
		{"GET", p.url("/drain/lbs/x"), 405, "DELETE, PUT"},
		{"BREW", p.control("/drain"), 405, "POST"},
		{"GET", p.url("/drain/status?lb=a%20b"), 400, ""},
		{"GET", p.url("/drain/status?lb=%zz"), 400, ""},
		{"GET", p.url("/drain/status?lb=192.0.2.7"), 400, ""},
		{"HEAD", p.url("/health_check.html"), 200, ""},
		{"GET", p.url("/openapi.yaml"), 200, ""},
		{"GET", p.url("/metrics"), 200, ""},
		{"GET", p.url("/drain/wait"), 200, ""},
	} {
		a := do(t, c.method, c.url, "")
		if a.code != c.code || a.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: %d, Allow %q, want %d %q", c.method, c.url, a.code, a.header.Get("Allow"), c.code, c.allow)
		}
		if a.code >= 400 && c.method != "HEAD" && !strings.Contains(a.body, `"state":"OPEN"`) {
			t.Errorf("%s %s: %s", c.method, c.url, a.body)
		}
	}
	if a := p.get("/drain/wait"); !strings.Contains(a.body, `"not draining"`) {
		t.Errorf("wait: %s", a.body)
	}
	if a := do(t, "GET", p.url("/drain/status"), "", "Prefer", "wait=1", "If-None-Match", p.get("/drain/status").header.Get("ETag")); a.code != 304 || a.header.Get("Preference-Applied") != "wait=1" {
		t.Errorf("held to the end: %v", a)
	}
	h := p.get("/health_check.html")
	if h.body != "OK" || h.header.Get("Cache-Control") != "max-age=1" {
		t.Errorf("%v", h)
	}
	if a := do(t, "GET", p.url("/health_check.html"), "", "If-None-Match", h.header.Get("ETag")); a.code != 304 {
		t.Errorf("matching: %v", a)
	}
	p.post("/drain")
	if a := do(t, "GET", p.url("/health_check.html"), "", "If-None-Match", h.header.Get("ETag")); a.code != 200 {
		t.Errorf("the state has changed: %v", a)
	}
}

// HAProxy's plain httpchk: HTTP/1.0 without Host.
func TestHTTP10(t *testing.T) {
	t.Parallel()
	p := serveAgent(t)
	if got := say(t, p.host+":30180", "GET /health_check.html HTTP/1.0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.0 200 OK\r\n") || !strings.HasSuffix(got, "\r\n\r\nOK") {
		t.Errorf("%q", got)
	}
	for text, want := range map[string]string{"": "up ready\n", "lb=edge-1": "up ready\n", "hello\n": "up ready\n", "drain-agent\r\n": "up ready\n", "GE": "up ready\n"} {
		if got := say(t, p.host+":30180", text); got != want {
			t.Errorf("agent-send %q: %q, want %q", text, got, want)
		}
	}
}

// A health check whose request comes too late has read a word that it takes for
// a failure: such words are no evidence.
func TestLateCheckIsNoEvidence(t *testing.T) {
	t.Parallel()
	p := serveAgent(t, "--first-byte", "1ms")
	p.post("/drain?finish")
	for range 5 {
		c, err := net.Dial("tcp", p.host+":30180")
		if err != nil {
			t.Fatal(err)
		}
		word, err := bufio.NewReader(c).ReadString('\n')
		if err != nil || word != "drain\n" {
			t.Errorf("%q %v", word, err)
		}
		_, _ = io.WriteString(c, "GET /health_check.html HTTP/1.0\r\n\r\n")
		_, _ = io.ReadAll(c)
		c.Close()
	}
	lbs := p.status().Progress.LBs
	if len(lbs) != 1 || !strings.HasPrefix(lbs[0].Missing, "0 of ") {
		t.Errorf("%+v", lbs)
	}
	if e := p.await("late_check"); e["from"] != "127.0.0.1" || e["waiting_now"] != "5ms" || len(p.events("late_check")) != 1 {
		t.Errorf("%v", e)
	}
}

// Hostile peers disturb nobody and make no balancer.
func TestHostilePeers(t *testing.T) {
	t.Parallel()
	p := serveAgent(t)
	for _, text := range []string{
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "\r\n\r\n\x00\r\nQUIT\n",
		"\x00", strings.Repeat("\xff", 5000), "GET / HTTP/9.9\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET /health_check.html HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "GET " + strings.Repeat("/", 40000) + " HTTP/1.1\r\n\r\n",
		"PUT /drain/lbs/x HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
	} {
		for range 3 {
			c, err := net.Dial("tcp", p.host+":30180")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(c, text)
			_ = c.SetReadDeadline(time.Now().Add(patience))
			b, err := io.ReadAll(c) // the agent ends it
			c.Close()
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Errorf("%.20q: still open, said %q", text, b)
			}
		}
	}
	for text, want := range map[string]string{
		"GET /live HTTP/1.1\r\n\r\n": "missing required Host header", "GET /live HTTP/9.9\r\nHost: x\r\n\r\n": "HTTP Version Not Supported",
		"GET /live HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n":                                "400 Bad Request",
		"PUT /drain/lbs/x HTTP/1.1\r\nHost: x\r\nExpect: tea\r\nContent-Length: 2\r\n\r\n{}": "417 Expectation Failed",
		"OPTIONS * HTTP/1.0\r\n\r\n":                                                         "404 Not Found",
	} {
		got := say(t, p.host+":30180", text)
		if !strings.Contains(got, "Content-Type: application/json\r\n") || !strings.Contains(got, `"state":"OPEN"}`) || !strings.Contains(got, want) {
			t.Errorf("%q: %q", text, got)
		}
	}
	// Port scans, half requests and connections that stay: far more than fit.
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for i := range 3000 {
		c, err := net.Dial("tcp", p.host+":30180")
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		switch i % 3 {
		case 0:
			_, _ = io.WriteString(c, "GET /hea")
		case 1:
			_, _ = io.WriteString(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
		case 2:
			c.Close()
			continue
		}
		open = append(open, c)
		if i%300 == 0 {
			if a := p.get("/live"); a.code != 200 {
				t.Fatalf("with %d connections: %v", len(open), a)
			}
		}
	}
	if a := p.get("/live"); a.code != 200 {
		t.Errorf("%v", a)
	}
	if lbs := p.status().Progress.LBs; len(lbs) != 0 {
		t.Errorf("noise made balancers: %v", lbs)
	}
}

// `agent status` in both forms, and what it says when nobody is there.
func TestStatusCommand(t *testing.T) {
	t.Parallel()
	p := serveAgent(t)
	out, err := exec.Command(binary, "status", "--control", p.host+":18180").Output()
	if err != nil || !strings.HasPrefix(string(out), "state      OPEN since ") {
		t.Errorf("%v: %s", err, out)
	}
	out, err = exec.Command(binary, "status", "-o", "json", "--control", p.host+":18180").Output()
	var s handshake.Status
	if err != nil || json.Unmarshal(out, &s) != nil || s.State != "OPEN" {
		t.Errorf("%v: %s", err, out)
	}
	cmd := exec.Command(binary, "status", "--control", host()+":18180")
	out, _ = cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "connection refused") || !strings.Contains(string(out), "hint: ") {
		t.Errorf("%d: %s", cmd.ProcessState.ExitCode(), out)
	}
	h := launch(t, nil, binary, "drain", "--control", host()+":18180", "--drain-timeout", "0.3")
	if code := h.exit(); code != 3 {
		t.Errorf("hook without an agent: %d", code)
	}
}

// The control listener on a unix socket; a dead agent's socket file is replaced,
// a living one's is not.
func TestUnixControl(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.sock")
	start := func() *proc {
		return launch(t, nil, binary, "serve", "--listen", host()+":30180", "--control", "unix:"+path)
	}
	p := start()
	p.await("serving")
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi, err)
	}
	second := start()
	if code := second.exit(); code != 1 || !strings.Contains(second.text(), "another agent answers there") {
		t.Errorf("%d %s", code, second.text())
	}
	p.signal(syscall.SIGKILL)
	p.exit()
	start().await("serving")
	if out, err := exec.Command(binary, "status", "--control", "unix:"+path).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// Each mistake on the command line, its exact message and exit code 2.
func TestMisuse(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"serve --control 0.0.0.0:18180":       "agent: --control 0.0.0.0:18180 would listen on a public address: anybody could end the pod's drain\nhint: --control 127.0.0.1:18180, or --control-token-file FILE\n",
		"serve --control :18180":              "agent: --control :18180 would listen on a public address: anybody could end the pod's drain\nhint: --control 127.0.0.1:18180, or --control-token-file FILE\n",
		"serve --drain-timeout 60 --grace 60": "agent: --drain-timeout 1m0s does not fit into --grace 1m0s: the drain needs 1m2s with the way to exit\nhint: terminationGracePeriodSeconds of at least 1m2s, or a shorter --drain-timeout\n",
		"serve --envoy-drain start":           "agent: --envoy-drain has no effect without an envoy source\nhint: --source envoy=http://127.0.0.1:15000\n",
		"serve --rejoin 5s":                   "agent: --rejoin has no effect without --state-file\nhint: --state-file /run/lbdrain/agent.json\n",
		"serve --on-deadline never":           "agent: --on-deadline \"never\": want hold or close\nhint: --on-deadline hold\n",
		"serve --quiet 3m":                    "agent: --quiet 3m0s is not below --drain-timeout 2m0s: every drain would run to its deadline\nhint: a longer --drain-timeout\n",
		"serve --first-byte 1s":               "agent: --first-byte 1s: want more than 0, at most 250ms: a poll must be answered within its agent-inter\nhint: --first-byte 20ms\n",
		"serve --lb-from lb1":                 "agent: --lb-from \"lb1\": want an address or a network\nhint: --lb-from 203.0.113.211/32\n",
		"serve --probe ftp://x":               "agent: --probe \"ftp://x\": want http://… or tcp:ADDR\nhint: --probe http://127.0.0.1:8080/ready\n",
		"serve --listen=":                     "agent: --listen \"\" is no address\nhint: --listen :30180, --control 127.0.0.1:18180\n",
		"serve --control unix:":               "agent: --control \"unix:\" is no address\nhint: --listen :30180, --control 127.0.0.1:18180\n",
		"serve --data-port ::1":               "agent: --data-port \"::1\": want PORT or ADDR:PORT, the address in digits\nhint: --data-port 8080, or --data-port 10.0.0.7:8080\n",
		"drain --drain-timeout 0":             "agent: --drain-timeout 0s: want more than 0\nhint: --drain-timeout 120s\n",
		"version x":                           "agent: version takes no argument, got \"x\"\nhint: agent version --help\n",
		"serve extra":                         "agent: serve takes no argument, got \"extra\"\nhint: agent serve --help\n",
		"drain -o yaml":                       "agent: -o \"yaml\": want text or json\nhint: -o text\n",
		"status -o yaml":                      "agent: -o \"yaml\": want table or json\nhint: -o table\n",
		"sereve":                              "agent: no such command: \"sereve\"\nhint: agent serve | drain | status | version\n",
	} {
		cmd := exec.Command(binary, strings.Fields(args)...)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || string(out) != want {
			t.Errorf("%s: exit %d\n got %q\nwant %q", args, cmd.ProcessState.ExitCode(), out, want)
		}
	}
}
