package cfg

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// read reads one text as the file x.cfg.
func read(text string, o Options) *Config {
	return Read([]Text{{Name: "x.cfg", Data: []byte(text)}}, o)
}

// servers reads lines of a backend, and fails on any finding.
func servers(t *testing.T, lines string, o Options) []Server {
	t.Helper()
	c := read("defaults\n mode http\nbackend bk\n"+lines+"\n", o)
	for _, f := range c.Findings {
		t.Errorf("line %d: %s: %s", f.Line, f.ID, f.Why)
	}
	return c.Servers
}

// TestCanonical reads the two files of testdata, which HAProxy takes and which
// differ in the agent's words alone.
func TestCanonical(t *testing.T) {
	bin := haproxyBinary(t)
	plain, agent := canonical(t, bin, "haproxy.cfg"), canonical(t, bin, "haproxy-agent.cfg")
	added := strings.NewReplacer(" agent-check agent-port 30180 agent-inter 500ms", "", "    timeout check 2s\n", "").Replace(agent)
	if d := cmp.Diff(plain, added); d != "" {
		t.Errorf("haproxy-agent.cfg differs from haproxy.cfg in more than the agent-check:\n%s", d)
	}
	if n := strings.Count(agent, "agent-check agent-port"); n != 5 {
		t.Errorf("%d servers with an agent-check, want 5", n)
	}
	c, err := Load([]string{"../testdata/haproxy-agent.cfg"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Refused(); err != nil || len(c.Servers) != 6 || len(c.Findings) != 0 {
		t.Errorf("%v, %d servers, findings %v", err, len(c.Servers), c.Findings)
	}
	s := c.Servers[0]
	got := []any{
		s.Backend, s.Name, s.Addr, s.Port, s.Type, s.CheckPort, s.Inter, s.FastInter, s.Rise, s.Fall, s.OnMarkedDown,
		s.AgentAddr, s.AgentPort, s.AgentInter, s.TimeoutCheck, s.TimeoutConnect, s.Mode, s.Window(),
	}
	want := []any{
		"istio-http-backend", "master1", "203.0.113.212", 30080, "httpchk", 30180, 2 * time.Second, 2 * time.Second, 2, 2,
		"shutdown-sessions", "203.0.113.212", 30180, 500 * time.Millisecond, 2 * time.Second, 5 * time.Second, "http",
		Window{Best: 2 * time.Second, Mean: 3 * time.Second, Worst: 4 * time.Second},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]AdminSocket{{Network: "unix", Address: "/run/haproxy/admin.sock", Level: "admin", File: "../testdata/haproxy-agent.cfg", Line: 11}}, c.Sockets); d != "" {
		t.Error(d)
	}
}

// canonical is a file of testdata after HAProxy has taken it, with a bundle of
// the test's own.
func canonical(t *testing.T, bin, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(bundle, selfSigned(t), 0o600); err != nil {
		t.Fatal(err)
	}
	const path = "/etc/haproxy/certs/homelab-lb-bundle.pem"
	if strings.Count(string(data), path) != 1 {
		t.Errorf("%s names %s not once", name, path)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(strings.Replace(string(data), path, bundle, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if says, taken := haproxyCheck(t, bin, file); !taken || !strings.Contains(says, "Configuration file is valid") {
		t.Errorf("%s: %s", name, says)
	}
	return string(data)
}

func TestDefaultServerIsPositional(t *testing.T) {
	got := servers(t, ` server s1 127.0.0.1:80 check
 default-server inter 9s fall 7 port 8008 agent-addr 127.0.0.2 agent-port 9001
 server s2 127.0.0.1:80 check agent-check
 default-server fall 4
 server s3 127.0.0.1:80 check inter 1s`, Options{})
	want := []struct {
		inter       time.Duration
		fall, check int
		agent       bool
	}{{2 * time.Second, 3, 80, false}, {9 * time.Second, 7, 8008, true}, {time.Second, 4, 8008, false}}
	for i, w := range want {
		if s := got[i]; s.Inter != w.inter || s.Fall != w.fall || s.CheckPort != w.check || s.Agent != w.agent {
			t.Errorf("%s: inter %v fall %d port %d agent %v, want %v", s.Name, s.Inter, s.Fall, s.CheckPort, s.Agent, w)
		}
	}
	if s := got[1]; s.AgentAddr != "127.0.0.2" || s.AgentPort != 9001 || s.AgentInter != 2*time.Second {
		t.Errorf("agent %s:%d every %v: agent-inter does not follow inter", s.AgentAddr, s.AgentPort, s.AgentInter)
	}
}

func TestOrigin(t *testing.T) {
	c := read(`defaults base
 timeout connect 5s
 default-server inter 1s
backend bk from base
 mode http
 option httpchk
 default-server fall 5
 server s 127.0.0.1:80 check rise 9
`, Options{})
	for key, want := range map[string]Origin{
		"inter": {"x.cfg", 3, "defaults"}, "fastinter": {"x.cfg", 3, "defaults"}, "t_connect": {"x.cfg", 2, "defaults"},
		"fall": {"x.cfg", 7, "default-server"}, "rise": {"x.cfg", 8, "server"}, "addr": {"x.cfg", 8, "server"},
		"mode": {"x.cfg", 5, "backend"}, "type": {"x.cfg", 6, "backend"}, "agent_inter": {"", 0, "built-in"},
		"t_check": {"", 0, "built-in"}, "check_port": {"x.cfg", 8, "server"}, "nonsense": {},
	} {
		if got := c.Servers[0].Origin(key); got != want {
			t.Errorf("%s: %v, want %v", key, got, want)
		}
	}
}

// TestOriginOfSections: what a backend has of its defaults comes from there.
func TestOriginOfSections(t *testing.T) {
	c := read(`global
 master-worker
 hard-stop-after 30s
 spread-checks 5
defaults d
 option redispatch
 retries 5
 cookie SRV insert
backend b from d
 retry-on all-retryable-errors
 http-check disable-on-404
 no option redispatch
backend plain
`, Options{})
	b, plain := c.Backend("b"), c.Backend("plain")
	for _, o := range []struct {
		what      string
		got, want Origin
	}{
		{"retries", b.Origin("retries"), Origin{"x.cfg", 7, "defaults"}},
		{"cookie", b.Origin("cookie"), Origin{"x.cfg", 8, "defaults"}},
		{"retry_on", b.Origin("retry_on"), Origin{"x.cfg", 10, "backend"}},
		{"redispatch", b.Origin("redispatch"), Origin{"x.cfg", 12, "backend"}},
		{"disable_on_404", plain.Origin("disable_on_404"), Origin{Level: "built-in"}},
		{"retries of the other", plain.Origin("retries"), Origin{"x.cfg", 7, "defaults"}},
		{"hard_stop_after", c.Global.Origin("hard_stop_after"), Origin{"x.cfg", 3, "global"}},
		{"nbproc", c.Global.Origin("nbproc"), Origin{Level: "built-in"}},
	} {
		if o.got != o.want {
			t.Errorf("%s: %v, want %v", o.what, o.got, o.want)
		}
	}
	if b.Retries != 5 || b.Redispatch || !plain.Redispatch || b.Cookie != "SRV" || !b.DisableOn404 || plain.DisableOn404 ||
		!c.Global.MasterWorker || c.Global.HardStopAfter != 30*time.Second || c.Global.SpreadChecks != 5 {
		t.Errorf("%+v\n%+v\n%+v", b, plain, c.Global)
	}
}

func TestTemplate(t *testing.T) {
	var names []string
	for _, s := range servers(t, " server-template web 3 127.0.0.1:80 check\n server-template w 5-6 127.0.0.1:81\n server s1 127.0.0.1:82", Options{}) {
		names = append(names, s.Name)
	}
	if d := cmp.Diff([]string{"web1", "web2", "web3", "w5", "w6", "s1"}, names); d != "" {
		t.Error(d)
	}
}

func TestTrackChain(t *testing.T) {
	c := read(`defaults
 timeout check 3s
backend bk
 server s1 127.0.0.1:80 check inter 200 fall 4 port 81
backend tr
 server a 127.0.0.1:80 track b
 server b 127.0.0.1:80 track bk/s1
`, Options{})
	for _, s := range c.Servers[1:] {
		if s.Check || s.TrackRoot != "bk/s1" || s.Inter != 200*time.Millisecond || s.Fall != 4 || s.CheckPort != 81 || s.Window().Best != 600*time.Millisecond {
			t.Errorf("%s: %+v", s.Name, s)
		}
		if o := s.Origin("fall"); o.Line != 4 {
			t.Errorf("%s: fall comes from %v", s.Name, o)
		}
	}
	if a, b := c.Servers[1].Track, c.Servers[2].Track; a != "tr/b" || b != "bk/s1" {
		t.Errorf("track %s, %s", a, b)
	}
}

func TestWindow(t *testing.T) {
	s := servers(t, " server n1 127.0.0.1:80 check inter 10s fastinter 1s fall 2", Options{})[0]
	if got, want := s.Window(), (Window{time.Second, 6 * time.Second, 11 * time.Second}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got := s.CheckLimit(); got != 10*time.Second {
		t.Errorf("without timeout check a check is cut at inter, not %v", got)
	}
	c := read("global\n spread-checks 20\ndefaults\n timeout check 2s\n timeout connect 500\nbackend b\n server s 127.0.0.1:80 check inter 1s fall 2\n", Options{})
	s = c.Servers[0]
	if got, want := s.WindowAt(s.CheckLimit()), (Window{800 * time.Millisecond, 1500 * time.Millisecond, 7400 * time.Millisecond}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	s = servers(t, " server s 127.0.0.1:80 check inter 24d fall 2147483647", Options{})[0]
	if w := s.WindowAt(s.CheckLimit()); w.Best <= 0 || w.Worst < w.Mean || w.Mean < w.Best {
		t.Errorf("the longest window there can be: %v", w)
	}
	if got := servers(t, " server s 127.0.0.1:80", Options{})[0].Window(); got != (Window{}) {
		t.Errorf("no check, window %v", got)
	}
}

// TestSeveralFiles: a directory's files are one configuration, in byte order.
func TestSeveralFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"10.cfg": "global\n setenv P 8008\ndefaults\n default-server fall 5\n", "20.cfg": "backend b\n server s \"127.0.0.1:${P}\" check\n",
		".30.cfg": "junk\n", "40.conf": "junk\n", "9.cfg": "defaults\n default-server fall 9\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Load([]string{dir}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Files) != 3 || len(c.Servers) != 1 || c.Servers[0].Port != 8008 || c.Servers[0].Fall != 5 || len(c.Findings) != 0 {
		t.Errorf("%v %+v %v", c.Files, c.Servers, c.Findings)
	}
}

func TestLoadErrors(t *testing.T) {
	empty := t.TempDir()
	for path, want := range map[string]string{
		filepath.Join(empty, "none.cfg"): "read configuration: stat ", empty: "no file that ends in .cfg",
	} {
		if _, err := Load([]string{path}, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// TestConnectPort: the port of the first connect rule goes before the server's,
// rules of a section replace those of its defaults, and count for their own kind
// of check only.
func TestConnectPort(t *testing.T) {
	c := read(`defaults
 option tcp-check
 tcp-check connect port 81
backend inherits
 server s 127.0.0.1:80 check port 90
backend replaces
 tcp-check connect
 tcp-check connect port 82
 server s 127.0.0.1:80 check port 90
backend other-kind
 option httpchk
 server s 127.0.0.1:80 check
`, Options{})
	for i, want := range []int{81, 90, 80} {
		if got := c.Servers[i].CheckPort; got != want {
			t.Errorf("%s: port %d, want %d", c.Servers[i].Backend, got, want)
		}
	}
}

// TestUnknownWordHidesNothing: the value of a word that nobody knows is no second
// finding, and what follows it is read.
func TestUnknownWordHidesNothing(t *testing.T) {
	c := read("backend b\n server s 127.0.0.1:80 frob 12 inter 5s check\n", Options{})
	if s := c.Servers[0]; !s.Check || s.Inter != 5*time.Second || len(c.Findings) != 1 {
		t.Errorf("%+v %v", s, c.Findings)
	}
}

// TestDefaultForm: `default option` puts an option back to off.
func TestDefaultForm(t *testing.T) {
	c := read("defaults\n option redispatch\nbackend a\n default option redispatch\nbackend b\n", Options{})
	if c.Backend("a").Redispatch || !c.Backend("b").Redispatch || len(c.Findings) != 0 {
		t.Errorf("%+v", c)
	}
}

// TestBounds: what would take memory without end is refused by name.
func TestBounds(t *testing.T) {
	for text, want := range map[string]string{
		"backend b\n server-template t 1-99999999 127.0.0.1:80\n":                                        "too-many-servers",
		strings.Repeat("backend b\n", maxSections+1):                                                     "too-many-sections",
		"global\n setenv A aaaaaaaaaaaaaaaa\n" + strings.Repeat(" setenv A \"$A$A$A$A\"\n", 12):          "line",
		strings.Repeat("backend b\n frobnicate\n", maxFindings):                                          "too-many",
		"defaults\nbackend b\n server s 127.0.0.1:80 check inter " + strings.Repeat("x", 300_000) + "\n": "value",
	} {
		c := read(text, Options{})
		hit, size := false, 0
		for _, f := range c.Findings {
			hit = hit || f.ID == want
			size += len(f.Why)
		}
		if !hit || len(c.Findings) > maxFindings+1 || size > maxFindings*(maxWhy+10) {
			t.Errorf("%.40q: no %s among %d findings of %d bytes", text, want, len(c.Findings), size)
		}
	}
}

// TestServerWordsElsewhere: server-state-file, peers and rings hold no servers.
func TestServerWordsElsewhere(t *testing.T) {
	c := read(`global
 server-state-base /tmp
 server-state-file st
backend bk
	server-state-file-name bk.state
		server	s1	127.0.0.1:80	check	inter	3s	
peers p
 server other 127.0.0.1:1025
ring r
 server log1 127.0.0.1:514
`, Options{})
	if len(c.Servers) != 1 || c.Servers[0].Inter != 3*time.Second || c.StateFile != "/tmp/st" || len(c.Findings) != 0 {
		t.Errorf("%+v %q %v", c.Servers, c.StateFile, c.Findings)
	}
}

// TestParallel: nothing is shared between two reads; config-parser's own reader
// has a package variable that races.
func TestParallel(t *testing.T) {
	text, err := os.ReadFile("../testdata/haproxy-agent.cfg")
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for range 20 {
				if c := read(string(text), Options{}); len(c.Servers) != 6 || len(c.Sockets) != 1 {
					t.Fatalf("%d servers, %d sockets", len(c.Servers), len(c.Sockets))
				}
			}
		})
	}
}

// TestLongLine: no line is lost, however long one is.
func TestLongLine(t *testing.T) {
	got := servers(t, " description "+strings.Repeat("x", 200_000)+"\n server s 127.0.0.1:80", Options{})
	if len(got) != 1 {
		t.Errorf("%d servers behind a line of 200,000 bytes", len(got))
	}
}

func TestSockets(t *testing.T) {
	c := read(`global
 unix-bind prefix /jail mode 770
 stats socket /run/a.sock mode 660 level admin expose-fd listeners
 stats socket unix@/run/b.sock
 stats socket ipv4@127.0.0.1:9999 level user
 stats socket abns@c level operator
 stats socket [::1]:9998 level admin
 stats maxconn 20
`, Options{})
	want := []AdminSocket{
		{"unix", "/run/a.sock", "admin", true, "x.cfg", 3},
		{"unix", "/run/b.sock", "operator", false, "x.cfg", 4},
		{"tcp", "127.0.0.1:9999", "user", false, "x.cfg", 5},
		{"abns", "c", "operator", false, "x.cfg", 6},
		{"tcp", "[::1]:9998", "admin", false, "x.cfg", 7},
	}
	if d := cmp.Diff(want, c.Sockets); d != "" || c.Global.StatsMaxconn != 20 {
		t.Error(d, c.Global.StatsMaxconn)
	}
}
