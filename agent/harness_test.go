package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lbdrain/internal/handshake"
)

// patience bounds every wait for a condition; nothing is timed by it.
const patience = 30 * time.Second

var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "agent")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

var hosts atomic.Uint32

// host is a loopback address of its own: tests run beside those of other packages.
func host() string {
	n := hosts.Add(1)
	return fmt.Sprintf("127.78.%d.%d", os.Getpid()%250+1, n%250+1)
}

// proc is a running program with its JSON log.
type proc struct {
	t    testing.TB
	cmd  *exec.Cmd
	mu   sync.Mutex
	cond *sync.Cond
	log  []map[string]any
	raw  bytes.Buffer
	done chan struct{}
	code int
}

func launch(t testing.TB, env []string, args ...string) *proc {
	t.Helper()
	p := &proc{t: t, cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	p.cond = sync.NewCond(&p.mu)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	pipe, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.follow(pipe)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("log of %v:\n%s", args, p.text())
		}
	})
	return p
}

func (p *proc) follow(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var e map[string]any
		_ = json.Unmarshal(lines.Bytes(), &e)
		p.mu.Lock()
		p.raw.Write(append(lines.Bytes(), '\n'))
		if e != nil {
			p.log = append(p.log, e)
		}
		p.cond.Broadcast()
		p.mu.Unlock()
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		p.code = exit.ExitCode()
	}
	close(p.done)
	p.cond.Broadcast()
}

func (p *proc) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.raw.String()
}

// events are the log lines of that name so far.
func (p *proc) events(name string) (es []map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.log {
		if e["event"] == name {
			es = append(es, e)
		}
	}
	return es
}

// await waits for the first log line of that name.
func (p *proc) await(name string) map[string]any {
	p.t.Helper()
	var found map[string]any
	eventually(p.t, "log line "+name, func() bool {
		select {
		case <-p.done:
			p.t.Helper()
			if len(p.events(name)) == 0 {
				p.t.Fatalf("exited with %d before %s", p.code, name)
			}
		default:
		}
		if es := p.events(name); len(es) > 0 {
			found = es[0]
		}
		return found != nil
	})
	return found
}

func (p *proc) exit() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatal("did not exit")
	}
	return p.code
}

func (p *proc) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// pod is a serving agent on a host of its own.
type pod struct {
	*proc
	host string
}

// serve starts an agent; by default it learns nothing and nothing is in flight.
func serveAgent(t testing.TB, args ...string) *pod {
	t.Helper()
	return serveOn(t, host(), nil, args...)
}

func serveOn(t testing.TB, h string, env []string, args ...string) *pod {
	t.Helper()
	// A test's client on a busy machine needs more than 20 ms from connect to GET.
	all := append([]string{binary, "serve", "--listen", h + ":30180", "--control", h + ":18180", "--learn", "0", "--first-byte", "0.25"}, args...)
	p := &pod{launch(t, env, all...), h}
	p.await("serving")
	return p
}

func (p *pod) url(path string) string     { return "http://" + p.host + ":30180" + path }
func (p *pod) control(path string) string { return "http://" + p.host + ":18180" + path }

// hook runs `agent drain` beside.
func (p *pod) hook(args ...string) *proc {
	p.t.Helper()
	return launch(p.t, nil, append([]string{binary, "drain", "--control", p.host + ":18180"}, args...)...)
}

type answer struct {
	code   int
	body   string
	header http.Header
}

