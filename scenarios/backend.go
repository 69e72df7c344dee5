package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	ucli "github.com/urfave/cli/v2"
	"lbdrain/internal/cli"
	"lbdrain/scenarios/ledger"
	"lbdrain/scenarios/load"
)

// backendGrace is how long a running request may take after SIGTERM.
const backendGrace = 300 * time.Second

// maxSeconds and maxBytes bound what one request may ask for.
const (
	maxSeconds = 600
	maxBytes   = 1 << 30
)

func backendCommand(stdout io.Writer) *ucli.Command {
	tick := 500 * time.Millisecond
	return &ucli.Command{
		Name:  "backend",
		Usage: "the application of a pod: /sleep?seconds=N, /stream?seconds=N, /body?bytes=N",
		Description: "Writes one JSON line when a request begins and one when it ends; status 499 is a\n" +
			"handler whose client went away. On SIGTERM new connections stop and running requests\n" +
			"have 300 s. --gauge serves its own number of running requests: /inflight as a number,\n" +
			"/stats in Envoy's words.",
		HideHelpCommand: true,
		Flags: []ucli.Flag{
			&ucli.StringSliceFlag{Name: "listen", Usage: "`ADDR` to serve on, repeatable", Required: true},
			&ucli.StringFlag{Name: "gauge", Usage: "`ADDR` of the in-flight gauge"},
			&ucli.StringFlag{Name: "hostname", Usage: "the pod's `NAME` in the log"},
			cli.DurationFlag(&tick, "tick", "time between the chunks of /stream"),
		},
		Action: func(c *ucli.Context) error {
			name := c.String("hostname")
			if name == "" {
				name, _ = os.Hostname() // only a label of the log
			}
			b := &backend{hostname: name, tick: max(tick, time.Millisecond), out: json.NewEncoder(stdout)}
			return b.serve(c.Context, c.StringSlice("listen"), c.String("gauge"))
		},
	}
}

// backend is the application. Its log is the truth of a run.
type backend struct {
	hostname string
	tick     time.Duration
	inflight atomic.Int64

	mu  sync.Mutex
	out *json.Encoder
}

type logLine struct {
	Event    string    `json:"event"`
	TS       time.Time `json:"ts"`
	ID       string    `json:"id,omitempty"`
	Method   string    `json:"method,omitempty"`
	Path     string    `json:"path,omitempty"`
	Remote   string    `json:"remote,omitempty"`
	Hostname string    `json:"hostname"`
	Status   int       `json:"status,omitempty"`
	Millis   int64     `json:"duration_ms"`
}

func (b *backend) log(l logLine) {
	l.TS, l.Hostname = time.Now().UTC(), b.hostname
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.out.Encode(l) // stdout closed: the lab is gone, and nobody reads
}

func (b *backend) serve(ctx context.Context, addrs []string, gauge string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	app := &http.Server{Handler: b.counted(b.routes()), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, len(addrs)+1)
	for _, a := range addrs {
		ln, err := net.Listen("tcp", a)
		if err != nil {
			return fmt.Errorf("backend: %w", err)
		}
		go func() { failed <- app.Serve(ln) }()
	}
	if gauge != "" {
		ln, err := net.Listen("tcp", gauge)
		if err != nil {
			return fmt.Errorf("backend gauge: %w", err)
		}
		admin := &http.Server{Handler: b.gauge(), ReadHeaderTimeout: 10 * time.Second}
		defer admin.Close() // after the requests: it is asked while they drain
		go func() { failed <- admin.Serve(ln) }()
	}
	b.log(logLine{Event: "serving"})
	select {
	case <-ctx.Done():
	case err := <-failed:
		return fmt.Errorf("backend: %w", err)
	}
	b.log(logLine{Event: "sigterm"})
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), backendGrace)
	defer cancel()
	if err := app.Shutdown(grace); err != nil {
		return fmt.Errorf("backend: end running requests: %w", err)
	}
	return nil
}

func (b *backend) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/sleep", b.sleep)
	mux.HandleFunc("/stream", b.stream)
	mux.HandleFunc("/body", b.body)
	return mux
}

// counted logs and counts every request. The answer is flushed before the request
// leaves the count: zero has to mean that it is on its way.
func (b *backend) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		l := logLine{Event: "begin", ID: r.URL.Query().Get("id"), Method: r.Method, Path: r.URL.Path, Remote: r.RemoteAddr}
		b.inflight.Add(1)
		defer b.inflight.Add(-1)
		b.log(l)
		// The whole body first: net/http notices that a client went away only once it
		// waits for the next request on the connection.
		_, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBytes))
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		if err == nil {
			next.ServeHTTP(rec, r)
			// Asked before the flush: who leaves once the whole answer is on its
			// way was not cut off. Whether it arrived, the client knows.
			err = errors.Join(r.Context().Err(), http.NewResponseController(rec).Flush())
		}
		l.Event, l.Status, l.Millis = "request", rec.status, time.Since(begin).Milliseconds()
		if err != nil || rec.failed != nil {
			l.Status = ledger.StatusCancelled
		}
		b.log(l)
	})
}

// recorder remembers the status and whether a write failed. Unwrap keeps
// http.ResponseController's Flush working.
type recorder struct {
	http.ResponseWriter
	status int
	failed error
}

func (r *recorder) Write(p []byte) (int, error) {
	n, err := r.ResponseWriter.Write(p)
	if err != nil {
		r.failed = err
	}
	return n, err
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// number reads a query parameter in [0, limit].
func number(r *http.Request, name string, otherwise, limit float64) (float64, error) {
	s := r.URL.Query().Get(name)
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n >= 0 && n <= limit) {
		return 0, fmt.Errorf("%s=%.32q: want a number in 0..%.0f", name, s, limit)
	}
	return n, nil
}

func (b *backend) sleep(w http.ResponseWriter, r *http.Request) {
	n, err := number(r, "seconds", 1, maxSeconds)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	t := time.NewTimer(time.Duration(n * float64(time.Second)))
	defer t.Stop()
	select {
	case <-r.Context().Done():
		return
	case <-t.C:
	}
	answer := fmt.Sprintf("slept %gs\n", n)
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	_, _ = io.WriteString(w, answer) // a client that left is seen in the request's context
}

func (b *backend) stream(w http.ResponseWriter, r *http.Request) {
	n, err := number(r, "seconds", 1, maxSeconds)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	flush := http.NewResponseController(w).Flush
	end := time.Now().Add(time.Duration(n * float64(time.Second)))
	for i := 0; ; i++ {
		left := time.Until(end)
		if left <= 0 {
			break
		}
		if _, err := fmt.Fprintf(w, "chunk %d\n", i); err != nil || flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(min(b.tick, left)):
		}
	}
	_, _ = io.WriteString(w, load.EndMarker(r.URL.Query().Get("id"))) // as in sleep
}

func (b *backend) body(w http.ResponseWriter, r *http.Request) {
	n, err := number(r, "bytes", 0, maxBytes)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(int64(n), 10))
	_, _ = io.CopyN(w, zeros{}, int64(n)) // the recorder knows; net/http never ends a short body as whole
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// gauge serves the number of running requests, for agents without an Envoy to ask:
// as a number, and as Envoy's /stats and /drain_listeners for the old shell hook.
func (b *backend) gauge() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /inflight", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%d\n", b.inflight.Load())
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "http.backend.downstream_rq_active: %d\n", b.inflight.Load())
	})
	mux.HandleFunc("POST /drain_listeners", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "OK")
	})
	return mux
}
