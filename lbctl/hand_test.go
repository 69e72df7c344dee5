package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lbdrain/internal/haproxy"
)

// withAndWithout runs a test through the daemon and straight on the socket.
func withAndWithout(t *testing.T, o labOptions, test func(*testing.T, *lab)) {
	for _, daemon := range []bool{true, false} {
		t.Run(fmt.Sprintf("daemon %v", daemon), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, o)
			for i := range l.pods {
				l.up("web", fmt.Sprintf("s%d", i+1))
				l.up("api", fmt.Sprintf("s%d", i+1))
			}
			if daemon {
				l.serve()
			}
			test(t, l)
		})
	}
}

// TestHandDrain: a person's drain holds against an agent that says `up ready`
// at every poll, and ready waits for the check.
func TestHandDrain(t *testing.T) {
	t.Parallel()
	withAndWithout(t, labOptions{pods: 2}, func(t *testing.T, l *lab) {
		p := l.pods[0]
		p.say("up ready", 200)
		l.pods[1].say("up ready", 200)
		got := l.results(0, "drain", "s1", "--reason", "kernel")
		if len(got) != 2 {
			t.Fatalf("%d servers, want web/s1 and api/s1: %+v", len(got), got)
		}
		for _, r := range got {
			if !r.Changed || r.Before != "UP" || r.After != "DRAIN" || r.Sessions == nil || *r.Sessions != 0 || r.OldSessions != nil {
				t.Errorf("%+v", r)
			}
			if want := "disable agent " + r.Backend + "/s1"; len(r.Commands) == 0 || r.Commands[0] != want {
				t.Errorf("commands %q: want %q first", r.Commands, want)
			}
		}
		after(t, "polls of the other server", &l.pods[1].polls, 10)
		if s := l.server("web", "s1"); s.Admin != haproxy.ForcedDrain || !s.Check.On() {
			t.Fatalf("web/s1 is %v with check %v after ten polls", s.Admin, s.Check)
		}
		if again := l.results(0, "drain", "web/s1"); again[0].Changed || len(again[0].Commands) > 0 {
			t.Errorf("said twice: %+v", again[0])
		}
		if d := l.must(0, "status", "s1"); !strings.Contains(d.out, "drain by") || !strings.Contains(d.out, "kernel") {
			t.Errorf("status does not say who holds it:\n%s", d.out)
		}

		p.say("up", 503)
		eventually(t, "the check fails", func() bool { return l.server("web", "s1").Operational == haproxy.OpStopped })
		d := l.must(3, "ready", "web/s1", "--timeout", "600ms")
		if !strings.Contains(d.err, "no check has passed") || l.server("web", "s1").Admin&haproxy.ForcedDrain == 0 {
			t.Errorf("ready with a failing check: %v\n%s", l.server("web", "s1").Admin, d.err)
		}
		p.say("up", 200)
		l.must(0, "ready", "s1")
		l.up("web", "s1")
		l.up("api", "s1")
		if again := l.results(0, "ready", "web/s1"); again[0].Changed || len(again[0].Commands) > 0 {
			t.Errorf("ready said twice: %+v", again[0])
		}
	})
}

// TestMaintKillsNothing: with requests running in both backends, and the health
// check failing meanwhile.
func TestMaintKillsNothing(t *testing.T) {
	t.Parallel()
	withAndWithout(t, labOptions{pods: 1}, func(t *testing.T, l *lab) {
		p := l.pods[0]
		web, api := l.hang(p, "/hang"), l.hang(p, "/api/hang")
		end := make(chan done, 1)
		go func() { end <- l.run("maint", "s1", "-o", "json") }()
		eventually(t, "both drained and guarded", func() bool {
			w, a := l.server("web", "s1"), l.server("api", "s1")
			return w.Admin&a.Admin&haproxy.ForcedDrain != 0 && (w.Check|a.Check)&(haproxy.Enabled|haproxy.InProgress) == 0
		})
		p.say("up", 503)
		if s := l.server("web", "s1"); s.Sessions != 1 || s.Admin&haproxy.ForcedMaint != 0 {
			t.Errorf("%d sessions, %v", s.Sessions, s.Admin)
		}
		p.letGo()
		for _, c := range []<-chan string{web, api} {
			if got := <-c; got != "200 OK" {
				t.Errorf("the request ended as %s", got)
			}
		}
		d := <-end
		if d.code != 0 || l.server("web", "s1").Admin&l.server("api", "s1").Admin&haproxy.ForcedMaint == 0 {
			t.Fatalf("exit %d\n%s%s", d.code, d.out, d.err)
		}
		p.say("up", 200)
		l.must(0, "ready", "s1")
		l.up("web", "s1")
	})
}

