package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"lbdrain/scenarios/gate"
	"lbdrain/scenarios/lab"
)

// fault is something that breaks while a pod drains.
type fault struct {
	ID, Name, About string
	options         func(*lab.Options)
	// before runs just before the pod is deleted, during from then on.
	before func(ctx context.Context, l *lab.Lab) error
	during func(ctx context.Context, l *lab.Lab, deleted time.Time) error
	hook   int  // the hook's exit code that is right
	slow   bool // one large body, read slowly, instead of the four requests
}

// faultDeadline is the drain's deadline in the faults that must reach it: later than
// the end of the last request.
const faultDeadline = 12 * time.Second

// The slow reader's body and pace: 22.5 s.
const (
	slowBytes = 9_000_000
	slowRate  = 400_000
)

func faults() []fault {
	deadline := func(o *lab.Options) {
		o.AdminGate, o.DrainTimeout, o.Grace = true, faultDeadline, faultDeadline+5*time.Second
	}
	return []fault{
		{
			ID: "F1", Name: "agent-kill", About: "the agent killed -9 in the drain, and started again 1 s later",
			options: func(o *lab.Options) { o.ExecHook = true }, during: agentKill,
		},
		{ID: "F2", Name: "lbctl-kill", About: "lbctl killed -9 at the first DRAIN, and started again 1 s later", during: lbctlKill(0)},
		{
			ID: "F3", Name: "check-fail", About: "HAProxy's health check fails from the start of the drain on",
			options: func(o *lab.Options) { o.HealthGate = true }, during: checkFail,
		},
		{
			ID: "F4", Name: "reload", About: "HAProxy reloaded in the drain, with a server-state-file",
			options: func(o *lab.Options) { o.StateFile = true }, during: reload,
		},
		{ID: "F5", Name: "reload-bare", About: "HAProxy reloaded in the drain, without a server-state-file", during: reload},
		{
			ID: "F6", Name: "envoy-refuse", About: "Envoy's admin refuses, its data port has a connection", options: deadline,
			before: envoyRefuse, hook: 3,
		},
		{
			ID: "F7", Name: "envoy-hang", About: "Envoy's admin accepts and never answers", options: deadline,
			before: func(_ context.Context, l *lab.Lab) error { return l.Victim().AdminGate().Set(gate.Hang) }, hook: 3,
		},
		{ID: "F8", Name: "slow-reader", About: "a client that reads 9 MB at 400 kB/s", slow: true},
		{
			ID: "F9", Name: "lbctl-kill-late", About: "lbctl killed -9 when it holds and waits for zero, and started again 1 s later",
			during: lbctlKill(2 * time.Second),
		},
	}
}

func findFault(name string) (fault, error) {
	var names []string
	for _, f := range faults() {
		if f.ID == name || f.Name == name {
			return f, nil
		}
		names = append(names, f.ID+" "+f.Name)
	}
	return fault{}, fmt.Errorf("fault %q: want one of %s", name, strings.Join(names, ", "))
}

// drained waits until the observer has seen the victim's server taken out.
func drained(ctx context.Context, l *lab.Lab, deleted time.Time) error {
	_, err := l.AwaitServer(ctx, l.Victim().Name, deleted, func(s lab.Server) bool { return s.Word() != "UP" })
	return err
}

// pause waits for d, or less where ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func agentKill(ctx context.Context, l *lab.Lab, deleted time.Time) error {
	if err := drained(ctx, l, deleted); err != nil {
		return err
	}
	if err := pause(ctx, time.Second); err != nil { // well into the drain, well before its end
		return err
	}
	old := l.Victim().Agent()
	l.Say("fault: kill -9 agent, pid %d", old.Pid())
	old.Signal(syscall.SIGKILL)
	<-old.Done()
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	l.Say("fault: start the agent again")
	return l.Victim().StartAgent()
}

// lbctlKill kills it that long after the server was seen in DRAIN.
func lbctlKill(after time.Duration) func(context.Context, *lab.Lab, time.Time) error {
	return func(ctx context.Context, l *lab.Lab, deleted time.Time) error {
		old := l.Lbctl()
		if old == nil {
			return fmt.Errorf("fault lbctl-kill: this mode has no lbctl")
		}
		if err := drained(ctx, l, deleted); err != nil {
			return err
		}
		if err := pause(ctx, after); err != nil {
			return err
		}
		l.Say("fault: kill -9 lbctl, pid %d", old.Pid())
		old.Signal(syscall.SIGKILL)
		<-old.Done()
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		l.Say("fault: start lbctl again")
		return l.RestartLbctl()
	}
}

func checkFail(ctx context.Context, l *lab.Lab, deleted time.Time) error {
	if err := drained(ctx, l, deleted); err != nil {
		return err
	}
	l.Say("fault: the health check fails from now on")
	return l.Victim().HealthGate().Set(gate.Fail)
}

func reload(ctx context.Context, l *lab.Lab, deleted time.Time) error {
	if err := drained(ctx, l, deleted); err != nil {
		return err
	}
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	l.Say("fault: reload HAProxy")
	return l.Reload(ctx)
}

// envoyRefuse shuts the admin while a connection on the data port stays open: an
// Envoy that is alive. (Refused and without a socket it would be gone, and a drain
// may end.)
func envoyRefuse(ctx context.Context, l *lab.Lab) error {
	conn, err := net.DialTimeout("tcp", l.Victim().DataAddr(), time.Second)
	if err != nil {
		return fmt.Errorf("fault envoy-refuse: %w", err)
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	return l.Victim().AdminGate().Set(gate.Refuse)
}
