package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lbdrain/internal/haproxy"
)

// program is the lbctl binary under test, built once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "lbctl")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "lbctl")
	out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return bin, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if bin, err := program(); err == nil {
		os.RemoveAll(filepath.Dir(bin))
	}
	os.Exit(code)
}

// address is a loopback address of this test alone.
func address(t testing.TB, n int) string {
	h := fnv.New32a()
	fmt.Fprint(h, t.Name(), os.Getpid())
	s := h.Sum32()
	return fmt.Sprintf("127.%d.%d.%d", 100+s%100, s>>8&0xff, 1+n)
}

// freePort is a port of ip that nobody listens on.
func freePort(t testing.TB, ip string) int {
	t.Helper()
	l := listen(t, ip)
	defer l.Close()
	return port(l)
}

// listen takes a port of ip that is nobody else's.
func listen(t testing.TB, ip string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}

// process is a program that a test started.
type process struct {
	*exec.Cmd
	out  *output
	done chan struct{}
}

// output collects what a process writes.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func start(t testing.TB, name string, args ...string) *process {
	t.Helper()
	return startWith(t, nil, name, args...)
}

func startWith(t testing.TB, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(name, args...), out: &output{}, done: make(chan struct{})}
	p.Stdout, p.Stderr = p.out, p.out
	p.Env = append(os.Environ(), env...)
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		t.Fatalf("%v (make deps installs HAProxy)", err)
	}
	go func() {
		p.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(name), p.out)
		}
	})
	return p
}

func (p *process) kill() {
	p.Process.Kill()
	<-p.done
}

// lab is a real HAProxy in front of pods.
type lab struct {
	t      testing.TB
	dir    string
	sock   string
	cfg    string
	ip     string
	port   int // of the frontend
	pods   []*pod
	proxy  *process
	client *haproxy.Client
}

// labOptions shape a lab.
type labOptions struct {
	pods      int
	server    string // more words on each server line
	global    string
	be        string // more lines in the backends
	level     string // of the socket; "" is admin
	check     string // the check words; "" is the usual ones
	other     bool   // one more server in each backend, of one name, on different machines
	stateFile bool   // HAProxy starts from the file that lbctl writes
	keep      bool   // without on-marked-down shutdown-sessions
}

