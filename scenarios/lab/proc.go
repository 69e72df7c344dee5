package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// maxLines bounds what is kept of one process's output in memory; the file has all.
const maxLines = 200_000

// Proc is one process of the laboratory. Its stdout and stderr go to a file, line by
// line, and stay readable here.
type Proc struct {
	Name string

	cmd    *exec.Cmd
	out    *lineLog
	done   chan struct{}
	exited time.Time // valid once done is closed
	err    error
}

// spawn starts a process that dies with the lab, whatever kills the lab. Its output
// is appended to file in the artifacts.
func (l *Lab) spawn(name, file string, env []string, argv ...string) (*Proc, error) {
	out, err := l.lines(file)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = l.run
	cmd.Stdout, cmd.Stderr = w, w
	// A group of its own: Ctrl-C on the terminal is the lab's to act on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Proc{Name: name, cmd: cmd, out: out, done: make(chan struct{})}
	l.own(p)
	out.readr.Add(1)
	go out.from(r)
	go func() {
		p.err = cmd.Wait() // the pipe is a file: this returns with the process, not with its children's output
		p.exited = time.Now()
		close(p.done)
	}()
	l.say("%s started, pid %d", name, cmd.Process.Pid)
	return p, nil
}

// Done is closed when the process has ended.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Pid of the process.
func (p *Proc) Pid() int { return p.cmd.Process.Pid }

// Exit is the exit code and the time of the end of a process whose Done is closed;
// -1 for one that a signal ended.
func (p *Proc) Exit() (int, time.Time) {
	<-p.done
	return p.cmd.ProcessState.ExitCode(), p.exited
}

// Signal sends sig to the process, and SIGKILL to its whole group.
func (p *Proc) Signal(sig syscall.Signal) {
	pid := p.Pid()
	if sig == syscall.SIGKILL {
		pid = -pid
	}
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(pid, sig) // ended this instant
	}
}

// Lines is the output so far.
func (p *Proc) Lines() []string { return p.out.all() }

// lineLog writes lines to a file and keeps them. Several processes may share one, a
// restarted one above all.
type lineLog struct {
	mu    sync.Mutex
	file  *os.File
	kept  []string
	wake  chan struct{} // closed and renewed at every line
	readr sync.WaitGroup
}

// lines opens the log of that name in the artifacts, once.
func (l *Lab) lines(name string) (*lineLog, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.logs[name]; g != nil {
		return g, nil
	}
	f, err := os.OpenFile(filepath.Join(l.o.Artifacts, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log %s: %w", name, err)
	}
	g := &lineLog{file: f, wake: make(chan struct{})}
	l.logs[name] = g
	return g, nil
}

// from reads r to its end.
func (g *lineLog) from(r io.ReadCloser) {
	defer g.readr.Done()
	defer r.Close()
	br := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := br.ReadString('\n')
		if line != "" {
			g.add(trimNewline(line))
		}
		if err != nil {
			return
		}
	}
}

func trimNewline(s string) string {
	if n := len(s); n > 0 && s[n-1] == '\n' {
		return s[:n-1]
	}
	return s
}

func (g *lineLog) add(line string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fmt.Fprintln(g.file, line)
	if len(g.kept) < maxLines {
		g.kept = append(g.kept, line)
	}
	close(g.wake)
	g.wake = make(chan struct{})
}

func (g *lineLog) all() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.kept[:len(g.kept):len(g.kept)]
}

// await waits until ok says yes to the lines so far.
func (g *lineLog) await(ctx context.Context, ok func([]string) bool) error {
	for {
		g.mu.Lock()
		wake := g.wake
		g.mu.Unlock()
		if ok(g.all()) {
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// run1 runs a command to its end, its output to file; the exit code, and an error
// only where it could not be run or ctx ended it.
func (l *Lab) run1(ctx context.Context, name, file string, env []string, argv ...string) (int, error) {
	p, err := l.spawn(name, file, env, argv...)
	if err != nil {
		return -1, err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Signal(syscall.SIGKILL)
		<-p.Done()
		return -1, fmt.Errorf("run %s: %w", name, context.Cause(ctx))
	}
	code, _ := p.Exit()
	return code, nil
}

// errMissing is a program that the lab needs and does not find.
var errMissing = errors.New("not found: `make deps` installs it")

// Find looks for the programs of the laboratory. dir holds agent and lbctl, root is
// the repository, whose .venv may hold Envoy; self is this program.
func Find(dir, root, self string, envoy bool) (Programs, error) {
	p := Programs{Scenarios: self}
	for _, x := range []struct {
		to    *string
		name  string
		paths []string
	}{
		{&p.HAProxy, "haproxy", []string{"/usr/sbin/haproxy", "/usr/local/sbin/haproxy"}},
		{&p.Envoy, "envoy", nil},
		{&p.Curl, "curl", nil},
		{&p.Agent, "agent", []string{filepath.Join(dir, "agent")}},
		{&p.Lbctl, "lbctl", []string{filepath.Join(dir, "lbctl")}},
	} {
		switch x.name {
		case "envoy":
			x.paths, _ = filepath.Glob(filepath.Join(root, ".venv/lib/python3*/site-packages/envoy/_bin/envoy"))
			if e := os.Getenv("ENVOY_BIN"); e != "" {
				x.paths = []string{e}
			}
			if !envoy {
				continue
			}
		case "agent", "lbctl":
			// Never from PATH: these are to be the ones just built.
			if *x.to = firstFile(x.paths); *x.to == "" {
				return p, fmt.Errorf("find %s in %s: not found: `make build` puts it into bin/", x.name, dir)
			}
			continue
		}
		if *x.to = firstFile(x.paths); *x.to == "" {
			found, err := exec.LookPath(x.name)
			if err != nil {
				return p, fmt.Errorf("find %s: %w", x.name, errMissing)
			}
			*x.to = found
		}
	}
	return p, nil
}

func firstFile(paths []string) string {
	for _, p := range paths {
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() {
			return p
		}
	}
	return ""
}
