package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/fsnotify/fsnotify"

	"lbdrain/internal/cli"
	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/desk"
	"lbdrain/lbctl/journal"
	"lbdrain/lbctl/keeper"
)

// settle is how long a configuration must rest before it is read: editors and
// configuration managers write in several steps.
const settle = 300 * time.Millisecond

// gcPercent trades time for memory: what a thousand watches keep is small beside
// what one read of their servers throws away each second.
const gcPercent = 40

// stuck is how long a keeper may be without a turn beyond its interval.
const stuck = 10 * time.Second

// run is the daemon's life after everything that can be refused was looked at.
func (d *service) run(ctx context.Context, token string) error {
	debug.SetGCPercent(gcPercent)
	if err := d.config.Refused(); err != nil {
		d.log.Error().Str("event", "cfg_bad").Err(err).Msg("HAProxy refuses this configuration; serving what it says all the same")
	}
	d.observe = d.o.mode == "observe"
	for name := range d.sockets {
		if _, err := d.journal.LB(name); errors.Is(err, journal.ErrVersion) {
			d.log.Error().Str("event", "alarm").Err(err).Msg("observing only")
			d.observe = true
		} else if err != nil {
			return err
		}
	}
	for name, socket := range d.sockets {
		if !d.observe {
			if err := d.journal.Adopt(name, socket.String()); err != nil {
				return cli.Fail(cli.Failed, writableState, err)
			}
		}
		client := haproxy.New(socket, haproxy.Options{ReadOnly: d.observe})
		d.keepers[name] = keeper.New(keeper.Options{
			Name: name, Socket: socket.String(), Door: client, Journal: d.journal,
			Observe: d.observe, Enforce: d.enforced(), Interval: d.o.interval, Token: token, Log: d.log, Save: d.saver(client),
		})
	}
	ctx, stop := context.WithCancel(ctx)
	flushed := d.journal.Background(ctx, func(err error) {
		d.log.Error().Str("event", "alarm").Err(err).Msg("the journal is not on the disk")
	})
	var all sync.WaitGroup
	defer func() {
		stop()
		all.Wait()
		flushed()
	}()
	for _, k := range d.keepers {
		all.Go(func() { k.Run(ctx) })
	}
	if err := d.configure(ctx); err != nil {
		return err
	}
	control, err := desk.Listen(d.o.control)
	if err != nil {
		return cli.Fail(cli.Failed, "--control PATH, in a directory that exists and this user may write", err)
	}
	all.Go(func() {
		if err := desk.Serve(ctx, control, d); err != nil {
			d.log.Error().Str("event", "alarm").Err(err).Send()
		}
	})
	d.serving()
	err = d.wait(ctx)
	d.log.Info().Str("event", "stopping").Msg("HAProxy stays as it is")
	d.notify(sd.SdNotifyStopping)
	return err
}

// enforced says which backends commands go to, nil for all.
func (d *service) enforced() func(string) bool {
	if len(d.o.backends) == 0 {
		return nil
	}
	return func(b string) bool { return slices.Contains(d.o.backends, b) }
}

// saver writes the server-state-file of the configuration in force. With several
// HAProxies nobody knows whose it is.
func (d *service) saver(c *haproxy.Client) func(context.Context) error {
	if len(d.sockets) > 1 {
		return nil
	}
	return func(ctx context.Context) error {
		d.mu.Lock()
		path := stateFile(d.config)
		d.mu.Unlock()
		if path == "" {
			return nil
		}
		return saveState(ctx, c, path)
	}
}

// configure gives the keepers what the configuration says.
func (d *service) configure(ctx context.Context) error {
	lines := plan(d.config)
	d.mu.Lock()
	d.lines = lines
	d.mu.Unlock()
	for _, k := range d.keepers {
		if err := k.Configure(ctx, lines); err != nil {
			return err
		}
	}
	agents := map[string]bool{}
	for _, l := range lines {
		if l.Endpoint != "" {
			agents[l.Endpoint] = true
		}
	}
	d.log.Info().Str("event", "cfg_loaded").Strs("files", d.config.Files).Int("servers", len(lines)).
		Int("agents", len(agents)).Int("findings", len(d.config.Findings)).Send()
	return nil
}

