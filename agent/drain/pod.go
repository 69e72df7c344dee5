package drain

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"lbdrain/agent/balancers"
	"lbdrain/fsm"
	"lbdrain/internal/handshake"
)

// Reading is what one source says is in flight.
type Reading struct {
	Count     handshake.Count
	Upgrades  handshake.Count
	Note      string // what is not known or was left out
	Detail    string // where Count comes from
	Envoy     bool   // the source is Envoy's admin
	Refused   bool   // nobody listens there
	Restarted bool   // another process answers than before

	sending bool // it is Config.Sending's
}

// Source counts what is in flight. Read returns when ctx ends at the latest.
type Source interface {
	Name() string
	Read(ctx context.Context) Reading
}

// Envoy is the data plane that can be told to drain. Check says what harm the
// call would do, "" for none, and whether it must not be made at all.
type Envoy interface {
	Check(ctx context.Context, upgrades handshake.Count) (harm string, refuse bool, err error)
	DrainListeners(ctx context.Context) error
}

// When Envoy is told: once every balancer has held, at the start of a drain, or
// never.
const (
	EnvoyHeld  = "held"
	EnvoyStart = "start"
	EnvoyNever = "never"
)

// Config is the drain's settings and its outside. Durations are at least 0.
type Config struct {
	Instance string
	UID      string // of the pod, "" if unknown
	Start    time.Time

	Timeout     time.Duration // of a finishing drain
	Quiet       time.Duration // how long nothing in flight must hold, below Timeout
	QuietPolled time.Duration // the same where some evidence is only polls
	MinDrain    time.Duration // floor of DRAINING
	Buffer      time.Duration // CLOSING lasts so long after a passed deadline
	Rejoin      time.Duration // wait for the caller of a drain found in the state file
	WaitStart   time.Duration // somebody should have come to /drain/wait by then
	CloseLate   bool          // a passed deadline closes instead of holding

	Balancers balancers.Config
	Sources   []Source
	// Sending counts connections with bytes that their peer has not confirmed. It
	// stands in for the sessions of a balancer that tells of none, and is read and
	// counted only then: the kernel walks every socket of the host for it. nil: not
	// known.
	Sending   Source
	Sockets   func() ([]netip.Addr, error) // on the data port; nil: not known
	Envoy     Envoy                        // nil: none
	EnvoyWhen string
	Healthy   func() bool // the probes; nil: no probes
	Save      func(Memory)
	Found     *Memory // what an earlier process left
	Log       zerolog.Logger
}

// Outcome is how a drain ended.
type Outcome string

// The outcomes. A drain under way has none.
const (
	Drained  Outcome = "drained"
	TimedOut Outcome = "timed out"
	ByHand   Outcome = "closed by hand"
	Reopened Outcome = "reopened"
	Broken   Outcome = "fault"
)

// View is a snapshot for readers.
type View struct {
	Status  handshake.Status // without progress.lbs
	State   fsm.State
	Outcome Outcome
	Waiting string          // what the balancers have not shown, "" if all
	Changed <-chan struct{} // closed when the state changes
	Ended   <-chan struct{} // closed when the drain under way has an outcome; nil without a drain
}

// Pod is the agent's core.
type Pod struct {
	cfg  Config
	cmds chan command
	acks chan struct{}
	read chan round
	told chan envoyResult
	view atomic.Pointer[View]
	came atomic.Bool // somebody came to /drain/wait in this drain

	mu    sync.Mutex // guards table and what it is told of the state
	table *balancers.Table

	// Only the goroutine of Run.
	machine *fsm.Machine
	course  course
	changed chan struct{}
	saved   Memory
	cost    time.Duration // of a reading, on average
}

// New is a pod that has just started; Run makes it live.
func New(c Config) *Pod {
	p := &Pod{
		cfg: c, cmds: make(chan command), acks: make(chan struct{}, 1),
		read: make(chan round, 1), told: make(chan envoyResult, 1),
		table: balancers.New(c.Balancers, c.Start), machine: fsm.New(c.Start), changed: make(chan struct{}),
	}
	p.recall(c.Found)
	p.publish()
	return p
}

