package haproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/haproxytech/client-native/v5/models"
	cn "github.com/haproxytech/client-native/v5/runtime"
	"github.com/haproxytech/client-native/v5/runtime/options"
)

// small has every kind of server line; nobody listens at the addresses.
const small = `
backend be
    option httpchk GET /health
    server s1 127.77.1.2:1 check port 1 inter 100ms rise 2 fall 2 agent-check agent-port 1 agent-inter 300ms on-marked-down shutdown-sessions
    server s2 127.77.1.3:1
    server t1 127.77.1.3:1 track be/s1
listen other
    mode tcp
    bind DIR/other.sock
    server-template p 1-3 127.77.1.4:80 disabled weight 7 maxconn 5
    server b1 127.77.1.5:80 backup
`

// Every command does what its name says, and the turn has read it back.
func TestCommands(t *testing.T) {
	t.Parallel()
	c := start(t, small).client(Options{})
	r := read(t, c)
	if r.Level != "admin" || r.Info.Pid == 0 || r.Info.Start == 0 || !strings.HasPrefix(r.Info.Version, "2.") || r.Info.Stopping || len(r.Servers) != 7 {
		t.Fatalf("%+v", r)
	}
	for _, step := range []struct {
		cmd          Command
		admin        AdminState
		check, agent CheckState // without InProgress and Paused
		status       string     // its beginning
	}{
		{SetState("be", "s1", Drain), ForcedDrain, Configured | Enabled, Configured | Enabled | Agent, "DOWN"},
		{DisableAgent("be", "s1"), ForcedDrain, Configured | Enabled, Configured | Agent, "DOWN"},
		{DisableHealth("be", "s1"), ForcedDrain, Configured, Configured | Agent, ""},
		{SetState("be", "s1", Maint), ForcedMaint, Configured, Configured | Agent, "MAINT"},
		{EnableHealth("be", "s1"), ForcedMaint, Configured | Enabled, Configured | Agent, "MAINT"},
		{SetState("be", "s1", Drain), ForcedDrain, Configured | Enabled, Configured | Agent, "D"},
		{SetState("be", "s1", Ready), 0, Configured | Enabled, Configured | Agent, ""},
		{EnableAgent("be", "s1"), 0, Configured | Enabled, Configured | Enabled | Agent, ""},
		{SetState("be", "s2", Drain), ForcedDrain, 0, 0, "DRAIN"},
		{SetState("be", "s2", Maint), ForcedMaint, 0, 0, "MAINT"},
		{SetState("be", "s2", Ready), 0, 0, 0, "no check"},
		{SetState("other", "p2", Ready), ConfigMaint, 0, 0, "no check"},
		{SetState("other", "p2", Drain), ConfigMaint | ForcedDrain, 0, 0, "DRAIN"},
		{ShutdownSessions("be", "s1"), 0, Configured | Enabled, Configured | Enabled | Agent, ""},
	} {
		turn := do(t, c, step.cmd)
		s := server(t, *turn.After, step.cmd.Backend(), step.cmd.Server())
		if turn.Err() != nil || s.Admin != step.admin || s.Check&^(InProgress|Paused) != step.check || s.Agent&^InProgress != step.agent ||
			!strings.HasPrefix(s.Status, step.status) {
			t.Errorf("%s: %v: admin %s, check %s, agent %s, status %q", step.cmd, turn.Err(), s.Admin, s.Check, s.Agent, s.Status)
		}
	}
	// A check that is on is paused by MAINT; one that is off is not (server.c,
	// srv_update_status).
	turn := do(t, c, SetState("be", "s1", Maint))
	if s := server(t, *turn.After, "be", "s1"); s.Check&^InProgress != Configured|Enabled|Paused || !s.Check.On() {
		t.Errorf("maint with its check on: %s", s.Check)
	}
	turn = do(t, c, SetWeight("be", "s2", 100))
	if s := server(t, *turn.After, "be", "s2"); turn.Err() != nil || s.UserWeight != 100 || s.Weight != 100 {
		t.Errorf("weight: %v, %+v", turn.Err(), s)
	}
	if turn.Before.Info.Pid != turn.After.Info.Pid || turn.After.Apart(&turn.Before) < 0 {
		t.Errorf("%+v", turn)
	}
}

