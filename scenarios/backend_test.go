package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"lbdrain/scenarios/ledger"
	"lbdrain/scenarios/load"
)

// journal is the backend's log, readable while it is written.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
	wake chan struct{}
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
	return j.text.Write(p)
}

func (j *journal) ran() []ledger.Ran {
	j.mu.Lock()
	defer j.mu.Unlock()
	return ledger.Executions(strings.Split(j.text.String(), "\n"))
}

// await waits until every execution so far has ended, and there are n.
func (j *journal) await(t *testing.T, n int) []ledger.Ran {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		ran, open := j.ran(), 0
		for _, r := range ran {
			if r.End.IsZero() {
				open++
			}
		}
		if len(ran) >= n && open == 0 {
			return ran
		}
		select {
		case <-j.wake:
		case <-limit:
			t.Fatalf("log after 10 s: %+v", ran)
		}
	}
}

func application(t *testing.T) (*httptest.Server, *backend, *journal) {
	j := &journal{wake: make(chan struct{}, 1)}
	b := &backend{hostname: "p1", tick: 10 * time.Millisecond, out: json.NewEncoder(j)}
	s := httptest.NewServer(b.counted(b.routes()))
	t.Cleanup(s.Close)
	return s, b, j
}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestBackendAnswers(t *testing.T) {
	s, _, j := application(t)
	for path, want := range map[string]string{
		"/sleep?seconds=0&id=a":       "slept 0s\n",
		"/sleep?seconds=0.01&id=b":    "slept 0.01s\n",
		load.Sleep("c", 0):            "slept 0s\n",
		"/body?bytes=3&id=d":          "\x00\x00\x00",
		"/stream?seconds=0&id=e":      "end e\n",
		"/stream?seconds=0.015&id=f":  "chunk 0\nchunk 1\nend f\n",
		load.Stream("g", 0):           load.EndMarker("g"),
		load.Body("h", 2) + "&more=1": "\x00\x00",
	} {
		if status, body := fetch(t, s.URL+path); status != 200 || body != want {
			t.Errorf("%s: %d %q, want 200 %q", path, status, body, want)
		}
	}
	for _, path := range []string{
		"/sleep?seconds=601", "/sleep?seconds=-1", "/sleep?seconds=x", "/sleep?seconds=NaN",
		"/stream?seconds=601", "/body?bytes=-1", "/body?bytes=1e30",
	} {
		if status, _ := fetch(t, s.URL+path); status != 400 {
			t.Errorf("%s: %d, want 400", path, status)
		}
	}
	if status, _ := fetch(t, s.URL+"/nowhere"); status != 404 {
		t.Errorf("unknown path: %d", status)
	}
	for _, r := range j.await(t, 8) {
		if r.Cancelled || r.Pod != "p1" {
			t.Errorf("%+v", r)
		}
	}
}

// Every handler whose client goes away is reported, a POST's too, whose body has to
// be read for net/http to notice.
func TestBackendReportsAborts(t *testing.T) {
	s, b, j := application(t)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, method, s.URL+"/stream?seconds=60&id="+method, strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil { // flushed, not at the end
			t.Fatal(err)
		}
		if n := b.inflight.Load(); n != 1 {
			t.Errorf("%d in flight, want 1", n)
		}
		cancel()
		resp.Body.Close()
	}
	for _, r := range j.await(t, 2) {
		if !r.Cancelled {
			t.Errorf("%s: not reported as cancelled", r.ID)
		}
	}
	if n := b.inflight.Load(); n != 0 {
		t.Errorf("%d in flight, want 0", n)
	}
}

// A client that leaves once the whole answer is on its way, as an old worker of
// HAProxy does after a reload, was not cut off; one that left before it was.
func TestBackendLateLeave(t *testing.T) {
	_, b, j := application(t)
	for _, c := range []struct {
		id   string
		when func(leave func()) (http.HandlerFunc, func())
	}{
		{"before", func(leave func()) (http.HandlerFunc, func()) {
			return func(http.ResponseWriter, *http.Request) { leave() }, func() {}
		}},
		{"after", func(leave func()) (http.HandlerFunc, func()) {
			return func(http.ResponseWriter, *http.Request) {}, leave
		}},
	} {
		ctx, leave := context.WithCancel(t.Context())
		handler, flushed := c.when(leave)
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/sleep?id="+c.id, nil)
		b.counted(handler).ServeHTTP(flushes{httptest.NewRecorder(), flushed}, r)
		leave()
	}
	for _, r := range j.await(t, 2) {
		if r.Cancelled != (r.ID == "before") {
			t.Errorf("left %s the answer: cancelled %v", r.ID, r.Cancelled)
		}
	}
}

// flushes calls back once the answer is flushed.
type flushes struct {
	*httptest.ResponseRecorder
	then func()
}

func (f flushes) Flush() {
	f.ResponseRecorder.Flush()
	f.then()
}

func TestBackendGauge(t *testing.T) {
	_, b, _ := application(t)
	g := httptest.NewServer(b.gauge())
	defer g.Close()
	b.inflight.Store(7)
	if _, body := fetch(t, g.URL+"/inflight"); body != "7\n" {
		t.Errorf("/inflight %q", body)
	}
	if _, body := fetch(t, g.URL+"/stats?filter=downstream_rq_active|upstream_rq_active"); body != "http.backend.downstream_rq_active: 7\n" {
		t.Errorf("/stats %q", body)
	}
}
