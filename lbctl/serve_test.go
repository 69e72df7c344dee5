package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lbdrain/internal/handshake"
	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/desk"
)

// TestDrainAndReturn is a rollout of one pod: held in both backends while its
// request runs, MAINT only afterwards, and back through DRAIN for a successor.
func TestDrainAndReturn(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{pods: 1})
	p := l.pods[0]
	l.up("web", "s1")
	l.up("api", "s1")
	l.serve()
	eventually(t, "the greeting", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.acks) > 0 })
	request := l.hang(p, "/hang")
	p.drain()
	eventually(t, "held", func() bool { return p.lastWord() == handshake.Held })
	for _, be := range []string{"web", "api"} {
		if s := l.server(be, "s1"); s.Admin&haproxy.ForcedDrain == 0 || s.Agent&haproxy.Enabled != 0 {
			t.Errorf("%s/s1 is %v with agent %v when held was acknowledged", be, s.Admin, s.Agent)
		}
	}
	p.letGo()
	if got := <-request; got != "200 OK" {
		t.Errorf("the request ended as %s", got)
	}
	eventually(t, "held-zero", func() bool { return p.lastWord() == handshake.HeldZero })
	for _, be := range []string{"web", "api"} {
		if s := l.server(be, "s1"); s.Admin&haproxy.ForcedMaint == 0 {
			t.Errorf("%s/s1 is %v when held-zero was acknowledged", be, s.Admin)
		}
	}
	p.stopAgent()
	p.reopen("two")
	p.startAgent()
	l.up("web", "s1")
	l.up("api", "s1")
}

// TestLoadConditions: a condition on the binary's version or features decides,
// whichever way, which servers there are.
func TestLoadConditions(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "with,comma.cfg")
	text := "backend web\n.if version_atleast(1.5) && feature(OPENSSL)\n server new 127.0.0.1:80\n.else\n server old 127.0.0.1:80\n.endif\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := load(t.Context(), []string{file})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Servers) != 1 || c.Servers[0].Name != "new" {
		t.Errorf("servers %+v, want the one of this HAProxy: new", c.Servers)
	}
}

// TestNoValue: a flag without its value at the end of the line is a usage error, not
// one with the value `--`.
func TestNoValue(t *testing.T) {
	for _, flag := range []string{"--reason", "--socket", "--timeout", "--backend", "-o"} {
		var errs bytes.Buffer
		args := []string{"lbctl", "drain", "web/s1", "--socket", "/nowhere/a.sock", flag}
		if code := run(t.Context(), args, nil, io.Discard, &errs); code != 2 || !strings.Contains(errs.String(), "needs an argument") {
			t.Errorf("%s: exit %d: %s", flag, code, &errs)
		}
	}
}

// TestAddress: what status shows can be typed as a target.
func TestAddress(t *testing.T) {
	for _, addr := range []string{"192.0.2.1", "2001:db8::1", "-"} {
		s := haproxy.Server{Backend: "web", Name: "s1", Addr: addr, Port: 80}
		keys, err := desk.Targets{Servers: []haproxy.Server{s}}.Find(statusOf("lb1", s).Address)
		if err != nil || len(keys) != 1 {
			t.Errorf("%s: %v", statusOf("lb1", s).Address, err)
		}
	}
}
