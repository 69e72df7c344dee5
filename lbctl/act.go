package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	ucli "github.com/urfave/cli/v2"
	"golang.org/x/term"

	"lbdrain/internal/cli"
	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/desk"
	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/keeper"
)

// maxReason bounds --reason, in bytes: it is journaled, and stands in a table.
const maxReason = 500

// ready is the verb beside hold.Drain and hold.Maint.
const ready = "ready"

// action is one of `lbctl drain|maint|ready`.
type action struct {
	reach
	verb                                              string
	targets, backends                                 []string
	all, wait, noWait, dryRun, force, missingOK, sure bool
	reason, onTimeout, output                         string
	timeout                                           time.Duration
	in                                                io.Reader
	out, errs                                         io.Writer
}

func actCommand(verb, usage string) *ucli.Command {
	a := &action{verb: verb, timeout: 130 * time.Second}
	flags := append(a.flags(),
		&ucli.StringSliceFlag{Name: "backend", Usage: "every server of this backend, or with a name only there; repeatable"},
		&ucli.BoolFlag{Name: "all", Usage: "every server", Destination: &a.all},
		&ucli.BoolFlag{Name: "wait", Usage: "until it is done, as without this flag", Destination: &a.wait},
		&ucli.BoolFlag{Name: "no-wait", Usage: "return as soon as HAProxy has taken it", Destination: &a.noWait},
		cli.DurationFlag(&a.timeout, "timeout", "for all of it"),
		&ucli.BoolFlag{Name: "dry-run", Usage: "print the runtime commands and do nothing", Destination: &a.dryRun},
		&ucli.BoolFlag{Name: "missing-ok", Usage: "a target that does not exist is no error", Destination: &a.missingOK},
		&ucli.BoolFlag{Name: "yes", Usage: "do not ask", Destination: &a.sure},
		&ucli.StringFlag{Name: "o", Usage: "table, json or name", Value: "table", Destination: &a.output},
	)
	if verb != ready {
		flags = append(flags,
			&ucli.StringFlag{Name: "reason", Usage: "why, for whoever finds it held", Destination: &a.reason},
			&ucli.StringFlag{Name: "on-timeout", Usage: "leave: stays in DRAIN, and the order stands; restore: gives it back; force: cuts what still runs (maint only)", Value: "leave", Destination: &a.onTimeout})
	}
	if verb == hold.Maint {
		flags = append(flags, &ucli.BoolFlag{Name: "force", Usage: "cut what still runs, now", Destination: &a.force})
	}
	return &ucli.Command{
		Name: verb, Usage: usage, ArgsUsage: "TARGET...", OnUsageError: cli.UsageError, Flags: flags,
		Description: "A target is backend/server, a server's name (in every backend), or the addr:port of a server or of a pod's agent.",
		Action: func(c *ucli.Context) error {
			a.parse(c)
			a.targets, a.backends = c.Args().Slice(), c.StringSlice("backend")
			a.in, a.out, a.errs = c.App.Reader, c.App.Writer, c.App.ErrWriter
			if err := a.check(); err != nil {
				return err
			}
			return a.run(c.Context)
		},
	}
}

// check refuses combinations that cannot be meant.
func (a *action) check() error {
	switch {
	case a.wait && a.noWait:
		return cli.Misuse("--wait or --no-wait", "--wait and --no-wait contradict each other")
	case a.all && (len(a.targets) > 0 || len(a.backends) > 0):
		return cli.Misuse("--all alone", "--all means every server: no other target beside it")
	case a.timeout <= 0:
		return cli.Misuse("--timeout 130s", "timeout %v: want more than 0", a.timeout)
	case !slices.Contains([]string{"table", "json", "name"}, a.output):
		return cli.Misuse("-o json", "output %q: want table, json or name", a.output)
	case a.verb != ready && !slices.Contains([]string{"leave", "restore", "force"}, a.onTimeout):
		return cli.Misuse("--on-timeout leave", "on-timeout %q: want leave, restore or force", a.onTimeout)
	case a.verb == hold.Drain && a.onTimeout == "force":
		return cli.Misuse("lbctl maint --on-timeout force", "drain cuts nothing: --on-timeout force is for maint")
	case slices.Contains(a.targets, ""):
		return cli.Misuse("name it, or leave it out", "an empty target: an unset variable?")
	case len(a.reason) > maxReason || strings.ContainsFunc(a.reason, unicode.IsControl):
		return cli.Misuse("--reason 'kernel update'", "reason: want one line of at most %d bytes", maxReason)
	case a.force && a.noWait:
		return cli.Misuse("--force", "--force waits for nothing anyway: leave --no-wait out")
	}
	return nil
}

