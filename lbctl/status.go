package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	ucli "github.com/urfave/cli/v2"

	"lbdrain/internal/cli"
	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/desk"
	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/journal"
)

// overview is `lbctl status`.
type overview struct {
	reach
	targets, backends []string
	output            string
	timeout           time.Duration
	all               bool
	errs              io.Writer
}

func statusCommand() *ucli.Command {
	o := &overview{timeout: 5 * time.Second}
	return &ucli.Command{
		Name: "status", Usage: "what HAProxy has, and who holds it", ArgsUsage: "[TARGET...]", OnUsageError: cli.UsageError,
		Flags: append(o.flags(),
			&ucli.StringSliceFlag{Name: "backend", Usage: "only this backend; repeatable"},
			&ucli.BoolFlag{Name: "all", Usage: "every server (default)", Destination: &o.all},
			cli.DurationFlag(&o.timeout, "timeout", "for all of it"),
			&ucli.StringFlag{Name: "o", Usage: "table, json or name", Value: "table", Destination: &o.output}),
		Action: func(c *ucli.Context) error {
			o.parse(c)
			o.errs = c.App.ErrWriter
			o.targets, o.backends = c.Args().Slice(), c.StringSlice("backend")
			if !slices.Contains([]string{"table", "json", "name"}, o.output) {
				return cli.Misuse("-o json", "output %q: want table, json or name", o.output)
			}
			return o.run(c)
		},
	}
}

// serverStatus is one server of `status -o json`.
type serverStatus struct {
	LB          string       `json:"lb"`
	Backend     string       `json:"backend"`
	Server      string       `json:"server"`
	Address     string       `json:"address"`
	State       string       `json:"state"`
	Admin       int          `json:"admin"`
	Operational int          `json:"operational"`
	Check       string       `json:"check"` // off, or the status of the last one
	Agent       string       `json:"agent"` // none, off or on
	Weight      int          `json:"weight"`
	Sessions    uint64       `json:"sessions"`
	OldSessions *uint64      `json:"old_sessions"` // on workers from before a reload; null: not known
	Queued      uint64       `json:"queued"`
	Hold        *hold.Record `json:"hold"` // null: nobody holds it
}

func (o *overview) run(c *ucli.Context) error {
	ctx, cancel := context.WithTimeout(c.Context, o.timeout)
	defer cancel()
	lbs, err := o.reach.balancers(ctx)
	if err != nil {
		return err
	}
	all := []serverStatus{}
	var errs []error
	for _, b := range lbs {
		part, err := o.one(ctx, b)
		all = append(all, part...)
		if err != nil && len(lbs) > 1 {
			err = fmt.Errorf("%s: %w", b.name, err)
		}
		errs = append(errs, err)
	}
	if err := o.print(c, all); err != nil {
		return err
	}
	err = errors.Join(errs...)
	if err != nil && len(all) > 0 {
		return cli.Fail(partly, hintOf(errs), err)
	}
	if len(lbs) == 1 {
		return errs[0]
	}
	return err
}

// one reads a balancer.
func (o *overview) one(ctx context.Context, b *balancer) ([]serverStatus, error) {
	r, err := b.read(ctx, o.backends)
	if err != nil {
		return nil, err
	}
	servers := r.Servers
	if len(o.targets) > 0 {
		t := desk.Targets{Servers: r.Servers, Pods: b.pods, Backends: o.backends}
		servers = nil
		for _, target := range o.targets {
			keys, err := t.Find(target)
			var many *desk.AmbiguousError
			if errors.As(err, &many) {
				return nil, cli.Misuse("name one of them", "%v", err)
			}
			if err != nil {
				return nil, cli.Fail(noSuchServer, "lbctl status lists them", err)
			}
			for _, key := range keys {
				s, _ := r.Server(key.Backend, key.Server)
				servers = append(servers, s)
			}
		}
	}
	lb, err := journal.Open(o.stateDir).LB(b.name)
	if errors.Is(err, fs.ErrPermission) {
		fmt.Fprintf(o.errs, "lbctl: %v: who holds what is not shown\nhint: run as root or in lbctl's group\n", err)
		err = nil
	}
	all := make([]serverStatus, len(servers))
	for i, s := range servers {
		all[i] = statusOf(b.name, s)
		if rec, ok := lb.Records[s.Backend+"/"+s.Name]; ok {
			all[i].Hold = &rec
		}
	}
	return all, err
}

