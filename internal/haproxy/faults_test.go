package haproxy

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A peer that does not behave is an error, always the right one, and never a
// success, a panic or a hang. The client libraries that exist turn several of
// these into success.
func TestBadPeer(t *testing.T) {
	const hello, level = "\n> ", "admin\n\n> "
	for name, tc := range map[string]struct {
		peer func(*fake, net.Conn)
		want error
	}{
		"silent":                    {say(""), ErrBusy},
		"silent after the prompt":   {say(hello), ErrBusy},
		"silent in a reply":         {say(hello + level + "Name: HAProxy\nPid: 1\n"), ErrBusy},
		"a prompt without newline":  {say(hello + level + fakeInfo + "> "), ErrBusy},
		"half a prompt":             {say(hello + level + fakeInfo + "\n>"), ErrBusy},
		"closes at once":            {func(*fake, net.Conn) {}, ErrTruncated},
		"closes after the prompt":   {script{}.cutAt(3), ErrTruncated},
		"dribbles":                  {drip(hello + level + strings.Repeat("Name: HAProxy\n", 1000)), ErrBusy},
		"HTTP server":               {say("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"), ErrProtocol},
		"speaks first":              {say("SSH-2.0-OpenSSH_9.2p1"), ErrProtocol},
		"refuses prompt":            {script{"prompt": "Unknown command.\n"}.handle, ErrProtocol},
		"talks back at prompt":      {say("\nhello\n\n> "), ErrProtocol},
		"no level":                  {script{"show cli level": "Unknown command.\n"}.handle, ErrUnknownCommand},
		"another level":             {script{"show cli level": "emperor\n"}.handle, ErrProtocol},
		"info empty":                {script{"show info": ""}.handle, ErrProtocol},
		"info without Pid":          {script{"show info": strings.Replace(fakeInfo, "Pid: 4711\n", "", 1)}.handle, ErrProtocol},
		"info without Start":        {script{"show info": strings.Replace(fakeInfo, "Start_time_sec", "Start", 1)}.handle, ErrProtocol},
		"info with Pid x":           {script{"show info": strings.Replace(fakeInfo, "4711", "x", 1)}.handle, ErrProtocol},
		"info refused":              {script{"show info": "Permission denied\n"}.handle, ErrPermission},
		"state empty":               {script{"show servers state": ""}.handle, ErrProtocol},
		"state without header":      {script{"show servers state": "1\n"}.handle, ErrProtocol},
		"state of version 2":        {script{"show servers state": "2\n" + fakeState[2:]}.handle, ErrProtocol},
		"state without admin bits":  {script{"show servers state": strings.Replace(fakeState, "srv_admin_state", "x", 1)}.handle, ErrProtocol},
		"state with a field less":   {script{"show servers state": strings.Replace(fakeState, " - - 30180\n", " - 30180\n", 1)}.handle, ErrProtocol},
		"state with a field more":   {script{"show servers state": strings.Replace(fakeState, " - - 30180\n", " - - - 30180\n", 1)}.handle, ErrProtocol},
		"state with admin bits x":   {script{"show servers state": strings.Replace(fakeState, " 2 8 ", " 2 x ", 1)}.handle, ErrProtocol},
		"state with admin bits 256": {script{"show servers state": strings.Replace(fakeState, " 2 8 ", " 2 256 ", 1)}.handle, ErrProtocol},
		"state refused":             {script{"show servers state": "Permission denied\n"}.handle, ErrPermission},
		"state unknown":             {script{"show servers state": "Unknown command. Please enter one of\n  help\n"}.handle, ErrUnknownCommand},
		"stat empty":                {script{"show stat -1 6 -1": ""}.handle, ErrProtocol},
		"stat without scur":         {script{"show stat -1 6 -1": strings.Replace(fakeStat, "scur", "x", 1)}.handle, ErrProtocol},
		"stat with a field less":    {script{"show stat -1 6 -1": strings.Replace(fakeStat, ",http,", "", 1)}.handle, ErrProtocol},
		"stat with sessions ''":     {script{"show stat -1 6 -1": strings.Replace(fakeStat, "s1,2,3,", "s1,2,,", 1)}.handle, ErrProtocol},
		"stat with sessions -1":     {script{"show stat -1 6 -1": strings.Replace(fakeStat, "s1,2,3,", "s1,2,-1,", 1)}.handle, ErrProtocol},
		"stat with an open quote":   {script{"show stat -1 6 -1": strings.Replace(fakeStat, ",OK,", `,"OK,`, 1)}.handle, ErrBusy},
		"stat with a wrong quote":   {script{"show stat -1 6 -1": strings.Replace(fakeStat, ",OK,", `,"O"K,`, 1)}.handle, ErrProtocol},
		"stat of a server twice":    {script{"show stat -1 6 -1": strings.Replace(fakeStat, "be,s2", "be,s1", 1)}.handle, ErrProtocol},
		"server without statistics": {script{"show stat -1 6 -1": strings.Replace(fakeStat, "be,s2,0,0,,0,MAINT,1,0,1,5,2,,,,,,,http,\n", "", 1)}.handle, ErrTorn},
		"server without state":      {script{"show servers state": fakeState[:strings.Index(fakeState, "3 be 2")]}.handle, ErrTorn},
		"one line for ever":         {flood(hello+level, "x"), ErrProtocol},
		"info for ever":             {flood(hello+level, "Name: HAProxy\n"), ErrTooLarge},
		"one record for ever":       {flood(hello+level+fakeInfo+hello+fakeState+hello+"# pxname,svname,qcur,scur,status,weight,type,last_chk\nbe,s1,0,0,UP,1,2,\"", "x\n"), ErrProtocol},
		"a false prompt":            {script{"show info": "Name: HAProxy\ndescription: a\n\n> b\n" + fakeInfo}.handle, ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := serve(t, tc.peer).hasty()
			if tc.want != ErrBusy {
				c = New(c.Socket(), Options{Timeout: 10 * time.Second})
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			turn, err := c.Turn(ctx, Scope{}, func(Read) ([]Command, error) {
				t.Error("was asked to decide")
				return nil, nil
			})
			if !errors.Is(err, tc.want) || ctx.Err() != nil {
				t.Fatalf("error %v, want %v", err, tc.want)
			}
			if turn.After != nil || turn.Outcomes != nil {
				t.Errorf("a turn: %+v", turn)
			}
			t.Log(err)
		})
	}
}

