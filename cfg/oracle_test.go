package cfg

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	oracleSeed  = flag.Int64("cfg.seed", 1, "seed of the generated configurations")
	oracleFiles = flag.Int("cfg.files", 520, "how many are generated")
)

// perProcess is how many generated files one HAProxy is started with.
const perProcess = 20

// TestOracle compares generated configurations with the real binary: whether it
// takes the file, and for those it takes, what a started HAProxy says of every
// server.
func TestOracle(t *testing.T) {
	bin := haproxyBinary(t)
	dir := t.TempDir()
	o := askOptions(t, bin)
	var good []string
	refused := 0
	for i := range *oracleFiles {
		g := newGenerator(*oracleSeed, i)
		name := filepath.Join(dir, fmt.Sprintf("gen%03d.cfg", i))
		if err := os.WriteFile(name, []byte(g.file()), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load([]string{name}, o)
		if err != nil {
			t.Fatal(err)
		}
		says, taken := haproxyCheck(t, bin, name)
		switch mine := refusedBy(c); {
		case taken && mine != "":
			t.Errorf("file %d: HAProxy takes it, we say %s\n%s", i, mine, g.out.String())
		case !taken && mine == "":
			t.Errorf("file %d: we take it, HAProxy says %s\n%s", i, says, g.out.String())
		case taken:
			good = append(good, name)
		default:
			refused++
		}
	}
	servers := 0
	for len(good) > 0 {
		n := min(perProcess, len(good))
		servers += compareLive(t, bin, dir, good[:n], o)
		good = good[n:]
	}
	t.Logf("%d files, of which HAProxy refuses %d; %d servers compared", *oracleFiles, refused, servers)
	if refused < *oracleFiles/20 || servers < *oracleFiles {
		t.Errorf("the generator has become too tame")
	}
}

// TestMutants: what HAProxy still takes after accidents of the editor, we take
// too, and read alike. What it refuses then is its own affair: most of it is
// about lines that decide nothing here.
func TestMutants(t *testing.T) {
	bin := haproxyBinary(t)
	dir := t.TempDir()
	o := askOptions(t, bin)
	taken, servers := 0, 0
	for i := range *oracleFiles / 2 {
		g := newGenerator(*oracleSeed+5000, i)
		text := g.mutant()
		name := filepath.Join(dir, fmt.Sprintf("mutant%03d.cfg", i))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok := haproxyCheck(t, bin, name); !ok {
			continue
		}
		taken++
		c, err := Load([]string{name}, o)
		if err != nil {
			t.Fatal(err)
		}
		if mine := refusedBy(c); mine != "" {
			t.Errorf("mutant %d: HAProxy takes it, we say %s\n%s", i, mine, text)
			continue
		}
		servers += compareLive(t, bin, dir, []string{name}, o)
	}
	t.Logf("%d mutants, of which HAProxy takes %d; %d servers compared", *oracleFiles/2, taken, servers)
	if taken < *oracleFiles/20 {
		t.Errorf("the accidents have become too bad")
	}
}

// refusedBy is why HAProxy should refuse the files: a word that no community
// version knows is a warning of ours, and fatal to this binary.
func refusedBy(c *Config) string {
	if err := c.Refused(); err != nil {
		return err.Error()
	}
	for _, f := range c.Findings {
		if strings.HasPrefix(f.ID, "unknown-") {
			return f.Why
		}
	}
	return ""
}

func haproxyBinary(t testing.TB) string {
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatalf("this test needs HAProxy: %v; install it with: make deps", err)
	}
	return bin
}

// oracleEnv is the whole environment of the HAProxy that is asked.
var oracleEnv = map[string]string{"OUTER": "127.0.7.7", "OUTPORT": "7070", "SPACED": "rise 4 fall 6", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

func environ() (env []string) {
	for k, v := range oracleEnv {
		env = append(env, k+"="+v)
	}
	return env
}

func askOptions(t testing.TB, bin string) Options {
	out, err := exec.Command(bin, "-vv").Output()
	if err != nil {
		t.Fatalf("%s -vv: %v", bin, err)
	}
	o := Options{Env: oracleEnv}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if v, ok := strings.CutPrefix(line, "HAProxy version "); ok {
			o.Version, _, _ = strings.Cut(v, " ")
		} else if v, ok := strings.CutPrefix(line, "Feature list : "); ok {
			o.Features = v
		} else if v, ok := strings.CutPrefix(line, "Built with OpenSSL version : "); ok {
			o.SSLLibrary = v
		}
	}
	return o
}

// haproxyCheck is `haproxy -c`. It exits 2 where a file is right and has nothing
// to listen on.
func haproxyCheck(t testing.TB, bin string, files ...string) (says string, taken bool) {
	args := []string{"-c"}
	for _, f := range files {
		args = append(args, "-f", f)
	}
	cmd := exec.Command(bin, args...)
	cmd.Env = environ()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s -c: %v", bin, err)
	}
	return string(out), err == nil || exit.ExitCode() == 2
}

