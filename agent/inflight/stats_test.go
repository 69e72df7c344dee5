package inflight

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lbdrain/internal/handshake"
)

func known(n uint64) handshake.Count { return handshake.Known(n) }

// oneManager is what an Envoy with one data listener answers.
const oneManager = `{"stats":[` +
	`{"name":"http.admin.downstream_rq_active","value":1},{"name":"http.admin.downstream_cx_tx_bytes_buffered","value":0},` +
	`{"name":"http.in.downstream_cx_tx_bytes_buffered","value":0},{"name":"http.in.downstream_cx_upgrades_active","value":0},` +
	`{"name":"http.in.downstream_rq_active","value":0}]}`

func TestParseGauges(t *testing.T) {
	g, err := parseGauges([]byte(`{"stats":[{"name":"a","value":7},{"name":"neg","value":-1},{"name":"half","value":0.5},` +
		`{"name":"text","value":"0"},{"name":"none"},{"name":"null","value":null},{"name":"exp","value":0e0},` +
		`{"name":"wrapped","value":18446744073709551615},{"name":"more","value":184467440737095516160},` +
		`{"name":"twice","value":1},{"name":"twice","value":0},{"histograms":{}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := gauges{"a": known(7), "twice": known(1)}
	for name, n := range g {
		if n.Known != want[name].Known || n.N != want[name].N {
			t.Errorf("%s = %v, want %v", name, n, want[name])
		}
	}
	for _, body := range []string{
		"", "null", "[]", "{}", `{"stats":null}`, `{"stats":{}}`, `{"stats":[`, `{"stats":[1]}`,
		"<html>", "OK\n", `{"stats":[]} trailing`, `{"stats":[{"name":7,"value":0}]}`,
	} {
		if g, err := parseGauges([]byte(body)); err == nil {
			t.Errorf("%q was taken as %v", body, g)
		}
	}
}

// Who counts, and what of it. The names are real ones: Istio's and Envoy
// Gateway's prefixes, Envoy's own listeners, workers and counters.
func TestTally(t *testing.T) {
	for _, c := range []struct {
		name     string
		o        Options
		g        gauges
		count    handshake.Count
		upgrades handshake.Count
		why      string
		detail   string
		note     string // a part of it
	}{
		{
			name:  "the reader itself is not in flight",
			g:     manager("admin", 1, 0, 0).and("in", 0, 0, 0),
			count: known(0), upgrades: known(0),
		},
		{
			name:  "all managers are summed, probes and scrapers left out",
			g:     manager("agent", 3, 0, 0).and("stats", 4, 0, 9).and("prometheus_x", 5, 0, 0).and("outbound_0.0.0.0_8080;", 2, 0, 0).and("my-gateway.https", 1, 0, 0),
			count: known(3), upgrades: known(0), detail: "my-gateway.https 1, outbound_0.0.0.0_8080; 2",
		},
		{
			name:  "a name is whole: these are not admin, stats or agent",
			g:     manager("administration", 1, 0, 0).and("stats.data", 1, 0, 0).and("useragent", 1, 0, 0),
			count: known(3), upgrades: known(0), detail: "administration 1, stats.data 1, useragent 1",
		},
		{
			name:  "excluded besides the default, also by the beginning and by the configured name",
			o:     Options{Exclude: []string{"egress*", "in:15006"}},
			g:     manager("egress_1", 8, 0, 0).and("in_15006", 8, 0, 0).and("admin", 1, 0, 0).and("in", 2, 0, 0),
			count: known(2), upgrades: known(0), detail: "in 2",
		},
		{
			name: "counters and workers are other statistics",
			g: gauges{
				"http.in.downstream_rq_active": known(0), "http.in.downstream_cx_tx_bytes_buffered": known(0), "http.in.downstream_cx_upgrades_active": known(0),
				"cluster.be.upstream_rq_active_overflow": known(5), "http.in.downstream_rq_active_overflow": known(5),
				"listener.0.0.0.0_8443.worker_0.downstream_cx_active": known(2), "listener.0.0.0.0_8443.worker_1.downstream_cx_active": known(2),
				"listener.0.0.0.0_8443.downstream_cx_active": known(4),
			},
			o:     Options{TCPListeners: []string{"0.0.0.0_8443"}},
			count: known(4), upgrades: known(0), detail: "listener 0.0.0.0_8443 4",
		},
		{
			name: "a tcp listener by the name it is configured under", o: Options{TCPListeners: []string{"grpc"}},
			g:     gauges{"listener.[__1]_8443.downstream_cx_active": known(2)},
			count: known(2), upgrades: known(0), detail: "listener [__1]_8443 2",
		},
		{
			name: "a tcp listener that is not there", o: Options{TCPListeners: []string{"0.0.0.0:9443"}},
			g:   manager("in", 0, 0, 0),
			why: "listener.0.0.0.0_9443.downstream_cx_active is not shown", upgrades: known(0),
		},
		{
			name:  "bytes still to send are one in flight",
			g:     manager("in", 0, 0, 190_000).and("b", 2, 0, 5),
			count: known(3), upgrades: known(0), detail: "b 2, in 1",
		},
		{
			name:  "websockets are inside, and shown apart",
			g:     manager("in", 3, 2, 0),
			count: known(3), upgrades: known(2), detail: "in 3",
		},
		{
			name: "websockets left out", o: Options{IgnoreUpgrades: true},
			g:     manager("in", 3, 2, 0).and("b", 1, 1, 0),
			count: known(1), upgrades: known(3), detail: "in 1",
		},
		{
			name: "more websockets than requests: not read at one moment", o: Options{IgnoreUpgrades: true},
			g:   manager("in", 1, 2, 0),
			why: "http.in.downstream_rq_active is no count", upgrades: known(2),
		},
		{
			name: "websockets that cannot be told apart stay in", o: Options{IgnoreUpgrades: true},
			g:     gauges{"http.in.downstream_rq_active": known(1)},
			count: known(1), detail: "in 1", note: "cx_upgrades_active is not shown: upgrades are counted",
		},
		{
			name:  "unseen bytes are said",
			g:     gauges{"http.in.downstream_rq_active": known(0)},
			count: known(0), note: "cx_tx_bytes_buffered is not shown",
		},
		{
			name: "negative is unknown, and one such spoils the sum",
			g:    manager("in", 2, 0, 0).set("http.bad.downstream_rq_active", handshake.Count{}),
			why:  "http.bad.downstream_rq_active is no count",
		},
		{
			name:     "bytes that are no number",
			g:        manager("in", 0, 0, 0).set("http.in.downstream_cx_tx_bytes_buffered", handshake.Count{}),
			upgrades: known(0), why: "http.in.downstream_cx_tx_bytes_buffered is no count",
		},
		{
			name: "these and no others", o: Options{Include: []string{"in", "agent"}},
			g:     manager("in", 1, 0, 0).and("agent", 2, 0, 0).and("b", 9, 0, 0),
			count: known(3), upgrades: known(0), detail: "agent 2, in 1",
		},
		{
			name: "one of these is missing", o: Options{Include: []string{"in", "gone"}},
			g:   manager("in", 0, 0, 0),
			why: "http.gone.downstream_rq_active is not shown", upgrades: known(0),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := newRules(c.o)
			if err != nil {
				t.Fatal(err)
			}
			got := r.add(c.g, map[string]string{"grpc": "[__1]_8443"})
			if got.count != c.count || got.upgrades != c.upgrades || got.why != c.why {
				t.Errorf("count %v, upgrades %v, why %q, want %v, %v, %q", got.count, got.upgrades, got.why, c.count, c.upgrades, c.why)
			}
			if d := strings.Join(got.detail, ", "); c.why == "" && d != c.detail {
				t.Errorf("detail %q, want %q", d, c.detail)
			}
			if n := strings.Join(got.notes, "; "); !strings.Contains(n, c.note) {
				t.Errorf("note %q lacks %q", n, c.note)
			}
		})
	}
}

func manager(name string, rq, up, tx uint64) gauges { return gauges{}.and(name, rq, up, tx) }

func (g gauges) and(name string, rq, up, tx uint64) gauges {
	return g.set("http."+name+".downstream_rq_active", known(rq)).
		set("http."+name+".downstream_cx_upgrades_active", known(up)).
		set("http."+name+".downstream_cx_tx_bytes_buffered", known(tx))
}

func (g gauges) set(name string, n handshake.Count) gauges {
	g[name] = n
	return g
}

func TestRulesRefuse(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Exclude: []string{"a"}, Include: []string{"b"}}, "--envoy-exclude has no effect beside --envoy-include: give one of them"},
		{Options{Exclude: []string{"*"}}, `--envoy-exclude "*": want a name, or the beginning of one and *`},
		{Options{Exclude: []string{""}}, `--envoy-exclude "": want a name, or the beginning of one and *`},
		{Options{Exclude: []string{"cluster:"}}, `--envoy-exclude "cluster:": want a name, or the beginning of one and *`},
		{Options{Include: []string{"admin"}}, `--envoy-include "admin": want the stat_prefix of a data listener; admin counts its own reader`},
		{Options{TCPListeners: []string{"admin"}}, `--envoy-tcp-listener "admin": want the name of a data listener`},
	} {
		if _, err := newRules(c.o); err == nil || err.Error() != c.want {
			t.Errorf("%+v: %v, want %s", c.o, err, c.want)
		}
	}
}

const twoHosts = `{"cluster_statuses":[
 {"name":"xds-grpc","host_statuses":[{"stats":[{"type":"GAUGE","name":"rq_active","value":"1"}]}]},
 {"name":"be","host_statuses":[
  {"stats":[{"name":"rq_total","value":"9"},{"type":"GAUGE","name":"rq_active","value":"2"},{"type":"GAUGE","name":"rq_pending_active"}]},
  {"stats":[{"type":"GAUGE","name":"cx_active","value":"4"},{"type":"GAUGE","name":"rq_active"}]}]},
 {"name":"empty"}]}`

func TestParseClusters(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		want           handshake.Count
		err            string
	}{
		{"control plane left out, no value is 0", "", "", known(2), ""},
		{"one that waits for a connection", `"rq_pending_active"`, `"rq_pending_active","value":"3"`, known(5), ""},
		{"left out by name", `"be"`, `"zipkin"`, handshake.Count{}, "no cluster that counts has a host"},
		{"negative", `"value":"2"`, `"value":"-2"`, handshake.Count{}, `cluster "be": rq_active is no count`},
		{"a bare number", `"value":"2"`, `"value":2`, handshake.Count{}, `cluster "be": rq_active is no count`},
		{"null is not no value", `"value":"2"`, `"value":null`, handshake.Count{}, `cluster "be": rq_active is no count`},
		{"wrapped", `"value":"2"`, `"value":"18446744073709551615"`, handshake.Count{}, `cluster "be": rq_active is no count`},
		{"a host without it", `"rq_active"}]}]`, `"cx_active"}]}]`, handshake.Count{}, `cluster "be": no rq_active`},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, err := parseClusters(strings.NewReader(strings.Replace(twoHosts, c.old, c.new, 1)), append(slices.Clone(excludedClusters), "zipk*"))
			if n != c.want || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
				t.Errorf("%v, %v, want %v, %s", n, err, c.want, c.err)
			}
		})
	}
	for _, body := range []string{
		"", "{}", "[]", "null", `{"cluster_statuses":`, "backend::rq_active::0", idleClusters[:40], idleClusters + "x",
		`{"cluster_statuses":null}`, `{"cluster_statuses":{}}`, `{"x":[` + idleClusters, `{"cluster_statuses":[7]}`,
	} {
		if n, err := parseClusters(strings.NewReader(body), nil); err == nil {
			t.Errorf("%q was taken as %v", body, n)
		}
	}
}

func TestParseInfo(t *testing.T) {
	const ok = `{"version":"9e5580933739775e8bce696a57a2e1bc99368f23/1.40.0/Clean/RELEASE/BoringSSL","state":"LIVE",` +
		`"uptime_current_epoch":"20s","command_line_options":{"drain_time":"600s"}}`
	i, err := parseInfo([]byte(ok))
	if want := (Info{"1.40.0", "LIVE", 600 * time.Second, 20 * time.Second}); err != nil || i != want {
		t.Errorf("%+v, %v, want %+v", i, err, want)
	}
	for old, new := range map[string]string{
		`"LIVE"`: `""`, `"20s"`: `20`, `"20s"}`: `}`, `"600s"`: `"x"`, `"20s",`: `"-1s",`, `{"version"`: `"version"`, `"state":"LIVE",`: ``,
	} {
		body := strings.Replace(ok, old, new, 1)
		if i, err := parseInfo([]byte(body)); err == nil && body != ok {
			t.Errorf("%s was taken as %+v", body, i)
		}
	}
	if i, err := parseInfo([]byte(`{"state":"DRAINING","uptime_current_epoch":"0s"}`)); err != nil || i.DrainTime != 0 {
		t.Errorf("without drain_time: %+v, %v", i, err)
	}
}

func TestListenersConfig(t *testing.T) {
	const hcm = `{"name":"h","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager","stat_prefix":"P"}}`
	const tcp = `{"name":"t","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy","stat_prefix":"x"}}`
	of := func(prefix string) string { return strings.Replace(hcm, `"P"`, `"`+prefix+`"`, 1) }
	var l listeners
	for _, body := range []string{
		`{}`,
		`{"configs":[{"listener":{"name":"data","address":{"socket_address":{"address":"::1","port_value":10086}},
		  "filter_chains":[{"filters":[` + of("in:gr://ess") + `]},{"filters":[` + of("b") + `]}],"default_filter_chain":{"filters":[` + of("fallback") + `]}}}]}`,
		`{"configs":[{"name":"x","active_state":{"listener":{"name":"grpc","stat_prefix":"my:data","filter_chains":[{"filters":[` + tcp + `]}]}},
		  "draining_state":{"listener":{"filter_chains":[{"filters":[` + of("old") + `]}]}},
		  "warming_state":{"listener":{"filter_chains":[{"filters":[` + of("new") + `]}]}}}]}`,
	} {
		if err := l.add(strings.NewReader(body)); err != nil {
			t.Fatal(err)
		}
	}
	want := listeners{
		managers: []string{"b", "fallback", "in_gr_ess", "new", "old"},
		byName:   map[string]string{"data": "[__1]_10086", "grpc": "my_data"},
		tcp:      []string{"my_data"},
	}
	if d := cmp.Diff(want, l, cmp.AllowUnexported(listeners{})); d != "" {
		t.Error(d)
	}
	for _, body := range []string{"", "[]", "OK", `{"configs":[{"listener":{"name":"data","filter_chains":[{"filters":[{"name":"ecds","config_discovery":{}}]}]}}]}`} {
		if err := new(listeners).add(strings.NewReader(body)); err == nil {
			t.Errorf("%q was taken", body)
		}
	}
}

// Uptimes are cut to the second at both ends, and the answer may be slow.
func TestAnotherProcess(t *testing.T) {
	t0 := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	at := func(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }
	for _, c := range []struct {
		name      string
		sent, got float64
		uptime    time.Duration
		lost      bool
		want      bool
	}{
		{"a second later", 101, 101, 101 * time.Second, false, false},
		{"cut down", 101.9, 101.9, 100 * time.Second, false, false},
		{"cut up", 101.1, 101.1, 102 * time.Second, false, false},
		{"slow answer", 101, 103, 101 * time.Second, false, false},
		{"younger", 110, 110, 5 * time.Second, false, true},
		{"younger by 3 s", 110, 110, 107 * time.Second, false, true},
		{"older: the one before was a newcomer on the same port", 110, 110, 500 * time.Second, false, true},
		{"same age, but it had refused in between", 101, 101, 101 * time.Second, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p process
			if p.another(at(100), at(100), 100*time.Second) {
				t.Error("the first one is another one")
			}
			p.lost = c.lost
			if got := p.another(at(c.sent), at(c.got), c.uptime); got != c.want {
				t.Errorf("another: %v, want %v", got, c.want)
			}
			if p.another(at(c.sent), at(c.got), c.uptime) {
				t.Error("another one twice")
			}
		})
	}
}
