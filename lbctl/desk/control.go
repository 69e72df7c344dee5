package desk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/keeper"
)

// maxRequest bounds what the control socket takes, in bytes.
const maxRequest = 8 << 20

// LB is one HAProxy of a daemon.
type LB struct {
	Name    string            `json:"lb"`
	Socket  string            `json:"socket"`
	Observe bool              `json:"observe"`
	Pods    map[string]string `json:"pods"` // agent by backend/server, of those that have one
}

// Counter is what the daemon gives to its handler.
type Counter interface {
	LBs() []LB
	Keeper(name string) *keeper.Keeper // nil if there is none of that name
}

// wish is a request's body.
type wish struct {
	LB      string       `json:"lb"`
	Servers []keeper.Key `json:"servers"`
	Op      hold.OpHold  `json:"op"`
}

// answer is every answer's body.
type answer struct {
	Changed []keeper.Key `json:"changed,omitempty"`
	Reports []Report     `json:"reports,omitempty"`
	LBs     []LB         `json:"lbs,omitempty"`
	Error   string       `json:"error,omitempty"`
	Held    bool         `json:"held,omitempty"` // the error is a *HeldError
}

// Handler is the daemon's side of the control socket.
func Handler(c Counter) http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /v1/lbs", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, answer{LBs: c.LBs()}, nil)
	})
	m.HandleFunc("POST /v1/hold", func(w http.ResponseWriter, r *http.Request) {
		k, q, err := read(c, w, r)
		if err != nil {
			reply(w, answer{}, err)
			return
		}
		changed, err := k.Hold(r.Context(), q.Servers, q.Op)
		reply(w, answer{Changed: changed}, err)
	})
	m.HandleFunc("POST /v1/lift", func(w http.ResponseWriter, r *http.Request) {
		k, q, err := read(c, w, r)
		if err == nil {
			err = k.Lift(r.Context(), q.Servers)
		}
		reply(w, answer{}, err)
	})
	m.HandleFunc("POST /v1/servers", func(w http.ResponseWriter, r *http.Request) {
		k, q, err := read(c, w, r)
		if err != nil {
			reply(w, answer{}, err)
			return
		}
		reply(w, answer{Reports: reports(k, q.Servers)}, nil)
	})
	return m
}

// badRequest is an error of who asks.
type badRequest struct{ error }

func read(c Counter, w http.ResponseWriter, r *http.Request) (*keeper.Keeper, wish, error) {
	var q wish
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&q); err != nil {
		return nil, q, badRequest{fmt.Errorf("request: %w", err)}
	}
	k := c.Keeper(q.LB)
	switch {
	case k == nil:
		return nil, q, badRequest{fmt.Errorf("no balancer %q here", q.LB)}
	case len(q.Servers) == 0:
		return nil, q, badRequest{errors.New("no servers named")}
	case r.URL.Path == "/v1/hold" && q.Op.Kind != hold.Drain && q.Op.Kind != hold.Maint:
		return nil, q, badRequest{fmt.Errorf("op.kind %q: want drain or maint", q.Op.Kind)}
	}
	return k, q, nil
}

func reply(w http.ResponseWriter, a answer, err error) {
	code := http.StatusOK
	var held *keeper.HeldError
	var bad badRequest
	switch {
	case errors.As(err, &held):
		code, a.Held = http.StatusConflict, true
	case errors.As(err, &bad):
		code = http.StatusBadRequest
	case errors.Is(err, keeper.ErrObserve):
		code = http.StatusConflict
	case err != nil:
		code = http.StatusInternalServerError
	}
	if err != nil {
		a.Error = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(a) // whoever asked may have gone
}

// Listen makes the control socket, mode 0660. What is left of a dead daemon is
// replaced; anything that is no socket, or that somebody listens on, is not.
func Listen(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("control socket %s: something else is there", path)
		}
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, fmt.Errorf("control socket %s: another daemon listens there", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("control socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		l.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return l, nil
}

// Serve answers on l until ctx ends.
func Serve(ctx context.Context, l net.Listener, c Counter) error {
	s := &http.Server{
		Handler: Handler(c), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("control socket: %w", err)
	}
	return nil
}

// decode reads an answer's body.
func decode(r io.Reader) (a answer, err error) {
	err = json.NewDecoder(io.LimitReader(r, 4*maxRequest)).Decode(&a)
	return a, err
}
