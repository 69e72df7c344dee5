package keeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"lbdrain/internal/handshake"
	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/journal"
)

// Key names a server line.
type Key struct {
	Backend string `json:"backend"`
	Server  string `json:"server"`
}

func (k Key) String() string { return k.Backend + "/" + k.Server }

// Line is what the configuration says of a server.
type Line struct {
	hold.Line
	Window handshake.Window
	Source string // `source` address its checks come from, "" for the usual one
}

// Door is the admin socket.
type Door interface {
	Turn(ctx context.Context, scope haproxy.Scope, decide func(haproxy.Read) ([]haproxy.Command, error)) (haproxy.Turn, error)
}

// Options of a keeper.
type Options struct {
	Name    string // of the balancer, one for each admin socket
	Socket  string // its address, for the journal
	Door    Door
	Journal *journal.Journal
	Observe bool // write nothing, acknowledge nothing, log what it would do
	// Enforce says in which backends pods are held; nil: in all. A pod that is
	// in another one too is left alone: half a hold would only hold it up.
	Enforce func(backend string) bool
	// Guest is a command line without a daemon: it deals only with servers that
	// it was asked about, watches their agents without being a balancer, and
	// holds nothing for a pod.
	Guest    bool
	Interval time.Duration // between two looks at rest, and of acknowledgements; > 0
	Token    string        // for the agents, "" for none
	Log      zerolog.Logger
	// Save, where set, puts the server state where HAProxy's next start finds
	// it. It is called after a change of a hold, before that is acknowledged.
	Save func(ctx context.Context) error
}

// Keeper holds the servers of one HAProxy.
type Keeper struct {
	o     Options
	wake  chan struct{}
	calls chan func()

	// Owned by Run.
	lines   map[Key]Line
	retired map[Key]bool // lines of a configuration before this one
	watches map[string]*watch
	memory  map[Key]hold.Memory
	repeat  map[Key]repeated
	mine    map[Key]bool // what it was asked about; as a guest it deals with nothing else
	worker  hold.Worker
	trouble string
	whole   bool           // HAProxy lacks a backend of the configuration: read all
	lookAt  time.Time      // when everything is looked at next
	cost    time.Duration  // of a turn that does not look at everything, as a rule
	told    map[Key]string // what observe mode last said it would do
	saved   string         // fingerprint of the holds that Save has put down
	unsaved string         // what kept Save from it
	saveAt  time.Time      // when that is tried again

	turned atomic.Int64

	mu     sync.Mutex
	rows   map[Key]Row
	broken string // why the last turn failed, "" if it did not
}

// repeated is a command that was sent again and again and has shown no effect.
type repeated struct {
	verb  hold.Verb
	times int
}

// Row is what the keeper last read and decided of a server that is, or was
// lately, held.
type Row struct {
	At      time.Time
	Worker  hold.Worker
	Server  haproxy.Server
	Pod     hold.Pod
	Step    hold.Step
	Saved   bool     // Step.Record is journaled
	Sent    []string // the commands since the keeper started, the last 50
	Cut     uint64   // sessions that forced commands have cut since then
	Refused string   // what HAProxy answered to the last one, "" if it took it
}

// New is a keeper at rest. It does nothing before Run.
func New(o Options) *Keeper {
	return &Keeper{
		o: o, wake: make(chan struct{}, 1), calls: make(chan func()),
		lines: map[Key]Line{}, watches: map[string]*watch{}, memory: map[Key]hold.Memory{},
		repeat: map[Key]repeated{}, rows: map[Key]Row{}, told: map[Key]string{}, mine: map[Key]bool{}, retired: map[Key]bool{},
	}
}

// Run keeps until ctx ends. HAProxy stays as it is then.
func (k *Keeper) Run(ctx context.Context) {
	defer k.leave()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-k.calls:
			f()
		case <-k.wake:
		case <-timer.C:
		}
		timer.Reset(k.turn(ctx))
		k.turned.Store(time.Now().UnixNano())
	}
}

