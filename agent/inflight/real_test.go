package inflight

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRealEnvoyRequests(t *testing.T) {
	t.Parallel()
	r := startEnvoy(t, "")
	e := r.source(Options{})
	const left = "connections of the tcp listeners " // said, because they do not count here
	idle := e.Read(context.Background())
	if !idle.Count.Zero() || !idle.Upgrades.Zero() || idle.Note != left+r.addr+"_10081 are left out (--envoy-tcp-listener)" {
		t.Errorf("idle: %+v", idle)
	}
	info, err := e.Info(context.Background())
	if err != nil || info.State != "LIVE" || info.DrainTime != 600*time.Second || !strings.HasPrefix(info.Version, "1.") {
		t.Errorf("%+v, %v", info, err)
	}
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	h1, two := get(t, r.url("/hold"), nil), get(t, r.url("/hold"), &h2)
	<-r.backend.arrived
	<-r.backend.arrived
	if got := e.Read(context.Background()); got.Count != known(2) || got.Detail != "ingress_http 2" {
		t.Errorf("h1 and h2: %+v", got)
	}
	close(r.backend.release)
	if a, b := <-h1, <-two; a == nil || b == nil || a.StatusCode != 200 || b.ProtoMajor != 2 {
		t.Errorf("answers %+v, %+v", a, b)
	}
	await(t, "zero", func() bool { return e.Read(context.Background()).Count.Zero() })
}

// An idle keep-alive is not in flight; a request whose head is half sent is.
func TestRealEnvoyHalfARequest(t *testing.T) {
	t.Parallel()
	r := startEnvoy(t, "")
	e := r.source(Options{TCPListeners: []string{"passthrough"}})
	c, err := net.Dial("tcp", r.addr+":10080")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /none HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != 404 {
		t.Fatal(resp, err)
	}
	await(t, "zero beside an idle connection", func() bool { return e.Read(context.Background()).Count.Zero() })
	fmt.Fprintf(c, "GET / HT")
	await(t, "half a request to count", func() bool { return e.Read(context.Background()).Count == known(1) })

	// A tcp listener by its configured name.
	raw, err := net.Dial("tcp", r.addr+":10081")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	await(t, "a tcp connection to count", func() bool {
		got := e.Read(context.Background())
		return got.Count == known(2) && got.Detail == "ingress_http 1, listener "+r.addr+"_10081 1" && got.Note == ""
	})
}

func TestRealEnvoyWebsocket(t *testing.T) {
	t.Parallel()
	r := startEnvoy(t, "")
	wait, ignore := r.source(Options{}), r.source(Options{IgnoreUpgrades: true})
	c, err := net.Dial("tcp", r.addr+":10080")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	in := bufio.NewReader(c)
	if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != 101 {
		t.Fatal(resp, err)
	}
	if got := wait.Read(context.Background()); got.Count != known(1) || got.Upgrades != known(1) {
		t.Errorf("waiting for it: %+v", got)
	}
	got := ignore.Read(context.Background())
	if !got.Count.Zero() || got.Upgrades != known(1) || !strings.HasPrefix(got.Note, "upgrades are left out") {
		t.Errorf("leaving it out: %+v", got)
	}
	get(t, r.url("/hold"), nil)
	await(t, "the request beside it to count", func() bool {
		got := ignore.Read(context.Background())
		return got.Count == known(1) && got.Upgrades == known(1)
	})
}

// Envoy has the whole response, the client has not: rq_active is 0, and this is
// what marking a server down would cut.
func TestRealEnvoySlowClient(t *testing.T) {
	t.Parallel()
	r := startEnvoy(t, "")
	e := r.source(Options{})
	tx := read(t, "sockets-tx="+r.addr+":10080")
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 8<<10) })
		return err
	}}
	c, err := d.Dial("tcp", r.addr+":10080")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
	await(t, "rq_active 0 with bytes to send", func() bool {
		body, err := e.door.call(context.Background(), "GET", statsPath)
		if err != nil {
			t.Fatal(err)
		}
		g, err := parseGauges(body)
		rq, sent := g["http.ingress_http.downstream_rq_active"], g["http.ingress_http.downstream_cx_tx_bytes_buffered"]
		return err == nil && rq.Zero() && sent.N > 0
	})
	if got := e.Read(context.Background()); got.Count != known(1) || got.Detail != "ingress_http 1" {
		t.Errorf("%+v", got)
	}
	if got := tx(); got.Count != known(1) {
		t.Errorf("sockets-tx: %+v", got)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, resp.Body); n != bigBody || err != nil {
		t.Fatal(n, err)
	}
	await(t, "zero in both", func() bool { return e.Read(context.Background()).Count.Zero() && tx().Count.Zero() })
}

