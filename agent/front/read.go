package front

import (
	_ "embed"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lbdrain/agent/balancers"
	"lbdrain/agent/drain"
	"lbdrain/internal/handshake"
)

// maxWait bounds Prefer: wait, in seconds (RFC 7240).
const maxWait = 300

// healthCheck is what HAProxy asks. On the public listener the asker is counted
// before it is answered; the control listener counts nobody.
func (f *Front) healthCheck(control bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var h balancers.Health
		if control {
			h = f.cfg.Pod.HealthByTable()
		} else {
			h = f.cfg.Pod.Check(connOf(r).peer.Addr)
		}
		f.health(w, r, h.Code, h.Body)
	}
}

func (f *Front) readiness(w http.ResponseWriter, r *http.Request) {
	s := f.cfg.Pod.View().State
	f.health(w, r, s.Signals().Readiness, s.String())
}

func (f *Front) liveness(w http.ResponseWriter, r *http.Request) {
	s := f.cfg.Pod.View().State
	f.health(w, r, s.Signals().Liveness, s.String())
}

// health answers one of the three. Only a 200 is worth a 304: whoever asks
// conditionally must not take a failure for unchanged health.
func (f *Front) health(w http.ResponseWriter, r *http.Request, code int, body string) {
	v := f.cfg.Pod.View()
	tag := fmt.Sprintf("\"%s.%d.%d\"", v.Status.Instance, v.Status.Seq, code)
	w.Header().Set("ETag", tag)
	w.Header().Set("Cache-Control", "max-age=1")
	if code == http.StatusOK && matches(r, tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write([]byte(body))
}

// matches is If-None-Match.
func matches(r *http.Request, tag string) bool {
	for _, h := range r.Header.Values("If-None-Match") {
		for t := range strings.SplitSeq(h, ",") {
			if t = strings.TrimPrefix(strings.TrimSpace(t), "W/"); t == tag || t == "*" {
				return true
			}
		}
	}
	return false
}

// prefer is Prefer: wait=N, at most maxWait; ok is false without one.
func prefer(r *http.Request) (seconds int, ok bool) {
	for _, h := range r.Header.Values("Prefer") {
		for p := range strings.SplitSeq(h, ",") {
			p, _, _ = strings.Cut(p, ";")
			k, v, _ := strings.Cut(p, "=")
			if !strings.EqualFold(strings.TrimSpace(k), "wait") {
				continue
			}
			n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(v), `"`), 10, 32)
			if err == nil {
				return int(min(n, maxWait)), true
			}
		}
	}
	return 0, false
}

// status answers GET /drain/status, held where the caller prefers to wait for
// the next state. With lb=NAME it is a balancer's watch.
func (f *Front) status(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Has("lb") {
		done, ok := f.watch(w, r)
		if !ok {
			return
		}
		defer done()
	}
	v := f.cfg.Pod.View()
	w.Header().Set("Cache-Control", "no-cache")
	if !matches(r, v.Status.ETag()) {
		f.answer(w, http.StatusOK)
		return
	}
	seconds, held := prefer(r)
	if held {
		w.Header().Set("Preference-Applied", fmt.Sprintf("wait=%d", seconds))
		if f.hold(w, r, v.Changed, time.Duration(seconds)*time.Second) {
			f.answer(w, http.StatusOK)
			return
		}
	}
	w.Header().Set("ETag", v.Status.ETag())
	w.WriteHeader(http.StatusNotModified)
}

// hold waits for the event; false when the time is up or the caller has left.
// With a body left unread net/http would not notice the latter (server.go,
// registerOnHitEOF).
func (f *Front) hold(w http.ResponseWriter, r *http.Request, event <-chan struct{}, limit time.Duration) bool {
	if _, err := f.body(w, r); err != nil {
		return false
	}
	c := connOf(r)
	c.held.Store(true)
	defer c.held.Store(false)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-event:
		return true
	case <-timer.C:
	case <-r.Context().Done():
	}
	return false
}

// answer writes the current status.
func (f *Front) answer(w http.ResponseWriter, code int) {
	s := f.cfg.Pod.Status()
	w.Header().Set("ETag", s.ETag())
	f.json(w, code, s)
}

// forGood is longer than any drain.
const forGood = 365 * 24 * time.Hour

// waitAnswer is the body of GET /drain/wait.
type waitAnswer struct {
	Result   string                     `json:"result"` // an outcome, or "not draining"
	State    string                     `json:"state"`
	TimedOut bool                       `json:"timed_out"`
	Drain    *handshake.Drain           `json:"drain"`
	InFlight map[string]handshake.Count `json:"in_flight"`
	Waiting  string                     `json:"waiting"` // what the balancers had not shown
}

// wait blocks until the drain has ended. It reads and never triggers; one that
// left is forgotten.
func (f *Front) wait(w http.ResponseWriter, r *http.Request) {
	v := f.cfg.Pod.View()
	if v.Ended == nil {
		f.hold(w, r, v.Changed, f.cfg.WaitStart)
		v = f.cfg.Pod.View()
	}
	result := "not draining"
	if v.Ended != nil {
		f.cfg.Pod.Waits()
		f.hanging.Add(1)
		defer f.hanging.Add(-1)
		if !f.hold(w, r, v.Ended, forGood) {
			return
		}
		if o := f.cfg.Pod.View().Outcome; o != "" {
			result = string(o)
		} else {
			result = string(drain.Reopened)
		}
	}
	s := f.cfg.Pod.Status()
	a := waitAnswer{
		Result: result, State: s.State, TimedOut: result == string(drain.TimedOut),
		Drain: s.Drain, InFlight: s.Progress.InFlight, Waiting: f.cfg.Pod.View().Waiting,
	}
	f.json(w, http.StatusOK, a)
	_ = http.NewResponseController(w).Flush()
}

// metrics is the state in Prometheus' text format. What is unknown is absent.
func (f *Front) metrics(w http.ResponseWriter, _ *http.Request) {
	s := f.cfg.Pod.Status()
	var b strings.Builder
	head := func(name, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name) }
	head("lbdrain_agent_state", "1 for the state the pod is in.")
	fmt.Fprintf(&b, "lbdrain_agent_state{state=%q} 1\n", s.State)
	head("lbdrain_agent_seq", "Number of transitions so far.")
	fmt.Fprintf(&b, "lbdrain_agent_seq %d\n", s.Seq)
	head("lbdrain_agent_in_flight", "What a source counts in a drain; absent while unknown.")
	for name, c := range s.Progress.InFlight {
		if c.Known {
			fmt.Fprintf(&b, "lbdrain_agent_in_flight{source=%q} %d\n", name, c.N)
		}
	}
	head("lbdrain_agent_lb", "1 for what each balancer has shown.")
	for _, lb := range s.Progress.LBs {
		fmt.Fprintf(&b, "lbdrain_agent_lb{lb=%q,evidence=%q} 1\n", lb.LB, lb.Evidence)
	}
	if s.Drain != nil && !s.Drain.Deadline.IsZero() {
		head("lbdrain_agent_deadline_seconds", "When the drain under way gives up, in Unix time.")
		fmt.Fprintf(&b, "lbdrain_agent_deadline_seconds %d\n", s.Drain.Deadline.Unix())
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(b.String()))
}

//go:embed openapi.yaml
var openapiYAML []byte

func (f *Front) openapi(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openapiYAML)
}
