package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestUnit: the unit passes systemd's own check, and keeps its hardening.
func TestUnit(t *testing.T) {
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../systemd/lbctl.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"Restart=always", "StartLimitIntervalSec=0"} {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("no %s: five failed starts in ten seconds would be the last", line)
		}
	}
	unit := filepath.Join(t.TempDir(), "lbctl.service")
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/bin/lbctl", bin)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"verify", unit}, {"security", "--offline=true", "--threshold=20", unit}} {
		if out, err := exec.Command("systemd-analyze", args...).CombinedOutput(); err != nil {
			t.Errorf("systemd-analyze %s: %v (make deps-test installs it)\n%s", args[0], err, out)
		}
	}
}

// TestDropIn: the drop-in keeps what Debian's unit does on a reload, after ours.
func TestDropIn(t *testing.T) {
	text, err := os.ReadFile("../systemd/haproxy.service.d/lbctl.conf")
	if err != nil {
		t.Fatal(err)
	}
	var reload []string
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecReload="); ok {
			reload = append(reload, v)
		}
	}
	if len(reload) != 4 || reload[0] != "" || !strings.HasPrefix(reload[1], "-/usr/bin/lbctl state save") {
		t.Fatalf("%q", reload)
	}
	unit, err := os.ReadFile("/lib/systemd/system/haproxy.service")
	if err != nil {
		t.Fatalf("%v (make deps installs haproxy)", err)
	}
	var theirs []string
	for line := range strings.Lines(string(unit)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecReload="); ok {
			theirs = append(theirs, v)
		}
	}
	if got := strings.Join(reload[2:], "\n"); got != strings.Join(theirs, "\n") {
		t.Errorf("after ours comes\n%s\nbut Debian's unit has\n%s", got, strings.Join(theirs, "\n"))
	}
}

// TestNotify: READY, RELOADING around SIGHUP, the watchdog, STOPPING.
func TestNotify(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{pods: 1})
	path := filepath.Join(l.dir, "notify.sock")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	next := func(want string) {
		t.Helper()
		for b := make([]byte, 256); ; {
			n, err := c.Read(b)
			if err != nil {
				t.Fatalf("no %s: %v", want, err)
			}
			if strings.HasPrefix(string(b[:n]), want) {
				return
			}
		}
	}
	d := l.serveWith([]string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=200000"})
	next("READY=1")
	next("WATCHDOG=1")
	d.Process.Signal(syscall.SIGHUP)
	next("RELOADING=1")
	next("READY=1")
	d.Process.Signal(syscall.SIGTERM)
	next("STOPPING=1")
	<-d.done
	if code := d.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit %d", code)
	}
}
