package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	ucli "github.com/urfave/cli/v2"
	"lbdrain/internal/cli"
	"lbdrain/scenarios/lab"
)

// batch is how many labs are brought up together. Their pods reach their age (12 s)
// at the same time, and nothing starts while a run is measured.
const batch = 5

// maxRepeat bounds --repeat.
const maxRepeat = 1000

// placeFlags say where things are.
func placeFlags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.StringFlag{Name: "out", Value: "artifacts", Usage: "`DIR` for the artifacts"},
		&ucli.StringFlag{Name: "bin", Usage: "`DIR` of agent and lbctl (default: this program's)"},
		&ucli.StringFlag{Name: "testdata", Usage: "`DIR` of haproxy.cfg and haproxy-agent.cfg (default: ../testdata from --bin)"},
		&ucli.Uint64Flag{Name: "seed", Value: 1, Usage: "`N` in every id and for every choice"},
		&ucli.IntFlag{Name: "pods", Value: 3, Usage: "`N` of 1 to 3; 1 is a deployment of one replica"},
		&ucli.BoolFlag{Name: "no-envoy", Usage: "the backend alone, with its own in-flight count"},
	}
}

func runCommand(stdout, stderr io.Writer) *ucli.Command {
	return &ucli.Command{
		Name:      "run",
		Usage:     "run scenarios and write summary.json for each run, all.json for all",
		ArgsUsage: "S1|S2|F1…",
		Flags: append(placeFlags(),
			&ucli.StringFlag{Name: "mode", Value: strings.Join(lab.ModeNames(), ","), Usage: "`MODES`, comma-separated (faults: coordinated)"},
			&ucli.IntFlag{Name: "repeat", Value: 1, Usage: "`N` runs of each"},
			&ucli.BoolFlag{Name: "idle", Usage: "S2 without any request: POST /drain to the pod's exit"},
			&ucli.StringFlag{Name: "fault", Usage: "`NAME` of what breaks in the drain: " + faultNames()},
		),
		HideHelpCommand: true,
		Action: func(c *ucli.Context) error {
			o, err := baseOptions(c)
			if err != nil {
				return err
			}
			xs, err := experiments(c, o)
			if err != nil {
				return err
			}
			return carryOut(c, xs, stdout, stderr, printRuns)
		},
	}
}

// carryOut makes the experiments, prints their table, and says whether they held.
func carryOut(c *ucli.Context, xs []experiment, stdout, stderr io.Writer, table func(io.Writer, []summary)) error {
	p := newProgress(stderr)
	defer p.close()
	sums, dir, err := matrix(c.Context, c.String("out"), xs, p)
	p.close()
	if len(sums) > 0 {
		table(stdout, sums)
		fmt.Fprintf(stdout, "artifacts: %s\n", dir)
	}
	return errors.Join(err, verdict(sums))
}

func faultNames() string {
	var names []string
	for _, f := range faults() {
		names = append(names, f.ID+" or "+f.Name)
	}
	return strings.Join(names, ", ")
}

// baseOptions are what every lab of the command shares.
func baseOptions(c *ucli.Context) (lab.Options, error) {
	o := lab.Options{Pods: c.Int("pods"), NoEnvoy: c.Bool("no-envoy"), Seed: c.Uint64("seed")}
	if o.Pods < 1 || o.Pods > 3 {
		return o, cli.Misuse("--pods 3", "--pods %d: want 1 to 3", o.Pods)
	}
	self, err := os.Executable()
	if err != nil {
		return o, fmt.Errorf("find this program: %w", err)
	}
	bin := c.String("bin")
	if bin == "" {
		bin = filepath.Dir(self)
	}
	root := filepath.Dir(bin)
	if o.Testdata = c.String("testdata"); o.Testdata == "" {
		o.Testdata = filepath.Join(root, "testdata")
	}
	if _, err := os.Stat(filepath.Join(o.Testdata, "haproxy.cfg")); err != nil {
		return o, cli.Fail(cli.Failed, "--testdata DIR", fmt.Errorf("find the canonical configuration: %w", err))
	}
	o.Programs, err = lab.Find(bin, root, self, !o.NoEnvoy)
	return o, err
}