func (s script) cutAt(n int) func(*fake, net.Conn) {
	return func(f *fake, c net.Conn) { s.cut(f, c, n) }
}

// Wherever a conversation is cut, it is an error: no prefix of a reply is a
// reply.
func TestCutShort(t *testing.T) {
	t.Parallel()
	n := make(chan int, 1)
	f := serve(t, func(f *fake, c net.Conn) { script{}.cut(f, c, <-n) })
	c, length := f.client(), script{}.length()
	for i := range length {
		n <- i
		if r, err := c.Read(context.Background(), Scope{}); !errors.Is(err, ErrTruncated) {
			t.Fatalf("after %d of %d bytes: %v, %+v", i, length, err, r)
		}
	}
	n <- -1
	if _, err := c.Read(context.Background(), Scope{}); err != nil {
		t.Fatal(err)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	f := serve(t, script{}.handle)
	r := read(t, f.client())
	want := Info{Pid: 4711, Start: 1764400000, Version: "2.6.12", Node: "lb1", Uptime: 9 * time.Second, Jobs: 3}
	if r.Info != want || r.Level != "admin" || r.Disabled != nil || r.Took <= 0 {
		t.Errorf("%+v", r)
	}
	servers := []Server{
		{
			Backend: "be", Name: "s1", BackendID: 3, ID: 1, Addr: "192.0.2.1", Port: 30080, Mode: "http",
			Admin: ForcedDrain, Operational: OpRunning, LastChange: 77 * time.Second, Status: "DRAIN (agent)",
			Weight: 100, UserWeight: 100, Active: true,
			Check: Configured | Enabled, CheckHealth: 3, Rise: 2, Fall: 3, CheckStatus: "L7OK", CheckRunning: true,
			CheckCode: 200, CheckDuration: 4 * time.Millisecond, LastCheck: "OK",
			Agent:    Configured | Enabled | Agent,
			Sessions: 3, Queued: 2, MaxConn: 9, Total: 12,
		},
		{
			Backend: "be", Name: "s2", BackendID: 3, ID: 2, Addr: "192.0.2.2", Port: 80, Mode: "http",
			Admin: ForcedMaint | ConfigMaint, LastChange: 5 * time.Second, Status: "MAINT",
			Weight: 1, UserWeight: 1, Backup: true, Check: Configured | Enabled | Paused,
		},
	}
	if !reflect.DeepEqual(r.Servers, servers) {
		t.Errorf("%+v", r.Servers)
	}
	if _, ok := r.Server("be", "s3"); ok {
		t.Error("found be/s3")
	}
}

// What a health check or a configuration says may contain anything, the prompt
// included, and may not be taken for the end of a reply.
func TestPromptInside(t *testing.T) {
	t.Parallel()
	f := serve(t, script{
		"show info":         "Name: HAProxy\ndescription: > x\n> y\n> \nnode: > \n" + fakeInfo,
		"show stat -1 6 -1": strings.Replace(fakeStat, ",OK,", ",\"> \"\"a\"\"\n\n> \n> b, c\",", 1),
	}.handle)
	r := read(t, f.client())
	if got, want := server(t, r, "be", "s1").LastCheck, "> \"a\"\n\n> \n> b, c"; got != want {
		t.Errorf("last check %q, want %q", got, want)
	}
	if s := server(t, r, "be", "s1"); s.Rise != 2 || s.Fall != 3 || len(r.Servers) != 2 {
		t.Errorf("%+v", r)
	}
}

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

// A path where no HAProxy listens gets its own error, and is left as it was.
func TestNoHAProxy(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(path("file"), []byte("untouched\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", path("link")); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path("dead"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	before := listing(t, dir)
	for name, want := range map[string]error{
		"missing": ErrNoSocket, "no/such/dir": ErrNoSocket, "file": ErrNotSocket, "link": ErrNotSocket,
		"file/s": ErrNotSocket, ".": ErrNotSocket, "dead": ErrRefused,
	} {
		c := New(Socket{Network: "unix", Address: path(name)}, Options{})
		turn, err := c.Turn(context.Background(), Scope{}, func(Read) ([]Command, error) {
			return []Command{SetState("be", "s1", Maint)}, nil
		})
		if !errors.Is(err, want) || turn.Outcomes != nil || Hint(err) == "" {
			t.Errorf("%s: %v, want %v; hint %q", name, err, want, Hint(err))
		}
	}
	if after := listing(t, dir); !slices.Equal(before, after) {
		t.Errorf("%q became %q", before, after)
	}
	if _, err := New(Socket{Network: "tcp", Address: "127.77.1.9:1"}, Options{}).Read(context.Background(), Scope{}); !errors.Is(err, ErrRefused) {
		t.Errorf("tcp: %v", err)
	}
}

// listing is every name with what would change if it were touched.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fi.Mode().String()+" "+fi.Name()+" "+fi.ModTime().String())
	}
	return names
}

// A socket that this user may not open says so, and another hint than one
// whose level is too low.
func TestNoAccess(t *testing.T) {
	t.Parallel()
	f := serve(t, script{}.handle)
	if err := os.Chmod(f.socket.Address, 0); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		// Root may open anything: this thread gives that up for a moment. It
		// must not end, for it may be the one that HAProxy's Pdeathsig watches.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := syscall.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer syscall.Setfsuid(0)
	}
	_, err := f.client().Read(context.Background(), Scope{})
	if !errors.Is(err, ErrPermission) || !errors.Is(err, fs.ErrPermission) || !strings.Contains(Hint(err), "group") {
		t.Errorf("%v, hint %q", err, Hint(err))
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
