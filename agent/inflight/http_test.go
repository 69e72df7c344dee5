package inflight

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"lbdrain/internal/handshake"
)

func TestParseNumber(t *testing.T) {
	for _, c := range []struct {
		name, body, metric string
		want               handshake.Count
		err                string // a part of it
	}{
		{"a number", "7\n", "", known(7), ""},
		{"as a float", " 1e+02 ", "", known(100), ""},
		{"zero", "0", "", known(0), ""},
		{"negative", "-1\n", "", handshake.Count{}, "-1 is no count"},
		{"not a number", "NaN\n", "", handshake.Count{}, "NaN is no count"},
		{"for ever", "+Inf\n", "", handshake.Count{}, "+Inf is no count"},
		{"half a request", "0.5\n", "", handshake.Count{}, "0.5 is no count"},
		{"wrapped", "18446744073709551615\n", "", handshake.Count{}, "is no count"},
		{"empty", "", "", handshake.Count{}, "the answer is empty"},
		{"blank, and a metric asked for", " \n", "rq", handshake.Count{}, "the answer is empty"},
		{"html", "<html><body>0</body></html>\n", "", handshake.Count{}, "neither a number nor Prometheus text"},
		{"json", `{"n":0}` + "\n", "", handshake.Count{}, "neither a number nor Prometheus text"},
		{"a number where a metric was asked for", "0\n", "rq", handshake.Count{}, "neither a number nor Prometheus text"},
		{"the only gauge", "# TYPE rq gauge\nrq 3\n", "", known(3), ""},
		{"series are summed", "# TYPE rq gauge\nrq{l=\"a\"} 3\nrq{l=\"b\"} 4\n", "rq", known(7), ""},
		{"one series of it is no count", "rq{l=\"a\"} 3\nrq{l=\"b\"} -1\n", "rq", handshake.Count{}, "metric rq: -1 is no count"},
		{"no type declared", "rq 3\nother 9\n", "rq", known(3), ""},
		{"the longer name is another metric", "rq_total 0\n", "rq", handshake.Count{}, "no metric rq in the answer"},
		{"a type and no series", "# TYPE rq gauge\n", "rq", handshake.Count{}, "no metric rq in the answer"},
		{"several and none chosen", "rq 0\nother 0\n", "", handshake.Count{}, "2 metrics, and none is chosen: add #NAME to the URL"},
		{"only comments", "# nothing here\n", "", handshake.Count{}, "0 metrics"},
		{"a counter", "# TYPE rq counter\nrq 0\n", "rq", handshake.Count{}, "metric rq is a counter, want a gauge"},
		{"a histogram", "# TYPE rq histogram\nrq_bucket{le=\"+Inf\"} 0\nrq_sum 0\nrq_count 0\n", "rq", handshake.Count{}, "metric rq is a histogram"},
		{"cut in the middle of a number", "# TYPE rq gauge\nrq 1", "rq", handshake.Count{}, "ends in a newline"},
		{"half a line", "rq{l=\"a\n", "rq", handshake.Count{}, "neither a number nor Prometheus text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, err := parseNumber([]byte(c.body), c.metric)
			if n != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, %v, want %v, %s", n, err, c.want, c.err)
			}
		})
	}
}

func TestHTTPSource(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "of=data" {
			http.Error(w, "which?", http.StatusNotFound)
			return
		}
		w.Write([]byte("# TYPE rq gauge\nrq 2\nold 0\n"))
	}))
	defer srv.Close()
	read := func(url string) Reading {
		t.Helper()
		s, err := Parse("http="+url, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s.Read(context.Background())
	}
	if r := read(srv.URL + "/metrics?of=data#rq"); r.Count != known(2) || r.Upgrades.Known || r.Note != "" {
		t.Errorf("%+v", r)
	}
	if r := read(srv.URL + "/metrics#rq"); r.Count.Known || r.Note != `GET /metrics: status 404: "which?"` || r.Refused {
		t.Errorf("%+v", r)
	}
	if r := read(srv.URL + "/metrics?of=data"); r.Count.Known || !strings.HasPrefix(r.Note, "GET /metrics?of=data: 2 metrics") {
		t.Errorf("%+v", r)
	}
	srv.Close()
	if r := read(srv.URL + "/metrics?of=data#rq"); r.Count.Known || !r.Refused {
		t.Errorf("%+v", r)
	}
}
