package inflight

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"lbdrain/internal/handshake"
)

// fakeEnvoy answers as an Envoy does, until a test replaces an answer: for the
// faults that a real one cannot be made to show.
type fakeEnvoy struct {
	mu      sync.Mutex
	answer  map[string]string           // by path, before the ?
	handler map[string]http.HandlerFunc // instead of answer
	asked   []string                    // method and request URI
	srv     *httptest.Server
	e       *Envoy
}

const (
	dataListener = `{"configs":[{"listener":{"name":"data","address":{"socket_address":{"address":"127.0.0.1","port_value":10080}},"filter_chains":[{"filters":[` +
		`{"name":"h","typed_config":{"@type":"x.v3.HttpConnectionManager","stat_prefix":"in"}}]}]}}]}`
	idleClusters = `{"cluster_statuses":[{"name":"be","host_statuses":[{"stats":[{"type":"GAUGE","name":"rq_active"}]}]}]}`
)

func serverInfo(state string, uptime int) string {
	return fmt.Sprintf(`{"version":"x/1.40.0/Clean/RELEASE/B","state":%q,"uptime_current_epoch":"%ds","command_line_options":{"drain_time":"600s"}}`, state, uptime)
}

func newFake(t *testing.T, o Options) *fakeEnvoy {
	t.Helper()
	f := &fakeEnvoy{
		answer: map[string]string{
			"/server_info": serverInfo("LIVE", 100), "/stats": oneManager, "/clusters": idleClusters, "/config_dump": dataListener,
			"/ready": "LIVE\n", "/drain_listeners": "OK\n",
		},
		handler: map[string]http.HandlerFunc{},
	}
	f.srv = httptest.NewServer(f)
	t.Cleanup(f.srv.Close)
	s, err := Parse("envoy="+f.srv.URL, o)
	if err != nil {
		t.Fatal(err)
	}
	f.e = s.(*Envoy)
	return f
}

func (f *fakeEnvoy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked = append(f.asked, r.Method+" "+r.RequestURI)
	body, h := f.answer[r.URL.Path], f.handler[r.URL.Path]
	f.mu.Unlock()
	if h != nil {
		h(w, r)
		return
	}
	w.Write([]byte(body))
}

func (f *fakeEnvoy) say(path, body string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer[path] = body
	delete(f.handler, path)
}

func (f *fakeEnvoy) do(path string, h http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handler[path] = h
}

func (f *fakeEnvoy) read() Reading { return f.e.Read(context.Background()) }

// gaugesOf writes what an Envoy with that one data manager answers.
func gaugesOf(prefix string, rq int) string {
	return strings.ReplaceAll(strings.Replace(oneManager, `"http.in.downstream_rq_active","value":0`, fmt.Sprintf(`"http.in.downstream_rq_active","value":%d`, rq), 1), "http.in.", "http."+prefix+".")
}

func TestEnvoyIdleAndBusy(t *testing.T) {
	f := newFake(t, Options{})
	if r := f.read(); r != (Reading{Count: known(0), Upgrades: known(0)}) {
		t.Errorf("idle: %+v", r)
	}
	f.say("/stats", gaugesOf("in", 3))
	if r := f.read(); r != (Reading{Count: known(3), Upgrades: known(0), Detail: "in 3"}) {
		t.Errorf("busy: %+v", r)
	}
	const want = "GET /server_info GET /config_dump?resource=static_listeners GET /config_dump?resource=dynamic_listeners " +
		"GET /stats?type=Gauges&format=json&filter=%5Ehttp%5C..%2A%5C.downstream_%28rq_active%7Ccx_upgrades_active%7Ccx_tx_bytes_buffered%29%24"
	if got := strings.Join(f.asked[:4], " "); got != want {
		t.Errorf("asked\n%s\nwant\n%s", got, want)
	}
	f.say("/server_info", serverInfo("DRAINING", 100)) // after healthcheck/fail: it still counts
	f.e.asked = time.Time{}
	if r := f.read(); r.Count != known(3) {
		t.Errorf("failing its health check: %+v", r)
	}
	if err := f.e.DrainListeners(context.Background()); err != nil {
		t.Error(err)
	}
	if err := f.e.Ready(context.Background()); err != nil {
		t.Error(err)
	}
	n := len(f.asked)
	if got := strings.Join(f.asked[n-2:], ", "); got != "POST /drain_listeners?graceful&skip_exit, GET /ready" {
		t.Errorf("asked %s", got)
	}
	f.do("/drain_listeners", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 400) })
	if err := f.e.DrainListeners(context.Background()); err == nil || err.Error() != `POST /drain_listeners?graceful&skip_exit: status 400: "no"` {
		t.Errorf("refused drain: %v", err)
	}
}

