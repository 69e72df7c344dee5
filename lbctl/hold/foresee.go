package hold

import (
	"lbdrain/internal/haproxy"
)

// Apply is what HAProxy makes of a verb, for one server without traffic
// (server.h, srv_adm_set_drain and its kin; check.c).
func Apply(s haproxy.Server, v Verb) haproxy.Server {
	switch v {
	case ToDrain:
		if s.Admin&haproxy.ForcedMaint != 0 {
			s.CheckHealth, s.Operational = s.Rise, haproxy.OpRunning
		}
		s.Admin = s.Admin&^haproxy.ForcedMaint | haproxy.ForcedDrain
	case ToMaint:
		s.Admin = s.Admin&^haproxy.ForcedDrain | haproxy.ForcedMaint
		s.Operational = haproxy.OpStopped
	case ToReady:
		if s.Admin&haproxy.ForcedMaint != 0 {
			s.CheckHealth, s.Operational = s.Rise, haproxy.OpRunning
		}
		s.Admin &^= haproxy.ForcedDrain | haproxy.ForcedMaint
	case AgentOff:
		s.Agent &^= haproxy.Enabled
	case AgentOn:
		s.Agent |= haproxy.Enabled
	case HealthOff:
		s.Check &^= haproxy.Enabled
	case HealthOn:
		s.Check |= haproxy.Enabled
	}
	if s.Admin&haproxy.ForcedMaint != 0 {
		s.Check |= haproxy.Paused
	} else {
		s.Check &^= haproxy.Paused
	}
	return s
}

// Foresee is what would be sent for a server, in order, if its requests ended
// and its checks passed. It ends after 20 commands.
func Foresee(v View, r Record) []Verb {
	var verbs []Verb
	var m Memory
	for range 200 {
		s := Next(v, r, m)
		r, m = s.Record, s.Memory
		if s.Do == Nothing {
			if s.Wait == Settled || s.Wait == ForPod {
				return verbs
			}
			v.Server.Sessions, v.Server.Queued, v.Server.CheckRunning = 0, 0, false
			v.Server.Check &^= haproxy.InProgress
			if v.healthOn() && !v.maint() {
				v.Server.CheckHealth, v.Server.Operational = v.Server.Rise+v.Server.Fall-1, haproxy.OpRunning
			}
			if v.Now = v.Now.Add(ZeroGap); s.Wait == ForCheck {
				v.Now = v.Now.Add(v.Line.patience())
			}
			v.Pod.Heard = v.Now
			continue
		}
		if verbs = append(verbs, s.Do); len(verbs) == 20 {
			return verbs
		}
		v.Server = Apply(v.Server, s.Do)
	}
	return verbs
}
