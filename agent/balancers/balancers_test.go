package balancers

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"lbdrain/fsm"
	"lbdrain/internal/handshake"
)

const ms = time.Millisecond

// A pod in front of which nothing has been heard proves nothing, and --lb-buffer
// is the only way to say that waiting is enough.
func TestNobodyIsNotEvidence(t *testing.T) {
	for _, c := range []struct {
		buffer  time.Duration
		done    bool
		waiting string
	}{
		{0, false, "no balancer has been heard"},
		{10 * time.Second, true, ""},
	} {
		cfg := defaults()
		cfg.Buffer = c.buffer
		s := newSim(t, cfg)
		s.drain()
		s.pass(time.Second)
		if v := s.verdict(); v.Done || v.Acked || !strings.HasPrefix(v.Waiting, "still learning") {
			t.Errorf("while learning: %+v", v)
		}
		s.pass(time.Minute)
		if v := s.verdict(); v.Done != c.done || v.Waiting != c.waiting || v.Acked {
			t.Errorf("buffer %s: %+v", c.buffer, v)
		}
	}
}

// R2: after a start nothing is concluded from an absence, for three agent-inters
// at least, even where those who are there have shown everything.
func TestLearning(t *testing.T) {
	s := newSim(t, defaults())
	s.poll(lb1)
	s.watch("lb1", lb1, 1)
	s.drain()
	s.ack("lb1", lb1, 1, handshake.HeldZero)
	s.want(false, "lb1", handshake.HeldZero, "")
	s.pass(6 * time.Second)
	s.ack("lb1", lb1, 1, handshake.HeldZero)
	s.want(true, "lb1", handshake.HeldZero, "")

	slow := newSim(t, defaults())
	slow.polls(lb1, 3, 4*time.Second) // agent-inter 4s: 12 s to learn
	if why := slow.learning(slow.start.Add(11 * time.Second)); why == "" {
		t.Error("three agent-inters of 4s are not over after 11s")
	}
	if why := slow.learning(slow.start.Add(12 * time.Second)); why != "" {
		t.Error(why)
	}
}

// An address is a balancer after three requests; only the health page and the
// word count, only inside --lb-from; v4-mapped equals v4.
func TestWhoIsABalancer(t *testing.T) {
	cfg := defaults()
	cfg.From = []netip.Prefix{netip.MustParsePrefix("203.0.113.208/29")}
	s := newSim(t, cfg)
	for range 3 {
		s.poll("198.51.100.9")
	}
	s.check(lb1)
	s.poll("::ffff:" + lb1)
	if es := s.verdict().LBs; len(es) != 0 {
		t.Errorf("after two requests and a stranger's three: %v", es)
	}
	s.check(lb1)
	if es := s.verdict().LBs; len(es) != 1 || es[0].LB != lb1 {
		t.Errorf("after the third: %v", es)
	}
	if e := s.Events(); len(e) != 1 || e[0].Name != "balancer_new" {
		t.Errorf("events %v", e)
	}
}

// R4: three polls answered drain, then --quiet-polled.
func TestPolls(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 20, 500*ms)
	s.drain()
	s.want(false, lb1, handshake.None, "0 of 3 polls answered drain")
	s.polls(lb1, 2, 500*ms)
	s.want(false, lb1, handshake.None, "2 of 3 polls answered drain")
	s.polls(lb1, 1, 500*ms)
	s.want(false, lb1, handshake.None, "polled, quiet for 1s more")
	s.polls(lb1, 2, 500*ms)
	s.want(true, lb1, handshake.Polls, "")
	if v := s.verdict(); !v.Polled || v.Acked || !v.Held {
		t.Errorf("polls are no acknowledgement: %+v", v)
	}
}

// A2: the count starts again when a poll is overdue by two agent-inters, and
// evidence that was complete lapses.
func TestPollsLapse(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 20, 500*ms)
	s.drain()
	s.polls(lb1, 6, 500*ms)
	s.want(true, lb1, handshake.Polls, "")
	s.pass(1500 * ms)
	s.want(true, lb1, handshake.Polls, "")
	s.pass(10 * ms)
	s.want(false, lb1, handshake.None, "0 of 3 polls answered drain")
	s.polls(lb1, 2, 500*ms)
	s.want(false, lb1, handshake.None, "2 of 3 polls answered drain")
	s.polls(lb1, 3, 500*ms)
	s.want(true, lb1, handshake.Polls, "")
}

