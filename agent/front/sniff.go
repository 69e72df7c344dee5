package front

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"lbdrain/internal/handshake"
)

// speech is what the first bytes are.
type speech uint8

const (
	undecided speech = iota // could still become an HTTP method
	speaksHTTP
	speaksLine // printable: agent-send
	noise      // dropped
)

var methods = []string{"GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "OPTIONS ", "PATCH ", "TRACE ", "CONNECT ", "PRI "}

// listen tells the protocols apart. A PROXY header is not supported and not a
// line: the health check behind it would be taken for a poll.
func listen(b []byte) speech {
	for _, m := range methods {
		if bytes.HasPrefix(b, []byte(m)) {
			return speaksHTTP
		}
		if bytes.HasPrefix([]byte(m), b) {
			return undecided
		}
	}
	for _, c := range b {
		if (c < ' ' || c > '~') && c != '\r' && c != '\n' && c != '\t' {
			return noise
		}
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	switch {
	case bytes.HasPrefix(b, []byte("PROXY ")):
		return noise
	case bytes.Contains(line, []byte(" HTTP/")):
		return speaksHTTP // of a method nobody has heard of: a 405, not a word
	}
	return speaksLine
}

// greet looks at the first bytes and answers, hands over, or drops.
func (p *port) greet(c *conn) {
	b, err := p.firstBytes(c)
	kind := speaksLine
	if len(b) > 0 {
		kind = listen(b)
	}
	switch {
	case kind == speaksHTTP:
		_ = c.SetReadDeadline(time.Time{})
		select {
		case p.http <- c:
		case <-p.done:
			c.Close()
		}
		return
	case kind == noise, err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		c.Close()
		return
	}
	p.poll(c, b)
}

const (
	lateFactor = 5    // as patient with an address whose check came late
	maxLate    = 1024 // addresses

	latePatience = 250 * time.Millisecond // at most: a poll must be answered within its agent-inter
)

// patience is the silence after which the peer is a poll.
func (f *Front) patience(a netip.Addr) time.Duration {
	if _, late := f.late.Load(a); late {
		return max(f.cfg.FirstByte, min(lateFactor*f.cfg.FirstByte, latePatience))
	}
	return f.cfg.FirstByte
}

// lateCheck: a health check was answered with a word, because its request came
// later than FirstByte after its connection. A HAProxy that is busy for so long
// between the two will be so again, and with fall 2 the next one that fails marks
// the pod DOWN.
func (f *Front) lateCheck(a netip.Addr) {
	if f.lates.Load() >= maxLate {
		return
	}
	if _, before := f.late.LoadOrStore(a, struct{}{}); before {
		return
	}
	f.lates.Add(1)
	f.cfg.Log.Warn().Str("event", "late_check").Str("from", a.String()).Str("first_byte", f.cfg.FirstByte.String()).
		Str("waiting_now", f.patience(a).String()).Str("detail", "a health check failed: its request came after the wait for one (--first-byte)").Send()
}

// firstBytes reads until the protocol is clear: at most FirstByte of silence,
// but a second for what could still become an HTTP method; at most one line.
func (p *port) firstBytes(c *conn) ([]byte, error) {
	end := time.Now().Add(lineLimit)
	wait := p.front.patience(c.peer.Addr)
	if p.control { // HAProxy does not poll here, and a shell's curl may be slow
		wait = lineLimit
	}
	for n := 1; ; n = c.r.Buffered() + 1 {
		_ = c.SetReadDeadline(earlier(time.Now().Add(wait), end))
		_, err := c.r.Peek(n)
		b, _ := c.r.Peek(c.r.Buffered())
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) && c.pending() {
			wait = lineLimit // it is there: this read returns at once
			continue
		}
		if err != nil {
			return b, err
		}
		switch listen(b) {
		case undecided:
			wait = lineLimit
			continue
		case speaksLine:
			if wait = p.front.cfg.FirstByte; bytes.IndexByte(b, '\n') < 0 && len(b) < maxLine {
				continue
			}
		}
		return b, nil
	}
}

// pending says whether bytes have arrived that nobody has read. A deadline that
// passed proves no silence: a throttled process may have slept through it, and a
// health check answered with a word counts as failed.
func (c *conn) pending() (yes bool) {
	_ = c.SetReadDeadline(time.Time{})
	sc, ok := c.raw.(syscall.Conn)
	if !ok {
		return false
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	_ = rc.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		yes = err == nil && n > 0
		return true
	})
	return yes
}

// poll answers an agent-check. The answer counts as given once it is written.
func (p *port) poll(c *conn, b []byte) {
	defer c.Close()
	pod := p.front.cfg.Pod
	if p.control {
		_, _ = io.WriteString(c, pod.View().State.Signals().Word+"\n")
		return
	}
	a := pod.Poll(c.peer.Addr, lbName(b))
	if _, err := io.WriteString(c, a.Word+"\n"); err != nil {
		return
	}
	// Unread bytes at close would send RST and could destroy the answer.
	c.CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(lingerLimit))
	late := make([]byte, maxLine)
	n, _ := io.ReadFull(c, late)
	if listen(late[:n]) == speaksHTTP { // it has read no word
		p.front.lateCheck(c.peer.Addr)
	} else {
		pod.Answered(a)
	}
	_, _ = io.CopyN(io.Discard, c, maxHeader)
}

// lbName reads agent-send "lb=NAME".
func lbName(b []byte) string {
	line, _, _ := strings.Cut(string(b), "\n")
	name, ok := strings.CutPrefix(strings.TrimSpace(line), "lb=")
	if !ok || handshake.CheckLBName(name) != nil {
		return ""
	}
	return name
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

var _ net.Listener = (*port)(nil)
