package hold

import (
	"time"

	"lbdrain/internal/handshake"
	"lbdrain/internal/haproxy"
)

// Bounds of the protocol.
const (
	// ZeroGap is how far apart two reads of zero must be: on two threads a
	// request chosen before DRAIN reached sessions up to 0.26 ms after it
	// (measured, 3.2), and a pool may hand over later.
	ZeroGap = 50 * time.Millisecond
	// Fresh bounds the age of the OPEN that a loosening command rests on.
	Fresh = time.Second
	// Gone is how long a pod must be out of reach to be taken for gone.
	Gone = 3 * time.Second
	// Grace is what a silent pod with sessions gets after its deadline before
	// health is given back to it.
	Grace = 30 * time.Second
	// UnknownInter stands for a check interval that no configuration told.
	UnknownInter = 10 * time.Second
)

// Phase is what the pod's agent says, as far as a balancer cares.
type Phase uint8

// The phases. The zero value is a pod that never answered: no action rests on it.
const (
	Unknown Phase = iota
	Open
	Leaving // DRAINING, CLOSING or CLOSED
	Broken  // FAULT
)

// Pod is what the agent of a server last said.
type Pod struct {
	Phase    Phase
	Instance string
	Drain    handshake.DrainID // while Leaving
	Deadline time.Time         // while Leaving; zero for a person's drain
	Heard    time.Time         // when that answer came in
	Lost     time.Time         // since when it cannot be reached; zero: connected
}

// PodOf reads a status that came in at heard.
func PodOf(s handshake.Status, heard time.Time) Pod {
	p := Pod{Instance: s.Instance, Heard: heard}
	switch s.State {
	case "OPEN":
		p.Phase = Open
	case "DRAINING", "CLOSING", "CLOSED":
		p.Phase = Leaving
		p.Drain = handshake.DrainID{Instance: s.Instance, Seq: s.Seq}
		if s.Drain != nil {
			p.Drain, p.Deadline = s.Drain.DrainID, s.Drain.Deadline.Time
		}
	case "FAULT":
		p.Phase = Broken
	}
	return p
}

func (p Pod) freshlyOpen(now time.Time) bool {
	return p.Phase == Open && p.Lost.IsZero() && now.Sub(p.Heard) < Fresh
}

func (p Pod) gone(now time.Time) bool { return !p.Lost.IsZero() && now.Sub(p.Lost) >= Gone }

// Line is what the configuration says of a server.
type Line struct {
	Endpoint   string        // its pod's agent, host:port; "" if it has none
	Inter      time.Duration // between two health checks; 0: not known
	Timeout    time.Duration // of one health check; 0: Inter
	AgentInter time.Duration // 0: no agent check
}

// patience is the time in which a health check that begins after now has also
// ended: the interval, at most half as much again by spread-checks, and the
// check itself.
func (l Line) patience() time.Duration {
	inter := l.Inter
	if inter <= 0 {
		inter = UnknownInter
	}
	timeout := l.Timeout
	if timeout <= 0 {
		timeout = inter
	}
	return inter + inter/2 + timeout
}

// View is everything that a decision about one server rests on.
type View struct {
	Now    time.Time     // when the read was asked for
	Took   time.Duration // until it was answered
	Worker Worker
	Server haproxy.Server
	Line   Line
	Pod    Pod
	Guest  bool // nobody is here to follow the pod: hold nothing for it
}

// Memory is what is remembered of earlier reads and may be lost at any time.
type Memory struct {
	Worker Worker
	Zero   int       // reads in a row, ZeroGap apart, that found it held and empty
	ZeroAt time.Time // when the last that counted was answered
	Total  uint64    // requests it had had by then
	// Idle says that no check was on its way at some moment of the probation,
	// Probed that one was at a later moment: so that one began within it.
	Idle, Probed bool
	// Rest is since when Bits are what others have set, with no hold and the
	// pod OPEN.
	Rest time.Time
	Bits haproxy.AdminState
}

func (v View) drained() bool   { return v.Server.Admin&(haproxy.ForcedDrain|haproxy.ForcedMaint) != 0 }
func (v View) maint() bool     { return v.Server.Admin&haproxy.ForcedMaint != 0 }
func (v View) agentOn() bool   { return v.Server.Agent&haproxy.Enabled != 0 }
func (v View) healthOn() bool  { return v.Server.Check&haproxy.Enabled != 0 }
func (v View) checked() bool   { return v.Server.Check&haproxy.Configured != 0 }
func (v View) checking() bool  { return v.Server.Check&haproxy.InProgress != 0 || v.Server.CheckRunning }
func (v View) empty() bool     { return v.Server.Sessions == 0 && v.Server.Queued == 0 }
func (v View) held() bool      { return v.drained() && !v.agentOn() }
func (v View) unlocated() bool { return v.Server.Admin&haproxy.ResolutionMaint != 0 }

// look takes one read into the memory.
func (m Memory) look(v View) Memory {
	if m.Worker != v.Worker {
		m = Memory{Worker: v.Worker}
	}
	if !v.held() || !v.empty() || m.Total != v.Server.Total {
		m.Zero = 0 // a request that came and went between two reads counts too
	}
	if v.held() && v.empty() && (m.Zero == 0 || v.Now.Sub(m.ZeroAt) >= ZeroGap) {
		m.Zero, m.ZeroAt, m.Total = m.Zero+1, v.Now.Add(v.Took), v.Server.Total
	}
	return m
}

// emptyTwice says whether this read and an earlier one found the server empty.
func (m Memory) emptyTwice() bool { return m.Zero >= 2 }
