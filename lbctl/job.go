package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lbdrain/internal/cli"
	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/desk"
	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/journal"
	"lbdrain/lbctl/keeper"
)

const (
	reportPoll = 15 * time.Millisecond
	// afterwards is how long what follows a passed limit may take: the guard
	// given back, a forced MAINT.
	afterwards = 3 * time.Second
	// restoring is the same for what needs a passed check, whose interval may
	// not be known.
	restoring = 30 * time.Second
)

// do carries out the action on what was found.
func (j *job) do(ctx context.Context) error {
	for _, key := range j.keys {
		s, _ := j.before.Server(key.Backend, key.Server)
		state := desk.State(s)
		j.results = append(j.results, &result{
			LB: j.lb.name, Backend: key.Backend, Server: key.Server, key: key,
			Before: state, After: state, Sessions: &s.Sessions, Commands: []string{},
		})
	}
	if err := j.refuse(); err != nil || len(j.keys) == 0 {
		return err
	}
	if j.dryRun {
		return j.foresee()
	}
	// The desk outlives the time limit, for what is left to do then.
	d, done, err := j.lb.desk(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer done()
	if err := j.begin(ctx, d); err != nil {
		return err
	}
	err = j.follow(ctx, d, j.finished)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return j.late(d, err)
	}
	return err
}

// refuse is the guard before anything is touched.
func (j *job) refuse() error {
	for _, key := range j.keys {
		s, _ := j.before.Server(key.Backend, key.Server)
		switch {
		case s.Admin&haproxy.ResolutionMaint != 0:
			return cli.Fail(guarded, "its name must resolve first (MAINT (resolution) is no state of yours)",
				fmt.Errorf("%s has no address: %s has no effect, or the wrong one", key, j.verb))
		case j.verb == ready && s.Admin&(haproxy.InheritedMaint|haproxy.InheritedDrain) != 0:
			return cli.Fail(guarded, "lbctl ready "+s.Tracks, fmt.Errorf("%s follows %s, which is held", key, s.Tracks))
		}
	}
	return nil
}

// begin tells the desk.
func (j *job) begin(ctx context.Context, d desk.Desk) error {
	old, err := d.Reports(ctx, j.keys)
	if err != nil {
		return err
	}
	for _, p := range old {
		j.result(p).earlier = len(p.Sent)
	}
	if j.verb == ready {
		err := d.Lift(ctx, j.keys)
		var held *desk.HeldError
		if errors.As(err, &held) {
			return cli.Fail(guarded, "lbctl serve brings it back when a pod says OPEN there; lbctl status shows the drain", err)
		}
		return err
	}
	idle, busy := []keeper.Key{}, []keeper.Key{}
	for _, key := range j.keys {
		s, _ := j.before.Server(key.Backend, key.Server)
		if s.Admin&(haproxy.ForcedDrain|haproxy.ForcedMaint) != 0 && !s.Agent.On() && s.Sessions+s.Queued == 0 {
			idle = append(idle, key)
		} else {
			busy = append(busy, key)
		}
	}
	op := hold.OpHold{Kind: j.verb, Reason: j.reason, By: user(), Since: time.Now().UTC(), Force: j.force}
	if err := j.hold(ctx, d, idle, op); err != nil {
		return err
	}
	if !j.noWait {
		op.Guard = j.limit.UTC()
	}
	return j.hold(ctx, d, busy, op)
}

func (j *job) hold(ctx context.Context, d desk.Desk, keys []keeper.Key, op hold.OpHold) error {
	if len(keys) == 0 {
		return nil
	}
	changed, err := d.Hold(ctx, keys, op)
	if errors.Is(err, journal.ErrVersion) {
		return cli.Fail(cli.Failed, "it is left alone: use the lbctl that wrote it, or move the file away", err)
	}
	for _, r := range j.results {
		r.Changed = r.Changed || slices.Contains(changed, r.key)
	}
	return err
}

func (j *job) result(p desk.Report) *result {
	i := slices.IndexFunc(j.results, func(r *result) bool { return r.Backend == p.Backend && r.Server == p.Server })
	return j.results[i]
}

// finished says whether a server is where it was wanted; its error is that somebody
// has wanted something else since.
func (j *job) finished(p desk.Report) (bool, error) {
	switch wanted := p.Wanted; {
	case j.verb == ready && wanted != "":
		return false, fmt.Errorf("%s/%s: meanwhile held again: %s by %s", p.Backend, p.Server, wanted, p.By)
	case j.verb == ready:
		// Without a daemon nobody else would finish it.
		return p.Free || j.noWait && j.lb.remote != nil, nil
	case wanted == "":
		return false, fmt.Errorf("%s/%s: meanwhile given back by somebody else", p.Backend, p.Server)
	case wanted != j.verb:
		return false, fmt.Errorf("%s/%s: meanwhile held otherwise: %s by %s", p.Backend, p.Server, wanted, p.By)
	case j.noWait:
		return p.Held, nil
	}
	return p.Settled, nil
}

