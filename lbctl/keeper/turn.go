package keeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/journal"
)

const (
	// While sessions end, HAProxy is read every pollMin to pollMax, the longer
	// the longer it takes, and in at most a twentieth of the time.
	pollMin, pollMax = 10 * time.Millisecond, 30 * time.Millisecond
	pollShare        = 20
	costShare        = 16 // of a slower turn is believed
	// fewServers is up to how many of a backend are read one by one.
	fewServers = 4
	// checkPoll is how often a passed check or a fresh answer is looked for.
	checkPoll = 50 * time.Millisecond
	// holdPoll is how often a server that stays held is looked at: until a reload
	// without a server-state-file is noticed, the new worker sends to it.
	holdPoll = 250 * time.Millisecond
	// startPoll is how often a HAProxy that is not there is looked for, for the same
	// reason: nothing is asked of anybody by that.
	startPoll = 100 * time.Millisecond
	// turnTime bounds one turn.
	turnTime = 5 * time.Second
	// futile is after how many times without effect a command waits for the
	// usual interval.
	futile = 3
)

// look is one turn's work.
type look struct {
	k       *Keeper
	records map[string]hold.Record // as journaled
	pods    map[string]hold.Pod
	read    haproxy.Read
	steps   map[Key]hold.Step
	views   map[Key]hold.View
	urgent  bool // a step is due at once
}

// turn looks, acts, and says when to look again.
func (k *Keeper) turn(ctx context.Context) time.Duration {
	began := time.Now()
	lb, err := k.o.Journal.LB(k.o.Name)
	if err != nil {
		k.wrong("alarm", err)
		return k.o.Interval
	}
	k.follow(ctx, lb.Records)
	l := &look{k: k, records: lb.Records, pods: k.heard()}
	scope, whole, nothing := k.scope(l)
	if nothing {
		if !time.Now().Before(k.lookAt) {
			k.lookAt = began.Add(k.o.Interval) // nothing is kept here
		}
		return max(time.Until(k.lookAt), time.Millisecond)
	}
	c, cancel := context.WithTimeout(ctx, turnTime)
	defer cancel()
	t, err := k.o.Door.Turn(c, scope, l.decide)
	k.outcomes(t)
	switch {
	case ctx.Err() != nil, errors.Is(err, errOvertaken):
		return 0
	case errors.Is(err, errLeaving), err == nil && t.After != nil && t.After.Info.Stopping:
		return pollMin // the next connection is the new worker's
	case errors.Is(err, haproxy.ErrNoSuchBackend) && !k.whole:
		k.whole = true // the running HAProxy is not that of the file
		k.wrong("alarm", fmt.Errorf("the configuration differs from what runs: %w", err))
		return 0
	case errors.Is(err, haproxy.ErrNoSuchServer) && len(scope.Servers) > 0:
		clear(k.memory) // which of them is shown by the backends
		return 0
	case err != nil:
		k.wrong(kind(err), err)
		if errors.Is(err, haproxy.ErrRefused) || errors.Is(err, haproxy.ErrNoSocket) {
			return min(startPoll, k.o.Interval/2)
		}
		return k.o.Interval / 2
	}
	k.well()
	if t.After != nil {
		l.consider(*t.After)
	}
	k.conclude(ctx, l)
	if whole {
		k.lookAt = began.Add(k.o.Interval)
	} else {
		k.costs(time.Since(began))
	}
	return l.due()
}

func kind(err error) string {
	var unwritten *journalError
	switch {
	case errors.As(err, &unwritten):
		return "alarm"
	case errors.Is(err, haproxy.ErrBusy):
		return "socket_busy"
	}
	return "socket_error"
}

// journalError is a turn that ended because the journal could not be written:
// nothing is done then, and it is not the socket's fault.
type journalError struct{ error }

func (e *journalError) Unwrap() error { return e.error }