// What a tracker inherits is told apart from what it was told.
func TestInherited(t *testing.T) {
	t.Parallel()
	c := start(t, small).client(Options{})
	for state, want := range map[State]AdminState{Drain: InheritedDrain, Maint: InheritedMaint, Ready: 0} {
		turn := do(t, c, SetState("be", "s1", state))
		if s := server(t, *turn.After, "be", "t1"); s.Admin != want || s.Tracks != "be/s1" || s.Admin.Maint() != (state == Maint) || s.Admin.Drain() != (state == Drain) {
			t.Errorf("%s: %+v", state, s)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	c := start(t, small).client(Options{})
	turn := do(t, c,
		SetState("be", "nope", Drain), SetState("nope", "s1", Drain), EnableAgent("be", "s2"), EnableHealth("be", "s2"),
		DisableHealth("be", "s1"), EnableHealth("be", "t1"))
	want := []error{ErrNoSuchServer, ErrNoSuchBackend, &CommandError{}, &CommandError{}, nil, &CommandError{}}
	for i, o := range turn.Outcomes {
		var e *CommandError
		switch {
		case want[i] == nil && o.Err != nil,
			want[i] != nil && !errors.As(o.Err, &e),
			i < 2 && !errors.Is(o.Err, want[i]):
			t.Errorf("%s: %v", o.Command, o.Err)
		}
		t.Log(o.Command, "→", o.Err)
	}
	_, err := c.Read(context.Background(), Scope{Backends: []string{"be", "nope"}})
	if !errors.Is(err, ErrNoSuchBackend) || !strings.Contains(err.Error(), "nope") {
		t.Error(err)
	}
}

// A socket without level admin reads like any other, and says what is missing.
func TestLevels(t *testing.T) {
	t.Parallel()
	p := start(t, small)
	for _, level := range []string{"operator", "user"} {
		c := p.at(level+".sock", Options{})
		turn := do(t, c, SetState("be", "s1", Maint), DisableAgent("be", "s1"), EnableHealth("be", "s1"), SetWeight("be", "s1", 3), ShutdownSessions("be", "s1"))
		for _, o := range turn.Outcomes {
			if !errors.Is(o.Err, ErrPermission) || !strings.Contains(Hint(o.Err), "level admin") {
				t.Errorf("%s: %s: %v, hint %q", level, o.Command, o.Err, Hint(o.Err))
			}
		}
		if turn.Before.Level != level || len(turn.Before.Servers) != 7 || server(t, *turn.After, "be", "s1").Admin != 0 {
			t.Errorf("%+v", turn)
		}
	}
}

// Backends are found whatever else has their name, each once, in the scope and
// only there; one that says `disabled` is named, and not taken for one without
// servers.
func TestScope(t *testing.T) {
	t.Parallel()
	c := start(t, `
frontend web
    bind DIR/web.sock
    default_backend web
backend web
    server s1 127.77.1.2:1
    server s2 127.77.1.2:1
backend off
    disabled
    server s1 127.77.1.2:1
backend 2
    server s1 127.77.1.2:1
backend empty
backend last
    server s9 127.77.1.2:1
`).client(Options{})
	for _, tc := range []struct {
		scope   []string
		servers string
		off     []string
	}{
		{nil, "web/s1 web/s2 2/s1 last/s9", []string{"off"}},
		{[]string{"web"}, "web/s1 web/s2", nil},
		{[]string{"last", "web", "web", "last"}, "last/s9 web/s1 web/s2", nil},
		{[]string{"off"}, "", []string{"off"}},
		{[]string{"empty"}, "", nil},
		{[]string{"empty", "off", "web"}, "web/s1 web/s2", []string{"off"}},
	} {
		r := read(t, c, tc.scope...)
		var got []string
		for _, s := range r.Servers {
			got = append(got, s.Backend+"/"+s.Name)
		}
		if strings.Join(got, " ") != tc.servers || !reflect.DeepEqual(r.Disabled, tc.off) {
			t.Errorf("%q: %q, disabled %q", tc.scope, got, r.Disabled)
		}
	}
	if turn := do(t, c, SetState("off", "s1", Drain)); turn.Err() == nil {
		t.Error("a disabled backend took a command")
	}
	turn, err := c.Turn(context.Background(), Scope{Backends: []string{"web"}}, func(r Read) ([]Command, error) {
		return []Command{SetState("web", "s2", Drain)}, nil
	})
	if err != nil || len(turn.After.Servers) != 2 || server(t, *turn.After, "web", "s2").Admin != ForcedDrain {
		t.Errorf("%v, %+v", err, turn)
	}
}

// A stopped HAProxy still accepts (its backlog does): the turn ends by itself.
func TestStopped(t *testing.T) {
	t.Parallel()
	p := start(t, small)
	p.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c := p.client(Options{Timeout: 100 * time.Millisecond})
	if _, err := c.Read(ctx, Scope{}); !errors.Is(err, ErrBusy) || errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	p.signal(syscall.SIGCONT)
	read(t, p.client(Options{Timeout: 20 * time.Second}))

	// Stopped between the read and the commands: none of them is a success.
	turn, err := c.Turn(ctx, Scope{}, func(Read) ([]Command, error) {
		p.stop()
		return []Command{SetState("be", "s2", Drain), SetState("be", "s1", Drain)}, nil
	})
	if !errors.Is(err, ErrBusy) || len(turn.Outcomes) != 2 || turn.Outcomes[0].Err == nil || turn.Outcomes[1].Err == nil || turn.After != nil {
		t.Errorf("%v, %+v", err, turn)
	}
}

// Slots that others hold are no storm: an error, and none left over from us.
func TestSlotsTaken(t *testing.T) {
	t.Parallel()
	p := start(t, small)
	c := p.client(Options{Timeout: 100 * time.Millisecond})
	for range 100 { // far more than there are slots
		read(t, p.client(Options{}))
	}
	var held []net.Conn
	for range 16 {
		nc, err := net.Dial("unix", c.Socket().Address)
		if errors.Is(err, syscall.EAGAIN) {
			break // the backlog is full as well
		}
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		held = append(held, nc)
	}
	if _, err := c.Read(context.Background(), Scope{}); !errors.Is(err, ErrBusy) || !strings.Contains(Hint(err), "stats maxconn") {
		t.Error(err)
	}
	for _, nc := range held {
		nc.Close()
	}
	// They are free again as soon as HAProxy has seen the closes.
	read(t, p.client(Options{Timeout: 20 * time.Second}))
}

// Another process has another (Pid, Start), and what was set is gone.
func TestRestart(t *testing.T) {
	t.Parallel()
	p := start(t, small)
	c := p.client(Options{})
	before := *do(t, c, SetState("be", "s2", Drain)).After
	p.down()
	if _, err := c.Read(context.Background(), Scope{}); !errors.Is(err, ErrRefused) || !strings.Contains(Hint(err), "systemctl") {
		t.Error(err)
	}
	p.up()
	after := read(t, c)
	if after.Info.Pid == before.Info.Pid || server(t, after, "be", "s2").Admin != 0 {
		t.Errorf("%+v, %+v", before.Info, after.Info)
	}
}

// A reload in the middle of a turn shows in its After: the commands went to a
// worker that is leaving. The turn does not keep that one alive.
func TestReload(t *testing.T) {
	t.Parallel()
	p := start(t, small)
	old := p.cmd
	c := p.client(Options{})
	turn, err := c.Turn(context.Background(), Scope{}, func(Read) ([]Command, error) {
		p.up("-sf", fmt.Sprint(old.Process.Pid))
		eventually(t, func() error {
			r, err := p.client(Options{}).Read(context.Background(), Scope{})
			if err == nil && r.Info.Pid == old.Process.Pid {
				err = errors.New("no new worker")
			}
			return err
		})
		return []Command{SetState("be", "s2", Drain)}, nil
	})
	if err == nil && !turn.After.Info.Stopping {
		t.Errorf("%+v", turn)
	}
	t.Log(err, turn.Err())
	if err := old.Wait(); err != nil {
		t.Log(err)
	}
	if r := read(t, c); r.Info.Pid == old.Process.Pid || r.Info.Stopping || server(t, r, "be", "s2").Admin != 0 {
		t.Errorf("%+v", r)
	}
}

// Sessions and queue are what is in flight, and ShutdownSessions cuts it.
func TestInFlight(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.77.1.6:0")
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	backend := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release })}
	go backend.Serve(l)
	t.Cleanup(func() { backend.Close() })
	p := start(t, "frontend f\n    bind DIR/f.sock\n    default_backend be\nbackend be\n    cookie S\n    server s1 "+l.Addr().String()+" cookie s1 maxconn 2\n")
	c := p.client(Options{})
	answers := make(chan string, 5)
	for range cap(answers) {
		go func() { answers <- p.get() }()
	}
	await := func(sessions, queued uint64) {
		eventually(t, func() error {
			if s := server(t, read(t, c, "be"), "be", "s1"); s.Sessions != sessions || s.Queued != queued {
				return fmt.Errorf("%d sessions, %d queued, want %d and %d", s.Sessions, s.Queued, sessions, queued)
			}
			return nil
		})
	}
	await(2, 3)
	if turn := do(t, c, ShutdownSessions("be", "s1")); turn.Err() != nil {
		t.Error(turn.Err())
	}
	for range 2 {
		if a := <-answers; a == "200" {
			t.Error("a request outlived shutdown sessions")
		}
	}
	close(release)
	for range 3 {
		if a := <-answers; a != "200" {
			t.Errorf("a queued request: %s", a)
		}
	}
	await(0, 0)
	if s := server(t, read(t, c), "be", "s1"); s.Total != 5 || s.MaxConn != 2 {
		t.Errorf("%+v", s)
	}
}