// run does it on every balancer at once.
func (a *action) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	lbs, err := a.reach.balancers(ctx)
	if err != nil {
		return err
	}
	jobs := make([]*job, len(lbs))
	var all sync.WaitGroup
	for i, b := range lbs {
		jobs[i] = &job{action: a, lb: b, limit: time.Now().Add(a.timeout)}
		all.Go(func() { jobs[i].err = jobs[i].find(ctx) })
	}
	all.Wait()
	if err := a.agree(jobs); err != nil {
		return err
	}
	for _, j := range jobs {
		if j.err == nil {
			all.Go(func() { j.err = j.do(ctx) })
		}
	}
	all.Wait()
	if err := a.print(jobs); err != nil {
		return err
	}
	return a.verdict(jobs)
}

// agree asks where more than one target is meant, or a backend is left with
// nothing, on a terminal; a usage error on one balancer is one for all.
func (a *action) agree(jobs []*job) error {
	n := 0
	for _, j := range jobs {
		n += len(j.keys)
		var e *cli.Error
		if errors.As(j.err, &e) && e.Code == cli.Usage {
			return j.err
		}
	}
	bare := a.warn(jobs)
	many := a.all || len(a.backends) > 0 && len(a.targets) == 0 || len(a.targets) > 1
	f, ok := a.in.(*os.File)
	if !bare && (n < 2 || !many) || a.sure || a.dryRun || !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	fmt.Fprintf(a.errs, "%s %d server(s)? [y/N] ", a.verb, n)
	var word string
	fmt.Fscanln(f, &word)
	if strings.ToLower(word) != "y" && strings.ToLower(word) != "yes" {
		return cli.Fail(guarded, "--yes", errors.New("not confirmed, nothing done"))
	}
	return nil
}

// warn says which backends would have no server left that takes a request, and
// whether there are any.
func (a *action) warn(jobs []*job) (bare bool) {
	for _, j := range jobs {
		for _, name := range j.bare() {
			bare = true
			fmt.Fprintf(a.errs, "%s %s: no other server takes requests, so new ones will be refused (503)\n", j.lb.name, name)
		}
	}
	return bare
}

// bare names the backends whose last servers in rotation are all targets.
func (j *job) bare() []string {
	if j.verb == ready || j.err != nil {
		return nil
	}
	var names []string
	left := map[string]bool{}
	for _, s := range j.before.Servers {
		if s.Weight == 0 || !strings.HasPrefix(s.Status, "UP") && s.Status != "no check" {
			continue
		}
		if !slices.Contains(j.keys, keeper.Key{Backend: s.Backend, Server: s.Name}) {
			left[s.Backend] = true
		} else if !slices.Contains(names, s.Backend) {
			names = append(names, s.Backend)
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return left[name] })
}

// verdict is the exit code: that of all balancers where they agree, else partly.
func (a *action) verdict(jobs []*job) error {
	var errs []error
	codes := map[int]bool{}
	for _, j := range jobs {
		code := 0
		if j.err != nil {
			err := j.err
			if len(jobs) > 1 {
				err = fmt.Errorf("%s: %w", j.lb.name, err)
			}
			errs = append(errs, err)
			code = cli.Failed
			var e *cli.Error
			if errors.As(j.err, &e) {
				code = e.Code
			}
		}
		codes[code] = true
	}
	switch {
	case len(errs) == 0:
		return nil
	case len(jobs) == 1:
		return errs[0]
	case codes[0]:
		return cli.Fail(partly, hintOf(errs), errors.Join(errs...))
	case len(codes) == 1:
		for code := range codes {
			return cli.Fail(code, hintOf(errs), errors.Join(errs...))
		}
	}
	return cli.Fail(cli.Failed, hintOf(errs), errors.Join(errs...))
}

