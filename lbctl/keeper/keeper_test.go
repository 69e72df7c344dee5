package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/journal"
)

// door is a HAProxy with one server, and what it does to commands.
type door struct {
	mu     sync.Mutex
	s      haproxy.Server
	pid    int
	level  string
	refuse string // what every command is answered with
	deaf   bool   // commands succeed and do nothing
	err    error
	gone   bool // the server is no longer there
	reload bool // one comes at the first command: it goes to a worker that is leaving
	// stopping says that the worker is leaving.
	stopping bool
	before   func() // at the start of a turn
	turns    int
	sent     []string
	scopes   []haproxy.Scope
}

func newDoor() *door {
	on := haproxy.Configured | haproxy.Enabled
	return &door{pid: 1, level: "admin", s: haproxy.Server{
		Backend: "web", Name: "s1", Check: on, Agent: on, CheckHealth: 3, Rise: 2, Fall: 2, Operational: haproxy.OpRunning,
	}}
}

func (d *door) read() haproxy.Read {
	r := haproxy.Read{Info: haproxy.Info{Pid: d.pid, Stopping: d.stopping}, Level: d.level, At: time.Now()}
	if !d.gone {
		r.Servers = []haproxy.Server{d.s}
	}
	return r
}

func (d *door) Turn(_ context.Context, scope haproxy.Scope, decide func(haproxy.Read) ([]haproxy.Command, error)) (haproxy.Turn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turns++
	d.scopes = append(d.scopes, scope)
	if d.err != nil {
		return haproxy.Turn{}, d.err
	}
	if d.before != nil {
		d.before()
	}
	if d.gone && len(scope.Servers) > 0 {
		return haproxy.Turn{}, fmt.Errorf("web/s1: %w", haproxy.ErrNoSuchServer)
	}
	t := haproxy.Turn{Before: d.read()}
	commands, err := decide(t.Before)
	if err != nil || len(commands) == 0 {
		return t, err
	}
	if d.reload && len(commands) > 0 {
		d.stopping = true
	}
	for _, c := range commands {
		d.sent = append(d.sent, c.String())
		o := haproxy.Outcome{Command: c, Reply: d.refuse}
		if d.refuse != "" {
			o.Err = &haproxy.CommandError{Command: c.String(), Reply: d.refuse}
		} else if !d.deaf {
			for v := hold.ToDrain; v <= hold.Cut; v++ {
				if same, _ := hold.Command(v, "web", "s1"); same == c {
					d.s = hold.Apply(d.s, v)
				}
			}
		}
		t.Outcomes = append(t.Outcomes, o)
	}
	after := d.read()
	t.After = &after
	return t, nil
}

func (d *door) locked(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

var s1 = Key{"web", "s1"}

// keep runs a keeper in a bubble of its own time.
func keep(t *testing.T, d *door, change func(*Options), test func(*testing.T, *Keeper, *log)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := &log{}
		o := Options{Name: "lb1", Door: d, Journal: journal.Open(dir), Interval: time.Second, Log: zerolog.New(l)}
		if change != nil {
			change(&o)
		}
		k := New(o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			k.Run(ctx)
		}()
		test(t, k, l)
		cancel()
		<-done
	})
}

// TestAtRest: with nothing to keep, HAProxy is left alone; with a hold that is
// carried out, it is looked at four times a second.
func TestAtRest(t *testing.T) {
	d := newDoor()
	keep(t, d, nil, func(t *testing.T, k *Keeper, _ *log) {
		time.Sleep(time.Minute)
		d.locked(func() {
			if d.turns > 0 {
				t.Errorf("%d turns for nothing", d.turns)
			}
		})
		if changed, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Maint}); err != nil || len(changed) != 1 {
			t.Fatal(changed, err)
		}
		time.Sleep(time.Second)
		d.locked(func() {
			if d.s.Admin != haproxy.ForcedMaint || d.s.Agent.On() {
				t.Errorf("%v after a second: %q", d.s.Admin, d.sent)
			}
			d.turns = 0
		})
		time.Sleep(time.Minute)
		d.locked(func() {
			if d.turns < 220 || d.turns > 260 {
				t.Errorf("%d turns in a minute at rest", d.turns)
			}
		})
		if changed, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Maint}); err != nil || len(changed) != 0 {
			t.Errorf("said twice: %v, %v", changed, err)
		}
	})
}

