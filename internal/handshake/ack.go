package handshake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Word is what a balancer has shown of itself in this drain.
type Word string

// The words of progress.lbs[].evidence.
const (
	None        Word = "none"         // seen, nothing shown yet
	Watching    Word = "watching"     // watches, has not held
	Deferred    Word = "deferred"     // the last usable server of a backend, for now
	Held        Word = "held"         // sends nothing new, by its own reading
	HeldZero    Word = "held-zero"    // held, guarded, and empty twice
	ExpiredHeld Word = "expired-held" // held once, silent since
	Absent      Word = "absent"       // its HAProxy is stopped, and starts in DRAIN
	Polls       Word = "polls"        // never watched: judged by its agent-check polls
	Gone        Word = "gone"         // neither checks, polls nor a socket left
)

// HAProxy's admin state bits that count as held (haproxy/server-t.h,
// SRV_ADMF_FMAINT and SRV_ADMF_FDRAIN).
const (
	AdminMaint = 0x01
	AdminDrain = 0x08
)

// Ack is a balancer's acknowledgement: facts about every server of this pod.
// With Drain nil it is a greeting, sent once after the watch is accepted.
type Ack struct {
	Version  int          `json:"version"`
	Drain    *DrainID     `json:"drain"`
	Interval Millis       `json:"interval_ms"` // it expires after three of these
	Window   Window       `json:"window_ms"`   // health flip to DOWN
	Sources  []string     `json:"sources"`     // addresses its HAProxy checks from
	HAProxy  Process      `json:"haproxy"`
	Deferred bool         `json:"deferred"`
	Servers  []ServerFact `json:"servers"`
}

// Window is the detection window, as HAProxy's timing gives it.
type Window struct {
	Best  Millis `json:"best"`
	Mean  Millis `json:"mean"`
	Worst Millis `json:"worst"`
}

// Process tells one HAProxy worker from the next: Pid and Start_time_sec of
// `show info`. Present is false while its HAProxy is stopped.
type Process struct {
	Pid     int   `json:"pid"`
	Start   int64 `json:"start"` // Unix seconds
	Present bool  `json:"present"`
}

// ServerFact is one server line of this pod as its HAProxy has it now.
type ServerFact struct {
	Backend         string `json:"backend"`
	Server          string `json:"server"`
	Admin           int    `json:"admin"`       // srv_admin_state
	Operational     int    `json:"operational"` // srv_op_state
	AgentOff        bool   `json:"agent_off"`
	HealthOff       bool   `json:"health_off"`
	CheckInProgress bool   `json:"check_in_progress"`
	Sessions        Count  `json:"sessions"` // scur
	Queued          Count  `json:"queued"`   // qcur
	ZeroReads       int    `json:"zero_reads"`
	OldSessions     Count  `json:"old_sessions"` // on workers from before a reload
}

// Held says whether this server gets nothing new: in DRAIN or MAINT, with the
// agent check off (a stale `up ready` could lift it otherwise).
func (s ServerFact) Held() bool {
	return s.Admin&(AdminMaint|AdminDrain) != 0 && s.AgentOff
}

// HeldZero says whether it is held, cannot be killed by its health check any
// more, and was empty at least twice.
func (s ServerFact) HeldZero() bool {
	guarded := s.HealthOff || s.Admin&AdminMaint != 0
	return s.Held() && guarded && !s.CheckInProgress &&
		s.Sessions.Zero() && s.Queued.Zero() && s.ZeroReads >= 2
}

// Word derives what the facts amount to: Absent, Deferred, HeldZero, Held or
// Watching. No servers at all is Watching: "all of none" proves nothing.
func (a Ack) Word() Word {
	switch {
	case !a.HAProxy.Present:
		return Absent
	case a.Deferred:
		return Deferred
	case len(a.Servers) == 0:
		return Watching
	}
	word := HeldZero
	for _, s := range a.Servers {
		if !s.Held() {
			return Watching
		}
		if !s.HeldZero() {
			word = Held
		}
	}
	return word
}

