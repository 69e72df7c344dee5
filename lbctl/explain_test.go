package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// command runs lbctl and gives its exit code and what it wrote.
func command(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), append([]string{"lbctl"}, args...), strings.NewReader(""), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// write makes a file in a directory of the test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const explainCfg = `defaults
 mode http
 timeout connect 5s
 default-server inter 1s
backend web
 option httpchk
 server s1 127.0.0.1:80 check port 81 fall 2 on-marked-down shutdown-sessions agent-check agent-port 82
 server s2 127.0.0.2
backend other
 server s1 "${HOST}:80" track web/s1
`

func TestExplainJSON(t *testing.T) {
	file := write(t, "x.cfg", explainCfg)
	env := write(t, "env", "# of the unit\nHOST='127.0.0.7'\n")
	code, out, errs := command(t, "explain", "-f", file, "--env-file", env, "-o", "json")
	if code != 0 || errs != "" {
		t.Fatalf("exit %d, %s", code, errs)
	}
	var got []map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 {
		t.Fatalf("%d servers", len(got))
	}
	first := got[0]
	if o := first["origin"].(map[string]any)["inter"]; !cmp.Equal(o, map[string]any{"file": file, "line": 4.0, "level": "defaults"}) {
		t.Errorf("inter comes from %v", o)
	}
	if o := first["origin"].(map[string]any)["rise"]; !cmp.Equal(o, map[string]any{"level": "built-in"}) {
		t.Errorf("rise comes from %v", o)
	}
	delete(first, "origin")
	want := map[string]any{
		"file": file, "line": 7.0, "proxy": "web", "server": "s1", "addr": "127.0.0.1", "sport": 80.0, "check": true, "type": "httpchk",
		"inter": 1000.0, "fastinter": 1000.0, "downinter": 1000.0, "fall": 2.0, "rise": 2.0, "check_port": 81.0, "check_addr": nil,
		"agent": true, "agent_port": 82.0, "agent_inter": 2000.0, "agent_addr": "127.0.0.1", "agent_send": nil,
		"on_marked_down": "shutdown-sessions", "on_marked_up": "none", "track": nil, "track_root": nil, "disabled": false, "backup": false,
		"weight": 1.0, "cookie": nil, "slowstart": nil, "maxconn": nil, "observe": nil, "on_error": nil, "init_state": nil, "source": nil, "resolvers": nil,
		"t_check": nil, "t_connect": 5000.0, "mode": "http",
		"window_ms":        map[string]any{"best": 1000.0, "mean": 1500.0, "worst": 2000.0},
		"window_silent_ms": map[string]any{"best": 1000.0, "mean": 1500.0, "worst": 4000.0},
	}
	if d := cmp.Diff(want, first); d != "" {
		t.Error(d)
	}
	second := got[1]
	for _, key := range []string{"sport", "type", "check_port", "agent_port", "agent_inter", "agent_addr", "window_ms"} {
		if second[key] != nil {
			t.Errorf("a server without check, agent and port: %s is %v, want null", key, second[key])
		}
	}
	if second["on_marked_down"] != "none" {
		t.Errorf("on_marked_down %v, want none", second["on_marked_down"])
	}
	if got[2]["addr"] != "127.0.0.7" || got[2]["track_root"] != "web/s1" || got[2]["check"] != false || got[2]["fall"] != 2.0 {
		t.Errorf("the tracker: %v", got[2])
	}
}

func TestExplainTargets(t *testing.T) {
	file := write(t, "x.cfg", strings.Replace(explainCfg, "${HOST}", "127.0.0.9", 1))
	for target, want := range map[string]int{"web/s1": 1, "s1": 2, "web": 2, "127.0.0.1:80": 1, "127.0.0.1:82": 1, "127.0.0.9:80": 1} {
		code, out, errs := command(t, "explain", target, "-f", file)
		if n := strings.Count(out, "\n") - 1; code != 0 || n != want {
			t.Errorf("%s: exit %d, %d servers, want %d\n%s%s", target, code, n, want, out, errs)
		}
	}
	for args, want := range map[string]struct {
		code int
		errs string
	}{
		"web/s9":           {noSuchServer, `lbctl: no server is "web/s9", nor in a backend of that name`},
		"-o yaml":          {2, `lbctl: output "yaml"`},
		"-f /no/such/file": {2, "lbctl: read configuration: stat /no/such/file: no such file or directory"},
		"--env-file /none": {2, "lbctl: read environment file /none: open /none: no such file or directory"},
		"--haproxy /none":  {2, "lbctl: ask /none -vv: "},
	} {
		code, out, errs := command(t, append([]string{"explain", "-f", file}, strings.Fields(args)...)...)
		if code != want.code || !strings.HasPrefix(errs, want.errs) || !strings.Contains(errs, "\nhint: ") || out != "" {
			t.Errorf("%s: exit %d, %q%q, want %d, %q", args, code, out, errs, want.code, want.errs)
		}
	}
}

func TestExplainTable(t *testing.T) {
	file := write(t, "x.cfg", strings.Replace(explainCfg, "${HOST}", "127.0.0.9", 1)+" frob\n")
	code, out, errs := command(t, "explain", "-f", file)
	want := `SERVER    ADDRESS       CHECK                 INTER/FAST/DOWN  RISE/FALL  WINDOW      SILENT  AGENT                  ON-DOWN            LINE
