package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lbdrain/internal/handshake"
	"lbdrain/internal/haproxy"
)

// served is a lab with a daemon that has greeted every agent.
func served(t *testing.T, o labOptions, args ...string) (*lab, *process) {
	t.Helper()
	l := newLab(t, o)
	l.up("web", "s1")
	l.up("api", "s1")
	d := l.serve(args...)
	for _, p := range l.pods {
		eventually(t, "the greeting", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.acks) > 0 })
	}
	return l, d
}

func (l *lab) admin(be, name string) haproxy.AdminState { return l.server(be, name).Admin }

// TestGuard: the health check fails in the middle of a drain, for far longer
// than HAProxy needs to take the server down, and nothing is cut.
func TestGuard(t *testing.T) {
	t.Parallel()
	l, _ := served(t, labOptions{pods: 2})
	p, other := l.pods[0], l.pods[1]
	request := l.hang(p, "/hang")
	p.drain()
	eventually(t, "guarded", func() bool {
		return l.server("web", "s1").Check&(haproxy.Enabled|haproxy.InProgress) == 0
	})
	p.say("drain", 503)
	after(t, "checks of the other server", &other.checks, 20)
	select {
	case got := <-request:
		t.Fatalf("the request ended as %s", got)
	default:
	}
	p.letGo()
	if got := <-request; got != "200 OK" {
		t.Errorf("the request ended as %s", got)
	}
	eventually(t, "held-zero", func() bool { return p.lastWord() == handshake.HeldZero })
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) != 1 {
		t.Errorf("acknowledgements came on %d connections, want the one of the watch", len(p.conns))
	}
}

// TestKilled: lbctl is killed -9 between DRAIN and MAINT and started again.
func TestKilled(t *testing.T) {
	t.Parallel()
	l, d := served(t, labOptions{pods: 1})
	p := l.pods[0]
	request := l.hang(p, "/hang")
	p.drain()
	eventually(t, "held", func() bool { return p.lastWord() == handshake.Held })
	d.kill()
	p.mu.Lock()
	p.acks = nil
	p.mu.Unlock()
	l.serve()
	eventually(t, "held again", func() bool { return p.lastWord() == handshake.Held })
	if a := l.admin("web", "s1"); a != haproxy.ForcedDrain {
		t.Errorf("%v", a)
	}
	p.letGo()
	if got := <-request; got != "200 OK" {
		t.Errorf("the request ended as %s", got)
	}
	eventually(t, "held-zero", func() bool { return p.lastWord() == handshake.HeldZero })
	p.stopAgent()
	p.reopen("two")
	p.startAgent()
	l.up("web", "s1")
}

// TestKilledForPerson: a person's hold made without a daemon is honoured by the
// next one, and one made through a daemon outlives its kill -9.
func TestKilledForPerson(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{pods: 1})
	p := l.pods[0]
	p.say("up ready", 200)
	l.up("web", "s1")
	l.must(0, "drain", "web/s1")
	d := l.serve()
	eventually(t, "the greeting", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.acks) > 0 })
	l.must(0, "maint", "api/s1")
	d.kill()
	l.serve()
	after(t, "health checks", &p.checks, 10)
	if l.admin("web", "s1") != haproxy.ForcedDrain || l.admin("api", "s1") != haproxy.ForcedMaint {
		t.Errorf("web %v, api %v", l.admin("web", "s1"), l.admin("api", "s1"))
	}
	l.must(0, "ready", "s1")
	l.up("web", "s1")
	l.up("api", "s1")
}

// TestRestarted: HAProxy is restarted in the middle of a drain. The new one is
// held too, and the pod hears so.
func TestRestarted(t *testing.T) {
	t.Parallel()
	l, d := served(t, labOptions{pods: 1})
	p := l.pods[0]
	p.drain()
	eventually(t, "held-zero", func() bool { return p.lastWord() == handshake.HeldZero })
	pid := l.proxy.Process.Pid
	l.proxy.kill()
	l.startProxy()
	eventually(t, "acknowledged by the new one", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.acks) == 0 {
			return false
		}
		a := p.acks[len(p.acks)-1]
		return a.HAProxy.Pid == l.proxy.Process.Pid && a.Word() == handshake.HeldZero
	})
	if !strings.Contains(d.out.String(), `"event":"reload_seen"`) || l.proxy.Process.Pid == pid {
		t.Error("the restart was not noticed")
	}
}

