package balancers

import (
	"net/netip"
	"testing"
	"time"

	"lbdrain/fsm"
	"lbdrain/internal/handshake"
)

// sim drives a table through time. Durations passed to its methods move the
// clock; nothing else does.
type sim struct {
	*Table
	t     *testing.T
	now   time.Time
	seq   uint64
	socks Sockets
}

const (
	lb1, lb2 = "203.0.113.211", "203.0.113.210"
	timeout  = 120 * time.Second
)

func defaults() Config {
	return Config{Learn: 6 * time.Second, QuietPolled: time.Second, ReturnWindow: 10 * time.Second}
}

func newSim(t *testing.T, c Config) *sim {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	return &sim{Table: New(c, now), t: t, now: now}
}

func (s *sim) pass(d time.Duration) { s.now = s.now.Add(d) }

func (s *sim) poll(from string) string { return s.named(from, "") }

func (s *sim) named(from, name string) string {
	a := s.Poll(netip.MustParseAddr(from), name, s.now)
	s.Answered(a, s.now)
	return a.Word
}

// polls is n polls, one every inter; the clock ends at the last.
func (s *sim) polls(from string, n int, inter time.Duration) (words []string) {
	for range n {
		s.pass(inter)
		words = append(words, s.poll(from))
	}
	return words
}

func (s *sim) check(from string) int {
	return s.Check(netip.MustParseAddr(from), true, s.now).Code
}

func (s *sim) id() handshake.DrainID { return handshake.DrainID{Instance: "pod", Seq: s.seq} }

func (s *sim) drain() {
	s.seq++
	s.Enter(Phase{State: fsm.Draining, Drain: s.id(), Since: s.now, Patience: s.now.Add(timeout / 2)})
}

func (s *sim) state(st fsm.State, cut bool) {
	p := s.phase
	p.State, p.Cut = st, cut
	if st == fsm.Open {
		p = Phase{State: st}
	}
	s.Enter(p)
}

func peer(from string, conn uint64) Peer {
	return Peer{Addr: netip.MustParseAddr(from), Conn: conn}
}

func (s *sim) watch(name, from string, conn uint64) {
	s.t.Helper()
	if err := s.Watch(name, peer(from, conn), s.now); err != nil {
		s.t.Fatalf("watch %s: %v", name, err)
	}
}

// ack says the word by facts.
func (s *sim) ack(name, from string, conn uint64, word handshake.Word) {
	s.t.Helper()
	got, err := s.Ack(name, peer(from, conn), s.facts(word), s.now)
	if err != nil || got != word {
		s.t.Fatalf("ack %s by %s: %v, %v", word, name, got, err)
	}
}

func (s *sim) facts(word handshake.Word) handshake.Ack {
	id := s.id()
	f := handshake.ServerFact{
		Backend: "be", Server: "w1", Admin: handshake.AdminDrain, AgentOff: true, HealthOff: true,
		Sessions: handshake.Known(0), Queued: handshake.Known(0), ZeroReads: 2, OldSessions: handshake.Known(0),
	}
	switch word {
	case handshake.Held:
		f.Sessions, f.ZeroReads = handshake.Known(3), 0
	case handshake.Watching:
		f.Admin, f.AgentOff = 0, false
	}
	return handshake.Ack{
		Version: 1, Drain: &id, Interval: handshake.Millis(time.Second), Servers: []handshake.ServerFact{f},
		Window:   handshake.Window{Worst: handshake.Millis(4 * time.Second)},
		Deferred: word == handshake.Deferred, HAProxy: handshake.Process{Pid: 1, Present: word != handshake.Absent},
	}
}

func (s *sim) verdict() Verdict { return s.Judge(s.now, s.socks) }

// evidence is what the status shows of one balancer.
func (s *sim) evidence(name string) handshake.LB {
	for _, lb := range s.verdict().LBs {
		if lb.LB == name {
			return lb
		}
	}
	return handshake.LB{}
}

func (s *sim) want(done bool, name string, word handshake.Word, missing string) {
	s.t.Helper()
	v, lb := s.verdict(), s.evidence(name)
	if v.Done != done || lb.Evidence != word || lb.Missing != missing {
		s.t.Errorf("done %v, %s %q missing %q; want done %v, %q missing %q (waiting: %s)",
			v.Done, name, lb.Evidence, lb.Missing, done, word, missing, v.Waiting)
	}
}
