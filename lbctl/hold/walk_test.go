package hold

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"lbdrain/internal/handshake"
	"lbdrain/internal/haproxy"
)

// world is one HAProxy with one server, its pod, and an lbctl that can be killed
// at any moment. HAProxy behaves as measured: last writer of the admin bits wins,
// a check or a word on its way is applied when it arrives, MAINT and a failed
// check cut what runs.
type world struct {
	now       time.Time
	s         haproxy.Server
	worker    Worker
	stateFile bool // a reload keeps bits and flags

	old, late    uint64 // on the old worker; chosen, not in sessions yet
	check, agent string // on their way: "", "asked", the answer
	proven       bool   // a check has passed since MAINT or since health was off

	state    string // of the pod: OPEN DRAINING DEAD
	instance int
	seq      uint64
	agentUp  bool
	ready    int // `up ready` answers left
	zero     bool

	rec     Record // as journaled
	mem     Memory
	heard   Pod
	pending Verb
	at      Worker // of the read that pending follows from
	confirm bool   // a person was told that the hold is in force

	bad   string
	trace []string // what lbctl decided
}

func newWorld(stateFile bool) *world {
	on := haproxy.Configured | haproxy.Enabled
	return &world{
		now: t0, worker: here, stateFile: stateFile, state: "OPEN", instance: 1, seq: 1, agentUp: true, ready: 2, proven: true,
		s: haproxy.Server{
			Backend: "b", Name: "s", Check: on, Agent: on | haproxy.Agent, CheckHealth: 3, Rise: 2, Fall: 2, Operational: haproxy.OpRunning,
		},
		heard: Pod{Lost: t0}, rec: Record{Backend: "b", Server: "s"},
	}
}

func (w *world) fail(format string, a ...any) {
	if w.bad == "" {
		w.bad = fmt.Sprintf(format, a...)
	}
}

func (w *world) up() bool {
	return w.s.Admin == 0 && w.s.Operational == haproxy.OpRunning
}

func (w *world) guarded() bool {
	return w.s.Admin&haproxy.ForcedDrain != 0 && w.s.Check&haproxy.Enabled == 0 && w.check == ""
}

func (w *world) kill(why string) {
	if w.s.Sessions > 0 {
		w.fail("%s cut %d requests", why, w.s.Sessions)
	}
	w.s.Sessions = 0
}

// apply is a verb that arrives, or an agent's word.
func (w *world) apply(v Verb) {
	was := w.s
	w.s = Apply(w.s, v)
	switch {
	case v == ToMaint && was.Operational != haproxy.OpStopped:
		w.kill("MAINT")
		w.proven = false
	case v == ToMaint, v == HealthOff:
		w.proven = false
	}
}

func (w *world) checkStep() {
	switch w.check {
	case "":
		if w.s.Check.On() && w.s.Admin&haproxy.ForcedMaint == 0 {
			w.check = "asked"
		}
	case "asked":
		if w.check = "failed"; w.state != "DEAD" && w.agentUp {
			w.check = "passed"
		}
	default:
		answer := w.check
		w.check = ""
		switch {
		case w.s.Admin&haproxy.ForcedMaint != 0:
		case answer == "passed":
			w.s.CheckHealth, w.s.Operational = 3, haproxy.OpRunning
			if w.s.Check.On() {
				w.proven = true
			}
		default:
			if w.s.Operational != haproxy.OpStopped {
				w.kill("a failed check")
			}
			w.s.CheckHealth, w.s.Operational = 0, haproxy.OpStopped
		}
	}
}

func (w *world) agentStep() {
	switch w.agent {
	case "":
		if !w.s.Agent.On() || !w.agentUp {
			return
		}
		w.agent = "drain"
		if w.state == "OPEN" {
			if w.agent = "up"; w.ready > 0 {
				w.agent, w.ready = "up ready", w.ready-1
			}
		}
	default:
		word := w.agent
		w.agent = ""
		switch {
		case !w.s.Agent.On():
		case word == "drain":
			w.apply(ToDrain)
		case word == "up ready":
			w.apply(ToReady)
		}
	}
}

// view is what lbctl reads now.
func (w *world) view() View {
	s := w.s
	s.CheckRunning = w.check != ""
	return View{
		Now: w.now, Worker: w.worker, Server: s, Pod: w.heard,
		Line: Line{Endpoint: "p", Inter: 100 * time.Millisecond, AgentInter: 100 * time.Millisecond},
	}
}