// TestReloaded: a reload that knows nothing of lbctl. The old worker keeps its
// request; the new one is held at once.
func TestReloaded(t *testing.T) {
	t.Parallel()
	l, _ := served(t, labOptions{pods: 1})
	p := l.pods[0]
	request := l.hang(p, "/hang")
	p.drain()
	eventually(t, "held", func() bool { return p.lastWord() == handshake.Held })
	old := l.proxy
	l.startProxy("-sf", strconv.Itoa(old.Process.Pid))
	eventually(t, "the new worker is held", func() bool {
		return l.admin("web", "s1")&(haproxy.ForcedDrain|haproxy.ForcedMaint) != 0 && !l.server("web", "s1").Agent.On()
	})
	p.letGo()
	if got := <-request; got != "200 OK" {
		t.Errorf("the request ended as %s", got)
	}
	eventually(t, "held-zero", func() bool { return p.lastWord() == handshake.HeldZero })
	for _, s := range p.acks[len(p.acks)-1].Servers {
		if s.OldSessions.Known {
			t.Errorf("sessions of old workers are %v, want unknown", s.OldSessions)
		}
	}
}

// TestReadyRefused: a server that is held for a pod is not a person's to give
// back, with or without the daemon that holds it.
func TestReadyRefused(t *testing.T) {
	t.Parallel()
	l, d := served(t, labOptions{pods: 1})
	p := l.pods[0]
	p.drain()
	eventually(t, "held-zero", func() bool { return p.lastWord() == handshake.HeldZero })
	got := l.must(5, "ready", "s1")
	if !strings.Contains(got.err, "is held for the drain of") {
		t.Errorf("%s", got.err)
	}
	d.kill()
	l.must(5, "ready", "s1")
	if l.admin("web", "s1") != haproxy.ForcedMaint {
		t.Errorf("%v", l.admin("web", "s1"))
	}
}

// TestPersonAndPod: a pod drains while a person holds its server. It gets its
// acknowledgements, and its successor does not get the traffic.
func TestPersonAndPod(t *testing.T) {
	t.Parallel()
	l, _ := served(t, labOptions{pods: 1})
	p := l.pods[0]
	l.must(0, "drain", "web/s1")
	p.drain()
	eventually(t, "held-zero", func() bool { return p.lastWord() == handshake.HeldZero })
	p.stopAgent()
	p.reopen("two")
	p.startAgent()
	l.up("api", "s1")
	eventually(t, "web/s1 is the person's again", func() bool { return l.admin("web", "s1") == haproxy.ForcedDrain })
	l.must(0, "ready", "web/s1")
	l.up("web", "s1")
}

// TestForeign: what others set with socat stays, before, under and after a hold
// for a pod.
func TestForeign(t *testing.T) {
	t.Parallel()
	l, d := served(t, labOptions{pods: 1})
	p := l.pods[0]
	l.raw("set server web/s1 state maint")
	eventually(t, "recognised", func() bool { return strings.Contains(d.out.String(), `"event":"foreign_state"`) })
	p.drain()
	eventually(t, "held-zero", func() bool { return p.lastWord() == handshake.HeldZero })
	p.stopAgent()
	p.reopen("two")
	p.startAgent()
	l.up("api", "s1")
	eventually(t, "the hold is over", func() bool { return strings.Contains(d.out.String(), `"event":"returned","lb":"lb1","backend":"web"`) })
	if s := l.server("web", "s1"); s.Admin != haproxy.ForcedMaint || !s.Agent.On() || !s.Check.On() {
		t.Errorf("%v, agent %v, check %v", s.Admin, s.Agent, s.Check)
	}
}

// TestLost: the pod vanishes without a word once it is held: HAProxy's check is
// given back, its state is not, until somebody says OPEN there.
func TestLost(t *testing.T) {
	t.Parallel()
	l, _ := served(t, labOptions{pods: 1})
	p := l.pods[0]
	p.drain()
	eventually(t, "held-zero", func() bool { return p.lastWord() == handshake.HeldZero })
	p.stopAgent()
	eventually(t, "health is given back", func() bool { return l.server("web", "s1").Check.On() })
	if s := l.server("web", "s1"); s.Admin != haproxy.ForcedMaint || s.Agent.On() {
		t.Errorf("%v, agent %v", s.Admin, s.Agent)
	}
	p.reopen("two")
	p.startAgent()
	l.up("web", "s1")
}

