package drain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"lbdrain/agent/balancers"
	"lbdrain/fsm"
	"lbdrain/internal/handshake"
)

const ms = time.Millisecond

// fake is a source, an Envoy and the kernel's sockets, all at once.
type fake struct {
	mu      sync.Mutex
	reading Reading
	takes   time.Duration // a read
	reads   []time.Time
	sockets []netip.Addr
	sockErr error
	harm    string
	refuse  bool
	fails   int // calls to Envoy that fail first
	hangs   bool
	lingers time.Duration // after a call to Envoy was cancelled
	called  []time.Time
}

func (f *fake) Name() string { return "envoy" }

func (f *fake) Read(ctx context.Context) Reading {
	f.mu.Lock()
	takes := f.takes
	f.reads = append(f.reads, time.Now())
	f.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return Reading{Envoy: true, Note: "timeout"}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reading
}

func (f *fake) set(n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reading = Reading{Count: handshake.Known(n), Envoy: true}
}

func (f *fake) with(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) Sockets() ([]netip.Addr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sockets, f.sockErr
}

func (f *fake) Check(context.Context, handshake.Count) (string, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.harm, f.refuse, nil
}

func (f *fake) DrainListeners(ctx context.Context) error {
	f.mu.Lock()
	hangs, lingers := f.hangs, f.lingers
	f.called = append(f.called, time.Now())
	f.fails--
	failed := f.fails >= 0
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		time.Sleep(lingers)
		return ctx.Err()
	}
	if failed {
		return errors.New("status 500")
	}
	return nil
}

// bench is a running pod in a bubble of time, with one balancer that watches.
type bench struct {
	*Pod
	*fake
	t      *testing.T
	log    *bytes.Buffer
	code   chan int
	start  time.Time
	cancel context.CancelFunc
}

var lb = balancers.Peer{Addr: netip.MustParseAddr("203.0.113.211"), Conn: 1}

func run(t *testing.T, change func(*Config), test func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{takes: ms}
		f.set(0)
		b := &bench{fake: f, t: t, log: &bytes.Buffer{}, code: make(chan int, 1), start: time.Now()}
		c := Config{
			Instance: "pod", UID: "uid", Start: b.start, Timeout: 120 * time.Second, Quiet: 50 * ms, QuietPolled: time.Second,
			Rejoin: 15 * time.Second, WaitStart: 5 * time.Second, Sources: []Source{f}, Envoy: f, EnvoyWhen: EnvoyNever,
			Sockets: f.Sockets, Balancers: balancers.Config{QuietPolled: time.Second}, Log: zerolog.New(zerolog.SyncWriter(b.log)),
		}
		if change != nil {
			change(&c)
		}
		b.Pod = New(c)
		b.Pod.Check(lb.Addr)
		if err := b.Pod.Watch("lb1", lb); err != nil {
			t.Fatal(err)
		}
		var ctx context.Context
		ctx, b.cancel = context.WithCancel(t.Context())
		go func() { b.code <- b.Run(ctx) }()
		synctest.Wait()
		test(b)
		b.cancel()
	})
}

func (b *bench) do(c Command) {
	b.t.Helper()
	if err := b.Do(b.t.Context(), c, "test"); err != nil {
		b.t.Fatal(err)
	}
	synctest.Wait()
}

// ack says how many sessions the balancer has; 0 is held-zero.
func (b *bench) ack(sessions uint64) {
	b.t.Helper()
	id := b.View().Status.Drain.DrainID
	a := handshake.Ack{Version: 1, Drain: &id, Interval: handshake.Millis(time.Second), HAProxy: handshake.Process{Present: true}, Servers: []handshake.ServerFact{{
		Backend: "be", Server: "w1", Admin: handshake.AdminDrain, AgentOff: true, HealthOff: true,
		Sessions: handshake.Known(sessions), Queued: handshake.Known(0), ZeroReads: 2,
	}}}
	if err := b.Ack("lb1", lb, a); err != nil {
		b.t.Fatal(err)
	}
	synctest.Wait()
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) want(s fsm.State, o Outcome) {
	b.t.Helper()
	if v := b.View(); v.State != s || v.Outcome != o {
		b.t.Errorf("after %s: %s %q, want %s %q (waiting: %s)", time.Since(b.start), v.State, v.Outcome, s, o, v.Waiting)
	}
}