// experiments are all that the command line asks for, in its order.
func experiments(c *ucli.Context, base lab.Options) ([]experiment, error) {
	if !c.Args().Present() {
		return nil, cli.Misuse("scenarios run S1", "run: which scenario? S1, S2, or a fault: %s", faultNames())
	}
	repeat := c.Int("repeat")
	if repeat < 1 || repeat > maxRepeat {
		return nil, cli.Misuse("--repeat 20", "--repeat %d: want 1 to %d", repeat, maxRepeat)
	}
	var out []experiment
	for _, arg := range c.Args().Slice() {
		for name := range strings.SplitSeq(arg, ",") {
			x, err := scenario(c, name)
			if err != nil {
				return nil, err
			}
			modes, err := modes(c, x.Fault != nil)
			if err != nil {
				return nil, err
			}
			for _, m := range modes {
				for k := range repeat {
					y := x
					y.Mode, y.Repetition, y.Seed, y.Options = m, k+1, base.Seed+uint64(k), base
					y.Options.Mode, y.Options.Seed = m, y.Seed
					if y.Fault != nil && y.Fault.options != nil {
						y.Fault.options(&y.Options)
					}
					out = append(out, y)
				}
			}
		}
	}
	return out, nil
}

// scenario reads one name: S1, S2, or a fault's.
func scenario(c *ucli.Context, name string) (experiment, error) {
	x := experiment{Scenario: name, Idle: c.Bool("idle")}
	if f := c.String("fault"); f != "" {
		name = f
	}
	if x.Idle {
		if name != "S2" {
			return x, cli.Misuse("scenarios run S2 --idle", "--idle is for S2: it sends no request")
		}
		x.Scenario = "S2-idle"
	}
	if name == "S1" || name == "S2" {
		return x, nil
	}
	f, err := findFault(name)
	if err != nil {
		return x, cli.Misuse("scenarios run S1", "scenario %q: want S1, S2, or one of the faults: %s", name, faultNames())
	}
	x.Scenario, x.Fault = f.ID, &f
	return x, nil
}

func modes(c *ucli.Context, fault bool) ([]lab.Mode, error) {
	names := c.String("mode")
	if fault && !c.IsSet("mode") {
		names = "coordinated"
	}
	var out []lab.Mode
	for name := range strings.SplitSeq(names, ",") {
		m, err := lab.FindMode(name)
		if err != nil {
			return nil, cli.Misuse("--mode coordinated", "%v", err)
		}
		out = append(out, m)
	}
	return out, nil
}

// matrix makes the experiments, batch by batch, and writes their artifacts. What was
// finished is returned and written even when it ends early.
func matrix(ctx context.Context, out string, xs []experiment, p *progress) ([]summary, string, error) {
	dir, err := newArtifacts(out, time.Now())
	if err != nil {
		return nil, "", err
	}
	sums := []summary{}
	for len(xs) > 0 && err == nil {
		n := min(batch, len(xs))
		var more []summary
		more, err = runBatch(ctx, dir, xs[:n], p)
		sums, xs = append(sums, more...), xs[n:]
		err = errors.Join(err, writeJSON(filepath.Join(dir, "all.json"), sums))
	}
	return sums, dir, err
}

func runBatch(ctx context.Context, dir string, xs []experiment, p *progress) ([]summary, error) {
	labs := make([]*lab.Lab, len(xs))
	errs := make([]error, len(xs))
	p.say("starting %d: HAProxy, pods, checks", len(xs))
	var wg sync.WaitGroup
	for i := range xs {
		xs[i].Options.Artifacts = filepath.Join(dir, xs[i].name())
		wg.Go(func() { labs[i], errs[i] = lab.Start(ctx, xs[i].Options) })
	}
	wg.Wait()
	defer func() {
		for _, l := range labs {
			if l != nil {
				l.Close()
			}
		}
	}()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var sums []summary
	for i, x := range xs {
		p.say("%s: pods reach their age of %s", x.name(), x.Mode.Settle)
		s, err := x.run(ctx, labs[i], func(format string, a ...any) { p.say(x.name()+": "+format, a...) })
		if err != nil {
			return sums, fmt.Errorf("%s: %w", x.name(), err)
		}
		sums = append(sums, s)
	}
	return sums, nil
}

// verdict is an error where a run was invalid or lost what it must not.
func verdict(sums []summary) error {
	var why []string
	for _, s := range sums {
		for _, w := range s.InvalidWhy {
			why = append(why, fmt.Sprintf("%s-%s run %d is invalid: %s", s.Scenario, s.Mode, s.Repetition, w))
		}
		for _, w := range s.Failures {
			why = append(why, fmt.Sprintf("%s-%s run %d failed: %s", s.Scenario, s.Mode, s.Repetition, w))
		}
	}
	if len(why) == 0 {
		return nil
	}
	return errors.New(strings.Join(why, "\n  "))
}
