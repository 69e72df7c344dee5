// Package lab is the laboratory of one run: a real HAProxy with the canonical
// configuration, up to three pods of real processes (backend, Envoy, agent), and
// lbctl where the mode has it, on loopback addresses of its own. It needs no root.
//
// The lab reads and acts as an operator would: built binaries, command lines, the
// admin socket, signals. Every process it starts is killed when it closes, and dies
// with it if it is killed itself.
package lab

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// startLimit bounds every single wait of the start. On a busy machine five labs
// starting at once take a while.
const startLimit = time.Minute

// Programs are the paths of what the lab runs.
type Programs struct{ HAProxy, Envoy, Curl, Agent, Lbctl, Scenarios string }

// Options of one lab.
type Options struct {
	Mode         Mode
	Pods         int    // 1 to 3; the victim, worker1, is always one of them
	NoEnvoy      bool   // the backend alone, with its own in-flight count
	Artifacts    string // directory, made if missing
	Testdata     string // directory of the canonical configurations
	Programs     Programs
	Seed         uint64
	DrainTimeout time.Duration // 0 is 120 s
	Grace        time.Duration // 0 is DrainTimeout + 30 s
	HealthGate   bool          // between HAProxy and the victim's agent, for faults
	AdminGate    bool          // between the victim's agent and its Envoy's admin
	StateFile    bool          // HAProxy names a server-state-file
	ExecHook     bool          // the data container's hook is `agent drain` too, see Delete
}

// Lab is a running laboratory.
type Lab struct {
	o     Options
	run   string // sockets, keys and state: short, and removed at the end
	plan  plan
	roots *x509.CertPool
	pods  []*Pod
	watch *observer
	log   *syslog

	haproxy *Proc
	asked   time.Time // HAProxy's checks began
	end     context.CancelFunc
	closing sync.Once

	mu    sync.Mutex
	lbctl *Proc
	procs []*Proc
	logs  map[string]*lineLog
}

// The pods' addresses end as the canonical file's do.
var hosts = []struct {
	name string
	last int
}{{"worker1", 213}, {"worker2", 214}, {"master1", 212}}

