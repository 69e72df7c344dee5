package inflight

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"lbdrain/internal/handshake"
)

// The paths that are read. The filter is a regular expression (RE2, unanchored)
// and type=Gauges makes it six times cheaper on a large configuration; usedonly
// would hide gauges that were never written.
var (
	statsPath    = gaugesPath(`^http\..*\.downstream_(rq_active|cx_upgrades_active|cx_tx_bytes_buffered)$`)
	statsPathTCP = gaugesPath(`^(http\..*\.downstream_(rq_active|cx_upgrades_active|cx_tx_bytes_buffered)|listener\..*\.downstream_cx_active)$`)
)

const (
	clustersPath = "/clusters?format=json"
	staticPath   = "/config_dump?resource=static_listeners"
	dynamicPath  = "/config_dump?resource=dynamic_listeners"
)

func gaugesPath(filter string) string {
	return "/stats?type=Gauges&format=json&filter=" + url.QueryEscape(filter)
}

// gauges are name and value; a value that cannot be a count is not Known.
type gauges map[string]handshake.Count

func parseGauges(body []byte) (gauges, error) {
	var doc struct {
		Stats *[]struct {
			Name  string          `json:"name"`
			Value json.RawMessage `json:"value"`
		} `json:"stats"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("not Envoy's JSON of gauges: %w", err)
	}
	if doc.Stats == nil {
		return nil, errors.New(`not Envoy's JSON of gauges: no "stats"`)
	}
	g := make(gauges, len(*doc.Stats))
	for _, s := range *doc.Stats {
		n := integer(string(s.Value))
		if was, twice := g[s.Name]; twice {
			n = n.Add(was)
		}
		g[s.Name] = n
	}
	return g, nil
}

// integer reads digits and nothing else, at most maxCount.
func integer(s string) handshake.Count {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > maxCount {
		return handshake.Count{}
	}
	return handshake.Known(n)
}

// rules is what Options say, in the statistics' own spelling.
type rules struct {
	exclude, include, tcp, clusters []string
	ignoreUpgrades                  bool
}

var (
	excludedManagers = []string{"admin", "agent", "stats", "prometheus*"}
	excludedClusters = []string{"xds-grpc", "sds-grpc", "prometheus_stats", "agent"}
)

func newRules(o Options) (rules, error) {
	r := rules{
		exclude: slices.Clone(excludedManagers), clusters: slices.Clone(excludedClusters),
		ignoreUpgrades: o.IgnoreUpgrades,
	}
	if len(o.Include) > 0 && len(o.Exclude) > 0 {
		return r, errors.New("--envoy-exclude has no effect beside --envoy-include: give one of them")
	}
	for _, name := range o.Exclude {
		cluster, is := strings.CutPrefix(name, "cluster:")
		if strings.Trim(cluster, "*") == "" {
			return r, fmt.Errorf("--envoy-exclude %q: want a name, or the beginning of one and *", name)
		}
		if is {
			r.clusters = append(r.clusters, cluster)
		} else {
			r.exclude = append(r.exclude, sanitize(name))
		}
	}
	for _, name := range o.Include {
		if name == "" || name == "admin" {
			return r, fmt.Errorf("--envoy-include %q: want the stat_prefix of a data listener; admin counts its own reader", name)
		}
		r.include = append(r.include, sanitize(name))
	}
	for _, name := range o.TCPListeners {
		if name == "" || name == "admin" {
			return r, fmt.Errorf("--envoy-tcp-listener %q: want the name of a data listener", name)
		}
		r.tcp = append(r.tcp, name)
	}
	return r, nil
}

// counts says whether an HTTP connection manager is one of those that count.
func (r rules) counts(manager string) bool {
	if len(r.include) > 0 {
		return slices.Contains(r.include, manager)
	}
	return !matches(r.exclude, manager)
}

// matches compares whole names, or their beginning where the pattern ends in *.
func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if begin, star := strings.CutSuffix(p, "*"); star {
			return strings.HasPrefix(name, begin)
		}
		return name == p
	})
}

// sanitize is what Envoy makes of a configured name in its statistics
// (Stats::Utility::sanitizeStatsName; seen on 1.40: in:gr://ess → in_gr_ess).
func sanitize(name string) string {
	return strings.NewReplacer("://", "_", ":/", "_", ":", "_", "\x00", "_").Replace(name)
}

