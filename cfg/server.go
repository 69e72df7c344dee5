package cfg

import (
	"fmt"
	"strings"
	"time"
)

// Server is one server with its effective settings: what HAProxy runs with after
// defaults, default-server and the server's own line.
type Server struct {
	Backend, Name string
	// Addr is an IP address, a host name, or the text of a unix@ or abns@
	// address. Port is 0 where none is given, or where it is relative to the
	// port the client came to (MapPorts).
	Addr     string
	Port     int
	MapPorts bool

	// Check is on where the server checks itself. One that tracks another has
	// Check false and the timings, type and target of the one it follows.
	Check bool
	// Type is how: tcp, or the option that says so (httpchk, tcp-check,
	// mysql-check …). Empty where there is no check.
	Type      string
	CheckAddr string // where given, empty: Addr
	// CheckPort is where the check goes, 0 without one.
	CheckPort int
	// Inter is what the check waits after a good result, FastInter while the
	// server changes, DownInter while it is down; both are Inter unless set.
	Inter, FastInter, DownInter time.Duration
	Rise, Fall                  int
	// TimeoutCheck and TimeoutConnect are the backend's, 0 if unset.
	TimeoutCheck, TimeoutConnect time.Duration

	Agent bool
	// AgentAddr is where the agent-check goes, with agent-addr or addr or
	// without; AgentPort is agent-port or port.
	AgentAddr string
	AgentPort int
	// AgentInter is 2 s unless set; it does not follow Inter.
	AgentInter time.Duration
	AgentSend  string

	OnMarkedDown, OnMarkedUp string // shutdown-sessions, shutdown-backup-sessions, or empty
	Observe, OnError         string
	// Track is what the server's track says, as BACKEND/SERVER; TrackRoot is
	// the end of the chain, empty if there is none.
	Track, TrackRoot string
	Disabled, Backup bool
	Weight           int
	Cookie           string
	Slowstart        time.Duration
	Maxconn          int
	InitState        string // 3.1 and later
	Source           string // own or the backend's, without port
	Resolvers        string
	Mode             string // of the backend: tcp or http

	File string
	Line int

	checkPort, agentPort       int // as written, 0 if not
	checkAddr, agentAddr       string
	checkAddrPort              int // of an addr with a port
	agentPortSet, agentAddrSet bool
	fastInter, downInter       time.Duration
	track, healthcheck         string
	template                   bool
	spread                     int // percent
	px                         int // index of the backend
	files                      []string
	marks                      [numKeys]mark
}

// Template says that the server is a slot of a server-template.
func (s Server) Template() bool { return s.template }

// Window is how long HAProxy goes on sending to a server whose check has begun
// to fail: from the first moment a check could fail to the mark DOWN.
type Window struct{ Best, Mean, Worst time.Duration }

// Window is that of a check that is answered at once (measured on 2.6.12 and
// 3.0.11 with inter 2s fall 2: 2030/2899/4015 ms against 2000/3000/4000). It is
// zero without a check.
func (s Server) Window() Window { return s.WindowAt(0) }

// WindowAt is the window of a check that takes d: best (fall-1)·F, mean
// inter/2+(fall-1)·F, worst inter+(fall-1)·F+fall·d, where F is fastinter; the
// next check is scheduled after the end of the last (check.c process_chk_conn).
// spread-checks widens best and worst by its percent.
func (s Server) WindowAt(d time.Duration) Window {
	if !s.Check && s.TrackRoot == "" || s.Fall < 1 || s.Type == "" {
		return Window{}
	}
	fast := times(s.Fall-1, s.FastInter)
	spread := func(t time.Duration, percent int) time.Duration {
		return t + t/100*time.Duration(percent)
	}
	return Window{
		Best:  spread(fast, -s.spread),
		Mean:  s.Inter/2 + fast,
		Worst: spread(s.Inter+fast, s.spread) + times(s.Fall, d),
	}
}

// times is n·d, at most a century: fall may be two billion and inter 24 days.
func times(n int, d time.Duration) time.Duration {
	const century = 100 * 365 * 24 * time.Hour
	if d > 0 && n > int(century/d) {
		return century
	}
	return time.Duration(n) * d
}