// follow waits until every server is finished. Its error is the context's where
// time ran out, and what HAProxy said where it refused a command.
func (j *job) follow(ctx context.Context, d desk.Desk, finished func(desk.Report) (bool, error)) error {
	for _, r := range j.results {
		r.done = false
	}
	for {
		reports, err := d.Reports(ctx, j.keys)
		if err != nil {
			return err
		}
		open := len(j.keys)
		for _, p := range reports {
			r := j.result(p)
			if p.Broken != "" {
				r.Sessions, r.Why = nil, p.Broken // it may come back until the time is over
				continue
			}
			j.take(r, p)
			if p.Refused != "" {
				return fmt.Errorf("%s: %s", r.key, p.Refused)
			}
			if r.done, err = finished(p); err != nil {
				return err
			}
			if r.done {
				open--
			}
		}
		if open == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(reportPoll):
		}
	}
}

// take brings a result up to date.
func (j *job) take(r *result, p desk.Report) {
	if p.State != r.After && j.output == "table" {
		fmt.Fprintf(j.errs, "%s %s: %s, %d sessions\n", r.LB, r.key, p.State, p.Sessions)
	}
	r.After, r.Sessions, r.Why, r.Cut = p.State, &p.Sessions, p.Why, p.Cut
	if r.earlier > len(p.Sent) {
		r.earlier = 0 // the keeper has forgotten the oldest
	}
	r.Commands = append([]string{}, p.Sent[r.earlier:]...)
	r.Changed = r.Changed || len(r.Commands) > 0
}

// late is what follows when the time is over, or the person has had enough.
func (j *job) late(d desk.Desk, cause error) error {
	limit := afterwards
	if j.onTimeout == "restore" {
		limit = restoring
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	open, blind := []*result{}, false
	for _, r := range j.results {
		if !r.done {
			open = append(open, r)
			blind = blind || r.Sessions == nil
		}
	}
	var err error
	switch {
	case j.verb == ready:
	case j.onTimeout == "force" && errors.Is(cause, context.DeadlineExceeded):
		op := hold.OpHold{Kind: j.verb, Reason: j.reason, By: user(), Since: time.Now().UTC(), Force: true}
		if err = j.hold(ctx, d, j.keys, op); err == nil {
			return j.follow(ctx, d, j.finished)
		}
	case j.onTimeout == "restore" && errors.Is(cause, context.DeadlineExceeded):
		if err = d.Lift(ctx, j.keys); err == nil {
			err = j.follow(ctx, d, func(p desk.Report) (bool, error) { return p.Free, nil })
		}
	default:
		op := hold.OpHold{Kind: j.verb, Reason: j.reason, By: user(), Since: time.Now().UTC()}
		if err = j.hold(ctx, d, j.keys, op); err == nil && !blind {
			err = j.follow(ctx, d, func(p desk.Report) (bool, error) { return !p.Guarded, nil })
		}
	}
	text := fmt.Sprintf("timed out after %v", j.timeout)
	if errors.Is(cause, context.Canceled) {
		text = "interrupted"
	}
	for _, r := range open {
		r.code = cli.TimedOut
		if r.Sessions != nil {
			text += fmt.Sprintf("; %s is %s with %d sessions", r.key, r.After, *r.Sessions)
		} else {
			text += fmt.Sprintf("; %s was %s", r.key, r.After)
		}
		if r.Why != "" {
			text += " (" + r.Why + ")"
		}
	}
	return cli.Fail(cli.TimedOut, j.next(), errors.Join(errors.New(text), err))
}

// next is a hint: what is still to come, after --on-timeout leave.
func (j *job) next() string {
	switch {
	case j.verb == ready && j.lb.remote == nil:
		return "lbctl status shows the check; say it again to go on"
	case j.verb == ready:
		return "lbctl status shows the check; the daemon goes on"
	case j.onTimeout != "leave":
		return ""
	case j.verb == hold.Maint && j.lb.remote == nil:
		return "the order stands: say it again to go on to MAINT, or give it back with lbctl ready"
	case j.verb == hold.Maint:
		return "the order stands: the daemon goes on to MAINT when it is empty, unless lbctl ready gives it back"
	}
	return "the order stands: DRAIN until lbctl ready"
}

// foresee fills in what would be sent.
func (j *job) foresee() error {
	lb, err := journal.Open(j.lb.reach.stateDir).LB(j.lb.name)
	if err != nil {
		return err
	}
	for _, r := range j.results {
		s, _ := j.before.Server(r.Backend, r.Server)
		rec := lb.Records[r.key.String()]
		rec.Backend, rec.Server = r.Backend, r.Server
		if rec.Pod != nil && j.verb == ready && rec.Op == nil {
			return cli.Fail(guarded, "", fmt.Errorf("%s is held for the drain of %s", r.key, rec.Pod.Endpoint))
		}
		op := hold.OpHold{Kind: j.verb, Since: j.before.At, Guard: j.limit, Force: j.force}
		if j.verb == ready {
			op.Kind, op.Lifted = hold.Drain, true
		}
		rec.Op, rec.Foreign, rec.Return = &op, "", nil
		line := j.lb.lines[r.key].Line
		line.Endpoint = ""
		v := hold.View{Now: j.before.At, Worker: hold.Worker{Pid: j.before.Info.Pid, Start: j.before.Info.Start}, Server: s, Line: line, Guest: true}
		for _, verb := range hold.Foresee(v, rec) {
			if c, ok := hold.Command(verb, r.Backend, r.Server); ok {
				r.Commands = append(r.Commands, c.String())
			}
		}
		r.Why = "dry run"
	}
	return nil
}
