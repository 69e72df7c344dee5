package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/journal"
)

// TestFutile: a command that HAProxy refuses, or that shows no effect, is not
// repeated faster than the interval, and said.
func TestFutile(t *testing.T) {
	for name, spoil := range map[string]func(*door){
		"refused":   func(d *door) { d.refuse = "Permission denied" },
		"no effect": func(d *door) { d.deaf = true },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor()
			spoil(d)
			keep(t, d, nil, func(t *testing.T, k *Keeper, l *log) {
				if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				d.locked(func() {
					if n := len(d.sent); n < 30 || n > 80 {
						t.Errorf("%d commands in a minute", n)
					}
				})
				if d.refuse != "" && l.count("Permission denied") == 0 {
					t.Error("nothing was said")
				}
				r, ok := k.Row(s1)
				if !ok || (d.refuse != "") != (r.Refused != "") {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

// TestOvertaken: what another lbctl journals between this one's look at the journal
// and its decision is not written over.
func TestOvertaken(t *testing.T) {
	d := newDoor()
	dir := t.TempDir()
	other := journal.Open(dir)
	d.before = func() { // lifts what is being held
		d.before = nil
		err := other.Update("lb1", func(lb *journal.LB) error {
			r := lb.Records["web/s1"]
			op := *r.Op
			op.Lifted, r.Op = true, &op
			lb.Records["web/s1"] = r
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	keep(t, d, func(o *Options) { o.Journal = journal.Open(dir) }, func(t *testing.T, k *Keeper, _ *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if lb, err := k.o.Journal.LB("lb1"); err != nil || len(lb.Records) > 0 {
			t.Errorf("the other's word was lost: %+v, %v", lb.Records, err)
		}
		d.locked(func() {
			if d.s.Admin != 0 || !d.s.Agent.On() {
				t.Errorf("%v, agent %v: %q", d.s.Admin, d.s.Agent, d.sent)
			}
		})
	})
}

// TestUnwritten: with a journal that cannot be written nothing is done, and that is
// said as what it is.
func TestUnwritten(t *testing.T) {
	d := newDoor()
	dir := filepath.Join(t.TempDir(), "state")
	keep(t, d, func(o *Options) { o.Journal = journal.Open(dir) }, func(t *testing.T, k *Keeper, l *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait() // between two turns
		d.locked(func() {
			fresh := newDoor()
			d.s, d.pid, d.sent = fresh.s, 2, nil
			d.before = func() { // the disk goes, as a turn begins
				if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
					t.Error(err)
				}
			}
			k.o.Journal.Update("lb1", func(lb *journal.LB) error {
				r := lb.Records["web/s1"]
				r.Muted = false // so that there is something to write
				lb.Records["web/s1"] = r
				return nil
			})
		})
		time.Sleep(10 * time.Second)
		d.locked(func() {
			if len(d.sent) > 0 {
				t.Errorf("sent %q without a journal", d.sent)
			}
		})
		if l.count("socket_error") > 0 || l.count(`"event":"alarm"`) == 0 {
			t.Error("said as the socket's fault, or not at all")
		}
	})
}

// TestUnsaved: a server-state-file that cannot be written is tried once an interval,
// however often HAProxy is looked at.
func TestUnsaved(t *testing.T) {
	d := newDoor()
	d.s.Sessions = 1
	tries := 0
	save := func(context.Context) error { tries++; return errors.New("read-only file system") }
	keep(t, d, func(o *Options) { o.Save = save }, func(t *testing.T, k *Keeper, l *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain, Guard: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if d.turns < 800 || tries < 20 || tries > 40 {
			t.Errorf("%d turns, %d tries", d.turns, tries)
		}
		if n := l.count("read-only file system"); n != 1 {
			t.Errorf("said %d times", n)
		}
	})
}

// TestTrouble: a socket that does not answer is asked twice an interval, and
// what is wrong is said once; then it is well again.
func TestTrouble(t *testing.T) {
	d := newDoor()
	d.err = fmt.Errorf("unix:/a.sock: %w", haproxy.ErrBusy)
	keep(t, d, nil, func(t *testing.T, k *Keeper, l *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		d.locked(func() {
			if d.turns > 130 {
				t.Errorf("%d turns in a minute: a storm", d.turns)
			}
			d.err = nil
		})
		if l.count(`"event":"socket_busy"`) != 1 {
			t.Errorf("said %d times", l.count("socket_busy"))
		}
		time.Sleep(time.Second)
		if l.count(`"event":"socket_ok"`) != 1 || d.s.Admin != haproxy.ForcedDrain {
			t.Errorf("not well again: %v", d.s.Admin)
		}
	})
}

// TestOtherConfiguration: a backend of the file that HAProxy does not have does
// not keep the others from being kept.
func TestOtherConfiguration(t *testing.T) {
	d := newDoor()
	d.err = fmt.Errorf("show servers state gone: %w", haproxy.ErrNoSuchBackend)
	keep(t, d, nil, func(t *testing.T, k *Keeper, l *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		d.locked(func() { d.err = nil })
		time.Sleep(2500 * time.Millisecond)
		last := func() haproxy.Scope {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.scopes[len(d.scopes)-1]
		}
		if s := last(); len(s.Backends) != 0 || d.s.Admin != haproxy.ForcedDrain {
			t.Errorf("scope %v, %v", s, d.s.Admin)
		}
		d.locked(func() { d.pid = 2 }) // reloaded: it may have read the file
		time.Sleep(2 * time.Second)
		if s := last(); len(s.Backends)+len(s.Servers) != 1 {
			t.Errorf("scope %v after a reload", s)
		}
		if l.count(`"event":"alarm"`) == 0 {
			t.Error("nothing was said")
		}
	})
}

// TestLevel: on a socket that is not of level admin nothing is tried.
func TestLevel(t *testing.T) {
	d := newDoor()
	d.level = "operator"
	keep(t, d, nil, func(t *testing.T, k *Keeper, l *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if len(d.sent) > 0 || l.count("level operator") != 1 {
			t.Errorf("sent %q, said %d times", d.sent, l.count("level operator"))
		}
	})
}

// TestStart: a HAProxy that was away is held as soon as it is there again.
func TestStart(t *testing.T) {
	d := newDoor()
	keep(t, d, nil, func(t *testing.T, k *Keeper, l *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		d.locked(func() { d.err = fmt.Errorf("connect: %w", haproxy.ErrRefused) })
		time.Sleep(time.Minute)
		d.locked(func() { fresh := newDoor(); d.s, d.pid, d.err = fresh.s, 2, nil })
		time.Sleep(110 * time.Millisecond)
		d.locked(func() {
			if d.s.Admin != haproxy.ForcedDrain || d.s.Agent.On() {
				t.Errorf("%v, agent %v", d.s.Admin, d.s.Agent)
			}
		})
		if n := l.count(`"event":"socket_error"`); n != 1 {
			t.Errorf("said %d times", n)
		}
	})
}

// TestReload: holds are re-applied to another worker at once, and said.
func TestReload(t *testing.T) {
	d := newDoor()
	keep(t, d, nil, func(t *testing.T, k *Keeper, l *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		d.locked(func() { fresh := newDoor(); d.s, d.pid, d.sent = fresh.s, 2, nil })
		time.Sleep(260 * time.Millisecond)
		d.locked(func() {
			if d.s.Admin != haproxy.ForcedDrain || d.s.Agent.On() || d.sent[0] != "disable agent web/s1" {
				t.Errorf("%v, agent %v: %q", d.s.Admin, d.s.Agent, d.sent)
			}
		})
		if l.count(`"event":"reload_seen"`) != 1 {
			t.Error("not said")
		}
	})
}

// TestLeaving: a worker that is leaving is told nothing, and what it says is passed on
// to nobody: neither when it answers first, nor when a reload comes within a turn.
func TestLeaving(t *testing.T) {
	for name, spoil := range map[string]func(*door){
		"from the start": func(d *door) { d.stopping = true },
		"in a turn":      func(d *door) { d.reload = true },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor()
			spoil(d)
			keep(t, d, nil, func(t *testing.T, k *Keeper, _ *log) {
				if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Drain}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second)
				d.locked(func() {
					if want := map[bool]int{true: 1}[d.reload]; len(d.sent) != want {
						t.Errorf("sent %q", d.sent)
					}
				})
				if r, ok := k.Row(s1); ok {
					t.Errorf("%+v", r)
				}
				d.locked(func() { fresh := newDoor(); d.s, d.pid, d.reload, d.stopping = fresh.s, 2, false, false })
				time.Sleep(time.Second)
				if r, ok := k.Row(s1); !ok || r.Worker.Pid != 2 || r.Server.Admin != haproxy.ForcedDrain {
					t.Errorf("%v %+v", ok, r)
				}
			})
		})
	}
}

// TestSlowTurn: one turn that the machine kept waiting does not put off the next
// looks.
func TestSlowTurn(t *testing.T) {
	d := newDoor()
	d.s.Sessions = 1
	keep(t, d, nil, func(t *testing.T, k *Keeper, _ *log) {
		if _, err := k.Hold(t.Context(), []Key{s1}, hold.OpHold{Kind: hold.Maint, Guard: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30*time.Second + 500*time.Millisecond)
		d.locked(func() {
			d.before = func() { d.before = nil; time.Sleep(25 * time.Millisecond) }
		})
		time.Sleep(60 * time.Millisecond) // the slow one is over
		d.locked(func() { d.s.Sessions = 0 })
		time.Sleep(150 * time.Millisecond)
		d.locked(func() {
			if d.s.Admin != haproxy.ForcedMaint {
				t.Errorf("%v 150 ms after the last session", d.s.Admin)
			}
		})
	})
}
