package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/rs/zerolog"
	ucli "github.com/urfave/cli/v2"

	"lbdrain/cfg"
	"lbdrain/internal/cli"
	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/desk"
	"lbdrain/lbctl/journal"
	"lbdrain/lbctl/keeper"
)

// defaultSocket is the admin socket where no configuration can be read.
const defaultSocket = "/run/haproxy/admin.sock"

// reach is how the commands find their HAProxies.
type reach struct {
	sockets, cfg      []string
	control, stateDir string
}

func (r *reach) flags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.StringSliceFlag{Name: "socket", Usage: "admin socket: unix:PATH, a path or tcp:HOST:PORT; repeatable (default: the daemon's, else that of the configuration)"},
		&ucli.StringSliceFlag{Name: "f", Usage: "haproxy.cfg or a directory; repeatable (default: " + defaultCfg + " where it is)"},
		&ucli.StringFlag{Name: "control", Usage: "the daemon's control socket", Value: defaultControl, Destination: &r.control},
		&ucli.StringFlag{Name: "state-dir", Usage: "where holds.json is", Value: defaultState, Destination: &r.stateDir},
	}
}

func (r *reach) parse(c *ucli.Context) {
	r.sockets, r.cfg = c.StringSlice("socket"), c.StringSlice("f")
}

// balancer is one HAProxy as a command sees it.
type balancer struct {
	name   string
	socket haproxy.Socket
	client *haproxy.Client
	remote desk.Desk // nil: no daemon keeps it
	pods   map[string]string
	lines  map[keeper.Key]keeper.Line
	reach  *reach
}

// balancers finds them: those of --socket, else the daemon's, else those of the
// configuration, else the usual path.
func (r *reach) balancers(ctx context.Context) ([]*balancer, error) {
	d, err := desk.Dial(ctx, r.control)
	if errors.Is(err, os.ErrPermission) {
		return nil, cli.Fail(cli.Failed, "run as root or in the group of the control socket", err)
	}
	if err != nil && !errors.Is(err, desk.ErrNoDaemon) {
		return nil, err
	}
	config, err := r.load(ctx)
	if err != nil {
		return nil, err
	}
	sockets, err := r.addresses(d, config)
	if err != nil {
		return nil, err
	}
	var all []*balancer
	seen := map[haproxy.Socket]bool{}
	for _, s := range sockets {
		if seen[s] {
			continue
		}
		seen[s] = true
		all = append(all, r.balancer(s, d, config))
	}
	return all, nil
}

// load reads the configuration: that of -f, or the usual one where it can be read.
func (r *reach) load(ctx context.Context) (*cfg.Config, error) {
	if len(r.cfg) > 0 {
		return load(ctx, r.cfg)
	}
	if f, err := os.Open(defaultCfg); err == nil {
		f.Close()
		return load(ctx, []string{defaultCfg})
	}
	return nil, nil
}

func (r *reach) addresses(d *desk.Daemon, config *cfg.Config) ([]haproxy.Socket, error) {
	texts := r.sockets
	switch {
	case len(texts) > 0:
	case d != nil:
		for _, lb := range d.LBs {
			texts = append(texts, lb.Socket)
		}
	case config != nil:
		named, err := balancers(serveOptions{cfg: config.Files}, config)
		for _, s := range named {
			return []haproxy.Socket{s}, err
		}
		return nil, err
	default:
		texts = []string{defaultSocket}
	}
	var sockets []haproxy.Socket
	for _, t := range texts {
		s, err := haproxy.ParseSocket(t)
		if err != nil {
			return nil, cli.Misuse("--socket "+defaultSocket, "%v", err)
		}
		if s.Network == "unix" {
			if abs, err := filepath.Abs(s.Address); err == nil {
				s.Address = abs
			}
		}
		sockets = append(sockets, s)
	}
	return sockets, nil
}

func (r *reach) balancer(s haproxy.Socket, d *desk.Daemon, config *cfg.Config) *balancer {
	b := &balancer{socket: s, client: haproxy.New(s, haproxy.Options{}), reach: r, pods: map[string]string{}}
	if config != nil {
		b.lines = plan(config)
		for key, line := range b.lines {
			if line.Endpoint != "" {
				b.pods[key.String()] = line.Endpoint
			}
		}
	}
	if d != nil {
		for _, lb := range d.LBs {
			if lb.Socket == s.String() {
				b.name, b.pods = lb.Name, lb.Pods
				if !lb.Observe {
					b.remote = d.Desk(lb.Name)
				}
			}
		}
	}
	if b.name == "" {
		b.name = journal.Open(r.stateDir).Named(s.String())
	}
	if b.name == "" {
		b.name = defaultName(s)
	}
	return b
}

// desk is the daemon's, or one for as long as the command runs; done ends it.
func (b *balancer) desk(ctx context.Context) (d desk.Desk, done func(), err error) {
	if b.remote != nil {
		return b.remote, func() {}, nil
	}
	j := journal.Open(b.reach.stateDir)
	if j.Claimed() && b.bar() {
		return nil, nil, cli.Fail(cli.Failed, "name its control socket with --control",
			fmt.Errorf("a daemon uses %s and does not answer at %s", b.reach.stateDir, b.reach.control))
	}
	k := keeper.New(keeper.Options{
		Name: b.name, Socket: b.socket.String(), Door: b.client, Journal: j, Guest: true, Interval: interval, Log: zerolog.Nop(),
	})
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx) })
	done = func() { cancel(); running.Wait() }
	if err := k.Configure(ctx, b.lines); err != nil {
		done()
		return nil, nil, err
	}
	return desk.Local{Keeper: k}, done, nil
}

// bar says whether the daemon of the state directory is one that this
// command did not find: one in observe mode writes no journal and is no bar.
func (b *balancer) bar() bool {
	d, err := desk.Dial(context.Background(), b.reach.control)
	return err != nil || d == nil
}

// read looks at the servers.
func (b *balancer) read(ctx context.Context, backends []string) (haproxy.Read, error) {
	r, err := b.client.Read(ctx, haproxy.Scope{Backends: backends})
	if err != nil {
		return r, cli.Fail(cli.Failed, haproxy.Hint(err), err)
	}
	return r, nil
}

// user is who holds, for the journal.
func user() string {
	for _, name := range []string{"SUDO_USER", "USER", "LOGNAME"} {
		if u := strings.TrimSpace(os.Getenv(name)); u != "" {
			return u
		}
	}
	return fmt.Sprintf("uid %d", os.Getuid())
}
