package hold

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"lbdrain/internal/handshake"
	"lbdrain/internal/haproxy"
)

var t0 = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

var (
	here  = Worker{4711, 1764400000}
	other = Worker{4712, 1764400100}
)

// podsAt is every kind of pod that a decision can meet.
func podsAt(now time.Time) map[string]Pod {
	id := handshake.DrainID{Instance: "one", Seq: 7}
	deadline := now.Add(time.Minute)
	return map[string]Pod{
		"never watched":       {},
		"not answered yet":    {Lost: now.Add(-time.Second)},
		"never answered":      {Lost: now.Add(-time.Hour)},
		"open":                {Phase: Open, Instance: "one", Heard: now.Add(-time.Millisecond)},
		"open, successor":     {Phase: Open, Instance: "two", Heard: now.Add(-time.Millisecond)},
		"open, said long ago": {Phase: Open, Instance: "one", Heard: now.Add(-2 * time.Second)},
		"open, lost":          {Phase: Open, Instance: "one", Heard: now.Add(-5 * time.Second), Lost: now.Add(-4 * time.Second)},
		"leaving":             {Phase: Leaving, Instance: "one", Drain: id, Deadline: deadline, Heard: now},
		"leaving, successor":  {Phase: Leaving, Instance: "two", Drain: handshake.DrainID{Instance: "two", Seq: 2}, Heard: now},
		"leaving, lost":       {Phase: Leaving, Instance: "one", Drain: id, Deadline: deadline, Heard: now.Add(-time.Minute), Lost: now.Add(-time.Minute)},
		"broken":              {Phase: Broken, Instance: "one", Heard: now},
	}
}

// servers calls f with every combination of bits and counts.
func servers(f func(haproxy.Server)) {
	admins := []haproxy.AdminState{0, haproxy.ForcedDrain, haproxy.ForcedMaint, haproxy.ResolutionMaint}
	checks := []haproxy.CheckState{
		0, haproxy.Configured | haproxy.Enabled, haproxy.Configured,
		haproxy.Configured | haproxy.Enabled | haproxy.InProgress, haproxy.Configured | haproxy.InProgress,
	}
	agents := []haproxy.CheckState{haproxy.Agent, haproxy.Agent | haproxy.Configured | haproxy.Enabled, haproxy.Agent | haproxy.Configured}
	for _, a := range admins {
		for _, c := range checks {
			for _, g := range agents {
				for _, n := range [][2]uint64{{0, 0}, {1, 0}, {0, 1}} {
					for _, h := range [][3]int{{3, 2, haproxy.OpRunning}, {2, 2, haproxy.OpRunning}, {2, 1, haproxy.OpRunning}, {0, 2, haproxy.OpStopped}} {
						f(haproxy.Server{
							Backend: "b", Name: "s", Admin: a, Check: c, Agent: g, Sessions: n[0], Queued: n[1],
							CheckHealth: h[0], Rise: 2, Fall: h[1], Operational: h[2], Total: 9,
						})
					}
				}
			}
		}
	}
}

// records is every shape of record that can be in the journal.
func records(now time.Time) []Record {
	var all []Record
	ops := []*OpHold{
		nil, {Kind: Drain, Guard: now.Add(time.Minute)}, {Kind: Maint}, {Kind: Drain, Lifted: true}, {Kind: Maint, Force: true},
	}
	returns := []*Probation{nil, {here, now.Add(-time.Millisecond), true}, {here, now.Add(-time.Hour), false}}
	for _, pod := range []*PodHold{nil, {Endpoint: "p", Instance: "one", Seq: 7, Deadline: now.Add(time.Minute), Since: now.Add(-time.Second)}} {
		for _, op := range ops {
			for _, foreign := range []string{"", Maint} {
				for _, guarded := range []bool{false, true} {
					for _, finished := range []*Worker{nil, &here} {
						for _, back := range returns {
							all = append(all, Record{
								Backend: "b", Server: "s", Pod: pod, Op: op, Foreign: foreign, Muted: guarded, Guarded: guarded,
								Unproven: guarded, Finished: finished, Return: back,
							})
						}
					}
				}
			}
		}
	}
	return all
}

// TestEvery walks every record x pod x admin bits x check and agent bits x
// sessions x memory, and asserts what always holds.
func TestEvery(t *testing.T) {
	line := Line{Endpoint: "p", Inter: time.Second, AgentInter: 500 * time.Millisecond}
	memories := []Memory{
		{},
		{Worker: here, Zero: 1, ZeroAt: t0.Add(-ZeroGap), Total: 9},
		{Worker: here, Zero: 1, ZeroAt: t0.Add(-ZeroGap + 1), Total: 9},
		{Worker: other, Zero: 5, ZeroAt: t0.Add(-time.Minute), Total: 9},
		{Worker: here, Zero: 1, ZeroAt: t0.Add(-time.Minute), Total: 8},
	}
	var seen [Cut + 1]atomic.Int64
	t.Run("pods", func(t *testing.T) {
		for name, pod := range podsAt(t0) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				recs := records(t0)
				servers(func(s haproxy.Server) {
					for _, m := range memories {
						v := View{Now: t0, Worker: here, Server: s, Line: line, Pod: pod}
						for _, r := range recs {
							step := Next(v, r, m)
							seen[step.Do].Add(1)
							if why := broken(v, r, m, step); why != "" {
								t.Fatalf("%s\nserver: admin %v check %v agent %v sessions %d queued %d health %d/%d op %d\nmemory: %+v\nrecord: %s\nstep: %v %q, record %s",
									why, s.Admin, s.Check, s.Agent, s.Sessions, s.Queued, s.CheckHealth, s.Fall, s.Operational, m, show(r), step.Do, step.Why, show(step.Record))
							}
						}
					}
				})
			})
		}
	})
	for v := range seen {
		t.Logf("%v: %d", Verb(v), seen[v].Load())
		if seen[v].Load() == 0 {
			t.Errorf("%v was never decided: the walk misses what leads to it", Verb(v))
		}
	}
}