func (b *bench) exited() (int, bool) {
	select {
	case c := <-b.code:
		return c, true
	default:
		return 0, false
	}
}

// events are the log's event names, repeats left out.
func (b *bench) events() (names []string) {
	for line := range strings.Lines(b.log.String()) {
		var e struct{ Event string }
		if json.Unmarshal([]byte(line), &e) == nil && (len(names) == 0 || names[len(names)-1] != e.Event) {
			names = append(names, e.Event)
		}
	}
	return names
}

// The straight path, with the time of every step: quiet holds 50 ms while the
// acknowledgement is under way, and then three reads are all it takes.
func TestStraight(t *testing.T) {
	run(t, nil, func(b *bench) {
		b.do(Finish)
		b.want(fsm.Draining, "")
		pass(60 * ms)
		b.ack(0)
		pass(ms)
		b.want(fsm.Closing, "")
		pass(ms)
		b.want(fsm.Closed, "")
		pass(ms)
		b.want(fsm.Closed, Drained)
		b.do(Term)
		if code, ok := b.exited(); !ok || code != 0 {
			t.Errorf("exit %d %v", code, ok)
		}
		want := []string{"watch", "transition", "envoy_active_count", "held", "held_zero", "transition", "receipt", "sigterm", "exit"}
		if d := cmp.Diff(want, b.events()); d != "" {
			t.Error(d)
		}
	})
}

// Zero must hold: one read of zero is none, and a request in between starts it
// again.
func TestQuiet(t *testing.T) {
	run(t, func(c *Config) { c.Quiet = 500 * ms }, func(b *bench) {
		b.set(1)
		b.do(Finish)
		b.ack(0)
		b.set(0)
		pass(400 * ms)
		b.want(fsm.Draining, "")
		b.set(1)
		pass(100 * ms)
		b.set(0)
		b.ack(0)
		pass(450 * ms)
		b.want(fsm.Draining, "")
		pass(200 * ms)
		b.want(fsm.Closed, Drained)
	})
}

// Unknown is never zero.
func TestUnknown(t *testing.T) {
	run(t, nil, func(b *bench) {
		b.with(func() { b.reading = Reading{Envoy: true, Note: "unparsable"} })
		b.do(Finish)
		for range 100 {
			b.ack(0)
			pass(time.Second)
		}
		b.want(fsm.Draining, "")
		pass(21 * time.Second)
		b.want(fsm.Draining, TimedOut)
		if s := b.Status(); s.Progress.InFlight["envoy"].Known {
			t.Errorf("%+v", s.Progress)
		}
	})
}

// R7: what comes up in CLOSING or CLOSED keeps the pod there until it is over.
func TestRecheck(t *testing.T) {
	run(t, nil, func(b *bench) {
		b.with(func() { b.takes = 0 })
		b.do(Finish)
		pass(60 * ms)
		b.with(func() { b.takes = 10 * ms })
		b.ack(0)
		pass(10 * ms)
		b.want(fsm.Closing, "")
		b.set(1) // a late request
		pass(time.Second)
		b.want(fsm.Closing, "")
		b.ack(1) // revoked
		b.set(0)
		pass(time.Second)
		b.want(fsm.Closing, "")
		b.ack(0)
		pass(10 * ms)
		b.want(fsm.Closed, "")
		b.set(1)
		pass(time.Second)
		b.want(fsm.Closed, "")
		b.do(Term)
		if code, ok := b.exited(); ok {
			t.Fatalf("exit %d with a request in flight", code)
		}
		b.set(0)
		b.ack(0)
		pass(time.Second)
		if code, ok := b.exited(); !ok || code != 0 {
			t.Errorf("exit %d %v", code, ok)
		}
	})
}

// A person's drain goes nowhere by itself, and keeps its id when it is finished.
func TestPersonThenFinish(t *testing.T) {
	run(t, nil, func(b *bench) {
		b.do(Drain)
		b.ack(0)
		pass(time.Hour)
		b.want(fsm.Draining, "")
		id := b.View().Status.Drain.DrainID
		b.do(Finish)
		if d := b.View().Status.Drain; d.DrainID != id || !d.Finish || !d.Deadline.Equal(time.Now().Add(120*time.Second)) {
			t.Errorf("%+v", d)
		}
		b.ack(0)
		pass(100 * ms)
		b.want(fsm.Closed, Drained)
	})
}

