package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// HTTPBackend is the backend whose servers are the stage.
const HTTPBackend = "istio-http-backend"

// Server is one server line as HAProxy has it, from `show servers state`.
type Server struct {
	Backend, Name string
	Op            int // 0 stopped, 1 starting, 2 running, 3 stopping
	Admin         int // bits: 1 forced maintenance, 8 forced drain
	Check, Agent  int // bits: 1 in progress, 2 configured, 4 enabled, 8 paused
	Health        int // passed checks that still count, 0 to rise+fall-1
}

// fullHealth is rise+fall-1 of the canonical server line. A server starts at rise, so
// that it says one check at least has passed.
const fullHealth = 3

// Word is the state that ends a server's share of the traffic, in the words of the
// statistics page: UP, DRAIN, NOLB, MAINT or DOWN. MAINT hides DOWN and DOWN hides
// DRAIN, as there.
func (s Server) Word() string {
	switch {
	case s.Admin&0x23 != 0:
		return "MAINT"
	case s.Op == 0:
		return "DOWN"
	case s.Admin&0x18 != 0:
		return "DRAIN"
	case s.Op == 3:
		return "NOLB"
	}
	return "UP"
}

// Guarded says whether no health check can mark the server down any more: it is off,
// and none is in progress.
func (s Server) Guarded() bool { return s.Check&4 == 0 && s.Check&1 == 0 }

// parseServers reads `show servers state`, whose columns are named in its second
// line. (proxy.c and server.c of HAProxy, dump_servers_state.)
func parseServers(reply string) ([]Server, error) {
	var out []Server
	var col map[string]int
	for line := range strings.Lines(reply) {
		f := strings.Fields(line)
		switch {
		case len(f) > 1 && f[0] == "#":
			col = map[string]int{}
			for i, name := range f[1:] {
				col[name] = i
			}
		case col == nil || len(f) < len(col):
		default:
			s := Server{Backend: f[col["be_name"]], Name: f[col["srv_name"]]}
			for name, to := range map[string]*int{
				"srv_op_state": &s.Op, "srv_admin_state": &s.Admin,
				"srv_check_state": &s.Check, "srv_agent_state": &s.Agent,
				"srv_check_health": &s.Health,
			} {
				n, err := strconv.Atoi(f[col[name]])
				if err != nil {
					return nil, fmt.Errorf("read show servers state: %s: %w", name, err)
				}
				*to = n
			}
			out = append(out, s)
		}
	}
	if col == nil {
		return nil, fmt.Errorf("read show servers state: no header in %.80q", reply)
	}
	return out, nil
}

// startHAProxy starts it as Debian's unit does: a master with one worker, so that a
// reload leaves the running requests to the old worker.
func (l *Lab) startHAProxy(ctx context.Context, text string) error {
	file := filepath.Join(l.o.Artifacts, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write haproxy.cfg: %w", err)
	}
	var err error
	if l.log, err = listenSyslog(filepath.Join(l.run, "log.sock"), l); err != nil {
		return err
	}
	code, err := l.run1(ctx, "haproxy -c", "haproxy.out", nil, l.o.Programs.HAProxy, "-c", "-f", file)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d, see haproxy.out", code)
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", file, err)
	}
	l.haproxy, err = l.spawn("haproxy", "haproxy.out", nil, l.o.Programs.HAProxy, "-W", "-f", file)
	if err != nil {
		return err
	}
	l.asked = time.Now()
	return l.until(ctx, "HAProxy answers on its admin socket", func() bool {
		_, err := l.Admin("show info")
		return err == nil
	})
}

// Reload does what `systemctl reload haproxy` does.
func (l *Lab) Reload(ctx context.Context) error {
	before, err := l.pid()
	if err != nil {
		return err
	}
	l.haproxy.Signal(syscall.SIGUSR2)
	err = l.until(ctx, "the new HAProxy worker answers", func() bool {
		now, err := l.pid()
		return err == nil && now != before
	})
	l.watch.renewed.Add(1)
	return err
}

