package main

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Whatever a flood of connections does, or leaves undone, every health check is
// answered while it lasts, and the hook that came before it goes on waiting. When
// it has gone nothing is left of it.
func TestFloods(t *testing.T) {
	const more = 2300 // than a listener keeps
	for name, request := range map[string]string{
		"silent":         "",
		"half a request": "GET /hea",
		"idle":           "GET /live HTTP/1.1\r\nHost: x\r\n\r\n",
		"half a PUT":     "PUT /drain/lbs/x HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{",
		"reads nothing":  strings.Repeat("GET /openapi.yaml HTTP/1.1\r\nHost: x\r\n\r\n", 2000),
		"held":           "GET /drain/status HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\nPrefer: wait=300\r\n\r\n",
		"held, half": "GET /drain/status HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\nPrefer: wait=300\r\n" +
			"Content-Length: 9\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			p := serveAgent(t, "--wait-start", "10m", "--first-byte", "20ms")
			before := p.descriptors()
			waits := make(chan string, 1)
			go func() {
				a, err := try(plain, "GET", p.url("/drain/wait"), "")
				if err != nil {
					waits <- err.Error()
				}
				waits <- a.body
			}()
			eventually(t, "the hook hangs", func() bool { return p.descriptors() > before })
			for range more {
				c, err := net.Dial("tcp", p.host+":30180")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				go func() { _, _ = io.WriteString(c, request) }()
			}
			for i := range 100 {
				if got := say(t, p.host+":30180", "GET /health_check.html HTTP/1.0\r\n\r\n"); !strings.Contains(got, " 200 OK\r\n") {
					t.Fatalf("check %d: %q", i, got)
				}
			}
			p.post("/drain")
			p.post("/close-lb")
			p.post("/close")
			if body := <-waits; !strings.Contains(body, "closed by hand") {
				t.Errorf("the hook that came first: %s", body)
			}
		})
	}
}

// Half a body is answered when its time is up, and the connection ends.
func TestHalfBody(t *testing.T) {
	t.Parallel()
	p := serveAgent(t)
	for _, text := range []string{
		"PUT /drain/lbs/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
		"PUT /drain/lbs/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{",
	} {
		if got := say(t, p.host+":30180", text); !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, `"state":"OPEN"}`) {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// Who asks and reads nothing is cut off, and not with megabytes of answers waiting
// for him in the kernel.
func TestReadsNothing(t *testing.T) {
	t.Parallel()
	p := serveAgent(t)
	before := p.descriptors()
	c, err := net.Dial("tcp", p.host+":30180")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	go func() {
		_, _ = io.WriteString(c, strings.Repeat("GET /openapi.yaml HTTP/1.1\r\nHost: x\r\n\r\n", 2000))
	}()
	eventually(t, "it is accepted", func() bool { return p.descriptors() > before })
	eventually(t, "it is cut off", func() bool { return p.descriptors() <= before })
	if n, _ := io.Copy(io.Discard, c); n > 1<<20 {
		t.Errorf("%d bytes had been sent", n)
	}
}

// A held answer whose caller has left is forgotten, body or none.
func TestHeldCallerLeaves(t *testing.T) {
	t.Parallel()
	p := serveAgent(t)
	before := p.descriptors()
	for _, body := range []string{"Content-Length: 1\r\n\r\nx", "Content-Length: 9\r\n\r\nx", "\r\n"} {
		c, err := net.Dial("tcp", p.host+":30180")
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(c, "GET /drain/status HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\nPrefer: wait=300\r\n"+body)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is accepted", func() bool { return p.descriptors() > before })
		c.Close()
		eventually(t, "nothing is left of it", func() bool { return p.descriptors() <= before })
	}
}

// descriptors are the agent's open files.
func (p *pod) descriptors() int {
	p.t.Helper()
	all, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "fd"))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(all)
}

// The command that lets the process exit is answered before it does.
func TestLastAnswer(t *testing.T) {
	t.Parallel()
	for range 20 {
		p := serveAgent(t)
		p.signal(syscall.SIGTERM)
		p.await("transition")
		p.post("/close-lb")
		if a := p.post("/close"); a.code != 200 || !strings.Contains(a.body, `"CLOSED"`) {
			t.Fatalf("%+v", a)
		}
		if code := p.exit(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}
