package hold

import (
	"time"

	"lbdrain/internal/haproxy"
)

// Verb is a command for one server.
type Verb uint8

// The verbs.
const (
	Nothing Verb = iota
	ToDrain
	ToMaint
	ToReady
	AgentOff
	AgentOn
	HealthOff
	HealthOn
	Cut // shutdown sessions
)

func (v Verb) String() string {
	return [...]string{"nothing", "drain", "maint", "ready", "disable agent", "enable agent", "disable health", "enable health", "shutdown sessions"}[v]
}

// Wait is what a server waits for when there is nothing to do now.
type Wait uint8

// The waits, the most urgent last.
const (
	Settled  Wait = iota // for nothing: look again at the usual interval
	ForPod               // for a fresh answer of its agent
	ForCheck             // for a health check to pass
	ForEmpty             // for its sessions to end
	ForZero              // for the second read of zero
)

// Step is one decision.
type Step struct {
	Record Record // to be journaled before Do is sent
	Memory Memory
	Do     Verb
	Wait   Wait
	Why    string
}

// Next decides about one server. With an empty record of a server that nobody
// wants held it does nothing.
func Next(v View, r Record, m Memory) Step {
	m = m.look(v)
	r, m = wanted(v, r, m)
	s := Step{Record: r, Memory: m}
	switch {
	case r.Empty() || r.Pod == nil && r.Op == nil:
		return s
	case v.unlocated():
		// `drain` would lift RMAINT and leave a server without an address UP.
		s.Why = "has no address (resolution)"
		return s
	case r.operator() || r.Pod != nil && v.Pod.Phase != Open:
		return hold(v, s)
	default:
		return giveBack(v, s)
	}
}

// wanted brings the record up to what pod and people want.
func wanted(v View, r Record, m Memory) (Record, Memory) {
	if v.Pod.Phase == Leaving && !v.Guest && (r.Pod == nil || r.Pod.Instance != v.Pod.Drain.Instance || r.Pod.Seq != v.Pod.Drain.Seq) {
		since := v.Now
		if r.Pod != nil {
			since = r.Pod.Since
		} else if r.Op == nil && r.Foreign == "" && v.maint() {
			r.Foreign = Maint // an agent of ours never says maint
		}
		r.Pod = &PodHold{v.Line.Endpoint, v.Pod.Drain.Instance, v.Pod.Drain.Seq, v.Pod.Deadline, since}
		r.Return = nil
	}
	if !v.drained() || r.Finished != nil && *r.Finished != v.Worker {
		r.Finished = nil // traffic may have come since
	}
	if r.Return != nil && (r.Return.Worker != v.Worker || !v.drained()) {
		r.Return = nil
	}
	if r.Pod != nil || r.Op != nil {
		m.Rest, m.Bits = time.Time{}, 0
		if v.maint() {
			r.Finished = &Worker{v.Worker.Pid, v.Worker.Start}
		}
		if r.Guarded && v.healthOn() && !v.drained() {
			r.Guarded = false // another worker, or another hand
		}
		return r, m
	}
	return foreign(v, r, m)
}

// foreign notices admin bits that others have set: seen with no hold of ours, at
// rest for two agent intervals of an OPEN pod. Earlier they can be the word of
// the pod's former instance, which `up ready` lifts.
func foreign(v View, r Record, m Memory) (Record, Memory) {
	if r.Empty() && (v.Guest || v.Line.Endpoint == "") {
		return r, m // no pod's hold will ever have to give it back
	}
	bits := v.Server.Admin & (haproxy.ForcedDrain | haproxy.ForcedMaint)
	if bits == 0 {
		r.Foreign = ""
	}
	if v.Line.Endpoint != "" && v.Pod.Phase != Open {
		m.Rest, m.Bits = time.Time{}, 0
		return r, m
	}
	if bits != m.Bits || m.Rest.IsZero() {
		m.Rest, m.Bits = v.Now, bits
	}
	if bits != 0 && v.Now.Sub(m.Rest) >= 2*v.Line.AgentInter {
		r.Foreign = Drain
		if v.maint() {
			r.Foreign = Maint
		}
	}
	return r, m
}

