package haproxy

import (
	"bytes"
	"fmt"
	"time"
)

// The parsers find columns by their names in the header, and refuse what they
// do not understand: a value that is not there must never read as 0.

// infoReply reads the lines of `show info`.
type infoReply struct {
	info  Info
	lines int
	seen  int // bit per required key
}

var infoKeys = [...]string{"Pid", "Start_time_sec", "Version", "Uptime_sec", "Stopping"}

func (p *infoReply) row(line []byte) error {
	key, value, ok := bytes.Cut(line, []byte(": "))
	if p.lines++; p.lines == 1 && !ok {
		return noTable("show info", string(line))
	}
	for i, k := range infoKeys {
		if string(key) == k {
			p.seen |= 1 << i
		}
	}
	n, known := number(value)
	switch string(key) {
	case "Pid":
		p.info.Pid = int(n)
	case "Start_time_sec":
		p.info.Start = n
	case "Uptime_sec":
		p.info.Uptime = time.Duration(n) * time.Second
	case "Stopping":
		p.info.Stopping = n != 0
	case "Jobs":
		p.info.Jobs = int(n)
	case "Version":
		p.info.Version, known = string(value), true
	case "node":
		p.info.Node, known = string(value), true
	default:
		known = true
	}
	if !known {
		return fmt.Errorf("%w: show info: %.80q", ErrProtocol, line)
	}
	return nil
}

func (p *infoReply) end() error {
	for i, k := range infoKeys {
		if p.seen&(1<<i) == 0 {
			return fmt.Errorf("%w: show info without %s", ErrProtocol, k)
		}
	}
	return nil
}

// column puts one cell into a server.
type column func(p *tables, s *Server, cell []byte) bool

func count(f func(*Server) *int) column {
	return func(_ *tables, s *Server, cell []byte) bool {
		n, ok := number(cell)
		*f(s) = int(n)
		return ok
	}
}

func text(f func(*Server) *string) column {
	return func(p *tables, s *Server, cell []byte) bool {
		*f(s) = p.text(cell)
		return true
	}
}

// maybe is a column that is empty where it does not apply.
func maybe(c column) column {
	return func(p *tables, s *Server, cell []byte) bool {
		return len(cell) == 0 || c(p, s, cell)
	}
}

// check is a column of check bits. 2.6.0 shows the whole state, later ones
// only these bits (proxy.c, dump_servers_state).
func checkBits(f func(*Server) *CheckState) column {
	return func(_ *tables, s *Server, cell []byte) bool {
		n, ok := number(cell)
		*f(s) = CheckState(n) & (InProgress | Configured | Enabled | Paused | Agent)
		return ok
	}
}

// checkStatus is a status with `* ` before it while a check is on its way.
func checkStatus(status func(*Server) *string, running func(*Server) *bool) column {
	return func(p *tables, s *Server, cell []byte) bool {
		rest, busy := bytes.CutPrefix(cell, []byte("* "))
		*status(s), *running(s) = p.text(rest), busy
		return true
	}
}

func seconds(_ *tables, s *Server, cell []byte) bool {
	n, ok := number(cell)
	s.LastChange = time.Duration(n) * time.Second
	return ok
}

func total(f func(*Server) *uint64) column {
	return func(_ *tables, s *Server, cell []byte) bool {
		n, ok := number(cell)
		*f(s) = uint64(n)
		return ok && n >= 0
	}
}

// stateColumns are those of `show servers state`; every one is required.
var stateColumns = map[string]column{
	"be_id":    count(func(s *Server) *int { return &s.BackendID }),
	"be_name":  text(func(s *Server) *string { return &s.Backend }),
	"srv_id":   count(func(s *Server) *int { return &s.ID }),
	"srv_name": text(func(s *Server) *string { return &s.Name }),
	"srv_addr": text(func(s *Server) *string { return &s.Addr }),
	"srv_port": count(func(s *Server) *int { return &s.Port }),
	"srv_admin_state": func(_ *tables, s *Server, cell []byte) bool {
		n, ok := number(cell)
		s.Admin = AdminState(n)
		return ok && n >= 0 && n <= 0xff
	},
	"srv_op_state":               count(func(s *Server) *int { return &s.Operational }),
	"srv_uweight":                count(func(s *Server) *int { return &s.UserWeight }),
	"srv_time_since_last_change": seconds,
	"srv_check_health":           count(func(s *Server) *int { return &s.CheckHealth }),
	"srv_check_state":            checkBits(func(s *Server) *CheckState { return &s.Check }),
	"srv_agent_state":            checkBits(func(s *Server) *CheckState { return &s.Agent }),
}

// statColumns are those of `show stat`; the ones after scur and status are
// empty where they do not apply, or at level user.
var statColumns = map[string]column{
	"scur":           total(func(s *Server) *uint64 { return &s.Sessions }),
	"qcur":           total(func(s *Server) *uint64 { return &s.Queued }),
	"status":         text(func(s *Server) *string { return &s.Status }),
	"weight":         count(func(s *Server) *int { return &s.Weight }),
	"stot":           total(func(s *Server) *uint64 { return &s.Total }),
	"check_status":   checkStatus(func(s *Server) *string { return &s.CheckStatus }, func(s *Server) *bool { return &s.CheckRunning }),
	"check_code":     maybe(count(func(s *Server) *int { return &s.CheckCode })),
	"check_rise":     maybe(count(func(s *Server) *int { return &s.Rise })),
	"check_fall":     maybe(count(func(s *Server) *int { return &s.Fall })),
	"last_chk":       text(func(s *Server) *string { return &s.LastCheck }),
	"agent_status":   checkStatus(func(s *Server) *string { return &s.AgentStatus }, func(s *Server) *bool { return &s.AgentRunning }),
	"last_agt":       text(func(s *Server) *string { return &s.LastAgent }),
	"act":            flag(func(s *Server) *bool { return &s.Active }),
	"bck":            flag(func(s *Server) *bool { return &s.Backup }),
	"tracked":        text(func(s *Server) *string { return &s.Tracks }),
	"mode":           text(func(s *Server) *string { return &s.Mode }),
	"slim":           maybe(count(func(s *Server) *int { return &s.MaxConn })),
	"idle_conn_cur":  maybe(total(func(s *Server) *uint64 { return &s.Idle })),
	"used_conn_cur":  maybe(total(func(s *Server) *uint64 { return &s.Connections })),
	"check_duration": maybe(millis),
}

func flag(f func(*Server) *bool) column {
	return func(_ *tables, s *Server, cell []byte) bool {
		n, ok := number(cell)
		*f(s) = n != 0
		return ok
	}
}

func millis(_ *tables, s *Server, cell []byte) bool {
	n, ok := number(cell)
	s.CheckDuration = time.Duration(n) * time.Millisecond
	return ok
}
