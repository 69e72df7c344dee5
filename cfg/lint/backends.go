package lint

import (
	"fmt"
	"strings"

	"lbdrain/cfg"
)

func (l *linter) backend(b *cfg.Backend) {
	var servers []*cfg.Server
	for i := range l.c.Servers {
		if s := &l.c.Servers[i]; s.Backend == b.Name && !s.Disabled {
			servers = append(servers, s)
		}
	}
	if len(servers) == 0 {
		return
	}
	l.sticky(b, servers)
	l.retries(b)
	l.alone(b, servers)
	if b.LateDefault > 0 {
		l.about(b, "late-default-server", cfg.Warning, cfg.Origin{File: b.File, Line: b.LateDefault},
			"this default-server stands below servers of its section, and reaches only those below it.",
			"Move it above the first server, if all are meant.")
	}
	if l.c.StateFile != "" && b.LoadState == "none" {
		l.about(b, "state-not-loaded", cfg.Warning, b.Origin("load_state"),
			"there is a server-state-file, and this backend does not read it: a reload forgets its drains.",
			"Add load-server-state-from-file global to defaults.")
	}
}

// about adds a finding about a backend; at its first line where at is nowhere.
func (l *linter) about(b *cfg.Backend, id string, severity cfg.Severity, at cfg.Origin, why, fix string) {
	if at.File == "" {
		at = cfg.Origin{File: b.File, Line: b.Line}
	}
	l.add(id, severity, at, why, fix).Backend = b.Name
}

// cookies says whether clients are sent back to a server by a cookie.
func cookies(b *cfg.Backend, servers []*cfg.Server) bool {
	if b.Cookie == "" {
		return false
	}
	for _, s := range servers {
		if s.Cookie != "" || b.DynamicCookie {
			return true
		}
	}
	return false
}

func (l *linter) sticky(b *cfg.Backend, servers []*cfg.Server) {
	cookie := cookies(b, servers)
	sticky := cookie || b.Stick || b.ForcePersist
	if b.Persist {
		severity := cfg.Info
		if sticky {
			severity = cfg.Error
		}
		l.about(b, "persist-down", severity, b.Origin("persist"),
			"option persist sends clients with a cookie or a stick entry to their server even when it is DOWN or in MAINT.",
			"Remove option persist, and use option redispatch.")
	}
	if !sticky {
		return
	}
	at, what := b.Origin("cookie"), "the cookie "+b.Cookie
	switch {
	case cookie:
	case b.Stick:
		at, what = b.Origin("stick"), "the stick table"
	default:
		at, what = b.Origin("force_persist"), "force-persist"
	}
	l.about(b, "sticky-drain", cfg.Warning, at,
		"clients with "+what+" keep coming to a server in DRAIN: it may never be empty.",
		"Let the drain's deadline decide (lbctl drain --timeout), or make the entries short-lived.")
	for _, s := range servers {
		if s.Maxconn > 0 && b.Redispatch && (l.o.Version == "" || cfg.CompareVersions(l.o.Version, "3.0") >= 0) {
			l.about(b, "redispatch-queue", cfg.Warning, cfg.Origin{},
				"HAProxy 3.0 and 3.2 send what is queued for a server to it, above maxconn, when it is drained or goes down (option redispatch, a cookie, maxconn).",
				"Remove option redispatch or the server's maxconn until that is repaired.")
			break
		}
	}
}

// retries: what a pod has begun may run twice.
func (l *linter) retries(b *cfg.Backend) {
	var risky []string
	for _, w := range b.RetryOn {
		if w != "none" && w != "conn-failure" {
			risky = append(risky, w)
		}
	}
	if len(risky) > 0 && b.Retries > 0 {
		l.about(b, "retry-hides", cfg.Warning, b.Origin("retry_on"),
			fmt.Sprintf("retry-on %s sends a request again that its pod may have run: cuts do not show, and a POST can happen twice.", strings.Join(risky, " ")),
			"Keep conn-failure only, or add http-request disable-l7-retry if METH_POST.")
	}
}

// alone: with one server there is nobody to send to while it drains.
func (l *linter) alone(b *cfg.Backend, servers []*cfg.Server) {
	if len(servers) != 1 || !servers[0].Agent {
		return
	}
	l.of(servers[0], "last-server", cfg.Info, "addr",
		"it is the only server of its backend: while it drains, new requests get 503.",
		"Add a second server, or let the next pod come up first.")
}