// TestBusyServer is read often while its sessions end, and never put in MAINT.
func TestBusyServer(t *testing.T) {
	d := newDoor()
	d.s.Sessions = 1
	keep(t, d, nil, func(t *testing.T, k *Keeper, _ *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Maint, Guard: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		d.locked(func() {
			if d.s.Admin != haproxy.ForcedDrain || d.s.Check.On() {
				t.Errorf("%v, check %v", d.s.Admin, d.s.Check)
			}
			if d.turns < 800 || d.turns > 4000 {
				t.Errorf("%d turns in 30 s", d.turns)
			}
			d.s.Sessions = 0
		})
		time.Sleep(100 * time.Millisecond)
		d.locked(func() {
			if d.s.Admin != haproxy.ForcedMaint {
				t.Errorf("%v 100 ms after the last session: %q", d.s.Admin, d.sent)
			}
		})
	})
}

// TestScope: between two looks at everything only what is held is read; a server that
// is not there any more is looked for among the others, and not for ever.
func TestScope(t *testing.T) {
	d := newDoor()
	d.s.Sessions = 1
	keep(t, d, nil, func(t *testing.T, k *Keeper, _ *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain, Guard: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10500 * time.Millisecond)
		one := []haproxy.Name{{Backend: "web", Server: "s1"}}
		byServer := 0
		d.locked(func() {
			for _, s := range d.scopes {
				if slices.Equal(s.Servers, one) {
					byServer++
				}
			}
			if n := len(d.scopes); n < 100 || byServer < n-20 {
				t.Errorf("%d of %d turns read only the server", byServer, n)
			}
			d.gone, d.scopes = true, nil
		})
		time.Sleep(time.Minute)
		d.locked(func() {
			if n := len(d.scopes); n == 0 || n > 10 {
				t.Errorf("%d turns for a server that is gone", n)
			}
		})
		if lb, err := k.o.Journal.LB("lb1"); err != nil || len(lb.Records) > 0 {
			t.Errorf("%+v, %v", lb.Records, err)
		}
	})
}

// TestGuestScope: a command line reads the servers it was asked about, and no others.
func TestGuestScope(t *testing.T) {
	d := newDoor()
	keep(t, d, func(o *Options) { o.Guest = true }, func(t *testing.T, k *Keeper, _ *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5500 * time.Millisecond)
		d.locked(func() {
			for _, s := range d.scopes {
				if len(s.Servers) != 1 || len(s.Backends) > 0 {
					t.Errorf("scope %+v", s)
				}
			}
			if d.s.Admin != haproxy.ForcedDrain {
				t.Errorf("%v", d.s.Admin)
			}
		})
	})
}

// TestObserve refuses a person's wish, and writes no journal.
func TestObserve(t *testing.T) {
	d := newDoor()
	keep(t, d, func(o *Options) { o.Observe = true }, func(t *testing.T, k *Keeper, _ *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain}); !errors.Is(err, ErrObserve) {
			t.Errorf("%v", err)
		}
		if lb, err := k.o.Journal.LB("lb1"); err != nil || len(lb.Records) > 0 {
			t.Errorf("%v %v", lb, err)
		}
	})
}

// TestEnforce: a pod that is half in an enforced backend is left alone, whole.
func TestEnforce(t *testing.T) {
	d := newDoor()
	keep(t, d, func(o *Options) { o.Enforce = func(b string) bool { return b == "web" } }, func(t *testing.T, k *Keeper, l *log) {
		line := func(endpoint string) Line { return Line{Line: hold.Line{Endpoint: endpoint}} }
		got := k.enforced(map[Key]Line{
			{"web", "s1"}: line("a:1"), {"api", "s1"}: line("a:1"), {"web", "s2"}: line("b:1"), {"api", "s3"}: line("c:1"),
		})
		want := map[Key]Line{
			{"web", "s1"}: line(""), {"api", "s1"}: line(""), {"web", "s2"}: line("b:1"), {"api", "s3"}: line(""),
		}
		if !maps.Equal(got, want) {
			t.Errorf("%v", got)
		}
		if l.count("left alone") != 1 || l.count("a:1") != 1 {
			t.Error("said of the wrong pod, or not")
		}
	})
}

// TestConfigure: a server that the file no longer has is kept until HAProxy was
// reloaded.
func TestConfigure(t *testing.T) {
	d := newDoor()
	keep(t, d, nil, func(t *testing.T, k *Keeper, _ *log) {
		line := Line{Line: hold.Line{Inter: time.Second}}
		for _, lines := range []map[Key]Line{{s1: line, {"web", "s2"}: line}, {{"web", "s2"}: line}} {
			if err := k.Configure(t.Context(), lines); err != nil {
				t.Fatal(err)
			}
		}
		known := func() (n int) {
			if err := k.call(t.Context(), func() error { n = len(k.lines); return nil }); err != nil {
				t.Fatal(err)
			}
			return n
		}
		if n := known(); n != 2 {
			t.Errorf("%d lines before the reload, want both", n)
		}
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		d.locked(func() { d.pid = 2 })
		time.Sleep(3 * time.Second)
		if n := known(); n != 1 {
			t.Errorf("%d lines after it, want that of the file", n)
		}
	})
}
