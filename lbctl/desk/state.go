package desk

import (
	"lbdrain/internal/haproxy"
)

// State is a server's state in one word or two: UP, UP (weight 0), DOWN, NOLB,
// DRAIN, DRAIN (down), DRAIN (via BACKEND/SERVER), MAINT, MAINT (via …), MAINT
// (resolution): no address.
//
// It is taken from the admin bits: `show stat` writes "DRAIN (agent)" for every
// DRAIN of a server with an agent check, DOWN for a drained server whose check
// fails, and "UP 1/2".
func State(s haproxy.Server) string {
	switch a := s.Admin; {
	case a&haproxy.ForcedMaint != 0:
		return "MAINT"
	case a&haproxy.InheritedMaint != 0:
		return "MAINT (via " + s.Tracks + ")"
	case a&haproxy.ResolutionMaint != 0:
		return "MAINT (resolution)"
	case a.Drain() && s.Operational == haproxy.OpStopped:
		return "DRAIN (down)"
	case a&haproxy.ForcedDrain != 0:
		return "DRAIN"
	case a&haproxy.InheritedDrain != 0:
		return "DRAIN (via " + s.Tracks + ")"
	}
	switch {
	case s.Operational == haproxy.OpStopped:
		return "DOWN"
	case s.Operational == haproxy.OpStopping:
		return "NOLB"
	case s.UserWeight == 0:
		return "UP (weight 0)"
	}
	return "UP"
}