// read is the first half of a turn: read, decide, journal.
func (w *world) read() {
	step := Next(w.view(), w.rec, w.mem)
	w.rec, w.mem, w.pending, w.at = step.Record, step.Memory, step.Do, w.worker
	w.trace = append(w.trace, fmt.Sprintf("%v: pod %d, %v: %s", w.now.Sub(t0), w.heard.Phase, step.Do, step.Why))
	if w.rec.operator() && w.s.Admin != 0 && !w.s.Agent.On() {
		w.confirm = true
	}
}

// send is the second half, on the same connection: after a reload it reaches the
// old worker. The acknowledgement follows from what is read back.
func (w *world) send() {
	if v := w.pending; v != Nothing && w.at == w.worker {
		if v == ToReady && !w.proven && w.s.Check.On() {
			w.fail("ready without a passed check")
		}
		w.apply(v)
	}
	w.pending = Nothing
	v := w.view()
	step := Next(v, w.rec, w.mem)
	w.mem = step.Memory
	if w.state == "DRAINING" && w.agentUp && w.heard.Phase == Leaving && w.heard.Drain == w.drainID() && step.Do != ToMaint {
		w.zero = Fact(v, step.Memory).HeldZero()
	}
}

func (w *world) drainID() handshake.DrainID {
	return handshake.DrainID{Instance: fmt.Sprint(w.instance), Seq: w.seq}
}

// hear is an answer of the agent, or none.
func (w *world) hear() {
	if w.state == "DEAD" || !w.agentUp {
		if w.heard.Lost.IsZero() {
			w.heard.Lost = w.now
		}
		return
	}
	w.heard = Pod{Phase: Open, Instance: fmt.Sprint(w.instance), Heard: w.now}
	if w.state != "OPEN" {
		w.heard.Phase, w.heard.Drain, w.heard.Deadline = Leaving, w.drainID(), w.now.Add(time.Minute)
	}
}

func (w *world) tick(d time.Duration) {
	w.s.Sessions, w.s.Total, w.late = w.s.Sessions+w.late, w.s.Total+w.late, 0
	for ; d >= 100*time.Millisecond; d -= 100 * time.Millisecond {
		w.now = w.now.Add(100 * time.Millisecond)
		for range 3 { // the check interval: one begins and ends in it
			w.checkStep()
		}
	}
	w.now = w.now.Add(d)
}

func (w *world) exit() {
	if w.state != "DRAINING" || !w.zero || w.s.Sessions+w.late+w.old > 0 || !w.agentUp {
		return
	}
	if w.up() && w.stateFile {
		w.fail("the pod exits while HAProxy could still send to it")
	}
	w.state, w.agentUp = "DEAD", false
}

func (w *world) start() {
	// What HAProxy was answered, it has applied before another pod starts.
	if w.check != "" && w.check != "asked" {
		w.checkStep()
	}
	if w.agent != "" {
		w.agentStep()
	}
	w.state, w.agentUp, w.instance, w.seq, w.ready, w.zero = "OPEN", true, w.instance+1, 1, 2, false
}

func (w *world) reload() {
	if !w.stateFile && !w.agentUp && w.state != "DEAD" {
		return // the guard would be lost with the agent away: no rule here can help
	}
	w.old, w.s.Sessions, w.late = w.old+w.s.Sessions+w.late, 0, 0
	w.worker.Pid++
	w.check, w.agent = "", ""
	if !w.stateFile {
		w.s.Admin, w.confirm = 0, false
		w.s.Check, w.s.Agent = haproxy.Configured|haproxy.Enabled, haproxy.Configured|haproxy.Enabled|haproxy.Agent
	}
	w.s.CheckHealth, w.s.Operational = w.s.Rise, haproxy.OpRunning
	if w.s.Admin&haproxy.ForcedMaint != 0 {
		w.s.Operational = haproxy.OpStopped
	}
	w.proven = true // a start of HAProxy trusts every server; no rule here can change that
}

// always holds after every step.
func (w *world) always(t *rapid.T) {
	if w.s.Check&haproxy.Enabled == 0 && (w.s.Agent.On() || w.s.Admin == 0 || !w.rec.Guarded) {
		w.fail("health is off with agent %v, admin %v, journaled %v", w.s.Agent, w.s.Admin, w.rec.Guarded)
	}
	if w.confirm && w.rec.operator() && w.s.Admin == 0 {
		w.fail("a person's hold was lifted")
	}
	if w.bad != "" {
		t.Fatalf("%s\nlbctl: %s\n%+v", w.bad, strings.Join(w.trace[max(len(w.trace)-20, 0):], "\n\t"), w)
	}
}