// A word that could not be written is no evidence.
func TestUnansweredPollIsNoEvidence(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 20, 500*ms)
	s.drain()
	for range 6 {
		s.pass(500 * ms)
		s.Poll(netip.MustParseAddr(lb1), "", s.now)
	}
	s.want(false, lb1, handshake.None, "0 of 3 polls answered drain")
}

// Two server lines poll from one address: three polls of each are needed.
func TestTwoPollersAtOneAddress(t *testing.T) {
	s := newSim(t, defaults())
	s.pass(6 * time.Second)
	pair := func() {
		s.pass(100 * ms)
		s.poll(lb1)
		s.pass(400 * ms)
		s.poll(lb1)
	}
	for range 8 {
		pair()
	}
	if inter, n := s.sources[lb1].polls.period(); inter != 500*ms || n != 2 {
		t.Errorf("learned %s by %d pollers", inter, n)
	}
	s.drain()
	pair()
	pair()
	s.want(false, lb1, handshake.None, "4 of 6 polls answered drain")
	pair()
	pair()
	pair()
	s.want(true, lb1, handshake.Polls, "")
}

func TestPeriod(t *testing.T) {
	for _, c := range []struct {
		name  string
		gaps  []time.Duration
		inter time.Duration
		n     int
	}{
		{"unknown", nil, 2 * time.Second, 1},
		{"two arrivals", []time.Duration{500 * ms}, 2 * time.Second, 1},
		{"steady with jitter", []time.Duration{500 * ms, 504 * ms, 499 * ms, 501 * ms}, 504 * ms, 1},
		{"three pollers", slices.Repeat([]time.Duration{100 * ms, 50 * ms, 350 * ms}, 5), 500 * ms, 3},
		{"one long pause", []time.Duration{500 * ms, 500 * ms, 40 * time.Second, 500 * ms}, 500 * ms, 1},
		{"two pollers, one just behind the other, on a busy machine", []time.Duration{5 * ms, 495 * ms, 90 * ms, 410 * ms, 5 * ms, 590 * ms, 5 * ms, 495 * ms}, 495 * ms, 1},
		{"two pollers, nearly even", slices.Repeat([]time.Duration{220 * ms, 280 * ms}, 4), 500 * ms, 2},
		{"all at once", slices.Repeat([]time.Duration{0}, 8), leastInter, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r rhythm
			at := time.Unix(0, 0)
			r.add(at)
			for _, g := range c.gaps {
				at = at.Add(g)
				r.add(at)
			}
			if inter, n := r.period(); inter != c.inter || n != c.n {
				t.Errorf("%s by %d, want %s by %d", inter, n, c.inter, c.n)
			}
		})
	}
}

// Nobody can show anything: no agent-check, no daemon. To the deadline, or
// --lb-buffer.
func TestChecksAloneAreNoEvidence(t *testing.T) {
	for _, buffer := range []time.Duration{0, 10 * time.Second} {
		cfg := defaults()
		cfg.Buffer = buffer
		s := newSim(t, cfg)
		for range 5 {
			s.check(lb1)
			s.pass(2 * time.Second)
		}
		s.drain()
		for range 8 {
			s.pass(2 * time.Second)
			s.check(lb1)
		}
		if buffer == 0 {
			s.want(false, lb1, handshake.None, "no evidence possible: neither agent-check nor lbctl")
		} else {
			s.want(true, lb1, handshake.None, "")
		}
	}
}

// --draining-health 404: one 404 is evidence, and stays the answer, because a
// 200 would bring the server back.
func TestNotFound(t *testing.T) {
	cfg := defaults()
	cfg.NotFound = true
	s := newSim(t, cfg)
	for range 5 {
		s.check(lb1)
		s.pass(2 * time.Second)
	}
	s.drain()
	s.want(false, lb1, handshake.None, "no 404 answered yet")
	s.pass(2 * time.Second)
	if code := s.check(lb1); code != 404 {
		t.Errorf("health in DRAINING is %d", code)
	}
	s.want(false, lb1, handshake.None, "polled, quiet for 1s more")
	s.pass(time.Second)
	s.want(true, lb1, handshake.Polls, "")
	s.pass(time.Second)
	s.state(fsm.Closing, false)
	if code := s.check(lb1); code != 404 {
		t.Errorf("health in CLOSING is %d", code)
	}
	s.pass(7 * time.Second)
	s.want(false, lb1, handshake.None, "no 404 answered yet")
}

