package drain

import (
	"time"

	"lbdrain/agent/balancers"
	"lbdrain/fsm"
)

// clock does what time alone brings: the deadline, a recalled drain that nobody
// joins, CLOSED after a passed deadline.
func (p *Pod) clock(now time.Time) {
	k := &p.course
	if !k.rejoinBy.IsZero() && !now.Before(k.rejoinBy) {
		k.rejoinBy = time.Time{}
		p.cfg.Log.Info().Str("event", "rejoin").Bool("joined", false).Str("detail", "only the container was restarted: nobody is deleting the pod").Send()
		_ = p.reopen(now, command{what: Reopen, reason: "nobody joined the drain of the process before"})
		return
	}
	if k.finish && k.outcome == "" && !k.passed && !now.Before(k.deadline) {
		p.pass(now)
	}
	if !k.closeAt.IsZero() && !now.Before(k.closeAt) {
		k.closeAt = time.Time{}
		_ = p.step(now, fsm.Close, command{what: Close, reason: "deadline passed"})
		p.end(TimedOut)
	}
	if !k.waiterBy.IsZero() && !now.Before(k.waiterBy) {
		p.noWaiter()
	}
}

// pass is the deadline. Holding leaves everything as it is, so that nobody cuts
// what the data container may still finish within its grace; closing goes on as
// a hook with a fixed wait would.
func (p *Pod) pass(now time.Time) {
	k := &p.course
	k.passed = true
	e := p.cfg.Log.Warn().Str("event", "deadline").Str("state", p.machine.State().String()).Str("on_deadline", p.onDeadline())
	e.Interface("in_flight", k.last.counts()).Str("detail", k.last.details()).Str("unknown", k.last.notes()).
		Str("waiting", k.last.waiting).Send()
	if !p.cfg.CloseLate {
		p.receipt(now, TimedOut)
		p.end(TimedOut)
		return
	}
	k.cut = true
	if p.machine.State() == fsm.Draining {
		_ = p.step(now, fsm.CloseLB, command{what: CloseLB, reason: "deadline passed"})
	}
	p.enter()
	p.receipt(now, TimedOut)
	if k.closeAt = now.Add(p.cfg.Buffer); p.machine.State() == fsm.Closed {
		k.closeAt = time.Time{}
		p.end(TimedOut)
	}
}

func (p *Pod) onDeadline() string {
	if p.cfg.CloseLate {
		return "close"
	}
	return "hold"
}

// noWaiter: nobody hangs on /drain/wait, so the data container may have been
// ended already (with hostNetwork the kubelet finds no address for an httpGet
// hook).
func (p *Pod) noWaiter() {
	p.course.waiterBy = time.Time{}
	if !p.came.Load() {
		p.cfg.Log.Warn().Str("event", "waiter_none").
			Str("detail", "a drain began and nobody came to /drain/wait: the data container may end before it").Send()
	}
}

// decide is the one condition, on a reading and the balancers at this moment.
// The step is made under the same lock as the judgement: a request counted
// before it is part of the judgement, one counted later is answered by the new
// state.
func (p *Pod) decide(now time.Time, r *round) {
	k := &p.course
	p.mu.Lock()
	v := p.table.Judge(now, r.sockets)
	p.settle(r, v)
	r.waiting, r.held = v.Waiting, v.Held
	k.last = *r
	var tr fsm.Transition
	ev, ready := p.ready(now, r, v)
	var err error
	if ready && ev != 0 {
		if tr, err = p.machine.Step(fsm.Input{At: now, Event: ev, Reason: reasons[ev]}); err == nil {
			p.moved(tr)
		}
	}
	p.mu.Unlock()
	p.tell()
	switch {
	case !ready || err != nil:
	case ev == 0:
		p.receipt(now, Drained)
		p.end(Drained)
	default:
		p.after(tr)
	}
}

var reasons = map[fsm.Event]string{
	fsm.CloseLB: "nothing in flight, evidence from every balancer",
	fsm.Close:   "checked again in CLOSING",
}

// ready says whether the condition holds, and which move follows: CLOSING, then
// CLOSED, then the end (no move).
func (p *Pod) ready(now time.Time, r *round, v balancers.Verdict) (fsm.Event, bool) {
	k := &p.course
	k.polled = v.Polled
	held := !k.quiet.IsZero() && r.began.Sub(k.quiet) >= p.quietWanted()
	fresh := !r.began.Before(k.moved)
	if !k.finish || k.outcome != "" || k.passed || !v.Done || !held || !fresh || now.Sub(k.since) < p.cfg.MinDrain {
		return 0, false
	}
	switch p.machine.State() {
	case fsm.Draining:
		return fsm.CloseLB, true
	case fsm.Closing:
		return fsm.Close, true
	}
	return 0, true
}

// quietWanted is how long nothing in flight must hold. Polls show that nothing
// new comes; a request on its way needs at most a connect time more.
func (p *Pod) quietWanted() time.Duration {
	if p.course.polled {
		return max(p.cfg.Quiet, p.cfg.QuietPolled)
	}
	return p.cfg.Quiet
}
