package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lbdrain/scenarios/lab"
	"lbdrain/scenarios/ledger"
	"lbdrain/scenarios/load"
)

// experiment is one run that is to be made: which scenario, in which mode.
type experiment struct {
	Scenario   string // S1, S2, S2-idle, F1…
	Mode       lab.Mode
	Repetition int
	Seed       uint64
	Idle       bool
	Fault      *fault
	Options    lab.Options
}

// name of the artifacts' directory.
func (x experiment) name() string {
	n := x.Scenario + "-" + x.Mode.Name
	if x.Repetition > 1 {
		n += fmt.Sprintf("-%d", x.Repetition)
	}
	return n
}

// deleteAfter is how long the requests have run on the victim when it is deleted.
const deleteAfter = time.Second

// logLag is the time from the last byte of an answer to its line in HAProxy's log,
// and more.
const logLag = 200 * time.Millisecond

// arrivalLimit bounds the wait for the requests to arrive at the victim.
const arrivalLimit = 20 * time.Second

// spans are how long the four requests take, in the order of load.Kinds. Those of S1
// are alike and outlast any detection window (4 s at most, plus the second before the
// delete); those of S2 end one after the other, and the last still does.
func (x experiment) spans() []time.Duration {
	if x.Scenario == "S2" {
		return []time.Duration{3 * time.Second, 4 * time.Second, 5500 * time.Millisecond, 7 * time.Second}
	}
	return []time.Duration{8 * time.Second, 8 * time.Second, 8 * time.Second, 8 * time.Second}
}

// result is what a run measured beside the book.
type result struct {
	seen    []ledger.Seen
	endings []lab.Ending
	notice  []float64 // ms
	by      string
	over    []float64 // ms
	pods    []float64 // s
	invalid []string
	failed  []string
}

// run makes the experiment in a lab that has started, and closes the lab.
func (x experiment) run(ctx context.Context, l *lab.Lab, tell func(string, ...any)) (summary, error) {
	defer l.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("the run took more than 5 minutes"))
	defer cancel()
	if err := l.Settle(ctx); err != nil {
		return summary{}, err
	}
	s := summary{HAProxy: optional(l.Version()), Envoy: optional(l.Victim().EnvoyVersion())}
	err := l.SaveStat("before")
	if err != nil {
		return s, err
	}
	var r result
	if x.Idle {
		r, err = x.idle(ctx, l, tell)
	} else {
		r, err = x.loaded(ctx, l, tell)
	}
	if err == nil {
		err = errors.Join(l.SaveStat("after"), pause(ctx, logLag))
	}
	if err != nil {
		return s, err
	}
	return s, x.conclude(&s, l, r)
}

// idle ends pods without any request, one after the other, and leaves one.
func (x experiment) idle(ctx context.Context, l *lab.Lab, tell func(string, ...any)) (result, error) {
	var r result
	pods := l.Pods()
	for _, p := range pods[:max(1, len(pods)-1)] {
		tell("delete %s, idle", p.Name)
		l.Fast(true)
		e, err := l.Delete(ctx, p)
		l.Fast(false)
		if err != nil {
			return r, err
		}
		r.ended(l, p, e)
		if at, ok := p.Entered("DRAINING"); ok {
			r.over = append(r.over, millis(e.Exited.Sub(at)))
		}
		if e.HookExit != 0 {
			r.failed = append(r.failed, fmt.Sprintf("hook of %s: exit code %d", p.Name, e.HookExit))
		}
	}
	return r, nil
}

// ended notes how one pod went.
func (r *result) ended(l *lab.Lab, p *lab.Pod, e lab.Ending) {
	r.endings = append(r.endings, e)
	r.pods = append(r.pods, e.Exited.Sub(e.Deleted).Seconds())
	at, ok := p.Entered("DRAINING")
	if !ok {
		r.invalid = append(r.invalid, p.Name+" never said DRAINING")
		return
	}
	if d, by, ok := l.Notice(p.Name, at); ok {
		r.notice, r.by = append(r.notice, millis(d)), by
	}
}

