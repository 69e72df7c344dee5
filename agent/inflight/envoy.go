package inflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"lbdrain/internal/handshake"
)

const (
	// identifyEvery is how often /server_info is asked which process answers.
	identifyEvery = time.Second
	// configEvery is how often the listeners' configuration is read again.
	configEvery = 30 * time.Second
)

// Envoy is the envoy source, and the door to the same admin for everything else.
// It makes one request at a time.
type Envoy struct {
	named
	door  *door
	rules rules
	turn  chan struct{} // held by the Read that runs; all below is its own

	process   process
	asked     time.Time // when /server_info was last read
	dials     uint64    // door's connections then
	seen      map[string]bool
	config    listeners
	configOK  bool      // config has been read
	configAt  time.Time // when to read it next
	configErr error     // why it was not, at the last attempt that failed
}

// NewEnvoy is the source for the admin at http://HOST:PORT, unix:PATH or
// unix:@ABSTRACT. It opens no connection yet.
func NewEnvoy(admin string, o Options) (*Envoy, error) {
	r, err := newRules(o)
	if err != nil {
		return nil, err
	}
	e := &Envoy{named: named{"envoy"}, rules: r, turn: make(chan struct{}, 1), seen: map[string]bool{}}
	if path, is := strings.CutPrefix(admin, "unix:"); is {
		if path == "" {
			return nil, errors.New("unix: without a path")
		}
		e.door = newDoor("http://envoy", path)
		return e, nil
	}
	u, err := url.Parse(admin)
	if err != nil || u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery+u.Fragment != "" {
		return nil, errors.New("want http://HOST:PORT or unix:PATH")
	}
	e.door = newDoor("http://"+u.Host, "")
	return e, nil
}

// DrainListeners tells Envoy that it is leaving: connections are told with their
// next response, listeners go on accepting. It is done when it returns nil, holds
// until this Envoy process ends, and nothing undoes it. The query is exact: a
// misspelled parameter is ignored, and then all listeners stop at once.
func (e *Envoy) DrainListeners(ctx context.Context) error {
	_, err := e.door.call(ctx, "POST", "/drain_listeners?graceful&skip_exit")
	return err
}

// Info reads /server_info.
func (e *Envoy) Info(ctx context.Context) (Info, error) {
	body, err := e.door.call(ctx, "GET", "/server_info")
	if err != nil {
		return Info{}, err
	}
	return parseInfo(body)
}

// Ready is nil if Envoy says that it is LIVE.
func (e *Envoy) Ready(ctx context.Context) error {
	_, err := e.door.call(ctx, "GET", "/ready")
	return err
}