// actions are everything that can happen next.
func (w *world) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"": w.always,
		"request": func(*rapid.T) {
			if w.up() && w.state != "DEAD" && w.s.Sessions+w.late < 2 {
				w.late++
			}
		},
		"late": func(*rapid.T) { w.tick(0) },
		"request ends": func(*rapid.T) {
			if w.s.Sessions > 0 {
				w.s.Sessions--
			}
		},
		"old request ends": func(*rapid.T) {
			if w.old > 0 {
				w.old--
			}
		},
		"check": func(*rapid.T) { w.checkStep() },
		"agent": func(*rapid.T) { w.agentStep() },
		"time": func(t *rapid.T) {
			w.tick(rapid.SampledFrom([]time.Duration{20, 60, 300, 2500}).Draw(t, "ms") * time.Millisecond)
		},
		"hear": func(*rapid.T) { w.hear() },
		"read": func(*rapid.T) { w.read() },
		"send": func(*rapid.T) { w.send() },
		"turn": func(*rapid.T) { w.read(); w.send() },
	}
}

// events are what pods, people and machines do.
func (w *world) events() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"pod drains": func(*rapid.T) {
			if w.state == "OPEN" && w.agentUp {
				w.state, w.seq, w.zero = "DRAINING", w.seq+1, false
			}
		},
		"pod reopens": func(*rapid.T) {
			if w.state == "DRAINING" && w.agentUp {
				w.state, w.seq, w.ready, w.zero = "OPEN", w.seq+1, 2, false
			}
		},
		"pod exits": func(*rapid.T) { w.exit() },
		"pod starts": func(*rapid.T) {
			if w.state == "DEAD" {
				w.start()
			}
		},
		"agent crashes": func(*rapid.T) {
			// Before the guard, and once it was given back to an OPEN pod, nothing
			// here can help: the check itself fails.
			if w.guarded() && w.state == "DRAINING" && w.heard.Phase == Leaving && w.pending != HealthOn {
				w.agentUp, w.zero = false, false
			}
		},
		"agent restarts": func(*rapid.T) {
			if !w.agentUp && w.state != "DEAD" {
				w.agentUp, w.instance, w.seq, w.ready = true, w.instance+1, 2, 2
			}
		},
		"lbctl is killed": func(*rapid.T) {
			w.mem, w.pending, w.heard, w.confirm = Memory{}, Nothing, Pod{Lost: w.now}, w.confirm && w.rec.operator()
		},
		"reload": func(*rapid.T) { w.reload() },
		"person holds": func(t *rapid.T) {
			kind := rapid.SampledFrom([]string{Drain, Maint}).Draw(t, "kind")
			w.rec.Op, w.rec.Foreign, w.rec.Return, w.confirm = &OpHold{Kind: kind, Since: w.now, Guard: w.now.Add(time.Minute)}, "", nil, false
			w.pending = Nothing
		},
		"person lifts": func(*rapid.T) {
			if w.rec.Op != nil {
				op := *w.rec.Op
				op.Lifted, w.rec.Op, w.confirm = true, &op, false
				w.pending = Nothing
			}
		},
	}
}

// settle lets everything go well, and asks for what must come of it.
func (w *world) settle(t *rapid.T) {
	if w.rec.Op != nil {
		op := *w.rec.Op
		op.Lifted, w.rec.Op, w.confirm = true, &op, false
	}
	w.s.Sessions, w.late, w.old = 0, 0, 0
	if !w.agentUp || w.state != "OPEN" {
		w.start()
	}
	for range 100 {
		w.ready = 2
		for range 3 {
			w.checkStep()
			w.agentStep()
		}
		w.hear()
		w.read()
		w.send()
		w.tick(100 * time.Millisecond)
		w.always(t)
	}
	if !w.up() || !w.s.Check.On() || !w.s.Agent.On() || !w.rec.Empty() {
		t.Fatalf("never comes back: %v, record %s\n%s", w.s.Admin, show(w.rec), strings.Join(w.trace[len(w.trace)-5:], "\n"))
	}
}

// TestWalk walks at random, with and without a server-state-file.
func TestWalk(t *testing.T) {
	for _, stateFile := range []bool{true, false} {
		t.Run(fmt.Sprintf("state file %v", stateFile), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(stateFile)
				all := w.actions()
				maps.Copy(all, w.events())
				t.Repeat(all)
				w.settle(t)
			})
		})
	}
}
