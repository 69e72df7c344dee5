package balancers

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"lbdrain/internal/handshake"
)

// What a watcher or an acknowledgement can be refused for.
var (
	ErrStranger = errors.New("this address neither checks this pod nor lies in --lb-from")
	ErrBusy     = errors.New("the name belongs to another live watcher")
	ErrStale    = errors.New("the acknowledgement is for another drain")
	ErrFull     = errors.New("too many watchers")
)

// watcher is a balancer that names itself.
type watcher struct {
	name     string
	sources  []netip.Addr
	recalled []netip.Addr // of the state file: a balancer that holds the pod neither checks nor polls it
	interval time.Duration
	window   time.Duration // worst
	heard    time.Time

	conn    uint64 // of its watch, 0 without
	holding bool   // a GET of it is held
	sent    time.Time
	left    bool // took its leave

	gone  bool
	shown shown
}

// shown is what it has shown in this drain; the zero value is nothing.
type shown struct {
	word     handshake.Word
	missing  string
	at       time.Time      // of the newest acknowledgement
	held     time.Time      // first held, and not taken back
	zero     time.Time      // first held-zero, and not taken back
	last     handshake.Word // as the log has it
	silent   time.Time      // since when it is unknown
	oldKnown bool           // sessions of old workers were counted
}

func (w *watcher) covers(a netip.Addr) bool { return slices.Contains(w.sources, a) }

// owns says whether the asker is this watcher's, by name or by address.
func (w *watcher) owns(s *source) bool {
	if s.named {
		return s.key == w.name
	}
	return w.covers(s.addr)
}

func (w *watcher) emptied() bool { return w.shown.word == handshake.HeldZero }

func (w *watcher) defers() bool { return w.shown.word == handshake.Deferred }

// expired says whether its newest acknowledgement is older than three intervals.
func (w *watcher) expired(at time.Time) bool { return at.Sub(w.shown.at) > 3*w.interval }

// watching says whether it has a live watch: a connection with a held GET, or a
// sign of life within three intervals. A black-holed connection stays open, but
// after its held GET was answered no next one comes.
func (w *watcher) watching(at time.Time) bool {
	return w.conn != 0 && (w.holding || at.Sub(w.sent) <= 3*w.interval)
}

// lastSign is its last sign of life that counts in this phase. A GET that was
// held when the drain began is answered then.
func (w *watcher) lastSign(p Phase) time.Time {
	if w.conn != 0 && w.sent.Before(p.Since) {
		return p.Since
	}
	return w.sent
}

// speaks says whether it has been heard within three intervals in this drain,
// however alive its connection looks (E1).
func (w *watcher) speaks(p Phase, at time.Time) bool {
	return !w.left && at.Sub(w.lastSign(p)) <= 3*w.interval
}

// watcher finds or makes the entry.
func (t *Table) watcher(name string) *watcher {
	w := t.watchers[name]
	if w == nil {
		w = &watcher{name: name, interval: defaultInterval}
		t.watchers[name] = w
	}
	return w
}

// allowed says whether a name and acknowledgements are taken from the peer.
func (t *Table) allowed(p Peer) bool {
	if p.Trusted || t.named(p.Addr) {
		return true
	}
	for _, w := range t.watchers {
		// A connection that was let in stays so, whoever else has asked since:
		// a balancer that holds the pod neither checks nor polls it.
		if slices.Contains(w.recalled, p.Addr) || w.conn != 0 && w.conn == p.Conn {
			return true
		}
	}
	s := t.sources[p.Addr.String()]
	return s != nil && s.inside && s.asked > 0
}

// claim binds the name to the peer's connection.
func (t *Table) claim(name string, p Peer, at time.Time) (*watcher, error) {
	if !t.allowed(p) {
		return nil, ErrStranger
	}
	w := t.watchers[name]
	if w != nil && w.conn != 0 && w.conn != p.Conn && t.live(w, at) {
		return nil, ErrBusy
	}
	if w == nil && len(t.watchers) >= maxWatchers && !t.forgetWatcher(at) {
		return nil, ErrFull
	}
	w = t.watcher(name)
	if w.conn != p.Conn {
		t.event("watch", name, "from "+p.Addr.String())
		w.holding = false
	}
	w.conn, w.sent, w.heard, w.left, w.gone = p.Conn, at, at, false, false
	w.cover(p.Addr)
	return w, nil
}