// R3, R6: the words of a watcher, each as it is acknowledged, missed and lost.
func TestAcknowledgements(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 20, 500*ms)
	s.watch("lb1", lb1, 1)
	s.want(true, "lb1", handshake.Watching, "")
	s.drain()
	s.want(false, "lb1", handshake.Watching, "watches, has not acknowledged")
	s.ack("lb1", lb1, 1, handshake.Watching)
	s.want(false, "lb1", handshake.Watching, "be/w1 is not in DRAIN")
	s.ack("lb1", lb1, 1, handshake.Deferred)
	s.want(false, "lb1", handshake.Deferred, "deferred: the last usable server of a backend")
	s.ack("lb1", lb1, 1, handshake.Held)
	s.want(false, "lb1", handshake.Held, "3 sessions")
	if v := s.verdict(); !v.Held || v.Acked {
		t.Errorf("held: %+v", v)
	}
	s.ack("lb1", lb1, 1, handshake.HeldZero)
	s.want(true, "lb1", handshake.HeldZero, "")
	if v := s.verdict(); !v.Acked || v.Polled {
		t.Errorf("held-zero: %+v", v)
	}
	// A later one with less revokes.
	s.ack("lb1", lb1, 1, handshake.Held)
	s.want(false, "lb1", handshake.Held, "3 sessions")
	s.ack("lb1", lb1, 1, handshake.Watching)
	s.want(false, "lb1", handshake.Watching, "be/w1 is not in DRAIN")
	// Revoked and then silent: unknown, not expired-held.
	s.pass(3*time.Second + ms)
	s.want(false, "lb1", handshake.None, "0 of 3 polls answered drain")
	var names []string
	for _, e := range s.Events() {
		names = append(names, e.Name)
	}
	if d := cmp.Diff([]string{"balancer_new", "watch", "deferred", "held", "held_zero", "revoked", "revoked"}, names); d != "" {
		t.Error(d)
	}
}

// Expired is not forgotten: what was held stays held without its daemon.
func TestExpiredHeld(t *testing.T) {
	for _, word := range []handshake.Word{handshake.Held, handshake.HeldZero} {
		s := newSim(t, defaults())
		s.polls(lb1, 20, 500*ms)
		s.watch("lb1", lb1, 1)
		s.drain()
		s.ack("lb1", lb1, 1, word)
		s.Hang(1)
		s.pass(3 * time.Second)
		s.want(word == handshake.HeldZero, "lb1", word, map[bool]string{true: "3 sessions"}[word == handshake.Held])
		s.pass(ms)
		s.want(true, "lb1", handshake.ExpiredHeld, "")
		if v := s.verdict(); v.Acked {
			t.Error("an expired acknowledgement is none")
		}
	}
}

// absent counts as held-zero only while it is said.
func TestAbsent(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 20, 500*ms)
	s.watch("lb1", lb1, 1)
	s.drain()
	s.ack("lb1", lb1, 1, handshake.Held)
	s.ack("lb1", lb1, 1, handshake.Absent)
	s.want(true, "lb1", handshake.Absent, "")
	s.pass(3*time.Second + ms)
	s.want(false, "lb1", handshake.None, "0 of 3 polls answered drain")
}

// E1: a watcher that says nothing for three intervals is unknown, however alive
// its connection looks, and its polls count from then.
func TestSilentWatcher(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 20, 500*ms)
	s.watch("lb1", lb1, 1) // held open for good
	s.drain()
	words := s.polls(lb1, 6, 500*ms)
	if d := cmp.Diff([]string{"up", "drain", "drain", "drain", "drain", "drain"}, words); d != "" {
		t.Errorf("the first is withheld for one interval: %s", d)
	}
	s.want(false, "lb1", handshake.Watching, "watches, has not acknowledged")
	s.polls(lb1, 3, 500*ms)
	s.want(false, "lb1", handshake.None, "polled, quiet for 1s more")
	s.polls(lb1, 2, 500*ms)
	s.want(true, "lb1", handshake.Polls, "")
}

