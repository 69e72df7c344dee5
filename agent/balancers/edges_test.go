package balancers

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"lbdrain/fsm"
	"lbdrain/internal/handshake"
)

// The wait after the last poll that was needed does not begin again with every
// further poll, however many come in it.
func TestManyPollsWhileQuiet(t *testing.T) {
	cfg := defaults()
	cfg.Learn, cfg.QuietPolled = 0, 20*time.Second
	s := newSim(t, cfg)
	s.polls(lb1, 40, 100*ms)
	s.drain()
	s.polls(lb1, 3+200, 100*ms)
	s.want(true, lb1, handshake.Polls, "")

	cfg.NotFound = true
	s = newSim(t, cfg)
	for range 40 {
		s.pass(100 * ms)
		s.check(lb1)
	}
	s.drain()
	for range 1 + 200 {
		s.pass(100 * ms)
		s.check(lb1)
	}
	s.want(true, lb1, handshake.Polls, "")
}

// Somebody who connects every few minutes must not make a young pod learn for
// hours; nor must one whom --lb-from leaves out.
func TestLearningIsBounded(t *testing.T) {
	cfg := defaults()
	cfg.From = []netip.Prefix{netip.MustParsePrefix("203.0.113.208/29")}
	s := newSim(t, cfg)
	s.polls("198.51.100.9", 3, 30*time.Second)
	s.polls(lb2, 3, 10*time.Minute)
	if why := s.learning(s.start.Add(7 * time.Second)); why != "" {
		t.Error(why)
	}
}

// A full table that cannot take an asker in proves nothing; balancers that are
// gone make place, those that are there never do.
func TestCrowded(t *testing.T) {
	s := newSim(t, defaults())
	ask := func(i int) {
		for range makes {
			s.check(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String())
		}
	}
	for i := range maxSources {
		ask(i)
	}
	s.watch("lb1", "10.1.0.0", 1)
	a := s.facts(handshake.HeldZero)
	s.drain()
	a.Drain.Seq = s.seq
	for i := range maxSources {
		a.Sources = append(a.Sources, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String())
	}
	s.pass(7 * time.Second)
	s.check(lb2)
	if _, err := s.Ack("lb1", peer("10.1.0.0", 1), a, s.now); err != nil {
		t.Fatal(err)
	}
	if v := s.verdict(); v.Done || v.Acked || !strings.Contains(v.Waiting, "more than 1024 balancers") {
		t.Errorf("an asker without a place: done %v, acked %v, waiting %s", v.Done, v.Acked, v.Waiting)
	}

	s = newSim(t, defaults())
	for i := range maxSources {
		ask(i)
		s.pass(ms)
	}
	s.pass(GoneAfter + time.Second)
	s.check("10.1.0.1")
	s.Judge(s.now, Sockets{Known: true})
	s.polls(lb2, 3, 500*ms)
	if s.sources[lb2] == nil || s.sources["10.1.0.0"] != nil || s.sources["10.1.0.1"] == nil || len(s.sources) > maxSources {
		t.Errorf("%d sources; new %v, gone %v, there %v", len(s.sources), s.sources[lb2], s.sources["10.1.0.0"], s.sources["10.1.0.1"])
	}
}

// A word that was said in one drain and written in the next counts in neither.
func TestLateAnswerOfAnotherDrain(t *testing.T) {
	s := newSim(t, defaults())
	s.polls(lb1, 10, 500*ms)
	s.drain()
	s.pass(500 * ms)
	a := s.Poll(netip.MustParseAddr(lb1), "", s.now)
	s.state(fsm.Open, false)
	s.drain()
	s.pass(ms)
	s.Answered(a, s.now)
	s.want(false, lb1, handshake.None, "0 of 3 polls answered drain")
}

// A watcher that was let in is not shut out by strangers who push its address out
// of the table.
func TestStrangersShutNobodyOut(t *testing.T) {
	s := newSim(t, defaults())
	s.check(lb1)
	s.watch("lb1", lb1, 1)
	for i := range 2 * maxSources {
		s.pass(ms)
		s.check(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String())
	}
	s.drain()
	s.ack("lb1", lb1, 1, handshake.HeldZero)
	if err := s.Watch("lb2", peer(lb1, 2), s.now); !errors.Is(err, ErrStranger) {
		t.Errorf("another connection from there: %v", err)
	}
}

