package cfg

import (
	"os"
	"strings"
	"testing"
)

// FuzzLoad: whatever the text is, reading it ends, holds the bounds of the
// package comment, and says of each server where it stands.
func FuzzLoad(f *testing.F) {
	for _, name := range []string{"../testdata/haproxy.cfg", "../testdata/haproxy-agent.cfg"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	for i := range 20 {
		f.Add(newGenerator(7, i).file())
	}
	f.Add("global\n setenv A \"aaaaaaaa\"\n setenv A \"$A$A$A$A\"\n setenv A \"$A$A$A$A\"\nbackend b\n server s \"$A:80\"\n")
	f.Add("backend b\n server-template t 1-99999999 127.0.0.1:80\n server a x track b\n server b x track a\n")
	f.Add("global\n stats socket /x level\n stats socket x expose-fd\n stats maxconn\ndefaults a from a\nbackend b from a\n")
	o := Options{Env: map[string]string{"E": "v w"}, Version: "2.6.12", Features: "+OPENSSL", SSLLibrary: "OpenSSL 3.0.22"}
	f.Fuzz(func(t *testing.T, text string) {
		c := Read([]Text{{Name: "a.cfg", Data: []byte(text)}, {Name: "b.cfg", Data: []byte(text)}}, o)
		if len(c.Servers) > maxServers || len(c.Findings) > maxFindings+1 {
			t.Fatalf("%d servers, %d findings", len(c.Servers), len(c.Findings))
		}
		lines := strings.Count(text, "\n") + 1
		for _, s := range c.Servers[:min(len(c.Servers), 200)] {
			if s.Line < 1 || s.Line > lines || s.Name == "" || s.Backend == "" || c.Backend(s.Backend) == nil {
				t.Fatalf("server %q of %q at line %d of %d", s.Name, s.Backend, s.Line, lines)
			}
			if w := s.WindowAt(s.CheckLimit()); w.Best < 0 || w.Worst < w.Best || s.Inter <= 0 || s.Fall < 1 || s.Rise < 1 {
				t.Fatalf("server %s: %+v", s.Name, w)
			}
			for _, k := range Keys() {
				if o := s.Origin(k); o.Level == "" || o.Line > lines {
					t.Fatalf("server %s: %s from %+v", s.Name, k, o)
				}
			}
		}
		for _, f := range c.Findings {
			if f.ID == "" || f.Severity < Info || f.Severity > Error || f.Why == "" || f.File == "" {
				t.Fatalf("%+v", f)
			}
		}
	})
}