// One that lost its watch before the drain never gets its words withheld.
func TestWatchLostBefore(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 10, 500*ms)
	s.watch("lb1", lb1, 1)
	s.Hang(1)
	s.polls(lb1, 10, 500*ms)
	s.drain()
	if d := cmp.Diff([]string{"drain", "drain", "drain", "drain", "drain"}, s.polls(lb1, 5, 500*ms)); d != "" {
		t.Error(d)
	}
	s.want(true, "lb1", handshake.Polls, "")
}

// DELETE: from then on only polls count, even where it had held.
func TestLeave(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 20, 500*ms)
	s.watch("lb1", lb1, 1)
	s.drain()
	s.ack("lb1", lb1, 1, handshake.HeldZero)
	if err := s.Leave("lb1", peer(lb2, 9), s.now); !errors.Is(err, ErrStranger) {
		t.Errorf("a stranger's farewell: %v", err)
	}
	if err := s.Leave("lb1", peer(lb1, 1), s.now); err != nil {
		t.Fatal(err)
	}
	s.want(false, "lb1", handshake.None, "0 of 3 polls answered drain")
	s.polls(lb1, 5, 500*ms)
	s.want(true, "lb1", handshake.Polls, "")
}

// R1, R6: an acknowledgement names its drain; a reopen or a second drain
// discards what the one before was told.
func TestStale(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 20, 500*ms)
	s.watch("lb1", lb1, 1)
	s.drain()
	old := s.facts(handshake.HeldZero)
	s.ack("lb1", lb1, 1, handshake.HeldZero)
	s.state(fsm.Open, false)
	if _, err := s.Ack("lb1", peer(lb1, 1), old, s.now); !errors.Is(err, ErrStale) {
		t.Errorf("after the reopen: %v", err)
	}
	s.drain()
	if _, err := s.Ack("lb1", peer(lb1, 1), old, s.now); !errors.Is(err, ErrStale) {
		t.Errorf("in the next drain: %v", err)
	}
	s.want(false, "lb1", handshake.Watching, "watches, has not acknowledged")
}

// Polls of the drain before are no evidence for this one.
func TestPollsOfAnotherDrain(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 20, 500*ms)
	s.drain()
	s.polls(lb1, 6, 500*ms)
	s.state(fsm.Open, false)
	s.drain()
	s.want(false, lb1, handshake.None, "0 of 3 polls answered drain")
}

// Who may watch and acknowledge without a token, and whose name it is.
func TestWhoMayAcknowledge(t *testing.T) {
	s := newSim(t, defaults())
	if err := s.Watch("x", peer(lb2, 1), s.now); !errors.Is(err, ErrStranger) {
		t.Errorf("a stranger's watch: %v", err)
	}
	s.drain()
	if _, err := s.Ack("x", peer(lb2, 1), s.facts(handshake.HeldZero), s.now); !errors.Is(err, ErrStranger) {
		t.Errorf("a stranger's acknowledgement: %v", err)
	}
	trusted := Peer{Addr: netip.MustParseAddr(lb2), Conn: 1, Trusted: true}
	if _, err := s.Ack("x", trusted, s.facts(handshake.HeldZero), s.now); err != nil {
		t.Errorf("with a token: %v", err)
	}
	s.check(lb1)
	s.watch("y", lb1, 2)
	if err := s.Watch("y", peer(lb1, 3), s.now); !errors.Is(err, ErrBusy) {
		t.Errorf("a second watcher of a live name: %v", err)
	}
	if _, err := s.Ack("y", peer(lb1, 3), s.facts(handshake.Held), s.now); !errors.Is(err, ErrBusy) {
		t.Errorf("an acknowledgement on another connection: %v", err)
	}
	s.Hang(2)
	s.watch("y", lb1, 3)

	cfg := defaults()
	cfg.From = []netip.Prefix{netip.MustParsePrefix(lb2 + "/32")}
	in := newSim(t, cfg)
	in.watch("z", lb2, 1)
	in.check(lb1)
	if err := in.Watch("out", peer(lb1, 2), in.now); !errors.Is(err, ErrStranger) {
		t.Errorf("checks, but from outside of --lb-from: %v", err)
	}
}