// Two server lines with different agent-inters poll from one address: the quick one
// alone is no evidence, the slow one may not have been told yet.
func TestSlowPollerAmongQuick(t *testing.T) {
	cfg := defaults()
	cfg.Learn = 0
	for _, slow := range []time.Duration{3 * time.Second, 5 * time.Second, 8 * time.Second} {
		for phase := 50 * ms; phase < 500*ms; phase += 150 * ms {
			s := newSim(t, cfg)
			told := false
			run := func(d time.Duration, done func() bool) {
				for end := s.now.Add(d); s.now.Before(end) && !done(); s.pass(10 * ms) {
					switch since := s.now.Sub(s.start) + slow - phase; {
					case since%slow == 0:
						told = s.poll(lb1) == "drain"
					case s.now.Sub(s.start)%(500*ms) == 0:
						s.poll(lb1)
					}
				}
			}
			run(10*slow+phase+20*ms, func() bool { return false }) // it was asked just now
			s.drain()
			run(time.Minute, func() bool { return s.verdict().Done })
			if !told || !s.verdict().Done {
				t.Errorf("slow %s, phase %s: told %v, done %v after %s", slow, phase, told, s.verdict().Done, s.now.Sub(s.phase.Since))
			}
		}
	}
}

// Where all are regular nobody waits for a rare one. Phases that look like fewer
// pollers than there are (one in thousands) cost some seconds and no request.
func TestNoRestWhereAllAreRegular(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var r rhythm
		pollers := rapid.IntRange(1, 4).Draw(rt, "pollers")
		now := time.Unix(0, 0)
		phases := make([]time.Duration, pollers)
		for i := range phases {
			phases[i] = time.Duration(rapid.IntRange(0, 499).Draw(rt, "phase")) * ms
		}
		slices.Sort(phases)
		for k := range 20 {
			for _, p := range phases {
				late := time.Duration(rapid.IntRange(0, 8).Draw(rt, "late")) * ms
				r.add(now.Add(time.Duration(k)*500*ms + p + late))
			}
		}
		if rest := r.rest(); rest > 5*time.Second {
			rt.Fatalf("%d pollers at %v: rest %s", pollers, phases, rest)
		}
	})
}

// Two watchers that nobody polls, with words, silences, farewells and broken
// connections in any order: evidence is there exactly when both hold, and each
// that is still heard is empty. Who takes it back, defers or leaves ends it.
func TestTwoWatchers(t *testing.T) {
	type model struct {
		word  handshake.Word
		heard time.Time
		conn  uint64
	}
	rapid.Check(t, func(rt *rapid.T) {
		s := newSim(t, Config{})
		names, addrs := []string{"a", "b"}, []string{lb1, lb2}
		all := make([]model, 2)
		conns := uint64(2)
		for i, name := range names {
			s.check(addrs[i])
			all[i].conn = uint64(i + 1)
			s.watch(name, addrs[i], all[i].conn)
		}
		s.drain()
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			i := rapid.IntRange(0, 1).Draw(rt, "who")
			m, name := &all[i], names[i]
			switch rapid.IntRange(0, 5).Draw(rt, "step") {
			case 0, 1:
				s.pass(time.Duration(rapid.IntRange(1, 2000).Draw(rt, "ms")) * time.Millisecond)
			case 2, 3:
				word := rapid.SampledFrom([]handshake.Word{handshake.Watching, handshake.Deferred, handshake.Held, handshake.HeldZero, handshake.HeldZero, handshake.Absent}).Draw(rt, "word")
				if _, err := s.Ack(name, peer(addrs[i], m.conn), s.facts(word), s.now); err != nil {
					rt.Fatal(err)
				}
				m.word, m.heard = word, s.now
			case 4:
				s.Hang(m.conn)
				conns++
				m.conn = conns
			case 5:
				if err := s.Leave(name, peer(addrs[i], m.conn), s.now); err != nil {
					rt.Fatal(err)
				}
				m.word = ""
			}
			want := true
			for _, m := range all {
				silent := s.now.Sub(m.heard) > 3*time.Second
				switch m.word {
				case handshake.HeldZero:
				case handshake.Held:
					want = want && silent
				case handshake.Absent:
					want = want && !silent
				default:
					want = false
				}
			}
			if v := s.verdict(); v.Done != want {
				rt.Fatalf("done %v, want %v: %+v; waiting: %s", v.Done, want, all, v.Waiting)
			}
		}
	})
}