func TestEnvoyTCPFilter(t *testing.T) {
	f := newFake(t, Options{TCPListeners: []string{"data"}})
	f.say("/stats", strings.Replace(oneManager, `{"stats":[`, `{"stats":[{"name":"listener.127.0.0.1_10080.downstream_cx_active","value":2},`, 1))
	if r := f.read(); r.Count != known(2) || r.Detail != "listener 127.0.0.1_10080 2" {
		t.Errorf("%+v", r)
	}
	const want = "GET /stats?type=Gauges&format=json&filter=%5E%28http%5C..%2A%5C.downstream_%28rq_active%7Ccx_upgrades_active%7Ccx_tx_bytes_buffered%29%7Clistener%5C..%2A%5C.downstream_cx_active%29%24"
	if got := f.asked[len(f.asked)-1]; got != want {
		t.Errorf("asked\n%s\nwant\n%s", got, want)
	}
}

// halfway says half of it and closes.
func halfway(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	w.Write([]byte(oneManager))
}

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(body)) }
}

func status(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		w.Write([]byte(body))
	}
}

func hangUp(w http.ResponseWriter, _ *http.Request) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		c.Close()
	}
}

// Whatever is wrong with an answer, the count is unknown. Each of these was a
// zero, or an end of the drain, in one of the programs of today.
func TestEnvoyFaultsAreUnknown(t *testing.T) {
	idle := gaugesOf("in", 0)
	for _, c := range []struct {
		name, path string
		h          http.HandlerFunc // nil: silence
		note       string           // its beginning
	}{
		{"gauges: 500", "/stats", status(500, idle), "GET /stats?type=Gauges"},
		{"gauges: 503 with a good body", "/stats", status(503, idle), "GET /stats?type=Gauges"},
		{"gauges: redirect", "/stats", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ready", http.StatusFound) }, "GET /stats?type=Gauges"},
		{"gauges: connection closed", "/stats", hangUp, "GET /stats?type=Gauges"},
		{"gauges: silence", "/stats", nil, "GET /stats?type=Gauges"},
		{"gauges: half an answer", "/stats", halfway, "GET /stats?type=Gauges"},
		{"gauges: too much", "/stats", text(`{"stats":[]}` + strings.Repeat(" ", maxBody)), "GET /stats?type=Gauges"},
		{"gauges: empty", "/stats", text(""), "not Envoy's JSON of gauges"},
		{"gauges: text", "/stats", text("http.in.downstream_rq_active: 0\n"), "not Envoy's JSON of gauges"},
		{"gauges: html", "/stats", text("<html></html>"), "not Envoy's JSON of gauges"},
		{"gauges: array", "/stats", text("[]"), "not Envoy's JSON of gauges"},
		{"gauges: other JSON", "/stats", text(`{"status":"ok"}`), `not Envoy's JSON of gauges: no "stats"`},
		{"gauges: no value", "/stats", text(`{"stats":[{"name":"http.in.downstream_rq_active"}]}`), "http.in.downstream_rq_active is no count"},
		{"gauges: negative", "/stats", text(`{"stats":[{"name":"http.in.downstream_rq_active","value":-1}]}`), "http.in.downstream_rq_active is no count"},
		{"gauges: a string", "/stats", text(`{"stats":[{"name":"http.in.downstream_rq_active","value":"0"}]}`), "http.in.downstream_rq_active is no count"},
		{"info: 500", "/server_info", status(500, ""), "GET /server_info: status 500"},
		{"info: silence", "/server_info", nil, "GET /server_info"},
		{"info: text", "/server_info", text("envoy live"), "not Envoy's /server_info"},
		{"info: not ready yet", "/server_info", text(serverInfo("PRE_INITIALIZING", 1)), "Envoy is PRE_INITIALIZING"},
		{"config: silence", "/config_dump", nil, "GET /stats?type=Gauges"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, Options{})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if c.h == nil { // silence, until the reader's patience ends
				c.h = func(_ http.ResponseWriter, r *http.Request) {
					cancel()
					<-r.Context().Done()
				}
			}
			f.do(c.path, c.h)
			r := f.e.Read(ctx)
			if r.Count.Known || r.Refused || !strings.HasPrefix(r.Note, c.note) {
				t.Errorf("%+v, want unknown: %s…", r, c.note)
			}
		})
	}
}