// Missing says what keeps the acknowledgement from being HeldZero, or "".
func (a Ack) Missing() string {
	if a.Word() == Absent {
		return ""
	}
	if len(a.Servers) == 0 {
		return "no server of this pod reported"
	}
	var why []string
	sessions, queued := Known(0), Known(0)
	for _, s := range a.Servers {
		at := s.Backend + "/" + s.Server
		switch {
		case s.Admin&(AdminMaint|AdminDrain) == 0:
			why = append(why, at+" is not in DRAIN")
		case !s.AgentOff:
			why = append(why, at+" still has its agent check")
		case s.CheckInProgress:
			why = append(why, at+" has a check in progress")
		case !s.HealthOff && s.Admin&AdminMaint == 0:
			why = append(why, at+" has its health check on")
		case s.ZeroReads < 2 && s.Sessions.Zero() && s.Queued.Zero():
			why = append(why, at+" was read empty once")
		}
		sessions, queued = sessions.Add(s.Sessions), queued.Add(s.Queued)
	}
	if !sessions.Zero() {
		why = append(why, sessions.String()+" sessions")
	}
	if !queued.Zero() {
		why = append(why, queued.String()+" queued")
	}
	return strings.Join(why, ", ")
}

// FieldError is a document that cannot be taken: which field, and why.
type FieldError struct {
	Field string
	Why   string
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return "document: " + e.Why
	}
	return fmt.Sprintf("field %q: %s", e.Field, e.Why)
}

// DecodeAck reads and checks an Ack. Every error is a *FieldError.
func DecodeAck(body []byte) (Ack, error) {
	a, err := decodeAck(body)
	if err != nil {
		return Ack{}, err
	}
	return a, nil
}

func decodeAck(body []byte) (Ack, error) {
	var a Ack
	top, err := require(body, "", "version", "drain", "interval_ms", "window_ms", "sources", "haproxy", "servers")
	if err != nil {
		return a, err
	}
	if d := top["drain"]; !isNull(d) {
		if _, err := require(d, "drain", "instance", "seq"); err != nil {
			return a, err
		}
	}
	if _, err := require(top["haproxy"], "haproxy", "pid", "start", "present"); err != nil {
		return a, err
	}
	if _, err := require(top["window_ms"], "window_ms", "best", "mean", "worst"); err != nil {
		return a, err
	}
	var servers []json.RawMessage
	if err := json.Unmarshal(top["servers"], &servers); err != nil || isNull(top["servers"]) {
		return a, &FieldError{"servers", "want an array"}
	}
	for i, s := range servers {
		_, err := require(s, fmt.Sprintf("servers[%d]", i), "backend", "server", "admin", "operational",
			"agent_off", "health_off", "check_in_progress", "sessions", "queued", "zero_reads")
		if err != nil {
			return a, err
		}
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return a, typeError(err)
	}
	return a, a.check()
}

// check holds what the types cannot say.
func (a Ack) check() error {
	if err := checkVersion(a.Version); err != nil {
		return err
	}
	if a.Interval <= 0 {
		return &FieldError{"interval_ms", "want more than 0"}
	}
	for _, s := range a.Sources {
		if _, err := netip.ParseAddr(s); err != nil {
			return &FieldError{"sources", fmt.Sprintf("%.64q is not an address", s)}
		}
	}
	for i, s := range a.Servers {
		if s.Backend == "" || s.Server == "" {
			return &FieldError{fmt.Sprintf("servers[%d]", i), "backend and server want a name"}
		}
		if s.ZeroReads < 0 {
			return &FieldError{fmt.Sprintf("servers[%d].zero_reads", i), "want at least 0"}
		}
	}
	return nil
}

func checkVersion(v int) error {
	if v == Version || (v == Version-1 && v > 0) {
		return nil
	}
	return &FieldError{"version", fmt.Sprintf("%d is not spoken here, %d is", v, Version)}
}

// nullable are the required keys for which null says something.
var nullable = map[string]bool{"drain": true, "sessions": true, "queued": true}

// require decodes an object and names the first key that is missing, or null
// where null would silently read as false or 0.
func require(body []byte, in string, keys ...string) (map[string]json.RawMessage, error) {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(body, &m); err != nil || m == nil {
		return nil, &FieldError{in, "want a JSON object"}
	}
	for _, k := range keys {
		if v, ok := m[k]; ok && (nullable[k] || !isNull(v)) {
			continue
		}
		if in != "" {
			k = in + "." + k
		}
		return nil, &FieldError{k, "missing or null"}
	}
	return m, nil
}

func typeError(err error) error {
	var t *json.UnmarshalTypeError
	if errors.As(err, &t) {
		return &FieldError{t.Field, "cannot be a " + t.Value}
	}
	return &FieldError{"", err.Error()}
}

func isNull(b []byte) bool { return bytes.Equal(bytes.TrimSpace(b), []byte("null")) }
