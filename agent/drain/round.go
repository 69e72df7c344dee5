package drain

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"lbdrain/agent/balancers"
	"lbdrain/fsm"
	"lbdrain/internal/handshake"
)

const (
	pollEvery   = 50 * time.Millisecond // sources during a drain, at the least
	pollShare   = 20                    // reads take at most 1/20 of the time
	pollFailed  = 25 * time.Millisecond // what one that failed counts for at most
	pollIdle    = 2 * time.Second       // without a deadline: for people who look, and to know the sources
	readLimit   = 2 * time.Second
	envoyGone   = 3 * time.Second // refused for so long
	logInFlight = time.Second     // at most one line of change so often
)

// round is one reading of everything outside, all at the same time.
type round struct {
	began, ended time.Time
	names        []string
	readings     []Reading
	sockets      balancers.Sockets

	// Added by the judgement.
	waiting string
	held    bool
	gone    bool // Envoy is
}

// wanted says whether anybody needs another reading.
func (p *Pod) wanted() bool {
	switch p.machine.State() {
	case fsm.Open:
		return true // a source must have seen what it counts before zero means anything
	case fsm.Draining, fsm.Closing, fsm.Closed:
		o := p.course.outcome
		return o == "" || o == TimedOut
	}
	return false
}

// startRound reads everything beside the loop, one round at a time.
func (p *Pod) startRound(ctx context.Context, now time.Time) {
	k := &p.course
	if k.reading || !p.wanted() || now.Before(k.next) {
		return
	}
	p.mu.Lock()
	look := p.cfg.Sockets != nil && (p.table.Silent(now) || !k.refused.IsZero())
	p.mu.Unlock()
	sources := p.cfg.Sources
	if k.unreported && p.cfg.Sending != nil {
		sources = append(slices.Clip(sources), p.cfg.Sending)
	}
	k.reading = true
	go func() { p.read <- p.readAll(ctx, sources, look) }()
}

func (p *Pod) readAll(ctx context.Context, sources []Source, look bool) round {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	r := round{began: time.Now(), readings: make([]Reading, len(sources))}
	done := make(chan struct{}, len(sources))
	for i, s := range sources {
		r.names = append(r.names, s.Name())
		go func() {
			r.readings[i] = s.Read(ctx)
			r.readings[i].sending = i >= len(p.cfg.Sources)
			done <- struct{}{}
		}()
	}
	if look {
		from, err := p.cfg.Sockets()
		r.sockets = balancers.Sockets{From: from, Known: err == nil}
	}
	for range sources {
		<-done
	}
	r.ended = time.Now()
	return r
}

// take judges a reading and plans the next.
func (p *Pod) take(r round) {
	k := &p.course
	k.reading = false
	if !p.wanted() {
		return
	}
	now := time.Now()
	p.decide(now, &r)
	if p.machine.State() != fsm.Open {
		p.report(now, r)
	}
	// What a read costs is an average: one that was slow because the machine was
	// busy must not make the pod blind for the next second. A peer that hangs does
	// no work for it: after half a minute of that the pod would be blind for another.
	spent := r.ended.Sub(r.began)
	if slices.ContainsFunc(r.readings, func(x Reading) bool { return !x.Count.Known }) {
		spent = min(spent, pollFailed)
	}
	p.cost += (spent - p.cost) / 8
	next := r.ended.Add(max(pollEvery, (pollShare-1)*p.cost))
	if !k.finish {
		next = r.ended.Add(max(pollIdle, next.Sub(r.ended)))
	}
	if due := k.quiet.Add(p.quietWanted()); !k.quiet.IsZero() && r.began.Before(due) && due.Before(next) {
		next = due // also where it passed while this reading was under way
	}
	if k.again || k.moved.After(r.began) {
		next = now
	}
	k.again, k.next = false, next
	p.publish()
}

// settle keeps since when nothing has been in flight. The caller holds the lock.
func (p *Pod) settle(r *round, v balancers.Verdict) {
	k := &p.course
	p.goneEnvoy(r)
	zero := len(p.cfg.Sources) > 0 || v.Acked
	k.unreported = v.Unreported && p.machine.State() != fsm.Open
	if k.unreported && p.cfg.Sending != nil && len(r.readings) == len(p.cfg.Sources) {
		zero, k.again = false, true // it was not asked for this time
	}
	for _, x := range r.readings {
		zero = zero && (x.Count.Zero() || x.sending && !v.Unreported)
		if x.Restarted {
			k.quiet = time.Time{}
			k.drained = false
		}
	}
	switch {
	case !zero:
		k.quiet = time.Time{}
	case k.quiet.IsZero():
		k.quiet = r.ended
	}
}

