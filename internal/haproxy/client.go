// Package haproxy is the only door to HAProxy's admin sockets.
//
// The door is one call: [Client.Turn] opens a connection, reads, lets the
// caller decide from that read, sends the commands, reads back, and closes. A
// connection never outlives its turn: an open one stays attached to the old
// worker after a reload and keeps it alive (measured on 2.6, 3.0 and 3.2).
// [Client.ServerState] is a smaller one, for the text of a server-state-file.
//
// What a caller can rely on:
//
//   - No answer is an error, and so is an answer that was cut short. A turn
//     never takes silence for success.
//   - A command succeeded only if its reply was empty. Any text is an error
//     that carries it, for HAProxy puts refusals and remarks in the same place.
//   - A [Read] is whole: every server of the scope with its admin bits and its
//     session counts, or an error. The admin bits are the older of the two, so
//     "DRAIN and no sessions" in one read means none after DRAIN.
//   - Nothing is ever created or written where no HAProxy listens.
//   - At most two connections at a time, always closed: HAProxy's command line
//     has ten slots by default, shared by all sockets (stats maxconn).
//
// Framing: prompt mode with one command per line. That is the framing which is
// the same from 2.6 to 3.2: a reply, an empty line, `> ` (cli.c,
// cli_io_handler; 3.2 leaves the prompt out between commands joined by `;`, so
// these are never used).
package haproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"
)

// Options are the bounds of a client. The zero value is the default.
type Options struct {
	// Timeout is how long HAProxy may be silent while something is asked of
	// it; then the turn ends in ErrBusy. 0 is 1 s.
	Timeout time.Duration
	// Limit is how long a turn may wait for HAProxy in all, however it
	// dribbles. 0 is ten times Timeout.
	Limit time.Duration
	// ReadOnly refuses every command with ErrReadOnly before anything is sent.
	ReadOnly bool
}

// Client speaks to one admin socket. It is safe for concurrent use; a third
// turn at a time waits for one of two to end.
type Client struct {
	socket Socket
	o      Options
	slots  chan *slot
}

// slot is the right to a connection, with the room its turns work in.
type slot struct {
	r      *bufio.Reader
	tables tables
}

// connections is how many a client may have at a time.
const connections = 2

// New is a client of one socket. It connects only for a turn.
func New(s Socket, o Options) *Client {
	if o.Timeout <= 0 {
		o.Timeout = time.Second
	}
	if o.Limit <= 0 {
		o.Limit = 10 * o.Timeout
	}
	c := &Client{socket: s, o: o, slots: make(chan *slot, connections)}
	for range connections {
		c.slots <- &slot{}
	}
	return c
}

// Outcome is what became of one command. Err is nil only if HAProxy answered
// with nothing, which is how it says yes.
type Outcome struct {
	Command Command
	Err     error
	Reply   string // what it answered, without surrounding white space
}

// Turn is what a turn saw and did. After was read on the same connection after
// the last command; it is nil if none was sent or that read failed.
type Turn struct {
	Before   Read
	Outcomes []Outcome
	After    *Read
}

// Err joins the errors of the outcomes.
func (t *Turn) Err() error {
	var errs []error
	for _, o := range t.Outcomes {
		errs = append(errs, o.Err)
	}
	return errors.Join(errs...)
}

// Socket is the address.
func (c *Client) Socket() Socket { return c.socket }

// Read is a turn without commands.
func (c *Client) Read(ctx context.Context, scope Scope) (Read, error) {
	t, err := c.Turn(ctx, scope, nil)
	return t.Before, err
}

// Turn reads scope, asks decide which commands follow from that read, sends
// them in order and reads scope back, all on one connection. decide may be nil.
//
// An error is about the connection, a read, or from decide; what was done
// until then is in the Turn all the same, and a command without an answer has
// the error in its Outcome. A command that HAProxy refused is no error of the
// turn, only of its Outcome. After.Info.Stopping says that a reload came in
// between, and that the commands went to the worker that leaves.
//
// decide runs while the connection is open: it should not take long, and must
// not call this client.
func (c *Client) Turn(ctx context.Context, scope Scope, decide func(Read) ([]Command, error)) (Turn, error) {
	var t Turn
	err := c.turn(ctx, scope, decide, &t)
	if err != nil {
		err = fmt.Errorf("%s: %w", c.socket, err)
	}
	return t, err
}