// get sends one request through the frontend f, with the cookie of s1: only
// then it waits in the server's queue and not in the backend's.
func (p *process) get() string {
	nc, err := net.Dial("unix", filepath.Join(p.dir, "f.sock"))
	if err != nil {
		return err.Error()
	}
	defer nc.Close()
	io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\nCookie: S=s1\r\nConnection: close\r\n\r\n")
	b, _ := io.ReadAll(nc)
	if len(b) < 12 {
		return "EOF"
	}
	return string(b[9:12])
}

// What a pod answers to a check reaches us through HAProxy's CSV: line ends,
// quotes and a prompt in it change nothing.
func TestPodsText(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.77.1.7:0")
	if err != nil {
		t.Fatal(err)
	}
	pod := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(503)
		io.WriteString(w, "\"a\",\n\n> \n\n> b,c\n")
	})}
	go pod.Serve(l)
	t.Cleanup(func() { pod.Close() })
	c := start(t, `
backend be
    option httpchk GET /
    http-check expect status 200 on-error "%[res.body]"
    server s1 `+l.Addr().String()+` check inter 50ms
`).client(Options{})
	eventually(t, func() error {
		r, err := c.Read(context.Background(), Scope{})
		if err != nil {
			t.Fatal(err)
		}
		if s := server(t, r, "be", "s1"); !strings.Contains(s.LastCheck, "a") {
			return fmt.Errorf("last check %q", s.LastCheck)
		}
		return nil
	})
	t.Logf("%q", server(t, read(t, c), "be", "s1").LastCheck)
}

