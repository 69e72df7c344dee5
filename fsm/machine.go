package fsm

import (
	"fmt"
	"time"
)

// Event is what asks for a move.
type Event uint8

// The events. String is the name that the control listener's paths have.
const (
	Drain   Event = iota + 1 // nothing new is wanted
	CloseLB                  // empty: the balancer may drop the server
	Close                    // the process may exit
	Reopen                   // back to OPEN
	Break                    // FAULT
)

// Events lists all five.
func Events() []Event { return []Event{Drain, CloseLB, Close, Reopen, Break} }

// String is the event's name: "drain", "close-lb", "close", "reopen", "fault".
func (e Event) String() string {
	if e < Drain || e > Break {
		return fmt.Sprintf("Event(%d)", uint8(e))
	}
	return [...]string{Drain: "drain", CloseLB: "close-lb", Close: "close", Reopen: "reopen", Break: "fault"}[e]
}

// Row is one move of the table.
type Row struct {
	From  State
	Event Event
	To    State
}

// Table lists every move there is. What has no row is refused: a pod can skip
// no step (close-lb in OPEN would fail health before any balancer was told to
// send nothing new), CLOSED does not reopen, and FAULT is left by a restart.
func Table() []Row {
	return []Row{
		{Open, Drain, Draining},
		{Draining, CloseLB, Closing},
		{Closing, Close, Closed},
		{Draining, Reopen, Open},
		{Closing, Reopen, Open},
		{Open, Break, Fault},
		{Draining, Break, Fault},
		{Closing, Break, Fault},
		{Closed, Break, Fault},
	}
}

var moves = func() map[[2]uint8]State {
	m := make(map[[2]uint8]State)
	for _, r := range Table() {
		m[[2]uint8{uint8(r.From), uint8(r.Event)}] = r.To
	}
	return m
}()

// Refused says that the table has no row for the event in this state. An event
// that would change nothing (drain in DRAINING) is refused too: whether that is
// an error or already done is the caller's to say.
type Refused struct {
	State State
	Event Event
}

func (r *Refused) Error() string { return fmt.Sprintf("%s in %s: no such move", r.Event, r.State) }

// Input is an event and what the history shall say of it.
type Input struct {
	At     time.Time
	Event  Event
	Reason string
}

// Transition is a move that was made.
type Transition struct {
	From, To State
	Reason   string
	At       time.Time
}

// HistoryLen bounds the history: the oldest transition is overwritten.
const HistoryLen = 100

// Machine is the state, its number and its history. It is not safe for
// concurrent use: one goroutine owns it.
type Machine struct {
	state State
	seq   uint64
	since time.Time
	ring  [HistoryLen]Transition
	made  int // transitions ever written to ring
}

// New is a machine in OPEN since at, with seq 0 and no history.
func New(at time.Time) *Machine { return &Machine{state: Open, since: at} }

// Restore is the machine of a process that takes up where another ended. Unless
// it is in OPEN, the history begins with an entry from that state to itself,
// which carries the reason. A value that is no state restores to FAULT.
func Restore(s State, seq uint64, at time.Time, reason string) *Machine {
	if s < Open || s > Fault {
		s = Fault
	}
	m := &Machine{state: s, seq: seq, since: at}
	if s != Open {
		m.record(Transition{s, s, reason, at})
	}
	return m
}

// Step makes the move that the table has for the event, or changes nothing and
// returns a *Refused.
func (m *Machine) Step(in Input) (Transition, error) {
	to, ok := moves[[2]uint8{uint8(m.state), uint8(in.Event)}]
	if !ok {
		return Transition{}, &Refused{m.state, in.Event}
	}
	t := Transition{m.state, to, in.Reason, in.At}
	m.state, m.since = to, in.At
	m.seq++
	m.record(t)
	return t, nil
}

func (m *Machine) record(t Transition) {
	m.ring[m.made%HistoryLen] = t
	m.made++
}

// State is the present state.
func (m *Machine) State() State { return m.state }

// Seq grows by one with every transition.
func (m *Machine) Seq() uint64 { return m.seq }

// Since is when the present state began.
func (m *Machine) Since() time.Time { return m.since }

// History is a copy of the last transitions, oldest first, at most HistoryLen.
func (m *Machine) History() []Transition {
	n := min(m.made, HistoryLen)
	out := make([]Transition, 0, n)
	for i := m.made - n; i < m.made; i++ {
		out = append(out, m.ring[i%HistoryLen])
	}
	return out
}
