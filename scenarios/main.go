// Command scenarios runs experiments on a real HAProxy in front of pods of real
// processes, and counts every request that was disrupted, whatever mask it wears.
//
//	scenarios demo                       S1 in the five modes, one table, under three minutes
//	scenarios run S1 S2 --mode M,M --repeat N
//	scenarios run F1 | run S2 --fault lbctl-kill
//	scenarios run S2 --idle              an idle pod, from POST /drain to its exit
//	scenarios backend                    the application in the pods
//	scenarios version
//
// S1: four long requests (h1 first on its connection, h1 on a reused one, h2 POST, h2
// stream) are pinned to one pod of three, which is deleted a second later. The other
// two are in DRAIN until the requests have arrived and then ready, so that a request
// that is silently sent again has somewhere to go, and shows as executed twice.
// S2: the same, but the requests end one after the other, and the drain has to wait
// for the last. F1 and so on: S1 with something breaking in the drain.
//
// Everything lives on addresses of 127.0.0.0/8 that a run claims for itself; no root,
// no load anywhere else. HAProxy, Envoy (ENVOY_BIN, or .venv of the repository) and
// curl are taken from the machine, agent and lbctl from the directory of this program
// (--bin), the canonical configurations from testdata beside that (--testdata).
//
// Artifacts go to OUT/<timestamp>/<scenario>-<mode>[-k]/, OUT/latest points at the
// newest; all.json beside the runs is the array of their summary.json.
//
// Exit codes: 0 done, 1 a run failed, was invalid, or a mode that must not lose a
// request lost one; 2 usage. Ctrl-C ends every process and leaves the artifacts.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	ucli "github.com/urfave/cli/v2"
	"lbdrain/internal/cli"
)

// version is set by the linker.
var version = "unknown"

func main() {
	os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	app := &ucli.App{
		Name:            "scenarios",
		Usage:           "what a rollout does to the requests behind HAProxy, counted",
		Writer:          stdout,
		ErrWriter:       stderr,
		HideHelpCommand: true,
		OnUsageError:    cli.UsageError,
		ExitErrHandler:  func(*ucli.Context, error) {},
		Commands: []*ucli.Command{
			demoCommand(stdout, stderr), runCommand(stdout, stderr), backendCommand(stdout),
			{Name: "version", Usage: "print the version", Action: func(*ucli.Context) error {
				_, err := fmt.Fprintln(stdout, version)
				return err
			}},
		},
		Action: func(c *ucli.Context) error {
			if c.Args().Present() {
				return cli.Misuse("scenarios --help", "no such command: %s", c.Args().First())
			}
			return ucli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		c.OnUsageError = cli.UsageError
	}
	return cli.Code("scenarios", app.RunContext(ctx, flagsFirst(args)), stderr)
}

// flagsFirst moves the words after `run` behind its flags, because urfave/cli stops
// reading flags at the first word: `run S1 --repeat 3` is how people say it.
func flagsFirst(args []string) []string {
	if len(args) < 3 || args[1] != "run" {
		return args
	}
	n := 2
	for n < len(args) && !strings.HasPrefix(args[n], "-") {
		n++
	}
	return slices.Concat(args[:2:2], args[n:], args[2:n])
}