// Start brings a lab up and waits until HAProxy's checks have passed for every pod.
func Start(ctx context.Context, o Options) (*Lab, error) {
	if o.Pods < 1 || o.Pods > len(hosts) {
		return nil, fmt.Errorf("start %d pods: want 1 to %d", o.Pods, len(hosts))
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = 120 * time.Second
	}
	if o.Grace == 0 {
		o.Grace = o.DrainTimeout + 30*time.Second
	}
	var err error
	if o.Artifacts, err = filepath.Abs(o.Artifacts); err != nil { // the processes have another working directory
		return nil, fmt.Errorf("make the artifacts: %w", err)
	}
	run, err := os.MkdirTemp("", "lbdrain-")
	if err != nil {
		return nil, fmt.Errorf("make a run directory: %w", err)
	}
	if err := os.MkdirAll(o.Artifacts, 0o755); err != nil {
		return nil, fmt.Errorf("make the artifacts: %w", err)
	}
	l := &Lab{o: o, run: run, logs: map[string]*lineLog{}, end: func() {}}
	if err := l.start(ctx); err != nil {
		l.Close()
		return nil, fmt.Errorf("start mode %s: %w", o.Mode.Name, err)
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context) error {
	var err error
	if l.plan, err = claimPlan(mrand.New(mrand.NewPCG(l.o.Seed, uint64(time.Now().UnixNano())))); err != nil {
		return err
	}
	bundle := filepath.Join(l.run, "bundle.pem")
	if l.roots, err = certify(bundle); err != nil {
		return err
	}
	text, err := l.config(bundle)
	if err != nil {
		return err
	}
	for i, h := range hosts[:l.o.Pods] {
		p := &Pod{Name: h.name, lab: l, host: h.last, uid: fmt.Sprintf("%08x-lab-%s", l.o.Seed, h.name)}
		if i > 0 {
			p.suffix = "-" + h.name
		}
		l.pods = append(l.pods, p)
		if err := p.start(); err != nil {
			return err
		}
	}
	if err := l.awaitPods(ctx); err != nil {
		return err
	}
	if err := l.startHAProxy(ctx, text); err != nil {
		return err
	}
	var own context.Context
	own, l.end = context.WithCancel(context.WithoutCancel(ctx))
	l.watch = observe(own, l.adminSocket())
	if err := l.statTimeline(own); err != nil {
		return err
	}
	if l.o.Mode.Lbctl {
		if err := l.startLbctl(); err != nil {
			return err
		}
	}
	return l.awaitChecks(ctx)
}

// config is the lab's haproxy.cfg.
func (l *Lab) config(bundle string) (string, error) {
	text, err := os.ReadFile(filepath.Join(l.o.Testdata, l.o.Mode.Config))
	if err != nil {
		return "", fmt.Errorf("read the canonical configuration: %w", err)
	}
	extra := l.o.Mode.extra
	if l.o.StateFile {
		extra = append(extra[:len(extra):len(extra)], stateFile(l.run)...)
	}
	return derive(string(text), l.plan, l.run, bundle, extra)
}

// asking is for questions to the pods: a connection for each, since one that is
// opened and not used gets the agent-check's answer.
var asking = &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// awaitPods waits until every agent says that it is ready and every data port
// accepts.
func (l *Lab) awaitPods(ctx context.Context) error {
	for _, p := range l.pods {
		err := l.until(ctx, p.Name+" is ready", func() bool {
			if p.ended() != nil {
				return true
			}
			resp, err := asking.Get("http://" + p.at(controlPort) + "/health")
			if err != nil {
				return false
			}
			resp.Body.Close()
			conn, err := net.DialTimeout("tcp", p.at(dataPort), time.Second)
			if err != nil {
				return false
			}
			conn.Close()
			return resp.StatusCode == http.StatusOK
		})
		if err := errors.Join(err, p.ended()); err != nil {
			return err
		}
	}
	return nil
}

// ended is an error when one of the pod's processes has ended.
func (p *Pod) ended() error {
	for _, proc := range append(p.dataProcs(), p.Agent()) {
		select {
		case <-proc.Done():
			code, _ := proc.Exit()
			lines := proc.Lines()
			last := ""
			if len(lines) > 0 {
				last = ": " + lines[len(lines)-1]
			}
			return fmt.Errorf("%s ended with exit code %d%s", proc.Name, code, last)
		default:
		}
	}
	return nil
}

// awaitChecks waits until the pods' servers have passed a check, the others are DOWN,
// and the daemon watches every pod.
func (l *Lab) awaitChecks(ctx context.Context) error {
	has := map[string]bool{}
	for _, p := range l.pods {
		has[p.Name] = true
	}
	err := l.until(ctx, "HAProxy has checked every server", func() bool {
		servers, err := l.Servers(HTTPBackend)
		if err != nil {
			return false
		}
		for _, s := range servers {
			if has[s.Name] && (s.Op != 2 || s.Health < fullHealth) || !has[s.Name] && s.Op != 0 {
				return false
			}
		}
		return true
	})
	if err != nil || !l.o.Mode.Lbctl {
		return err
	}
	return l.until(ctx, "lbctl watches every pod", func() bool {
		for _, p := range l.pods {
			if !p.watched() {
				return false
			}
		}
		return true
	})
}

// Settle waits until the agents are old enough for their mode: until then the pods
// Pin took out would be given back by their own `up ready`, and silence would prove
// nothing.
func (l *Lab) Settle(ctx context.Context) error {
	youngest := l.asked // a return window begins with the first poll
	for _, p := range l.pods {
		if p.born.After(youngest) {
			youngest = p.born
		}
	}
	select {
	case <-time.After(time.Until(youngest.Add(l.o.Mode.Settle))):
		return nil
	case <-l.haproxyEnd():
		return fmt.Errorf("settle: HAProxy has ended, see haproxy.out in %s", l.o.Artifacts)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close kills every process of the lab and waits for the logs. Once is enough.
func (l *Lab) Close() { l.closing.Do(l.shut) }

func (l *Lab) shut() {
	l.end()
	l.mu.Lock()
	procs := l.procs
	l.mu.Unlock()
	for _, p := range procs {
		p.Signal(syscall.SIGKILL)
	}
	for _, p := range procs {
		<-p.Done()
		// A group outlives its leader where the leader had children: HAProxy's workers.
		_ = syscall.Kill(-p.Pid(), syscall.SIGKILL)
	}
	for _, p := range l.pods {
		if p.health != nil {
			p.health.Close()
		}
		if p.admin != nil {
			p.admin.Close()
		}
	}
	if l.log != nil {
		l.log.close()
	}
	if l.plan.claim != nil {
		l.plan.claim.Close()
	}
	for _, g := range l.logs {
		g.readr.Wait()
		g.file.Close()
	}
	os.RemoveAll(l.run)
}

// own remembers a process to kill.
func (l *Lab) own(p *Proc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.procs = append(l.procs, p)
}

// say writes a line to run.log.
func (l *Lab) say(format string, a ...any) {
	g, err := l.lines("run.log")
	if err != nil {
		return // the artifacts are gone: there is nobody to tell
	}
	g.add(time.Now().UTC().Format(stampLayout) + " " + fmt.Sprintf(format, a...))
}

// Say writes a line to run.log.
func (l *Lab) Say(format string, a ...any) { l.say(format, a...) }

// Victim is the pod that is ended.
func (l *Lab) Victim() *Pod { return l.pods[0] }

// Pods are all of them, the victim first.
func (l *Lab) Pods() []*Pod { return l.pods }

// Frontend is the https frontend.
func (l *Lab) Frontend() netip.AddrPort {
	return netip.AddrPortFrom(l.plan.ip(balancerHost), httpsPort)
}

// Roots trusts the lab's certificate.
func (l *Lab) Roots() *x509.CertPool { return l.roots }

// Log is HAProxy's log so far.
func (l *Lab) Log() []string { return l.log.out.all() }
