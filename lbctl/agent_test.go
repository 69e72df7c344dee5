package main

import (
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"lbdrain/internal/haproxy"
)

// TestRealAgent: the two programs as built. An idle pod with the real agent drains
// and exits 0 on this balancer's word alone, and its successor is given traffic.
func TestRealAgent(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{pods: 1})
	p := l.pods[0]
	bin := filepath.Join(l.dir, "agent")
	if out, err := exec.Command("go", "build", "-o", bin, "../agent").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	control := "unix:" + filepath.Join(l.dir, "agent.sock")
	serve := func() *process {
		p.stopAgent()
		a := start(t, bin, "serve", "--listen", net.JoinHostPort(p.ip, strconv.Itoa(p.agent)), "--control", control, "--learn", "1s")
		l.up("web", "s1")
		l.up("api", "s1")
		return a
	}
	first := serve()
	d := l.serve()
	eventually(t, "the agent is watched", func() bool { return strings.Contains(d.out.String(), `"event":"pod_open"`) })
	eventually(t, "it has learned who its balancers are", func() bool {
		out, err := exec.Command(bin, "status", "--control", control, "-o", "json").Output()
		return err == nil && strings.Contains(string(out), `"watching"`)
	})
	began := time.Now()
	hook := start(t, bin, "drain", "--control", control, "--drain-timeout", "20s")
	<-hook.done
	if code := hook.ProcessState.ExitCode(); code != 0 {
		t.Fatalf("agent drain: exit %d after %v\n%s", code, time.Since(began), first.out)
	}
	for _, be := range []string{"web", "api"} {
		if a := l.admin(be, "s1"); a != haproxy.ForcedMaint {
			t.Errorf("%s/s1 is %v when the pod may exit", be, a)
		}
	}
	first.kill()
	serve()
}
