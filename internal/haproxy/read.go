package haproxy

import (
	"strconv"
	"strings"
	"time"

	"github.com/haproxytech/client-native/v5/models"
)

// Scope says what to read: these backends, or only these servers, or
// everything if neither is named. Two servers of a backend of a thousand cost a
// fifth of the whole backend.
type Scope struct {
	Backends []string
	Servers  []Name
}

// Name names a server line.
type Name struct {
	Backend, Server string
}

func (n Name) String() string { return n.Backend + "/" + n.Server }

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

// Runtime is the server as the Data Plane API's runtime endpoints give it, so
// that scripts written for them read ours. It differs from client-native's own
// in one thing: that one reads HAProxy's decimal admin bits as hexadecimal, and
// so calls DRAIN of a server with `disabled` in its line (12), and DRAIN
// inherited from a tracked one (16), "maint".
func (s Server) Runtime() models.RuntimeServer {
	port := int64(s.Port)
	m := models.RuntimeServer{
		Name:             s.Name,
		ID:               strconv.Itoa(s.ID),
		Address:          s.Addr,
		Port:             &port,
		AdminState:       models.RuntimeServerAdminStateReady,
		OperationalState: models.RuntimeServerOperationalStateUp,
	}
	switch {
	case s.Admin.Maint():
		m.AdminState = models.RuntimeServerAdminStateMaint
	case s.Admin.Drain():
		m.AdminState = models.RuntimeServerAdminStateDrain
	}
	switch s.Operational {
	case OpStopped:
		m.OperationalState = models.RuntimeServerOperationalStateDown
	case OpStopping:
		m.OperationalState = models.RuntimeServerOperationalStateStopping
	}
	return m
}

// Native is the server's statistics in the same API's form, as far as a Read
// has them.
func (s Server) Native() models.NativeStat {
	n := func(v int64) *int64 { return &v }
	st := &models.NativeStatStats{
		Iid: n(int64(s.BackendID)), Sid: n(int64(s.ID)), Mode: s.Mode,
		Status: s.Status, Weight: n(int64(s.Weight)), Lastchg: n(int64(s.LastChange.Seconds())), Tracked: s.Tracks,
		Scur: n(int64(s.Sessions)), Qcur: n(int64(s.Queued)), Stot: n(int64(s.Total)),
		CheckStatus: s.CheckStatus, AgentStatus: s.AgentStatus,
	}
	if s.MaxConn != 0 {
		st.Slim = n(int64(s.MaxConn))
	}
	if s.Check&Configured != 0 {
		st.CheckRise, st.CheckFall = n(int64(s.Rise)), n(int64(s.Fall))
		st.CheckHealth, st.CheckDuration = n(int64(s.CheckHealth)), n(s.CheckDuration.Milliseconds())
		st.LastChk = &s.LastCheck
		if s.CheckCode != 0 {
			st.CheckCode = n(int64(s.CheckCode))
		}
	}
	if s.Agent&Configured != 0 {
		st.LastAgt = &s.LastAgent
	}
	return models.NativeStat{BackendName: s.Backend, Name: s.Name, Type: models.NativeStatTypeServer, Stats: st}
}
