package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// haproxy is a real one in front of a pod: health check and agent-check on the
// agent's one port, and the line that kills what a DOWN server still has.
type haproxy struct {
	*proc
	sock string
}

func startHAProxy(t *testing.T, h string) *haproxy {
	t.Helper()
	path, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatalf("%v: install it with: make deps", err)
	}
	dir := t.TempDir()
	x := &haproxy{sock: filepath.Join(dir, "admin.sock")}
	cfg := fmt.Sprintf(`global
    stats socket %s level admin
defaults
    mode http
    timeout connect 1s
    timeout client 10s
    timeout server 10s
    timeout check 2s
backend be
    option httpchk GET /health_check.html
    http-check expect status 200
    server w1 %s:30080 check port 30180 inter 200ms rise 2 fall 2 agent-check agent-port 30180 agent-inter 100ms on-marked-down shutdown-sessions
frontend unused
    bind %s:30081
    default_backend be
`, x.sock, h, h)
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	x.proc = launch(t, nil, path, "-db", "-f", file)
	eventually(t, "haproxy answers", func() bool { _, err := os.Stat(x.sock); return err == nil })
	return x
}

func (x *haproxy) tell(cmd string) string {
	x.t.Helper()
	c, err := net.Dial("unix", x.sock)
	if err != nil {
		x.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, cmd+"\n"); err != nil {
		x.t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil {
		x.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// status is the server's, by the header's name of the column.
func (x *haproxy) status() string {
	x.t.Helper()
	rows, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(x.tell("show stat be 4 -1"), "# "))).ReadAll()
	if err != nil || len(rows) != 2 {
		x.t.Fatalf("show stat: %v %v", rows, err)
	}
	for i, name := range rows[0] {
		if name == "status" {
			return rows[1][i]
		}
	}
	x.t.Fatal("show stat has no status")
	return ""
}

func (x *haproxy) becomes(status string) {
	x.t.Helper()
	eventually(x.t, "server is "+status, func() bool { return x.status() == status })
}

// heard waits until n more requests of HAProxy have been answered.
func (p *pod) heard(n int) {
	p.t.Helper()
	for range n {
		was := p.lastHeard()
		eventually(p.t, "another check or poll", func() bool { return p.lastHeard() != was })
	}
}

func (p *pod) lastHeard() string {
	p.t.Helper()
	for _, lb := range p.status().Progress.LBs {
		return lb.LastHeard.String()
	}
	return ""
}

// With nothing but agent-check: a leftover DRAIN is lifted, an operator's is not
// cancelled afterwards, the drain goes UP → DRAIN, never DOWN, and ends.
func TestRealHAProxy(t *testing.T) {
	t.Parallel()
	h := host()
	x := startHAProxy(t, h)
	x.tell("set server be/w1 state drain") // what a dead predecessor left
	src := newSource(t, 0)
	p := serveOn(t, h, nil, src.flag(), "--return-window", "0.2", "--quiet-polled", "0.2", "--first-byte", "20ms")
	x.becomes("UP")
	before := len(x.text())
	p.heard(12)
	x.tell("set server be/w1 state drain") // an operator
	p.heard(12)
	if s := x.status(); !strings.HasPrefix(s, "DRAIN") {
		t.Errorf("an operator's drain was cancelled: %s", s)
	}
	x.tell("set server be/w1 state ready")
	x.becomes("UP")
	src.n.Store(1)
	hook := p.hook()
	x.becomes("DRAIN (agent)")
	p.heard(12)
	src.n.Store(0)
	if code := hook.exit(); code != 0 {
		t.Errorf("hook: %d", code)
	}
	if a := say(t, h+":30180", "GET /health_check.html HTTP/1.0\r\n\r\n"); !strings.HasPrefix(a, "HTTP/1.0 200 ") {
		t.Errorf("CLOSED says %q to one that never acknowledged", a)
	}
	x.becomes("DRAIN (agent)")
	if log := x.text()[before:]; strings.Contains(log, "is DOWN") {
		t.Errorf("the server was DOWN: %s", log)
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// A reopened pod is taken back.
func TestRealHAProxyReopen(t *testing.T) {
	t.Parallel()
	h := host()
	x := startHAProxy(t, h)
	p := serveOn(t, h, nil)
	x.becomes("UP")
	before := len(x.text())
	p.post("/drain")
	x.becomes("DRAIN (agent)")
	p.post("/reopen")
	x.becomes("UP")
	if log := x.text()[before:]; strings.Contains(log, "is DOWN") {
		t.Errorf("%s", log)
	}
}
