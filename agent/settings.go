package main

import (
	"cmp"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"lbdrain/agent/drain"
	"lbdrain/agent/inflight"
	"lbdrain/internal/cli"
)

const defaultControl = "127.0.0.1:18180"

// settings are serve's flags; newSettings holds all defaults.
type settings struct {
	listen, control, controlToken, lbToken string
	from, sources, exclude, include, tcp   ucli.StringSlice
	probes                                 ucli.StringSlice
	envoyDrain, upgrades, dataPort         string
	timeout, grace, buffer, minDrain       time.Duration
	quiet, quietPolled, learn              time.Duration
	rejoin, waitStart, window, firstByte   time.Duration
	onDeadline, drainingHealth, stateFile  string
	logLevel                               string

	prefixes []netip.Prefix
	port     netip.AddrPort
	counters []inflight.Source
	sending  inflight.Source // what is still being sent on the data port; nil: not known
	prober   *prober
}

func newSettings() *settings {
	return &settings{
		listen: ":30180", control: defaultControl,
		timeout: 120 * time.Second, quiet: 50 * time.Millisecond, quietPolled: time.Second, learn: 6 * time.Second,
		rejoin: 15 * time.Second, waitStart: 5 * time.Second, window: 10 * time.Second, firstByte: 20 * time.Millisecond,
		envoyDrain: drain.EnvoyHeld, upgrades: "wait", onDeadline: "hold", drainingHealth: "200", logLevel: "info",
	}
}

func (s *settings) flags() []ucli.Flag {
	str := func(to *string, name, usage string) ucli.Flag {
		return &ucli.StringFlag{Name: name, Usage: usage, Value: *to, Destination: to}
	}
	many := func(to *ucli.StringSlice, name, usage string) ucli.Flag {
		return &ucli.StringSliceFlag{Name: name, Usage: usage, Destination: to}
	}
	return []ucli.Flag{
		str(&s.listen, "listen", "`ADDR` for HAProxy's checks, probes and balancers: reads and acknowledgements"),
		str(&s.control, "control", "`ADDR` or unix:PATH for what starts and ends a drain"),
		str(&s.controlToken, "control-token-file", "bearer token that POSTs need; required where --control is public"),
		str(&s.lbToken, "lb-token-file", "bearer token that balancers show; without it they are known by address"),
		many(&s.from, "lb-from", "only addresses in `CIDR` are balancers, and may acknowledge at once (repeatable)"),
		many(&s.sources, "source", "`KIND=VALUE` says what is in flight: envoy=URL|unix:PATH; http=URL[#METRIC], a number or a gauge; sockets-tx=[ADDR:]PORT, unsent answers; sockets=[ADDR:]PORT, connections, idle keep-alives too (repeatable)"),
		str(&s.envoyDrain, "envoy-drain", "when Envoy is told: held, start or never"),
		many(&s.exclude, "envoy-exclude", "connection manager `NAME` that does not count (repeatable)"),
		many(&s.include, "envoy-include", "connection manager `NAME` that counts, no other does (repeatable)"),
		many(&s.tcp, "envoy-tcp-listener", "tcp listener `NAME` whose connections count (repeatable)"),
		str(&s.upgrades, "envoy-upgrades", "websockets: wait for them, or ignore"),
		str(&s.dataPort, "data-port", "`[ADDR:]PORT` of the traffic, to see whether a silent balancer or Envoy is gone, and what is still being sent where a balancer tells of no sessions"),
		cli.DurationFlag(&s.timeout, "drain-timeout", "deadline of a drain"),
		cli.DurationFlag(&s.grace, "grace", "the pod's terminationGracePeriodSeconds, to check the deadline against"),
		str(&s.onDeadline, "on-deadline", "hold (stay DRAINING, health 200) or close (503 and down, which cut)"),
		cli.DurationFlag(&s.quiet, "quiet", "how long nothing in flight must hold"),
		cli.DurationFlag(&s.quietPolled, "quiet-polled", "the same where a balancer shows by polls only that nothing comes"),
		cli.DurationFlag(&s.learn, "learn", "after a start, no conclusion from a balancer's absence for so long"),
		cli.DurationFlag(&s.buffer, "lb-buffer", "how long is enough for a balancer that can show nothing; 0s: until the deadline"),
		cli.DurationFlag(&s.minDrain, "min-drain", "the least time in DRAINING, for clients that are no balancer"),
		str(&s.drainingHealth, "draining-health", "200, or 404 for http-check disable-on-404"),
		many(&s.probes, "probe", "`URL` or tcp:ADDR that must answer for health to be 200 (repeatable)"),
		str(&s.stateFile, "state-file", "`FILE` in which a restarted agent finds its drain; set POD_UID too"),
		cli.DurationFlag(&s.rejoin, "rejoin", "how long a restarted agent waits for its drain's caller"),
		cli.DurationFlag(&s.waitStart, "wait-start", "how long GET /drain/wait waits for a drain to begin"),
		cli.DurationFlag(&s.window, "return-window", "after a start each poller is told \"up ready\" for at least so long"),
		cli.DurationFlag(&s.firstByte, "first-byte", "silence after which a connection is an agent-check poll, not HTTP"),
		str(&s.logLevel, "log-level", "debug, info, warn or error"),
	}
}

// timeLeft is what the pod needs of its grace beside the drain: the hook's last
// answer, the kubelet's SIGTERM, the exit.
const timeLeft = 2 * time.Second

