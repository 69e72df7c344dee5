package lab

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"time"

	"lbdrain/internal/handshake"
	"lbdrain/scenarios/gate"
	"lbdrain/scenarios/ledger"
)

//go:embed envoy.yaml.tmpl
var envoyText string

var envoyTemplate = template.Must(template.New("envoy").Parse(envoyText))

// Pod is real processes on one address: a backend, an Envoy in front of it, and an
// agent.
type Pod struct {
	Name string

	lab     *Lab
	host    int // last byte of the address
	suffix  string
	uid     string
	backend *Proc
	envoy   *Proc     // nil without Envoy
	born    time.Time // of the agent
	health  *gate.Gate
	admin   *gate.Gate

	mu    sync.Mutex
	agent *Proc
}

func (p *Pod) at(port int) string { return p.lab.plan.at(p.host, port) }

// logName is the artifact of one of the pod's programs: the victim's are hc.log,
// envoy.log and backend.log, the others' carry their pod's name.
func (p *Pod) logName(base string) string { return base + p.suffix + ".log" }

func (p *Pod) start() error {
	if err := p.startData(); err != nil {
		return err
	}
	if p.lab.o.HealthGate {
		g, err := gate.New(p.at(healthPort), p.at(gatePort))
		if err != nil {
			return err
		}
		p.health = g
	}
	if p.lab.o.AdminGate {
		g, err := gate.New(p.at(adminGate), p.at(adminPort))
		if err != nil {
			return err
		}
		p.admin = g
	}
	return p.StartAgent()
}

// startData starts the data container: the backend, and Envoy in front of it.
func (p *Pod) startData() error {
	l, err := p.lab, error(nil)
	argv := []string{l.o.Programs.Scenarios, "backend", "--hostname", p.Name}
	if l.o.NoEnvoy {
		argv = append(argv, "--listen", p.at(dataPort), "--listen", p.at(grpcPort), "--gauge", p.at(adminPort))
	} else {
		argv = append(argv, "--listen", p.at(backendPort))
	}
	if p.backend, err = l.spawn("backend "+p.Name, p.logName("backend"), nil, argv...); err != nil || l.o.NoEnvoy {
		return err
	}
	var text bytes.Buffer
	err = envoyTemplate.Execute(&text, map[string]any{
		"IP": l.plan.ip(p.host).String(), "Admin": adminPort, "Data": dataPort, "GRPC": grpcPort, "Backend": backendPort,
		"Matcher": l.o.Mode.matcher,
	})
	if err != nil {
		return fmt.Errorf("write Envoy's configuration: %w", err)
	}
	file := filepath.Join(l.run, "envoy-"+p.Name+".yaml")
	if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write Envoy's configuration: %w", err)
	}
	p.envoy, err = l.spawn("envoy "+p.Name, p.logName("envoy"), nil, l.o.Programs.Envoy, "-c", file,
		"--concurrency", "1", "--disable-hot-restart", "-l", "warn", "--drain-strategy", "immediate", "--drain-time-s", "600")
	return err
}

// StartAgent starts the agent, or starts it again after it was killed.
func (p *Pod) StartAgent() error {
	l := p.lab
	argv := append([]string{
		l.o.Programs.Agent, "serve", "--listen", p.listen(), "--control", p.at(controlPort), "--data-port", p.at(dataPort),
		"--drain-timeout", l.o.DrainTimeout.String(), "--grace", strconv.Itoa(int(l.o.Grace.Seconds())),
		"--state-file", filepath.Join(l.run, "state-"+p.Name+".json"),
	}, l.o.Mode.agent...)
	switch {
	case l.o.NoEnvoy:
		argv = append(argv, "--source", "http=http://"+p.at(adminPort)+"/inflight")
	case p.admin != nil:
		argv = append(argv, "--source", "envoy=http://"+p.at(adminGate))
	default:
		argv = append(argv, "--source", "envoy=http://"+p.at(adminPort))
	}
	born := time.Now()
	proc, err := l.spawn("agent "+p.Name, p.logName("hc"), []string{"POD_UID=" + p.uid}, argv...)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.agent, p.born = proc, born
	return nil
}

// listen is the agent's public address: behind the gate where there is one.
func (p *Pod) listen() string {
	if p.lab.o.HealthGate {
		return p.at(gatePort)
	}
	return p.at(healthPort)
}

// Agent is the agent's process, the newest where it was started again.
func (p *Pod) Agent() *Proc {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.agent
}

// HealthGate stands between HAProxy and the agent where Options asked for it.
func (p *Pod) HealthGate() *gate.Gate { return p.health }

// AdminGate stands between the agent and Envoy's admin where Options asked for it.
func (p *Pod) AdminGate() *gate.Gate { return p.admin }

// DataAddr is where HAProxy sends the pod's requests.
func (p *Pod) DataAddr() string { return p.at(dataPort) }

// processes of the pod, by container.
func (p *Pod) dataProcs() []*Proc {
	if p.envoy == nil {
		return []*Proc{p.backend}
	}
	return []*Proc{p.envoy, p.backend}
}

// Ran is what the pod's backend has run so far.
func (p *Pod) Ran() []ledger.Ran { return ledger.Executions(p.backend.Lines()) }

// Running counts the requests that have begun on this pod's backend and not ended.
func (p *Pod) Running() int {
	n := 0
	for _, r := range p.Ran() {
		if r.End.IsZero() {
			n++
		}
	}
	return n
}

// Status asks the agent on its control listener, which makes nobody a balancer.
func (p *Pod) Status() (handshake.Status, error) {
	resp, err := asking.Get("http://" + p.at(controlPort) + "/drain/status")
	if err != nil {
		return handshake.Status{}, fmt.Errorf("ask %s: %w", p.Name, err)
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(http.MaxBytesReader(nil, resp.Body, 1<<20)); err != nil {
		return handshake.Status{}, fmt.Errorf("ask %s: %w", p.Name, err)
	}
	return handshake.DecodeStatus(body.Bytes())
}

// watched says whether a balancer's daemon watches this pod.
func (p *Pod) watched() bool {
	st, err := p.Status()
	if err != nil {
		return false
	}
	for _, lb := range st.Progress.LBs {
		if lb.Evidence == handshake.Watching {
			return true
		}
	}
	return false
}

// transition is the agent's log line of one move.
type transition struct {
	Event string    `json:"event"`
	TS    time.Time `json:"ts"`
	From  string    `json:"from"`
	To    string    `json:"to"`
}

// Entered is when the agent entered a state first, by its own log, in whole
// milliseconds (cut, not rounded).
func (p *Pod) Entered(state string) (time.Time, bool) {
	for _, line := range p.Agent().Lines() {
		var t transition
		if strings.Contains(line, `"transition"`) && json.Unmarshal([]byte(line), &t) == nil &&
			t.Event == "transition" && t.To == state {
			return t.TS, true
		}
	}
	return time.Time{}, false
}

// EnvoyVersion is what its admin says, "" without one.
func (p *Pod) EnvoyVersion() string {
	if p.envoy == nil {
		return ""
	}
	resp, err := asking.Get("http://" + p.at(adminPort) + "/server_info")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var info struct{ Version string }
	if json.NewDecoder(http.MaxBytesReader(nil, resp.Body, 4<<20)).Decode(&info) != nil {
		return ""
	}
	parts := strings.Split(info.Version, "/") // hash/1.40.0/Clean/RELEASE/BoringSSL
	if len(parts) < 2 {
		return info.Version
	}
	return parts[1]
}