// The acknowledgement comes while nothing has been in flight for less than quiet,
// and the read it triggers ends after that: the next read is due at once, however
// long reads take.
func TestQuietEndsWithinRead(t *testing.T) {
	run(t, nil, func(b *bench) {
		b.with(func() { b.takes, b.reading.Count = 40*ms, handshake.Known(1) })
		b.do(Finish)
		b.ack(1)
		pass(10 * time.Second) // reads come every 0.8 s by now
		b.set(0)
		b.ack(1)
		pass(60 * ms)
		b.ack(0)
		pass(4 * 40 * ms)
		b.want(fsm.Closed, Drained)
	})
}

// What is still being sent counts exactly while a balancer tells of no sessions:
// one that died held shows that nothing new comes, not that the last answer was
// delivered.
func TestStandIn(t *testing.T) {
	sending := &fake{takes: ms}
	sending.with(func() { sending.reading = Reading{Count: handshake.Known(5)} })
	with := func(c *Config) { c.Sending = sending }
	run(t, with, func(b *bench) {
		b.do(Finish)
		b.ack(0)
		pass(100 * ms)
		b.want(fsm.Closed, Drained) // its sessions see more than the kernel's queue
		if len(sending.reads) != 0 {
			t.Errorf("read %d times for nobody", len(sending.reads))
		}
	})
	run(t, with, func(b *bench) {
		b.do(Finish)
		b.ack(1)
		pass(10 * time.Second) // held, and expired since
		b.want(fsm.Draining, "")
		if got := b.Status().Progress.LBs[0].Evidence; got != handshake.ExpiredHeld {
			t.Errorf("evidence %s", got)
		}
		sending.with(func() { sending.reading.Count = handshake.Known(0) })
		pass(time.Second)
		b.want(fsm.Closed, Drained)
	})
	sending.with(func() { sending.reading.Count = handshake.Known(0) })
	run(t, func(c *Config) { c.Sources, c.Sending = nil, sending }, func(b *bench) {
		b.do(Finish)
		b.ack(1)
		pass(10 * time.Second)
		b.want(fsm.Draining, "") // alone it does not say that nothing is in flight
	})
}

// Whoever is woken by a transition sees the state it led to: a held status that
// read the old one would tell its balancer of the drain one round trip late, and a
// preStop hook that nothing is draining.
func TestWokenAfterPublish(t *testing.T) {
	run(t, nil, func(b *bench) {
		for range 200 {
			seen := make(chan bool, 8)
			for range cap(seen) {
				v := b.View()
				go func() {
					<-v.Changed
					seen <- b.View().Status.Seq > v.Status.Seq
				}()
			}
			b.do(Drain)
			for range cap(seen) {
				if !<-seen {
					t.Fatal("woken before the state was published")
				}
			}
			b.do(Reopen)
		}
	})
}

// A second caller joins: nothing is doubled and the deadline stays.
func TestJoin(t *testing.T) {
	run(t, nil, func(b *bench) {
		b.do(Finish)
		d := *b.View().Status.Drain
		pass(10 * time.Second)
		b.do(Finish)
		b.do(Term)
		b.do(Term)
		if got := *b.View().Status.Drain; got != d {
			t.Errorf("%+v, was %+v", got, d)
		}
	})
}

func TestMinDrain(t *testing.T) {
	run(t, func(c *Config) { c.MinDrain = 10 * time.Second }, func(b *bench) {
		b.do(Finish)
		for range 9 {
			b.ack(0)
			pass(time.Second)
			b.want(fsm.Draining, "")
		}
		b.ack(0)
		pass(1100 * ms)
		b.want(fsm.Closed, Drained)
	})
}