func (w *watcher) cover(a netip.Addr) {
	if a.IsValid() && !w.covers(a) {
		w.sources = append(w.sources, a)
	}
}

// live is watching, by the stricter rule of a drain while one is under way.
func (t *Table) live(w *watcher, at time.Time) bool {
	if t.phase.Drain != (handshake.DrainID{}) {
		return w.conn != 0 && w.speaks(t.phase, at)
	}
	return w.watching(at)
}

func (t *Table) forgetWatcher(at time.Time) bool {
	for name, w := range t.watchers {
		if !t.live(w, at) && w.shown.word == "" {
			delete(t.watchers, name)
			return true
		}
	}
	return false
}

// Watch registers GET /drain/status?lb=NAME on the peer's connection, until
// [Table.Watched] when it has been answered. ErrStranger means that the name does
// not count; the answer itself is public.
func (t *Table) Watch(name string, p Peer, at time.Time) error {
	p.Addr = p.Addr.Unmap()
	w, err := t.claim(name, p, at)
	if err == nil {
		w.holding = true
	}
	return err
}

// Watched says that the GET has been answered: silence counts from here.
func (t *Table) Watched(name string, p Peer, at time.Time) {
	if w := t.watchers[name]; w != nil && w.conn == p.Conn {
		w.holding, w.sent = false, at
	}
}

// Ack takes an acknowledgement. The word is what it amounts to now.
func (t *Table) Ack(name string, p Peer, a handshake.Ack, at time.Time) (handshake.Word, error) {
	p.Addr = p.Addr.Unmap()
	if !t.allowed(p) {
		return "", ErrStranger
	}
	if a.Drain != nil && *a.Drain != t.phase.Drain {
		return "", ErrStale
	}
	w, err := t.claim(name, p, at)
	if err != nil {
		return "", err
	}
	w.interval, w.window = a.Interval.Duration(), a.Window.Worst.Duration()
	w.sources = w.sources[:0:0]
	w.cover(p.Addr)
	for _, s := range a.Sources {
		if addr, err := netip.ParseAddr(s); err == nil {
			w.cover(addr.Unmap())
		}
	}
	if a.Drain == nil {
		return handshake.Watching, nil
	}
	word := a.Word()
	t.show(w, word, a, at)
	return word, nil
}

// show records the word. Less than before revokes what was there (R6).
func (t *Table) show(w *watcher, word handshake.Word, a handshake.Ack, at time.Time) {
	s := &w.shown
	holds := word == handshake.Held || word == handshake.HeldZero
	before := *s
	s.word, s.missing, s.at, s.silent = word, a.Missing(), at, time.Time{}
	s.oldKnown = oldKnown(a)
	switch {
	case !holds:
		s.held, s.zero = time.Time{}, time.Time{}
	case word == handshake.Held:
		s.zero = time.Time{}
	case s.zero.IsZero():
		s.zero = at
	}
	if holds && s.held.IsZero() {
		s.held = at
		t.event("held", w.name, s.missing)
	}
	switch {
	case word == handshake.HeldZero && before.zero.IsZero():
		t.event("held_zero", w.name, "")
	case !before.zero.IsZero() && s.zero.IsZero(), !before.held.IsZero() && s.held.IsZero():
		t.event("revoked", w.name, s.missing)
	}
	if word == handshake.Deferred && before.word != word {
		t.event("deferred", w.name, "the last usable server of a backend")
	}
}

func oldKnown(a handshake.Ack) bool {
	return !slices.ContainsFunc(a.Servers, func(f handshake.ServerFact) bool { return !f.OldSessions.Known })
}

// Leave is DELETE: a daemon that stops cleanly. From now on only polls count.
func (t *Table) Leave(name string, p Peer, at time.Time) error {
	p.Addr = p.Addr.Unmap()
	w := t.watchers[name]
	switch {
	case !t.allowed(p):
		return ErrStranger
	case w == nil:
		return nil
	case w.conn != 0 && w.conn != p.Conn && t.live(w, at):
		return ErrBusy
	}
	w.shown = shown{silent: at}
	w.left, w.conn, w.holding = true, 0, false
	t.event("watch_lost", name, "took its leave")
	return nil
}

// Hang says that a connection has ended. What was shown stays until it expires.
func (t *Table) Hang(conn uint64) {
	for _, w := range t.watchers {
		if conn != 0 && w.conn == conn {
			w.conn, w.holding = 0, false
			t.event("watch_lost", w.name, "its connection ended")
		}
	}
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
