package haproxy

import (
	"strings"
	"time"
)

// Scope says which backends to read; an empty one means all.
type Scope struct {
	Backends []string
}

// Info is what `show info` says about the worker that answered. (Pid, Start)
// tells one worker from the next: both change with every reload and restart.
type Info struct {
	Pid      int
	Start    int64 // Start_time_sec, Unix seconds
	Version  string
	Node     string
	Uptime   time.Duration // whole seconds
	Stopping bool          // an old worker that only finishes what it has
	Jobs     int
}

// AdminState is srv_admin_state: why a server gets no new requests (server-t.h,
// enum srv_admin).
type AdminState uint8

const (
	ForcedMaint     AdminState = 1 << iota // by command or agent
	InheritedMaint                         // from a tracked server
	ConfigMaint                            // `disabled` in the configuration; says nothing about now
	ForcedDrain                            // by command or agent
	InheritedDrain                         // from a tracked server
	ResolutionMaint                        // its name does not resolve
	FQDNChanged                            // its name was set over the socket; says nothing about traffic
)

// Maint says whether any of its bits puts the server in MAINT. ConfigMaint
// alone does not: it stays set after `ready`.
func (a AdminState) Maint() bool { return a&(ForcedMaint|InheritedMaint|ResolutionMaint) != 0 }

// Drain says whether any of its bits puts the server in DRAIN.
func (a AdminState) Drain() bool { return a&(ForcedDrain|InheritedDrain) != 0 }

// String names the bits, "" for none: "FDRAIN", "FMAINT|CMAINT".
func (a AdminState) String() string {
	return bits(uint8(a), "FMAINT", "IMAINT", "CMAINT", "FDRAIN", "IDRAIN", "RMAINT", "FQDN")
}

// CheckState is srv_check_state and srv_agent_state (check-t.h, CHK_ST_*),
// without the bits that 2.6 shows of its buffers.
type CheckState uint8

const (
	InProgress CheckState = 1 << iota // a check is on its way; its result counts even after `disable health`
	Configured
	Enabled // off after `disable health` or `disable agent`
	Paused  // by MAINT; health checks only
	Agent   // the agent's state, not the health check's
)

// On says whether the check is configured and enabled. A health check may be
// on and paused.
func (c CheckState) On() bool { return c&(Configured|Enabled) == Configured|Enabled }

// String names the bits, "" for none.
func (c CheckState) String() string {
	return bits(uint8(c), "INPROGRESS", "CONFIGURED", "ENABLED", "PAUSED", "AGENT")
}

func bits(v uint8, names ...string) string {
	var set []string
	for i, name := range names {
		if v&(1<<i) != 0 {
			set = append(set, name)
		}
	}
	return strings.Join(set, "|")
}

// Values of srv_op_state (server-t.h, enum srv_state).
const (
	OpStopped  = 0
	OpStarting = 1 // slow start
	OpRunning  = 2
	OpStopping = 3 // NOLB: no new requests, what runs goes on
)

// Server is one server line as its HAProxy has it now.
type Server struct {
	Backend, Name string
	BackendID, ID int
	Addr          string // "-" without an address
	Port          int
	Mode          string // the backend's: http, tcp; "" at level user

	Admin          AdminState
	Operational    int           // OpStopped …
	LastChange     time.Duration // since the last change of the operational state, whole seconds
	Status         string        // as `show stat` puts it: UP, UP 1/2, DOWN, DRAIN, MAINT, NOLB, no check, …
	Weight         int           // effective, in [0, 256]; less than UserWeight during a slow start
	UserWeight     int           // as the configuration or `set server … weight` has it
	Tracks         string        // backend/server it takes its health from
	Backup, Active bool

	Check         CheckState
	CheckHealth   int    // in [0, Rise+Fall-1]; may be -1 for a moment after a start
	Rise, Fall    int    // of the health check, 0 without one and at level user
	CheckStatus   string // L7OK, L4CON, INI, …, "" without a check
	CheckRunning  bool   // one was on its way when the statistics were written, a little after Check
	CheckCode     int    // the last check's HTTP status, 0 for none
	CheckDuration time.Duration
	LastCheck     string // what it answered

	Agent        CheckState
	AgentStatus  string
	AgentRunning bool
	LastAgent    string // "via agent : …"

	Sessions    uint64 // scur: requests in flight; in mode tcp connections, idle ones too
	Queued      uint64 // qcur: waiting for this server, not in Sessions
	Connections uint64 // used_conn_cur: 0 in mode tcp
	Idle        uint64 // idle_conn_cur: pooled, nobody's request
	MaxConn     int    // slim, 0 for none
	Total       uint64 // stot: requests so far
}

// Read is one whole look at the servers of a scope.
type Read struct {
	Info    Info
	Level   string   // of the socket: admin, operator, user
	Servers []Server // in HAProxy's order
	// Disabled are the backends of the scope that say `disabled`: they take no
	// traffic, refuse every command, have no statistics, and are not in Servers.
	Disabled []string

	// At is when the read was asked for, Took how long the answer took: every
	// fact in it was true at some moment between At and At+Took.
	At   time.Time
	Took time.Duration
}

// Server finds a server by its names.
func (r *Read) Server(backend, name string) (Server, bool) {
	for i := range r.Servers {
		if s := &r.Servers[i]; s.Name == name && s.Backend == backend {
			return *s, true
		}
	}
	return Server{}, false
}

// Apart is the least time that lies between any fact of an earlier read and
// any fact of this one; negative if they overlap.
func (r *Read) Apart(earlier *Read) time.Duration {
	return r.At.Sub(earlier.At.Add(earlier.Took))
}
