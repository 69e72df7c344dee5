// Package lint says what in a configuration will hurt a drain.
//
// [Check] returns findings beside those of reading, each with a fixed ID, a
// severity, file and line, one sentence why and one sentence how to fix it. An
// error cuts requests; a warning loses some in an ordinary drain or rollout, or
// means otherwise than it looks; an info is worth knowing. What the sentences
// rest on was measured on HAProxy 2.6.12, 3.0.11 and 3.2.26 unless they say
// otherwise.
//
//	of a server
//	  kill-without-warning   shutdown-sessions, and nothing says "leaving" before health fails
//	  kill-at-first-failure  shutdown-sessions with fall 1
//	  health-on-data-port    the check asks the port it is to protect: the window is zero
//	  health-plain-tcp       a health port that can say no more than open or closed
//	  agent-too-slow         agent-inter is not under the detection window
//	  agent-short-timeout    agent-inter is also how long the agent may take to answer
//	  agent-on-data-port     the agent-check asks the data port
//	  no-health              nothing takes the server out when its pod is gone
//	  observe-kills          live traffic can mark it down
//	  return-kills-backups   on-marked-up shutdown-backup-sessions
//	  pod-left-out           the same address is drained by a pod elsewhere, and not here
//	  shared-host            on the host of a pod, and not part of it
//	of a backend
//	  persist-down           option persist: cookies win over DOWN and MAINT
//	  sticky-drain           cookies or stick tables keep sending to DRAIN
//	  retry-hides            retry-on re-sends what a pod may have run
//	  redispatch-queue       a drained server is sent its whole queue (3.0 and later)
//	  last-server            nothing else can serve while it drains
//	  late-default-server    default-server below servers it does not reach
//	  state-not-loaded       there is a server-state-file, and this backend does not read it
//	of the whole
//	  no-admin-socket        nobody can drain over these sockets
//	  admin-on-network       level admin on an address of the network
//	  few-slots              stats maxconn leaves few connections for the command line
//	  no-state-file          a reload forgets every drain
//	  hard-stop              hard-stop-after cuts what a drain would wait for
//	  grace-short            the pod's grace is shorter than its drain
//	  many-processes         nbproc: each process has its own state
package lint

import (
	"fmt"
	"net/netip"
	"sort"
	"strings"
	"time"

	"lbdrain/cfg"
)

// Options is what the configuration does not say.
type Options struct {
	// Drain is the longest a drain may take, as agent's --drain-timeout. 0 is
	// its default, two minutes.
	Drain time.Duration
	// Grace is the pods' terminationGracePeriodSeconds, 0 if unknown.
	Grace time.Duration
	// Version is HAProxy's, empty if unknown: then what any version does wrong
	// is reported.
	Version string
}

// Check returns the findings of reading and its own, by file and line.
func Check(c *cfg.Config, o Options) []cfg.Finding {
	if o.Drain == 0 {
		o.Drain = 2 * time.Minute
	}
	l := &linter{c: c, o: o, pods: findPods(c), agents: make(map[string]bool)}
	for i := range c.Servers {
		if s := &c.Servers[i]; s.Agent {
			l.agents[s.Backend+"/"+s.Name] = true
		}
	}
	for i := range c.Servers {
		s := &c.Servers[i]
		if b := c.Backend(s.Backend); b != nil && !b.Disabled && !s.Disabled {
			l.server(s, b)
		}
	}
	for i := range c.Backends {
		if b := &c.Backends[i]; !b.Disabled {
			l.backend(b)
		}
	}
	l.global()
	l.found = append(l.found, c.Findings...)
	order := make(map[string]int, len(c.Files))
	for i, f := range c.Files {
		order[f] = i
	}
	sort.SliceStable(l.found, func(i, j int) bool {
		a, b := &l.found[i], &l.found[j]
		if a.File != b.File {
			return order[a.File] < order[b.File]
		}
		return a.Line < b.Line
	})
	return l.found
}

type linter struct {
	c      *cfg.Config
	o      Options
	pods   pods
	agents map[string]bool // BACKEND/SERVER of those that have one
	found  []cfg.Finding
}

func (l *linter) add(id string, severity cfg.Severity, at cfg.Origin, why, fix string) *cfg.Finding {
	l.found = append(l.found, cfg.Finding{ID: id, Severity: severity, File: at.File, Line: at.Line, Why: why, Fix: fix})
	return &l.found[len(l.found)-1]
}

// pods is which hosts and which addresses belong to a pod: the servers whose
// agent-check goes to one endpoint.
type pods struct {
	hosts     map[string]string // host to the pod's endpoint
	addresses map[string]string // host:port of a server with an agent to the endpoint
}

