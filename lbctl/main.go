// Command lbctl drains servers of HAProxy without losing a request.
//
//	lbctl serve    the daemon on the load-balancer host: watches every agent, and
//	               holds, empties and gives back the servers of its pod
//	lbctl status   what HAProxy has, and who holds it
//	lbctl drain    no new requests; waits until the server is empty
//	lbctl maint    the same, and then MAINT; never kills unless --force says so
//	lbctl ready    back into rotation, once its health check has passed
//	lbctl check    what in haproxy.cfg will hurt a drain
//	lbctl explain  the effective settings of every server
//	lbctl state save  writes the server-state-file, before a reload
//
// Exit codes: 0 done, 1 error (check: findings), 2 usage, 3 timed out while
// draining, 4 no such server, 5 refused by a guard, 6 partly done.
//
// SIGTERM and SIGINT end `serve`; HAProxy stays as it is, the holds are in the
// journal. SIGHUP reads the configuration again. SIGINT ends a waiting command:
// its hold stays, its guard is given back. kill -9 is safe at any moment.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	ucli "github.com/urfave/cli/v2"

	"lbdrain/internal/cli"
	"lbdrain/lbctl/hold"
)

// Exit codes beside those of package cli.
const (
	noSuchServer = 4
	guarded      = 5
	partly       = 6
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	app := &ucli.App{
		Name:           "lbctl",
		HelpName:       "lbctl",
		Usage:          "drains servers of HAProxy without losing a request",
		Version:        version,
		HideVersion:    true,
		Reader:         in,
		Writer:         out,
		ErrWriter:      errs,
		OnUsageError:   cli.UsageError,
		ExitErrHandler: func(*ucli.Context, error) {},
		// A path may have a comma in it.
		DisableSliceFlagSeparator: true,
		Action: func(c *ucli.Context) error {
			if c.Args().Present() {
				return cli.Misuse("lbctl --help", "no command %q", c.Args().First())
			}
			return cli.Misuse("lbctl --help", "no command given")
		},
		Commands: []*ucli.Command{
			serveCommand(),
			statusCommand(),
			actCommand(hold.Drain, "no new requests; waits until the server is empty"),
			actCommand(hold.Maint, "drains first, and then MAINT; never kills unless --force says so"),
			actCommand(ready, "back into rotation, once its health check has passed"),
			checkCommand(),
			explainCommand(),
			stateCommand(),
			{
				Name: "version", Usage: "prints the version", OnUsageError: cli.UsageError,
				Action: func(c *ucli.Context) error {
					_, err := fmt.Fprintln(c.App.Writer, version)
					return err
				},
			},
		},
	}
	return cli.Code("lbctl", app.RunContext(ctx, flagsFirst(app, args)), errs)
}

// flagsFirst moves a command's flags before its targets: `lbctl drain web/s1
// --reason x` is what people type, and the flag package stops at the first
// argument that is none. What follows `--` stays.
func flagsFirst(app *ucli.App, args []string) []string {
	if len(args) < 3 {
		return args
	}
	command := app.Command(args[1])
	if command == nil || len(command.Subcommands) > 0 {
		return args
	}
	takes := map[string]bool{}
	for _, f := range command.Flags {
		_, isBool := f.(*ucli.BoolFlag)
		for _, name := range f.Names() {
			takes[name] = !isBool
		}
	}
	var flags, rest []string
	for i := 2; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			rest = append(rest, args[i+1:]...)
			break
		}
		if !strings.HasPrefix(a, "-") || a == "-" {
			rest = append(rest, a)
			continue
		}
		flags = append(flags, a)
		name, _, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if !takes[name] || joined {
			continue
		}
		if i++; i == len(args) { // else `--` would be its value
			return append([]string{args[0], args[1]}, flags...)
		}
		flags = append(flags, args[i])
	}
	out := append([]string{args[0], args[1]}, flags...)
	return append(append(out, "--"), rest...)
}
