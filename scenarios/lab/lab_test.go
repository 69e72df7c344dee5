package lab

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var built string // directory of our programs

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "lbdrain-bin-")
	if err != nil {
		panic(err)
	}
	if out, err := exec.Command("go", "build", "-o", dir+"/", "../../agent", "../../lbctl", "..").CombinedOutput(); err == nil {
		built = dir
	} else {
		os.Stderr.Write(out)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// programs are ours and the machine's.
func programs(t *testing.T) Programs {
	t.Helper()
	if built == "" {
		t.Fatal("the programs do not build, see above")
	}
	dir := built
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Find(dir, root, filepath.Join(dir, "scenarios"), true)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mode(t *testing.T, name string) Mode {
	t.Helper()
	m, err := FindMode(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// One lab with a real HAProxy, real Envoys and our programs: routing is pinned and
// given back, a reload is followed, and a pod is ended as the kubelet does.
func TestLab(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	l, err := Start(ctx, Options{
		Mode: mode(t, "coordinated"), Pods: 3, Artifacts: t.TempDir(), Testdata: "../../testdata", Programs: programs(t), Seed: 1, StateFile: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	if v := l.Version(); !strings.Contains(v, ".") {
		t.Errorf("HAProxy's version %q", v)
	}
	if v := l.Victim().EnvoyVersion(); !strings.Contains(v, ".") {
		t.Errorf("Envoy's version %q", v)
	}
	if err := l.Settle(ctx); err != nil {
		t.Fatal(err)
	}

	began := time.Now()
	if err := l.Pin(l.Victim()); err != nil {
		t.Fatal(err)
	}
	words := func(want map[string]string) {
		t.Helper()
		for name, word := range want {
			if _, err := l.AwaitServer(ctx, name, began, func(s Server) bool { return s.Word() == word }); err != nil {
				t.Fatalf("%s is never %s: %v", name, word, err)
			}
		}
	}
	words(map[string]string{"worker1": "UP", "worker2": "DRAIN", "master1": "DRAIN"})
	if err := l.Unpin(l.Victim()); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	words(map[string]string{"worker1": "UP", "worker2": "UP", "master1": "UP"})
	if err := l.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	words(map[string]string{"worker1": "UP", "worker2": "UP", "master1": "UP"})

	l.Fast(true)
	e, err := l.Delete(ctx, l.Victim())
	if err != nil {
		t.Fatal(err)
	}
	if e.HookExit != 0 || len(e.Killed) > 0 || !e.Exited.After(e.Deleted) {
		t.Errorf("ending %+v", e)
	}
	at, ok := l.Victim().Entered("DRAINING")
	if _, by, noticed := l.Notice("worker1", at); !ok || !noticed || by != "DRAIN" {
		t.Errorf("noticed %v by %q, the agent said DRAINING: %v", noticed, by, ok)
	}
	words(map[string]string{"worker1": "MAINT"})
}

// A program that does not start is named, with what it said.
func TestStartNamesWhatFailed(t *testing.T) {
	p := programs(t)
	p.Agent = "/bin/false"
	_, err := Start(t.Context(), Options{
		Mode: mode(t, "current"), Pods: 1, Artifacts: t.TempDir(), Testdata: "../../testdata", Programs: p,
	})
	if err == nil || !strings.Contains(err.Error(), "agent worker1 ended with exit code 1") {
		t.Errorf("%v", err)
	}
}

// The grace period ends a container that does not stop, and never sooner than 2 s
// after its SIGTERM.
func TestStopKillsAfterTheGrace(t *testing.T) {
	l := &Lab{o: Options{Artifacts: t.TempDir()}, run: t.TempDir(), logs: map[string]*lineLog{}, end: func() {}}
	t.Cleanup(l.Close)
	p, err := l.spawn("deaf", "deaf.log", nil, "/bin/sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.out.await(t.Context(), func(lines []string) bool { return len(lines) > 0 }); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel() // the grace is over when SIGTERM is sent
	began := time.Now()
	if killed := l.stop(over, p); len(killed) != 1 || killed[0] != "deaf" {
		t.Errorf("killed %v", killed)
	}
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("killed after %s, before the least of 2 s", took)
	}
	if code, _ := p.Exit(); code != -1 {
		t.Errorf("exit code %d, want a signal's", code)
	}
	if ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
		t.Errorf("ended by %s", ws.Signal())
	}
}
