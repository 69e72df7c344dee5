package main

import (
	"cmp"
	"net"
	"net/netip"
	"strconv"
	"time"

	"lbdrain/cfg"
	"lbdrain/internal/handshake"
	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/keeper"
)

// plan is what a configuration means to a keeper: every server with its pod's
// agent.
func plan(c *cfg.Config) map[keeper.Key]keeper.Line {
	roots := map[string]cfg.Server{}
	for _, s := range c.Servers {
		roots[s.Backend+"/"+s.Name] = s
	}
	lines := make(map[keeper.Key]keeper.Line, len(c.Servers))
	for _, s := range c.Servers {
		pod := s
		if root, ok := roots[s.TrackRoot]; ok && s.TrackRoot != "" {
			pod = root // it follows that server's health, so it is that server's pod
		}
		w := s.Window()
		line := keeper.Line{
			Line: hold.Line{Endpoint: endpoint(pod), Inter: s.Inter, Timeout: cmp.Or(s.TimeoutCheck, s.Inter)},
			Window: handshake.Window{
				Best: handshake.Millis(w.Best), Mean: handshake.Millis(w.Mean), Worst: handshake.Millis(w.Worst),
			},
			Source: source(s.Source),
		}
		if s.Agent {
			line.AgentInter = s.AgentInter
		}
		lines[keeper.Key{Backend: s.Backend, Server: s.Name}] = line
	}
	return lines
}

// endpoint is where a server's agent listens: where its agent check goes, else
// where its health check goes if that is another port than the data's. An
// address without a port of its own tells nothing: two pods can share a host.
func endpoint(s cfg.Server) string {
	host, port := "", 0
	switch {
	case s.Agent:
		host, port = cmp.Or(s.AgentAddr, s.Addr), s.AgentPort
	case s.Check && s.CheckPort != 0 && s.CheckPort != s.Port:
		host, port = cmp.Or(s.CheckAddr, s.Addr), s.CheckPort
	}
	if host == "" || port == 0 {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// source is the address of a `source`, "" for none in particular.
func source(s string) string {
	a, err := netip.ParseAddr(s)
	if err != nil || a.IsUnspecified() {
		return ""
	}
	return a.Unmap().String()
}

// interval is the bound that a test of the daemon and its help text share.
const interval = time.Second