func statusOf(lb string, s haproxy.Server) serverStatus {
	v := serverStatus{
		LB: lb, Backend: s.Backend, Server: s.Name, Address: net.JoinHostPort(s.Addr, strconv.Itoa(s.Port)), State: desk.State(s),
		Admin: int(s.Admin), Operational: s.Operational, Check: s.CheckStatus, Agent: "none", Weight: s.Weight,
		Sessions: s.Sessions, Queued: s.Queued,
	}
	switch {
	case s.Check&haproxy.Configured == 0:
		v.Check = "none"
	case s.Check&haproxy.Enabled == 0:
		v.Check = "off"
	}
	switch {
	case s.Agent.On():
		v.Agent = "on"
	case s.Agent&haproxy.Configured != 0:
		v.Agent = "off"
	}
	return v
}

func (o *overview) print(c *ucli.Context, all []serverStatus) error {
	switch o.output {
	case "json":
		return printJSON(c.App.Writer, all)
	case "name":
		for _, s := range all {
			fmt.Fprintln(c.App.Writer, s.Backend+"/"+s.Server)
		}
		return nil
	}
	rows := make([][]string, 1, len(all)+1)
	rows[0] = []string{"LB", "SERVER", "ADDRESS", "STATE", "SESSIONS", "QUEUED", "CHECK", "AGENT", "WEIGHT", "HELD"}
	for _, s := range all {
		rows = append(rows, []string{
			s.LB, s.Backend + "/" + s.Server, s.Address, s.State, strconv.FormatUint(s.Sessions, 10), strconv.FormatUint(s.Queued, 10),
			s.Check, s.Agent, strconv.Itoa(s.Weight), held(s.Hold),
		})
	}
	if len(all) == 0 {
		return nil
	}
	return printTable(c.App.Writer, rows)
}

// held says in a few words who holds a server.
func held(r *hold.Record) string {
	switch {
	case r == nil:
		return ""
	case r.Op != nil && !r.Op.Lifted:
		text := r.Op.Kind + " by " + r.Op.By
		if r.Op.Reason != "" {
			text += ": " + r.Op.Reason
		}
		return text
	case r.Op != nil:
		return "coming back"
	case r.Pod != nil:
		return "pod " + r.Pod.Endpoint + " drains"
	}
	return r.Foreign + " by others"
}

// print writes the results of all balancers.
func (a *action) print(jobs []*job) error {
	all := []*result{}
	for _, j := range jobs {
		all = append(all, j.results...)
	}
	switch {
	case a.output == "json":
		return printJSON(a.out, all)
	case a.output == "name":
		for _, r := range all {
			fmt.Fprintln(a.out, r.key)
		}
		return nil
	case a.dryRun:
		for _, r := range all {
			for _, c := range r.Commands {
				fmt.Fprintln(a.out, c)
			}
		}
		return nil
	}
	rows := [][]string{{"LB", "SERVER", "BEFORE", "AFTER", "SESSIONS", "CHANGED", "WHY"}}
	for _, r := range all {
		why := r.Why
		if r.Cut > 0 {
			why = fmt.Sprintf("%s: %d cut", why, r.Cut)
		}
		rows = append(rows, []string{r.LB, r.key.String(), r.Before, r.After, number(r.Sessions), strconv.FormatBool(r.Changed), why})
	}
	if len(rows) == 1 {
		return nil
	}
	return printTable(a.out, rows)
}

// number is a count, or ? for one that is not known.
func number(n *uint64) string {
	if n == nil {
		return "?"
	}
	return strconv.FormatUint(*n, 10)
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func printTable(w io.Writer, rows [][]string) error {
	b := bufio.NewWriterSize(w, 64<<10) // tabwriter writes every cell by itself
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(t, strings.TrimRight(strings.Join(r, "\t"), "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return b.Flush()
}