func (d *service) serving() {
	mode := "enforce"
	if d.observe {
		mode = "observe"
	}
	for name, s := range d.sockets {
		d.log.Info().Str("event", "serving").Str("lb", name).Stringer("socket", s).Str("mode", mode).
			Strs("backends", d.o.backends).Str("state_dir", d.o.stateDir).Str("control", d.o.control).
			Dur("interval", d.o.interval).Str("version", version).Send()
	}
	d.notify(sd.SdNotifyReady)
}

// notify tells systemd, where it listens.
func (d *service) notify(state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		d.log.Warn().Str("event", "alarm").Err(err).Msg("sd_notify")
	}
}

// wait lives until ctx ends: the configuration is read again on SIGHUP and when
// its files change, and the watchdog is fed.
func (d *service) wait(ctx context.Context) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	files, err := d.watchFiles()
	if err != nil {
		return err
	}
	defer files.Close()
	dog, feed := d.watchdog()
	defer dog.Stop()
	rest := time.NewTimer(time.Hour)
	rest.Stop()
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			d.reload(ctx)
		case <-rest.C:
			d.reload(ctx)
		case e := <-files.Events:
			if e.Op != fsnotify.Chmod && d.ours(e.Name) {
				rest.Reset(settle)
			}
		case err := <-files.Errors:
			d.log.Warn().Str("event", "alarm").Err(err).Msg("watching the configuration; SIGHUP reads it")
		case <-dog.C:
			if feed && d.alive() {
				d.notify(sd.SdNotifyWatchdog)
			}
		}
	}
}

// reload reads the configuration; a bad one leaves the old in force.
func (d *service) reload(ctx context.Context) {
	d.notify(sd.SdNotifyReloading)
	defer d.notify(sd.SdNotifyReady)
	c, err := load(ctx, d.o.cfg)
	if err == nil {
		err = c.Refused()
	}
	if err != nil {
		d.log.Error().Str("event", "cfg_bad").Err(err).Msg("the old configuration stays in force")
		return
	}
	d.mu.Lock()
	d.config = c
	d.mu.Unlock()
	if err := d.configure(ctx); err != nil && ctx.Err() == nil {
		d.log.Error().Str("event", "cfg_bad").Err(err).Send()
	}
}

// watchFiles watches the directories of the configuration: a file that is
// replaced by rename would be lost from sight itself.
func (d *service) watchFiles() (*fsnotify.Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	for _, p := range d.o.cfg {
		dir := p
		if info, err := os.Stat(p); err == nil && !info.IsDir() {
			dir = filepath.Dir(p)
		}
		if err := w.Add(dir); err != nil {
			d.log.Warn().Str("event", "alarm").Err(err).Msg("the configuration cannot be watched; SIGHUP reads it")
		}
	}
	return w, nil
}

// ours says whether a file belongs to the configuration.
func (d *service) ours(name string) bool {
	for _, p := range d.o.cfg {
		p = filepath.Clean(p)
		if name == p || filepath.Dir(name) == p && filepath.Ext(name) == ".cfg" {
			return true
		}
	}
	return false
}

// alive says whether every keeper still turns.
func (d *service) alive() bool {
	for name, k := range d.keepers {
		if since := time.Since(k.Turned()); since > stuck+d.o.interval {
			d.log.Error().Str("event", "alarm").Str("lb", name).Dur("since_ms", since).Msg("no turn: the watchdog is not fed")
			return false
		}
	}
	return true
}

// watchdog ticks at half of WatchdogSec; feed is false where there is none.
func (d *service) watchdog() (t *time.Ticker, feed bool) {
	every, err := sd.SdWatchdogEnabled(false)
	if err != nil || every <= 0 {
		return time.NewTicker(time.Hour), false
	}
	return time.NewTicker(every / 2), true
}
