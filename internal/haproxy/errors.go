package haproxy

import (
	"errors"
	"fmt"
	"io/fs"
)

// What can be wrong with a socket. All errors of this package wrap one of
// these, the context's error, or both.
var (
	ErrNoSocket   = errors.New("no such socket")
	ErrNotSocket  = errors.New("not a socket")
	ErrRefused    = errors.New("nobody listens")
	ErrPermission = errors.New("permission denied")
	ErrBusy       = errors.New("no answer in time") // it accepts, and is stopped, overloaded or out of slots
	ErrTruncated  = errors.New("reply cut short")
	ErrProtocol   = errors.New("unexpected reply") // no HAProxy, or one this package does not understand
	ErrTooLarge   = errors.New("reply too large")
	ErrTorn       = errors.New("servers were added or deleted during the read")
	ErrReadOnly   = errors.New("this client only reads")
)

// What HAProxy can answer to a command; a [CommandError] wraps them.
var (
	ErrNoSuchServer   = errors.New("no such server")
	ErrNoSuchBackend  = errors.New("no such backend")
	ErrUnknownCommand = errors.New("unknown command")
)

// CommandError is a command that HAProxy answered with text.
type CommandError struct {
	Command string // the runtime line
	Reply   string // as HAProxy said it, without surrounding white space
	Kind    error  // one of the errors above, or nil
}

func (e *CommandError) Error() string { return fmt.Sprintf("%s: %s", e.Command, e.Reply) }

func (e *CommandError) Unwrap() error { return e.Kind }

// Hint says what to do about err, "" where there is nothing to add.
func Hint(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "run as root or in the group of the socket (stats socket … mode 660 group haproxy)"
	case errors.Is(err, ErrPermission):
		return "put `level admin` on the stats socket"
	case errors.Is(err, ErrNoSocket), errors.Is(err, ErrNotSocket):
		return "name the path that stands after `stats socket` in haproxy.cfg"
	case errors.Is(err, ErrRefused):
		return "is HAProxy running? systemctl status haproxy"
	case errors.Is(err, ErrBusy):
		return "HAProxy's command line has few slots (stats maxconn, 10 by default): look who holds them with `ss -xp`"
	}
	return ""
}