// newLab starts HAProxy and OPEN pods, each with a server in web and one in api.
func newLab(t testing.TB, o labOptions) *lab {
	t.Helper()
	l := &lab{t: t, dir: t.TempDir(), ip: address(t, 0)}
	l.sock, l.cfg, l.port = filepath.Join(l.dir, "a.sock"), filepath.Join(l.dir, "haproxy.cfg"), freePort(t, l.ip)
	for i := range max(o.pods, 1) {
		l.pods = append(l.pods, newPod(t, address(t, i+1)))
	}
	if o.level == "" {
		o.level = "admin"
	}
	if o.check == "" {
		o.check = "inter 100ms rise 2 fall 2 agent-check agent-inter 100ms agent-port %d check port %[1]d"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "global\n stats socket %s mode 600 level %s\n nbthread 1\n %s\n", l.sock, o.level, o.global)
	fmt.Fprintf(&b, " stats socket %s mode 600 level operator\n", filepath.Join(l.dir, "operator.sock"))
	if o.stateFile {
		fmt.Fprintf(&b, " server-state-file %s\n", filepath.Join(l.dir, "servers"))
		o.be += "\n load-server-state-from-file global\n"
	}
	fmt.Fprintf(&b, "defaults\n mode http\n timeout connect 1s\n timeout client 60s\n timeout server 60s\n timeout check 2s\n")
	fmt.Fprintf(&b, "frontend f\n bind %s:%d\n use_backend api if { path_beg /api }\n default_backend web\n", l.ip, l.port)
	for n, be := range []string{"web", "api"} {
		fmt.Fprintf(&b, "backend %s\n option httpchk GET /health_check.html\n %s\n", be, o.be)
		for i, p := range l.pods {
			words := fmt.Sprintf(o.check, p.agent) + " " + o.server
			if !o.keep {
				words += " on-marked-down shutdown-sessions"
			}
			fmt.Fprintf(&b, " server s%d %s:%d %s\n", i+1, p.ip, p.data, words)
		}
		if o.other {
			fmt.Fprintf(&b, " server other %s:9\n", address(t, 10+n))
		}
	}
	if err := os.WriteFile(l.cfg, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, err := haproxy.ParseSocket(l.sock)
	if err != nil {
		t.Fatal(err)
	}
	l.client = haproxy.New(socket, haproxy.Options{})
	l.startProxy()
	return l
}

func (l *lab) startProxy(args ...string) {
	l.t.Helper()
	l.proxy = start(l.t, "haproxy", append([]string{"-db", "-f", l.cfg}, args...)...)
	eventually(l.t, "HAProxy answers", func() bool {
		r, err := l.client.Read(context.Background(), haproxy.Scope{})
		return err == nil && r.Info.Pid == l.proxy.Process.Pid
	})
}

// server reads one server.
func (l *lab) server(be, name string) haproxy.Server {
	l.t.Helper()
	r, err := l.client.Read(context.Background(), haproxy.Scope{Backends: []string{be}})
	if err != nil {
		l.t.Fatal(err)
	}
	s, ok := r.Server(be, name)
	if !ok {
		l.t.Fatalf("no server %s/%s", be, name)
	}
	return s
}

// up waits until a server takes traffic with its checks passed.
func (l *lab) up(be, name string) {
	l.t.Helper()
	eventually(l.t, be+"/"+name+" is UP with both checks on", func() bool {
		s := l.server(be, name)
		return s.Admin == 0 && s.Operational == haproxy.OpRunning && s.CheckHealth == s.Rise+s.Fall-1 && s.Check.On() && s.Agent.On()
	})
}

// raw sends one line as socat would.
func (l *lab) raw(line string) string {
	l.t.Helper()
	c, err := net.Dial("unix", l.sock)
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintln(c, line)
	var b bytes.Buffer
	b.ReadFrom(c)
	return b.String()
}

// serve starts the daemon in enforce mode and waits until it keeps.
func (l *lab) serve(args ...string) *process {
	l.t.Helper()
	return l.serveWith(nil, args...)
}

func (l *lab) serveWith(env []string, args ...string) *process {
	l.t.Helper()
	bin, err := program()
	if err != nil {
		l.t.Fatal(err)
	}
	p := startWith(l.t, env, bin, append([]string{
		"serve", "-f", l.cfg, "--state-dir", filepath.Join(l.dir, "state"),
		"--control", filepath.Join(l.dir, "control.sock"), "--mode", "enforce", "--lb-name", "lb1", "--log-level", "debug",
	}, args...)...)
	eventually(l.t, "lbctl serves", func() bool { return strings.Contains(p.out.String(), `"event":"serving"`) })
	return p
}

// done is a finished command.
type done struct {
	code     int
	out, err string
}

// run runs lbctl to its end, against this lab.
func (l *lab) run(args ...string) done {
	l.t.Helper()
	bin, err := program()
	if err != nil {
		l.t.Fatal(err)
	}
	c := exec.Command(bin, append(args, "--socket", l.sock, "--state-dir", filepath.Join(l.dir, "state"), "--control", filepath.Join(l.dir, "control.sock"))...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil && c.ProcessState == nil {
		l.t.Fatal(err)
	}
	return done{c.ProcessState.ExitCode(), out.String(), errs.String()}
}

// must runs lbctl and wants an exit code.
func (l *lab) must(code int, args ...string) done {
	l.t.Helper()
	d := l.run(args...)
	if d.code != code {
		l.t.Fatalf("lbctl %s: exit %d, want %d\n%s%s", strings.Join(args, " "), d.code, code, d.out, d.err)
	}
	return d
}

// results reads -o json.
func (l *lab) results(code int, args ...string) []result {
	l.t.Helper()
	d := l.must(code, append(args, "-o", "json")...)
	var all []result
	if err := json.Unmarshal([]byte(d.out), &all); err != nil {
		l.t.Fatalf("%v: %s", err, d.out)
	}
	return all
}

// get asks the frontend for path, on a connection of its own.
func (l *lab) get(path string) (*http.Response, error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	return c.Get("http://" + net.JoinHostPort(l.ip, strconv.Itoa(l.port)) + path)
}

// hang starts a request that lasts until the pod lets it go, and waits until it
// has arrived. The channel says how it ended.
func (l *lab) hang(p *pod, path string) <-chan string {
	l.t.Helper()
	before := p.running.Load()
	end := make(chan string, 1)
	go func() {
		resp, err := l.get(path)
		if err != nil {
			end <- err.Error()
			return
		}
		defer resp.Body.Close()
		end <- resp.Status
	}()
	eventually(l.t, "the request has arrived", func() bool { return p.running.Load() == before+1 })
	return end
}
