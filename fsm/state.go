package fsm

import "fmt"

// State is where the pod stands. The zero value is none of the five: a state
// that nobody set must never be taken for OPEN.
type State uint8

// The states, in the order of a drain.
const (
	Open     State = iota + 1 // serving
	Draining                  // nothing new wanted, in-flight continues
	Closing                   // confirmed empty; the balancer may drop the server
	Closed                    // endpoints may go, the process may exit
	Fault                     // broken; left only by a restart
)

// States lists the five, in the order of a drain.
func States() []State { return []State{Open, Draining, Closing, Closed, Fault} }

// String is the name on the wire: "OPEN".
func (s State) String() string {
	if s < Open || s > Fault {
		return fmt.Sprintf("State(%d)", uint8(s))
	}
	return rows[s].name
}

// ParseState reads a state's name, as String writes it, or the name it had in
// recordings of the original experiment: READY, DRAINED_WAIT_LB, TERMINATING,
// FAILED (DRAINING kept its name).
func ParseState(name string) (State, error) {
	for _, s := range States() {
		if name == rows[s].name || name == rows[s].old {
			return s, nil
		}
	}
	return 0, fmt.Errorf("state %.40q: want OPEN, DRAINING, CLOSING, CLOSED or FAULT", name)
}

// Signals is what a state answers to each of those who ask: a row of the table
// in the README.
type Signals struct {
	Health     int    // HTTP status of /health_check.html, HAProxy's check
	HealthBody string // and its body
	Readiness  int    // HTTP status of /health
	Liveness   int    // HTTP status of /live
	Word       string // HAProxy's agent-check word
}

// Signals is the row of the table for s. The two cases in which the caller says
// something else are told apart by evidence that is not here: a balancer that
// has not shown itself empty keeps hearing 200 from CLOSING on, and CLOSED says
// `down` where a person or a passed deadline accepted the cut.
//
// A value that is no state answers as FAULT does.
func (s State) Signals() Signals {
	if s < Open || s > Fault {
		s = Fault
	}
	return rows[s].signals
}

var rows = [...]struct {
	name, old string
	signals   Signals
}{
	Open:     {"OPEN", "READY", Signals{200, "OK", 200, 200, "up"}},
	Draining: {"DRAINING", "DRAINING", Signals{200, "OK", 200, 200, "drain"}},
	Closing:  {"CLOSING", "DRAINED_WAIT_LB", Signals{503, "DRAIN", 200, 200, "drain"}},
	Closed:   {"CLOSED", "TERMINATING", Signals{503, "DRAIN", 503, 200, "drain"}},
	Fault:    {"FAULT", "FAILED", Signals{503, "DRAIN", 503, 500, "down #fault"}},
}
