package cfg

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSplit(t *testing.T) {
	env := map[string]string{"A": "x y", "EMPTY": "", "N": "7"}
	for line, want := range map[string]string{
		"  a b\tc  ":                   "a|b|c",
		"a # b":                        "a",
		`a\#b "c#d" '#e'`:              "a#b|c#d|#e",
		`"a b"c 'd e'`:                 "a bc|d e",
		`a\ b \n\t\\ \q \x41`:          "a b|\n\t\\|\\q|A",
		`'a\nb' "a\nb"`:                `a\nb|` + "a\nb",
		`"$A" '$A' $A \"$A`:            `x y|$A|$A|"$A`,
		`"${A}z" "${NO-d e}" "${A-d}"`: "x yz|d e|x y",
		`"${A[*]}" "p${A[*]}q"`:        "x|y|px|yq",
		`"\$A" "\"" "'"`:               `$A|"|'`,
		`"${.LINE}-${.FILE}"`:          "12-f.cfg",
		"a\rb":                         "a",
		"a \xff\xa0 b":                 "a|\xff\xa0|b",
		`a "" b`:                       "a (2 empty)",
		`a "$NO" b`:                    "a (2 empty)",
		`a ""`:                         "a",
		`"$EMPTY"`:                     "",
		`a "b`:                         "! unmatched quote",
		`a "${A"`:                      "! unmatched brace in the name of an environment variable",
		`a "${A?x}"`:                   "! unmatched brace in the name of an environment variable",
		`"$1"`:                         "! forbidden first character in the name of an environment variable",
		`"${A[1]}"`:                    "! truncated or invalid word expansion sequence",
		`"$.NOPE"`:                     "! unknown pseudo-variable .NOPE",
		`a\x4`:                         "! truncated or invalid hexadecimal sequence",
		`\`:                            `\`,
		strings.Repeat("a ", 64):       "! more than 64 words",
		strings.TrimSpace(strings.Repeat("a ", 64)): strings.TrimSuffix(strings.Repeat("a|", 64), "|"),
	} {
		s := splitter{env: env, file: "f.cfg", line: 12}
		words, empty, problem := s.split(line)
		got := strings.Join(words, "|")
		if problem != "" {
			got = "! " + problem
		} else if empty > 0 {
			got += map[bool]string{true: " (2 empty)", false: " (empty)"}[empty == 2]
		}
		if got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

func TestParseTime(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"2s": 2 * time.Second, "2000": 2 * time.Second, "500us": time.Millisecond, "1500us": 2 * time.Millisecond,
		"1m": time.Minute, "2h": 2 * time.Hour, "1d": 24 * time.Hour, "0": 0, "007": 7 * time.Millisecond, "2147483647": 2147483647 * time.Millisecond,
	} {
		if got, problem, odd := parseTime(in); got != want || problem != "" || odd != "" {
			t.Errorf("%q: %v %s%s, want %v", in, got, problem, odd, want)
		}
	}
	if got, problem, odd := parseTime("1m30s"); got != time.Minute || problem != "" || odd == "" {
		t.Errorf("1m30s: %v %q %q: HAProxy 2.6 takes the minute and warns", got, problem, odd)
	}
	for _, in := range []string{"", "x", "-1", "3y", "1u", "2147483648", "25d", "99999999999999999999", "999999999999d", " 1"} {
		if got, problem, _ := parseTime(in); problem == "" {
			t.Errorf("%q was taken as %v", in, got)
		}
	}
}

func TestParseAddress(t *testing.T) {
	env := map[string]string{"H": "127.0.0.9", "P": "80"}
	for in, want := range map[string]address{
		"127.0.0.1:80":  {network: "ip", host: "127.0.0.1", port: 80},
		"${H}:$P":       {network: "ip", host: "127.0.0.9", port: 80},
		"name":          {network: "ip", host: "name", relative: true},
		"name:+5":       {network: "ip", host: "name", relative: true},
		"::1:80":        {network: "ip", host: "::1", port: 80},
		"[::1]:80":      {network: "ip", host: "::1", port: 80},
		"[::1]":         {network: "ip", host: "::1", relative: true},
		"ipv6@[::1]:80": {network: "ip", host: "::1", port: 80},
		"*:80":          {network: "ip", host: "0.0.0.0", port: 80},
		":80":           {network: "ip", host: "0.0.0.0", port: 80},
		"/run/x":        {network: "unix", host: "/run/x"},
		"unix@/run/x":   {network: "unix", host: "unix@/run/x"},
		"abns@x":        {network: "abns", host: "abns@x"},
		"a:b":           {network: "ip", host: "a", problem: `"a:b" has an invalid character "b" in its port`},
		"a:70000":       {network: "ip", host: "a", port: 70000, problem: `"a:70000" has an invalid port`},
		"$NO":           {problem: `"$NO" is an empty address (environment variable missing?)`},
	} {
		if d := cmp.Diff(want, parseAddress(in, env), cmp.AllowUnexported(address{})); d != "" {
			t.Errorf("%q: %s", in, d)
		}
	}
}

func TestConditions(t *testing.T) {
	o := Options{Version: "2.6.12-1+deb12u4", Features: "+OPENSSL -QUIC +THREAD_DUMP", SSLLibrary: "OpenSSL 3.0.22 25 Aug 2026"}
	env := map[string]string{"X": "1"}
	for text, want := range map[string]string{
		"": "no", "1": "yes", "0": "no", "!0": "yes", "! ! 1": "yes", "1 && 0 || 1": "yes", "1 && (0 || 0)": "no",
		"defined(X)": "yes", "defined(Y)": "no", "feature(OPENSSL)": "yes", "feature(QUIC)": "no", "feature(THREAD)": "no",
		"version_atleast(2.6.12)": "yes", "version_atleast(2.6.13)": "no", "version_before(2.7-dev1)": "yes", "version_atleast(2.6-dev5)": "yes",
		"openssl_version_atleast(3.0.0)": "yes", "openssl_version_before(1.1.1k)": "no", "ssllib_name_startswith(Libre)": "no",
		`streq("a,b",'a,b')`: "yes", "strneq(a,b)": "yes", "strstr(abc,b)": "yes", "enabled(EPOLL)": "unknown: what enabled asks of a running HAProxy",
		"0 && enabled(EPOLL)": "no", "1 || enabled(EPOLL)": "yes", "!enabled(EPOLL)": "unknown: what enabled asks of a running HAProxy",
		`streq(a\,a\)`: "yes", `streq("a\"b",'a"b')`: "yes", `streq(a\ b,"a b")`: "yes",
		"1 2": `unexpected "2" at the end of the conditional expression "1 2"`, "frob(1)": `unparsable conditional expression "frob(1)"`,
		"(1": `expected ')' at ""`, "defined": "missing arguments of defined", "streq(a)": "streq wants 2 arguments", "defined(a": "unclosed arguments of defined",
		strings.Repeat("(", 200) + "1": "parentheses more than 99 deep",
	} {
		c := condition{text: text, env: env, o: o}
		v, err := c.evaluate()
		got := [...]string{"no", "yes", "unknown: " + c.missing}[v]
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestOwnVariables: what HAProxy sets before it reads.
func TestOwnVariables(t *testing.T) {
	text := "backend b\n.if streq(\"$HAPROXY_BRANCH\",3.2)\n server \"s-${HAPROXY_STARTUP_VERSION}\" 127.0.0.1:80\n.endif\n"
	for version, want := range map[string]int{"3.2.26-1": 1, "3.0.11": 0, "2.6.12": 0, "": 0} {
		if c := read(text, Options{Version: version}); len(c.Servers) != want || len(c.Findings) != 0 {
			t.Errorf("%q: %d servers, want %d; %v", version, len(c.Servers), want, c.Findings)
		}
	}
}

// TestUndecided: nothing is guessed of what the options do not say.
func TestUndecided(t *testing.T) {
	text := "backend b\n.if feature(X)\n server a 127.0.0.1:1\n.elif 1\n server b 127.0.0.1:1\n.else\n server c 127.0.0.1:1\n.endif\n server d 127.0.0.1:1\n"
	c := read(text, Options{})
	if len(c.Servers) != 1 || c.Servers[0].Name != "d" || len(c.Findings) != 1 || c.Findings[0].ID != "if-undecided" || c.Findings[0].Line != 2 {
		t.Errorf("%+v", c.Findings)
	}
	if c := read(text, Options{Features: "+X"}); len(c.Servers) != 2 || c.Servers[0].Name != "a" || len(c.Findings) != 0 {
		t.Errorf("%+v", c.Findings)
	}
}

func TestCompareVersions(t *testing.T) {
	rising := []string{"1.8.30", "2.6-dev3", "2.6-dev12", "2.6.0", "2.6.12-1+deb12u4", "2.6.13", "3.0.11", "3.5-dev4-50872d", "3.5.0"}
	for i, a := range rising {
		for j, b := range rising {
			if got := CompareVersions(a, b); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s and %s: %d", a, b, got)
			}
		}
	}
}
