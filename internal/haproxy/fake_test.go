package haproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// fake is a listener for what a real HAProxy cannot be made to show.
type fake struct {
	socket Socket
	mu     sync.Mutex
	lines  []string // every line that was received
	open   int      // connections the client has not closed
	conns  int
}

// serve gives every connection to handle, until the test ends.
func serve(t testing.TB, handle func(f *fake, c net.Conn)) *fake {
	return serveOn(t, Socket{Network: "unix", Address: filepath.Join(shortDir(t), "s")}, handle)
}

func serveOn(t testing.TB, s Socket, handle func(f *fake, c net.Conn)) *fake {
	t.Helper()
	l, err := net.Listen(s.Network, s.Address)
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{socket: Socket{Network: s.Network, Address: l.Addr().String()}}
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.add(1)
			wg.Go(func() { <-done; c.Close() })
			wg.Go(func() {
				defer f.add(-1)
				handle(f, c)
				c.Close()
			})
		}
	})
	t.Cleanup(func() { close(done); l.Close(); wg.Wait() })
	return f
}

func (f *fake) add(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open += n
	f.conns += max(0, n)
}

func (f *fake) got(line string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lines = append(f.lines, line)
}

// received is every line so far but the questions.
func (f *fake) received() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for _, l := range f.lines {
		if l != "prompt" && !strings.HasPrefix(l, "show ") {
			lines = append(lines, l)
		}
	}
	return lines
}

func (f *fake) client() *Client {
	return New(f.socket, Options{Timeout: 5 * time.Second})
}

// hasty is a client that gives up soon, for peers that are silent.
func (f *fake) hasty() *Client {
	return New(f.socket, Options{Timeout: 50 * time.Millisecond, Limit: 400 * time.Millisecond})
}

// script answers like a HAProxy with one backend of two servers; what is in it
// replaces an answer. A body is what stands before the empty line and prompt.
type script map[string]string

const (
	fakeInfo  = "Name: HAProxy\nVersion: 2.6.12\nPid: 4711\nUptime_sec: 9\nnode: lb1\ndescription: > a > b\nStopping: 0\nJobs: 3\nStart_time_sec: 1764400000\n"
	fakeState = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr srv_agent_addr srv_agent_port\n" +
		"3 be 1 s1 192.0.2.1 2 8 100 100 77 15 3 3 6 22 0 0 - 30080 - 0 30180 - - 30180\n" +
		"3 be 2 s2 192.0.2.2 0 5 1 1 5 1 0 0 14 0 0 0 - 80 - 0 0 - - 0\n"
	fakeStat = "# pxname,svname,qcur,scur,slim,stot,status,weight,act,bck,lastchg,type,check_status,check_code,check_duration,last_chk,check_rise,check_fall,mode,\n" +
		"be,s1,2,3,9,12,DRAIN (agent),100,1,0,77,2,* L7OK,200,4,OK,2,3,http,\n" +
		"be,s2,0,0,,0,MAINT,1,0,1,5,2,,,,,,,http,\n" +
		"be,BACKEND,0,3,200,12,UP,100,1,1,77,1,,,,,,,http,\n"
)

func (s script) answer(line string) string {
	if body, ok := s[line]; ok {
		return body
	}
	switch {
	case line == "show info":
		return fakeInfo
	case line == "show cli level":
		return "admin\n"
	case strings.HasPrefix(line, "show servers state"):
		return fakeState
	case strings.HasPrefix(line, "show stat "):
		return fakeStat
	}
	return ""
}

func (s script) handle(f *fake, c net.Conn) { s.cut(f, c, -1) }

// cut is handle that closes after n bytes; never if n is negative.
func (s script) cut(f *fake, c net.Conn, n int) {
	r := bufio.NewScanner(c)
	for r.Scan() {
		f.got(r.Text())
		reply := s.answer(r.Text()) + "\n> "
		if n >= 0 && len(reply) >= n {
			io.WriteString(c, reply[:n])
			return
		}
		n -= len(reply)
		if _, err := io.WriteString(c, reply); err != nil {
			return
		}
	}
}

// length is how many bytes a read of all takes.
func (s script) length() int {
	n := 0
	for _, line := range []string{"prompt", "show cli level", "show info", "show servers state", "show stat -1 6 -1"} {
		n += len(s.answer(line) + "\n> ")
	}
	return n
}

// say answers every connection with the same bytes, whatever is asked, and
// then stays silent.
func say(text string) func(*fake, net.Conn) {
	return func(_ *fake, c net.Conn) {
		io.WriteString(c, text)
		io.Copy(io.Discard, c)
	}
}

// drip is one byte at a time, for ever.
func drip(b string) func(*fake, net.Conn) {
	return func(_ *fake, c net.Conn) {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(c, "%c", b[i%len(b)]); err != nil {
				return
			}
			<-tick.C
		}
	}
}

// flood is the same text for ever, as fast as it is taken.
func flood(start, again string) func(*fake, net.Conn) {
	return func(_ *fake, c net.Conn) {
		_, err := io.WriteString(c, start)
		for text := strings.Repeat(again, 64<<10/len(again)); err == nil; {
			_, err = io.WriteString(c, text)
		}
	}
}
