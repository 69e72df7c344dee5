package drain

import (
	"context"
	"time"

	"lbdrain/agent/balancers"
	"lbdrain/fsm"
	"lbdrain/internal/handshake"
)

// course is the drain under way; the zero value is none.
type course struct {
	id       handshake.DrainID
	since    time.Time
	finish   bool
	deadline time.Time // zero: none
	rejoinBy time.Time // nobody has joined a recalled drain yet
	half     time.Time // deferrals end, Envoy is told at the latest
	passed   bool      // the deadline has
	outcome  Outcome
	ended    chan struct{}
	closeAt  time.Time // CLOSED after a passed deadline
	waiterBy time.Time // somebody should be at /drain/wait
	cut      bool

	reading bool // a round is out
	again   bool // and another is wanted at once
	// unreported: some balancer tells of no sessions in this drain.
	unreported bool
	next       time.Time
	last       round
	moved      time.Time // a reading must be newer
	quiet      time.Time // nothing in flight since; zero: something is
	polled     bool      // some evidence is polls
	refused    time.Time // Envoy has refused since
	stages     []stage

	telling context.CancelFunc // a call to Envoy is out
	refusal bool               // the call was refused for this drain
	drained bool               // Envoy was told

	logged map[string]logged
	termed bool // SIGTERM has come
}

// stage is what was in flight at a step, for the receipt.
type stage struct {
	state fsm.State
	count map[string]handshake.Count
}

// Run owns the machine until the context ends or the process may exit. The code
// is 0 drained, 1 fault, 3 deadline passed.
func (p *Pod) Run(ctx context.Context) int {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case c := <-p.cmds:
			c.done <- p.carryOut(ctx, c)
		case <-p.acks:
			p.course.next = time.Now()
			p.course.again = p.course.reading
		case r := <-p.read:
			p.take(r)
		case r := <-p.told:
			p.envoyTold(r)
		case <-timer.C:
		case <-ctx.Done():
			return 1
		}
		now := time.Now()
		p.clock(now)
		p.startRound(ctx, now)
		p.tellEnvoy(ctx, now)
		p.tell()
		p.remember()
		if code, ok := p.mayExit(); ok {
			p.cfg.Log.Info().Str("event", "exit").Int("code", code).Send()
			return code
		}
		timer.Reset(time.Until(p.wake(now)))
	}
}

// carryOut is a command, decided by the state alone.
func (p *Pod) carryOut(ctx context.Context, c command) error {
	now, state := time.Now(), p.machine.State()
	switch c.what {
	case Term:
		return p.term(now, c)
	case Drain:
		if state == fsm.Draining {
			p.stay()
			return nil
		}
		return p.begin(now, c, false)
	case Finish:
		return p.begin(now, c, true)
	case CloseLB, Close:
		return p.byHand(now, c)
	case Reopen:
		return p.reopen(now, c)
	case Break:
		if state == fsm.Fault {
			return nil
		}
		if err := p.step(now, fsm.Break, c); err != nil {
			return err
		}
		p.cfg.Log.Error().Str("event", "fault").Str("reason", c.reason).Send()
		p.stay()
		p.end(Broken)
		return nil
	}
	return &ErrState{c.what, state}
}

// begin starts a drain or joins the one under way.
func (p *Pod) begin(now time.Time, c command, finish bool) error {
	switch p.machine.State() {
	case fsm.Open:
		if err := p.step(now, fsm.Drain, c); err != nil {
			return err
		}
	case fsm.Fault:
		return &ErrState{c.what, fsm.Fault}
	case fsm.Closing, fsm.Closed:
		if !finish {
			return &ErrState{c.what, p.machine.State()}
		}
	}
	k := &p.course
	if !finish || k.finish {
		p.publish()
		return nil
	}
	k.finish = true
	if k.deadline.IsZero() || k.deadline.Before(now) {
		k.deadline = now.Add(p.cfg.Timeout)
	}
	k.rejoinBy = time.Time{}
	k.half = now.Add(k.deadline.Sub(now) / 2)
	k.waiterBy = now.Add(p.cfg.WaitStart)
	k.next = now
	p.enter()
	p.publish()
	return nil
}

// term: SIGTERM finishes what is there; a second one is only logged, because
// the agent outlives what it protects.
func (p *Pod) term(now time.Time, c command) error {
	p.cfg.Log.Info().Str("event", "sigterm").Bool("again", p.course.termed).Str("state", p.machine.State().String()).Send()
	p.course.termed = true
	if p.machine.State() == fsm.Fault {
		return nil
	}
	return p.begin(now, c, true)
}

