package pods

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"lbdrain/internal/handshake"
	"lbdrain/lbctl/hold"
)

const (
	held      = 25 * time.Second       // how long a GET may hang
	attention = 200 * time.Millisecond // between two questions while a hold needs a fresh OPEN
	backoff0  = 20 * time.Millisecond
	backoffN  = 2 * time.Second
	// An agent is asked and told at most burst times at once, and then once every
	// pace, whatever it answers: one that answers a held GET at once, or refuses an
	// acknowledgement with another drain each time, would keep this host busy.
	// An orderly drain needs some ten exchanges in its first second.
	burst = 32
	pace  = 50 * time.Millisecond
	// stranger is how long an address is left alone that answers, but not as an
	// agent does: somebody else's health endpoint.
	stranger = 30 * time.Second
)

// Options of a watch.
type Options struct {
	LB       string        // the balancer's name; "" watches without being one
	Token    string        // bearer token, "" for none
	Interval time.Duration // of acknowledgements during a drain; > 0
	// Changed is called from the watch's goroutine whenever the pod says
	// something else or was lost; it must not block.
	Changed func()
	// Trouble is called when what the agent answers changes to an error, and
	// with nil when it is well again.
	Trouble func(error)
}

// Watch is the connection to one agent. Run owns it; the other methods are safe
// for concurrent use.
type Watch struct {
	endpoint string
	o        Options
	wake     chan struct{}
	paid     time.Time // Run's: until when exchanges are paid for, at one pace each

	mu      sync.Mutex
	pod     hold.Pod
	source  netip.Addr
	ack     *handshake.Ack // to be sent next
	hello   *handshake.Ack // the greeting for a new connection
	attend  bool
	sleeper *conn // the connection whose GET is being held
	trouble string
}

// New is a watch of the agent at endpoint, host:port. It does nothing before Run.
func New(endpoint string, o Options) *Watch {
	return &Watch{endpoint: endpoint, o: o, wake: make(chan struct{}, 1), pod: hold.Pod{Lost: time.Now()}}
}

// Pod is what was last heard.
func (w *Watch) Pod() hold.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// Source is the address the present or last connection comes from; the zero
// Addr before the first.
func (w *Watch) Source() netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.source
}

// Hello sets the greeting, an acknowledgement without a drain, for the present
// and later connections.
func (w *Watch) Hello(a handshake.Ack) {
	w.mu.Lock()
	w.hello = &a
	w.mu.Unlock()
}

// Say sends an acknowledgement: at once if the pod is draining, otherwise never.
// One that was not sent yet is replaced.
func (w *Watch) Say(a handshake.Ack) {
	w.mu.Lock()
	w.ack = &a
	w.mu.Unlock()
	w.poke()
}

// Attend says whether a hold waits for what this pod says next. A GET that is
// being held is given up for it.
func (w *Watch) Attend(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.attend == on {
		return
	}
	w.attend = on
	if on && w.sleeper != nil {
		w.sleeper.interrupt()
	}
}

func (w *Watch) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run watches until ctx ends, and then takes the name back (DELETE) where the
// connection is free to say so.
func (w *Watch) Run(ctx context.Context) {
	wait := backoff0
	for ctx.Err() == nil {
		answered, err := w.connection(ctx)
		if err == nil && ctx.Err() == nil {
			continue // given up for a fresh answer
		}
		w.lost()
		w.tell(err)
		if answered {
			wait = backoff0
		} else {
			wait = min(2*wait, backoffN)
		}
		if notAnAgent(err) {
			wait = stranger
		}
		pause(ctx, wait/2+rand.N(wait/2))
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// afford waits until another exchange may begin.
func (w *Watch) afford(ctx context.Context) {
	now := time.Now()
	if least := now.Add(-burst * pace); w.paid.Before(least) {
		w.paid = least
	}
	if w.paid = w.paid.Add(pace); w.paid.After(now) {
		pause(ctx, w.paid.Sub(now))
	}
}

// lost notes that the pod is out of reach.
func (w *Watch) lost() {
	w.mu.Lock()
	w.sleeper = nil
	if w.pod.Lost.IsZero() {
		w.pod.Lost = time.Now()
	}
	w.mu.Unlock()
	w.o.Changed()
}

// heard takes in a status and says whether it is another than before.
func (w *Watch) heard(s handshake.Status) (news bool) {
	w.mu.Lock()
	old := w.pod
	w.pod = hold.PodOf(s, time.Now())
	old.Heard = w.pod.Heard
	news = old != w.pod
	w.mu.Unlock()
	if news {
		w.o.Changed()
	}
	return news
}

// still notes that nothing has changed.
func (w *Watch) still() {
	w.mu.Lock()
	w.pod.Heard = time.Now()
	w.mu.Unlock()
}

// tell reports a change of what is wrong, once.
func (w *Watch) tell(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	w.mu.Lock()
	news := w.trouble != text
	w.trouble = text
	w.mu.Unlock()
	if news && w.o.Trouble != nil {
		w.o.Trouble(err)
	}
}
