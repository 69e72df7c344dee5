package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	ucli "github.com/urfave/cli/v2"

	"lbdrain/agent/balancers"
	"lbdrain/agent/drain"
	"lbdrain/agent/front"
	"lbdrain/agent/inflight"
	"lbdrain/internal/cli"
)

// lastAnswers is how long an exit waits for answers held to the end.
const lastAnswers = 200 * time.Millisecond

// serve is the sidecar.
type serve struct {
	*settings
	stderr io.Writer
}

func newServe(stderr io.Writer) *serve { return &serve{newSettings(), stderr} }

func (s *serve) command() *ucli.Command {
	return &ucli.Command{
		Name: "serve", Usage: "hold the pod's state and run its drain", Flags: s.flags(), OnUsageError: cli.UsageError,
		Action: func(c *ucli.Context) error {
			if err := s.check(c); err != nil {
				return err
			}
			return s.run(c)
		},
	}
}

func (s *serve) run(c *ucli.Context) error {
	start := time.Now()
	lines := newLogWriter(s.stderr)
	defer lines.flush(lastLog)
	log, err := cli.Logger(lines, s.logLevel)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()
	// Before anything is said to be served: a SIGTERM must never find the default.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	// Whoever read the log may be gone: that is no reason to go too.
	signal.Ignore(syscall.SIGPIPE)

	file := stateFile{path: s.stateFile, log: log}
	cfg := s.drainConfig(start, log)
	if s.stateFile != "" {
		if cfg.UID == "" {
			log.Warn().Str("event", "state_file").Str("detail", "POD_UID is not set: a file left by another pod would be taken for ours").Send()
		}
		cfg.Found, cfg.Save = file.load(), file.start()
	}
	defer file.stop()
	f, listeners, err := s.open(ctx, cfg)
	if err != nil {
		return err
	}
	pod := f.Pod()
	s.settings.log(log, cfg)
	log.Info().Str("event", "serving").Str("listen", listeners[0].Addr().String()).Str("control", listeners[1].Addr().String()).
		Str("instance", cfg.Instance).Str("version", version).Str("state", pod.View().State.String()).Send()
	go s.prober.run(ctx, log)
	for i, ln := range listeners {
		go func() {
			if err := f.Serve(ln, i == 1); err != nil {
				log.Error().Str("event", "fault").Err(err).Send()
				cancel()
			}
		}()
	}
	go func() {
		for sig := range signals {
			_ = pod.Do(ctx, drain.Term, sig.String())
		}
	}()
	code := pod.Run(ctx)
	f.Flush(lastAnswers)
	return exitCode(code)
}

// open opens the public and the control listener in front of a new pod.
func (s *serve) open(ctx context.Context, cfg drain.Config) (*front.Front, [2]net.Listener, error) {
	var ls [2]net.Listener
	lbToken, err := token(s.lbToken)
	if err != nil {
		return nil, ls, fmt.Errorf("--lb-token-file: %w", err)
	}
	controlToken, err := token(s.controlToken)
	if err != nil {
		return nil, ls, fmt.Errorf("--control-token-file: %w", err)
	}
	if ls[0], err = front.Listen(ctx, "tcp", s.listen); err != nil {
		return nil, ls, cli.Fail(cli.Failed, "--listen ADDR:PORT, if the port is taken (ss -ltnp)", err)
	}
	if ls[1], err = listenControl(ctx, s.control); err != nil {
		return nil, ls, cli.Fail(cli.Failed, "--control ADDR:PORT or unix:PATH, if it is taken (ss -lntxp)", err)
	}
	return front.New(front.Config{
		Pod: drain.New(cfg), FirstByte: s.firstByte, WaitStart: s.waitStart,
		LBToken: lbToken, ControlToken: controlToken, Log: cfg.Log,
	}), ls, nil
}

