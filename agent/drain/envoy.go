package drain

import (
	"context"
	"time"

	"lbdrain/fsm"
	"lbdrain/internal/handshake"
)

const (
	envoyCall  = 2 * time.Second // each admin call's own limit
	envoyRetry = 500 * time.Millisecond
)

// envoyResult is how the call to Envoy ended.
type envoyResult struct {
	drain   handshake.DrainID // it belongs to
	harm    string
	refused bool
	err     error // it was given up
}

// tellEnvoy starts the call once: when every balancer has held, at the latest at
// half of the time to the deadline. It cannot be undone and behind mode http it
// protects nothing, so a person's drain does not cause it.
func (p *Pod) tellEnvoy(ctx context.Context, now time.Time) {
	k := &p.course
	if p.cfg.Envoy == nil || p.cfg.EnvoyWhen == EnvoyNever || k.drained || k.refusal || k.telling != nil {
		return
	}
	state := p.machine.State()
	if !k.finish || k.outcome != "" || state != fsm.Draining && state != fsm.Closing {
		return
	}
	due := p.cfg.EnvoyWhen == EnvoyStart || !now.Before(k.half) ||
		!k.last.began.Before(k.since) && k.last.held
	if !due {
		return
	}
	ctx, k.telling = context.WithCancel(ctx)
	id, upgrades := k.id, k.last.upgrades()
	go func() {
		var r envoyResult
		r.err = p.repeat(ctx, func(ctx context.Context) (err error) {
			r.harm, r.refused, err = p.cfg.Envoy.Check(ctx, upgrades)
			return err
		})
		if r.err == nil && !r.refused {
			r.err = p.repeat(ctx, p.cfg.Envoy.DrainListeners)
		}
		r.drain = id
		p.told <- r
	}()
}

// repeat makes a call until it succeeds or the drain ends. A hang moves nothing
// but this goroutine.
func (p *Pod) repeat(ctx context.Context, do func(context.Context) error) error {
	for said := false; ; {
		call, cancel := context.WithTimeout(ctx, envoyCall)
		err := do(call)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if !said {
			said = true
			p.cfg.Log.Warn().Str("event", "envoy_drain_listeners").Bool("called", false).Err(err).Str("detail", "repeated until it is answered").Send()
		}
		select {
		case <-time.After(envoyRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *Pod) envoyTold(r envoyResult) {
	k := &p.course
	if r.drain == k.id { // else its drain was reopened, and a call that is out is the next one's
		p.stopTelling()
	}
	if r.err != nil {
		return
	}
	k.refusal = r.refused && r.drain == k.id
	k.drained = k.drained || !r.refused
	e := p.cfg.Log.Info()
	if r.harm != "" {
		e = p.cfg.Log.Warn().Str("harm", r.harm)
	}
	e.Str("event", "envoy_drain_listeners").Bool("called", !r.refused).Send()
	p.publish()
}

func (p *Pod) stopTelling() {
	if p.course.telling != nil {
		p.course.telling()
		p.course.telling = nil
	}
}

// envoyState is progress.envoy.
func (p *Pod) envoyState() string {
	k := &p.course
	answers := false
	for _, r := range k.last.readings {
		answers = answers || r.Envoy && r.Count.Known
	}
	switch {
	case p.cfg.Envoy == nil:
		return ""
	case k.last.gone:
		return "gone"
	case k.drained:
		return "drained"
	case answers, len(k.last.readings) == 0 && p.healthy():
		return "serving"
	}
	return "unknown"
}