// View is what readers see now.
func (p *Pod) View() *View { return p.view.Load() }

// Status is the document of GET /drain/status.
func (p *Pod) Status() handshake.Status {
	s := p.View().Status
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Progress.LBs = p.table.Look(time.Now()).LBs
	return s
}

// Check counts a request for the health page and answers it.
func (p *Pod) Check(from netip.Addr) balancers.Health {
	healthy := p.healthy()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table.Check(from, healthy, time.Now())
}

// HealthByTable is what the state's table says, for the control listener.
func (p *Pod) HealthByTable() balancers.Health {
	s := p.View().State
	if s == fsm.Open && !p.healthy() {
		return balancers.Health{Code: 503, Body: "PROBE"}
	}
	if s == fsm.Draining && p.cfg.Balancers.NotFound {
		return balancers.Health{Code: 404, Body: "DRAIN"}
	}
	sig := s.Signals()
	return balancers.Health{Code: sig.Health, Body: sig.HealthBody}
}

func (p *Pod) healthy() bool { return p.cfg.Healthy == nil || p.cfg.Healthy() }

// Poll counts an agent-check poll and says the word; call Answered once it has
// been written.
func (p *Pod) Poll(from netip.Addr, name string) balancers.Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table.Poll(from, name, time.Now())
}

// Answered says that the word has been written.
func (p *Pod) Answered(a balancers.Answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.Answered(a, time.Now())
}

// Watch registers a watch; Watched says that its GET has been answered.
func (p *Pod) Watch(name string, peer balancers.Peer) error {
	defer p.tell()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table.Watch(name, peer, time.Now())
}

// Watched says that a watcher's GET has been answered.
func (p *Pod) Watched(name string, peer balancers.Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.Watched(name, peer, time.Now())
}

// Ack takes an acknowledgement. One of zero has the sources read at once.
func (p *Pod) Ack(name string, peer balancers.Peer, a handshake.Ack) error {
	defer p.tell()
	p.mu.Lock()
	word, err := p.table.Ack(name, peer, a, time.Now())
	p.mu.Unlock()
	if err == nil && word != handshake.Watching {
		select {
		case p.acks <- struct{}{}:
		default:
		}
	}
	return err
}

// Leave is a watcher's farewell.
func (p *Pod) Leave(name string, peer balancers.Peer) error {
	defer p.tell()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table.Leave(name, peer, time.Now())
}

// Hang says that a connection has ended.
func (p *Pod) Hang(conn uint64) {
	defer p.tell()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.Hang(conn)
}

// Waits notes that somebody hangs on /drain/wait.
func (p *Pod) Waits() { p.came.Store(true) }

// tell logs what the table has to say.
func (p *Pod) tell() {
	p.mu.Lock()
	events := p.table.Events()
	p.mu.Unlock()
	for _, e := range events {
		p.cfg.Log.Info().Str("event", e.Name).Str("lb", e.LB).Str("detail", e.Detail).Send()
	}
}

// Command is something a person, a hook or a signal asks for.
type Command uint8

// The commands. Drain stays in DRAINING until told on, Finish goes through,
// Term is SIGTERM: it finishes, and lets the process exit.
const (
	Drain Command = iota + 1
	Finish
	CloseLB
	Close
	Reopen
	Break
	Term
)

func (c Command) String() string {
	return [...]string{"?", "drain", "drain?finish", "close-lb", "close", "reopen", "fault", "SIGTERM"}[c]
}

// ErrState is a command that the state does not allow.
type ErrState struct {
	Command Command
	State   fsm.State
}

func (e *ErrState) Error() string { return fmt.Sprintf("%s in %s: not possible", e.Command, e.State) }

// ErrStopped is a command to a pod whose loop has ended.
var ErrStopped = errors.New("the agent is stopping")

type command struct {
	what   Command
	reason string
	done   chan error
}

// Do hands a command to the owner of the machine and waits until it is carried
// out. The error is an *ErrState, ErrStopped or the context's.
func (p *Pod) Do(ctx context.Context, what Command, reason string) error {
	c := command{what, reason, make(chan error, 1)}
	select {
	case p.cmds <- c:
		return <-c.done
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, ErrStopped)
	}
}
