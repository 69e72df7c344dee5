package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lbdrain/cfg"
)

const cleanCfg = `global
 stats socket %s mode 660 level admin
 stats maxconn 20
 server-state-file /tmp/none
defaults
 mode http
 timeout connect 5s
 timeout client 1m
 timeout server 1m
 timeout check 2s
 load-server-state-from-file global
backend web
 option httpchk GET /health_check.html
 server s1 127.0.0.1:1 check port 2 inter 2s fall 2 agent-check agent-port 2 agent-inter 500ms
 server s2 127.0.0.2:1 check port 2 inter 2s fall 2 agent-check agent-port 2 agent-inter 500ms
`

func TestCheckExitCodes(t *testing.T) {
	clean := fmt.Sprintf(cleanCfg, "/tmp/x.sock")
	kills := strings.ReplaceAll(strings.ReplaceAll(clean, " agent-check agent-port 2 agent-inter 500ms", ""), "fall 2", "fall 2 on-marked-down shutdown-sessions")
	slots := strings.Replace(clean, " stats maxconn 20\n", "", 1)
	for _, c := range []struct {
		name, text string
		args       []string
		code       int
		out        []string
		not        string
	}{
		{"clean", clean, nil, 0, nil, "x.cfg"},
		{"kills", kills, nil, 1, []string{"x.cfg:14: error: web/s1: a failing check cuts", "and the same of 1 more servers of web", "    fix: Add agent-check"}, "web/s2"},
		{"kills and every server", kills, []string{"-v"}, 1, []string{"web/s1: a failing", "web/s2: a failing"}, "more servers"},
		{"ignored", kills, []string{"--ignore", "kill-without-warning"}, 0, nil, "x.cfg"},
		{"another backend", kills, []string{"--backend", "db"}, 0, nil, "x.cfg"},
		{"info is below warning", slots, nil, 0, []string{"info: the command line has 10 connections"}, ""},
		{"unless asked for", slots, []string{"--severity", "info"}, 1, []string{"[few-slots]"}, ""},
		{"grace", clean, []string{"--grace", "30"}, 1, []string{"error: the kubelet kills the pod 30s"}, ""},
		{"grace and a shorter drain", clean, []string{"--grace", "30", "--drain-timeout", "20s"}, 0, nil, "kubelet"},
		{"refused", clean + " server s1 127.0.0.1:5\n", nil, 1, []string{"x.cfg:16: error: web/s1: another server s1 stands at line 14."}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := write(t, "x.cfg", c.text)
			code, out, errs := command(t, append([]string{"check", "-f", file}, c.args...)...)
			if code != c.code {
				t.Errorf("exit %d, want %d\n%s%s", code, c.code, out, errs)
			}
			for _, want := range c.out {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if c.not != "" && strings.Contains(out, c.not) {
				t.Errorf("%q in\n%s", c.not, out)
			}
		})
	}
}

func TestCheckMisuse(t *testing.T) {
	file := write(t, "x.cfg", fmt.Sprintf(cleanCfg, "/tmp/x.sock"))
	plain := write(t, "plain", "a file\n")
	for args, want := range map[string]string{
		"--severity loud":                 `lbctl: severity "loud": want info, warning or error`,
		"x.cfg":                           `lbctl: check takes no argument: "x.cfg"`,
		"--against-socket ftp:x:y":        "lbctl: ",
		"--against-socket /no/such/sock":  "lbctl: read unix:/no/such/sock: ",
		"--against-socket " + plain:       "lbctl: read unix:" + plain + ": ",
		"-f /none":                        "lbctl: read configuration: stat /none",
		"--drain-timeout soon":            "lbctl: ",
		"-f " + filepath.Dir(plain) + "/": "lbctl: read configuration " + filepath.Dir(plain) + "/: no file that ends in .cfg",
	} {
		full := append([]string{"check"}, strings.Fields(args)...)
		if !strings.HasPrefix(args, "-f") {
			full = append([]string{"check", "-f", file}, strings.Fields(args)...)
		}
		code, _, errs := command(t, full...)
		if code != 2 || !strings.HasPrefix(errs, want) {
			t.Errorf("%s: exit %d, %q, want 2, %q", args, code, errs, want)
		}
	}
	if data, err := os.ReadFile(plain); err != nil || string(data) != "a file\n" {
		t.Errorf("the regular file was touched: %q, %v", data, err)
	}
}

func TestCheckJSON(t *testing.T) {
	file := write(t, "x.cfg", fmt.Sprintf(cleanCfg, "/tmp/x.sock"))
	if code, out, _ := command(t, "check", "-f", file, "-o", "json"); code != 0 || out != "[]\n" {
		t.Errorf("clean: exit %d, %q", code, out)
	}
	_, out, _ := command(t, "check", "-f", write(t, "x.cfg", "backend b\n server s 127.0.0.1:80\n"), "-o", "json")
	var found []map[string]any
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		for _, key := range []string{"id", "severity", "file", "line", "why", "fix"} {
			if _, ok := f[key]; !ok {
				t.Errorf("%v lacks %s", f, key)
			}
		}
	}
	if len(found) == 0 {
		t.Error("nothing found")
	}
}

// TestAgainstSocket compares with a real HAProxy: nothing where it runs with
// these files, and each difference where the files have changed since.
func TestAgainstSocket(t *testing.T) {
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatalf("this test needs HAProxy: %v; install it with: make deps", err)
	}
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "x.cfg")
	text := fmt.Sprintf(cleanCfg, socket) + "backend old\n server a 127.0.0.3:1 track web/s1\nbackend off\n disabled\n server z 127.0.0.4:1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bin, "-db", "-f", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if conn, err := net.Dial("unix", socket); err == nil {
			conn.Close()
			break
		} else if time.Since(start) > 20*time.Second {
			t.Fatal(err)
		}
	}
	if code, out, errs := command(t, "check", "-f", file, "--against-socket", socket, "--ignore", "health-plain-tcp"); strings.Contains(out, "live-differs") {
		t.Errorf("the same files: exit %d\n%s%s", code, out, errs)
	}
	changed := strings.NewReplacer("s1 127.0.0.1:1 check", "s1 127.0.0.5:3 check rise 7 weight 9",
		"s2 127.0.0.2:1 check port 2 inter 2s fall 2 agent-check", "s3 127.0.0.2:1 check fall 2", "a 127.0.0.3:1 track web/s1", "a 127.0.0.3:1 backup").Replace(text)
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, _ := command(t, "check", "-f", file, "--against-socket", "unix:"+socket, "-o", "json")
	var found []cfg.Finding
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		if f.ID == "live-differs" {
			got = append(got, f.Backend+"/"+f.Server+" "+strings.TrimPrefix(f.Why, "the HAProxy behind unix:"+socket+" "))
		}
	}
	want := []string{
		"web/s1 has address 127.0.0.1, the file says 127.0.0.5.", "web/s1 has port 1, the file says 3.", "web/s1 has weight 1, the file says 9.",
		"web/s1 has rise 2, the file says 7.", "web/s3 has no such server.", "old/a has backup false, the file says true.",
		"old/a has track web/s1, the file says none.", "web/s2 has web/s2, which the files do not have.",
	}
	if code != 1 || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("exit %d\n%s\nwant\n%s", code, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