// hold is protocol rule 9, and 14 where a person holds.
func hold(v View, s Step) Step {
	r, op, pod := &s.Record, s.Record.operator(), s.Record.Pod != nil && v.Pod.Phase != Open
	gone := pod && v.Pod.Phase != Broken && v.Pod.gone(v.Now)
	r.Return = nil
	switch {
	case pod && !op && v.Pod.Phase == Unknown && !gone:
		return s.wait(ForPod, "its pod has not answered yet")
	case v.agentOn() && (op || v.drained()):
		r.Muted = true
		return s.do(AgentOff, "a stale word of the agent could lift the hold")
	case !v.drained():
		return s.do(ToDrain, "held")
	case v.maint():
		return holdInMaint(v, s, pod, gone)
	}
	if op && r.Op.Force {
		return s.do(ToMaint, "forced")
	}
	if op && !pod {
		r.Pod = nil // its pod is OPEN again: only the person holds
	}
	if op && r.Op.Kind == Drain && s.Memory.emptyTwice() && !r.Op.Guard.IsZero() {
		o := *r.Op
		o.Guard, r.Op = time.Time{}, &o
	}
	switch guard := pod && !gone || op && v.Now.Before(r.Op.Guard); {
	case guard && v.checked() && v.healthOn():
		r.Guarded, r.Unproven = true, true
		r.Finished = nil // a full check counter proves nothing from here on
		return s.do(HealthOff, "a failing check would cut what still runs")
	case guard, !r.Guarded:
	case v.healthOn():
		r.Guarded = false
	case !pod, s.Memory.emptyTwice(), r.Pod.overdue(v.Now):
		return s.do(HealthOn, "nothing is left to guard")
	}
	return toMaint(v, s, pod && !gone || op && r.Op.Kind == Maint)
}

// toMaint ends a hold in MAINT, where that is wanted, once nothing runs.
func toMaint(v View, s Step, wanted bool) Step {
	switch {
	case v.checking() && wanted:
		return s.wait(ForEmpty, "a check is in progress")
	case !v.empty():
		return s.wait(ForEmpty, "sessions or a queue are left")
	case !s.Memory.emptyTwice():
		return s.wait(ForZero, "was read empty once")
	case wanted:
		return s.do(ToMaint, "held and empty twice")
	}
	return s.wait(Settled, "held")
}

// holdInMaint is the rest of a hold once the server is in MAINT.
func holdInMaint(v View, s Step, pod, gone bool) Step {
	r := &s.Record
	if r.Guarded && v.healthOn() {
		r.Guarded = false
	}
	switch back := !pod && r.Pod != nil; { // only the person holds now
	case r.Guarded && (gone || !pod && !back):
		return s.do(HealthOn, "MAINT needs no guard")
	case back && !mayLoosen(v, *r):
		return s.wait(ForPod, "its pod has not said OPEN within the last second")
	case back && r.Guarded:
		return s.do(HealthOn, "its pod is OPEN")
	case back && r.Op.Kind == Drain && r.Foreign != Maint:
		return s.do(ToDrain, "the person wants DRAIN, and the pod is back")
	case r.operator() && r.Op.Force && v.Server.Sessions > 0:
		// HAProxy's on-marked-down does not cut here.
		return s.do(Cut, "forced")
	case back:
		r.Pod = nil
	}
	return toMaint(v, s, false)
}

// overdue says whether a silent pod has had its time.
func (p PodHold) overdue(now time.Time) bool {
	return !p.Deadline.IsZero() && now.After(p.Deadline.Add(Grace))
}

func (s Step) do(v Verb, why string) Step {
	s.Do, s.Why = v, why
	return s
}

func (s Step) wait(w Wait, why string) Step {
	s.Wait, s.Why = w, why
	return s
}
