package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"lbdrain/cfg"
	"lbdrain/cfg/lint"
	"lbdrain/internal/cli"
	"lbdrain/internal/haproxy"
)

// checking is the flags of `lbctl check` beside those of reading.
type checking struct {
	reading
	severity, socket  string
	drain, grace      time.Duration
	backends, ignored []string
	verbose           bool
}

func checkCommand() *ucli.Command {
	k := &checking{drain: 2 * time.Minute}
	return &ucli.Command{
		Name: "check", Usage: "what in haproxy.cfg will hurt a drain",
		Description: "Each finding has an id, a severity, file and line, why, and the fix.\n" +
			"error: cuts requests, or HAProxy refuses the file. warning: loses requests in an ordinary\n" +
			"drain, or means otherwise than it looks. info: worth knowing.\n\n" +
			"Exit codes: 0 nothing at or above --severity, 1 findings, 2 usage or not readable.",
		OnUsageError: cli.UsageError,
		Flags: append(k.flags(),
			&ucli.StringFlag{Name: "severity", Usage: "exit 1 from which on: info, warning or error", Value: "warning", Destination: &k.severity},
			&ucli.StringFlag{Name: "against-socket", Usage: "compare with the HAProxy behind this socket: unix:PATH, a path or tcp:HOST:PORT", Destination: &k.socket},
			&ucli.StringSliceFlag{Name: "backend", Usage: "only findings of this backend; repeatable"},
			&ucli.StringSliceFlag{Name: "ignore", Usage: "leave out findings with this id; repeatable"},
			cli.DurationFlag(&k.drain, "drain-timeout", "the longest a drain may take, as agent's"),
			cli.DurationFlag(&k.grace, "grace", "the pods' terminationGracePeriodSeconds"),
			&ucli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "every server, not the first of each backend", Destination: &k.verbose},
		),
		Action: func(c *ucli.Context) error {
			if c.Args().Present() {
				return cli.Misuse("lbctl check -f "+c.Args().First(), "check takes no argument: %q", c.Args().First())
			}
			k.backends, k.ignored = c.StringSlice("backend"), c.StringSlice("ignore")
			return k.run(c)
		},
	}
}

func (k *checking) run(c *ucli.Context) error {
	from, err := cfg.ParseSeverity(k.severity)
	if err != nil {
		return cli.Misuse("--severity warning", "%v", err)
	}
	var live haproxy.Read
	if k.socket != "" {
		if live, err = k.ask(c.Context); err != nil {
			return err
		}
		if k.version == "" {
			k.version = live.Info.Version
		}
	}
	config, o, err := k.load(c)
	if err != nil {
		return err
	}
	found := lint.Check(config, lint.Options{Drain: k.drain, Grace: k.grace, Version: o.Version})
	if k.socket != "" {
		found = append(found, differences(config, live, k.socket)...)
	}
	found = slices.DeleteFunc(found, func(f cfg.Finding) bool {
		return slices.Contains(k.ignored, f.ID) || len(k.backends) > 0 && !slices.Contains(k.backends, f.Backend)
	})
	if err := k.print(c.App.Writer, found); err != nil {
		return err
	}
	bad := 0
	for _, f := range found {
		if f.Severity >= from {
			bad++
		}
	}
	if bad > 0 {
		return cli.Fail(cli.Failed, "", fmt.Errorf("check %s: %d findings at or above %s", strings.Join(config.Files, " "), bad, from))
	}
	return nil
}

func (k *checking) print(w io.Writer, found []cfg.Finding) error {
	if k.output == "json" {
		if found == nil {
			found = []cfg.Finding{}
		}
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(found)
	}
	type group struct{ id, backend string }
	more := make(map[group]int)
	for _, f := range found {
		more[group{f.ID, f.Backend}]++
	}
	for _, f := range found {
		g := group{f.ID, f.Backend}
		n := more[g]
		if n == 0 {
			continue // told with the first of its backend
		}
		name := f.Backend
		if f.Server != "" {
			name += "/" + f.Server
		}
		if name != "" {
			name += ": "
		}
		fmt.Fprintf(w, "%s%s: %s%s [%s]\n", place(f), f.Severity, name, f.Why, f.ID)
		if !k.verbose && f.Server != "" && n > 1 {
			fmt.Fprintf(w, "    and the same of %d more servers of %s (-v lists them)\n", n-1, f.Backend)
			more[g] = 0
		}
		if f.Fix != "" {
			fmt.Fprintf(w, "    fix: %s\n", f.Fix)
		}
	}
	return nil
}