// drainConfig is the settings as the drain takes them.
func (s *settings) drainConfig(start time.Time, log zerolog.Logger) drain.Config {
	uid := os.Getenv("POD_UID")
	name := uid
	if name == "" {
		name, _ = os.Hostname()
	}
	cfg := drain.Config{
		Instance: fmt.Sprintf("%s-%d", cleanName(name), start.UnixMilli()), UID: uid, Start: start,
		Timeout: s.timeout, Quiet: s.quiet, QuietPolled: s.quietPolled, MinDrain: s.minDrain, Buffer: s.buffer,
		Rejoin: s.rejoin, WaitStart: s.waitStart, CloseLate: s.onDeadline == "close",
		Balancers: balancers.Config{
			Learn: s.learn, QuietPolled: s.quietPolled, ReturnWindow: s.window, Buffer: s.buffer,
			NotFound: s.drainingHealth == "404", From: s.prefixes,
		},
		EnvoyWhen: s.envoyDrain, Log: log, Healthy: s.prober.healthy,
	}
	for _, c := range s.counters {
		cfg.Sources = append(cfg.Sources, counter{c})
		if e, ok := c.(*inflight.Envoy); ok && cfg.Envoy == nil {
			cfg.Envoy = envoy{e, s.timeout, len(s.tcp.Value()) > 0}
		}
	}
	if s.dataPort != "" {
		cfg.Sockets = func() ([]netip.Addr, error) { return inflight.Peers(s.port) }
		if s.sending != nil {
			cfg.Sending = counter{s.sending}
		}
	}
	return cfg
}

// cleanName keeps an entity tag of the instance's name valid.
func cleanName(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || r == '"' || r == '\\' {
			return '_'
		}
		return r
	}, s)
}

// log prints the settings in force.
func (s *settings) log(log zerolog.Logger, cfg drain.Config) {
	e := log.Info().Str("event", "settings")
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"drain_timeout", s.timeout},
		{"grace", s.grace},
		{"quiet", s.quiet},
		{"quiet_polled", s.quietPolled},
		{"learn", s.learn},
		{"lb_buffer", s.buffer},
		{"min_drain", s.minDrain},
		{"wait_start", s.waitStart},
		{"return_window", s.window},
		{"first_byte", s.firstByte},
	} {
		e.Str(d.name, d.value.String())
	}
	e.Strs("sources", s.sources.Value()).Strs("lb_from", s.from.Value()).Strs("probes", s.prober.names()).Str("data_port", s.dataPort).
		Str("on_deadline", s.onDeadline).Str("draining_health", s.drainingHealth)
	if cfg.Envoy != nil {
		e.Str("envoy_drain", s.envoyDrain).Str("envoy_upgrades", s.upgrades).Strs("envoy_exclude", s.exclude.Value()).
			Strs("envoy_include", s.include.Value()).Strs("envoy_tcp_listener", s.tcp.Value())
	}
	if s.stateFile != "" {
		e.Str("state_file", s.stateFile).Str("rejoin", s.rejoin.String())
	}
	if len(s.counters) == 0 {
		e.Str("no_source", "that nothing is in flight is only known where every balancer acknowledges")
	}
	if s.dataPort == "" {
		e.Str("no_data_port", "a balancer that fell silent, and an Envoy that died, are waited for to the deadline")
	}
	if s.stateFile == "" && s.lbToken == "" && len(s.prefixes) == 0 {
		e.Str("no_state_file", "restarted in a drain, the agent takes no acknowledgement from a balancer that holds the pod: it neither checks nor polls then")
	}
	e.Bool("lb_token", s.lbToken != "").Bool("control_token", s.controlToken != "").Send()
}

// listenControl opens the control listener. A socket file that nobody answers on
// was left by a killed agent.
func listenControl(ctx context.Context, addr string) (net.Listener, error) {
	path, unix := strings.CutPrefix(addr, "unix:")
	if !unix {
		return front.Listen(ctx, "tcp", addr)
	}
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&os.ModeSocket != 0 {
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, fmt.Errorf("listen on %s: another agent answers there", addr)
		}
		_ = os.Remove(path)
	}
	ln, err := front.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return ln, os.Chmod(path, 0o600)
}