func (l *Lab) pid() (string, error) {
	info, err := l.Admin("show info")
	if err != nil {
		return "", err
	}
	_, rest, ok := strings.Cut(info, "\nPid: ")
	if !ok {
		return "", fmt.Errorf("read show info: no Pid in %.80q", info)
	}
	pid, _, _ := strings.Cut(rest, "\n")
	return pid, nil
}

// Version is HAProxy's, from `show info`.
func (l *Lab) Version() string {
	info, err := l.Admin("show info")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(info, "\nVersion: ")
	v, _, _ := strings.Cut(rest, "\n")
	return v
}

// Admin runs one command on a connection of its own, as socat does.
func (l *Lab) Admin(command string) (string, error) {
	conn, err := net.DialTimeout("unix", l.adminSocket(), time.Second)
	if err != nil {
		return "", fmt.Errorf("haproxy %s: %w", command, err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		return "", fmt.Errorf("haproxy %s: %w", command, err)
	}
	reply, err := io.ReadAll(io.LimitReader(conn, 8<<20))
	if err == nil && len(reply) == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return "", fmt.Errorf("haproxy %s: %w", command, err)
	}
	return string(reply), nil
}

func (l *Lab) adminSocket() string { return filepath.Join(l.run, "admin.sock") }

// set runs a command whose success is an empty reply.
func (l *Lab) set(command string) error {
	reply, err := l.Admin(command)
	if err == nil && strings.TrimSpace(reply) != "" {
		err = fmt.Errorf("haproxy %s: %s", command, strings.TrimSpace(reply))
	}
	return err
}

// Servers reads all server lines of one backend.
func (l *Lab) Servers(backend string) ([]Server, error) {
	reply, err := l.Admin("show servers state " + backend)
	if err != nil {
		return nil, err
	}
	return parseServers(reply)
}

// Server reads one.
func (l *Lab) Server(backend, name string) (Server, error) {
	all, err := l.Servers(backend)
	if err != nil {
		return Server{}, err
	}
	i := slices.IndexFunc(all, func(s Server) bool { return s.Name == name })
	if i < 0 {
		return Server{}, fmt.Errorf("read %s/%s: no such server", backend, name)
	}
	return all[i], nil
}

// Pin takes every server of the http backend but one pod's out of balancing, by
// DRAIN on the admin socket, as a person would.
func (l *Lab) Pin(victim *Pod) error { return l.others(victim, "drain") }

// Unpin gives them back.
func (l *Lab) Unpin(victim *Pod) error { return l.others(victim, "ready") }

func (l *Lab) others(victim *Pod, state string) error {
	for _, p := range l.pods {
		if p == victim {
			continue
		}
		if err := l.set("set server " + HTTPBackend + "/" + p.Name + " state " + state); err != nil {
			return err
		}
	}
	return nil
}

// until asks ok every 20 ms.
func (l *Lab) until(ctx context.Context, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-l.haproxyEnd():
			return fmt.Errorf("wait until %s: HAProxy has ended, see haproxy.out in %s", what, l.o.Artifacts)
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, context.Cause(ctx))
		}
	}
	return nil
}

func (l *Lab) haproxyEnd() <-chan struct{} {
	if l.haproxy == nil {
		return nil
	}
	return l.haproxy.Done()
}

// syslog receives HAProxy's log.
type syslog struct {
	conn *net.UnixConn
	out  *lineLog
	done chan struct{}
}

func listenSyslog(path string, l *Lab) (*syslog, error) {
	out, err := l.lines("haproxy.log")
	if err != nil {
		return nil, err
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listen for HAProxy's log: %w", err)
	}
	s := &syslog{conn: conn, out: out, done: make(chan struct{})}
	go s.receive()
	return s, nil
}

func (s *syslog) receive() {
	defer close(s.done)
	buf := make([]byte, 64<<10)
	for {
		n, err := s.conn.Read(buf)
		if err != nil {
			return
		}
		line := strings.TrimRight(string(buf[:n]), "\n\x00")
		if i := strings.IndexByte(line, '>'); strings.HasPrefix(line, "<") && i > 0 {
			line = line[i+1:] // the priority
		}
		s.out.add(line)
	}
}

// close takes what HAProxy has already sent: a datagram on a unix socket is in the
// queue when its sender goes on.
func (s *syslog) close() {
	s.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	<-s.done
	s.conn.Close()
}
