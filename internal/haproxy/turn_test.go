package haproxy

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Whatever HAProxy says to a command is an error that carries it: refusals and
// remarks (severity 4 to 6 in its sources) look the same.
func TestReplies(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]error{
		"No such server.\n":                              ErrNoSuchServer,
		"No such backend.\n":                             ErrNoSuchBackend,
		"Permission denied\n":                            ErrPermission,
		"Unknown command. Usage:\n x":                    ErrUnknownCommand,
		"agent checks are not enabled on this server.\n": nil,
		"IP changed from '192.0.2.1' to '192.0.2.9' by 'stats socket command'\n": nil,
		"no newline at the end":             nil,
		"Proxy is disabled.\n":              nil,
		"[4]: Invalid addr format: 'x'\n":   nil,
		"port updated by x\nsecond line\n ": nil,
	} {
		cmd := SetState("be", "s1", Drain)
		f := serve(t, script{cmd.String(): reply}.handle)
		turn := do(t, f.client(), cmd, DisableAgent("be", "s2"))
		first, second := turn.Outcomes[0], turn.Outcomes[1]
		var e *CommandError
		if !errors.As(first.Err, &e) || !errors.Is(first.Err, want) && want != nil {
			t.Errorf("%q: error %v, want %v", reply, first.Err, want)
			continue
		}
		if text := strings.TrimSpace(reply); first.Reply != text || e.Reply != text || e.Command != cmd.String() {
			t.Errorf("%q was reported as %q, %+v", reply, first.Reply, e)
		}
		if second.Err != nil || second.Reply != "" || turn.After == nil || turn.Err() == nil {
			t.Errorf("%q: the command after it: %+v", reply, turn)
		}
	}
}

// A connection that breaks while commands are under way leaves each of them
// with an error: nobody knows which were carried out.
func TestCutInCommands(t *testing.T) {
	t.Parallel()
	answered := "\n> \n> No such server.\n\n> "
	for n := range answered {
		f := serve(t, func(f *fake, c net.Conn) {
			script{"set server be/s2 state drain": "No such server.\n"}.cut(f, c, script{}.length()+n)
		})
		turn, err := f.client().Turn(context.Background(), Scope{}, func(Read) ([]Command, error) {
			return []Command{DisableAgent("be", "s1"), EnableAgent("be", "s1"), SetState("be", "s2", Drain)}, nil
		})
		if !errors.Is(err, ErrTruncated) || len(turn.Outcomes) != 3 || turn.After != nil {
			t.Fatalf("after %d bytes: %v, %+v", n, err, turn)
		}
		for i, o := range turn.Outcomes {
			if answeredAlready := n >= 3*(i+1) && i < 2; (o.Err == nil) != answeredAlready {
				t.Errorf("after %d bytes: %s: %v", n, o.Command, o.Err)
			}
		}
	}
}