// TestObserve: nothing is written, nothing acknowledged, and a person's command
// still works.
func TestObserve(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{pods: 1})
	p := l.pods[0]
	l.up("web", "s1")
	d := l.serve("--mode", "observe")
	p.edit(func(s *handshake.Status) {
		s.Seq, s.State = s.Seq+1, "DRAINING"
		s.Drain = &handshake.Drain{DrainID: handshake.DrainID{Instance: s.Instance, Seq: s.Seq}}
	})
	eventually(t, "what it would do", func() bool {
		return strings.Contains(d.out.String(), `"would":"set server web/s1 state drain"`)
	})
	p.mu.Lock()
	if len(p.acks) > 0 {
		t.Errorf("an observer acknowledged: %+v", p.acks)
	}
	p.mu.Unlock()
	if s := l.server("web", "s1"); s.Admin != 0 || !s.Agent.On() {
		t.Errorf("%v, agent %v", s.Admin, s.Agent)
	}
	if _, err := os.Stat(filepath.Join(l.dir, "state", "holds.json")); err == nil {
		t.Error("an observer wrote the journal")
	}
	l.must(0, "drain", "web/s1")
	if a := l.admin("web", "s1"); a != haproxy.ForcedDrain {
		t.Errorf("%v", a)
	}
}

// TestSecondDaemon refuses to start, and harms nothing.
func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	l, _ := served(t, labOptions{pods: 1})
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, bin, "serve", "-f", l.cfg, "--state-dir", filepath.Join(l.dir, "state"), "--control", filepath.Join(l.dir, "other.sock"))
	<-p.done
	if p.ProcessState.ExitCode() != 1 || !strings.Contains(p.out.String(), "another lbctl daemon") {
		t.Errorf("exit %d: %s", p.ProcessState.ExitCode(), p.out)
	}
	l.must(0, "drain", "web/s1")
}

// TestNewerJournal: a journal of another version is not touched; the daemon
// observes and raises an alarm.
func TestNewerJournal(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{pods: 1})
	l.up("web", "s1")
	state := filepath.Join(l.dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	const newer = `{"version": 2, "holds": "of a later lbctl"}`
	journal := filepath.Join(state, "holds.json")
	if err := os.WriteFile(journal, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	d := l.serve()
	if out := d.out.String(); !strings.Contains(out, `"event":"alarm"`) || !strings.Contains(out, `"mode":"observe"`) {
		t.Errorf("%s", out)
	}
	if got := l.must(1, "drain", "web/s1"); !strings.Contains(got.err, "another version") {
		t.Errorf("%s", got.err)
	}
	if b, err := os.ReadFile(journal); err != nil || string(b) != newer {
		t.Errorf("%s, %v", b, err)
	}
}

// TestConfiguration: a bad file keeps the old one, a good one is taken.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	l, d := served(t, labOptions{pods: 1})
	good, err := os.ReadFile(l.cfg)
	if err != nil {
		t.Fatal(err)
	}
	write := func(s string) {
		if err := os.WriteFile(l.cfg, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("backend web\n server s1\n")
	eventually(t, "refused", func() bool { return strings.Contains(d.out.String(), `"event":"cfg_bad"`) })
	p := l.pods[0]
	p.drain()
	eventually(t, "held-zero", func() bool { return p.lastWord() == handshake.HeldZero })
	n := strings.Count(d.out.String(), `"event":"cfg_loaded"`)
	write(string(good) + "\n")
	eventually(t, "taken", func() bool { return strings.Count(d.out.String(), `"event":"cfg_loaded"`) > n })
}

// TestStateFile: with a server-state-file a reload never sends anything to a
// held server: the new worker starts with it in DRAIN, agent and health off.
func TestStateFile(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{pods: 1, stateFile: true})
	p := l.pods[0]
	l.up("web", "s1")
	l.serve()
	eventually(t, "the greeting", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.acks) > 0 })
	request := l.hang(p, "/hang")
	p.drain()
	eventually(t, "held", func() bool { return p.lastWord() == handshake.Held })
	file, err := os.ReadFile(filepath.Join(l.dir, "servers"))
	if err != nil || !strings.HasSuffix(string(file), "\n") {
		t.Fatalf("held was acknowledged before the file was written: %v %q", err, file)
	}
	eventually(t, "guarded", func() bool { return !l.server("web", "s1").Check.On() })
	eventually(t, "the guard is in the file", func() bool {
		now, err := os.ReadFile(filepath.Join(l.dir, "servers"))
		return err == nil && string(now) != string(file)
	})
	l.startProxy("-sf", strconv.Itoa(l.proxy.Process.Pid))
	p.letGo()
	if got := <-request; got != "200 OK" {
		t.Errorf("the request ended as %s", got)
	}
	if log := l.proxy.out.String(); strings.Contains(log, "web/s1 enters drain") {
		t.Errorf("the new worker was not in DRAIN from the start:\n%s", log)
	}
	eventually(t, "held-zero", func() bool { return p.lastWord() == handshake.HeldZero })
	p.stopAgent()
	p.reopen("two")
	p.startAgent()
	l.up("web", "s1")
	eventually(t, "the file knows of no hold", func() bool {
		now, err := os.ReadFile(filepath.Join(l.dir, "servers"))
		return err == nil && !strings.Contains(string(now), " 8 1 ") && strings.Contains(string(now), p.ip+" 2 0 ")
	})
	l.must(0, "drain", "web/s1")
	if d := l.must(0, "state", "save", "-f", l.cfg); d.out != "" {
		t.Errorf("%q", d.out)
	}
}