// byHand moves on without evidence: a person accepted the cut. Saying it twice
// is no error.
func (p *Pod) byHand(now time.Time, c command) error {
	want, ev := fsm.Closing, fsm.CloseLB
	if c.what == Close {
		want, ev = fsm.Closed, fsm.Close
	}
	p.course.cut = p.course.cut || p.machine.State() == want
	if p.machine.State() != want {
		was := p.course.cut
		p.course.cut = true
		if err := p.step(now, ev, c); err != nil {
			p.course.cut = was
			return err
		}
	}
	p.stay()
	p.enter()
	if want == fsm.Closed {
		p.end(ByHand)
	}
	p.publish()
	return nil
}

// stay makes a recalled drain that waits for its caller a person's: somebody has
// decided, and nothing reopens it but a person.
func (p *Pod) stay() {
	k := &p.course
	if k.rejoinBy.IsZero() {
		return
	}
	k.rejoinBy, k.deadline = time.Time{}, time.Time{}
	p.publish()
}

func (p *Pod) reopen(now time.Time, c command) error {
	from := p.machine.State()
	if from == fsm.Open {
		return nil
	}
	if err := p.step(now, fsm.Reopen, c); err != nil {
		return err
	}
	p.cfg.Log.Info().Str("event", "reopened").Str("from", from.String()).Str("reason", c.reason).Send()
	return nil
}

// step moves the machine, and tells the table in the same breath.
func (p *Pod) step(now time.Time, ev fsm.Event, c command) error {
	p.mu.Lock()
	tr, err := p.machine.Step(fsm.Input{At: now, Event: ev, Reason: c.reason})
	if err == nil {
		p.moved(tr)
	}
	p.mu.Unlock()
	if err != nil {
		return &ErrState{c.what, p.machine.State()}
	}
	p.after(tr)
	return nil
}

// moved is what a transition changes; the caller holds the lock.
func (p *Pod) moved(tr fsm.Transition) {
	k := &p.course
	switch tr.To {
	case fsm.Draining:
		*k = course{
			id: handshake.DrainID{Instance: p.cfg.Instance, Seq: p.machine.Seq()}, since: tr.At,
			half: tr.At.Add(p.cfg.Timeout / 2), ended: make(chan struct{}), next: tr.At,
			reading: k.reading, termed: k.termed, drained: k.drained,
		}
		p.came.Store(false)
	case fsm.Open:
		p.stopTelling()
		p.end(Reopened)
		*k = course{reading: k.reading, termed: k.termed, drained: k.drained}
	}
	k.moved, k.next = tr.At, tr.At
	k.stages = append(k.stages, stage{tr.To, k.last.counts()})
	p.table.Enter(p.phase())
}

// after is the part of a transition that needs no lock.
func (p *Pod) after(tr fsm.Transition) {
	old := p.changed
	p.changed = make(chan struct{})
	p.publish() // before those who wait look
	close(old)
	p.cfg.Log.Info().Str("event", "transition").Str("from", tr.From.String()).Str("to", tr.To.String()).
		Str("reason", tr.Reason).Uint64("seq", p.machine.Seq()).Send()
}

// enter tells the table what has changed without a transition.
func (p *Pod) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.Enter(p.phase())
}

func (p *Pod) phase() balancers.Phase {
	k := p.course
	return balancers.Phase{State: p.machine.State(), Cut: k.cut, Drain: k.id, Since: k.since, Patience: k.half}
}

// end gives the drain its outcome, once.
func (p *Pod) end(o Outcome) {
	k := &p.course
	if k.ended == nil || k.outcome != "" {
		return
	}
	k.outcome = o
	p.publish() // before those who wait look
	close(k.ended)
}

// mayExit: only SIGTERM lets the process exit, and only when nobody needs its
// answers any more.
func (p *Pod) mayExit() (int, bool) {
	k := &p.course
	if !k.termed {
		return 0, false
	}
	state := p.machine.State()
	switch {
	case state == fsm.Fault:
		return 1, true
	case k.outcome == Drained, k.outcome == ByHand:
		return 0, true
	case k.outcome == TimedOut && state == fsm.Closed:
		return 3, true
	case k.outcome == TimedOut && !p.cfg.CloseLate && p.quietAfterDeadline():
		return 3, true
	}
	return 0, false
}

// publish gives readers a new snapshot.
func (p *Pod) publish() {
	p.view.Store(&View{
		Status: p.status(), State: p.machine.State(), Outcome: p.course.outcome, Waiting: p.course.last.waiting,
		Changed: p.changed, Ended: p.course.ended,
	})
}
