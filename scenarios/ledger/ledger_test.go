package ledger

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func at(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }

// good is a request that went well.
func good(id string) Seen {
	return Seen{ID: id, Kind: "h1 first", Status: 200, Whole: true, Attempts: 1}
}

func ran(id, pod string, begin, end float64) Ran {
	return Ran{ID: id, Pod: pod, Begin: at(begin), End: at(end)}
}

func cancelled(r Ran) Ran { r.Cancelled = true; return r }

func TestAccount(t *testing.T) {
	tests := []struct {
		name    string
		seen    []Seen
		ran     []Ran
		logged  []Logged
		outcome string
		masks   []Mask
	}{
		{"clean", []Seen{good("a")}, []Ran{ran("a", "p1", 0, 8)}, []Logged{{ID: "a", Status: 200, Termination: "----"}}, "200", nil},
		{
			"h1 first, cut before headers",
			[]Seen{{ID: "a", Status: 502, Whole: true}},
			[]Ran{cancelled(ran("a", "p1", 0, 3))},
			[]Logged{{ID: "a", Status: 502, Termination: "DH--"}},
			"502",
			[]Mask{Status5xx, ServerAbort, HAProxyTermination},
		},
		{
			"h1 reused, cut before headers: nothing in the log",
			[]Seen{{ID: "a", Curl: CurlEmpty}},
			[]Ran{cancelled(ran("a", "p1", 0, 3))},
			nil, "EOF",
			[]Mask{ConnectionError, ServerAbort},
		},
		{
			"h2 POST, sent again in silence",
			[]Seen{good("a")},
			[]Ran{ran("a", "p2", 3, 11), cancelled(ran("a", "p1", 0, 3))},
			[]Logged{{ID: "a", Status: 200, Termination: "----"}},
			"200 twice",
			[]Mask{Twice, ServerAbort},
		},
		{
			"h2 POST whose first execution went on to its end",
			[]Seen{good("a")},
			[]Ran{ran("a", "p1", 0, 8), ran("a", "p2", 3, 11)},
			nil, "200 twice",
			[]Mask{Twice},
		},
		{
			"h2 stream, cut like a clean end",
			[]Seen{{ID: "a", Status: 200}},
			[]Ran{cancelled(ran("a", "p1", 0, 3))},
			[]Logged{{ID: "a", Status: 200, Termination: "DD--"}},
			"200 cut",
			[]Mask{Truncated, ServerAbort, HAProxyTermination},
		},
		{"h1 stream, cut", []Seen{{ID: "a", Status: 200, Curl: CurlPartial}}, nil, nil, "200 cut", []Mask{ConnectionError, Truncated}},
		{"reset", []Seen{{ID: "a", Curl: CurlReceive}}, nil, nil, "error 56", []Mask{ConnectionError}},
		{"no answer in time", []Seen{{ID: "a", Curl: CurlTimeout}}, nil, nil, "no answer", []Mask{ConnectionError}},
		{
			"backend killed with the request in it: it never reported an end",
			[]Seen{{ID: "a", Status: 502, Whole: true}},
			[]Ran{{ID: "a", Pod: "p1", Begin: at(0)}},
			nil, "502",
			[]Mask{Status5xx, ServerAbort},
		},
		{
			"no server left for the second sending",
			[]Seen{{ID: "a", Status: 503, Attempts: 2, Whole: true}},
			[]Ran{cancelled(ran("a", "p1", 0, 3))},
			[]Logged{{ID: "a", Server: "<NOSRV>", Status: 503, Termination: "SC--"}},
			"503",
			[]Mask{Status5xx, ServerAbort, HAProxyTermination},
		},
		{
			"sent twice and run once is no disruption",
			[]Seen{{ID: "a", Status: 200, Whole: true, Attempts: 2}},
			[]Ran{ran("a", "p2", 0, 8)},
			nil, "200", nil,
		},
		{"the client's own abort is not ours", []Seen{good("a")}, []Ran{ran("a", "p1", 0, 8)}, []Logged{{ID: "a", Termination: "CD--"}}, "200", nil},
		{"killed by a person", []Seen{{ID: "a", Status: 502, Whole: true}}, nil, []Logged{{ID: "a", Status: 502, Termination: "KH--"}}, "502", []Mask{Status5xx, HAProxyTermination}},
		{"a client error is an answer", []Seen{{ID: "a", Status: 404, Whole: true}}, nil, nil, "404", nil},
		{"no client reported it", nil, []Ran{ran("a", "p1", 0, 8)}, nil, "no answer", []Mask{ConnectionError}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := Account(tt.seen, tt.ran, tt.logged)
			if len(b.Entries) != 1 {
				t.Fatalf("%d entries, want 1: each request once", len(b.Entries))
			}
			e := b.Entries[0]
			if e.Outcome != tt.outcome {
				t.Errorf("outcome %q, want %q", e.Outcome, tt.outcome)
			}
			if len(e.Masks)+len(tt.masks) > 0 && !slices.Equal(e.Masks, tt.masks) {
				t.Errorf("masks %v, want %v", e.Masks, tt.masks)
			}
			if want := min(len(tt.masks), 1); b.Disruptions() != want {
				t.Errorf("%d disruptions, want %d", b.Disruptions(), want)
			}
		})
	}
}

