package inflight

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// envoyBinary is Envoy 1.40, which `make deps` installs.
func envoyBinary(t testing.TB) string {
	t.Helper()
	if bin := os.Getenv("ENVOY_BIN"); bin != "" {
		return bin
	}
	found, _ := filepath.Glob("../../.venv/lib/python3*/site-packages/envoy/_bin/envoy")
	if len(found) > 0 {
		return found[0]
	}
	bin, err := exec.LookPath("envoy")
	if err != nil {
		t.Fatal("no Envoy: run make deps, or set ENVOY_BIN")
	}
	return bin
}

// realEnvoy is a real Envoy with a backend behind it, on an address of its own:
// http on 10080, tcp on 10081, a probe listener on 10082, admin on a unix socket.
type realEnvoy struct {
	t       testing.TB
	addr    string
	dir     string
	backend *backend
	cmd     *exec.Cmd
}

const envoyConfig = `
admin: {address: {pipe: {path: %[2]s/admin.sock, mode: 0600}}}
%[3]s
static_resources:
  listeners:
  - name: data
    address: {socket_address: {address: %[1]s, port_value: 10080}}
    per_connection_buffer_limit_bytes: 67108864
    filter_chains: [{filters: [{name: h, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: ingress_http, upgrade_configs: [{upgrade_type: websocket}],
      route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: backend, timeout: 0s}}]}]},
      http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]
  - name: passthrough
    address: {socket_address: {address: %[1]s, port_value: 10081}}
    filter_chains: [{filters: [{name: t, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: grpc, cluster: backend}}]}]
  - name: probes
    address: {socket_address: {address: %[1]s, port_value: 10082}}
    filter_chains: [{filters: [{name: h, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: probe,
      route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]},
      http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]
  clusters:
  - name: backend
    type: STATIC
    connect_timeout: 60s
    per_connection_buffer_limit_bytes: 67108864
    load_assignment: {cluster_name: backend, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %[1]s, port_value: %[4]d}}}}]}]}
`

// startEnvoy starts an Envoy whose statistics are not matched away, or by stats.
func startEnvoy(t testing.TB, stats string) *realEnvoy {
	t.Helper()
	r := &realEnvoy{t: t, addr: loopback(t), dir: t.TempDir()}
	r.backend = newBackend(t, r.addr)
	r.configure(stats, r.backend.port)
	r.start()
	return r
}

func (r *realEnvoy) configure(stats string, backend int) {
	r.t.Helper()
	config := fmt.Sprintf(envoyConfig, r.addr, r.dir, stats, backend)
	if err := os.WriteFile(filepath.Join(r.dir, "envoy.yaml"), []byte(config), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *realEnvoy) start() {
	r.t.Helper()
	log, err := os.Create(filepath.Join(r.dir, "envoy.log"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(envoyBinary(r.t), "-c", filepath.Join(r.dir, "envoy.yaml"), "--concurrency", "1",
		"--disable-hot-restart", "-l", "warn", "--drain-strategy", "immediate", "--drain-time-s", "600")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.cmd = cmd
	r.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if r.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			r.t.Logf("envoy.log:\n%s", text)
		}
	})
	e := r.source(Options{})
	await(r.t, "Envoy to be LIVE", func() bool { return e.Ready(context.Background()) == nil })
}

// source is a fresh one: it has seen nothing yet.
func (r *realEnvoy) source(o Options) *Envoy {
	r.t.Helper()
	s, err := Parse("envoy=unix:"+r.dir+"/admin.sock", o)
	if err != nil {
		r.t.Fatal(err)
	}
	return s.(*Envoy)
}

func (r *realEnvoy) url(path string) string { return "http://" + r.addr + ":10080" + path }

// backend holds requests until they are released.
type backend struct {
	port    int
	arrived chan string
	release chan struct{}
}

const bigBody = 24 << 20

func newBackend(t testing.TB, addr string) *backend {
	t.Helper()
	b := &backend{arrived: make(chan string, 64), release: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("/hold", func(w http.ResponseWriter, r *http.Request) {
		b.arrived <- r.Proto
		select {
		case <-b.release:
		case <-r.Context().Done():
		}
		io.WriteString(w, "done\n")
	})
	mux.HandleFunc("/big", func(w http.ResponseWriter, r *http.Request) { w.Write(make([]byte, bigBody)) })
	mux.HandleFunc("/socket", func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		b.arrived <- "websocket"
		io.Copy(c, rw)
	})
	l := listenOn(t, "tcp4", addr+":0")
	b.port = l.Addr().(*net.TCPAddr).Port
	srv := &http.Server{Handler: mux}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return b
}

// get starts a request and gives its answer when there is one.
func get(t testing.TB, url string, protocols *http.Protocols) chan *http.Response {
	t.Helper()
	tr := &http.Transport{Protocols: protocols}
	t.Cleanup(tr.CloseIdleConnections)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan *http.Response, 1)
	go func() {
		defer close(out)
		if resp, err := tr.RoundTrip(req); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			out <- resp
		}
	}()
	return out
}
