package balancers

import (
	"net/http"
	"net/netip"
	"time"

	"lbdrain/fsm"
	"lbdrain/internal/handshake"
)

// Health is an answer to GET /health_check.html.
type Health struct {
	Code int
	Body string
}

// Check counts a request for the health page and says what it is answered. It
// must be called before the answer is written: one answer of 200 ends gone, and
// counted afterwards the pod could leave between the two. Healthy is what the
// probes say; it only matters in OPEN.
func (t *Table) Check(from netip.Addr, healthy bool, at time.Time) Health {
	from = from.Unmap()
	s := t.hear(from.String(), from, false, at)
	if s != nil {
		s.checks.add(at)
	}
	h := t.HealthFor(from, healthy)
	if s != nil && h.Code == http.StatusNotFound {
		s.notFound = push(s.notFound, at)
	}
	return h
}

// HealthFor is the answer without counting it.
func (t *Table) HealthFor(from netip.Addr, healthy bool) Health {
	sig := t.phase.State.Signals()
	switch t.phase.State {
	case fsm.Open:
		if !healthy {
			return Health{http.StatusServiceUnavailable, "PROBE"}
		}
	case fsm.Draining:
		if t.cfg.NotFound {
			return Health{http.StatusNotFound, "DRAIN"}
		}
	case fsm.Closing, fsm.Closed:
		// A 503 cuts what HAProxy still has; behind a NodePort that can be
		// another pod's requests. A 404 once said must stay: 200 would bring
		// the server back from NOLB.
		if t.phase.Cut || t.allHeldZero(from) {
			break
		}
		if t.cfg.NotFound {
			return Health{http.StatusNotFound, "DRAIN"}
		}
		return Health{http.StatusOK, "OK"}
	}
	return Health{sig.Health, sig.HealthBody}
}

// allHeldZero says whether the address is covered, and every watcher that
// covers it has acknowledged held-zero and not taken it back.
func (t *Table) allHeldZero(from netip.Addr) bool {
	covered := false
	for _, w := range t.watchers {
		if !w.covers(from) {
			continue
		}
		if covered = w.emptied(); !covered {
			return false
		}
	}
	return covered
}

// Answer is what an agent-check poll is told. Counted must be given back to
// [Table.Answered] once the word has been written.
type Answer struct {
	Word  string
	key   string
	drain handshake.DrainID // in which the word was drain
}

// Poll counts an agent-check poll and says the word. Name is what agent-send
// gave as lb=NAME, or "".
func (t *Table) Poll(from netip.Addr, name string, at time.Time) Answer {
	from = from.Unmap()
	key, named := name, name != "" && t.inside(from)
	if !named {
		key = from.String()
	}
	s := t.hear(key, from, named, at)
	if s == nil {
		return Answer{Word: t.plainWord()}
	}
	if s.polls.overdue(at) {
		s.drains = nil
	}
	s.polls.add(at)
	a := Answer{Word: t.word(s, at), key: s.key}
	if a.Word == "drain" {
		a.drain = t.phase.Drain
	}
	return a
}

// Answered says that the word has been written: only then is it evidence, and
// only in the drain in which it was said.
func (t *Table) Answered(a Answer, at time.Time) {
	s := t.sources[a.key]
	if s == nil || a.drain != t.phase.Drain || a.drain == (handshake.DrainID{}) {
		return
	}
	s.drains = push(s.drains, at)
}

// push appends. At the limit it forgets the oldest but those that complete the
// evidence: the wait after it must not begin again with every further poll.
func push(ts []time.Time, at time.Time) []time.Time {
	const enough = makes * maxPollers
	if len(ts) == maxDrains {
		ts = append(ts[:enough], ts[enough+1:]...)
	}
	return append(ts, at)
}

// after are those later than since.
func after(ts []time.Time, since time.Time) []time.Time {
	for i, t := range ts {
		if t.After(since) {
			return ts[i:]
		}
	}
	return nil
}

// maxDrains is more than three polls of each of the servers one source polls for.
const maxDrains = 4 * makes * maxPollers

// plainWord is what a peer hears of which nothing is known.
func (t *Table) plainWord() string {
	if t.phase.State == fsm.Closed && t.phase.Cut {
		return "down"
	}
	return t.phase.State.Signals().Word
}

func (t *Table) word(s *source, at time.Time) string {
	switch t.phase.State {
	case fsm.Open:
		// ready is an edge: it lifts the DRAIN that a dead predecessor left,
		// and said for ever it would cancel an operator's (the admin bits are
		// shared, the last writer wins).
		if s.returned.IsZero() {
			s.returned = at
		}
		if s.readySaid < makes || at.Sub(s.returned) < t.cfg.ReturnWindow {
			s.readySaid++
			return "up ready"
		}
	case fsm.Draining:
		if t.withheld(s, at) {
			return "up"
		}
	}
	return t.plainWord()
}

// withheld: the lbctl of a watched balancer holds the server within
// milliseconds, so its pollers are told `up` for up to one interval; and while
// it defers, because this is the last usable server, until patience ends (R16).
func (t *Table) withheld(s *source, at time.Time) bool {
	for _, w := range t.watchers {
		if !w.owns(s) || !at.Before(t.phase.Patience) || !w.speaks(t.phase, at) {
			continue
		}
		if w.shown.word == "" && at.Sub(t.phase.Since) < w.interval || w.defers() {
			return true
		}
	}
	return false
}

// hear counts a request. From CLOSING on it neither makes a balancer nor brings
// back one that is gone: such an answer is no evidence that traffic returns, and
// counting it would hold a pod that nobody can show anything to any more.
func (t *Table) hear(key string, from netip.Addr, named bool, at time.Time) *source {
	early := t.phase.State == fsm.Open || t.phase.State == fsm.Draining
	s := t.sources[key]
	switch {
	case s == nil && !early:
		return nil
	case s == nil:
		if s = t.source(key, from, named, at); s == nil {
			return nil
		}
	case s.gone && !early:
		return nil
	}
	s.gone, s.heard, s.addr, s.inside = false, at, from, t.inside(from)
	if s.asked < makes {
		if s.asked++; s.balancer() && !t.covered(s) {
			t.event("balancer_new", s.key, "asked "+plural(makes, "time"))
		}
	}
	return s
}

func (t *Table) covered(s *source) bool {
	for _, w := range t.watchers {
		if w.owns(s) {
			return true
		}
	}
	return false
}
