package haproxy

import (
	"context"
	"errors"
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
}

// New is a client of one socket. It connects only for a turn.
func New(s Socket, o Options) *Client {
	return &Client{socket: s, o: o}
}

// Outcome is what became of one command. Err is nil only if HAProxy answered
// with nothing, which is how it says yes.
type Outcome struct {
	Command Command
	Err     error
	Reply   string // what it answered, without surrounding white space
}

// Turn is what a turn saw and did. After was read on the same connection after
// the last command; it is nil if none was sent.
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

// Turn reads scope, asks decide which commands follow from that read, sends
// them and reads scope back, all on one connection. An error is about the
// connection or a read; what was done until then is in the Turn all the same.
// A command that HAProxy refused is in its Outcome only.
func (c *Client) Turn(ctx context.Context, scope Scope, decide func(Read) ([]Command, error)) (Turn, error) {
	return Turn{}, errors.ErrUnsupported
}

// Read is a turn without commands.
func (c *Client) Read(ctx context.Context, scope Scope) (Read, error) {
	t, err := c.Turn(ctx, scope, nil)
	return t.Before, err
}