// compareLive starts HAProxy with the files and compares every server.
func compareLive(t *testing.T, bin, dir string, files []string, o Options) int {
	t.Helper()
	socket := filepath.Join(dir, "s"+strconv.Itoa(len(files))+filepath.Base(files[0]))
	base := socket + "-base.cfg"
	text := "global\n unix-bind prefix /nowhere/\n stats socket " + socket + " level admin\n stats socket unix@" + socket + ".2 mode 600\n" +
		" stats socket " + socket + ".3 expose-fd listeners level user\n"
	if err := os.WriteFile(base, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	files = append([]string{base}, files...)
	c, err := Load(files, o)
	if err != nil {
		t.Fatal(err)
	}
	stat, state, sockets := runHAProxy(t, bin, socket, files)
	for _, s := range c.Sockets {
		if line := s.Address + " " + s.Level; !strings.Contains(sockets, line) {
			t.Errorf("%s:%d: HAProxy has no socket %q\n%s", s.File, s.Line, line, sockets)
		}
	}
	seen := 0
	for _, s := range c.Servers {
		if c.Backend(s.Backend).Disabled {
			continue // not in show stat
		}
		n := s.Backend + "/" + s.Name
		if stat[n] == nil || state[n] == nil {
			t.Errorf("%s:%d: HAProxy has no server %s", s.File, s.Line, n)
			continue
		}
		seen++
		for _, d := range liveDifferences(s, stat[n], state[n]) {
			t.Errorf("%s:%d: %s: %s\n%s", s.File, s.Line, n, d, sourceLine(s))
		}
	}
	// Names may be double in a disabled backend.
	names := make(map[string]bool)
	for _, s := range c.Servers {
		names[s.Backend+"/"+s.Name] = true
	}
	if len(names) != len(state) {
		t.Errorf("HAProxy has %d servers, we %d: %v", len(state), len(names), files)
	}
	return seen
}

func sourceLine(s Server) string {
	data, _ := os.ReadFile(s.File)
	return strings.Split(string(data), "\n")[s.Line-1]
}

// liveDifferences compares one server with `show stat` and `show servers state`.
func liveDifferences(s Server, stat, state map[string]string) (bad []string) {
	same := func(what, mine, theirs string) {
		if mine != theirs {
			bad = append(bad, fmt.Sprintf("%s: we say %q, HAProxy %q", what, mine, theirs))
		}
	}
	bit := func(v string, b int) string { n, _ := strconv.Atoi(v); return strconv.FormatBool(n&b != 0) }
	orDash := func(v string) string {
		if v == "" {
			return "-"
		}
		return v
	}
	if s.Resolvers == "" && net.ParseIP(s.Addr) != nil {
		same("address", s.Addr, state["srv_addr"])
	}
	if !s.MapPorts {
		same("port", strconv.Itoa(s.Port), state["srv_port"])
	}
	same("check", strconv.FormatBool(s.Check), bit(state["srv_check_state"], 2))
	same("agent", strconv.FormatBool(s.Agent), bit(state["srv_agent_state"], 2))
	same("disabled", strconv.FormatBool(s.Disabled), bit(state["srv_admin_state"], 4))
	same("weight", strconv.Itoa(s.Weight), state["srv_uweight"])
	same("backup", map[bool]string{true: "1", false: "0"}[s.Backup], stat["bck"])
	same("mode", s.Mode, stat["mode"])
	same("track", s.Track, stat["tracked"])
	same("check port as written", strconv.Itoa(s.checkPort), state["srv_check_port"])
	same("agent port as written", strconv.Itoa(s.agentPort), state["srv_agent_port"])
	same("check address", orDash(s.checkAddr), state["srv_check_addr"])
	same("agent address", orDash(s.agentAddr), state["srv_agent_addr"])
	same("cookie", s.Cookie, stat["cookie"])
	// A paused check is left out of show stat: of a disabled server, of one
	// whose name does not resolve, of a root like that.
	if paused := stat["check_rise"] == "" && (s.Disabled || s.TrackRoot != "" || net.ParseIP(s.Addr) == nil); (s.Check || s.TrackRoot != "") && !paused {
		same("rise", strconv.Itoa(s.Rise), stat["check_rise"])
		same("fall", strconv.Itoa(s.Fall), stat["check_fall"])
	}
	return bad
}

// runHAProxy starts HAProxy, asks it, and ends it.
func runHAProxy(t *testing.T, bin, socket string, files []string) (stat, state map[string]map[string]string, sockets string) {
	t.Helper()
	args := []string{"-db"}
	for _, f := range files {
		args = append(args, "-f", f)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	defer func() { cancel(); <-ended }()
	var reply string
	for err := error(io.EOF); err != nil; reply, err = ask(socket, "show stat -1 4 -1;show servers state;show cli sockets") {
		select {
		case <-ended:
			t.Fatalf("HAProxy ended: %s", log.String())
		case <-ctx.Done():
			t.Fatalf("HAProxy did not answer on %s: %v", socket, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	statText, rest, _ := strings.Cut(reply, "\n\n")
	stateText, sockets, _ := strings.Cut(rest, "\n\n")
	return parseStat(t, statText), parseState(t, stateText), sockets
}

func ask(socket, command string) (string, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		return "", err
	}
	all, err := io.ReadAll(conn)
	return string(all), err
}

func parseStat(t *testing.T, text string) map[string]map[string]string {
	rows, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(text, "# "))).ReadAll()
	if err != nil {
		t.Fatalf("show stat: %v\n%s", err, text)
	}
	out := make(map[string]map[string]string)
	for _, row := range rows[1:] {
		m := make(map[string]string, len(row))
		for i, v := range row {
			m[rows[0][i]] = v
		}
		out[m["pxname"]+"/"+m["svname"]] = m
	}
	return out
}

func parseState(t *testing.T, text string) map[string]map[string]string {
	out := make(map[string]map[string]string)
	var head []string
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) < 2:
		case fields[0] == "#":
			head = fields[1:]
		default:
			m := make(map[string]string, len(fields))
			for i, v := range fields {
				m[head[i]] = v
			}
			out[m["be_name"]+"/"+m["srv_name"]] = m
		}
	}
	if head == nil {
		t.Fatalf("show servers state: %q", text)
	}
	return out
}
