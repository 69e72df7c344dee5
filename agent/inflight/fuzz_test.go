package inflight

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// Whatever Envoy, an application or the kernel says: no parser falls over, and
// no zero comes out of text that does not hold one.

func FuzzGauges(f *testing.F) {
	f.Add([]byte(oneManager), "in")
	f.Add([]byte(gaugesOf("outbound_0.0.0.0_8080;", 3)), "")
	f.Add([]byte(`{"stats":[{"name":"http..downstream_rq_active","value":0}]}`), "")
	f.Add([]byte(`{"stats":[{"name":"http.in.downstream_rq_active","value":-1}]}`), "in")
	f.Add([]byte(`{"stats":[{"name":"http.in.downstream_rq_active","value":18446744073709551615}]}`), "*")
	f.Fuzz(func(t *testing.T, body []byte, name string) {
		g, err := parseGauges(body)
		if err != nil {
			return
		}
		for _, o := range []Options{{}, {Include: []string{name}}, {Exclude: []string{name}, IgnoreUpgrades: true}, {TCPListeners: []string{name}}} {
			r, err := newRules(o)
			if err != nil {
				continue
			}
			got := r.add(g, nil)
			if got.count.Zero() && len(got.names) > 0 && !bytes.ContainsRune(body, '0') {
				t.Errorf("zero out of %q", body)
			}
			if got.count.Known && got.why != "" || !got.count.Known && got.why == "" {
				t.Errorf("count %v, why %q", got.count, got.why)
			}
			if len(o.Include) > 0 && got.count.Known && len(got.managers) == 0 {
				t.Errorf("%q is included and not there: %v", name, got.count)
			}
		}
	})
}

func FuzzClusters(f *testing.F) {
	f.Add([]byte(twoHosts))
	f.Add([]byte(idleClusters))
	f.Add([]byte(`{"cluster_statuses":[{"host_statuses":[{"stats":[{"name":"rq_active","value":"-1"}]}]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		n, err := parseClusters(bytes.NewReader(body), excludedClusters)
		if n.Known != (err == nil) {
			t.Errorf("%v, %v", n, err)
		}
		if n.Known && !bytes.Contains(bytes.ToLower(body), []byte("host_status")) && !bytes.Contains(body, []byte(`\u`)) {
			t.Errorf("%v out of %q", n, body)
		}
	})
}

func FuzzListeners(f *testing.F) {
	f.Add([]byte(dataListener))
	f.Add([]byte(`{"configs":[{"name":"x","active_state":{"listener":{"stat_prefix":"a","default_filter_chain":{}}}}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var l listeners
		if l.add(bytes.NewReader(body)) == nil && l.add(bytes.NewReader(body)) != nil {
			t.Errorf("%q was taken once", body)
		}
	})
}

func FuzzInfo(f *testing.F) {
	f.Add([]byte(serverInfo("LIVE", 20)))
	f.Add([]byte(`{"state":"LIVE","uptime_current_epoch":"-9223372036854775808ns"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		i, err := parseInfo(body)
		if err == nil && (i.State == "" || i.Uptime < 0 || i.DrainTime < 0) {
			t.Errorf("%+v", i)
		}
		new(process).another(time.Unix(0, 0), time.Unix(1, 0), i.Uptime)
	})
}

func FuzzNumber(f *testing.F) {
	f.Add([]byte("7\n"), "")
	f.Add([]byte("# TYPE rq gauge\nrq{l=\"a\"} 3\nrq{l=\"b\"} 4\n"), "rq")
	f.Add([]byte("# TYPE rq histogram\nrq_bucket{le=\"+Inf\"} 0\nrq_sum 0\nrq_count 0\n"), "rq")
	f.Add([]byte("# HELP rq what\n{\"utf8.name\", a=\"b\"} NaN 17\n"), "")
	f.Fuzz(func(t *testing.T, body []byte, metric string) {
		n, err := parseNumber(body, metric)
		if n.Known != (err == nil) || n.N > maxCount*uint64(1+bytes.Count(body, []byte("\n"))) {
			t.Errorf("%v, %v", n, err)
		}
		if n.Zero() && !bytes.ContainsAny(body, "0eE-") {
			t.Errorf("zero out of %q", body)
		}
	})
}

func FuzzProcLine(f *testing.F) {
	f.Add([]byte(goodLine))
	f.Add([]byte(strings.Replace(goodLine, "0100007F", "0000000000000000FFFF00000100007F", 1)))
	f.Add([]byte(headline))
	f.Fuzz(func(t *testing.T, line []byte) {
		c, err := parseProc(line)
		if err == nil && (!c.local.IsValid() || !c.remote.IsValid() || c.local.Addr().Is4In6()) {
			t.Errorf("%q is %+v", line, c)
		}
		procLines(time.Now().Add(time.Second), bytes.NewReader(append([]byte(headline), line...)), 80, func(conn) {})
	})
}

func FuzzDiag(f *testing.F) {
	f.Add(make([]byte, 72))
	f.Add(append([]byte{10, 1}, make([]byte, 70)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := parseDiag(b); err == nil && (!c.local.IsValid() || c.remote.Addr().Is4In6()) {
			t.Errorf("%x is %+v", b, c)
		}
		diagErrno(b)
	})
}
