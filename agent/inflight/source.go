// Package inflight counts what a pod still has in flight: sources of different
// kinds, each read into a [Reading] with a three-valued count.
//
// The one rule: unknown is never zero. A source that cannot be reached, answers
// late, with another status than 200, with text that does not parse, without
// the gauge, or with a value that cannot be a count gives a Reading whose Count
// is not Known, and a Note that says why.
//
// The sources, as [Parse] reads them from a command line:
//
//	envoy=URL|unix:PATH    Envoy's admin: requests of every HTTP connection manager
//	                       but the excluded, one more where only response bytes are
//	                       left to send, and connections of the named tcp listeners
//	sockets=[ADDR:]PORT    connections on a port, from the kernel, in every state but
//	                       LISTEN, SYN_SENT, TIME_WAIT and CLOSED
//	sockets-tx=[ADDR:]PORT those among them that still have bytes to send
//	http=URL[#METRIC]      a number, or a Prometheus gauge, its series summed
//
// A source that has never seen what it counts is unknown too, so that a mistyped
// port, or a gauge that a stats matcher hides, is not taken for an idle pod. Read
// a source at least once while the pod serves, and it remembers.
//
// Zero of the envoy source says that Envoy has produced every response, not that
// the clients have them (measured on 1.40: a 9 MB body to a client of 400 kB/s
// left rq_active at 4.7 s and HAProxy's session at 17.5 s). What has left is known
// by the balancers' sessions, or else by sockets-tx.
package inflight

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"lbdrain/internal/cli"
	"lbdrain/internal/handshake"
)

// Reading is what a source said at one moment.
type Reading struct {
	Count    handshake.Count
	Upgrades handshake.Count // websockets among Count, or left out of it; unknown where the source has no such thing
	Note     string          // what is not known or was left out, "" if nothing; the same words as long as it is the same
	Detail   string          // where Count comes from, "ingress_http 2, listener 0.0.0.0_8443 1"; "" at zero

	// Refused: nobody listens there (connection refused, or no such unix socket).
	Refused bool
	// Restarted: another process answers than at the reading before. What was
	// in flight in the old one is lost, and a drain it was told of is forgotten.
	Restarted bool
}

// unknown is a Reading that says why there is no count.
func unknown(format string, a ...any) Reading {
	return Reading{Note: fmt.Sprintf(format, a...)}
}

// failed is the Reading of a call that brought nothing.
func failed(err error) Reading {
	return Reading{Note: err.Error(), Refused: refused(err)}
}

func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

// Source is one way of counting. Read takes at most Limit per request it makes;
// a source answers one Read at a time, others wait.
type Source interface {
	Name() string
	Read(ctx context.Context) Reading
}

// Options say what the envoy source counts. The zero value is the default.
type Options struct {
	// Exclude leaves HTTP connection managers out, besides admin, agent, stats
	// and prometheus*. A name is a stat_prefix, as configured or as in the
	// statistics; one that ends in * stands for all that begin so.
	// "cluster:NAME" leaves a cluster out of the fallback to /clusters, besides
	// xds-grpc, sds-grpc, prometheus_stats and agent.
	Exclude []string
	// Include counts these and no others, and all of them must be there.
	// Not together with Exclude.
	Include []string
	// TCPListeners are listeners whose connections count, by the name they are
	// configured under or by that in the statistics (0.0.0.0_8443).
	TCPListeners []string
	// IgnoreUpgrades leaves websockets and other upgrades out of the count:
	// nothing but the deadline ends them.
	IgnoreUpgrades bool
}

func (o Options) none() bool {
	return len(o.Exclude)+len(o.Include)+len(o.TCPListeners) == 0 && !o.IgnoreUpgrades
}

// ParseAll reads the --source flags of a command line. Sources of one kind after
// the first are named envoy-2, envoy-3 and so on. Options without an envoy
// source are refused: they would have no effect.
func ParseAll(specs []string, o Options) ([]Source, error) {
	var all []Source
	seen, kinds := map[string]bool{}, map[string]int{}
	for _, spec := range specs {
		if seen[spec] {
			return nil, cli.Misuse("give each source once", "source %q is given twice", spec)
		}
		seen[spec] = true
		s, err := Parse(spec, o)
		if err != nil {
			return nil, err
		}
		kinds[s.Name()]++
		if n := kinds[s.Name()]; n > 1 {
			s.(interface{ rename(string) }).rename(s.Name() + "-" + strconv.Itoa(n))
		}
		all = append(all, s)
	}
	if kinds["envoy"] == 0 && !o.none() {
		return nil, cli.Misuse("--source envoy=http://127.0.0.1:15000",
			"--envoy-exclude, --envoy-include, --envoy-tcp-listener and --envoy-upgrades say what the envoy source counts, and there is none")
	}
	return all, nil
}

// named is the part of a source that ParseAll may number.
type named struct{ name string }

// Name is the source's kind, or kind-N.
func (n *named) Name() string { return n.name }

func (n *named) rename(to string) { n.name = to }

var usages = map[string]string{
	"envoy":      "envoy=http://127.0.0.1:15000, or envoy=unix:/run/envoy/admin.sock",
	"sockets":    "sockets=8443, or sockets=10.0.0.7:8443",
	"sockets-tx": "sockets-tx=8080, or sockets-tx=10.0.0.7:8080",
	"http":       "http=http://127.0.0.1:9100/metrics#requests_in_flight",
}

// Parse reads one source. Its errors carry a hint what to type; an envoy source
// is an *Envoy.
func Parse(spec string, o Options) (Source, error) {
	kind, value, ok := strings.Cut(spec, "=")
	if _, is := usages[kind]; !is || !ok {
		return nil, cli.Misuse("--source KIND=VALUE, KIND one of envoy, sockets, sockets-tx, http",
			"source %q is of no known kind", spec)
	}
	var s Source
	var err error
	switch kind {
	case "envoy":
		s, err = NewEnvoy(value, o)
	case "http":
		s, err = newHTTP(value)
	default:
		var at netip.AddrPort
		if at, err = ParsePort(value); err == nil {
			s = &sockets{named: named{kind}, at: at, pendingOnly: kind == "sockets-tx"}
		}
	}
	if err != nil {
		return nil, cli.Fail(cli.Usage, "--source "+usages[kind], fmt.Errorf("source %q: %w", spec, err))
	}
	return s, nil
}

// ParsePort reads [ADDR:]PORT, as --data-port and the sockets sources take it.
// Without ADDR the address is the zero Addr: any local address.
func ParsePort(s string) (netip.AddrPort, error) {
	if n, err := strconv.ParseUint(s, 10, 16); err == nil && n > 0 {
		return netip.AddrPortFrom(netip.Addr{}, uint16(n)), nil
	}
	at, err := netip.ParseAddrPort(s)
	if err != nil || at.Port() == 0 {
		return at, fmt.Errorf("%q: want PORT or ADDR:PORT, the address in digits", s)
	}
	return at, nil
}
