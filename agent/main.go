// Agent is the sidecar that holds a pod's state machine: it answers HAProxy's
// health check and agent-check and the kubelet's probes from one state, and runs
// the drain.
//
//	agent serve     the sidecar
//	agent drain     the preStop hook: asks serve to drain and waits for the end
//	agent status    what serve says of itself
//	agent version
//
// Exit codes: 0 drained (status: answered), 1 error, 2 usage, 3 deadline passed.
//
// serve logs JSON lines on stderr, key "event": serving, settings, transition,
// watch, watch_lost, held, held_zero, revoked, expired, deferred, polls, gone,
// balancer_new, envoy_drain_listeners, envoy_active_count, in_flight, receipt,
// deadline, rejoin, reopened, sigterm, waiter_none, probe, state_file, fault,
// late_check, log_lost, exit.
//
// SIGTERM (or SIGINT) asks for the same drain as the hook and lets the process
// exit once it is over: 0 drained, 3 where the deadline has passed and every
// source is zero. A second one is only logged: the agent outlives what it
// protects, because its exit fails HAProxy's check, and that kills requests.
// kill -9 and a restart: with --state-file it comes back DRAINING and is joined
// by the hook's next call, or OPEN again after --rejoin.
//
// The one variable read from the environment is POD_UID (metadata.uid).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	ucli "github.com/urfave/cli/v2"

	"lbdrain/internal/cli"
)

// version is set by the linker.
var version = "unknown"

func main() { os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr)) }

// exitCode ends a program whose log has said everything.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	app := &ucli.App{
		Name: "agent", HelpName: "agent", Usage: "drain a pod behind HAProxy without losing a request",
		Writer: stdout, ErrWriter: stderr, HideVersion: true, OnUsageError: cli.UsageError,
		DisableSliceFlagSeparator: true,
		ExitErrHandler:            func(*ucli.Context, error) {},
		Commands: []*ucli.Command{
			newServe(stderr).command(), newHook().command(), statusCommand(),
			{
				Name: "version", Usage: "print the version",
				Action: func(c *ucli.Context) error {
					if err := noArgs(c); err != nil {
						return err
					}
					_, err := fmt.Fprintln(c.App.Writer, version)
					return err
				},
			},
		},
		Action: func(c *ucli.Context) error {
			const hint = "agent serve | drain | status | version"
			if !c.Args().Present() {
				return cli.Misuse(hint, "a command is missing")
			}
			return cli.Misuse(hint, "no such command: %q", c.Args().First())
		},
	}
	err := app.RunContext(ctx, args)
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	return cli.Code("agent", err, stderr)
}

// noArgs refuses what a command would silently ignore.
func noArgs(c *ucli.Context) error {
	if c.Args().Present() {
		return cli.Misuse("agent "+c.Command.Name+" --help", "%s takes no argument, got %q", c.Command.Name, c.Args().First())
	}
	return nil
}
