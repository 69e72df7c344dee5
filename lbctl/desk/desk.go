package desk

import (
	"context"
	"errors"
	"time"

	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/keeper"
)

// Desk takes wishes for one HAProxy.
type Desk interface {
	// Hold puts op on servers; journaled when it returns. It says which were
	// not held like this before.
	Hold(ctx context.Context, keys []keeper.Key, op hold.OpHold) (changed []keeper.Key, err error)
	// Lift ends people's holds. Its error can be a *HeldError.
	Lift(ctx context.Context, keys []keeper.Key) error
	// Reports says how far it is. A server without a turn since the last wish
	// is left out, unless the turns fail.
	Reports(ctx context.Context, keys []keeper.Key) ([]Report, error)
}

// HeldError says that a server is held for a pod: a person cannot make it ready.
type HeldError struct{ Text string }

func (e *HeldError) Error() string { return e.Text }

// Report is one server as its keeper has it.
type Report struct {
	Backend  string    `json:"backend"`
	Server   string    `json:"server"`
	At       time.Time `json:"at"`
	State    string    `json:"state"` // see State
	Sessions uint64    `json:"sessions"`
	Queued   uint64    `json:"queued"`
	Held     bool      `json:"held"`    // in DRAIN or MAINT, agent off
	Settled  bool      `json:"settled"` // a person's hold is carried out: empty twice, in MAINT where wanted
	Guarded  bool      `json:"guarded"` // health is off, by us
	Free     bool      `json:"free"`    // no hold is left
	Wanted   string    `json:"wanted"`  // what a person's hold wants, drain or maint; "" without one
	By       string    `json:"by"`      // that person
	Pod      string    `json:"pod"`     // whose drain holds it, "" for none
	Why      string    `json:"why"`     // what it waits for
	Sent     []string  `json:"sent"`    // commands so far
	Cut      uint64    `json:"cut"`     // sessions that forced commands have cut
	Refused  string    `json:"refused"` // what HAProxy said to the last command, "" if it took it
	Broken   string    `json:"broken"`  // why HAProxy cannot be read now, "" if it can; the rest is then old, or empty
}

func report(key keeper.Key, r keeper.Row) Report {
	rec := r.Step.Record
	held := rec.Op != nil && !rec.Op.Lifted
	p := Report{
		Backend: key.Backend, Server: key.Server, At: r.At, State: State(r.Server),
		Sessions: r.Server.Sessions, Queued: r.Server.Queued,
		Held:    r.Server.Admin&0x09 != 0 && !r.Server.Agent.On(),
		Settled: held && r.Saved && r.Step.Do == hold.Nothing && r.Step.Wait == hold.Settled,
		Guarded: rec.Guarded, Free: r.Saved && rec.Pod == nil && rec.Op == nil,
		Why: r.Step.Why, Sent: r.Sent, Cut: r.Cut, Refused: r.Refused,
	}
	if held {
		p.Wanted, p.By = rec.Op.Kind, rec.Op.By
	}
	if rec.Pod != nil {
		p.Pod = rec.Pod.Endpoint + " (" + rec.Pod.Instance + ")"
	}
	return p
}

// Local is a keeper of the command's own.
type Local struct{ *keeper.Keeper }

// firstWord is how long a new keeper waits for what the agents say.
const firstWord = 1500 * time.Millisecond

// Lift is the keeper's. A server that is held for a pod is given up only after
// its agent has had time to say OPEN.
func (l Local) Lift(ctx context.Context, keys []keeper.Key) error {
	for end := time.Now().Add(firstWord); ; {
		err := l.Keeper.Lift(ctx, keys)
		var held *keeper.HeldError
		if !errors.As(err, &held) {
			return err
		}
		if time.Now().After(end) {
			return &HeldError{held.Error()}
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Reports asks the keeper.
func (l Local) Reports(_ context.Context, keys []keeper.Key) ([]Report, error) {
	return reports(l.Keeper, keys), nil
}

func reports(k *keeper.Keeper, keys []keeper.Key) []Report {
	var all []Report
	broken := k.Broken()
	for _, key := range keys {
		p := Report{Backend: key.Backend, Server: key.Server}
		r, ok := k.Row(key)
		if ok {
			p = report(key, r)
		}
		if p.Broken = broken; ok || broken != "" {
			all = append(all, p)
		}
	}
	return all
}
