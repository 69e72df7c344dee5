package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// gate is a writer that stalls until it is opened.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	got  bytes.Buffer
}

func (g *gate) Write(b []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got.Write(b)
}

// A reader that stalls holds nobody up; what it missed is said.
func TestLogStalls(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	w := newLogWriter(g)
	const n = 3 * logLines
	for range n {
		if k, err := w.Write([]byte("line\n")); k != 5 || err != nil {
			t.Fatal(k, err)
		}
	}
	w.flush(time.Millisecond)
	close(g.open)
	eventually(t, "all is written", func() bool { return w.waiting.Load() == 0 })
	g.mu.Lock()
	defer g.mu.Unlock()
	written, lost := 0, 0
	for line := range strings.Lines(g.got.String()) {
		var e struct {
			Event string
			Lines int
		}
		if line == "line\n" {
			written++
		} else if err := json.Unmarshal([]byte(line), &e); err != nil || e.Event != "log_lost" {
			t.Errorf("%q", line)
		}
		lost += e.Lines
	}
	if lost == 0 || written < logLines || written+lost != n {
		t.Errorf("%d written and %d lost of %d", written, lost, n)
	}
}

// Nobody reads the log, or nobody is left to read it: the drain goes on.
func TestNobodyReadsTheLog(t *testing.T) {
	t.Parallel()
	for name, closed := range map[string]bool{"gone": true, "stalled": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			h := host()
			cmd := exec.Command(binary, "serve", "--listen", h+":30180", "--control", h+":18180", "--learn", "0")
			cmd.Stderr = w
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			defer func() { _ = cmd.Process.Kill() }()
			if closed {
				if _, err := io.ReadAtLeast(r, make([]byte, 64<<10), 1); err != nil {
					t.Fatal(err)
				}
				r.Close()
			}
			control := "http://" + h + ":18180"
			eventually(t, "it serves", func() bool { _, err := try(plain, "GET", control+"/live", ""); return err == nil })
			for range 200 { // 64 kB of lines and more
				for _, path := range []string{"/drain", "/reopen"} {
					if a := do(t, "POST", control+path, ""); a.code != 200 {
						t.Fatalf("%s: %+v", path, a)
					}
				}
			}
			for _, path := range []string{"/drain?finish", "/close-lb", "/close"} {
				do(t, "POST", control+path, "")
			}
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if err := cmd.Wait(); err != nil {
				t.Errorf("exit: %v", err)
			}
		})
	}
}

// A state file that could not be written is written once it can, and leaves
// nothing beside it.
func TestStateFileLater(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "later")
	file := filepath.Join(dir, "state.json")
	p := serveOn(t, host(), []string{"POD_UID=uid"}, "--state-file", file)
	p.post("/drain")
	p.await("state_file")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is written", func() bool {
		b, _ := os.ReadFile(file)
		return strings.Contains(string(b), `"DRAINING"`)
	})
	eventually(t, "the log says so", func() bool { return len(p.events("state_file")) == 2 })
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}
