package keeper

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"lbdrain/internal/handshake"
	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/pods"
)

// retell is how often at most an agent is told that its sessions are fewer, while the
// word for it is the same.
const retell = 100 * time.Millisecond

// watch is one agent, and what it was told.
type watch struct {
	*pods.Watch
	stop    context.CancelFunc
	done    chan struct{}
	pod     hold.Pod // as of the last turn
	said    handshake.Word
	missing string
	drain   handshake.DrainID
	at      time.Time // of the last acknowledgement
}

// follow starts and stops watches, so that every agent of the configuration and
// of a hold has one.
func (k *Keeper) follow(ctx context.Context, records map[string]hold.Record) {
	want := map[string]bool{}
	for key, line := range k.lines {
		if line.Endpoint != "" && k.concerns(key) {
			want[line.Endpoint] = true
		}
	}
	for _, r := range records {
		if r.Pod != nil && k.concerns(Key{r.Backend, r.Server}) {
			want[r.Pod.Endpoint] = true
		}
	}
	for endpoint := range want {
		if k.watches[endpoint] == nil {
			k.watches[endpoint] = k.start(ctx, endpoint)
		}
	}
	for endpoint, w := range k.watches {
		if !want[endpoint] {
			w.stop()
			delete(k.watches, endpoint)
		}
	}
}

func (k *Keeper) start(ctx context.Context, endpoint string) *watch {
	name := k.o.Name
	if k.o.Observe || k.o.Guest {
		name = "" // no balancer
	}
	c, cancel := context.WithCancel(ctx)
	w := &watch{done: make(chan struct{}), stop: cancel}
	w.Watch = pods.New(endpoint, pods.Options{
		LB: name, Token: k.o.Token, Interval: k.o.Interval, Changed: k.Wake,
		Trouble: func(err error) {
			if c.Err() == nil { // what ends with us is no trouble
				k.podTrouble(endpoint, err)
			}
		},
	})
	go func() {
		defer close(w.done)
		w.Run(c)
	}()
	return w
}

// leave ends the watches and waits for them.
func (k *Keeper) leave() {
	var all sync.WaitGroup
	for _, w := range k.watches {
		w.stop()
		all.Go(func() { <-w.done })
	}
	all.Wait()
}

// pod is what an agent last said.
func (k *Keeper) pod(endpoint string) hold.Pod {
	if w := k.watches[endpoint]; w != nil {
		return w.Pod()
	}
	return hold.Pod{}
}

// heard is what every agent last said.
func (k *Keeper) heard() map[string]hold.Pod {
	pods := make(map[string]hold.Pod, len(k.watches))
	for endpoint, w := range k.watches {
		p := w.Pod()
		k.podChanged(endpoint, w.pod, p)
		w.pod, pods[endpoint] = p, p
	}
	return pods
}

// conclude tells agents and rows what a turn has shown.
func (k *Keeper) conclude(ctx context.Context, l *look) {
	facts := map[string][]Key{}
	attend := map[string]bool{}
	for key, v := range l.views {
		s, endpoint := l.steps[key], v.Line.Endpoint
		rec := l.records[key.String()]
		k.row(key, v, s, s.Record.Same(rec) || s.Record.Empty() && rec.Empty())
		if endpoint == "" {
			continue
		}
		facts[endpoint] = append(facts[endpoint], key)
		back := s.Record.Pod != nil && v.Pod.Phase == hold.Open
		if back || s.Wait == hold.ForPod || s.Wait == hold.ForCheck {
			attend[endpoint] = true
		}
	}
	k.save(ctx, l)
	for endpoint, keys := range facts {
		w := k.watches[endpoint]
		if w == nil {
			continue
		}
		w.Attend(attend[endpoint])
		if !k.o.Observe && !k.o.Guest {
			k.acknowledge(w, endpoint, l, keys)
		}
	}
}

// save puts the server state down where the next start of HAProxy reads it,
// after every change of what is held. Where it cannot, a reload loses DRAIN for a
// moment: that is said, and no reason to hold the pod up.
func (k *Keeper) save(ctx context.Context, l *look) {
	if k.o.Save == nil || k.o.Observe {
		return
	}
	held := ""
	for _, key := range slices.SortedFunc(maps.Keys(l.steps), byName) {
		s, r := l.views[key].Server, l.steps[key].Record
		if r.Pod != nil || r.Op != nil {
			held += key.String() + fmt.Sprint(s.Admin, s.Check.On(), s.Agent.On()) + "\n"
		}
	}
	if held == k.saved || k.unsaved != "" && time.Now().Before(k.saveAt) {
		return
	}
	k.saveAt = time.Now().Add(k.o.Interval) // if it fails: the whole table is asked for
	err := k.o.Save(ctx)
	if err == nil {
		k.saved = held
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != k.unsaved && err != nil {
		k.event(k.o.Log.Warn(), "alarm").Err(err).Msg("a reload will forget what is held, until it is held again")
	}
	k.unsaved = text
}

// byName sorts servers and commands alike.
func byName[T fmt.Stringer](a, b T) int { return strings.Compare(a.String(), b.String()) }

// acknowledge tells an agent the facts: at every change of what they amount to,
// and each interval.
func (k *Keeper) acknowledge(w *watch, endpoint string, l *look, keys []Key) {
	pod := l.pods[endpoint]
	a := k.ack(w, l, keys)
	w.Hello(a)
	if pod.Phase != hold.Leaving || !pod.Lost.IsZero() {
		return
	}
	a.Drain = &pod.Drain
	word, missing := a.Word(), a.Missing()
	if word == handshake.HeldZero && l.maintDue(keys) {
		return // in MAINT first: where clients are sticky, DRAIN alone still sends
	}
	if w.drain != pod.Drain {
		w.drain, w.said, w.missing, w.at = pod.Drain, handshake.None, "", time.Time{}
	}
	again := k.o.Interval
	if missing != w.missing {
		again = retell
	}
	if word == w.said && time.Since(w.at) < again {
		return
	}
	if word != w.said {
		k.said(endpoint, w.said, word, a)
	}
	w.said, w.missing, w.at = word, missing, time.Now()
	w.Say(a)
}

// maintDue says whether MAINT is the next step of one of a pod's servers.
func (l *look) maintDue(keys []Key) bool {
	return slices.ContainsFunc(keys, func(key Key) bool {
		_, due := l.k.command(key, l.steps[key])
		return due && l.steps[key].Do == hold.ToMaint
	})
}

// ack is what is known of a pod's servers here.
func (k *Keeper) ack(w *watch, l *look, keys []Key) handshake.Ack {
	a := handshake.Ack{
		Version: handshake.Version, Interval: handshake.Millis(k.o.Interval),
		HAProxy: handshake.Process{Pid: l.read.Info.Pid, Start: l.read.Info.Start, Present: true},
		Sources: []string{}, Servers: []handshake.ServerFact{},
	}
	sources := map[string]bool{}
	if s := w.Source(); s.IsValid() {
		sources[s.String()] = true
	}
	slices.SortFunc(keys, byName)
	for _, key := range keys {
		line := k.lines[key]
		if line.Source != "" {
			sources[line.Source] = true
		}
		a.Window.Best = max(a.Window.Best, line.Window.Best)
		a.Window.Mean = max(a.Window.Mean, line.Window.Mean)
		a.Window.Worst = max(a.Window.Worst, line.Window.Worst)
		a.Servers = append(a.Servers, hold.Fact(l.views[key], l.steps[key].Memory))
	}
	a.Sources = slices.AppendSeq(a.Sources, maps.Keys(sources))
	slices.Sort(a.Sources)
	return a
}