// cut takes the name of a connection manager or listener out of a gauge's name.
// Names hold dots, semicolons and brackets (outbound_0.0.0.0_8080;): only the
// two ends can be relied upon.
func cut(gauge, prefix, suffix string) (string, bool) {
	name, ok := strings.CutPrefix(gauge, prefix)
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, suffix)
	return name, ok && name != ""
}

const (
	managerPrefix  = "http."
	listenerPrefix = "listener."
	requests       = ".downstream_rq_active"
	upgraded       = ".downstream_cx_upgrades_active"
	buffered       = ".downstream_cx_tx_bytes_buffered"
	connections    = ".downstream_cx_active"
)

// tally is what one answer of /stats amounts to.
type tally struct {
	count    handshake.Count
	upgrades handshake.Count
	names    []string // the counted gauges, sorted
	managers []string // the counted connection managers, sorted
	why      string   // why count is unknown, if it is
	notes    []string
	detail   []string
}

// add counts the gauges by the rules. listeners maps what --envoy-tcp-listener
// may name to the statistics' own names.
func (r rules) add(g gauges, listeners map[string]string) tally {
	t := tally{count: handshake.Known(0), upgrades: handshake.Known(0)}
	for name := range g {
		if m, ok := cut(name, managerPrefix, requests); ok && r.counts(m) {
			t.managers = append(t.managers, m)
		}
	}
	slices.Sort(t.managers)
	for _, m := range t.managers {
		t.manager(m, g, r.ignoreUpgrades)
	}
	for _, m := range r.include {
		if !slices.Contains(t.managers, m) {
			t.unknown(managerPrefix + m + requests + " is not shown")
		}
	}
	for _, l := range r.tcp {
		if own, ok := listeners[l]; ok {
			l = own
		}
		l = sanitize(l)
		name := listenerPrefix + l + connections
		n, ok := g[name]
		if !ok {
			t.unknown(name + " is not shown")
			continue
		}
		t.sum(name, "listener "+l, n)
	}
	slices.Sort(t.names)
	return t
}

// manager counts one HTTP connection manager: its requests, or one if only bytes
// of a response are left to send.
func (t *tally) manager(m string, g gauges, ignoreUpgrades bool) {
	n := g[managerPrefix+m+requests]
	if up, ok := g[managerPrefix+m+upgraded]; ok {
		t.names = append(t.names, managerPrefix+m+upgraded)
		t.upgrades = t.upgrades.Add(up)
		if ignoreUpgrades {
			n = minus(n, up)
		}
	} else {
		t.upgrades = handshake.Count{}
		if ignoreUpgrades {
			t.note("cx_upgrades_active is not shown: upgrades are counted")
		}
	}
	if bytes, ok := g[managerPrefix+m+buffered]; ok {
		t.names = append(t.names, managerPrefix+m+buffered)
		switch {
		case !bytes.Known:
			t.unknown(managerPrefix + m + buffered + " is no count")
		case bytes.N > 0 && n.Zero():
			n = handshake.Known(1)
		}
	} else {
		t.note("cx_tx_bytes_buffered is not shown: responses that Envoy still has to send are not seen")
	}
	t.sum(managerPrefix+m+requests, m, n)
}

// minus is unknown where more would be taken away than there is: the two gauges
// were not read at the same moment.
func minus(n, up handshake.Count) handshake.Count {
	if !n.Known || !up.Known || up.N > n.N {
		return handshake.Count{}
	}
	return handshake.Known(n.N - up.N)
}

func (t *tally) sum(gauge, what string, n handshake.Count) {
	t.names = append(t.names, gauge)
	if !n.Known {
		t.unknown(gauge + " is no count")
		return
	}
	t.count = t.count.Add(n)
	if n.N > 0 {
		t.detail = append(t.detail, what+" "+n.String())
	}
}

func (t *tally) unknown(why string) {
	t.count = handshake.Count{}
	if t.why == "" {
		t.why = why
	}
}

func (t *tally) note(s string) {
	if !slices.Contains(t.notes, s) {
		t.notes = append(t.notes, s)
	}
}
