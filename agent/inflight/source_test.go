package inflight

import (
	"bytes"
	"strings"
	"testing"

	"lbdrain/internal/cli"
)

func TestParse(t *testing.T) {
	for spec, name := range map[string]string{
		"envoy=http://127.0.0.1:15000":            "envoy",
		"envoy=http://localhost:15000/":           "envoy",
		"envoy=unix:/run/envoy/admin.sock":        "envoy",
		"envoy=unix:@admin":                       "envoy",
		"sockets=8443":                            "sockets",
		"sockets=10.0.0.7:8443":                   "sockets",
		"sockets-tx=[::1]:8080":                   "sockets-tx",
		"http=http://127.0.0.1:9100/metrics#rq":   "http",
		"http=https://u:p@app.local/count?of=all": "http",
	} {
		s, err := Parse(spec, Options{})
		if err != nil || s.Name() != name {
			t.Errorf("%s: %v, %v", spec, s, err)
		}
		if _, is := s.(*Envoy); is != (name == "envoy") {
			t.Errorf("%s is a %T", spec, s)
		}
	}
}

// Each mistake, the exact words and what to type instead.
func TestParseRefuses(t *testing.T) {
	const kinds = "\nhint: --source KIND=VALUE, KIND one of envoy, sockets, sockets-tx, http\n"
	const admin = "\nhint: --source envoy=http://127.0.0.1:15000, or envoy=unix:/run/envoy/admin.sock\n"
	const port = "\nhint: --source sockets=8443, or sockets=10.0.0.7:8443\n"
	const metric = "\nhint: --source http=http://127.0.0.1:9100/metrics#requests_in_flight\n"
	for spec, want := range map[string]string{
		"":                                   `source "" is of no known kind` + kinds,
		"envoy":                              `source "envoy" is of no known kind` + kinds,
		"nginx=http://127.0.0.1":             `source "nginx=http://127.0.0.1" is of no known kind` + kinds,
		"envoy=127.0.0.1:15000":              `source "envoy=127.0.0.1:15000": want http://HOST:PORT or unix:PATH` + admin,
		"envoy=https://127.0.0.1:15000":      `source "envoy=https://127.0.0.1:15000": want http://HOST:PORT or unix:PATH` + admin,
		"envoy=http://127.0.0.1:15000/stats": `source "envoy=http://127.0.0.1:15000/stats": want http://HOST:PORT or unix:PATH` + admin,
		"envoy=unix:":                        `source "envoy=unix:": unix: without a path` + admin,
		"sockets=0":                          `source "sockets=0": "0": want PORT or ADDR:PORT, the address in digits` + port,
		"sockets=web":                        `source "sockets=web": "web": want PORT or ADDR:PORT, the address in digits` + port,
		"sockets=65536":                      `source "sockets=65536": "65536": want PORT or ADDR:PORT, the address in digits` + port,
		"sockets=host:80":                    `source "sockets=host:80": "host:80": want PORT or ADDR:PORT, the address in digits` + port,
		"http=/metrics":                      `source "http=/metrics": want a URL that begins with http:// or https://` + metric,
		"http=http://h/m#a b":                `source "http=http://h/m#a b": "a b" is not the name of a metric` + metric,
	} {
		var out bytes.Buffer
		_, err := Parse(spec, Options{})
		if code := cli.Code("agent", err, &out); code != cli.Usage || out.String() != "agent: "+want {
			t.Errorf("%q: exit code %d\n%s\nwant\nagent: %s", spec, code, out.String(), want)
		}
	}
}

func TestParseAll(t *testing.T) {
	all, err := ParseAll([]string{"http=http://a/", "envoy=http://a", "http=http://b/", "http=http://c/"}, Options{IgnoreUpgrades: true})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Name())
	}
	if got := strings.Join(names, " "); got != "http envoy http-2 http-3" {
		t.Errorf("names %s", got)
	}
	for _, c := range []struct {
		specs []string
		o     Options
		want  string
	}{
		{[]string{"sockets=80", "sockets=80"}, Options{}, `source "sockets=80" is given twice`},
		{[]string{"sockets=80"}, Options{Exclude: []string{"x"}}, "--envoy-exclude, --envoy-include, --envoy-tcp-listener and --envoy-upgrades say what the envoy source counts, and there is none"},
		{[]string{"x"}, Options{}, `source "x" is of no known kind`},
	} {
		if _, err := ParseAll(c.specs, c.o); err == nil || err.Error() != c.want {
			t.Errorf("%v: %v, want %s", c.specs, err, c.want)
		}
	}
}
