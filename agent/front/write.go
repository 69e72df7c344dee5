package front

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"lbdrain/agent/balancers"
	"lbdrain/agent/drain"
	"lbdrain/fsm"
	"lbdrain/internal/handshake"
)

// lbPeer checks name and token of a balancer's request. ok is false when the
// answer has been written.
func (f *Front) lbPeer(w http.ResponseWriter, r *http.Request, name string) (p balancers.Peer, ok bool) {
	if err := handshake.CheckLBName(name); err != nil {
		f.fail(w, http.StatusBadRequest, err.Error())
		return p, false
	}
	p = connOf(r).peer
	if f.cfg.LBToken != "" && !p.Trusted {
		if !bearer(r, f.cfg.LBToken) {
			f.unauthorized(w)
			return p, false
		}
		p.Trusted = true
	}
	return p, true
}

// watch registers the connection as the balancer's. A stranger's name does not
// count, the status is public all the same.
func (f *Front) watch(w http.ResponseWriter, r *http.Request) (done func(), ok bool) {
	name := r.URL.Query().Get("lb")
	p, ok := f.lbPeer(w, r, name)
	if !ok {
		return nil, false
	}
	switch err := f.cfg.Pod.Watch(name, p); {
	case errors.Is(err, balancers.ErrStranger):
		return func() {}, true
	case err != nil:
		f.conflict(w, err)
		return nil, false
	}
	connOf(r).kept.Store(true)
	return func() { f.cfg.Pod.Watched(name, p) }, true
}

// conflict is a 409 that carries the status and says why.
func (f *Front) conflict(w http.ResponseWriter, err error) {
	s := f.cfg.Pod.Status()
	w.Header().Set("ETag", s.ETag())
	f.json(w, http.StatusConflict, struct {
		Error string `json:"error"`
		handshake.Status
	}{err.Error(), s})
}

// ack takes PUT /drain/lbs/{lb}.
func (f *Front) ack(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("lb")
	p, ok := f.lbPeer(w, r, name)
	if !ok {
		return
	}
	body, err := f.body(w, r)
	if err != nil {
		f.fail(w, http.StatusBadRequest, err.Error())
		return
	}
	a, err := handshake.DecodeAck(body)
	if err != nil {
		f.fail(w, http.StatusBadRequest, err.Error())
		return
	}
	switch err := f.cfg.Pod.Ack(name, p, a); {
	case errors.Is(err, balancers.ErrStranger):
		f.fail(w, http.StatusForbidden, err.Error())
	case err != nil:
		f.conflict(w, err)
	default:
		connOf(r).kept.Store(true)
		f.answer(w, http.StatusOK)
	}
}

// leave takes DELETE /drain/lbs/{lb}.
func (f *Front) leave(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("lb")
	p, ok := f.lbPeer(w, r, name)
	if !ok {
		return
	}
	switch err := f.cfg.Pod.Leave(name, p); {
	case errors.Is(err, balancers.ErrStranger):
		f.fail(w, http.StatusForbidden, err.Error())
	case err != nil:
		f.conflict(w, err)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// body reads at most handshake.MaxBody within bodyLimit. After an error the
// deadline stays: net/http reads what is left before it answers (server.go,
// chunkWriter.writeHeader), and would wait for a peer that sends no more.
func (f *Front) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyLimit))
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, handshake.MaxBody))
	if err != nil {
		w.Header().Set("Connection", "close")
		return nil, fmt.Errorf("body: %w", err)
	}
	_ = rc.SetReadDeadline(time.Time{})
	return b, nil
}

// command is a POST of the control listener.
func (f *Front) command(what drain.Command) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if f.cfg.ControlToken != "" && !bearer(r, f.cfg.ControlToken) {
			f.unauthorized(w)
			return
		}
		if _, err := f.body(w, r); err != nil {
			f.fail(w, http.StatusBadRequest, err.Error())
			return
		}
		f.hanging.Add(1) // the command may end the process
		defer f.hanging.Add(-1)
		do := what
		if q := r.URL.Query(); what == drain.Drain && q.Has("finish") {
			do = drain.Finish
		}
		if err := f.cfg.Pod.Do(r.Context(), do, "POST /"+do.String()); err != nil {
			code := http.StatusConflict
			if errors.Is(err, drain.ErrStopped) {
				code = http.StatusServiceUnavailable
			}
			f.fail(w, code, err.Error())
			return
		}
		f.carriedOut(w, r, do)
	}
}

// carriedOut answers a command, at the end of the drain where the caller prefers.
func (f *Front) carriedOut(w http.ResponseWriter, r *http.Request, what drain.Command) {
	v := f.cfg.Pod.View()
	if seconds, ok := prefer(r); ok && (what == drain.Drain || what == drain.Finish) {
		w.Header().Set("Preference-Applied", fmt.Sprintf("wait=%d", seconds))
		if v.Ended != nil {
			f.hold(w, r, v.Ended, time.Duration(seconds)*time.Second)
		}
	}
	s := f.cfg.Pod.Status()
	if ts := s.Progress.Transitions; what == drain.Reopen && len(ts) > 0 && ts[len(ts)-1].From == fsm.Closing.String() {
		s.Warning = join("HAProxy may have seen 503: it takes the server back only after rise passed checks", s.Warning)
		w.Header().Set("Warning", fmt.Sprintf("199 - %q", s.Warning))
	}
	w.Header().Set("ETag", s.ETag())
	f.json(w, http.StatusOK, s)
	_ = http.NewResponseController(w).Flush()
}

func join(a, b string) string {
	if b == "" {
		return a
	}
	return a + "; " + b
}