// The deadline, in both forms, and what lets the process go after it.
func TestDeadline(t *testing.T) {
	run(t, nil, func(b *bench) {
		b.set(2)
		b.do(Term)
		pass(119 * time.Second)
		b.want(fsm.Draining, "")
		pass(time.Second)
		b.want(fsm.Draining, TimedOut)
		pass(time.Hour)
		if _, ok := b.exited(); ok {
			t.Fatal("gone with requests in flight")
		}
		b.set(0)
		pass(200 * ms)
		if code, ok := b.exited(); !ok || code != 3 {
			t.Errorf("exit %d %v", code, ok)
		}
	})
	run(t, func(c *Config) { c.CloseLate, c.Buffer = true, 10*time.Second }, func(b *bench) {
		b.set(2)
		b.do(Term)
		pass(120 * time.Second)
		b.want(fsm.Closing, "")
		if h := b.Pod.Check(netip.MustParseAddr("192.0.2.1")); h.Code != 503 {
			t.Errorf("health %d", h.Code)
		}
		pass(10 * time.Second)
		b.want(fsm.Closed, TimedOut)
		if code, ok := b.exited(); !ok || code != 3 {
			t.Errorf("exit %d %v", code, ok)
		}
	})
}

// A source that hung for half a minute is seen again when it answers, not half a
// minute later.
func TestHungSourceIsSeenAgain(t *testing.T) {
	run(t, nil, func(b *bench) {
		b.set(0)
		b.with(func() { b.takes = time.Hour })
		b.do(Finish)
		b.ack(0)
		pass(35 * time.Second)
		b.want(fsm.Draining, "")
		b.with(func() { b.takes = ms })
		pass(readLimit + time.Second)
		b.want(fsm.Closed, Drained)
	})
}

// Reads take at most 5 % of the time, and a hang moves neither the deadline nor
// an answer.
func TestReadsAreBounded(t *testing.T) {
	run(t, nil, func(b *bench) {
		b.set(1)
		b.with(func() { b.takes = 20 * ms; b.reads = nil })
		b.do(Finish)
		pass(40 * time.Second)
		if n := len(b.reads); n < 95 || n > 120 {
			t.Errorf("%d reads of 20 ms in 40 s", n)
		}
		b.with(func() { b.takes = time.Hour })
		pass(80 * time.Second)
		b.want(fsm.Draining, TimedOut)
	})
}

// When Envoy is told.
func TestEnvoyIsTold(t *testing.T) {
	for _, c := range []struct {
		name, when string
		ack        bool
		after      time.Duration // of the call; -1: none
	}{
		{"held", EnvoyHeld, true, time.Second},
		{"held, but nobody holds: half of the time", EnvoyHeld, false, 60 * time.Second},
		{"start", EnvoyStart, false, 0},
		{"never", EnvoyNever, true, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, func(cfg *Config) { cfg.EnvoyWhen, cfg.Sockets = c.when, nil }, func(b *bench) {
				b.set(1)
				b.do(Drain) // a person's drain never does
				pass(time.Minute)
				b.do(Finish)
				at := time.Now()
				pass(time.Second)
				if c.ack {
					b.ack(3)
				}
				pass(70 * time.Second)
				got := time.Duration(-1)
				if len(b.called) > 0 {
					got = b.called[0].Sub(at)
				}
				if len(b.called) > 1 || got < c.after || got > c.after+60*ms {
					t.Errorf("called %d times, first after %s, want %s", len(b.called), got, c.after)
				}
				if c.after >= 0 && b.Status().Progress.Envoy != "drained" {
					t.Errorf("envoy is %q", b.Status().Progress.Envoy)
				}
			})
		})
	}
}

