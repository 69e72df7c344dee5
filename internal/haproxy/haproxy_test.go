package haproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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

// What is written down is what HAProxy says to anybody who asks.
func TestServerStateText(t *testing.T) {
	t.Parallel()
	c := start(t, small).client(Options{ReadOnly: true})
	do(t, New(c.Socket(), Options{}), SetState("be", "s2", Drain))
	nc, err := net.Dial("unix", c.Socket().Address)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := io.WriteString(nc, "show servers state\n"); err != nil {
		t.Fatal(err)
	}
	want, err := io.ReadAll(nc)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.ServerState(context.Background())
	if lines := len(strings.Split(string(got), "\n")); err != nil || len(got) != len(want) || lines < 5 || !strings.HasPrefix(string(got), "1\n# be_id") {
		t.Errorf("%v\n%s\n%s", err, got, want)
	}
}

// Some servers cost less than their backends, and are the same; one that is
// not there is an error, not an absence.
func TestScopeServers(t *testing.T) {
	t.Parallel()
	c := start(t, small+"backend off\n    disabled\n    server s1 127.77.1.2:1\nfrontend be\n    bind DIR/be.sock\n").client(Options{})
	do(t, c, SetState("be", "s2", Drain), SetWeight("other", "b1", 9))
	whole := read(t, c)
	names := []Name{{"other", "b1"}, {"be", "s2"}, {"be", "t1"}, {"off", "s1"}, {"be", "s2"}}
	turn, err := c.Turn(context.Background(), Scope{Servers: names}, func(Read) ([]Command, error) {
		return []Command{SetState("be", "s2", Ready)}, nil
	})
	if err != nil || turn.Err() != nil {
		t.Fatal(err, turn.Err())
	}
	var want []Server
	for _, n := range []Name{{"be", "s2"}, {"be", "t1"}, {"other", "b1"}} {
		want = append(want, server(t, whole, n.Backend, n.Server))
	}
	if diff := cmp.Diff(want, turn.Before.Servers, cmpopts.IgnoreFields(Server{}, "LastChange")); diff != "" || !slices.Equal(turn.Before.Disabled, []string{"off"}) {
		t.Errorf("disabled %q\n%s", turn.Before.Disabled, diff)
	}
	if len(turn.After.Servers) != 3 || turn.After.Servers[0].Admin != 0 {
		t.Errorf("%+v", turn.After)
	}
	for _, scope := range []Scope{
		{Servers: []Name{{"be", "s1"}, {"be", "nope"}}},
		{Servers: []Name{{"nope", "s1"}}},
		{Servers: []Name{{"be", "#1"}}},
		{Servers: []Name{{"be", "s1"}}, Backends: []string{"be"}},
	} {
		r, err := c.Read(context.Background(), scope)
		if err == nil {
			t.Errorf("%+v: %+v", scope, r)
		}
		if s := scope.Servers[len(scope.Servers)-1].Server; s == "nope" && (!errors.Is(err, ErrNoSuchServer) || !strings.Contains(err.Error(), "be/nope")) {
			t.Errorf("%+v: %v", scope, err)
		}
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