// TestKilledCommands: commands without a daemon are killed -9 at any moment, with a
// request running. Nothing is cut, and the next command brings it all back.
func TestKilledCommands(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{pods: 1})
	p := l.pods[0]
	l.up("web", "s1")
	l.up("api", "s1")
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	killed := func(delay time.Duration, verb string) {
		c := start(t, bin, verb, "s1", "-f", l.cfg, "--socket", l.sock, "--state-dir", filepath.Join(l.dir, "state"), "--control", filepath.Join(l.dir, "control.sock"))
		select {
		case <-c.done:
		case <-time.After(delay):
			c.kill()
		}
	}
	for i := range 12 {
		p.mu.Lock()
		p.hung = make(chan struct{})
		p.mu.Unlock()
		request := l.hang(p, "/hang")
		killed(time.Duration(i)*8*time.Millisecond, []string{"drain", "maint"}[i%2])
		p.letGo()
		if got := <-request; got != "200 OK" {
			t.Errorf("%d: the request ended as %s", i, got)
		}
		killed(time.Duration(i)*8*time.Millisecond, "maint")
		killed(time.Duration(i)*23*time.Millisecond, "ready")
		l.must(0, "ready", "s1", "-f", l.cfg)
		l.up("web", "s1")
		l.up("api", "s1")
	}
}

// TestOpposed: of two people who want opposite things at once, without a daemon,
// one is told that the other came after; nobody is told what is not so.
func TestOpposed(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{pods: 2})
	l.up("web", "s1")
	for i := range 6 {
		var all sync.WaitGroup
		var maint, back done
		all.Go(func() { maint = l.run("maint", "web/s1", "-f", l.cfg, "--timeout", "10s") })
		all.Go(func() {
			time.Sleep(time.Duration(i) * 15 * time.Millisecond) // no wait for anything: another moment each time
			back = l.run("ready", "web/s1", "-f", l.cfg, "--timeout", "10s")
		})
		all.Wait()
		for _, d := range []done{maint, back} {
			if d.code != 0 && !(d.code == 1 && strings.Contains(d.err, "meanwhile")) {
				t.Errorf("%d: exit %d: %s", i, d.code, d.err)
			}
		}
		if maint.code != 0 && back.code != 0 {
			t.Errorf("%d: neither was done: %s%s", i, maint.err, back.err)
		}
		l.must(0, "ready", "web/s1", "-f", l.cfg)
		l.up("web", "s1")
	}
}