func show(r Record) string {
	return fmt.Sprintf("pod %+v op %+v foreign %q muted %v guarded %v finished %v return %+v", r.Pod, r.Op, r.Foreign, r.Muted, r.Guarded, r.Finished, r.Return)
}

// broken says which invariant a decision breaks, "" if none.
func broken(v View, r Record, m Memory, s Step) string {
	sv, out := v.Server, s.Record
	drained := sv.Admin&(haproxy.ForcedDrain|haproxy.ForcedMaint) != 0
	agentOff := sv.Agent&haproxy.Enabled == 0
	empty := sv.Sessions == 0 && sv.Queued == 0
	force := r.Op != nil && r.Op.Force && !r.Op.Lifted
	held := r.Op != nil && !r.Op.Lifted
	fresh := v.Pod.Phase == Open && v.Pod.Lost.IsZero() && v.Now.Sub(v.Pod.Heard) < Fresh
	twice := empty && m.Worker == v.Worker && m.Zero >= 1 && m.Total == sv.Total && v.Now.Sub(m.ZeroAt) >= ZeroGap
	// A person's hold may end without an agent's word only where nobody can be asked.
	mute := r.Pod == nil && (v.Pod.Phase == Unknown && v.Pod.Lost.IsZero() || !v.Pod.Lost.IsZero() && v.Now.Sub(v.Pod.Lost) >= Gone)
	if s.Do != Nothing && out.Empty() {
		return "a command without a record"
	}
	if s.Do != Nothing && sv.Admin&haproxy.ResolutionMaint != 0 {
		return "a command to a server without an address"
	}
	if held && (out.Op == nil || out.Op.Lifted) {
		return "a person's hold was dropped"
	}
	if s.Do != Nothing && !held && r.Pod != nil && v.Pod.Phase == Unknown && v.Now.Sub(v.Pod.Lost) < Gone {
		return "acts on a pod that it knows nothing of"
	}
	if f := Fact(v, s.Memory); f.HeldZero() && (!empty || !drained || !agentOff) {
		return "acknowledges held-zero that is none"
	}
	switch s.Do {
	case ToMaint:
		if !agentOff || !drained || !force && !twice {
			return "maint without DRAIN, agent off and two reads of zero"
		}
	case HealthOff:
		if !agentOff || !drained || !out.Guarded {
			return "health off without agent off, DRAIN or record"
		}
	case AgentOff:
		if !out.Muted {
			return "agent off without a record"
		}
	case Cut:
		if !force {
			return "cuts unforced"
		}
	}
	return loosened(v, r, s, held, fresh, mute, twice)
}

// loosened says which invariant a decision that gives something back breaks.
func loosened(v View, r Record, s Step, held, fresh, mute, twice bool) string {
	sv, out := v.Server, s.Record
	drained := sv.Admin&(haproxy.ForcedDrain|haproxy.ForcedMaint) != 0
	healthOff := sv.Check&haproxy.Enabled == 0
	switch s.Do {
	case ToReady:
		switch {
		case held:
			return "ready under a person's hold"
		case !fresh && !mute:
			return "ready without a fresh OPEN"
		case sv.Check&haproxy.Configured != 0 && (sv.CheckHealth < sv.Rise+sv.Fall-1 || sv.Operational != haproxy.OpRunning):
			return "ready before the check passes"
		case r.Guarded && healthOff && sv.Check&haproxy.Configured != 0:
			return "ready with health off"
		case out.Foreign != "":
			return "ready against others' state"
		}
	case HealthOn:
		dead := !v.Pod.Lost.IsZero() && v.Now.Sub(v.Pod.Lost) >= Gone
		if out.Pod != nil && !fresh && !(dead && (twice || sv.Admin&haproxy.ForcedMaint != 0)) {
			return "gives health back to a pod that is leaving, with sessions"
		}
		if !r.Guarded {
			return "turns on a check that others turned off"
		}
	case AgentOn:
		if held || !fresh && !mute || drained && out.Foreign == "" {
			return "agent on while held"
		}
		if r.Guarded && healthOff && sv.Check&haproxy.Configured != 0 {
			return "agent on with health off"
		}
	case ToDrain:
		if sv.Admin&haproxy.ForcedMaint != 0 && (r.Foreign == Maint && !held || !fresh && !mute) {
			return "leaves MAINT that others set, or without a fresh OPEN"
		}
	}
	return ""
}

// TestPure shows that Next leaves its input alone and decides the same twice.
func TestPure(t *testing.T) {
	v := View{Now: t0, Worker: here, Server: haproxy.Server{Admin: haproxy.ForcedDrain, Total: 1}, Line: Line{Endpoint: "p"}}
	m := Memory{Worker: here, Zero: 1, ZeroAt: t0.Add(-time.Second), Total: 1}
	for _, pod := range podsAt(t0) {
		v.Pod = pod
		for _, r := range records(t0) {
			before := show(r)
			a, b := Next(v, r, m), Next(v, r, m)
			if show(r) != before || a.Do != b.Do || !a.Record.Same(b.Record) {
				t.Fatalf("input %s became %s; %v then %v", before, show(r), a.Do, b.Do)
			}
		}
	}
}
