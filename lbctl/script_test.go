package main

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"lbdrain/internal/haproxy"
)

// TestScripts runs the command line as people type it.
func TestScripts(t *testing.T) {
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			return scriptLab(e)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// lbctl runs the program, with a state directory of the script's own.
			"lbctl": func(ts *testscript.TestScript, neg bool, args []string) {
				if len(args) > 0 && args[0] != "serve" && args[0] != "version" {
					args = append(args, "--state-dir", ts.MkAbs("state"), "--control", ts.MkAbs("control.sock"))
				}
				err := ts.Exec(bin, args...)
				code := "0"
				if err != nil {
					code = err.Error()
				}
				ts.Setenv("code", code)
				if (err != nil) != neg {
					ts.Fatalf("lbctl %q: %v", args, err)
				}
			},
			// code checks the exit code of the last lbctl.
			"code": func(ts *testscript.TestScript, _ bool, args []string) {
				if want := "exit status " + args[0]; ts.Getenv("code") != want {
					ts.Fatalf("%s, want %s", ts.Getenv("code"), want)
				}
			},
			// untouched says that HAProxy is as it was at first.
			"untouched": func(ts *testscript.TestScript, _ bool, _ []string) {
				s, err := haproxy.ParseSocket(ts.Getenv("SOCK"))
				ts.Check(err)
				r, err := haproxy.New(s, haproxy.Options{}).Read(context.Background(), haproxy.Scope{})
				ts.Check(err)
				for _, s := range r.Servers {
					if s.Admin != 0 || s.Check&haproxy.Configured != 0 && !s.Check.On() || s.Agent&haproxy.Configured != 0 && !s.Agent.On() {
						ts.Fatalf("%s/%s is %v, check %v, agent %v", s.Backend, s.Name, s.Admin, s.Check, s.Agent)
					}
				}
			},
		},
	})
}

// scriptLab starts a HAProxy with sockets of two levels, and sockets that are
// none.
func scriptLab(e *testscript.Env) error {
	t := e.T().(testing.TB)
	l := newLab(t, labOptions{pods: 2, other: true})
	for _, be := range []string{"web", "api"} {
		l.up(be, "s1")
		l.up(be, "s2")
	}
	silent, err := net.Listen("unix", filepath.Join(l.dir, "silent.sock"))
	if err != nil {
		return err
	}
	t.Cleanup(func() { silent.Close() })
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(l.dir, "dead.sock"), Net: "unix"})
	if err != nil {
		return err
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	e.Setenv("SOCK", l.sock)
	e.Setenv("CFG", l.cfg)
	e.Setenv("TOOLONG", strings.Repeat("r", maxReason+1))
	e.Setenv("SILENT", filepath.Join(l.dir, "silent.sock"))
	e.Setenv("DEAD", filepath.Join(l.dir, "dead.sock"))
	e.Setenv("OPERATOR", filepath.Join(l.dir, "operator.sock"))
	e.Setenv("ADDR", net.JoinHostPort(l.pods[0].ip, strconv.Itoa(l.pods[0].data)))
	return nil
}
