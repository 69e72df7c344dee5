package lint

import (
	"fmt"
	"time"

	"lbdrain/cfg"
)

// loadedAgent is how short an answer's deadline must be for a busy agent to miss
// it: at 100 ms all polls of one under load did.
const loadedAgent = time.Second

func (l *linter) server(s *cfg.Server, b *cfg.Backend) {
	l.kills(s, b)
	l.health(s)
	if s.Agent {
		l.agent(s)
	}
	if s.OnMarkedUp != "" {
		l.of(s, "return-kills-backups", cfg.Warning, "on_marked_up",
			"when it leaves MAINT or DOWN every session on the backup servers is cut.",
			"Remove on-marked-up, or return from DRAIN, which does not count as marked up.")
	}
	l.neighbours(s)
}

// of adds a finding about a server, at the line that gave a setting.
func (l *linter) of(s *cfg.Server, id string, severity cfg.Severity, key, why, fix string) {
	at := s.Origin(key)
	if at.File == "" {
		at = cfg.Origin{File: s.File, Line: s.Line}
	}
	f := l.add(id, severity, at, why, fix)
	f.Backend, f.Server = s.Backend, s.Name
}

// kills: on-marked-down shutdown-sessions fires on DOWN and on MAINT, from UP and
// from DRAIN alike (server.c srv_update_status).
func (l *linter) kills(s *cfg.Server, b *cfg.Backend) {
	kill := s.OnMarkedDown == "shutdown-sessions"
	if s.Observe != "" && s.Observe != "none" && (s.OnError == "mark-down" || s.OnError == "sudden-death") {
		severity, what := cfg.Warning, "takes it out"
		if kill {
			severity, what = cfg.Error, "takes it out and cuts the rest"
		}
		l.of(s, "observe-kills", severity, "on_error",
			fmt.Sprintf("a run of failed requests %s, whatever its health says (observe %s, on-error %s).", what, s.Observe, s.OnError),
			"Remove on-error "+s.OnError+", or observe.")
	}
	if !kill || !s.Check && s.TrackRoot == "" {
		return
	}
	if !l.agentOf(s) && !b.DisableOn404 {
		w := s.Window()
		l.of(s, "kill-without-warning", cfg.Error, "on_marked_down",
			fmt.Sprintf("a failing check cuts every request on it %s to %s later, and nothing can say \"leaving\" before health fails.", cfg.Short(w.Best), cfg.Short(w.Worst)),
			"Add agent-check agent-port PORT agent-inter 500ms, or http-check disable-on-404, and keep health passing until the server is empty.")
	}
	if s.Fall == 1 {
		l.of(s, "kill-at-first-failure", cfg.Warning, "fall",
			"with fall 1 a single failed check cuts every request on it.", "Use fall 2 or more.")
	}
}

// agentOf says whether a server, or the one it tracks, has an agent.
func (l *linter) agentOf(s *cfg.Server) bool {
	if s.Agent || s.TrackRoot == "" {
		return s.Agent
	}
	return l.agents[s.TrackRoot]
}

func (l *linter) health(s *cfg.Server) {
	switch {
	case !s.Check && s.Track == "" && !s.Agent:
		l.of(s, "no-health", cfg.Warning, "addr",
			"it has no check, no agent-check and tracks nobody: HAProxy goes on sending to it when its pod is gone.",
			"Add check port PORT, and agent-check agent-port PORT.")
	case !s.Check:
	case s.CheckPort == s.Port && s.CheckTarget() == s.Addr && !s.Agent && s.Port != 0:
		l.of(s, "health-on-data-port", cfg.Warning, "check",
			fmt.Sprintf("the check asks the data port %d: a pod cannot say that it is leaving while it still serves, so the time to drain is zero.", s.Port),
			"Give health its own port (check port PORT), or add an agent-check.")
	case s.Type == "tcp" && s.CheckPort != s.Port && !s.Agent:
		l.of(s, "health-plain-tcp", cfg.Info, "type",
			fmt.Sprintf("port %d is checked by a bare connect: it can be open or closed, and say nothing else.", s.CheckPort),
			"Add option httpchk GET /health_check.html and http-check expect status 200.")
	}
}

func (l *linter) agent(s *cfg.Server) {
	if s.AgentPort == s.Port && s.AgentAddr == s.Addr {
		l.of(s, "agent-on-data-port", cfg.Error, "agent_port",
			fmt.Sprintf("the agent-check asks the data port %d, where no agent answers: its words never come, and HAProxy changes nothing.", s.Port),
			"Set agent-port to the agent's port.")
	}
	if w := s.Window(); s.Check && s.AgentInter >= w.Best && (s.Fall > 1 || s.OnMarkedDown == "") {
		l.of(s, "agent-too-slow", cfg.Warning, "agent_inter",
			fmt.Sprintf("agent-inter %s is not under %s, the shortest time in which a failing check marks it down: health can win the race.", cfg.Short(s.AgentInter), cfg.Short(w.Best)),
			"Lower agent-inter, or raise inter or fall.")
	}
	if s.TimeoutCheck > 0 {
		return
	}
	severity := cfg.Info
	if s.AgentInter < loadedAgent {
		severity = cfg.Warning
	}
	l.of(s, "agent-short-timeout", severity, "agent_inter",
		fmt.Sprintf("without timeout check the agent has only agent-inter, %s, to answer; what comes later is dropped, a drain too.", cfg.Short(s.AgentInter)),
		"Add timeout check 2s to defaults.")
}

// neighbours is what stands on the host of a pod.
func (l *linter) neighbours(s *cfg.Server) {
	if s.Agent || s.TrackRoot != "" {
		return
	}
	if pod, ok := l.pods.addresses[address(s)]; ok {
		l.of(s, "pod-left-out", cfg.Warning, "addr",
			fmt.Sprintf("%s is a server of the pod at %s in another backend, and here it has no agent-check and tracks nobody: the pod drains there and is sent requests here.", address(s), pod),
			"Add the same agent-check, or track BACKEND/SERVER.")
	} else if pod, ok := l.pods.hosts[s.Addr]; ok {
		l.of(s, "shared-host", cfg.Info, "addr",
			fmt.Sprintf("%s is the host of the pod at %s, and this port is not the pod's: lbctl leaves it alone.", s.Addr, pod),
			"Nothing, if that is meant; else add the pod's agent-check.")
	}
}