// What a stats matcher hides is counted by /clusters: all gauges (Istio's
// default), or only the data listener's while a probe listener shows 0.
func TestRealEnvoyStatsMatcher(t *testing.T) {
	t.Parallel()
	for name, matcher := range map[string]string{
		"everything hidden":        `stats_config: {stats_matcher: {reject_all: true}}`,
		"data listener hidden":     `stats_config: {stats_matcher: {exclusion_list: {patterns: [{prefix: http.ingress_http.}]}}}`,
		"only connections allowed": `stats_config: {stats_matcher: {inclusion_list: {patterns: [{suffix: downstream_cx_active}]}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startEnvoy(t, matcher)
			e := r.source(Options{})
			got := e.Read(context.Background())
			if !got.Count.Zero() || !strings.Contains(got.Note, "ingress_http") || !strings.Contains(got.Note, "counted by /clusters") {
				t.Errorf("idle: %+v", got)
			}
			get(t, r.url("/hold"), nil)
			<-r.backend.arrived
			if got := e.Read(context.Background()); got.Count != known(1) || got.Detail != "clusters 1" || got.Upgrades.Known {
				t.Errorf("busy: %+v", got)
			}
			strict := r.source(Options{Include: []string{"ingress_http"}})
			if got := strict.Read(context.Background()); got.Count.Known || got.Note != "http.ingress_http.downstream_rq_active is not shown" {
				t.Errorf("included and hidden: %+v", got)
			}
		})
	}
}

// A request that waits for a connection to the backend runs nowhere yet.
func TestRealEnvoyPendingInFallback(t *testing.T) {
	t.Parallel()
	r := &realEnvoy{t: t, addr: loopback(t), dir: t.TempDir()}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	sa := &syscall.SockaddrInet4{}
	copy(sa.Addr[:], net.ParseIP(r.addr).To4())
	if err := errors.Join(syscall.Bind(fd, sa), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := bound.(*syscall.SockaddrInet4).Port
	full, err := net.Dial("tcp", net.JoinHostPort(r.addr, strconv.Itoa(port))) // the backlog's one place
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	r.configure(`stats_config: {stats_matcher: {reject_all: true}}`, port)
	r.start()
	e := r.source(Options{})
	get(t, r.url("/hold"), nil)
	await(t, "the waiting request to count", func() bool { return e.Read(context.Background()).Count == known(1) })
}

func TestRealEnvoyStoppedKilledStarted(t *testing.T) {
	t.Parallel()
	r := startEnvoy(t, "")
	e := r.source(Options{})
	if got := e.Read(context.Background()); !got.Count.Zero() || got.Restarted {
		t.Errorf("idle: %+v", got)
	}
	// A stopped process takes the connection and says nothing.
	r.cmd.Process.Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if got := e.Read(ctx); got.Count.Known || got.Refused || !strings.Contains(got.Note, "no answer within") {
		t.Errorf("stopped: %+v", got)
	}
	r.cmd.Process.Signal(syscall.SIGCONT)
	await(t, "the same Envoy again", func() bool {
		got := e.Read(context.Background())
		return got.Count.Zero() && !got.Restarted
	})
	// A dead one refuses, and its socket file stays behind.
	r.cmd.Process.Kill()
	r.cmd.Wait()
	if got := e.Read(context.Background()); got.Count.Known || !got.Refused || !strings.Contains(got.Note, "connection refused") {
		t.Errorf("killed: %+v", got)
	}
	r.start()
	if got := e.Read(context.Background()); !got.Restarted || !got.Count.Zero() {
		t.Errorf("started again: %+v", got)
	}
	if got := e.Read(context.Background()); got.Restarted || !got.Count.Zero() {
		t.Errorf("and the same: %+v", got)
	}
}

// The exact call: the next response says close, and new connections are still
// accepted.
func TestRealEnvoyDrainListeners(t *testing.T) {
	t.Parallel()
	r := startEnvoy(t, "")
	e := r.source(Options{})
	if resp := <-get(t, r.url("/none"), nil); resp == nil || resp.Close {
		t.Errorf("before: %+v", resp)
	}
	held := get(t, r.url("/hold"), nil)
	<-r.backend.arrived
	if err := e.DrainListeners(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := e.Read(context.Background()); got.Count != known(1) {
		t.Errorf("drained with one in flight: %+v", got)
	}
	close(r.backend.release)
	if resp := <-held; resp == nil || resp.StatusCode != 200 || !resp.Close {
		t.Errorf("the one that was running: %+v", resp)
	}
	if resp := <-get(t, r.url("/none"), nil); resp == nil || resp.StatusCode != 404 || !resp.Close {
		t.Errorf("a new connection: %+v", resp)
	}
	if err := e.Ready(context.Background()); err != nil {
		t.Errorf("a drained Envoy is still ready: %v", err)
	}
	await(t, "zero", func() bool { return e.Read(context.Background()).Count.Zero() })
}

func BenchmarkRealEnvoyRead(b *testing.B) {
	e := startEnvoy(b, "").source(Options{})
	e.Read(context.Background())
	for b.Loop() {
		if r := e.Read(context.Background()); !r.Count.Known {
			b.Fatal(r.Note)
		}
	}
}