// Our JSON is client-native's, but for the two values it gets wrong.
func TestRuntimeModel(t *testing.T) {
	t.Parallel()
	p := start(t, small)
	c := p.client(Options{})
	do(t, c, SetState("be", "s2", Drain), SetState("other", "p1", Ready), SetState("other", "p2", Drain), SetState("be", "s1", Drain))
	native, err := cn.New(context.Background(), options.Sockets(map[int]string{1: c.Socket().Address}))
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{"be", "other"} {
		theirs, err := native.GetServersState(backend)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range read(t, c, backend).Servers {
			ours := s.Runtime()
			if s.Admin == InheritedDrain || s.Admin == ConfigMaint|ForcedDrain {
				if ours.AdminState != "drain" || theirs[i].AdminState != "maint" {
					t.Errorf("%s: admin %d is %s, theirs %s", s.Name, s.Admin, ours.AdminState, theirs[i].AdminState)
				}
				theirs[i].AdminState = "drain"
			}
			if diff := cmp.Diff(*theirs[i], ours); diff != "" {
				t.Errorf("%s/%s:\n%s", backend, s.Name, diff)
			}
			if err := ours.Validate(nil); err != nil {
				t.Error(err)
			}
		}
	}
	for _, s := range read(t, c).Servers {
		theirs := find(native.GetStats(), s.Backend, s.Name)
		if ours := s.Native(); theirs == nil || !subset(ours.Stats, theirs.Stats) || ours.Type != theirs.Type {
			t.Errorf("%s/%s:\n%s", s.Backend, s.Name, cmp.Diff(theirs, &ours))
		}
	}
}

func find(all models.NativeStats, backend, name string) *models.NativeStat {
	for _, s := range all[0].Stats {
		if s.BackendName == backend && s.Name == name {
			return s
		}
	}
	return nil
}

// subset says whether every field that ours has, theirs has with the same
// value; what moves with time apart.
func subset(ours, theirs *models.NativeStatStats) bool {
	a, b := reflect.ValueOf(ours).Elem(), reflect.ValueOf(theirs).Elem()
	for i := range a.NumField() {
		switch a.Type().Field(i).Name {
		case "Lastchg", "CheckStatus", "AgentStatus", "CheckDuration", "LastAgt":
			continue
		}
		if !a.Field(i).IsZero() && !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			return false
		}
	}
	return true
}
