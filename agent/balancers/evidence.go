package balancers

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"lbdrain/internal/handshake"
)

// Sockets are the addresses that hold a connection on the data port, as read
// for this very question. Known is false where nobody could look.
type Sockets struct {
	From  []netip.Addr
	Known bool
}

// Verdict is what the balancers have shown, all of it at one moment.
type Verdict struct {
	// Done: evidence from every balancer.
	Done bool
	// Acked: every balancer acknowledges that it is empty, or is gone. Only
	// then may a pod without sources say that nothing is in flight.
	Acked bool
	// Polled: some evidence is polls, which shows that nothing new comes and
	// not that the last answer was delivered.
	Polled bool
	// Unreported: some balancer tells of no sessions, so that what it still
	// delivers is not known from it.
	Unreported bool
	// Held: none will send anything new, whether it is empty or not.
	Held bool
	// Waiting says what is missing when Done is false.
	Waiting string
	LBs     []handshake.LB
}

// Look is the verdict with the sockets as they were last judged, for people.
func (t *Table) Look(at time.Time) Verdict { return t.Judge(at, t.socks) }

// entry is the judgement on one balancer.
type entry struct {
	name    string
	word    handshake.Word
	missing string // "" is evidence
	polled  bool
	held    bool // sends nothing new
	sources []netip.Addr
	heard   time.Time
}

// Silent says whether some balancer could be gone, so that the data port's
// sockets are worth reading.
func (t *Table) Silent(at time.Time) bool {
	for _, w := range t.watchers {
		if t.silentWatcher(w, at) {
			return true
		}
	}
	for _, s := range t.sources {
		if s.balancer() && s.silent(at) {
			return true
		}
	}
	return false
}

// Judge says what every balancer has shown by now.
func (t *Table) Judge(at time.Time, socks Sockets) Verdict {
	t.socks = socks
	entries := t.entries(at, socks)
	v := Verdict{Acked: len(entries) > 0, Held: len(entries) > 0, LBs: []handshake.LB{}}
	var waiting []string
	for _, e := range entries {
		v.Polled = v.Polled || e.polled
		v.Held = v.Held && (e.held || e.missing == "")
		switch e.word {
		case handshake.HeldZero, handshake.Absent, handshake.Gone:
		case handshake.None, handshake.Polls, handshake.ExpiredHeld:
			v.Acked, v.Unreported = false, true
		default:
			v.Acked = false
		}
		if e.missing != "" {
			waiting = append(waiting, e.name+": "+e.missing)
		}
		v.LBs = append(v.LBs, e.lb())
	}
	if why := t.learning(at); why != "" {
		waiting = append(waiting, why)
	} else if len(entries) == 0 {
		if why := t.buffered("no balancer has been heard", at, t.phase.Since); why != "" {
			waiting = append(waiting, why)
		}
	}
	if !t.crowded.IsZero() && at.Sub(t.crowded) <= GoneAfter {
		v.Acked = false
		waiting = append(waiting, fmt.Sprintf("more than %d balancers ask, not all can be told apart (--lb-from says who may)", maxSources))
	}
	v.Waiting = strings.Join(waiting, "; ")
	v.Done = v.Waiting == ""
	return v
}

func (e entry) lb() handshake.LB {
	lb := handshake.LB{LB: e.name, Evidence: e.word, Missing: e.missing, Sources: []string{}, LastHeard: handshake.At(e.heard)}
	for _, a := range e.sources {
		lb.Sources = append(lb.Sources, a.String())
	}
	return lb
}

// learning: for a while after the start a balancer that nobody has heard of may
// exist, and is not concluded from (R2). At least three agent-inters.
func (t *Table) learning(at time.Time) string {
	learn := t.cfg.Learn
	for _, s := range t.sources {
		if !s.balancer() || len(s.polls.at) < makes {
			continue
		}
		// Somebody who connects now and then (a scanner, a person) is no agent
		// check, and must not make the pod learn for hours.
		if inter, _ := s.polls.period(); inter <= GoneAfter {
			learn = max(learn, 3*inter)
		}
	}
	if left := t.start.Add(learn).Sub(at); left > 0 {
		return fmt.Sprintf("still learning who the balancers are, for %s", left.Round(100*time.Millisecond))
	}
	return ""
}

