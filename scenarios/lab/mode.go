package lab

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

//go:embed current.sh
var currentHook string

//go:embed improved.sh
var improvedHook string

// Mode is one way to end a pod behind HAProxy.
type Mode struct {
	Name     string
	About    string
	Config   string        // which canonical file
	Settle   time.Duration // age that the agents must have reached
	Lbctl    bool
	hook     string // a shell script; "" is `agent drain`
	env      []string
	agent    []string // flags of `agent serve`
	extra    []edit
	matcher  bool // Envoy shows only its data gauges
	Coherent bool // it must not lose a request
}

// The agents answer `up ready` for their first 10 s or three polls, whichever is
// longer, and judge no balancer missing for their first 6 s; 2 s more for the poll
// that closes the window.
const (
	settleReady = 12 * time.Second
	settleLearn = 7 * time.Second
)

// currentHold is how long the pod stays in mode current: more than the worst
// detection window (4 s) and the longest request of S1 and S2.
const currentHold = 15

// Modes in the order of the table.
func Modes() []Mode {
	return []Mode{
		{Name: "current", About: "health 503 at once, then a fixed sleep", Config: "haproxy.cfg", hook: currentHook},
		{
			Name: "improved", About: "the seven-step shell hook", Config: "haproxy.cfg", hook: improvedHook, matcher: true,
			env: []string{"DRAIN_TIMEOUT=120", "POLL_INTERVAL=2", "LB_BUFFER=10"},
		},
		{Name: "agent-check", About: "the agent alone, by HAProxy's agent-check", Config: "haproxy-agent.cfg", Settle: settleReady, Coherent: true},
		{
			Name: "404", About: "the agent alone, by http-check disable-on-404", Config: "haproxy.cfg", Settle: settleLearn,
			agent: []string{"--draining-health", "404"}, extra: []edit{disable404}, Coherent: true,
		},
		{Name: "coordinated", About: "agent and lbctl", Config: "haproxy-agent.cfg", Settle: settleReady, Lbctl: true, Coherent: true},
	}
}

// ModeNames are the names of Modes.
func ModeNames() []string {
	var out []string
	for _, m := range Modes() {
		out = append(out, m.Name)
	}
	return out
}

// FindMode by its name.
func FindMode(name string) (Mode, error) {
	for _, m := range Modes() {
		if m.Name == name {
			return m, nil
		}
	}
	return Mode{}, fmt.Errorf("mode %q: want one of %s", name, strings.Join(ModeNames(), ", "))
}

// startLbctl starts the balancer's daemon, or starts it again.
func (l *Lab) startLbctl() error {
	p, err := l.spawn("lbctl", "lbctl.log", nil, l.o.Programs.Lbctl, "serve",
		"-f", filepath.Join(l.o.Artifacts, "haproxy.cfg"), "--mode", "enforce",
		"--state-dir", filepath.Join(l.run, "lbctl"), "--control", filepath.Join(l.run, "lbctl.sock"))
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lbctl = p
	return nil
}

// RestartLbctl starts the daemon again after it was killed.
func (l *Lab) RestartLbctl() error { return l.startLbctl() }

// Lbctl is the daemon's process in mode coordinated, else nil.
func (l *Lab) Lbctl() *Proc {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lbctl
}
