// Package cli is what the command lines of the programs share: durations, hints,
// exit codes and the log.
//
// A program's main is `func main() { os.Exit(run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)) }`
// and run ends in [Code], which prints the error and its hint and gives the
// exit code.
package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	ucli "github.com/urfave/cli/v2"
)

// Exit codes that mean the same in every program. Others are in the table of
// the program that uses them.
const (
	Done     = 0
	Failed   = 1
	Usage    = 2
	TimedOut = 3
)

// Error is an error with an exit code and a hint what to type.
type Error struct {
	Code int
	Hint string
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Fail is err with an exit code; hint may be empty.
func Fail(code int, hint string, err error) error {
	return &Error{Code: code, Hint: hint, Err: err}
}

// Misuse is a usage error: exit code 2.
func Misuse(hint, format string, a ...any) error {
	return Fail(Usage, hint, fmt.Errorf(format, a...))
}

// Code prints err as `program: error` and its hint on a line of its own, and
// returns the exit code: 0 for nil, the code of an [Error], else 1.
func Code(program string, err error, stderr io.Writer) int {
	if err == nil {
		return Done
	}
	fmt.Fprintf(stderr, "%s: %v\n", program, err)
	code := Failed
	var e *Error
	if errors.As(err, &e) {
		code = e.Code
		if e.Hint != "" {
			fmt.Fprintf(stderr, "hint: %s\n", e.Hint)
		}
	}
	return code
}

// UsageError is for urfave/cli's OnUsageError: a flag that does not parse is
// exit code 2 and prints no help text.
func UsageError(c *ucli.Context, err error, _ bool) error {
	return Fail(Usage, fmt.Sprintf("%s --help", c.App.HelpName), err)
}

// Duration is a flag value: a duration in Go's form (90s, 2m), or a bare number
// of seconds, in [0, 365 days].
type Duration time.Duration

// ParseDuration reads what a Duration flag takes.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if f, ferr := strconv.ParseFloat(s, 64); ferr == nil && f >= 0 && f <= 365*24*3600 {
		d, err = time.Duration(f*float64(time.Second)), nil
	}
	if err != nil || d < 0 || d > 365*24*time.Hour {
		return 0, fmt.Errorf("duration %q: want 90s, 2m, 500ms or a number of seconds", s)
	}
	return d, nil
}

// Set reads s.
func (d *Duration) Set(s string) error {
	v, err := ParseDuration(s)
	if err == nil {
		*d = Duration(v)
	}
	return err
}

func (d *Duration) String() string { return time.Duration(*d).String() }

// DurationFlag is a flag of type Duration that writes into to, whose value at
// the call is the default.
func DurationFlag(to *time.Duration, name, usage string) ucli.Flag {
	return &ucli.GenericFlag{Name: name, Usage: usage, Value: (*Duration)(to)}
}

// Logger writes one JSON object a line, with ts in RFC 3339 UTC milliseconds.
// The event name is in the key "event". Levels: debug, info, warn, error.
func Logger(w io.Writer, level string) (zerolog.Logger, error) {
	l, err := zerolog.ParseLevel(level)
	if err != nil || l < zerolog.DebugLevel || l > zerolog.ErrorLevel {
		return zerolog.Nop(), Misuse("--log-level info", "log level %q: want debug, info, warn or error", level)
	}
	return zerolog.New(w).Level(l).With().Logger().Hook(stamp{}), nil
}

// stamp keeps the time format out of zerolog's package variables.
type stamp struct{}

func (stamp) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str("ts", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"))
}