// TestLate: what --on-timeout says, while a request runs.
func TestLate(t *testing.T) {
	t.Parallel()
	withAndWithout(t, labOptions{pods: 1}, func(t *testing.T, l *lab) {
		p := l.pods[0]
		request := l.hang(p, "/hang")
		got := l.results(3, "maint", "web/s1", "--timeout", "300ms")
		if s := l.server("web", "s1"); s.Admin != haproxy.ForcedDrain || !s.Check.On() || *got[0].Sessions != 1 {
			t.Errorf("leave: %v, check %v, %+v", s.Admin, s.Check, got[0])
		}
		l.must(3, "maint", "web/s1", "--timeout", "300ms", "--on-timeout", "restore")
		l.up("web", "s1")
		select {
		case r := <-request:
			t.Fatalf("the request was cut: %s", r)
		default:
		}
		got = l.results(0, "maint", "web/s1", "--timeout", "300ms", "--on-timeout", "force")
		if l.server("web", "s1").Admin&haproxy.ForcedMaint == 0 || got[0].Cut != 1 {
			t.Errorf("force: %+v", got[0])
		}
		if r := <-request; r != "502 Bad Gateway" {
			t.Errorf("forced, and the request ended as %s", r)
		}
	})
}

// TestHAProxyStops: HAProxy stops answering while a drain waits. The command ends in
// its time, and does not pass off what it last read for what is.
func TestHAProxyStops(t *testing.T) {
	t.Parallel()
	withAndWithout(t, labOptions{pods: 1}, func(t *testing.T, l *lab) {
		request := l.hang(l.pods[0], "/hang")
		end := make(chan done, 1)
		go func() { end <- l.run("maint", "web/s1", "--timeout", "4s", "-o", "json") }()
		eventually(t, "drained", func() bool { return l.admin("web", "s1")&haproxy.ForcedDrain != 0 })
		l.proxy.Process.Signal(syscall.SIGSTOP)
		d := <-end
		l.proxy.Process.Signal(syscall.SIGCONT)
		if d.code != 3 || !strings.Contains(d.err, "no answer in time") || !strings.Contains(d.err, "was DRAIN") ||
			!strings.Contains(d.out, `"sessions": null`) || strings.Contains(d.err, "deadline exceeded") {
			t.Errorf("exit %d\n%s%s", d.code, d.out, d.err)
		}
		l.pods[0].letGo()
		if got := <-request; got != "200 OK" {
			t.Errorf("the request ended as %s", got)
		}
		l.must(0, "ready", "web/s1")
	})
}

// TestDiskFull: a hold that cannot be journaled is not reported as a change.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	withAndWithout(t, labOptions{pods: 1}, func(t *testing.T, l *lab) {
		// As where the disk is full: no next journal can take its place.
		next := filepath.Join(l.dir, "state", "holds.next")
		if err := errors.Join(os.RemoveAll(next), os.MkdirAll(filepath.Join(next, "x"), 0o750)); err != nil {
			t.Fatal(err)
		}
		d := l.must(1, "drain", "web/s1", "-o", "json")
		if !strings.Contains(d.out, `"changed": false`) || !strings.Contains(d.err, "holds.next") {
			t.Errorf("%s%s", d.out, d.err)
		}
		if a := l.admin("web", "s1"); a != 0 {
			t.Errorf("%v", a)
		}
	})
}

// TestForce names what it cuts, also where on-marked-down would not.
func TestForce(t *testing.T) {
	t.Parallel()
	withAndWithout(t, labOptions{pods: 1, keep: true}, func(t *testing.T, l *lab) {
		request := l.hang(l.pods[0], "/hang")
		got := l.results(0, "maint", "web/s1", "--force")
		if got[0].Cut != 1 || !slices.Contains(got[0].Commands, "shutdown sessions server web/s1") {
			t.Errorf("%+v", got[0])
		}
		if r := <-request; r == "200 OK" {
			t.Errorf("the request ended as %s", r)
		}
	})
}