// The call is repeated until it is answered; one that would cut websockets is
// not made; a reopened pod says that its Envoy stays drained; an Envoy that was
// restarted is told again.
func TestEnvoyCall(t *testing.T) {
	start := func(c *Config) { c.EnvoyWhen = EnvoyStart }
	run(t, start, func(b *bench) {
		b.set(1)
		b.with(func() { b.fails = 3 })
		b.do(Finish)
		pass(2 * time.Second)
		if len(b.called) != 4 {
			t.Errorf("called %d times", len(b.called))
		}
		b.do(Reopen)
		if s := b.Status(); s.Warning == "" || s.Progress.Envoy != "drained" {
			t.Errorf("after the reopen: %+v", s)
		}
		b.do(Finish)
		pass(2 * time.Second)
		if len(b.called) != 4 {
			t.Errorf("told again: %d", len(b.called))
		}
		b.with(func() { b.reading.Restarted = true })
		pass(60 * ms)
		b.set(1)
		pass(time.Second)
		if len(b.called) < 5 {
			t.Errorf("a restarted Envoy was not told: %d", len(b.called))
		}
	})
	run(t, start, func(b *bench) {
		b.set(1)
		b.with(func() { b.harm, b.refuse = "cuts websockets", true })
		b.do(Finish)
		pass(100 * time.Second)
		if len(b.called) != 0 || !strings.Contains(b.log.String(), "cuts websockets") {
			t.Errorf("%d calls; %s", len(b.called), b.log)
		}
	})
	run(t, start, func(b *bench) {
		b.with(func() { b.hangs = true })
		b.do(Finish)
		pass(60 * ms)
		b.ack(0)
		pass(60 * ms)
		b.want(fsm.Closed, Drained) // a hang holds nothing up
	})
}

// A call that a reopen has cancelled ends when it ends: that is not the end of
// the next drain's.
func TestEnvoyCallOfAnotherDrain(t *testing.T) {
	run(t, func(c *Config) { c.EnvoyWhen = EnvoyStart }, func(b *bench) {
		b.set(1)
		b.with(func() { b.hangs, b.lingers = true, 10*ms })
		b.do(Finish)
		b.do(Reopen)
		b.do(Finish)
		pass(time.Second)
		if len(b.called) != 2 {
			t.Errorf("called %d times, want once for each drain", len(b.called))
		}
		b.do(Reopen)
		pass(20 * ms)
	})
}

// An Envoy that refuses for three seconds, with no connection left on the data
// port, is gone; before that, or with one left, or where nobody can look, it is
// unknown.
func TestEnvoyGone(t *testing.T) {
	for _, c := range []struct {
		name    string
		sockets []netip.Addr
		err     error
		ends    bool
	}{
		{"no connection", nil, nil, true},
		{"one half closed", []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil, false},
		{"cannot look", nil, errors.New("permission denied"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, nil, func(b *bench) {
				b.with(func() { b.reading = Reading{Envoy: true, Refused: true}; b.sockets, b.sockErr = c.sockets, c.err })
				b.do(Finish)
				for range 29 {
					b.ack(0)
					pass(100 * ms)
				}
				b.want(fsm.Draining, "")
				for range 5 {
					b.ack(0)
					pass(100 * ms)
				}
				if ended := b.View().Outcome == Drained; ended != c.ends {
					t.Errorf("ended %v; %s", ended, b.View().Waiting)
				}
				if c.ends && b.Status().Progress.Envoy != "gone" {
					t.Errorf("envoy is %q", b.Status().Progress.Envoy)
				}
			})
		})
	}
}

// No source: unknown, unless every balancer acknowledges.
func TestNoSource(t *testing.T) {
	run(t, func(c *Config) { c.Sources, c.Envoy = nil, nil }, func(b *bench) {
		b.do(Finish)
		b.ack(3)
		pass(4 * time.Second) // expired-held is evidence, but says nothing of what is in flight
		b.want(fsm.Draining, "")
		b.ack(0)
		pass(200 * ms)
		b.want(fsm.Closed, Drained)
	})
}