// goneEnvoy: an Envoy that refuses for three seconds while no connection is left
// on the data port is gone, and nothing is in flight. Before that, or where
// nobody can look at the port, it is unknown.
func (p *Pod) goneEnvoy(r *round) {
	k := &p.course
	refused := slices.ContainsFunc(r.readings, func(x Reading) bool { return x.Envoy && x.Refused })
	switch {
	case !refused:
		k.refused = time.Time{}
		return
	case k.refused.IsZero():
		k.refused = r.began
	}
	if r.began.Sub(k.refused) < envoyGone || !r.sockets.Known || len(r.sockets.From) > 0 {
		return
	}
	for i := range r.readings {
		x := &r.readings[i]
		if x.sending {
			x.Count, x.Note = handshake.Known(0), ""
		}
		if x.Envoy && x.Refused {
			x.Count, x.Upgrades, r.gone = handshake.Known(0), handshake.Known(0), true
			x.Note = "gone: refuses, and no connection is left on the data port"
		}
	}
}

// quietAfterDeadline says whether all sources have been zero for Quiet: then
// nobody needs the answers of an agent that holds on past its deadline.
func (p *Pod) quietAfterDeadline() bool {
	k := &p.course
	return len(p.cfg.Sources) > 0 && len(k.last.readings) > 0 && !k.quiet.IsZero() && k.last.began.Sub(k.quiet) >= p.cfg.Quiet
}

func (r round) counts() map[string]handshake.Count {
	m := map[string]handshake.Count{}
	for i, x := range r.readings {
		m[r.names[i]] = x.Count
	}
	return m
}

func (r round) upgrades() handshake.Count {
	var sum handshake.Count
	for _, x := range r.readings {
		if x.Envoy && x.Upgrades.Known {
			sum = handshake.Known(sum.N + x.Upgrades.N)
		}
	}
	return sum
}

func (r round) details() string { return r.texts(func(x Reading) string { return x.Detail }) }

func (r round) notes() string { return r.texts(func(x Reading) string { return x.Note }) }

// texts are what the sources say, each with its name.
func (r round) texts(of func(Reading) string) string {
	var ts []string
	for i, x := range r.readings {
		if text := of(x); text != "" {
			ts = append(ts, r.names[i]+": "+text)
		}
	}
	return strings.Join(ts, "; ")
}

// logged is what the log last said of a source.
type logged struct {
	count handshake.Count
	note  string
	at    time.Time
}

// report logs what is in flight when it changes: at most one line a second for
// each source, but at once when it becomes zero or unknown, or ceases to be.
func (p *Pod) report(now time.Time, r round) {
	k := &p.course
	if k.logged == nil {
		k.logged = map[string]logged{}
	}
	old := maps.Clone(k.logged)
	for i, x := range r.readings {
		name := r.names[i]
		was, seen := old[name]
		edge := !seen || was.count.Known != x.Count.Known || was.count.Zero() != x.Count.Zero() || was.note != x.Note
		if !edge && (was.count == x.Count || now.Sub(was.at) < logInFlight) {
			continue
		}
		k.logged[name] = logged{x.Count, x.Note, now}
		event := "in_flight"
		if x.Envoy {
			event = "envoy_active_count"
		}
		e := p.cfg.Log.Info().Str("event", event).Str("source", name).Interface("count", x.Count)
		if x.Upgrades.Known {
			e.Interface("upgrades", x.Upgrades)
		}
		for key, text := range map[string]string{"note": x.Note, "detail": x.Detail} {
			if text != "" {
				e.Str(key, text)
			}
		}
		e.Send()
	}
}

// wake is when the loop has something to do even if nobody calls.
func (p *Pod) wake(now time.Time) time.Time {
	k := &p.course
	at := now.Add(time.Second) // the state file's list of balancers
	for _, t := range []time.Time{k.rejoinBy, k.closeAt, k.waiterBy} {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	if k.finish && !k.passed && k.outcome == "" {
		for _, t := range []time.Time{k.deadline, k.half} {
			if t.After(now) && t.Before(at) {
				at = t
			}
		}
	}
	if !k.reading && p.wanted() && k.next.Before(at) {
		at = k.next
	}
	return at
}