func TestEnvoyRefused(t *testing.T) {
	dir := t.TempDir()
	for _, admin := range []string{"http://" + net.JoinHostPort(loopback(t), "15000"), "unix:" + dir + "/admin.sock"} {
		e, err := NewEnvoy(admin, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r := e.Read(context.Background()); r.Count.Known || !r.Refused || r.Note == "" {
			t.Errorf("%s: %+v", admin, r)
		}
		if err := e.DrainListeners(context.Background()); !refused(err) {
			t.Errorf("%s: %v", admin, err)
		}
	}
	e, err := NewEnvoy("unix:"+dir, Options{}) // no socket at all
	if err != nil {
		t.Fatal(err)
	}
	if r := e.Read(context.Background()); r.Count.Known || r.Note == "" {
		t.Errorf("a directory: %+v", r)
	}
}

// A gauge that was there and is missing now is unknown; it does not fall back.
func TestEnvoySeenBefore(t *testing.T) {
	f := newFake(t, Options{})
	f.read()
	for _, gone := range []string{
		`,{"name":"http.in.downstream_rq_active","value":0}`,
		`,{"name":"http.in.downstream_cx_tx_bytes_buffered","value":0}`,
	} {
		f.say("/stats", strings.Replace(oneManager, gone, "", 1))
		if r := f.read(); r.Count.Known || !strings.HasSuffix(r.Note, "was shown before and is missing now") {
			t.Errorf("without %s: %+v", gone, r)
		}
	}
	f.say("/stats", `{"stats":[]}`)
	for range 20 {
		if r := f.read(); r.Note != "http.in.downstream_cx_tx_bytes_buffered was shown before and is missing now" {
			t.Fatalf("all of them: %+v", r)
		}
	}
	f.say("/stats", oneManager)
	if r := f.read(); !r.Count.Zero() || r.Note != "" {
		t.Errorf("back again: %+v", r)
	}
}

// A stats matcher hides a gauge from the start: Envoy's clusters are asked, and
// the reading says what that misses.
func TestEnvoyHiddenGauges(t *testing.T) {
	const misses = ": counted by /clusters, which misses requests not yet routed and responses still to be sent"
	two := strings.Replace(dataListener, `"filters":[`, `"filters":[{"name":"h","typed_config":{"@type":"x.v3.HttpConnectionManager","stat_prefix":"probe"}},`, 1)
	busy := strings.Replace(idleClusters, `"rq_active"`, `"rq_active","value":"2"`, 1)
	for _, c := range []struct {
		name, config, stats, clusters string
		count                         handshake.Count
		note, detail                  string
	}{
		{"all of them, idle", dataListener, `{"stats":[]}`, idleClusters, known(0), "downstream_rq_active of in is hidden (a stats matcher does that)" + misses, ""},
		{"all of them, busy", dataListener, `{"stats":[]}`, busy, known(2), "downstream_rq_active of in is hidden (a stats matcher does that)" + misses, "clusters 2"},
		{"only the data listener's", two, gaugesOf("probe", 0), busy, known(2), "downstream_rq_active of in is hidden (a stats matcher does that)" + misses, "clusters 2"},
		{"the larger number stands", two, gaugesOf("probe", 3), busy, known(3), "downstream_rq_active of in is hidden (a stats matcher does that)" + misses, "probe 3"},
		{"no configuration to compare with", "<html>", oneManager, idleClusters, known(0), "a hidden gauge would go unnoticed (give --envoy-include), because the listeners cannot be listed: GET /config_dump?resource=static_listeners: invalid character '<' looking for beginning of value" + misses, ""},
		{"nothing that counts at all", `{}`, gaugesOf("stats", 0), idleClusters, known(0), "no gauge that counts is shown" + misses, ""},
		{"and clusters say nothing either", dataListener, `{"stats":[]}`, `{}`, handshake.Count{}, "downstream_rq_active of in is hidden (a stats matcher does that), and GET /clusters?format=json: no cluster that counts has a host", ""},
		{"and clusters do not parse", dataListener, `{"stats":[]}`, `be::rq_active::0`, handshake.Count{}, "downstream_rq_active of in is hidden (a stats matcher does that), and GET /clusters?format=json: invalid character 'b' looking for beginning of value", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t, Options{})
			f.say("/config_dump", c.config)
			f.say("/stats", c.stats)
			f.say("/clusters", c.clusters)
			for range 2 {
				r := f.read()
				if r.Count != c.count || r.Note != c.note || r.Detail != c.detail {
					t.Errorf("%+v\nwant %v, note %s, detail %s", r, c.count, c.note, c.detail)
				}
				if c.detail != "probe 3" && r.Upgrades.Known {
					t.Errorf("upgrades %v of what clusters count", r.Upgrades)
				}
			}
		})
	}
}

