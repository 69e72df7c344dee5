package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	ucli "github.com/urfave/cli/v2"

	"lbdrain/fsm"
	"lbdrain/internal/cli"
	"lbdrain/internal/handshake"
)

// statusCommand is `agent status`.
func statusCommand() *ucli.Command {
	var control, tokenFile, output string
	return &ucli.Command{
		Name: "status", Usage: "what the serving agent says of itself", OnUsageError: cli.UsageError,
		Flags: []ucli.Flag{
			&ucli.StringFlag{Name: "control", Usage: "`ADDR` or unix:PATH of the serving agent", Value: defaultControl, Destination: &control},
			&ucli.StringFlag{Name: "control-token-file", Usage: "bearer token of the control listener", Destination: &tokenFile},
			&ucli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "table or json", Value: "table", Destination: &output},
		},
		Action: func(c *ucli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if output != "table" && output != "json" {
				return cli.Misuse("-o table", "-o %q: want table or json", output)
			}
			cl, err := newClient(control, tokenFile)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context, 5*time.Second)
			defer cancel()
			s, raw, err := cl.status(ctx)
			if err != nil {
				return cli.Fail(cli.Failed, "is `agent serve` running, with this --control?", fmt.Errorf("status of %s: %w", control, err))
			}
			if output == "json" {
				_, err = c.App.Writer.Write(raw)
				return err
			}
			return table(c.App.Writer, s)
		},
	}
}

func table(out io.Writer, s handshake.Status) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	row := func(k, format string, a ...any) { fmt.Fprintf(w, "%s\t%s\n", k, fmt.Sprintf(format, a...)) }
	row("state", "%s since %s (seq %d)", s.State, s.Since, s.Seq)
	row("instance", "%s", s.Instance)
	if d := s.Drain; d != nil {
		switch {
		case d.Finish:
			row("drain", "finishing, deadline %s", d.Deadline)
		default:
			row("drain", "until told on")
		}
	}
	row("in flight", "%s", counts(s.Progress.InFlight))
	if s.Progress.Upgrades.Known {
		row("upgrades", "%s", s.Progress.Upgrades)
	}
	if s.Progress.Envoy != "" {
		row("envoy", "%s", s.Progress.Envoy)
	}
	if s.Warning != "" {
		row("warning", "%s", s.Warning)
	}
	if len(s.Progress.LBs) == 0 {
		row("balancers", "none heard")
	} else {
		fmt.Fprintf(w, "\nBALANCER\tEVIDENCE\tMISSING\tSOURCES\tLAST HEARD\n")
	}
	for _, lb := range s.Progress.LBs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", lb.LB, lb.Evidence, orDash(lb.Missing), orDash(strings.Join(lb.Sources, ",")), lb.LastHeard)
	}
	return w.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// printer writes the hook's lines, each thing once.
type printer struct {
	mu   sync.Mutex
	out  io.Writer
	json bool
	last string
}

func (p *printer) status(s handshake.Status) {
	parts := []string{"in flight: " + counts(s.Progress.InFlight)}
	for _, lb := range s.Progress.LBs {
		if lb.Missing != "" {
			parts = append(parts, fmt.Sprintf("waiting for %s: %s", lb.LB, lb.Missing))
		}
	}
	if s.State == fsm.Draining.String() && len(s.Progress.LBs) == 0 {
		parts = append(parts, "waiting for a balancer: none has been heard")
	}
	if s.State == fsm.Draining.String() && len(parts) == 1 && s.Progress.QuietSince.IsZero() && uncounted(s.Progress.InFlight) {
		parts = append(parts, "waiting for a count of requests: neither a --source nor a balancer gives one")
	}
	p.line(s.State, strings.Join(parts, "; "))
}

// uncounted says whether all there is comes from the stand-in, which sees what is
// being sent and not what is being answered.
func uncounted(inFlight map[string]handshake.Count) bool {
	c, ok := inFlight["sockets-tx"]
	return ok && c.Zero() && len(inFlight) == 1
}

// line prints a step, unless it says the same as the one before.
func (p *printer) line(state, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if said := state + " " + detail; said == p.last {
		return
	} else {
		p.last = said
	}
	now := handshake.At(time.Now())
	if p.json {
		b, _ := json.Marshal(map[string]any{"ts": now, "step": state, "detail": detail})
		fmt.Fprintln(p.out, string(b))
		return
	}
	fmt.Fprintf(p.out, "%s %s %s\n", now, state, detail)
}
