package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"lbdrain/agent/drain"
	"lbdrain/internal/cli"
	"lbdrain/internal/handshake"
)

const (
	hookRetry = 200 * time.Millisecond
	hookLook  = 500 * time.Millisecond // at what is in flight, for the lines
	hookSlack = 5 * time.Second        // past the agent's own deadline, for its answer
)

// hook is `agent drain`.
type hook struct {
	control, tokenFile, output string
	timeout                    time.Duration
}

func newHook() *hook { return &hook{timeout: 120 * time.Second} }

func (h *hook) command() *ucli.Command {
	return &ucli.Command{
		Name: "drain", Usage: "preStop hook: drain the pod, return when it may be stopped", OnUsageError: cli.UsageError,
		Flags: []ucli.Flag{
			&ucli.StringFlag{Name: "control", Usage: "`ADDR` or unix:PATH of the serving agent", Value: defaultControl, Destination: &h.control},
			&ucli.StringFlag{Name: "control-token-file", Usage: "bearer token of the control listener", Destination: &h.tokenFile},
			cli.DurationFlag(&h.timeout, "drain-timeout", "how long to try to reach the agent; its own deadline rules once it answers"),
			&ucli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "text or json", Value: "text", Destination: &h.output},
		},
		Action: func(c *ucli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if h.output != "text" && h.output != "json" {
				return cli.Misuse("-o text", "-o %q: want text or json", h.output)
			}
			if h.timeout <= 0 {
				return cli.Misuse("--drain-timeout 120s", "--drain-timeout %s: want more than 0", h.timeout)
			}
			return h.run(c.Context, c.App.Writer)
		},
	}
}

// run asks for the drain until it has an end. An agent that is restarting, or is
// found OPEN again, is asked again.
func (h *hook) run(ctx context.Context, out io.Writer) error {
	cl, err := newClient(h.control, h.tokenFile)
	if err != nil {
		return err
	}
	p := &printer{out: out, json: h.output == "json"}
	deadline := time.Now().Add(h.timeout)
	var last error
	for {
		ctx, cancel := context.WithDeadline(ctx, deadline)
		s, err := ask(ctx, cl)
		if err == nil {
			if s.Drain != nil && !s.Drain.Deadline.IsZero() {
				deadline = s.Drain.Deadline.Add(hookSlack)
			}
			p.status(s)
			last = nil
			var done bool
			done, err = h.wait(deadline, cl, p)
			if done {
				cancel()
				return err
			}
		}
		cancel()
		var refused *cli.Error
		if errors.As(err, &refused) {
			return err
		}
		if err != nil && (last == nil || time.Now().After(deadline)) {
			p.line("retrying", err.Error())
			last = err
		}
		if !time.Now().Add(hookRetry).Before(deadline) {
			return cli.Fail(cli.TimedOut, "is `agent serve` running, with this --control?", fmt.Errorf("drain: deadline passed: %w", orDeadline(err)))
		}
		time.Sleep(hookRetry)
	}
}

func orDeadline(err error) error {
	if err == nil {
		return context.DeadlineExceeded
	}
	return err
}

// ask posts the drain; a *cli.Error means that asking again is of no use.
func ask(ctx context.Context, cl *client) (handshake.Status, error) {
	code, b, err := cl.do(ctx, http.MethodPost, "/drain?finish", nil)
	switch {
	case err != nil:
		return handshake.Status{}, err
	case code >= 500:
		return handshake.Status{}, fmt.Errorf("drain: status %d", code)
	case code != http.StatusOK:
		return handshake.Status{}, refusal("drain", code, b)
	}
	return handshake.DecodeStatus(b)
}

// wait hangs on the agent until its drain has ended; done is false when it has
// to be asked again.
func (h *hook) wait(deadline time.Time, cl *client, p *printer) (done bool, err error) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	go follow(ctx, cl, p)
	_, b, err := cl.do(ctx, http.MethodGet, "/drain/wait", nil)
	if err != nil {
		return false, err
	}
	var a struct {
		Result   string                     `json:"result"`
		State    string                     `json:"state"`
		InFlight map[string]handshake.Count `json:"in_flight"`
		Waiting  string                     `json:"waiting"`
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return false, fmt.Errorf("wait: %w", err)
	}
	p.line(a.State, a.Result)
	switch drain.Outcome(a.Result) {
	case drain.Drained, drain.ByHand:
		return true, nil
	case drain.TimedOut:
		return true, cli.Fail(cli.TimedOut, stuck(a.InFlight, a.Waiting), fmt.Errorf("deadline passed: in flight %s; balancers: %s", counts(a.InFlight), orDash(a.Waiting)))
	case drain.Broken:
		return true, cli.Fail(cli.Failed, "", errors.New("the pod is in FAULT"))
	}
	return false, nil
}

// stuck is a hint for a count that may never have become zero, for HAProxy keeps
// idle connections to a server it still uses, or that was never there.
func stuck(inFlight map[string]handshake.Count, waiting string) string {
	if waiting == "" && uncounted(inFlight) {
		return "nothing counts requests: agent serve --source http=URL, or lbctl on the balancers"
	}
	if c := inFlight["sockets"]; c.Known && c.N > 0 {
		return "sockets counts idle keep-alive connections too; --source http=URL and sockets-tx=PORT do not"
	}
	return ""
}

// follow prints a line whenever something has changed.
func follow(ctx context.Context, cl *client, p *printer) {
	for ctx.Err() == nil {
		if s, _, err := cl.status(ctx); err == nil {
			p.status(s)
		}
		select {
		case <-time.After(hookLook):
		case <-ctx.Done():
		}
	}
}

func counts(m map[string]handshake.Count) string {
	var parts []string
	for name, c := range m {
		parts = append(parts, name+" "+c.String())
	}
	if len(parts) == 0 {
		return "unknown (no source)"
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
