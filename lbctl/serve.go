package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	ucli "github.com/urfave/cli/v2"

	"lbdrain/cfg"
	"lbdrain/internal/cli"
	"lbdrain/internal/handshake"
	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/desk"
	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/journal"
	"lbdrain/lbctl/keeper"
)

// Where things are unless told otherwise.
const (
	defaultState   = "/var/lib/lbctl"
	defaultControl = "/run/lbctl/control.sock"
	defaultCfg     = "/etc/haproxy/haproxy.cfg"
)

// writableState is the hint where the state directory cannot be written.
const writableState = "--state-dir DIR that this user may write, with room left"

// serveOptions are the flags of `lbctl serve`.
type serveOptions struct {
	cfg, sockets, backends          []string
	stateDir, control, lbName, mode string
	tokenFile, logLevel             string
	interval                        time.Duration
}

func serveCommand() *ucli.Command {
	o := &serveOptions{interval: interval}
	return &ucli.Command{
		Name: "serve", Usage: "the daemon: watches every agent and holds the servers of its pod",
		OnUsageError: cli.UsageError,
		Flags: []ucli.Flag{
			&ucli.StringSliceFlag{Name: "f", Usage: "haproxy.cfg, or a directory of *.cfg; repeatable, read in order as one", Value: ucli.NewStringSlice(defaultCfg)},
			&ucli.StringSliceFlag{Name: "socket", Usage: "admin socket: unix:PATH, a path or tcp:HOST:PORT; repeatable, one for each HAProxy (default: the one of level admin in -f)"},
			&ucli.StringFlag{Name: "state-dir", Usage: "where holds.json is", Value: defaultState, Destination: &o.stateDir},
			&ucli.StringFlag{Name: "control", Usage: "socket for the command line", Value: defaultControl, Destination: &o.control},
			&ucli.StringFlag{Name: "lb-name", Usage: "the balancer's name (default HOST:SOCKETFILE)", Destination: &o.lbName},
			&ucli.StringFlag{Name: "mode", Usage: "observe does nothing for the pods and logs would=… (a person's drain, maint and ready still act); enforce does it", Value: "observe", Destination: &o.mode},
			&ucli.StringSliceFlag{Name: "backend", Usage: "with --mode enforce: only these backends; repeatable"},
			cli.DurationFlag(&o.interval, "interval", "between two looks at rest, and of acknowledgements"),
			&ucli.StringFlag{Name: "lb-token-file", Usage: "file with the bearer token for the agents", Destination: &o.tokenFile},
			&ucli.StringFlag{Name: "log-level", Usage: "debug, info, warn or error", Value: "info", Destination: &o.logLevel},
		},
		Action: func(c *ucli.Context) error {
			o.cfg, o.sockets, o.backends = c.StringSlice("f"), c.StringSlice("socket"), c.StringSlice("backend")
			if err := o.check(c); err != nil {
				return err
			}
			log, err := cli.Logger(c.App.ErrWriter, o.logLevel)
			if err != nil {
				return err
			}
			return serve(c.Context, *o, log)
		},
	}
}

// check refuses combinations that cannot be meant.
func (o *serveOptions) check(c *ucli.Context) error {
	switch {
	case c.Args().Present():
		return cli.Misuse("lbctl serve --help", "serve takes no argument: %q", c.Args().First())
	case o.mode != "observe" && o.mode != "enforce":
		return cli.Misuse("--mode observe, or --mode enforce", "mode %q", o.mode)
	case o.mode == "observe" && len(o.backends) > 0:
		return cli.Misuse("--mode enforce --backend "+o.backends[0], "--backend has no effect in observe mode")
	case o.interval < 100*time.Millisecond || o.interval > 10*time.Second:
		return cli.Misuse("--interval 1s", "interval %v: want 100ms to 10s", o.interval)
	case o.lbName != "" && len(o.sockets) > 1:
		return cli.Misuse("leave --lb-name out", "one name for %d sockets", len(o.sockets))
	}
	if o.lbName != "" {
		if err := handshake.CheckLBName(o.lbName); err != nil {
			return cli.Misuse("--lb-name lb1", "%v", err)
		}
	}
	return nil
}

// service is a running `lbctl serve`.
type service struct {
	o       serveOptions
	log     zerolog.Logger
	journal *journal.Journal
	keepers map[string]*keeper.Keeper // by balancer name
	sockets map[string]haproxy.Socket
	observe bool

	mu     sync.Mutex
	config *cfg.Config
	lines  map[keeper.Key]keeper.Line
}

