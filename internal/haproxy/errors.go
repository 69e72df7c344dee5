package haproxy

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
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

var errNotSent = errors.New("not sent")

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

func (e *CommandError) Error() string {
	first, _, _ := strings.Cut(e.Reply, "\n")
	return fmt.Sprintf("%s: %.200s", e.Command, first)
}

func (e *CommandError) Unwrap() error { return e.Kind }

// refusal is the error in a reply to a command that should say nothing. The
// texts are the same from 2.6 to 3.2 (cli.c, server.c, proxy.c, stats.c).
func refusal(line, reply string) error {
	if reply == "" {
		return nil
	}
	e := &CommandError{Command: line, Reply: reply}
	switch {
	case reply == "No such server.":
		e.Kind = ErrNoSuchServer
	case reply == "No such backend.", reply == "Can't find backend.", reply == "No such proxy.":
		e.Kind = ErrNoSuchBackend
	case strings.HasPrefix(reply, "Permission denied"):
		e.Kind = ErrPermission
	case strings.HasPrefix(reply, "Unknown command"):
		e.Kind = ErrUnknownCommand
	}
	return e
}

// noTable is the error in a reply to a command that should answer otherwise.
func noTable(line, reply string) error {
	e := &CommandError{Command: line, Reply: strings.TrimSpace(reply), Kind: ErrProtocol}
	if known, ok := refusal(line, e.Reply).(*CommandError); ok && known.Kind != nil {
		return known
	}
	return e
}

// Hint says what to do about err, "" where there is nothing to add.
func Hint(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "run as root or in the group of the socket (stats socket … mode 660 group haproxy)"
	case errors.Is(err, ErrPermission):
		return "put `level admin` on the stats socket"
	case errors.Is(err, ErrNoSocket), errors.Is(err, ErrNotSocket):
		return "--socket PATH, as it stands after `stats socket` in haproxy.cfg, or -f that haproxy.cfg"
	case errors.Is(err, ErrRefused):
		return "is HAProxy running? systemctl status haproxy"
	case errors.Is(err, ErrBusy):
		return "HAProxy's command line has few slots (stats maxconn, 10 by default): look who holds them with `ss -xp`"
	}
	return ""
}