// A configuration that takes Envoy too long is not asked for with every reading.
func TestEnvoyConfigurationTooSlow(t *testing.T) {
	f := newFake(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f.do("/config_dump", func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	if r := f.e.Read(ctx); r.Count.Known {
		t.Errorf("while it is waited for: %+v", r)
	}
	if r := f.read(); !r.Count.Zero() || !strings.Contains(r.Note, "context canceled") || !strings.Contains(r.Note, "counted by /clusters") {
		t.Errorf("afterwards: %+v", r)
	}
	if n := strings.Count(strings.Join(f.asked, " "), "/config_dump"); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestEnvoyLeftOutIsSaid(t *testing.T) {
	f := newFake(t, Options{IgnoreUpgrades: true})
	f.say("/config_dump", strings.Replace(dataListener, `"filters":[`, `"filters":[{"name":"t","typed_config":{"@type":"x.v3.TcpProxy","stat_prefix":"x"}},`, 1))
	f.say("/stats", strings.Replace(gaugesOf("in", 2), `cx_upgrades_active","value":0`, `cx_upgrades_active","value":2`, 1))
	want := Reading{
		Count: known(0), Upgrades: known(2),
		Note: "upgrades are left out; connections of the tcp listeners 127.0.0.1_10080 are left out (--envoy-tcp-listener)",
	}
	if r := f.read(); r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
}

// Another process on the same admin: seen by its uptime, or by having refused.
// What the old one showed is forgotten, so that a new gauge name is no fault.
func TestEnvoyRestart(t *testing.T) {
	f := newFake(t, Options{})
	if r := f.read(); r.Restarted {
		t.Errorf("the first one: %+v", r)
	}
	f.say("/server_info", serverInfo("LIVE", 0))
	f.say("/stats", gaugesOf("other", 0))
	f.say("/config_dump", strings.Replace(dataListener, `"in"`, `"other"`, 1))
	f.e.asked = time.Now().Add(-identifyEvery)
	if r := f.read(); !r.Restarted || !r.Count.Zero() {
		t.Errorf("another one: %+v", r)
	}
	if r := f.read(); r.Restarted || !r.Count.Zero() {
		t.Errorf("the same again: %+v", r)
	}
	// The connection broke: who answers is asked at once, not within a second.
	f.say("/server_info", serverInfo("LIVE", 50))
	f.srv.CloseClientConnections()
	if r := f.read(); !r.Restarted || !r.Count.Zero() {
		t.Errorf("on a new connection: %+v", r)
	}
	// Restarted is not lost when the new one gives no count.
	f.say("/server_info", serverInfo("INITIALIZING", 0))
	f.srv.CloseClientConnections()
	if r := f.read(); !r.Restarted || r.Count.Known {
		t.Errorf("starting: %+v", r)
	}
}

// One request at a time, and whoever waits too long for his turn is told so.
func TestEnvoyOneAtATime(t *testing.T) {
	f := newFake(t, Options{})
	f.read()
	in, out := make(chan struct{}), make(chan struct{})
	f.do("/stats", func(w http.ResponseWriter, _ *http.Request) {
		in <- struct{}{}
		<-out
		w.Write([]byte(oneManager))
	})
	first := make(chan Reading)
	go func() { first <- f.read() }()
	<-in
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if r := f.e.Read(ctx); r.Note != "still waiting for the reading before: context canceled" {
		t.Errorf("second reading: %+v", r)
	}
	if err := f.e.Ready(ctx); err == nil || err.Error() != "GET /ready: still waiting for the request before: context canceled" {
		t.Errorf("probe: %v", err)
	}
	out <- struct{}{}
	if r := <-first; !r.Count.Zero() {
		t.Errorf("first reading: %+v", r)
	}
}