web/s1    127.0.0.1:80  httpchk 127.0.0.1:81  1s/1s/1s         2/2        1s/1.5s/2s  4s      127.0.0.1:82 every 2s  shutdown-sessions  FILE:7
web/s2    127.0.0.2     -                     -                -          -           -       -                      -                  FILE:8
other/s1  127.0.0.9:80  track web/s1          1s/1s/1s         2/2        1s/1.5s/2s  4s      -                      -                  FILE:10
`
	if d := cmp.Diff(want, strings.ReplaceAll(out, file, "FILE")); d != "" || code != 0 {
		t.Errorf("exit %d\n%s", code, d)
	}
	if !strings.Contains(errs, "FILE:11: warning: no HAProxy up to 3.4 has \"frob\"") && !strings.Contains(errs, ":11: warning: no HAProxy") {
		t.Errorf("the unknown word is not told: %q", errs)
	}
}

func TestEnvFile(t *testing.T) {
	env := map[string]string{"KEPT": "1", "A": "old"}
	text := "# c\n; c\n\nA=one\nB = \" two\\\" three \\n\" \nC='x\\y'  \nD=a b  \nE=\"two\nlines\"\nF=long \\\nline\nG=\nH=a\\ b\\\\\r\nI=\"$A\"\n"
	if err := parseEnvFile(text, env); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"KEPT": "1", "A": "one", "B": " two\" three \\n", "C": "x\\y", "D": "a b", "E": "two\nlines", "F": "long line", "G": "", "H": "a b\\", "I": "$A"}
	if d := cmp.Diff(want, env); d != "" {
		t.Error(d)
	}
	for text, want := range map[string]string{"x": "line 1: \"x\" is not NAME=VALUE", "\n=x": "line 2: \"=x\" is not NAME=VALUE", "A B=c": "line 1: \"A B=c\" is not NAME=VALUE", "A=\"x\n\n": "line 1: the value of A does not end"} {
		if err := parseEnvFile(text, map[string]string{}); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestVersionForConditions(t *testing.T) {
	file := write(t, "x.cfg", "backend b\n.if version_atleast(3.1)\n server new 127.0.0.1:80 check init-state down\n.else\n server old 127.0.0.1:80 check\n.endif\n")
	for version, want := range map[string]string{"3.2.1": "b/new", "2.6.12": "b/old"} {
		code, out, errs := command(t, "explain", "-f", file, "--haproxy-version", version)
		if code != 0 || !strings.Contains(out, want) || errs != "" {
			t.Errorf("%s: exit %d, want %s\n%s%s", version, code, want, out, errs)
		}
	}
}

// FuzzEnvFile: whatever the text is, reading ends, and names have no blanks.
func FuzzEnvFile(f *testing.F) {
	for _, s := range []string{"A=1\n", "A=\"x\ny\"\n", "A='\\\n", "A=a\\\nb\\\n", "=\n", "# \\\nA=b", "A=\\", "A=\"\\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		env := map[string]string{}
		if err := parseEnvFile(text, env); err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
		for name, value := range env {
			if name == "" || strings.ContainsAny(name, " \t=\"") || len(value) > len(text) {
				t.Errorf("%q=%q", name, value)
			}
		}
	})
}