func (c *Client) turn(ctx context.Context, scope Scope, decide func(Read) ([]Command, error), t *Turn) error {
	s, err := c.slot(ctx)
	if err != nil {
		return err
	}
	defer func() { c.slots <- s }()
	q, err := newQuery(scope, &s.tables)
	if err != nil {
		return err
	}
	if q.k, err = dial(ctx, c.socket, c.o, s.r); err != nil {
		return err
	}
	defer q.k.close()
	return c.run(&q, decide, t)
}

// slot waits for the right to a connection.
func (c *Client) slot(ctx context.Context) (*slot, error) {
	select {
	case s := <-c.slots:
		if s.r == nil {
			s.r = bufio.NewReaderSize(nil, maxLine)
		}
		return s, nil
	case <-ctx.Done():
		return nil, waitError(ctx)
	}
}

// ServerState is what `show servers state` says, whole, as a server-state-file
// has to hold it.
func (c *Client) ServerState(ctx context.Context) ([]byte, error) {
	s, err := c.slot(ctx)
	if err == nil {
		defer func() { c.slots <- s }()
		var text []byte
		if text, err = c.serverState(ctx, s); err == nil {
			return text, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", c.socket, err)
}

func (c *Client) serverState(ctx context.Context, s *slot) ([]byte, error) {
	k, err := dial(ctx, c.socket, c.o, s.r)
	if err != nil {
		return nil, err
	}
	defer k.close()
	const ask = "show servers state"
	if err := k.send([]byte("prompt\n" + ask + "\n")); err != nil {
		return nil, err
	}
	if err := k.hello(); err != nil {
		return nil, err
	}
	// The same parser as for every read: what is no table is not written down.
	var t tables
	t.begin(ask)
	var text []byte
	err = k.table(ask, func(line []byte) error {
		text = append(append(text, line...), '\n')
		return t.stateRow(line)
	})
	if err == nil && t.state == nil {
		err = t.bad("no header")
	}
	return append(text, '\n'), err
}

// run is a turn on an open connection.
func (c *Client) run(q *query, decide func(Read) ([]Command, error), t *Turn) error {
	var err error
	if t.Before, err = q.open(); err != nil || decide == nil {
		return err
	}
	thinking := time.Now()
	commands, err := decide(t.Before)
	if err != nil || len(commands) == 0 {
		return err
	}
	q.k.end = q.k.end.Add(time.Since(thinking))
	for _, cmd := range commands {
		if err := cmd.check(); err != nil {
			return err
		}
		if c.o.ReadOnly {
			return fmt.Errorf("%s: %w", cmd, ErrReadOnly)
		}
	}
	asked, err := q.carryOut(commands, t)
	if err != nil {
		return err
	}
	after, err := q.replies(asked)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	t.After = &after
	return nil
}

// batch is how many commands are on their way at once: enough to make the round
// trip cheap, few enough that neither side waits for the other to read.
const batch = 64

// carryOut sends the commands, notes what each was answered, and asks for a
// further read with the last of them.
func (q *query) carryOut(commands []Command, t *Turn) (asked time.Time, err error) {
	t.Outcomes = make([]Outcome, len(commands))
	for i, cmd := range commands {
		t.Outcomes[i] = Outcome{Command: cmd, Err: fmt.Errorf("%s: %w", cmd, errNotSent)}
	}
	for from := 0; from < len(commands) && err == nil; from += batch {
		part := t.Outcomes[from:min(from+batch, len(commands))]
		var lines []byte
		for _, o := range part {
			lines = append(append(lines, o.Command.line...), '\n')
		}
		if from+batch >= len(commands) {
			asked = time.Now()
			lines = append(lines, q.lines()...)
		}
		err = q.k.send(lines)
		for i := range part {
			o := &part[i]
			if err == nil {
				o.Reply, err = q.k.words(o.Command.line)
			}
			if o.Err = refusal(o.Command.line, o.Reply); err != nil {
				o.Err = err
			}
		}
	}
	return asked, err
}