// CheckLimit is the longest a check can take before it counts as failed: inter,
// or where timeout check is set, that after a connect that may take the less of
// inter and timeout connect (tcpcheck.c tcpcheck_eval_connect).
func (s Server) CheckLimit() time.Duration {
	if s.TimeoutCheck == 0 {
		return s.Inter
	}
	connect := s.Inter
	if s.TimeoutConnect > 0 && s.TimeoutConnect < connect {
		connect = s.TimeoutConnect
	}
	return connect + s.TimeoutCheck
}

// CheckTarget is the address the check goes to.
func (s Server) CheckTarget() string {
	if s.CheckAddr != "" {
		return s.CheckAddr
	}
	return s.Addr
}

type key uint8

// The settings that know where they come from.
const (
	kAddr key = iota
	kSport
	kCheck
	kType
	kInter
	kFastinter
	kDowninter
	kFall
	kRise
	kCheckPort
	kCheckAddr
	kAgent
	kAgentPort
	kAgentInter
	kAgentAddr
	kAgentSend
	kOnMarkedDown
	kOnMarkedUp
	kTrack
	kDisabled
	kBackup
	kWeight
	kCookie
	kSlowstart
	kMaxconn
	kObserve
	kOnError
	kInitState
	kSource
	kResolvers
	kTimeoutCheck
	kTimeoutConnect
	kMode
	numKeys
)

var keyNames = [numKeys]string{
	"addr", "sport", "check", "type", "inter", "fastinter", "downinter", "fall", "rise",
	"check_port", "check_addr", "agent", "agent_port", "agent_inter", "agent_addr", "agent_send",
	"on_marked_down", "on_marked_up", "track", "disabled", "backup", "weight", "cookie",
	"slowstart", "maxconn", "observe", "on_error", "init_state", "source", "resolvers",
	"t_check", "t_connect", "mode",
}

// Keys are the names [Server.Origin] knows.
func Keys() []string { return keyNames[:] }

// Origin says where a setting comes from; the zero Origin for a name that is not
// one of [Keys].
func (s Server) Origin(name string) Origin {
	for k, n := range keyNames {
		if n == name {
			return s.marks[k].origin(s.files)
		}
	}
	return Origin{}
}

// level is which kind of line gave a value.
type level uint8

const (
	builtIn level = iota
	inGlobal
	inDefaults
	inBackend
	inListen
	onDefaultServer
	onServer
)

var levelNames = [...]string{"built-in", "global", "defaults", "backend", "listen", "default-server", "server"}

// mark is an Origin in eight bytes: 10,000 servers have 33 each.
type mark struct {
	line  int32
	file  uint16
	level level
}

func (m mark) origin(files []string) Origin {
	o := Origin{Level: levelNames[m.level]}
	if m.level != builtIn {
		o.File, o.Line = files[m.file], int(m.line)
	}
	return o
}

// newDefaultServer is what HAProxy begins with (proxy.c proxy_preset_defaults).
func newDefaultServer() Server {
	return Server{
		Inter: 2 * time.Second, AgentInter: 2 * time.Second,
		Rise: 2, Fall: 3, Weight: 1,
	}
}

// keyword is what a word of a server line does. args is how many words follow;
// set may be nil for what this package has no use for.
type keyword struct {
	args   int
	set    func(*setter, string)
	onlyOn bool   // on a server line, not on default-server
	bare   bool   // HAProxy takes it at the end of a line, without its value
	since  string // the version that brought it, "" for 2.6 or before
}

// setter applies one keyword to one server.
type setter struct {
	*Server
	env     map[string]string
	at      mark
	word    string // the keyword
	problem string // why HAProxy refuses it
	odd     string // what it takes otherwise than it looks
}

func (s *setter) mark(k key) { s.marks[k] = s.at }

func (s *setter) flag(k key, to *bool, v bool) { *to = v; s.mark(k) }

func (s *setter) text(k key, to *string, v string) { *to = v; s.mark(k) }