// Names that would be another command, another server or a whole line more are
// refused before anything is sent.
func TestNames(t *testing.T) {
	t.Parallel()
	f := serve(t, script{}.handle)
	for _, name := range []string{
		"", "s1\nset server be", "s1;quit", "s 1", "s1\t", "#1", "be/s1", "s\x00", "s\x1b[2J", "ß", "a\r", `a"b`, "a\\", "*",
		"s3 state maint", strings.Repeat("x", 256),
	} {
		for _, cmd := range []Command{
			SetState("be", name, Drain), SetState(name, "s1", Maint), SetWeight("be", name, 1), DisableAgent("be", name), EnableAgent(name, "s1"),
			DisableHealth("be", name), EnableHealth(name, "s1"), ShutdownSessions("be", name),
		} {
			if cmd.String() != "" {
				t.Errorf("%q became %q", name, cmd)
			}
			turn, err := f.client().Turn(context.Background(), Scope{}, func(Read) ([]Command, error) {
				return []Command{DisableAgent("be", "s1"), cmd}, nil
			})
			if err == nil || turn.Outcomes != nil || turn.After != nil {
				t.Errorf("%q: %v, %+v", name, err, turn)
			}
		}
		if _, err := f.client().Read(context.Background(), Scope{Backends: []string{"be", name}}); err == nil {
			t.Errorf("backend %q was read", name)
		}
	}
	for _, cmd := range []Command{{}, SetState("be", "s1", "ready\nquit"), SetState("be", "s1", ""), SetWeight("be", "s1", 257), SetWeight("be", "s1", -1)} {
		if _, err := f.client().Turn(context.Background(), Scope{}, func(Read) ([]Command, error) { return []Command{cmd}, nil }); err == nil {
			t.Errorf("%+v was taken", cmd)
		}
	}
	if lines := f.received(); lines != nil {
		t.Errorf("HAProxy was told %q", lines)
	}
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	f := serve(t, script{}.handle)
	c := New(f.socket, Options{ReadOnly: true})
	turn, err := c.Turn(context.Background(), Scope{}, func(Read) ([]Command, error) {
		return []Command{SetState("be", "s1", Drain)}, nil
	})
	if !errors.Is(err, ErrReadOnly) || len(turn.Before.Servers) != 2 || f.received() != nil {
		t.Errorf("%v, %q", err, f.received())
	}
	broken := errors.New("no")
	if _, err := c.Turn(context.Background(), Scope{}, func(Read) ([]Command, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// A context that ends, ends the turn, wherever it is.
func TestContext(t *testing.T) {
	t.Parallel()
	silent := serve(t, say(""))
	c := New(silent.socket, Options{Timeout: time.Hour})
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 3)
	for range cap(failed) {
		go func() {
			_, err := c.Read(ctx, Scope{})
			failed <- err
		}()
	}
	eventually(t, func() error {
		silent.mu.Lock()
		defer silent.mu.Unlock()
		if silent.conns < connections {
			return errors.New("no two connections")
		}
		return nil
	})
	cancel()
	for range cap(failed) {
		if err := <-failed; !errors.Is(err, context.Canceled) || errors.Is(err, ErrBusy) {
			t.Error(err)
		}
	}
	silent.mu.Lock()
	if silent.conns != connections {
		t.Errorf("%d connections", silent.conns)
	}
	silent.mu.Unlock()
	// A deadline that passes while HAProxy is silent is HAProxy's silence too.
	ctx, cancel = context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Read(ctx, Scope{}); !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := c.Read(ctx, Scope{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// Two turns at a time, not three; and every connection ends with its turn.
func TestTwoAtATime(t *testing.T) {
	t.Parallel()
	f := serve(t, script{}.handle)
	c := f.client()
	var mu sync.Mutex
	now, most := 0, 0
	pair := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			_, err := c.Turn(context.Background(), Scope{}, func(Read) ([]Command, error) {
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				// One waits for another: two must be possible.
				select {
				case pair <- struct{}{}:
				case <-pair:
				}
				mu.Lock()
				now--
				mu.Unlock()
				if i%2 == 0 {
					return nil, errors.New("a turn that fails gives its slot back")
				}
				return []Command{SetWeight("be", "s1", i)}, nil
			})
			if (err != nil) != (i%2 == 0) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most != connections {
		t.Errorf("%d at a time", most)
	}
	eventually(t, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.open != 0 {
			return errors.New("connections left open")
		}
		return nil
	})
	if len(f.received()) != 20 {
		t.Errorf("%d commands", len(f.received()))
	}
}

// More commands than one batch keep their answers apart.
func TestManyCommands(t *testing.T) {
	t.Parallel()
	odd := script{}
	var commands []Command
	for i := range 1000 {
		cmd := SetWeight("be", "s1", i%257)
		if i%2 == 1 {
			cmd = SetState("be", "odd", Drain)
			odd[cmd.String()] = "No such server.\n"
		}
		commands = append(commands, cmd)
	}
	f := serve(t, odd.handle)
	turn := do(t, f.client(), commands...)
	for i, o := range turn.Outcomes {
		if o.Command != commands[i] || (o.Err != nil) != (i%2 == 1) {
			t.Fatalf("%d: %+v", i, o)
		}
	}
	if got := f.received(); len(got) != len(commands) || turn.After == nil {
		t.Errorf("%d lines", len(got))
	}
}

func TestParseSocket(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Socket{
		"/run/haproxy/admin.sock":      {"unix", "/run/haproxy/admin.sock"},
		"unix:/run/haproxy/admin.sock": {"unix", "/run/haproxy/admin.sock"},
		"unix:admin.sock":              {"unix", "admin.sock"},
		"./a:b":                        {"unix", "./a:b"},
		"tcp:lb1:9999":                 {"tcp", "lb1:9999"},
		"tcp:[::1]:9999":               {"tcp", "[::1]:9999"},
	} {
		got, err := ParseSocket(in)
		if again, err2 := ParseSocket(got.String()); err != nil || got != want || err2 != nil || again != want {
			t.Errorf("%q = %+v, %v; again %+v, %v", in, got, err, again, err2)
		}
	}
	for _, in := range []string{"", "admin.sock", "unix:", "tcp:", "tcp:host", "tcp:host:", "udp:h:1", "/a\nb", "/" + strings.Repeat("x", 107)} {
		if got, err := ParseSocket(in); err == nil {
			t.Errorf("%q was taken as %+v", in, got)
		}
	}
}