// scope is what to read: every managed backend once an interval, in between the
// servers in which something goes on.
func (k *Keeper) scope(l *look) (s haproxy.Scope, whole, nothing bool) {
	backends, servers := map[string]bool{}, map[Key]bool{}
	whole = !time.Now().Before(k.lookAt)
	for key, line := range k.lines {
		if !k.concerns(key) {
			continue
		}
		if whole && line.Endpoint != "" || l.pods[line.Endpoint].Phase == hold.Leaving {
			backends[key.Backend], servers[key] = true, true
		}
	}
	for _, r := range l.records {
		key := Key{r.Backend, r.Server}
		if k.concerns(key) && (whole || r.Pod != nil || r.Op != nil) {
			backends[key.Backend], servers[key] = true, true
		}
	}
	for key := range k.mine {
		if k.o.Guest { // also where another lbctl has finished its hold
			backends[key.Backend], servers[key] = true, true
		}
	}
	switch {
	case len(backends) == 0:
		return s, whole, true
	case k.whole:
	case (!whole || k.o.Guest) && k.few(servers, len(backends)): // a guest has no others
		for _, key := range slices.SortedFunc(maps.Keys(servers), byName) {
			s.Servers = append(s.Servers, haproxy.Name(key))
		}
	default:
		s.Backends = slices.Sorted(maps.Keys(backends))
	}
	return s, whole, false
}

// few says whether servers cost less one by one than by their backends, and are
// all known to be there: one that is not would fail the read.
func (k *Keeper) few(servers map[Key]bool, backends int) bool {
	if len(servers) > fewServers*backends {
		return false
	}
	for key := range servers {
		if _, seen := k.memory[key]; !seen {
			return false
		}
	}
	return true
}

// decide is the middle of a turn: journal, then commands.
func (l *look) decide(r haproxy.Read) ([]haproxy.Command, error) {
	if r.Info.Stopping {
		return nil, errLeaving
	}
	l.consider(r)
	var commands []haproxy.Command
	changed := map[Key]hold.Record{}
	for key, s := range l.steps {
		if old := l.records[key.String()]; !s.Record.Same(old) {
			changed[key] = s.Record
		}
		if c, ok := l.k.command(key, s); ok {
			commands = append(commands, c)
		}
	}
	slices.SortFunc(commands, byName) // a fixed order in every turn
	if l.k.o.Observe {
		l.k.would(commands)
		return nil, nil
	}
	if len(commands) > 0 && r.Level != "admin" {
		return nil, fmt.Errorf("socket of level %s: %w", r.Level, haproxy.ErrPermission)
	}
	if err := l.journal(changed, r); err != nil {
		return nil, err
	}
	for key, s := range l.steps {
		l.k.count(key, s.Do)
	}
	return commands, nil
}

// errLeaving says that an old worker has answered. What it says of DRAIN and of
// sessions is nothing to tell a pod: a new one takes the traffic.
var errLeaving = errors.New("this worker is leaving")

// errOvertaken says that another lbctl has changed a record that this turn decided
// from: a person's word through it must not be written over.
var errOvertaken = errors.New("the journal has changed")

// journal writes what changed, before anything is done.
func (l *look) journal(changed map[Key]hold.Record, r haproxy.Read) error {
	k := l.k
	gone := l.missing(r)
	if len(changed) == 0 && len(gone) == 0 {
		return nil
	}
	err := k.o.Journal.Update(k.o.Name, func(lb *journal.LB) error {
		for key := range changed {
			if !lb.Records[key.String()].Same(l.records[key.String()]) {
				return errOvertaken
			}
		}
		lb.Socket, lb.Worker = k.o.Socket, k.worker
		for key, rec := range changed {
			lb.Records[key.String()] = rec
			if rec.Empty() {
				delete(lb.Records, key.String())
			}
		}
		for _, name := range gone {
			delete(lb.Records, name)
		}
		return nil
	})
	if err != nil {
		return &journalError{err}
	}
	for key, rec := range changed {
		k.changed(key, l.records[key.String()], rec, l.steps[key])
		if l.records[key.String()] = rec; rec.Empty() {
			delete(l.records, key.String())
		}
	}
	for _, name := range gone {
		k.o.Log.Warn().Str("event", "alarm").Str("lb", k.o.Name).Str("server", name).
			Msg("a held server is not in HAProxy any more: its hold is dropped")
		delete(l.records, name)
	}
	return nil
}