// place is where a finding stands, as compilers say it; nothing for what no line
// gave.
func place(f cfg.Finding) string {
	switch {
	case f.File == "":
		return ""
	case f.Line == 0:
		return f.File + ": "
	}
	return fmt.Sprintf("%s:%d: ", f.File, f.Line)
}

// ask reads the HAProxy that the files are compared with.
func (k *checking) ask(ctx context.Context) (haproxy.Read, error) {
	socket, err := haproxy.ParseSocket(k.socket)
	if err != nil {
		return haproxy.Read{}, cli.Misuse("--against-socket unix:/run/haproxy/admin.sock", "%v", err)
	}
	read, err := haproxy.New(socket, haproxy.Options{ReadOnly: true}).Read(ctx, haproxy.Scope{})
	if err != nil {
		return read, cli.Fail(cli.Usage, "the reader needs a right to the socket (sudo, or the group haproxy) and a HAProxy behind it",
			fmt.Errorf("read %s: %w", socket, err))
	}
	return read, nil
}

// differences compares what `show servers state` and `show stat` tell of the
// configuration. A server in DRAIN, MAINT or with a check switched off by hand is
// none: that is not the file's.
func differences(config *cfg.Config, read haproxy.Read, socket string) []cfg.Finding {
	var found []cfg.Finding
	add := func(s cfg.Server, why string) {
		found = append(found, cfg.Finding{
			ID: "live-differs", Severity: cfg.Warning, File: s.File, Line: s.Line, Backend: s.Backend, Server: s.Name,
			Why: "the HAProxy behind " + socket + " " + why + ".", Fix: "Reload HAProxy, or correct the file; `lbctl explain` shows what the file says.",
		})
	}
	type name struct{ backend, server string }
	live := make(map[name]haproxy.Server, len(read.Servers))
	for _, s := range read.Servers {
		live[name{s.Backend, s.Name}] = s
	}
	for _, s := range config.Servers {
		n := name{s.Backend, s.Name}
		l, ok := live[n]
		delete(live, n)
		if b := config.Backend(s.Backend); b != nil && b.Disabled || slices.Contains(read.Disabled, s.Backend) {
			continue
		}
		if !ok {
			add(s, "has no such server")
			continue
		}
		for _, why := range serverDifferences(s, l, read.Level) {
			add(s, why)
		}
	}
	for _, s := range read.Servers {
		if _, left := live[name{s.Backend, s.Name}]; left {
			add(cfg.Server{Backend: s.Backend, Name: s.Name}, "has "+s.Backend+"/"+s.Name+", which the files do not have")
		}
	}
	return found
}

// serverDifferences is what one server has otherwise. At level user HAProxy
// tells neither rise and fall nor the backend's mode.
func serverDifferences(s cfg.Server, l haproxy.Server, level string) []string {
	var why []string
	differ := func(what string, file, live any) {
		if file != live {
			why = append(why, fmt.Sprintf("has %s %v, the file says %v", what, live, file))
		}
	}
	if want, err := netip.ParseAddr(s.Addr); err == nil {
		if have, err := netip.ParseAddr(l.Addr); err != nil || have != want {
			differ("address", s.Addr, l.Addr)
		}
	}
	if !s.MapPorts {
		differ("port", s.Port, l.Port)
	}
	differ("check", onOff(s.Check), onOff(l.Check&haproxy.Configured != 0))
	differ("agent-check", onOff(s.Agent), onOff(l.Agent&haproxy.Configured != 0))
	differ("weight", s.Weight, l.UserWeight)
	if level == "user" {
		return why
	}
	differ("mode", s.Mode, l.Mode)
	differ("backup", s.Backup, l.Backup)
	differ("track", orNone(s.Track), orNone(l.Tracks))
	if (s.Check || s.TrackRoot != "") && l.Rise > 0 {
		differ("rise", s.Rise, l.Rise)
		differ("fall", s.Fall, l.Fall)
	}
	return why
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