// loaded pins four requests to the victim and deletes it a second later.
func (x experiment) loaded(ctx context.Context, l *lab.Lab, tell func(string, ...any)) (result, error) {
	var r result
	victim := l.Victim()
	if err := l.Pin(victim); err != nil {
		return r, err
	}
	tell("send the requests to %s", victim.Name)
	flight := x.send(ctx, l)
	arrived := x.arrived(ctx, victim, flight.ids)
	if err := l.Unpin(victim); err != nil {
		return r, err
	}
	if arrived != nil {
		r.invalid = append(r.invalid, arrived.Error())
	}
	if err := pause(ctx, deleteAfter); err != nil {
		return r, err
	}
	if err := l.SaveStat("during"); err != nil {
		return r, err
	}
	tell("delete %s, %d requests running", victim.Name, victim.Running())
	e, err := x.end(ctx, l)
	if err != nil {
		return r, err
	}
	tell("%s is gone, waiting for the clients", victim.Name)
	r.seen = flight.wait()
	r.ended(l, victim, e)
	// A slow reader still reads what the kernels of the balancer's host hold when the
	// pod is long gone, and rightly so.
	if last := lastEnd(victim, r.seen); !last.IsZero() && !e.Exited.Before(last) {
		r.over = append(r.over, millis(e.Exited.Sub(last)))
	}
	x.judge(&r, victim, e)
	return r, nil
}

// end deletes the victim, with the experiment's fault beside it.
func (x experiment) end(ctx context.Context, l *lab.Lab) (lab.Ending, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if x.Fault != nil && x.Fault.before != nil {
		if err := x.Fault.before(ctx, l); err != nil {
			return lab.Ending{}, err
		}
	}
	l.Fast(true)
	deleted := time.Now()
	broken := make(chan error, 1)
	go func() {
		if x.Fault == nil || x.Fault.during == nil {
			broken <- nil
			return
		}
		broken <- x.Fault.during(ctx, l, deleted)
	}()
	go func() {
		if drained(ctx, l, deleted) == nil {
			l.Fast(false) // the notice has been seen: disturb no more
		}
	}()
	e, err := l.Delete(ctx, l.Victim())
	cancelled := errors.New("the pod ended before the fault had")
	select {
	case ferr := <-broken:
		err = errors.Join(err, ferr)
	default:
		err = errors.Join(err, cancelled)
	}
	return e, err
}

// flight is the requests on their way.
type flight struct {
	ids  []string // that must arrive at the victim
	wait func() []ledger.Seen
}

// send starts every request of the experiment and does not wait for its answer.
func (x experiment) send(ctx context.Context, l *lab.Lab) flight {
	c := load.Client{Frontend: l.Frontend(), Host: lab.Host, Roots: l.Roots(), Limit: 90 * time.Second}
	kinds, spans := load.Kinds(), x.spans()
	if x.Fault != nil && x.Fault.slow {
		kinds, spans = []string{load.H1Slow}, []time.Duration{0}
	}
	var f flight
	answers := make(chan []ledger.Seen, len(kinds))
	for i, kind := range kinds {
		id := fmt.Sprintf("%s-%d-%x-%s", x.name(), x.Repetition, x.Seed, strings.ReplaceAll(kind, " ", "-"))
		f.ids = append(f.ids, id)
		go func() { answers <- one(ctx, c, kind, id, spans[i]) }()
	}
	f.wait = func() []ledger.Seen {
		var out []ledger.Seen
		for range kinds {
			out = append(out, <-answers...)
		}
		slices.SortStableFunc(out, func(a, b ledger.Seen) int { return a.Begin.Compare(b.Begin) })
		return out
	}
	return f
}

// one makes one request of the kind, and what must come before it on its connection.
func one(ctx context.Context, c load.Client, kind, id string, span time.Duration) []ledger.Seen {
	switch kind {
	case load.H2Post:
		return []ledger.Seen{c.H2(ctx, id, kind, load.Sleep(id, span))}
	case load.H2Stream:
		return []ledger.Seen{c.H2(ctx, id, kind, load.Stream(id, span))}
	}
	conn, err := c.Dial(ctx)
	if err != nil {
		now := time.Now()
		return []ledger.Seen{{ID: id, Kind: kind, Attempts: 1, Curl: ledger.Curl(err, false), Error: err.Error(), Begin: now, End: now}}
	}
	defer conn.Close()
	var out []ledger.Seen
	switch kind {
	case load.H1Slow:
		return append(out, conn.Get(ctx, id, kind, load.Body(id, slowBytes), slowRate))
	case load.H1Reused:
		out = append(out, conn.Get(ctx, id+"-warm-up", load.WarmUp, load.Sleep(id+"-warm-up", 0), 0))
	}
	return append(out, conn.Get(ctx, id, kind, load.Sleep(id, span), 0))
}