func (s *setter) duration(k key, to *time.Duration, v string, positive bool) {
	d, problem, odd := parseTime(v)
	if problem == "" && positive && d == 0 {
		problem = "has to be above 0"
	}
	if problem != "" {
		s.problem = fmt.Sprintf("%s %q %s", s.word, v, problem)
		return
	}
	if odd != "" {
		s.odd = fmt.Sprintf("%s %q %s", s.word, v, odd)
	}
	*to = d
	s.mark(k)
}

func (s *setter) number(k key, to *int, v string, min, max int) {
	n := atoi(v)
	if n < min || n > max {
		s.problem = fmt.Sprintf("%s %q is not within %d and %d", s.word, v, min, max)
		return
	}
	*to = n
	s.mark(k)
}

func (s *setter) oneOf(k key, to *string, v string, words ...string) {
	for _, w := range words {
		if v == w {
			*to = v
			s.mark(k)
			return
		}
	}
	s.problem = fmt.Sprintf("%s %q: want %s", s.word, v, strings.Join(words, ", "))
}

// port is atol in HAProxy: a word is 0, which is no port (check.c
// srv_parse_check_port).
func (s *setter) port(k key, to *int, v string) bool {
	n := atoi(v)
	if n == 0 || n < 0 || n > 65535 || !onlyDigits(v) {
		s.odd = fmt.Sprintf("%s %q is read as %d", s.word, v, n)
	}
	*to = n
	s.mark(k)
	return true
}

func onlyDigits(v string) bool {
	for i := 0; i < len(v); i++ {
		if v[i] < '0' || v[i] > '9' {
			return false
		}
	}
	return v != ""
}

// atoi is C's: what it can read of the beginning, 0 of a word. It ends at a
// billion, which is out of every range here.
func atoi(v string) int {
	v = strings.TrimLeft(v, " \t\n\v\f\r")
	sign, i := 1, 0
	if v != "" && (v[0] == '-' || v[0] == '+') {
		if v[0] == '-' {
			sign = -1
		}
		i++
	}
	n := 0
	for ; i < len(v) && v[i] >= '0' && v[i] <= '9' && n < 1_000_000_000; i++ {
		n = n*10 + int(v[i]-'0')
	}
	return sign * n
}

// parseTime reads HAProxy's time values (tools.c parse_time_err): a number and
// us, ms, s, m, h or d; milliseconds without; fractions of one rounded up. odd
// is what 2.6 warns of and later versions refuse.
func parseTime(v string) (d time.Duration, problem, odd string) {
	i, n := 0, int64(0)
	for ; i < len(v) && v[i] >= '0' && v[i] <= '9'; i++ {
		if n = n*10 + int64(v[i]-'0'); n > 1<<40 {
			return 0, "is more than 2147483647 ms", ""
		}
	}
	if i == 0 {
		return 0, "is not a time", ""
	}
	unit, size := time.Millisecond, 1
	switch rest := v[i:]; {
	case rest == "":
		size = 0
	case strings.HasPrefix(rest, "us"):
		unit, size = time.Microsecond, 2
	case strings.HasPrefix(rest, "ms"):
		unit, size = time.Millisecond, 2
	case rest[0] == 's':
		unit = time.Second
	case rest[0] == 'm':
		unit = time.Minute
	case rest[0] == 'h':
		unit = time.Hour
	case rest[0] == 'd':
		unit = 24 * time.Hour
	default:
		return 0, fmt.Sprintf("has an unexpected %q", rest[:1]), ""
	}
	if n > int64(1<<31*time.Millisecond/unit) {
		return 0, "is more than 2147483647 ms", ""
	}
	d = (time.Duration(n)*unit + time.Millisecond - 1).Truncate(time.Millisecond)
	if d >= 1<<31*time.Millisecond {
		return 0, "is more than 2147483647 ms", ""
	}
	if rest := v[i+size:]; rest != "" {
		odd = fmt.Sprintf("is read as %s: what follows, %q, is dropped", Short(d), rest)
	}
	return d, "", odd
}
