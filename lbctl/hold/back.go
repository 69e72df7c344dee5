package hold

import "lbdrain/internal/haproxy"

// giveBack is protocol rule 12: the way from a hold to traffic. Every step of
// it rests on a fresh OPEN (rule 13).
func giveBack(v View, s Step) Step {
	r := &s.Record
	if !mayLoosen(v, *r) {
		return s.wait(ForPod, "its pod has not said OPEN within the last second")
	}
	switch {
	case !v.drained():
		return release(v, s)
	case successor(v, *r) && !v.maint() && r.Finished == nil:
		return finish(v, s)
	case r.Guarded && v.checked() && !v.healthOn():
		return s.do(HealthOn, "its pod is OPEN")
	}
	r.Guarded = false
	if r.Foreign == Maint && v.maint() {
		return release(v, s)
	}
	if v.maint() {
		return s.do(ToDrain, "a check must pass before traffic")
	}
	if r.Return == nil {
		r.Return = &Probation{v.Worker, v.Now, r.Finished != nil}
		s.Memory.Idle, s.Memory.Probed = false, false
	}
	s.Memory.Probed = s.Memory.Probed || s.Memory.Idle && v.checking()
	s.Memory.Idle = s.Memory.Idle || !v.checking()
	switch {
	case !passed(v, *r, s.Memory):
		return s.wait(ForCheck, "no check has passed since")
	case r.Foreign != "":
		return release(v, s)
	}
	return s.do(ToReady, "its pod is OPEN and a check has passed")
}

// mayLoosen is the lease: what was held for a pod is given back only to a pod
// that says OPEN now. A person's hold on a server whose agent cannot be reached
// is left to the health check.
func mayLoosen(v View, r Record) bool {
	unwatched := v.Line.Endpoint == "" || v.Pod.Phase == Unknown && v.Pod.Lost.IsZero()
	if r.Pod == nil && (unwatched || v.Pod.gone(v.Now)) {
		return true
	}
	return v.Pod.freshlyOpen(v.Now)
}

// successor says whether another pod than the one it was held for is OPEN now.
func successor(v View, r Record) bool { return r.Pod != nil && r.Pod.Instance != v.Pod.Instance }

// finish takes a hold that never was in MAINT there, so that no pooled
// connection to the old pod is left.
func finish(v View, s Step) Step {
	switch {
	case v.agentOn():
		s.Record.Muted = true
		return s.do(AgentOff, "a stale word of the agent could lift the hold")
	case !v.empty():
		return s.wait(ForEmpty, "sessions of the former pod are left")
	case !s.Memory.emptyTwice():
		return s.wait(ForZero, "was read empty once")
	}
	return s.do(ToMaint, "drops the pooled connections to the former pod")
}

// release gives back agent and health and ends the hold.
func release(v View, s Step) Step {
	r := &s.Record
	switch {
	case r.Guarded && v.checked() && !v.healthOn():
		return s.do(HealthOn, "its pod is OPEN")
	case r.Muted && v.Server.Agent&haproxy.Configured != 0 && !v.agentOn():
		return s.do(AgentOn, "the hold is over")
	}
	foreign := r.Foreign
	if !v.drained() {
		foreign = ""
	}
	s.Record = Record{Backend: r.Backend, Server: r.Server, Foreign: foreign}
	s.Memory = Memory{Worker: v.Worker}
	return s.wait(Settled, "given back")
}

// passed says whether a health check has passed that ended after the probation
// began.
//
// Leaving MAINT sets the counter to rise (server.c, _srv_update_status_adm); it
// is full, rise+fall-1, only after a passed check, and one failed check takes it
// down: so with fall ≥ 2 a full counter is the proof. Where fall is 1, or the
// server never was in MAINT, the counter may be full from before: then it must
// still be full when a check that was seen on its way is over, or after a time in
// which a whole one has fitted.
func passed(v View, r Record, m Memory) bool {
	s := v.Server
	running := s.Operational == haproxy.OpRunning || s.Operational == haproxy.OpStarting
	switch {
	case !v.checked():
		// A tracker has no check of its own but its root's state; a server
		// without any is running always.
		return running
	case !running || s.CheckHealth < s.Rise+s.Fall-1:
		return false
	case r.Return.FromMaint && s.Fall >= 2:
		return true
	case !r.Return.FromMaint && !r.Unproven:
		return true // its check was never off
	}
	return m.Probed && !v.checking() || v.Now.Sub(r.Return.Since) >= v.Line.patience()
}