// missing are the records of servers that HAProxy no longer has, in a read that
// would show them.
func (l *look) missing(r haproxy.Read) []string {
	var gone []string
	for name, rec := range l.records {
		if slices.Contains(r.Disabled, rec.Backend) || !l.k.concerns(Key{rec.Backend, rec.Server}) {
			continue
		}
		if _, ok := l.steps[Key{rec.Backend, rec.Server}]; !ok && (rec.Pod != nil || rec.Op != nil || l.k.whole) {
			gone = append(gone, name)
		}
	}
	return gone
}

// consider lets package hold look at every managed server of a read.
func (l *look) consider(r haproxy.Read) {
	k := l.k
	w := hold.Worker{Pid: r.Info.Pid, Start: r.Info.Start}
	if w != k.worker {
		k.reloaded(w)
	}
	l.read = r
	l.steps, l.views = map[Key]hold.Step{}, map[Key]hold.View{}
	l.urgent = false
	for _, s := range r.Servers {
		key := Key{s.Backend, s.Name}
		rec, journaled := l.records[key.String()]
		line, known := k.lines[key]
		if !journaled && (!known || line.Endpoint == "") && !k.mine[key] || !k.concerns(key) {
			continue // who asked about it is told that no hold is left, too
		}
		if line.Endpoint == "" && rec.Pod != nil {
			line.Endpoint = rec.Pod.Endpoint // it left the configuration while held
		}
		rec.Backend, rec.Server = s.Backend, s.Name
		v := hold.View{Now: r.At, Took: r.Took, Worker: w, Server: s, Line: line.Line, Pod: l.pods[line.Endpoint], Guest: k.o.Guest}
		step := hold.Next(v, rec, k.memory[key])
		k.memory[key] = step.Memory
		l.steps[key], l.views[key] = step, v
		if _, ok := k.command(key, step); ok || !step.Record.Same(rec) {
			l.urgent = true
		}
	}
}

// command is what a step wants sent, unless it was futile.
func (k *Keeper) command(key Key, s hold.Step) (haproxy.Command, bool) {
	if n := k.repeat[key]; n.verb == s.Do && n.times >= futile && time.Now().Before(k.lookAt) {
		return haproxy.Command{}, false
	}
	return hold.Command(s.Do, key.Backend, key.Server)
}

// count remembers how often the same command was due in a row.
func (k *Keeper) count(key Key, verb hold.Verb) {
	switch n := k.repeat[key]; {
	case verb == hold.Nothing:
		delete(k.repeat, key)
	case n.verb == verb:
		k.repeat[key] = repeated{verb, n.times + 1}
	default:
		k.repeat[key] = repeated{verb, 1}
	}
}

// costs takes in what a turn between two whole ones took. One that the machine kept
// waiting must not put off the next look twentyfold.
func (k *Keeper) costs(took time.Duration) {
	k.cost = min(took, k.cost+(took-k.cost)/costShare)
}

// due is how long nothing needs to be looked at.
func (l *look) due() time.Duration {
	now, least := time.Now(), pollShare*l.k.cost
	if l.urgent && !l.k.o.Observe {
		return 0
	}
	next := max(l.k.lookAt.Sub(now), time.Millisecond)
	for _, s := range l.steps {
		var wait time.Duration
		switch s.Wait {
		case hold.ForZero:
			wait = max(s.Memory.ZeroAt.Add(hold.ZeroGap).Sub(now), 0)
		case hold.ForEmpty:
			wait = max(least, min(max(age(s.Record, now)/500, pollMin), pollMax))
		case hold.ForPod, hold.ForCheck:
			wait = max(least, checkPoll)
		default:
			if s.Record.Pod == nil && s.Record.Op == nil {
				continue
			}
			wait = max(least, holdPoll)
		}
		next = min(next, wait)
	}
	return next
}

// age is how long a server has been held.
func age(r hold.Record, now time.Time) time.Duration {
	switch {
	case r.Pod != nil:
		return now.Sub(r.Pod.Since)
	case r.Op != nil:
		return now.Sub(r.Op.Since)
	}
	return 0
}