// Addresses that a watcher lists are covered; agent-send's lb=NAME is that
// balancer's wherever it comes from.
func TestCoverage(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 10, 500*ms)
	s.polls(lb2, 10, 500*ms)
	for range 4 {
		s.named("192.0.2.7", "lb1")
		s.pass(500 * ms)
	}
	s.watch("lb1", lb1, 1)
	s.drain()
	a := s.facts(handshake.HeldZero)
	a.Sources = []string{"::ffff:" + lb2}
	if _, err := s.Ack("lb1", peer(lb1, 1), a, s.now); err != nil {
		t.Fatal(err)
	}
	v := s.verdict()
	if len(v.LBs) != 1 || !v.Done {
		t.Errorf("%+v", v)
	}
	if d := cmp.Diff([]string{lb1, lb2}, v.LBs[0].Sources); d != "" {
		t.Error(d)
	}
}

// A named poller without a daemon is a balancer of that name, and a name from
// outside of --lb-from is not believed.
func TestNamedPolls(t *testing.T) {
	cfg := defaults()
	cfg.From = []netip.Prefix{netip.MustParsePrefix(lb1 + "/32")}
	s := newSim(t, cfg)
	for range 20 {
		s.pass(500 * ms)
		s.named(lb1, "edge")
		s.named("192.0.2.7", "edge")
	}
	s.drain()
	for range 5 {
		s.pass(500 * ms)
		s.named("192.0.2.7", "edge")
	}
	s.want(false, "edge", handshake.None, "0 of 3 polls answered drain")
}

// R16: a deferral is told `up` until patience ends, and delays until then.
func TestDeferral(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 20, 500*ms)
	s.watch("lb1", lb1, 1)
	s.drain()
	for range 59 {
		s.ack("lb1", lb1, 1, handshake.Deferred)
		s.pass(time.Second)
		if w := s.poll(lb1); w != "up" {
			t.Fatalf("deferred, and yet %q", w)
		}
	}
	s.pass(time.Second)
	s.ack("lb1", lb1, 1, handshake.Deferred)
	if w := s.poll(lb1); w != "drain" {
		t.Errorf("half of the time is gone, and yet %q", w)
	}
	s.state(fsm.Closing, false)
	if w := s.poll(lb1); w != "drain" {
		t.Errorf("in CLOSING %q", w)
	}
}

// `up ready` is an edge: three polls and ten seconds for each poller, again
// after a reopen, and never else.
func TestReturnWindow(t *testing.T) {
	s := newSim(t, defaults())
	words := s.polls(lb1, 30, 500*ms)
	for i, w := range words {
		want := "up ready"
		if i >= 20 { // ten seconds after the first
			want = "up"
		}
		if w != want {
			t.Errorf("poll %d: %q, want %q", i, w, want)
		}
	}
	if w := s.polls(lb2, 3, 30*time.Second); !slices.Equal(w, []string{"up ready", "up ready", "up ready"}) {
		t.Errorf("a slow poller needs three: %v", w)
	}
	if w := s.polls(lb2, 1, 30*time.Second); w[0] != "up" {
		t.Errorf("the fourth: %v", w)
	}
	s.drain()
	s.state(fsm.Open, false)
	if w := s.poll(lb1); w != "up ready" {
		t.Errorf("after a reopen: %q", w)
	}
}

// R5, R8, A3: what each peer is told in each state.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		state          fsm.State
		cut            bool
		acked, other   int
		ackedW, otherW string
	}{
		{fsm.Draining, false, 200, 200, "drain", "drain"},
		{fsm.Closing, false, 503, 200, "drain", "drain"},
		{fsm.Closed, false, 503, 200, "drain", "drain"},
		{fsm.Closing, true, 503, 503, "drain", "drain"},
		{fsm.Closed, true, 503, 503, "down", "down"},
		{fsm.Fault, false, 503, 503, "down #fault", "down #fault"},
	} {
		s := newSim(t, defaults())
		s.polls(lb1, 20, 500*ms)
		s.polls(lb2, 20, 500*ms)
		s.watch("lb1", lb1, 1)
		s.drain()
		s.ack("lb1", lb1, 1, handshake.HeldZero)
		s.state(c.state, c.cut)
		got := []any{s.check(lb1), s.check(lb2), s.poll(lb1), s.poll(lb2)}
		if d := cmp.Diff([]any{c.acked, c.other, c.ackedW, c.otherW}, got); d != "" {
			t.Errorf("%s cut %v: %s", c.state, c.cut, d)
		}
	}
}

