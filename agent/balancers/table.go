package balancers

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"lbdrain/fsm"
	"lbdrain/internal/handshake"
)

// Bounds. A balancer asks every few hundred milliseconds from a handful of
// addresses; whatever does not fit is a stranger and is only answered.
const (
	maxSources  = 1024
	maxWatchers = 256
	makes       = 3 // requests that make an address a balancer, and polls that are evidence

	// GoneAfter is the silence after which a balancer may be gone; twice its
	// detection window where that is longer.
	GoneAfter = 60 * time.Second

	defaultInterval = time.Second     // lbctl's, until its greeting says otherwise
	defaultInter    = 2 * time.Second // HAProxy's agent-inter where none is set (proxy.c, defsrv.agent.inter)
)

// Config holds what the command line decides. All durations are at least 0.
type Config struct {
	Learn        time.Duration  // silence proves nothing for so long after the start; at least 3 agent-inters
	QuietPolled  time.Duration  // wait after the third poll
	ReturnWindow time.Duration  // `up ready` at least so long and 3 polls, per poller
	Buffer       time.Duration  // >0: enough for a balancer that can show nothing
	NotFound     bool           // DRAINING answers the health page with 404 (http-check disable-on-404)
	From         []netip.Prefix // only these are balancers; empty: anybody
}

// Phase is what the pod's state means for balancers.
type Phase struct {
	State fsm.State
	// Cut: a person or a passed deadline accepted that requests are cut; 503
	// and down are for everybody.
	Cut   bool
	Drain handshake.DrainID // zero in OPEN
	Since time.Time         // when the drain began
	// Patience ends deferrals: half of the time to the deadline.
	Patience time.Time
}

// Peer is who sends a request: an address (the zero Addr for a unix socket) and
// a connection. Trusted peers have shown the token or reach the control listener.
type Peer struct {
	Addr    netip.Addr
	Conn    uint64
	Trusted bool
}

// Event is something worth a log line; Name is one of the fixed event names.
type Event struct{ Name, LB, Detail string }

// Table is all that is known of the balancers. Not safe for concurrent use.
type Table struct {
	cfg      Config
	start    time.Time
	phase    Phase
	sources  map[string]*source
	watchers map[string]*watcher
	events   []Event
	socks    Sockets   // as last judged
	crowded  time.Time // somebody who may be a balancer found no place
}

// source is an address that asks, or the name it sends with agent-send.
type source struct {
	key    string
	addr   netip.Addr // where it last asked from
	first  netip.Addr // and where first, for the state file: it does not change at every poll
	named  bool
	inside bool // of --lb-from
	asked  int
	polls  rhythm
	checks rhythm
	heard  time.Time
	gone   bool

	returned  time.Time // its first poll after the start or reopen
	readySaid int

	drains   []time.Time    // polls answered drain in this drain, newest last
	notFound []time.Time    // health page answered 404 in this drain
	last     handshake.Word // as the log has it
}

func (s *source) balancer() bool { return s.inside && s.asked >= makes }

// New is an empty table of a process that started at start.
func New(c Config, start time.Time) *Table {
	return &Table{
		cfg: c, start: start, phase: Phase{State: fsm.Open},
		sources: map[string]*source{}, watchers: map[string]*watcher{},
	}
}

// Enter tells the table that the pod has moved. A drain of another id discards
// every acknowledgement and every counted poll of the one before (R1); OPEN
// opens the return window again.
func (t *Table) Enter(p Phase) {
	if p.Drain != t.phase.Drain || p.State == fsm.Open {
		for _, w := range t.watchers {
			w.shown = shown{}
		}
		for _, s := range t.sources {
			s.drains, s.notFound, s.last = nil, nil, ""
		}
	}
	if p.State == fsm.Open {
		for _, s := range t.sources {
			s.returned, s.readySaid = time.Time{}, 0
		}
	}
	t.phase = p
}

// Events hands out what has happened since the last call.
func (t *Table) Events() []Event {
	e := t.events
	t.events = nil
	return e
}

func (t *Table) event(name, lb, detail string) {
	t.events = append(t.events, Event{name, lb, detail})
}

// Known is a balancer as the state file remembers it: that it was heard, never
// what it acknowledged.
type Known struct {
	Name    string       `json:"name"`
	Watcher bool         `json:"watcher"`
	Sources []netip.Addr `json:"sources"`
}

// Known lists the balancers by name.
func (t *Table) Known() []Known {
	var ks []Known
	for _, w := range t.watchers {
		if !w.left {
			ks = append(ks, Known{w.name, true, slices.Clone(w.sources)})
		}
	}
	for _, s := range t.sources {
		if s.balancer() {
			ks = append(ks, Known{s.key, false, []netip.Addr{s.first}})
		}
	}
	slices.SortFunc(ks, func(a, b Known) int { return strings.Compare(a.Name, b.Name) })
	return ks
}

// Restore makes balancers of those an earlier process of this pod had heard.
// They count as heard at the start and have shown nothing.
func (t *Table) Restore(ks []Known) {
	for _, k := range ks {
		if len(k.Sources) == 0 {
			continue
		}
		if k.Watcher {
			w := t.watcher(k.Name)
			w.sources, w.recalled, w.heard = k.Sources, k.Sources, t.start
			continue
		}
		s := t.source(k.Name, k.Sources[0], k.Name != k.Sources[0].String(), t.start)
		if s != nil {
			s.asked, s.heard = makes, t.start
		}
	}
}

// source finds or makes the entry; nil when the table is full of balancers, which
// then proves nothing.
func (t *Table) source(key string, addr netip.Addr, named bool, at time.Time) *source {
	if s := t.sources[key]; s != nil {
		return s
	}
	if len(t.sources) >= maxSources && !t.forget() {
		if t.inside(addr) {
			t.crowded = at
		}
		return nil
	}
	s := &source{key: key, addr: addr, first: addr, named: named, inside: t.inside(addr)}
	t.sources[key] = s
	return s
}

// forget drops the stranger that was heard longest ago, or else the balancer that
// is gone: over weeks a balancer behind changing addresses leaves many of those.
func (t *Table) forget() bool {
	var oldest *source
	for _, s := range t.sources {
		switch {
		case s.balancer() && !s.gone:
		case oldest == nil, oldest.balancer() && !s.balancer(),
			oldest.balancer() == s.balancer() && s.heard.Before(oldest.heard):
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	delete(t.sources, oldest.key)
	return true
}

func (t *Table) inside(a netip.Addr) bool {
	return len(t.cfg.From) == 0 || t.named(a)
}

// named says whether the address lies in --lb-from.
func (t *Table) named(a netip.Addr) bool {
	return slices.ContainsFunc(t.cfg.From, func(p netip.Prefix) bool { return p.Contains(a) })
}
