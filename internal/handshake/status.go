package handshake

import (
	"encoding/json"
	"fmt"
)

// DrainID names one drain: the agent process and the seq of its DRAINING
// transition. A reopen, a restart or a second drain makes a new one, which
// discards every acknowledgement of the old one (protocol-model rule 1).
type DrainID struct {
	Instance string `json:"instance"`
	Seq      uint64 `json:"seq"`
}

// Drain is a drain that is under way.
type Drain struct {
	DrainID
	Finish   bool `json:"finish"`   // it goes through to CLOSED; false is a person's drain
	Deadline Time `json:"deadline"` // null for a person's drain
}

// Status is the answer of GET /drain/status and of every PUT /drain/lbs/{lb}.
type Status struct {
	Version  int      `json:"version"`
	Ready    bool     `json:"ready"` // what /health says
	State    string   `json:"state"` // OPEN DRAINING CLOSING CLOSED FAULT
	Instance string   `json:"instance"`
	Seq      uint64   `json:"seq"` // grows with every transition
	Since    Time     `json:"since"`
	Drain    *Drain   `json:"drain"` // null when none is under way
	Progress Progress `json:"progress"`
	Warning  string   `json:"warning,omitempty"`
}

// ETag is the strong entity tag of this state, quotes included.
func (s Status) ETag() string { return fmt.Sprintf("\"%s.%d\"", s.Instance, s.Seq) }

// Progress is how far the drain has come.
type Progress struct {
	StartedAt   Time             `json:"started_at"`
	InFlight    map[string]Count `json:"in_flight"` // by source
	Upgrades    Count            `json:"upgrades"`  // websockets among them
	QuietSince  Time             `json:"quiet_since"`
	Envoy       string           `json:"envoy"` // "", serving, drained, gone, unknown
	LBs         []LB             `json:"lbs"`
	Transitions []Transition     `json:"transitions"`
}

// LB is what one balancer has shown.
type LB struct {
	LB        string   `json:"lb"`
	Evidence  Word     `json:"evidence"`
	Missing   string   `json:"missing"` // empty when it no longer holds the pod back
	Sources   []string `json:"sources"`
	LastHeard Time     `json:"last_heard"`
}

// Transition is one move of the pod's state machine.
type Transition struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason"`
	At     Time   `json:"at"`
}

// MaxBody bounds both documents on the wire, in bytes.
const MaxBody = 64 << 10

// DecodeStatus reads a Status. A body without version, state, instance or seq
// is no status of an agent: the error is a *FieldError.
func DecodeStatus(body []byte) (Status, error) {
	var s Status
	if _, err := require(body, "", "version", "state", "instance", "seq"); err != nil {
		return s, err
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return s, typeError(err)
	}
	return s, checkVersion(s.Version)
}