// The drain of the process before: joined, or reopened; a person's stays; one
// whose deadline is over is none.
func TestRecall(t *testing.T) {
	now := time.Now
	for _, c := range []struct {
		name   string
		memory func() Memory
		join   bool
		after  fsm.State
	}{
		{"joined", func() Memory {
			return Memory{Version: 1, UID: "uid", State: "CLOSING", Seq: 4, Finish: true, Deadline: handshake.At(now().Add(time.Minute))}
		}, true, fsm.Closed},
		{"not joined", func() Memory {
			return Memory{Version: 1, UID: "uid", State: "DRAINING", Seq: 4, Finish: true, Deadline: handshake.At(now().Add(time.Minute))}
		}, false, fsm.Open},
		{"a person's", func() Memory { return Memory{Version: 1, UID: "uid", State: "DRAINING", Seq: 4} }, false, fsm.Draining},
		{"another pod's", func() Memory { return Memory{Version: 1, UID: "x", State: "DRAINING", Seq: 4} }, false, fsm.Open},
		{"over", func() Memory {
			return Memory{Version: 1, UID: "uid", State: "DRAINING", Seq: 4, Finish: true, Deadline: handshake.At(now().Add(-time.Second))}
		}, false, fsm.Open},
		{"old names", func() Memory { return Memory{Version: 1, UID: "uid", State: "DRAINED_WAIT_LB", Seq: 4} }, false, fsm.Draining},
		{"garbage", func() Memory { return Memory{Version: 1, UID: "uid", State: "?", Seq: 4} }, false, fsm.Open},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, func(cfg *Config) { m := c.memory(); cfg.Found = &m }, func(b *bench) {
				pass(14 * time.Second)
				if c.join {
					deadline := b.View().Status.Drain
					b.do(Finish)
					if d := b.View().Status.Drain; !d.Finish || !d.Deadline.Equal(b.start.Add(time.Minute)) {
						t.Errorf("joined: %+v, was %+v", d, deadline)
					}
					b.ack(0)
					pass(100 * ms)
				} else {
					pass(2 * time.Second)
				}
				b.want(c.after, b.View().Outcome)
			})
		})
	}
}

// Whoever does something by hand while a recalled drain waits for its caller has
// decided: nothing reopens it behind his back.
func TestRecallByHand(t *testing.T) {
	for _, c := range []struct {
		commands []Command
		state    fsm.State
		outcome  Outcome
	}{
		{[]Command{Drain}, fsm.Draining, ""},
		{[]Command{CloseLB}, fsm.Closing, ""},
		{[]Command{CloseLB, Close}, fsm.Closed, ByHand},
		{[]Command{Break}, fsm.Fault, Broken},
		{[]Command{Reopen}, fsm.Open, ""},
	} {
		var saved Memory
		run(t, func(cfg *Config) {
			cfg.Found = &Memory{Version: 1, UID: "uid", State: "DRAINING", Seq: 4, Finish: true, Deadline: handshake.At(time.Now().Add(time.Minute))}
			cfg.Save = func(m Memory) { saved = m }
		}, func(b *bench) {
			for _, what := range c.commands {
				b.do(what)
			}
			pass(20 * time.Second)
			b.want(c.state, c.outcome)
			if strings.Contains(b.log.String(), `"joined":false`) || saved.Finish {
				t.Errorf("%v: still waited for a caller: %+v %s", c.commands, saved, b.log)
			}
		})
	}
}

// The state file gets who is there and where the drain stands.
func TestRemember(t *testing.T) {
	var got []Memory
	run(t, func(c *Config) { c.Save = func(m Memory) { got = append(got, m) } }, func(b *bench) {
		b.do(Finish)
		b.do(Reopen)
		pass(time.Minute)
	})
	var said []string
	for _, m := range got {
		said = append(said, fmt.Sprintf("%s %v %d", m.State, m.Finish, len(m.Balancers)))
	}
	if d := cmp.Diff([]string{"OPEN false 1", "DRAINING true 1", "OPEN false 1"}, said); d != "" {
		t.Error(d)
	}
}

// Nobody came to /drain/wait.
func TestNoWaiter(t *testing.T) {
	for _, came := range []bool{false, true} {
		run(t, nil, func(b *bench) {
			b.set(1)
			b.do(Finish)
			if came {
				b.Waits()
			}
			pass(6 * time.Second)
			if said := strings.Contains(b.log.String(), "waiter_none"); said == came {
				t.Errorf("came %v, said %v", came, said)
			}
		})
	}
}

// What the commands refuse.
func TestRefused(t *testing.T) {
	run(t, nil, func(b *bench) {
		for _, c := range []Command{CloseLB, Close} {
			var e *ErrState
			if err := b.Do(b.t.Context(), c, "test"); !errors.As(err, &e) || e.State != fsm.Open {
				t.Errorf("%s: %v", c, err)
			}
		}
		b.do(Reopen) // nothing to do is no error
		b.do(Break)
		for _, c := range []Command{Drain, Finish, CloseLB, Close, Reopen} {
			var e *ErrState
			if err := b.Do(b.t.Context(), c, "test"); !errors.As(err, &e) || e.State != fsm.Fault {
				t.Errorf("%s in FAULT: %v", c, err)
			}
		}
	})
}