// A 503 is for a balancer whose every watcher behind that address is empty, and
// a revoked one gets 200 again.
func TestHeldZeroIsTakenBack(t *testing.T) {
	s := newSim(t, defaults())
	s.poll(lb1)
	s.watch("a", lb1, 1)
	s.watch("b", lb1, 2)
	s.drain()
	s.ack("a", lb1, 1, handshake.HeldZero)
	s.state(fsm.Closing, false)
	if code := s.check(lb1); code != 200 {
		t.Errorf("one of two sockets is empty: %d", code)
	}
	s.ack("b", lb1, 2, handshake.HeldZero)
	if code := s.check(lb1); code != 503 {
		t.Errorf("both are: %d", code)
	}
	s.ack("b", lb1, 2, handshake.Held)
	if code := s.check(lb1); code != 200 {
		t.Errorf("one has taken it back: %d", code)
	}
}

func TestProbes(t *testing.T) {
	s := newSim(t, defaults())
	if h := s.Check(netip.MustParseAddr(lb1), false, s.now); h.Code != 503 {
		t.Errorf("probes fail in OPEN: %v", h)
	}
	s.drain()
	if h := s.Check(netip.MustParseAddr(lb1), false, s.now); h.Code != 200 {
		t.Errorf("probes fail in DRAINING: %v", h)
	}
}

// A1, B1, B2: gone needs silence of checks and polls and no socket, is looked at
// again at every step, and ends with the first request answered before CLOSING.
func TestGone(t *testing.T) {
	for _, watched := range []bool{false, true} {
		name := lb1
		s := newSim(t, defaults())
		s.polls(lb1, 20, 500*ms)
		s.check(lb1)
		if watched {
			name = "lb1"
			s.watch(name, lb1, 1)
			s.Hang(1)
		}
		s.drain()
		s.pass(GoneAfter)
		s.socks = Sockets{Known: true}
		s.want(false, name, handshake.None, "0 of 3 polls answered drain")
		if s.Silent(s.now) {
			t.Error("not silent for long enough")
		}
		s.pass(ms)
		if !s.Silent(s.now) {
			t.Error("silent")
		}
		s.want(true, name, handshake.Gone, "")
		s.socks = Sockets{}
		s.want(false, name, handshake.None, "0 of 3 polls answered drain") // nobody could look
		s.socks = Sockets{Known: true, From: []netip.Addr{netip.MustParseAddr(lb1)}}
		s.want(false, name, handshake.None, "0 of 3 polls answered drain") // a connection is left
		s.socks = Sockets{Known: true, From: []netip.Addr{netip.MustParseAddr(lb2)}}
		s.want(true, name, handshake.Gone, "")
		s.check(lb1)
		s.want(false, name, handshake.None, "0 of 3 polls answered drain")
		s.pass(GoneAfter + ms)
		s.want(true, name, handshake.Gone, "")
		s.state(fsm.Closing, false)
		s.check(lb1)
		s.poll(lb1)
		s.want(true, name, handshake.Gone, "") // answers from CLOSING on do not end it
	}
}

// D3: only checks have ceased (somebody's disable health): not gone.
func TestPollsAloneAreHeard(t *testing.T) {
	s := newSim(t, defaults())
	s.check(lb1)
	s.polls(lb1, 20, 500*ms)
	s.drain()
	s.socks = Sockets{Known: true}
	for range 240 { // every word is lost
		s.pass(500 * ms)
		s.Poll(netip.MustParseAddr(lb1), "", s.now)
	}
	s.want(false, lb1, handshake.None, "0 of 3 polls answered drain")
}

