package hold

import "time"

// Kinds of a person's hold.
const (
	Drain = "drain"
	Maint = "maint"
)

// Worker tells one HAProxy worker from the next.
type Worker struct {
	Pid   int   `json:"pid"`
	Start int64 `json:"start"` // Unix seconds
}

// Record is what is journaled of one server line: who wants it held and what
// was done to it. Without PodHold, OpHold and Foreign there is no record.
type Record struct {
	Backend string   `json:"backend"`
	Server  string   `json:"server"`
	Pod     *PodHold `json:"pod,omitempty"`
	Op      *OpHold  `json:"operator,omitempty"`
	// Foreign is the state that others (socat, the stats page) had given the
	// server before any hold: "drain", "maint" or "". A return gives it back.
	Foreign  string     `json:"foreign,omitempty"`
	Muted    bool       `json:"agent_off,omitempty"`  // we turned the agent check off
	Guarded  bool       `json:"health_off,omitempty"` // we turned the health check off
	Unproven bool       `json:"unproven,omitempty"`   // health was off in this hold: its last result is old
	Finished *Worker    `json:"finished,omitempty"`   // read in MAINT in this hold, under this worker
	Return   *Probation `json:"return,omitempty"`
}

// PodHold is a hold for a pod that is leaving.
type PodHold struct {
	Endpoint string    `json:"endpoint"`
	Instance string    `json:"instance"`
	Seq      uint64    `json:"seq"`
	Deadline time.Time `json:"deadline,omitzero"` // zero: a person's drain
	Since    time.Time `json:"since"`
}

// OpHold is a person's hold. It stays until lifted.
type OpHold struct {
	Kind   string    `json:"kind"` // Drain or Maint
	Reason string    `json:"reason,omitempty"`
	By     string    `json:"by,omitempty"`
	Since  time.Time `json:"since"`
	// Guard is until when a failing health check may not cut what is still
	// running: the time limit of whoever waits for it.
	Guard time.Time `json:"guard,omitzero"`
	// Force is the person's word that what still runs may be cut (Maint only).
	Force  bool `json:"force,omitempty"`
	Lifted bool `json:"lifted,omitempty"` // on its way back
}

// Probation is the wait for a passed check in DRAIN before ready.
type Probation struct {
	Worker    Worker    `json:"worker"`
	Since     time.Time `json:"since"`
	FromMaint bool      `json:"from_maint,omitempty"`
}

// Empty says whether nothing is left that needs to be remembered.
func (r Record) Empty() bool { return r.Pod == nil && r.Op == nil && r.Foreign == "" }

// operator says whether a person's hold is in force.
func (r Record) operator() bool { return r.Op != nil && !r.Op.Lifted }

// Same compares what is journaled.
func (r Record) Same(o Record) bool {
	return r.Backend == o.Backend && r.Server == o.Server && r.Foreign == o.Foreign &&
		r.Muted == o.Muted && r.Guarded == o.Guarded && r.Unproven == o.Unproven &&
		equal(r.Pod, o.Pod) && equal(r.Op, o.Op) && equal(r.Finished, o.Finished) && equal(r.Return, o.Return)
}

func equal[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