// LBs is what the command line asks first.
func (d *service) LBs() []desk.LB {
	d.mu.Lock()
	defer d.mu.Unlock()
	pods := map[string]string{}
	for key, line := range d.lines {
		if line.Endpoint != "" {
			pods[key.String()] = line.Endpoint
		}
	}
	var all []desk.LB
	for name, s := range d.sockets {
		all = append(all, desk.LB{Name: name, Socket: s.String(), Observe: d.observe, Pods: pods})
	}
	slices.SortFunc(all, func(a, b desk.LB) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Keeper finds one by its balancer's name.
func (d *service) Keeper(name string) *keeper.Keeper { return d.keepers[name] }

func serve(ctx context.Context, o serveOptions, log zerolog.Logger) error {
	config, err := load(ctx, o.cfg)
	if err != nil {
		return err
	}
	sockets, err := balancers(o, config)
	if err != nil {
		return err
	}
	token, err := readToken(o.tokenFile)
	if err != nil {
		return err
	}
	d := &service{
		o: o, log: log, journal: journal.Open(o.stateDir), config: config,
		keepers: map[string]*keeper.Keeper{}, sockets: sockets,
	}
	release, err := d.journal.Claim()
	if errors.Is(err, journal.ErrLocked) {
		return cli.Fail(cli.Failed, "one daemon for each --state-dir", err)
	}
	if err != nil {
		return cli.Fail(cli.Failed, writableState, err)
	}
	defer release()
	return d.run(ctx, token)
}

// load reads the configuration. The binary is asked for version and features only
// where a condition of the file turns on them.
func load(ctx context.Context, paths []string) (*cfg.Config, error) {
	c, err := cfg.Load(paths, cfg.Options{Env: environment()})
	if err == nil && slices.ContainsFunc(c.Findings, func(f cfg.Finding) bool { return f.ID == "if-undecided" }) {
		var o cfg.Options
		if o, err = (&reading{}).world(ctx, nil); err == nil {
			c, err = cfg.Load(paths, o)
		}
	}
	if err != nil {
		return nil, cli.Fail(cli.Failed, "-f /etc/haproxy/haproxy.cfg", err)
	}
	return c, nil
}

// balancers are the admin sockets by the balancer's name: those of the flags,
// else the first of level admin in the configuration. All sockets of one
// configuration lead to the same HAProxy.
func balancers(o serveOptions, c *cfg.Config) (map[string]haproxy.Socket, error) {
	var sockets []haproxy.Socket
	for _, s := range o.sockets {
		socket, err := haproxy.ParseSocket(s)
		if err != nil {
			return nil, cli.Misuse("--socket /run/haproxy/admin.sock", "%v", err)
		}
		sockets = append(sockets, socket)
	}
	if len(sockets) == 0 {
		i := slices.IndexFunc(c.Sockets, func(s cfg.AdminSocket) bool {
			return s.Level == "admin" && (s.Network == "unix" || s.Network == "tcp")
		})
		if i < 0 {
			return nil, cli.Fail(cli.Failed, "put `stats socket /run/haproxy/admin.sock mode 660 level admin` into global, or use --socket",
				fmt.Errorf("%s: no stats socket of level admin", strings.Join(o.cfg, ", ")))
		}
		sockets = append(sockets, haproxy.Socket{Network: c.Sockets[i].Network, Address: c.Sockets[i].Address})
	}
	named := map[string]haproxy.Socket{}
	for _, s := range sockets {
		name := o.lbName
		if name == "" {
			name = defaultName(s)
		}
		if _, taken := named[name]; taken {
			return nil, cli.Misuse("one daemon for each, with --lb-name and --state-dir", "two sockets would both be named %s", name)
		}
		named[name] = s
	}
	return named, nil
}

var unnameable = regexp.MustCompile(`[^A-Za-z0-9._:-]`)

// defaultName is HOST:SOCKETFILE.
func defaultName(s haproxy.Socket) string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	name := unnameable.ReplaceAllString(host+":"+filepath.Base(s.Address), "-")
	return name[:min(len(name), 128)]
}

// readToken is the first line of a file, "" without one.
func readToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	token := strings.TrimSpace(line)
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", cli.Fail(cli.Failed, "", fmt.Errorf("token %s: %w", path, errors.New("want one line of printable characters")))
	}
	return token, nil
}

// plan is what a configuration means to a keeper: every server with its pod's
// agent.
func plan(c *cfg.Config) map[keeper.Key]keeper.Line {
	roots := map[string]*cfg.Server{}
	for i := range c.Servers {
		roots[c.Servers[i].Backend+"/"+c.Servers[i].Name] = &c.Servers[i]
	}
	lines := make(map[keeper.Key]keeper.Line, len(c.Servers))
	for i := range c.Servers {
		s := &c.Servers[i]
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
func endpoint(s *cfg.Server) string {
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

// interval is the default of --interval, and a command line's own.
const interval = time.Second