func TestBook(t *testing.T) {
	seen := []Seen{good("a"), {ID: "b", Status: 502, Whole: true}, {ID: "c", Curl: CurlEmpty}, good("d")}
	runs := []Ran{
		ran("a", "p1", 0, 8), cancelled(ran("b", "p1", 0, 3)), cancelled(ran("c", "p1", 0, 3)),
		cancelled(ran("d", "p1", 0, 3)), ran("d", "p2", 3, 11),
	}
	logs := []Logged{
		{ID: "a", Termination: "----"},
		{ID: "b", Termination: "DH--"},
		{ID: "d", Termination: "----"},
		{Termination: "SC--"},
		{Termination: "PR--"},
		{Termination: "DC"},
	}
	b := Account(seen, runs, logs)
	if b.Disruptions() != 3 || b.Unseen != 2 || b.Stray != 2 {
		t.Errorf("disruptions %d unseen %d stray %d, want 3 2 2", b.Disruptions(), b.Unseen, b.Stray)
	}
	if diff := cmp.Diff(Truth{Cancelled: 3, Twice: 1, Found: 3}, b.Truth(runs)); diff != "" {
		t.Error(diff)
	}
	want := map[Mask]int{Status5xx: 1, ConnectionError: 1, Truncated: 0, Twice: 1, ServerAbort: 3, HAProxyTermination: 1}
	if diff := cmp.Diff(want, b.Masks()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]int{"----": 2, "DH--": 1, "SC--": 1, "PR--": 1, "DC": 1}, b.Terms); diff != "" {
		t.Error(diff)
	}
}

// Whatever the witnesses say, every id is one entry, and everything that a backend
// saw cut or run twice is found.
func TestAccountProperties(t *testing.T) {
	ids := []string{"a", "b", "c", "d"}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(ids)
		seen := []Seen{}
		for _, id := range rapid.SliceOfDistinct(name, rapid.ID[string]).Draw(t, "seen") {
			seen = append(seen, Seen{
				ID: id, Status: rapid.SampledFrom([]int{0, 200, 404, 502}).Draw(t, "status"),
				Whole: rapid.Bool().Draw(t, "whole"), Curl: rapid.SampledFrom([]int{0, 18, 52}).Draw(t, "curl"),
			})
		}
		runs := rapid.SliceOf(rapid.Custom(func(t *rapid.T) Ran {
			r := ran(name.Draw(t, "id"), rapid.SampledFrom([]string{"p1", "p2"}).Draw(t, "pod"), rapid.Float64Range(0, 9).Draw(t, "begin"), 10)
			r.Cancelled = rapid.Bool().Draw(t, "cancelled")
			return r
		})).Draw(t, "ran")
		logs := rapid.SliceOf(rapid.Custom(func(t *rapid.T) Logged {
			return Logged{ID: name.Draw(t, "id"), Termination: rapid.SampledFrom([]string{"----", "SH--", "DD--", "CD--"}).Draw(t, "term")}
		})).Draw(t, "logged")
		b := Account(seen, runs, logs)
		once := map[string]bool{}
		for _, e := range b.Entries {
			if once[e.ID] {
				t.Fatalf("%s stands in the book twice", e.ID)
			}
			once[e.ID] = true
		}
		truth, union := b.Truth(runs), map[string]bool{}
		times := map[string]int{}
		for _, r := range runs {
			times[r.ID]++
			if r.Cancelled || times[r.ID] > 1 {
				union[r.ID] = true
			}
		}
		if truth.Found != len(union) {
			t.Fatalf("found %d of %d", truth.Found, len(union))
		}
		total := 0
		for _, n := range b.Masks() {
			total += n
		}
		if d := b.Disruptions(); d > len(b.Entries) || total < d {
			t.Fatalf("%d disruptions of %d requests, %d masks", d, len(b.Entries), total)
		}
	})
}

