package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lbdrain/internal/handshake"
)

// call is one request of a client: who answered it, and when.
type call struct {
	ip       string
	from, to time.Time
}

// clients send short requests to both backends until the test stops them, half of
// them on a new connection each time; whatever is not answered whole is an error.
type clients struct {
	stop chan struct{}
	all  sync.WaitGroup

	mu    sync.Mutex
	calls []call
	bad   []string
}

func (l *lab) clients(n int) *clients {
	c := &clients{stop: make(chan struct{})}
	for i := range n {
		web := http.Client{Transport: &http.Transport{DisableKeepAlives: i%2 == 0}, Timeout: 20 * time.Second}
		tick := time.NewTicker(time.Duration(4+i) * time.Millisecond)
		c.all.Go(func() {
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-c.stop:
					return
				case <-tick.C:
					c.once(&web, "http://"+net.JoinHostPort(l.ip, strconv.Itoa(l.port))+[]string{"/x", "/api/x"}[n%2])
				}
			}
		})
	}
	return c
}

func (c *clients) once(web *http.Client, url string) {
	from := time.Now()
	var body []byte
	resp, err := web.Get(url)
	if err == nil {
		body, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s", resp.Status)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call{strings.TrimSpace(string(body)), from, time.Now()})
	if err != nil {
		c.bad = append(c.bad, err.Error())
	}
}

// TestUnderLoad drains one pod after the other and breaks something in each drain and
// in each return: no request fails, and none reaches a pod that may be gone.
func TestUnderLoad(t *testing.T) {
	t.Parallel()
	// The listeners are handed over: a reload without that resets what is in their
	// backlog, which is no drain's fault.
	l := newLab(t, labOptions{pods: 3, stateFile: true, level: "admin expose-fd listeners"})
	for i := range l.pods {
		l.up("web", fmt.Sprintf("s%d", i+1))
	}
	d := l.serve("--log-level", "info")
	for _, p := range l.pods {
		eventually(t, "the greeting", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.acks) > 0 })
	}
	faults := []func(){
		func() {},
		func() { d.kill(); d = l.serve("--log-level", "info") },
		func() { l.startProxy("-x", l.sock, "-sf", strconv.Itoa(l.proxy.Process.Pid)) },
		func() {
			l.proxy.Process.Signal(syscall.SIGSTOP)
			time.AfterFunc(700*time.Millisecond, func() { l.proxy.Process.Signal(syscall.SIGCONT) })
		},
		func() { d.Process.Signal(syscall.SIGHUP) },
	}
	c := l.clients(6)
	var away []call // when a pod may have been gone
	for i := range 2 * len(faults) {
		p, name := l.pods[i%3], fmt.Sprintf("s%d", i%3+1)
		p.drain()
		faults[i%len(faults)]()
		eventually(t, "held-zero", func() bool { return p.lastWord() == handshake.HeldZero })
		from := time.Now()
		p.stopAgent()
		faults[(i+1)%len(faults)]()
		away = append(away, call{p.ip, from, time.Now()})
		p.reopen(fmt.Sprint("instance ", i))
		p.startAgent()
		faults[(i+3)%len(faults)]()
		l.up("web", name)
		l.up("api", name)
		eventually(t, "the hold is over", func() bool {
			b, err := os.ReadFile(filepath.Join(l.dir, "state", "holds.json"))
			return err == nil && !strings.Contains(string(b), `"pod"`)
		})
	}
	close(c.stop)
	c.all.Wait()
	if len(c.bad) > 0 || len(c.calls) < 500 {
		t.Errorf("%d of %d requests failed: %.2000q", len(c.bad), len(c.calls), c.bad)
	}
	for _, gone := range away {
		for _, r := range c.calls {
			if r.ip == gone.ip && r.from.After(gone.from) && r.to.Before(gone.to) {
				t.Errorf("a request reached %s at %v, which may be gone since %v", r.ip, r.from, gone.from)
			}
		}
	}
}
