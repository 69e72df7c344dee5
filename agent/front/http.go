package front

import (
	"container/list"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"lbdrain/agent/drain"
)

// Config is what the listeners need.
type Config struct {
	Pod          *drain.Pod
	FirstByte    time.Duration // silence after which a peer is a poll; > 0, under the agent-inter
	WaitStart    time.Duration // how long /drain/wait waits for a drain to begin
	LBToken      string        // "" : acknowledgements go by address
	ControlToken string        // "" : none
	Log          zerolog.Logger
}

// Front serves the listeners.
type Front struct {
	cfg     Config
	hanging atomic.Int64 // answers that the end of the drain brings

	late  sync.Map // netip.Addr: a health check from there came after FirstByte
	lates atomic.Int64
}

// New is a front.
func New(c Config) *Front { return &Front{cfg: c} }

// Pod is what it speaks for.
func (f *Front) Pod() *drain.Pod { return f.cfg.Pod }

// Serve answers on ln until it is closed.
func (f *Front) Serve(ln net.Listener, control bool) error {
	p := &port{
		Listener: ln, front: f, control: control, conns: list.New(),
		http: make(chan *conn), done: make(chan struct{}),
	}
	s := &http.Server{
		Handler:           f.handler(control),
		ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(io.Discard, "", 0), DisableGeneralOptionsHandler: true, // OPTIONS * is a 404 like any other path
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c.(*conn))
		},
	}
	go p.run()
	if err := s.Serve(p); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Flush gives answers that were held to the end up to limit to go out.
func (f *Front) Flush(limit time.Duration) {
	for end := time.Now().Add(limit); f.hanging.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

type connKey struct{}

func connOf(r *http.Request) *conn { return r.Context().Value(connKey{}).(*conn) }

// route is one path; the keys of methods are what it allows.
type route struct {
	path    string
	control bool // only there
	methods map[string]http.HandlerFunc
}

// routes is the whole interface; openapi.yaml is checked against it.
func (f *Front) routes(control bool) []route {
	get := func(h http.HandlerFunc) map[string]http.HandlerFunc {
		return map[string]http.HandlerFunc{http.MethodGet: h, http.MethodHead: h}
	}
	post := func(c drain.Command) map[string]http.HandlerFunc {
		return map[string]http.HandlerFunc{http.MethodPost: f.command(c)}
	}
	all := []route{
		{"/health_check.html", false, get(f.healthCheck(control))},
		{"/health", false, get(f.readiness)},
		{"/live", false, get(f.liveness)},
		{"/drain/status", false, get(f.status)},
		{"/drain/wait", false, get(f.wait)},
		{"/metrics", false, get(f.metrics)},
		{"/openapi.yaml", false, get(f.openapi)},
		{"/drain/lbs/{lb}", false, map[string]http.HandlerFunc{http.MethodPut: f.ack, http.MethodDelete: f.leave}},
		{"/drain", true, post(drain.Drain)},
		{"/close-lb", true, post(drain.CloseLB)},
		{"/close", true, post(drain.Close)},
		{"/reopen", true, post(drain.Reopen)},
		{"/fault", true, post(drain.Break)},
	}
	if !control {
		all = slices.DeleteFunc(all, func(r route) bool { return r.control })
	}
	return all
}

const lbsPrefix = "/drain/lbs/"

func (f *Front) handler(control bool) http.Handler {
	routes := map[string]route{}
	for _, r := range f.routes(control) {
		routes[r.path] = r
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := connOf(r)
		c.busy.Store(true)
		defer c.busy.Store(false)
		path := r.URL.Path
		if name, ok := strings.CutPrefix(path, lbsPrefix); ok {
			path = lbsPrefix + "{lb}"
			r.SetPathValue("lb", name)
		}
		found, ok := routes[path]
		if !ok {
			f.fail(w, http.StatusNotFound, "no such path")
			return
		}
		h, ok := found.methods[r.Method]
		if !ok {
			w.Header().Set("Allow", allow(found))
			f.fail(w, http.StatusMethodNotAllowed, r.Method+" is not allowed here")
			return
		}
		if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
			f.fail(w, http.StatusBadRequest, "query: "+err.Error())
			return
		}
		h(w, r)
	})
}

func allow(r route) string {
	var ms []string
	for m := range r.methods {
		ms = append(ms, m)
	}
	slices.Sort(ms)
	return strings.Join(ms, ", ")
}

// problem is every error's body.
type problem struct {
	Error string `json:"error"`
	State string `json:"state"`
}

func (f *Front) fail(w http.ResponseWriter, code int, why string) {
	f.json(w, code, problem{why, f.cfg.Pod.View().State.String()})
}

// rawProblem is a whole answer, for what never reached a handler.
func (f *Front) rawProblem(code int, why string) []byte {
	b, err := json.Marshal(problem{why, f.cfg.Pod.View().State.String()})
	if err != nil {
		b = []byte(`{}`)
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n",
		code, http.StatusText(code), len(b)+1, b)
}

func (f *Front) json(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		f.cfg.Log.Error().Str("event", "answer").Err(err).Send()
		code, b = http.StatusInternalServerError, []byte(`{"error":"the answer could not be written"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n'))
}

// bearer says whether the request shows the token, in constant time.
func bearer(r *http.Request, token string) bool {
	got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(got), []byte(token)) == 1
}

func (f *Front) unauthorized(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	f.fail(w, http.StatusUnauthorized, "a bearer token is required")
}