// A long detection window makes gone come later.
func TestGoneAfterTwoWindows(t *testing.T) {
	s := newSim(t, defaults())
	s.poll(lb1)
	s.watch("lb1", lb1, 1)
	greeting := s.facts(handshake.Watching)
	greeting.Drain, greeting.Window.Worst = nil, handshake.Millis(time.Minute)
	if _, err := s.Ack("lb1", peer(lb1, 1), greeting, s.now); err != nil {
		t.Fatal(err)
	}
	s.Hang(1)
	s.drain()
	s.socks = Sockets{Known: true}
	s.pass(2 * time.Minute)
	if e := s.evidence("lb1"); e.Evidence == handshake.Gone {
		t.Error("gone within two windows")
	}
	s.pass(ms)
	s.want(true, "lb1", handshake.Gone, "")
}

// One that says no window is not gone before its rare checks could have marked
// the pod DOWN.
func TestGoneAfterRareChecks(t *testing.T) {
	s := newSim(t, defaults())
	for range 5 {
		s.pass(20 * time.Second)
		s.check(lb1)
	}
	s.drain()
	s.socks = Sockets{Known: true}
	s.pass(2 * time.Minute)
	if s.Silent(s.now) || s.verdict().Done {
		t.Error("gone after two detection windows less a moment")
	}
	s.pass(time.Second)
	if !s.Silent(s.now) {
		t.Error("not worth a look at the sockets")
	}
	s.want(true, lb1, handshake.Gone, "")
}

// B2, D4: who is first heard from CLOSING on is no balancer.
func TestNobodyNewFromClosingOn(t *testing.T) {
	s := newSim(t, defaults())
	s.drain()
	s.state(fsm.Closing, false)
	s.polls(lb1, 5, 500*ms)
	if lbs := s.verdict().LBs; len(lbs) != 0 {
		t.Errorf("%v", lbs)
	}
}

// The state file brings back who is there, never what they said.
func TestRestore(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb2, 3, 500*ms)
	s.poll(lb1)
	s.watch("lb1", lb1, 1)
	s.drain()
	s.ack("lb1", lb1, 1, handshake.HeldZero)
	known := s.Known()
	want := []Known{{lb2, false, []netip.Addr{netip.MustParseAddr(lb2)}}, {"lb1", true, []netip.Addr{netip.MustParseAddr(lb1)}}}
	if d := cmp.Diff(want, known, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
	n := newSim(t, defaults())
	n.Restore(known)
	n.drain()
	n.pass(7 * time.Second)
	n.want(false, "lb1", handshake.None, "no evidence possible: neither agent-check nor lbctl")
	n.want(false, lb2, handshake.None, "no evidence possible: neither agent-check nor lbctl")
	n.watch("lb1", lb1, 5) // its address is not heard yet, but known
}

// Strangers fill no memory, and none of them pushes a balancer out.
func TestBounded(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 3, 500*ms)
	for i := range 3 * maxSources {
		s.pass(ms)
		s.check(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String())
	}
	if len(s.sources) > maxSources || s.sources[lb1] == nil {
		t.Errorf("%d sources, the balancer is %v", len(s.sources), s.sources[lb1])
	}
}

// Whatever happens in whatever order: evidence needs what the rules say. Done is
// never reached while a balancer has been heard within three seconds and has
// neither held nor been told drain three times.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSim(t, Config{ReturnWindow: 10 * time.Second})
		s.polls(lb1, 10, 500*ms)
		s.check(lb2)
		s.check(lb2)
		s.drain()
		told, held := 0, false
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 6).Draw(rt, "step") {
			case 0, 1:
				s.pass(500 * ms)
				if s.poll(lb1) == "drain" {
					told++
				}
			case 2:
				s.pass(time.Duration(rapid.IntRange(0, 4000).Draw(rt, "ms")) * ms)
			case 3:
				_ = s.Watch("lb1", peer(lb1, 1), s.now)
			case 4:
				word := rapid.SampledFrom([]handshake.Word{handshake.Watching, handshake.Deferred, handshake.Held, handshake.HeldZero}).Draw(rt, "word")
				_, err := s.Ack("lb1", peer(lb1, 1), s.facts(word), s.now)
				held = held || err == nil && (word == handshake.Held || word == handshake.HeldZero)
			case 5:
				s.Hang(1)
			case 6:
				_ = s.Leave("lb1", peer(lb1, 1), s.now)
			}
			if v := s.verdict(); v.Done && !held && told < 3 {
				rt.Fatalf("done with %d words and nothing held: %+v", told, v)
			}
		}
	})
}
