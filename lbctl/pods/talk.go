package pods

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"lbdrain/internal/handshake"
	"lbdrain/lbctl/hold"
)

// talk is the conversation over one connection.
type talk struct {
	w    *Watch
	c    *conn
	etag string
	met  bool // the greeting was taken
	news bool // the last answer was another than before
}

// connection dials and talks until the connection is lost. err is nil if it
// gave the connection up itself.
func (w *Watch) connection(ctx context.Context) (answered bool, err error) {
	c, err := dial(ctx, w.endpoint)
	if err != nil {
		return false, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, c.interrupt)
	defer stop()
	w.mu.Lock()
	w.source = c.source()
	w.mu.Unlock()
	t := &talk{w: w, c: c}
	w.afford(ctx)
	if err := t.ask(0); err != nil {
		return false, err
	}
	w.tell(nil)
	for ctx.Err() == nil {
		if err := t.next(ctx); err != nil {
			if ctx.Err() == nil && c.given() {
				return true, nil // for a fresh answer on a new connection
			}
			return true, err
		}
	}
	if stop() && w.o.LB != "" {
		t.leave()
	}
	return true, nil
}

// next is one exchange, or the wait for the time of one.
func (t *talk) next(ctx context.Context) error {
	w := t.w
	w.afford(ctx)
	if !t.met && w.o.LB != "" {
		if err := t.greet(); err != nil {
			return err
		}
	}
	w.mu.Lock()
	pod, attend := w.pod, w.attend
	w.mu.Unlock()
	switch {
	case pod.Phase == hold.Leaving && w.o.LB != "":
		return t.acknowledge(ctx, pod)
	case attend:
		pause(ctx, attention)
		return t.ask(0)
	case t.news, !t.met && w.o.LB != "":
		// A hold may want to hear it again soon, the greeting be repeated.
		return t.ask(time.Second)
	}
	return t.ask(held)
}

// ask is GET /drain/status, held for at most wait.
func (t *talk) ask(wait time.Duration) error {
	q := request{method: http.MethodGet, path: "/drain/status", token: t.w.o.Token, limit: t.w.o.Interval, wait: wait}
	if t.w.o.LB != "" {
		q.path += "?lb=" + t.w.o.LB
	}
	if wait > 0 {
		q.etag = t.etag
	}
	if wait == held && !t.sleep() {
		return nil
	}
	s, err := t.c.do(q)
	t.w.mu.Lock()
	t.w.sleeper = nil
	t.w.mu.Unlock()
	return t.took(s, err)
}

// sleep lets Attend interrupt what comes; false if it already wants to.
func (t *talk) sleep() bool {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	if t.w.attend {
		return false
	}
	t.w.sleeper = t.c
	return true
}

// took takes in an answer.
func (t *talk) took(s *handshake.Status, err error) error {
	t.news = false
	switch {
	case s != nil:
		t.etag = s.ETag()
		t.news = t.w.heard(*s)
	case err == nil:
		t.w.still()
	}
	return err
}

// greet tells sources, window and interval. An agent that does not know our
// address yet refuses until HAProxy's first check has reached it: the greeting
// is repeated then, and every acknowledgement says the same.
func (t *talk) greet() error {
	t.w.mu.Lock()
	hello, phase := t.w.hello, t.w.pod.Phase
	t.w.mu.Unlock()
	if hello == nil || phase != hold.Open {
		return nil
	}
	err := t.put(*hello)
	t.met = err == nil
	return t.forgive(err)
}

// acknowledge waits for something to say and says it; without it asks once an
// interval.
func (t *talk) acknowledge(ctx context.Context, pod hold.Pod) error {
	timer := time.NewTimer(t.w.o.Interval)
	defer timer.Stop()
	for {
		if a := t.w.takeAck(pod.Drain); a != nil {
			return t.forgive(t.put(*a))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.w.wake:
		case <-timer.C:
			return t.ask(0)
		}
	}
}

// takeAck is what Say left for this drain.
func (w *Watch) takeAck(d handshake.DrainID) *handshake.Ack {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.ack
	w.ack = nil
	if a == nil || a.Drain == nil || *a.Drain != d {
		return nil
	}
	return a
}

func (t *talk) put(a handshake.Ack) error {
	body, err := json.Marshal(a)
	if err != nil {
		return err
	}
	s, err := t.c.do(request{
		method: http.MethodPut, path: "/drain/lbs/" + t.w.o.LB, token: t.w.o.Token, body: body, limit: t.w.o.Interval,
	})
	return t.took(s, err)
}

// forgive reports an agent's refusal and goes on: the next status or the next
// acknowledgement tells whether it still stands.
func (t *talk) forgive(err error) error {
	var refused *StatusError
	if errors.As(err, &refused) && refused.Code != http.StatusUnauthorized {
		t.w.tell(err)
		return nil
	}
	if err == nil {
		t.w.tell(nil)
	}
	return err
}

// leave takes the name back.
func (t *talk) leave() {
	_, _ = t.c.do(request{
		method: http.MethodDelete, path: "/drain/lbs/" + t.w.o.LB, token: t.w.o.Token, limit: t.w.o.Interval,
	})
}