// buffered is why, or "" where --lb-buffer says that waiting so long is enough.
func (t *Table) buffered(why string, at, since time.Time) string {
	if t.cfg.Buffer > 0 && at.Sub(since) >= t.cfg.Buffer {
		return ""
	}
	return why
}

func (t *Table) entries(at time.Time, socks Sockets) []entry {
	var es []entry
	for _, w := range t.watchers {
		es = append(es, t.judgeWatcher(w, at, socks))
	}
	for _, s := range t.sources {
		if s.balancer() && !t.covered(s) {
			e := entry{name: s.key, sources: []netip.Addr{s.addr}, heard: s.heard}
			if s.gone = s.silent(at) && noSocket(socks, e.sources); s.gone {
				e.word = handshake.Gone
			} else {
				t.judgePolls(&e, []*source{s}, at, t.phase.Since)
			}
			es = append(es, e)
		}
	}
	for _, e := range es {
		t.tell(e)
	}
	slices.SortFunc(es, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return es
}

// judgeWatcher is rule R3 as a function of what it last said and when.
func (t *Table) judgeWatcher(w *watcher, at time.Time, socks Sockets) entry {
	e := entry{name: w.name, word: handshake.Watching, sources: w.sources, heard: w.heard}
	draining := t.phase.Drain != (handshake.DrainID{})
	w.gone = t.silentWatcher(w, at) && noSocket(socks, w.sources)
	for _, s := range t.owned(w) {
		s.gone = w.gone
	}
	if w.gone {
		e.word = handshake.Gone
		return e
	}
	switch s := w.shown; {
	case !draining:
		if !w.watching(at) {
			e.word = handshake.None
		}
		return e
	case s.word != "" && !w.expired(at):
		e.word, e.held = s.word, !s.held.IsZero() || s.word == handshake.Absent
		switch s.word {
		case handshake.HeldZero, handshake.Absent:
		case handshake.Deferred:
			e.missing = "deferred: the last usable server of a backend"
		case handshake.Held:
			e.missing = orElse(s.missing, "not empty twice yet")
		default:
			e.missing = orElse(s.missing, "has not held")
		}
		return e
	case !s.held.IsZero():
		e.word, e.held = handshake.ExpiredHeld, true
		return e
	case s.word == "" && w.speaks(t.phase, at):
		e.missing = "watches, has not acknowledged"
		return e
	}
	t.judgePolls(&e, t.owned(w), at, t.unknownSince(w))
	return e
}

// unknownSince is when a watcher that never held fell silent: from then on its
// polls count.
func (t *Table) unknownSince(w *watcher) time.Time {
	s := &w.shown
	if s.silent.IsZero() {
		if s.silent = t.phase.Since; w.conn != 0 || !w.sent.Before(t.phase.Since) {
			s.silent = w.lastSign(t.phase).Add(3 * w.interval)
		}
	}
	if s.silent.Before(t.phase.Since) {
		return t.phase.Since
	}
	return s.silent
}

// owned are the askers that are this watcher's.
func (t *Table) owned(w *watcher) []*source {
	var ss []*source
	for _, s := range t.sources {
		if w.owns(s) && s.inside {
			ss = append(ss, s)
		}
	}
	return ss
}

// silentWatcher: neither it nor any of its askers has been heard for so long
// that a HAProxy which checks this pod has marked it DOWN (T3).
func (t *Table) silentWatcher(w *watcher, at time.Time) bool {
	limit := max(GoneAfter, 2*w.window)
	if t.live(w, at) || at.Sub(w.heard) <= limit {
		return false
	}
	for _, s := range t.owned(w) {
		if at.Sub(s.heard) <= limit {
			return false
		}
	}
	return true
}

// silent is the same of one that does not say its detection window: three of its
// checks, HAProxy's default fall. Checks rarer than GoneAfter are a person's.
func (s *source) silent(at time.Time) bool {
	limit := GoneAfter
	if len(s.checks.at) >= makes {
		if inter, _ := s.checks.period(); inter <= GoneAfter {
			limit = max(limit, 2*3*inter)
		}
	}
	return at.Sub(s.heard) > limit
}

func noSocket(socks Sockets, addrs []netip.Addr) bool {
	return socks.Known && !slices.ContainsFunc(addrs, func(a netip.Addr) bool {
		return slices.Contains(socks.From, a)
	})
}

// judgePolls wants evidence from every asker that could give some, and from one
// at least.
func (t *Table) judgePolls(e *entry, ss []*source, at, since time.Time) {
	e.word = handshake.None
	if t.phase.Drain == (handshake.DrainID{}) {
		return
	}
	var missing []string
	shown := 0
	for _, s := range ss {
		switch why, can := t.polled(s, at, since); {
		case !can:
		case why == "":
			shown++
		default:
			missing = append(missing, why)
		}
	}
	switch {
	case len(missing) > 0:
		e.missing = strings.Join(missing, "; ")
	case shown > 0:
		e.word, e.polled, e.held = handshake.Polls, true, true
	default:
		e.missing = t.buffered("no evidence possible: neither agent-check nor lbctl", at, since)
		e.polled = e.missing == ""
	}
}

// polled says what the asker's polls still lack as evidence; can is false for one
// that never polled and so cannot give any.
func (t *Table) polled(s *source, at, since time.Time) (why string, can bool) {
	if missed := after(s.notFound, since); len(missed) > 0 && !s.checks.overdue(at) {
		return t.settled(missed[0], at), true
	}
	if len(s.polls.at) == 0 {
		return "no 404 answered yet", t.cfg.NotFound
	}
	_, pollers := s.polls.period()
	want := makes * pollers
	var counted []time.Time
	if !s.polls.overdue(at) {
		counted = after(s.drains, since)
	}
	if len(counted) < want {
		return fmt.Sprintf("%d of %d polls answered drain", len(counted), want), true
	}
	from := counted[want-1]
	if slow := since.Add(s.polls.rest() * 3 / 2); slow.After(from) { // the rare one has been told too
		from = slow
	}
	return t.settled(from, at), true
}

// settled: the wait after the last poll that was needed.
func (t *Table) settled(from, at time.Time) string {
	if left := from.Add(t.cfg.QuietPolled).Sub(at); left > 0 {
		return fmt.Sprintf("polled, quiet for %s more", left.Round(10*time.Millisecond))
	}
	return ""
}

// tell makes a log event of evidence that time brought, not a message.
func (t *Table) tell(e entry) {
	w := t.watchers[e.name]
	var last *handshake.Word
	if w != nil {
		last = &w.shown.last
	} else {
		last = &t.sources[e.name].last
	}
	if *last == e.word {
		return
	}
	switch *last = e.word; e.word {
	case handshake.ExpiredHeld:
		t.event("expired", e.name, "held, silent since")
	case handshake.Gone:
		t.event("gone", e.name, "no check, no poll, no socket on the data port")
	case handshake.Polls:
		t.event("polls", e.name, "nothing new comes; that the last answer was delivered is not shown")
	}
}

// Receipt is one balancer's line of the drain receipt.
type Receipt struct {
	LB             string
	Held, HeldZero time.Time
	OldUnknown     bool // sessions of old workers could not be counted
}

// Receipts lists what the watchers have acknowledged and when.
func (t *Table) Receipts() []Receipt {
	var rs []Receipt
	for _, w := range t.watchers {
		rs = append(rs, Receipt{w.name, w.shown.held, w.shown.zero, w.shown.word != "" && !w.shown.oldKnown})
	}
	slices.SortFunc(rs, func(a, b Receipt) int { return strings.Compare(a.LB, b.LB) })
	return rs
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
