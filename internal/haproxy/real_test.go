package haproxy

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is a real HAProxy with its sockets in a directory of its own.
type process struct {
	t   testing.TB
	dir string
	cmd *exec.Cmd
}

// global and defaults of every configuration here; %[1]s is the directory.
const preamble = `
global
    stats socket %[1]s/admin.sock level admin
    stats socket %[1]s/operator.sock
    stats socket %[1]s/user.sock level user
    stats timeout 30s
    nbthread 2
    no strict-limits
defaults
    mode http
    timeout connect 1s
    timeout client 10s
    timeout server 10s
    timeout queue 10s
    timeout check 1s
`

// start runs HAProxy on preamble and cfg until the test ends.
func start(t testing.TB, cfg string) *process {
	t.Helper()
	p := &process{t: t, dir: shortDir(t)}
	p.write(cfg)
	p.up()
	return p
}

// shortDir is a temporary directory whose name leaves room for a socket's: the
// one of t.TempDir can be too long for sun_path.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "hap")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (p *process) write(cfg string) {
	p.t.Helper()
	text := fmt.Sprintf(preamble, p.dir) + strings.ReplaceAll(cfg, "DIR", p.dir)
	if err := os.WriteFile(filepath.Join(p.dir, "haproxy.cfg"), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// up starts it, with more arguments.
func (p *process) up(args ...string) {
	p.t.Helper()
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		p.t.Fatalf("%v\nhint: make deps", err)
	}
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(bin, append([]string{"-db", "-f", filepath.Join(p.dir, "haproxy.cfg")}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	cmd := p.cmd
	p.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	eventually(p.t, func() error {
		_, err := p.client(Options{}).Read(context.Background(), Scope{})
		if err != nil {
			text, _ := os.ReadFile(log.Name())
			err = fmt.Errorf("%w\n%s", err, text)
		}
		return err
	})
}

// down kills it, a stopped one too.
func (p *process) down() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

func (p *process) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// stop is SIGSTOP, and waits until no thread runs any more.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	eventually(p.t, func() error {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		for _, name := range threads {
			// The state stands after the name in parentheses.
			b, _ := os.ReadFile(name)
			if _, rest, _ := strings.Cut(string(b), ") "); !strings.HasPrefix(rest, "T") {
				return fmt.Errorf("%s: %.40s", name, b)
			}
		}
		return nil
	})
}

func (p *process) client(o Options) *Client { return p.at("admin.sock", o) }

func (p *process) at(socket string, o Options) *Client {
	return New(Socket{Network: "unix", Address: filepath.Join(p.dir, socket)}, o)
}

// eventually waits until f has no error any more, 20 s at most.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for err := f(); err != nil; err = f() {
		if time.Now().After(end) {
			t.Fatal(err)
		}
		<-tick.C
	}
}

// read reads everything or ends the test.
func read(t testing.TB, c *Client, backends ...string) Read {
	t.Helper()
	r, err := c.Read(context.Background(), Scope{Backends: backends})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// do sends commands and ends the test if a turn fails.
func do(t testing.TB, c *Client, commands ...Command) Turn {
	t.Helper()
	turn, err := c.Turn(context.Background(), Scope{}, func(Read) ([]Command, error) { return commands, nil })
	if err != nil {
		t.Fatal(err)
	}
	return turn
}

func server(t testing.TB, r Read, backend, name string) Server {
	t.Helper()
	s, ok := r.Server(backend, name)
	if !ok {
		t.Fatalf("no %s/%s in %d servers", backend, name, len(r.Servers))
	}
	return s
}