func TestParseLine(t *testing.T) {
	tests := []struct {
		line string
		want Logged
		ok   bool
	}{
		{
			`Nov 30 11:52:51 haproxy[24003]: 127.0.0.1:59422 [30/Nov/2026:11:52:47.861] istio-https-l7~ istio-http-backend/worker1 0/0/0/-1/3645 502 209 - - DH-- 3/3/1/1/0 0/0 "GET /sleep?seconds=8&id=S1-h1 HTTP/1.1"`,
			Logged{ID: "S1-h1", Backend: "istio-http-backend", Server: "worker1", Status: 502, Termination: "DH--"},
			true,
		},
		{
			`Nov 30 11:52:51 haproxy[1]: 127.0.0.1:59414 [30/Nov/2026:11:52:47.860] istio-https-l7~ istio-http-backend/worker1 0/0/0/3/3646 200 233 - - DD-- 3/3/0/0/0 0/0 "GET https://homelab.example/stream?seconds=8&id=x.1 HTTP/2.0"`,
			Logged{ID: "x.1", Backend: "istio-http-backend", Server: "worker1", Status: 200, Termination: "DD--"},
			true,
		},
		{
			`Nov 30 11:52:51 haproxy[1]: 127.0.0.1:5 [30/Nov/2026:11:52:47.860] istio-https-l7~ istio-http-backend/<NOSRV> 0/-1/-1/-1/0 503 217 - - SC-- 1/1/0/0/3 0/0 "GET /sleep?id=y&seconds=8 HTTP/1.1"`,
			Logged{ID: "y", Backend: "istio-http-backend", Server: "<NOSRV>", Status: 503, Termination: "SC--"},
			true,
		},
		{
			`Nov 30 11:52:51 haproxy[1]: 127.0.0.1:5 [30/Nov/2026:11:52:47.860] istio-https-l7~ istio-https-l7/<NOSRV> -1/-1/-1/-1/0 400 0 - - CR-- 1/1/0/0/0 0/0 "<BADREQ>"`,
			Logged{Backend: "istio-https-l7", Server: "<NOSRV>", Status: 400, Termination: "CR--"},
			true,
		},
		{
			`Nov 30 11:52:51 haproxy[1]: 127.0.0.1:5 [30/Nov/2026:11:52:47.860] istio-grpc-passthrough istio-grpc-backend/worker1 1/0/5007 212 -- 1/1/0/0/0 0/0`,
			Logged{Backend: "istio-grpc-backend", Server: "worker1", Termination: "--"},
			true,
		},
		{`Nov 30 11:52:51 haproxy[24003]: Server istio-http-backend/worker1 is DOWN, reason: Layer7 wrong status, code: 503`, Logged{}, false},
		{``, Logged{}, false},
	}
	for _, tt := range tests {
		got, ok := ParseLine(tt.line)
		if ok != tt.ok || got != tt.want {
			t.Errorf("%s\n got %+v %v\nwant %+v %v", tt.line, got, ok, tt.want, tt.ok)
		}
	}
}

func TestExecutions(t *testing.T) {
	line := func(event, id string, sec int, status int) string {
		return fmt.Sprintf(`{"event":%q,"id":%q,"hostname":"p1","status":%d,"ts":"2026-11-30T12:00:%02dZ"}`, event, id, status, sec)
	}
	got := Executions([]string{
		`starting`, `{"event":"serving","hostname":"p1","ts":"2026-11-30T12:00:00Z"}`,
		line("begin", "a", 1, 0), line("begin", "b", 2, 0), line("request", "a", 3, 200),
		line("request", "b", 4, StatusCancelled), line("begin", "a", 5, 0), line("request", "zz", 6, 200),
	})
	want := []Ran{
		{ID: "a", Pod: "p1", Begin: at(1), End: at(3)},
		{ID: "b", Pod: "p1", Begin: at(2), End: at(4), Cancelled: true},
		{ID: "a", Pod: "p1", Begin: at(5)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCurl(t *testing.T) {
	for _, tt := range []struct {
		err     error
		headers bool
		want    int
	}{
		{nil, true, 0},
		{io.EOF, false, CurlEmpty},
		{fmt.Errorf("read: %w", io.ErrUnexpectedEOF), false, CurlEmpty},
		{io.ErrUnexpectedEOF, true, CurlPartial},
		{fmt.Errorf("read: %w", syscall.ECONNRESET), false, CurlReceive},
		{syscall.EPIPE, false, CurlSend},
		{syscall.ECONNREFUSED, false, CurlConnect},
		{context.DeadlineExceeded, false, CurlTimeout},
		{errors.New("stream error: stream ID 1; REFUSED_STREAM; received from peer"), false, CurlH2Stream},
		{errors.New("http2: server sent GOAWAY and closed the connection"), false, CurlH2Stream},
		{&tls.CertificateVerificationError{Err: errors.New("x")}, false, CurlTLS},
		{errors.New("something else"), false, CurlReceive},
	} {
		if got := Curl(tt.err, tt.headers); got != tt.want {
			t.Errorf("%v headers=%v: %d, want %d", tt.err, tt.headers, got, tt.want)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add(`x [d] f b/s 0/0/0/0/0 200 1 - - ---- 1/1/1/1/0 0/0 "GET /?id=a HTTP/1.1"`)
	f.Add(`x [d] f b/s 0/0/0 200 -- 1/1`)
	f.Fuzz(func(t *testing.T, line string) {
		l, ok := ParseLine(line)
		if ok != (l.Termination != "") {
			t.Errorf("%q: %+v %v", line, l, ok)
		}
	})
}