// arrived waits until every id runs on the victim.
func (x experiment) arrived(ctx context.Context, victim *lab.Pod, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, arrivalLimit)
	defer cancel()
	for {
		missing := slices.Clone(ids)
		for _, r := range victim.Ran() {
			missing = slices.DeleteFunc(missing, func(id string) bool { return id == r.ID })
		}
		if len(missing) == 0 {
			return nil
		}
		if pause(ctx, 5*time.Millisecond) != nil {
			return fmt.Errorf("routing not pinned: %s never arrived at %s", strings.Join(missing, ", "), victim.Name)
		}
	}
}

// lastEnd is when the last request that the victim had was over: for its client where
// the victim alone ran it, else for the victim's backend.
func lastEnd(victim *lab.Pod, seen []ledger.Seen) time.Time {
	var last time.Time
	for _, r := range victim.Ran() {
		end := r.End
		for _, s := range seen {
			if s.ID == r.ID && s.Attempts == 1 {
				end = s.End
			}
		}
		if end.After(last) {
			last = end
		}
	}
	return last
}

// judge says whether the pod went as the mode and the fault have it.
func (x experiment) judge(r *result, victim *lab.Pod, e lab.Ending) {
	want := 0
	if x.Fault != nil {
		want = x.Fault.hook
	}
	if !x.Mode.Coherent {
		return
	}
	if e.HookExit != want {
		r.failed = append(r.failed, fmt.Sprintf("hook of %s: exit code %d, want %d", victim.Name, e.HookExit, want))
	}
	if took := e.Hooked.Sub(e.Deleted); want == 3 && took < x.Options.DrainTimeout {
		r.failed = append(r.failed, fmt.Sprintf("hook of %s ended after %.1f s, before its deadline of %s", victim.Name, took.Seconds(), x.Options.DrainTimeout))
	}
}

// conclude closes the lab, does the accounting, and writes the artifacts.
func (x experiment) conclude(s *summary, l *lab.Lab, r result) error {
	var ran []ledger.Ran
	l.Close() // every log is complete now
	for _, p := range l.Pods() {
		ran = append(ran, p.Ran()...)
	}
	book := ledger.Account(r.seen, ran, ledger.ParseLog(strings.Join(l.Log(), "\n")))
	s.Schema, s.Scenario, s.Mode, s.Repetition, s.Seed = 1, x.Scenario, x.Mode.Name, x.Repetition, x.Seed
	s.Requests, s.Disruptions, s.Truth, s.Masks = len(book.Entries), book.Disruptions(), book.Truth(ran), book.Masks()
	s.Terminations, s.Unseen, s.Stray, s.Entries = book.Terms, book.Unseen, book.Stray, book.Entries
	s.NoticeMS, s.OverheadMS, s.PodSeconds, s.NoticeBy = newSpread(r.notice), newSpread(r.over), newSpread(r.pods), r.by
	for _, e := range r.endings {
		s.Hooks = append(s.Hooks, e.HookExit)
	}
	x.assess(s, r)
	dir := x.Options.Artifacts
	if err := writeJSON(filepath.Join(dir, "summary.json"), s); err != nil {
		return err
	}
	return writeLoad(filepath.Join(dir, "load.out"), book)
}

// assess says whether the control held, and whether the mode kept its promise.
func (x experiment) assess(s *summary, r result) {
	if x.Mode.Name == "current" && !x.Idle && s.Truth.Cancelled == 0 {
		r.invalid = append(r.invalid, "current cut nothing: the requests were never in danger")
	}
	if x.Mode.Coherent && s.Disruptions > 0 {
		r.failed = append(r.failed, fmt.Sprintf("%d of %d requests disrupted", s.Disruptions, s.Requests))
	}
	s.Valid, s.InvalidWhy, s.Failures = len(r.invalid) == 0, nonNil(r.invalid), nonNil(r.failed)
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// writeLoad writes one line for each request, for people.
func writeLoad(file string, book ledger.Book) error {
	var b strings.Builder
	for _, e := range book.Entries {
		fmt.Fprintf(&b, "%s\t%s\t%s\t%.3fs\tsent %d\tran on %s\tlogged %s\tmasks %v\t%s\n", e.Kind, e.ID, e.Outcome,
			e.End.Sub(e.Begin).Seconds(), e.Attempts, strings.Join(e.Pods, " "), strings.Join(e.Logged, " "), e.Masks, e.Error)
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("write load.out: %w", err)
	}
	return nil
}
