package front

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"lbdrain/internal/handshake"
)

func TestListen(t *testing.T) {
	for text, want := range map[string]speech{
		"G": undecided, "GET": undecided, "GET ": speaksHTTP, "HEAD /": speaksHTTP, "POST /drain": speaksHTTP, "PRI * HTTP/2.0": speaksHTTP,
		"BREW /pot HTTP/1.1\r\n": speaksHTTP, "GETX": speaksLine, "get / ": speaksLine, "lb=edge": speaksLine, "hello\r\n": speaksLine,
		"\n": speaksLine, "P": undecided, "PROXY TCP4 ": noise, "\x16\x03\x01": noise, "\r\n\r\n\x00\r\nQUIT": noise, "caf\xc3\xa9": noise,
	} {
		if got := listen([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestLBName(t *testing.T) {
	for text, want := range map[string]string{
		"lb=edge-1:admin.sock": "edge-1:admin.sock", "lb=a\n": "a", "lb=a\r\nlb=b": "a", " lb=a ": "a",
		"": "", "hello": "", "lb=": "", "lb=a b": "", "LB=a": "", "lb=" + strings.Repeat("x", 129): "",
	} {
		if got := lbName([]byte(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestPrefer(t *testing.T) {
	for h, want := range map[string]int{
		"wait=5": 5, "respond-async, wait=5": 5, "wait=5; x=1": 5, `wait="7"`: 7, "WAIT = 3": 3, "wait=301": 300, "wait=4000000000": 300,
		"": -1, "wait": -1, "wait=-1": -1, "wait=x": -1, "wait=99999999999": -1, "waiter=3": -1,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Prefer", h)
		n, ok := prefer(r)
		if !ok {
			n = -1
		}
		if n != want {
			t.Errorf("%q: %d, want %d", h, n, want)
		}
	}
}

func TestMatches(t *testing.T) {
	for h, want := range map[string]bool{`"a.1"`: true, `W/"a.1"`: true, `"x", "a.1"`: true, "*": true, `"a.10"`: false, "a.1": false, "": false} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("If-None-Match", h)
		if got := matches(r, `"a.1"`); got != want {
			t.Errorf("%s: %v, want %v", h, got, want)
		}
	}
}

func FuzzListen(f *testing.F) {
	for _, s := range []string{"", "GET / HTTP/1.0\r\n\r\n", "lb=x\n", "\x16\x03\x01", "PROXY ", "PRI "} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		kind := listen(b)
		if kind == undecided && len(b) > len("OPTIONS") {
			t.Errorf("%q is still undecided", b)
		}
		if name := lbName(b); name != "" && handshake.CheckLBName(name) != nil {
			t.Errorf("%q gave the name %q", b, name)
		}
	})
}

type spec struct {
	OpenAPI string                    `yaml:"openapi"`
	Paths   map[string]map[string]any `yaml:"paths"`
	Comp    struct {
		Schemas map[string]struct {
			Required   []string       `yaml:"required"`
			Properties map[string]any `yaml:"properties"`
		} `yaml:"schemas"`
	} `yaml:"components"`
}

func readSpec(t *testing.T) spec {
	t.Helper()
	b, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var s spec
	if err := yaml.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// The document has the routes of the control listener, method by method.
func TestOpenAPIRoutes(t *testing.T) {
	s := readSpec(t)
	if s.OpenAPI != "3.1.0" {
		t.Errorf("openapi %s", s.OpenAPI)
	}
	var want, got []string
	for _, r := range New(Config{}).routes(true) {
		for m := range r.methods {
			want = append(want, strings.ToLower(m)+" "+r.path)
		}
	}
	for path, ops := range s.Paths {
		for m := range ops {
			if m != "parameters" {
				got = append(got, m+" "+path)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("routes (-code +document):\n%s", d)
	}
}

// Its schemas have the keys that the code writes.
func TestOpenAPISchemas(t *testing.T) {
	s := readSpec(t)
	for name, v := range map[string]any{
		"Status": handshake.Status{Warning: "x"}, "Progress": handshake.Progress{}, "LB": handshake.LB{}, "Transition": handshake.Transition{},
		"Ack": handshake.Ack{}, "Server": handshake.ServerFact{}, "DrainID": handshake.DrainID{}, "Problem": problem{}, "Wait": waitAnswer{},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(keys(m), keys(s.Comp.Schemas[name].Properties)); d != "" {
			t.Errorf("%s (-code +document):\n%s", name, d)
		}
	}
}

func keys(m map[string]any) []string {
	var ks []string
	for k := range m {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
}