func findPods(c *cfg.Config) pods {
	p := pods{hosts: make(map[string]string), addresses: make(map[string]string)}
	for i := range c.Servers {
		if s := &c.Servers[i]; s.Agent {
			pod := fmt.Sprintf("%s:%d", s.AgentAddr, s.AgentPort)
			p.hosts[s.Addr] = pod
			p.addresses[address(s)] = pod
		}
	}
	return p
}

func address(s *cfg.Server) string { return fmt.Sprintf("%s:%d", s.Addr, s.Port) }

// global is what concerns the process.
func (l *linter) global() {
	g := l.c.Global
	l.sockets()
	if g.StatsMaxconn < 10 {
		l.add("few-slots", cfg.Warning, g.Origin("stats_maxconn"),
			fmt.Sprintf("stats maxconn %d is shared by all sockets and everybody on them; who finds none free waits without a word.", g.StatsMaxconn),
			"Raise stats maxconn to 20.")
	} else if g.StatsMaxconn == 10 && len(l.c.Sockets) > 0 {
		s := l.c.Sockets[0]
		l.add("few-slots", cfg.Info, cfg.Origin{File: s.File, Line: s.Line},
			"the command line has 10 connections for all sockets (the default of stats maxconn); exporters and people share them with lbctl.",
			"Add stats maxconn 20 if others use the sockets.")
	}
	if g.HardStopAfter > 0 && g.HardStopAfter < l.o.Drain {
		l.add("hard-stop", cfg.Warning, g.Origin("hard_stop_after"),
			fmt.Sprintf("after a reload the old process is killed after %s with what it still serves; a drain may take %s.", cfg.Short(g.HardStopAfter), cfg.Short(l.o.Drain)),
			fmt.Sprintf("Raise hard-stop-after to %s or more.", cfg.Short(l.o.Drain)))
	}
	if g.Nbproc > 1 {
		l.add("many-processes", cfg.Warning, g.Origin("nbproc"),
			fmt.Sprintf("each of the %d processes has its own servers, states and sockets; a drain on one does not reach the others.", g.Nbproc),
			"Use nbthread and one process.")
	}
	if l.o.Grace > 0 && l.o.Grace < l.o.Drain {
		l.add("grace-short", cfg.Error, cfg.Origin{},
			fmt.Sprintf("the kubelet kills the pod %s after it began to stop, and a drain may take %s.", cfg.Short(l.o.Grace), cfg.Short(l.o.Drain)),
			"Raise terminationGracePeriodSeconds above the drain timeout, or lower that.")
	}
	l.stateFile()
}

func (l *linter) sockets() {
	admin := false
	for _, s := range l.c.Sockets {
		if s.Level != "admin" {
			continue
		}
		admin = true
		host := s.Address[:max(0, strings.LastIndexByte(s.Address, ':'))]
		if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); s.Network == "tcp" && (err != nil || !ip.IsLoopback()) {
			l.add("admin-on-network", cfg.Warning, cfg.Origin{File: s.File, Line: s.Line},
				"who reaches "+s.Address+" can drain, kill and reconfigure without a password.",
				"Use a unix socket with mode 660, or bind 127.0.0.1.")
		}
	}
	if admin || len(l.c.Backends) == 0 {
		return
	}
	at, fix := cfg.Origin{}, "Add to the global section: stats socket /run/haproxy/admin.sock mode 660 level admin."
	if len(l.c.Files) > 0 {
		at.File = l.c.Files[0]
	}
	if len(l.c.Sockets) > 0 {
		at = cfg.Origin{File: l.c.Sockets[0].File, Line: l.c.Sockets[0].Line}
		fix = "Put level admin on the stats socket (without it the level is operator)."
	}
	l.add("no-admin-socket", cfg.Warning, at, "no stats socket has level admin, so HAProxy refuses every drain over them.", fix)
}

// stateFile: a reload starts every server UP, whatever was drained.
func (l *linter) stateFile() {
	if l.c.StateFile != "" || len(l.c.Servers) == 0 {
		return
	}
	severity, at, how := cfg.Info, cfg.Origin{}, ""
	for _, s := range l.c.Sockets {
		if at.File == "" {
			at = cfg.Origin{File: s.File, Line: s.Line}
		}
		if s.Expose {
			severity, at, how = cfg.Warning, cfg.Origin{File: s.File, Line: s.Line}, " (expose-fd listeners is for reloads)"
		}
	}
	if l.c.Global.MasterWorker {
		severity, how = cfg.Warning, " (master-worker is for reloads)"
	}
	if at.File == "" {
		at.File = l.c.Files[0]
	}
	l.add("no-state-file", severity, at, "there is no server-state-file: a reload"+how+" forgets every drain and MAINT, and starts all servers UP.",
		"Add server-state-file /var/lib/lbctl/server-state to global and load-server-state-from-file global to defaults.")
}
