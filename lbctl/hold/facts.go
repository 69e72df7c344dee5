package hold

import (
	"lbdrain/internal/handshake"
	"lbdrain/internal/haproxy"
)

// Fact is what an acknowledgement says of one server. Sessions of old workers
// are not known here.
func Fact(v View, m Memory) handshake.ServerFact {
	s := v.Server
	return handshake.ServerFact{
		Backend: s.Backend, Server: s.Name,
		Admin: int(s.Admin), Operational: s.Operational,
		AgentOff: !v.agentOn(), HealthOff: !v.healthOn(), CheckInProgress: v.checking(),
		Sessions: handshake.Known(s.Sessions), Queued: handshake.Known(s.Queued),
		ZeroReads: m.Zero,
	}
}

// Command is verb as HAProxy's command for a server; false for Nothing.
func Command(verb Verb, backend, server string) (haproxy.Command, bool) {
	switch verb {
	case ToDrain:
		return haproxy.SetState(backend, server, haproxy.Drain), true
	case ToMaint:
		return haproxy.SetState(backend, server, haproxy.Maint), true
	case ToReady:
		return haproxy.SetState(backend, server, haproxy.Ready), true
	case AgentOff:
		return haproxy.DisableAgent(backend, server), true
	case AgentOn:
		return haproxy.EnableAgent(backend, server), true
	case HealthOff:
		return haproxy.DisableHealth(backend, server), true
	case HealthOn:
		return haproxy.EnableHealth(backend, server), true
	case Cut:
		return haproxy.ShutdownSessions(backend, server), true
	}
	return haproxy.Command{}, false
}
