package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// envoyBinary is Envoy 1.40, which `make deps` installs.
func envoyBinary(t testing.TB) string {
	t.Helper()
	if bin := os.Getenv("ENVOY_BIN"); bin != "" {
		return bin
	}
	if found, _ := filepath.Glob("../.venv/lib/python3*/site-packages/envoy/_bin/envoy"); len(found) > 0 {
		return found[0]
	}
	bin, err := exec.LookPath("envoy")
	if err != nil {
		t.Fatal("no Envoy: run make deps, or set ENVOY_BIN")
	}
	return bin
}

const envoyConfig = `
admin: {address: {pipe: {path: %[2]s/admin.sock, mode: 0600}}}
static_resources:
  listeners:
  - name: data
    address: {socket_address: {address: %[1]s, port_value: 10080}}
    filter_chains: [{filters: [{name: h, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: ingress_http,
      route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: backend, timeout: 0s}}]}]},
      http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]
  clusters:
  - name: backend
    type: STATIC
    connect_timeout: 1s
    load_assignment: {cluster_name: backend, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[3]s}}}}]}]}
`

// lane is an Envoy in front of a backend that answers when it is let.
type lane struct {
	*proc
	host, admin string
	arrived     chan struct{}
	release     chan struct{}
}

func startEnvoy(t *testing.T, h string, args ...string) *lane {
	t.Helper()
	l := &lane{host: h, arrived: make(chan struct{}, 8), release: make(chan struct{})}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.arrived <- struct{}{}
		select {
		case <-l.release:
		case <-r.Context().Done():
		}
		fmt.Fprint(w, "whole")
	}))
	t.Cleanup(backend.CloseClientConnections)
	t.Cleanup(backend.Close)
	dir := t.TempDir()
	l.admin = "unix:" + dir + "/admin.sock"
	file := filepath.Join(dir, "envoy.yaml")
	_, port, _ := strings.Cut(strings.TrimPrefix(backend.URL, "http://"), ":")
	if err := os.WriteFile(file, fmt.Appendf(nil, envoyConfig, h, dir, port), 0o600); err != nil {
		t.Fatal(err)
	}
	l.proc = launch(t, nil, append([]string{
		envoyBinary(t), "-c", file, "--concurrency", "1", "--disable-hot-restart", "-l", "error",
		"--drain-strategy", "immediate",
	}, args...)...)
	return l
}

// request is in flight until release is closed.
func (l *lane) request() <-chan answer {
	got := make(chan answer, 1)
	go func() {
		a, _ := try(plain, "GET", "http://"+l.host+":10080/", "")
		got <- a
	}()
	<-l.arrived
	return got
}

// A real Envoy: health is 503 until it is ready, its request holds the drain,
// it is told once the balancer has held, and the request arrives whole.
func TestRealEnvoy(t *testing.T) {
	t.Parallel()
	h := host()
	l := startEnvoy(t, h, "--drain-time-s", "600")
	p := serveOn(t, h, nil, "--source", "envoy="+l.admin, "--data-port", h+":10080")
	eventually(t, "health", func() bool { return p.get("/health_check.html").code == 200 })
	got := l.request()
	p.balancer("lb1").admit()
	hook := p.hook()
	if e := p.await("envoy_drain_listeners"); e["called"] != true || e["harm"] != nil {
		t.Errorf("%v", e)
	}
	eventually(t, "in flight", func() bool { return p.status().Progress.InFlight["envoy"].N == 1 })
	if s := p.status(); s.State != "DRAINING" || s.Progress.Envoy != "drained" {
		t.Errorf("%+v", s)
	}
	close(l.release)
	if a := <-got; a.code != 200 || a.body != "whole" {
		t.Errorf("the request: %+v", a)
	}
	if code := hook.exit(); code != 0 {
		t.Errorf("hook: %d", code)
	}
}

// Envoy dies in the drain: unknown at first, gone once it has refused for three
// seconds with no connection left; a stopped one is unknown to the deadline.
func TestRealEnvoyDies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		signal syscall.Signal
		code   int
		envoy  string
	}{{syscall.SIGKILL, 0, "gone"}, {syscall.SIGSTOP, 3, "unknown"}} {
		t.Run(c.signal.String(), func(t *testing.T) {
			t.Parallel()
			h := host()
			l := startEnvoy(t, h)
			p := serveOn(t, h, nil, "--source", "envoy="+l.admin, "--data-port", h+":10080", "--envoy-drain", "never", "--drain-timeout", "8")
			eventually(t, "health", func() bool { return p.get("/health_check.html").code == 200 })
			p.balancer("lb1").admit()
			l.signal(c.signal)
			if code := p.hook().exit(); code != c.code {
				t.Errorf("hook: %d, want %d", code, c.code)
			}
			if s := p.status(); s.Progress.Envoy != c.envoy {
				t.Errorf("envoy is %q, want %q", s.Progress.Envoy, c.envoy)
			}
		})
	}
}

// From 1.40 on the call cuts websockets where --drain-time-s is short: it is made
// with a warning.
func TestRealEnvoyShortDrainTime(t *testing.T) {
	t.Parallel()
	h := host()
	l := startEnvoy(t, h, "--drain-time-s", "45")
	p := serveOn(t, h, nil, "--source", "envoy="+l.admin, "--envoy-drain", "start")
	eventually(t, "health", func() bool { return p.get("/health_check.html").code == 200 })
	l.request()
	p.post("/drain?finish")
	if e := p.await("envoy_drain_listeners"); e["called"] != true || !strings.Contains(fmt.Sprint(e["harm"]), "cuts websockets from 31.05s after the call on") {
		t.Errorf("%v", e)
	}
}