var plain = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func do(t testing.TB, method, url, body string, header ...string) answer {
	t.Helper()
	a, err := try(plain, method, url, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func try(c *http.Client, method, url, body string, header ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, string(b), resp.Header}, err
}

func (p *pod) get(path string) answer  { p.t.Helper(); return do(p.t, "GET", p.url(path), "") }
func (p *pod) post(path string) answer { p.t.Helper(); return do(p.t, "POST", p.control(path), "") }

func (p *pod) status() handshake.Status {
	p.t.Helper()
	s, err := handshake.DecodeStatus([]byte(do(p.t, "GET", p.control("/drain/status"), "").body))
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// word polls as HAProxy does: connect and read a line.
func (p *pod) word() string {
	p.t.Helper()
	return say(p.t, p.host+":30180", "")
}

func say(t testing.TB, addr, text string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(c)
	return string(b)
}

// source is an http source that the test sets.
type source struct {
	*httptest.Server
	n    atomic.Int64
	hang atomic.Bool
}

func newSource(t testing.TB, n int64) *source {
	s := &source{}
	s.n.Store(n)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.hang.Load() {
			<-r.Context().Done()
			return
		}
		fmt.Fprintln(w, s.n.Load())
	}))
	t.Cleanup(s.CloseClientConnections)
	t.Cleanup(s.Server.Close)
	return s
}

func (s *source) flag() string { return "--source=http=" + s.URL }

// balancer is a watcher as lbctl is: one connection, held GETs and PUTs.
type balancer struct {
	t      testing.TB
	pod    *pod
	name   string
	client *http.Client
	last   handshake.Status
	tag    string
}

func (p *pod) balancer(name string) *balancer {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.1")}}
	tr := &http.Transport{MaxConnsPerHost: 1, DialContext: d.DialContext}
	p.t.Cleanup(tr.CloseIdleConnections)
	return &balancer{t: p.t, pod: p, name: name, client: &http.Client{Transport: tr}}
}

// watch makes the first GET, held with wait where the state is known.
func (b *balancer) watch(wait int) (answer, error) {
	var h []string
	if b.tag != "" {
		h = []string{"If-None-Match", b.tag, "Prefer", fmt.Sprintf("wait=%d", wait)}
	}
	a, err := try(b.client, "GET", b.pod.url("/drain/status?lb="+b.name), "", h...)
	if err == nil && a.code == 200 {
		b.tag = a.header.Get("ETag")
		if b.last, err = handshake.DecodeStatus([]byte(a.body)); err != nil {
			return a, err
		}
	}
	return a, err
}

// ackBody is an acknowledgement of the drain b has seen.
func (b *balancer) ackBody(sessions int, zeroReads int) string {
	drain := "null"
	if d := b.last.Drain; d != nil {
		drain = fmt.Sprintf(`{"instance":%q,"seq":%d}`, d.Instance, d.Seq)
	}
	return fmt.Sprintf(`{"version":1,"drain":%s,"interval_ms":1000,"window_ms":{"best":2000,"mean":3000,"worst":4000},
"sources":["127.0.0.1"],"haproxy":{"pid":1,"start":1,"present":true},"deferred":false,"servers":[{"backend":"be","server":"w1","admin":8,
"operational":2,"agent_off":true,"health_off":true,"check_in_progress":false,"sessions":%d,"queued":0,"zero_reads":%d,"old_sessions":null}]}`,
		drain, sessions, zeroReads)
}

func (b *balancer) put(body string) (answer, error) {
	return try(b.client, "PUT", b.pod.url("/drain/lbs/"+b.name), body)
}

// run is lbctl's side of one drain: it waits for the state to change and says
// held-zero, once each interval until the agent is gone.
func (b *balancer) run(ctx context.Context) {
	for b.last.Drain == nil && ctx.Err() == nil {
		if _, err := b.watch(30); err != nil {
			return
		}
	}
	for ctx.Err() == nil {
		if _, err := b.put(b.ackBody(0, 2)); err != nil {
			return
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// admit has the balancer's address check the pod, watches, and runs.
func (b *balancer) admit() {
	b.t.Helper()
	b.pod.get("/health_check.html")
	if a, err := b.watch(0); err != nil || a.code != 200 {
		b.t.Fatalf("watch: %v, %v", a, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.t.Cleanup(cancel)
	go b.run(ctx)
}