// check refuses what cannot work and what would have no effect.
func (s *settings) check(c *ucli.Context) error {
	for _, step := range []func(*ucli.Context) error{noArgs, s.checkWords, s.checkTimes, s.checkEnvoy, s.checkAddrs} {
		if err := step(c); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) checkWords(*ucli.Context) error {
	for _, w := range []struct {
		flag, value string
		want        []string
	}{
		{"envoy-drain", s.envoyDrain, []string{drain.EnvoyHeld, drain.EnvoyStart, drain.EnvoyNever}},
		{"envoy-upgrades", s.upgrades, []string{"wait", "ignore"}},
		{"on-deadline", s.onDeadline, []string{"hold", "close"}},
		{"draining-health", s.drainingHealth, []string{"200", "404"}},
	} {
		ok := false
		for _, v := range w.want {
			ok = ok || v == w.value
		}
		if !ok {
			return cli.Misuse("--"+w.flag+" "+w.want[0], "--%s %q: want %s", w.flag, w.value, strings.Join(w.want, " or "))
		}
	}
	return nil
}

func (s *settings) checkTimes(c *ucli.Context) error {
	if s.timeout <= 0 {
		return cli.Misuse("--drain-timeout 120s", "--drain-timeout %s: want more than 0", s.timeout)
	}
	if s.firstByte <= 0 || s.firstByte > 250*time.Millisecond {
		return cli.Misuse("--first-byte 20ms", "--first-byte %s: want more than 0, at most 250ms: a poll must be answered within its agent-inter", s.firstByte)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"quiet", s.quiet}, {"quiet-polled", s.quietPolled}, {"min-drain", s.minDrain}, {"learn", s.learn}, {"lb-buffer", s.buffer},
	} {
		if d.value >= s.timeout && c.IsSet(d.flag) {
			return cli.Misuse("a longer --drain-timeout", "--%s %s is not below --drain-timeout %s: every drain would run to its deadline", d.flag, d.value, s.timeout)
		}
	}
	need := s.timeout + timeLeft
	if s.onDeadline == "close" {
		need += s.buffer
	}
	if c.IsSet("grace") && need > s.grace {
		return cli.Misuse("terminationGracePeriodSeconds of at least "+need.String()+", or a shorter --drain-timeout",
			"--drain-timeout %s does not fit into --grace %s: the drain needs %s with the way to exit", s.timeout, s.grace, need)
	}
	if c.IsSet("rejoin") && s.stateFile == "" {
		return cli.Misuse("--state-file /run/lbdrain/agent.json", "--rejoin has no effect without --state-file")
	}
	return nil
}

func (s *settings) checkEnvoy(c *ucli.Context) error {
	envoy := false
	for _, spec := range s.sources.Value() {
		envoy = envoy || strings.HasPrefix(spec, "envoy=")
	}
	for _, flag := range []string{"envoy-drain", "envoy-exclude", "envoy-include", "envoy-tcp-listener", "envoy-upgrades"} {
		if c.IsSet(flag) && !envoy {
			return cli.Misuse("--source envoy=http://127.0.0.1:15000", "--%s has no effect without an envoy source", flag)
		}
	}
	var err error
	s.counters, err = inflight.ParseAll(s.sources.Value(), inflight.Options{
		Exclude: s.exclude.Value(), Include: s.include.Value(), TCPListeners: s.tcp.Value(), IgnoreUpgrades: s.upgrades == "ignore",
	})
	return err
}

func (s *settings) checkAddrs(*ucli.Context) error {
	for _, f := range s.from.Value() {
		p, err := netip.ParsePrefix(f)
		if err != nil {
			a, aerr := netip.ParseAddr(f)
			if aerr != nil {
				return cli.Misuse("--lb-from 203.0.113.211/32", "--lb-from %q: want an address or a network", f)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		s.prefixes = append(s.prefixes, netip.PrefixFrom(p.Addr().Unmap(), unmappedBits(p)).Masked())
	}
	counted := false
	for _, spec := range s.sources.Value() { // a sockets source names the data port
		kind, port, _ := strings.Cut(spec, "=")
		if kind == "sockets" || kind == "sockets-tx" {
			s.dataPort, counted = cmp.Or(s.dataPort, port), true
		}
	}
	if s.dataPort != "" {
		var err error
		if s.port, err = inflight.ParsePort(s.dataPort); err != nil {
			return cli.Misuse("--data-port 8080, or --data-port 10.0.0.7:8080", "--data-port %w", err)
		}
		if !counted {
			if s.sending, err = inflight.Parse("sockets-tx="+s.dataPort, inflight.Options{}); err != nil {
				return err
			}
		}
	}
	for flag, addr := range map[string]string{"listen": s.listen, "control": s.control} {
		if addr == "" || addr == "unix:" { // an unset variable: Listen would take any port
			return cli.Misuse("--listen :30180, --control 127.0.0.1:18180", "--%s %q is no address", flag, addr)
		}
	}
	if public(s.control) && s.controlToken == "" {
		return cli.Misuse("--control 127.0.0.1:18180, or --control-token-file FILE",
			"--control %s would listen on a public address: anybody could end the pod's drain", s.control)
	}
	var err error
	s.prober, err = newProber(s.probes.Value(), s.counters)
	return err
}

func unmappedBits(p netip.Prefix) int {
	if p.Addr().Is4In6() {
		return max(0, p.Bits()-96)
	}
	return p.Bits()
}

// public says whether the control address can be reached from elsewhere.
func public(addr string) bool {
	if strings.HasPrefix(addr, "unix:") {
		return false
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false // Listen says it better
	}
	a, err := netip.ParseAddr(host)
	return host != "localhost" && (err != nil || !a.Unmap().IsLoopback())
}

// token reads a token file; no file is no token.
func token(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	t := strings.TrimSpace(string(b))
	if t == "" {
		return "", cli.Misuse("a file with the token on its first line", "token file %s is empty", file)
	}
	return t, nil
}