// Turned is when the last turn ended; the zero time before the first. A turn at
// rest comes every interval, and the slowest takes [turnTime].
func (k *Keeper) Turned() time.Time {
	if n := k.turned.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// Wake asks for a turn now.
func (k *Keeper) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// call runs f in the keeper's goroutine, before its next turn.
func (k *Keeper) call(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	select {
	case k.calls <- func() { done <- f() }:
		return <-done
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", k.o.Name, context.Cause(ctx))
	}
}

// Configure replaces what the configuration says. Servers that it no longer has
// are kept until HAProxy has been reloaded: the running one still sends to them.
func (k *Keeper) Configure(ctx context.Context, lines map[Key]Line) error {
	return k.call(ctx, func() error {
		lines := k.enforced(lines)
		for key, line := range k.lines {
			if _, ok := lines[key]; !ok {
				lines[key], k.retired[key] = line, true
			} else {
				delete(k.retired, key)
			}
		}
		k.lines, k.whole, k.lookAt = lines, false, time.Time{}
		return nil
	})
}

// enforced takes their agents from the servers of pods that are left alone.
func (k *Keeper) enforced(lines map[Key]Line) map[Key]Line {
	lines = maps.Clone(lines)
	if lines == nil {
		lines = map[Key]Line{}
	}
	if k.o.Enforce == nil {
		return lines
	}
	outside := map[string]string{} // by agent: a backend that is not enforced
	in := map[string]bool{}
	for key, line := range lines {
		if k.o.Enforce(key.Backend) {
			in[line.Endpoint] = true
		} else {
			outside[line.Endpoint] = key.Backend
		}
	}
	for key, line := range lines {
		if outside[line.Endpoint] != "" {
			line.Endpoint = ""
			lines[key] = line
		}
	}
	for endpoint, backend := range outside {
		if endpoint != "" && in[endpoint] {
			k.event(k.o.Log.Warn(), "alarm").Str("pod", endpoint).Str("backend", backend).
				Msg("left alone: it is also in a backend that is not enforced")
		}
	}
	return lines
}

// ErrObserve is the answer to a person's wish in observe mode.
var ErrObserve = errors.New("lbctl observes only (serve --mode enforce)")

// HeldError is the refusal to make a server ready that is held for a pod.
type HeldError struct {
	Key
	Pod hold.PodHold
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s is held for the drain of %s (%s, seq %d)", e.Key, e.Pod.Endpoint, e.Pod.Instance, e.Pod.Seq)
}

// Hold puts a person's hold on servers: journaled when it returns, carried out
// from then on. Owner and reason of a hold that is there already stay. It says
// which were not held like this before.
func (k *Keeper) Hold(ctx context.Context, keys []Key, op hold.OpHold) (changed []Key, err error) {
	err = k.edit(ctx, keys, func(key Key, r *hold.Record) error {
		next := op
		if old := r.Op; old != nil && !old.Lifted && old.Kind == op.Kind {
			next.Reason, next.By, next.Since = old.Reason, old.By, old.Since
		} else {
			changed = append(changed, key)
		}
		r.Op, r.Foreign, r.Return = &next, "", nil
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, key := range changed {
		k.about("operator_hold", key).Str("kind", op.Kind).Str("reason", op.Reason).Str("by", op.By).Bool("force", op.Force).Send()
	}
	return changed, nil
}

// Lift ends a person's holds; without one, and with a state that somebody else
// has set, it takes that for the person's. A server that is held for a pod alone
// is a *HeldError, and then nothing is changed.
func (k *Keeper) Lift(ctx context.Context, keys []Key) error {
	err := k.edit(ctx, keys, func(key Key, r *hold.Record) error {
		if r.Op == nil && r.Pod != nil && k.pod(r.Pod.Endpoint).Phase != hold.Open {
			return &HeldError{key, *r.Pod}
		}
		if r.Op == nil && r.Pod == nil {
			r.Op = &hold.OpHold{Kind: hold.Drain, Since: time.Now().UTC()}
		}
		if r.Op != nil {
			op := *r.Op
			op.Lifted, r.Op = true, &op
		}
		r.Foreign = ""
		return nil
	})
	if err != nil {
		return err
	}
	for _, key := range keys {
		k.about("operator_lift", key).Send()
	}
	return nil
}

// edit changes records, all or none.
func (k *Keeper) edit(ctx context.Context, keys []Key, change func(Key, *hold.Record) error) error {
	if k.o.Observe {
		return ErrObserve
	}
	return k.call(ctx, func() error {
		for _, key := range keys {
			k.mine[key] = true
			if _, known := k.memory[key]; !known {
				k.memory[key] = hold.Memory{} // whoever names it has read it
			}
		}
		return k.o.Journal.Update(k.o.Name, func(lb *journal.LB) error {
			lb.Socket = k.o.Socket
			for _, key := range keys {
				r := lb.Records[key.String()]
				r.Backend, r.Server = key.Backend, key.Server
				if err := change(key, &r); err != nil {
					return err
				}
				lb.Records[key.String()] = r
				k.forget(key)
			}
			return nil
		})
	})
}

// concerns says whether a server is this keeper's business.
func (k *Keeper) concerns(key Key) bool { return !k.o.Guest || k.mine[key] }

// forget makes the last row stale: it was decided before a person wanted
// something.
func (k *Keeper) forget(key Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.rows[key]
	r.At = time.Time{}
	k.rows[key] = r
}

// Row is what was last read and decided of a server; false if there was no turn
// with it since a person last wanted something of it.
func (k *Keeper) Row(key Key) (Row, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, ok := k.rows[key]
	r.Sent = slices.Clone(r.Sent)
	return r, ok && !r.At.IsZero()
}

// Broken says why the last turn failed, "" if it did not: what the rows say is then
// as old as they are.
func (k *Keeper) Broken() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.broken
}

func (k *Keeper) setBroken(why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.broken = why
}