// Read counts what Envoy has in flight, in at most Limit once its turn has come.
func (e *Envoy) Read(ctx context.Context) Reading {
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return unknown("still waiting for the reading before: %v", ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	restarted, err := e.identify(ctx)
	var r Reading
	if err == nil {
		r, err = e.count(ctx)
	}
	// A connection that had to be opened anew may lead to another process.
	if err == nil && e.dials != e.door.dials.Load() {
		var again bool
		again, err = e.identify(ctx)
		restarted = restarted || again
		if err == nil && again {
			r, err = e.count(ctx)
		}
	}
	if err != nil {
		r = failed(err)
	}
	e.process.lost = e.process.lost || r.Refused
	r.Restarted = restarted
	return r
}

// identify makes sure that it is known which process answers, and that it
// serves. It reports whether that is another one than before.
func (e *Envoy) identify(ctx context.Context) (another bool, err error) {
	if time.Since(e.asked) < identifyEvery && e.dials == e.door.dials.Load() {
		return false, nil
	}
	sent := time.Now()
	info, err := e.Info(ctx)
	if err != nil {
		return false, err
	}
	if another = e.process.another(sent, time.Now(), info.Uptime); another {
		clear(e.seen)
		e.config, e.configOK, e.configAt = listeners{}, false, time.Time{}
	}
	if info.State != "LIVE" && info.State != "DRAINING" {
		return another, fmt.Errorf("Envoy is %s", info.State)
	}
	e.asked, e.dials = time.Now(), e.door.dials.Load()
	return another, nil
}

// process tells an Envoy process from the next one by when it began, which is
// known to lie between two moments.
type process struct {
	from, to time.Time
	lost     bool // it has refused a connection, so it is no more
}

// another takes an uptime that was asked for at sent and had come by got. Envoy
// gives the difference of two times that are each cut to the second.
func (p *process) another(sent, got time.Time, uptime time.Duration) bool {
	from, to := sent.Add(-uptime-time.Second), got.Add(-uptime+time.Second)
	first := p.from.IsZero()
	another := !first && (p.lost || from.After(p.to) || to.Before(p.from))
	p.from, p.to, p.lost = from, to, false
	return another
}

// count is one reading of the gauges, and of /clusters where gauges are hidden.
// Its error is that of a call; everything else is said in the Reading.
func (e *Envoy) count(ctx context.Context) (Reading, error) {
	e.configure(ctx)
	path := statsPath
	if len(e.rules.tcp) > 0 {
		path = statsPathTCP
	}
	body, err := e.door.call(ctx, "GET", path)
	if err != nil {
		return Reading{}, err
	}
	g, err := parseGauges(body)
	if err != nil {
		return Reading{}, err
	}
	t := e.rules.add(g, e.config.byName)
	for _, name := range slices.Sorted(maps.Keys(e.seen)) { // so that the note is the same next time
		if _, ok := g[name]; !ok {
			t.unknown(name + " was shown before and is missing now")
		}
	}
	for _, name := range t.names {
		e.seen[name] = true
	}
	if !t.count.Known {
		return Reading{Upgrades: t.upgrades, Note: t.why}, nil
	}
	if why := e.hidden(t); why != "" {
		if err := e.fallBack(ctx, &t, why); err != nil {
			return Reading{}, err
		}
	}
	return e.reading(t), nil
}

// hidden says why the gauges alone do not show every listener that counts, or "".
func (e *Envoy) hidden(t tally) string {
	if len(e.rules.include) > 0 {
		return "" // all of them are there, and no others were asked for
	}
	var hidden []string
	for _, m := range e.config.managers {
		if e.rules.counts(m) && !slices.Contains(t.managers, m) {
			hidden = append(hidden, m)
		}
	}
	switch {
	case len(hidden) > 0:
		return "downstream_rq_active of " + strings.Join(hidden, ", ") + " is hidden (a stats matcher does that)"
	case !e.configOK:
		return fmt.Sprintf("a hidden gauge would go unnoticed (give --envoy-include), because the listeners cannot be listed: %v", e.configErr)
	case len(t.managers) == 0 && len(e.rules.tcp) == 0:
		return "no gauge that counts is shown"
	}
	return ""
}

// fallBack counts by /clusters as well. It takes the larger number: both may
// see the same request.
func (e *Envoy) fallBack(ctx context.Context, t *tally, why string) error {
	var n handshake.Count
	err := e.door.stream(ctx, "GET", clustersPath, func(r io.Reader) (err error) {
		n, err = parseClusters(r, e.rules.clusters)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s, and %w", why, err)
	}
	if n.N > t.count.N {
		t.count, t.detail = n, []string{"clusters " + n.String()}
	}
	t.upgrades = handshake.Count{}
	t.note(why + ": counted by /clusters, which misses requests not yet routed and responses still to be sent")
	if e.rules.ignoreUpgrades {
		t.note("upgrades cannot be told apart there and are counted")
	}
	return nil
}

func (e *Envoy) reading(t tally) Reading {
	if e.rules.ignoreUpgrades && t.upgrades.Known && t.upgrades.N > 0 {
		t.note("upgrades are left out")
	}
	var left []string
	for _, l := range e.config.tcp {
		if !slices.ContainsFunc(e.rules.tcp, func(n string) bool { return sanitize(n) == l || e.config.byName[n] == l }) {
			left = append(left, l)
		}
	}
	if len(left) > 0 {
		t.note("connections of the tcp listeners " + strings.Join(left, ", ") + " are left out (--envoy-tcp-listener)")
	}
	return Reading{
		Count: t.count, Upgrades: t.upgrades,
		Note: strings.Join(t.notes, "; "), Detail: strings.Join(t.detail, ", "),
	}
}

// configure reads which listeners there are, when that is due. What cannot be
// read stays as it was: a configuration so large that it takes Envoy's main
// thread too long is not asked for again with every reading.
func (e *Envoy) configure(ctx context.Context) {
	if time.Now().Before(e.configAt) {
		return
	}
	var l listeners
	for _, path := range []string{staticPath, dynamicPath} {
		err := e.door.stream(ctx, "GET", path, l.add)
		if err != nil {
			e.configErr = err
			if !refused(err) {
				e.configAt = time.Now().Add(configEvery)
			}
			return
		}
	}
	e.config, e.configOK, e.configAt = l, true, time.Now().Add(configEvery)
}