func hintOf(errs []error) string {
	var e *cli.Error
	if errors.As(errors.Join(errs...), &e) {
		return e.Hint
	}
	return ""
}

// job is an action on one balancer.
type job struct {
	*action
	lb      *balancer
	limit   time.Time
	before  haproxy.Read
	keys    []keeper.Key
	results []*result
	err     error
}

// result is what became of one server; it is what -o json prints.
type result struct {
	LB          string   `json:"lb"`
	Backend     string   `json:"backend"`
	Server      string   `json:"server"`
	Changed     bool     `json:"changed"`
	Before      string   `json:"before"`
	After       string   `json:"after"`
	Commands    []string `json:"commands"`
	Sessions    *uint64  `json:"sessions"`     // null: not known
	OldSessions *uint64  `json:"old_sessions"` // on workers from before a reload; null: not known
	Cut         uint64   `json:"cut"`
	Why         string   `json:"why"`

	key     keeper.Key
	code    int
	earlier int // commands of its keeper before this action
	done    bool
}

// find resolves the targets, before anything is done.
func (j *job) find(ctx context.Context) error {
	r, err := j.lb.read(ctx, j.scope())
	if errors.Is(err, haproxy.ErrNoSuchBackend) {
		r, err = j.lb.read(ctx, nil)
	}
	none := len(j.targets) == 0 && !j.all && len(j.backends) == 0
	switch {
	case err != nil && none:
		return cli.Misuse(fmt.Sprintf("lbctl %s TARGET, --backend B or --all", j.verb), "no target given (and what there is cannot be listed: %v)", err)
	case err != nil:
		return err
	}
	if r.Level != "admin" && !j.dryRun {
		return cli.Fail(cli.Failed, haproxy.Hint(haproxy.ErrPermission),
			fmt.Errorf("%s: %w: the socket is of level %s", j.lb.socket, haproxy.ErrPermission, r.Level))
	}
	j.before = r
	t := desk.Targets{Servers: r.Servers, Pods: j.lb.pods, Backends: j.backends}
	switch {
	case none:
		return cli.Misuse(fmt.Sprintf("lbctl %s TARGET, --backend B or --all; servers here: %s", j.verb, t.Meant(12)), "no target given")
	case len(j.targets) == 0:
		j.keys = t.All()
		if len(j.keys) == 0 && !j.missingOK {
			return cli.Fail(noSuchServer, "lbctl status", fmt.Errorf("backend %s: %w", strings.Join(j.backends, ", "), desk.ErrNoMatch))
		}
		return nil
	}
	return j.resolve(t)
}

// scope is what must be read: only the backends where every target names one.
func (j *job) scope() []string {
	var backends []string
	for _, t := range j.targets {
		b, _, exact := strings.Cut(t, "/")
		if !exact || haproxy.CheckName(b) != nil {
			return nil
		}
		backends = append(backends, b)
	}
	return backends
}

func (j *job) resolve(t desk.Targets) error {
	for _, target := range j.targets {
		keys, err := t.Find(target)
		var many *desk.AmbiguousError
		switch {
		case errors.As(err, &many):
			return cli.Misuse("name one of them", "%v", err)
		case err != nil && j.missingOK:
			continue
		case err != nil:
			return cli.Fail(noSuchServer, "lbctl status lists them: "+t.Meant(12), err)
		}
		for _, key := range keys {
			if !slices.Contains(j.keys, key) {
				j.keys = append(j.keys, key)
			}
		}
	}
	return nil
}
