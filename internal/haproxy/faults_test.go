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
	"syscall"
	"testing"
	"time"
)

const hello, level = "\n> ", "admin\n\n> "

// badPeers are peers that do not behave, and the error each must end in.
var badPeers = map[string]struct {
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
}

// A peer that does not behave is an error, always the right one, and never a
// success, a panic or a hang. The client libraries that exist turn several of
// these into success.
func TestBadPeer(t *testing.T) {
	for name, tc := range badPeers {
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

// The text of a server-state-file is whole, or an error: HAProxy would start with
// half of it without a word.
func TestServerState(t *testing.T) {
	t.Parallel()
	t.Run("whole", func(t *testing.T) {
		t.Parallel()
		text, err := serve(t, script{}.handle).client().ServerState(context.Background())
		if err != nil || string(text) != fakeState+"\n" {
			t.Errorf("%q, %v", text, err)
		}
	})
	t.Run("cut", func(t *testing.T) {
		t.Parallel()
		n := make(chan int, 1)
		f := serve(t, func(f *fake, c net.Conn) { script{}.cut(f, c, <-n) })
		for i := range len(hello + fakeState + hello) {
			n <- i
			if text, err := f.client().ServerState(context.Background()); !errors.Is(err, ErrTruncated) || text != nil {
				t.Fatalf("after %d bytes: %q, %v", i, text, err)
			}
		}
	})
	for name, tc := range badPeers {
		if !strings.HasPrefix(name, "state ") && name != "silent" && name != "HTTP server" && name != "refuses prompt" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if text, err := serve(t, tc.peer).hasty().ServerState(context.Background()); !errors.Is(err, tc.want) || text != nil {
				t.Errorf("%q, %v, want %v", text, err, tc.want)
			}
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
