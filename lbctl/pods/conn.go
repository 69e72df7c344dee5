package pods

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"lbdrain/internal/handshake"
)

const (
	dialTime = time.Second // bounds the making of a connection
	// maxAnswer bounds an answer, head and all, in bytes: http.ReadResponse alone
	// would keep as much of a head as comes in its time.
	maxAnswer = 16<<10 + handshake.MaxBody
)

// errStranger is an endpoint that answers, but not as an agent does.
var errStranger = errors.New("no agent answers here")

func notAnAgent(err error) bool { return errors.Is(err, errStranger) }

// StatusError is an agent's refusal.
type StatusError struct {
	Request string // method and path
	Code    int    // the HTTP status
	Text    string // what it said
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s: %d %s", e.Request, e.Code, e.Text) }

// conn is one connection. Only interrupt may be called beside its owner.
type conn struct {
	net.Conn
	r    *bufio.Reader
	left io.LimitedReader // under r: what the answer may still have
	host string

	mu          sync.Mutex
	interrupted bool
}

func dial(ctx context.Context, endpoint string) (*conn, error) {
	d := net.Dialer{Timeout: dialTime}
	c, err := d.DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return nil, err
	}
	n := &conn{Conn: c, left: io.LimitedReader{R: c}, host: endpoint}
	n.r = bufio.NewReaderSize(&n.left, 512)
	return n, nil
}

// interrupt ends what the connection waits for, now and later.
func (c *conn) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interrupted = true
	c.SetDeadline(time.Unix(1, 0))
}

// until sets the deadline of the next exchange, unless interrupted.
func (c *conn) until(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.interrupted {
		c.SetDeadline(t)
	}
}

func (c *conn) given() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.interrupted
}

// source is the address this end has.
func (c *conn) source() netip.Addr {
	a, _ := netip.ParseAddrPort(c.LocalAddr().String())
	return a.Addr().Unmap()
}

// request is one exchange with an agent.
type request struct {
	method, path string
	token        string
	etag         string        // If-None-Match
	wait         time.Duration // Prefer: wait
	body         []byte
	limit        time.Duration // for the answer, beyond wait
}

// do sends q and reads the answer. The status is nil for 204 and 304.
func (c *conn) do(q request) (*handshake.Status, error) {
	c.until(time.Now().Add(q.wait + q.limit))
	c.left.N = maxAnswer
	if _, err := c.Write(c.head(q)); err != nil {
		return nil, fmt.Errorf("%s %s: %w", q.method, q.path, err)
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil && c.left.N <= 0 {
		return nil, fmt.Errorf("%s %s: %w: answer over %d bytes", q.method, q.path, errStranger, maxAnswer)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", q.method, q.path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, handshake.MaxBody+1))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", q.method, q.path, err)
	}
	if resp.StatusCode == http.StatusNotModified || resp.StatusCode == http.StatusNoContent {
		return nil, nil
	}
	s, err := handshake.DecodeStatus(body)
	switch {
	case len(body) > handshake.MaxBody:
		return nil, fmt.Errorf("%s %s: %w: answer over %d bytes", q.method, q.path, errStranger, handshake.MaxBody)
	case resp.StatusCode != http.StatusOK:
		e := &StatusError{q.method + " " + q.path, resp.StatusCode, reason(body)}
		if err != nil {
			return nil, e
		}
		return &s, e // 409 tells the status too
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w: %w", q.method, q.path, errStranger, err)
	case resp.Close:
		return &s, fmt.Errorf("%s %s: the agent closes the connection", q.method, q.path)
	}
	return &s, nil
}

func (c *conn) head(q request) []byte {
	b := make([]byte, 0, 256+len(q.body))
	b = fmt.Appendf(b, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: lbctl\r\n", q.method, q.path, c.host)
	if q.token != "" {
		b = append(b, "Authorization: Bearer "+q.token+"\r\n"...)
	}
	if q.etag != "" {
		b = append(b, "If-None-Match: "+q.etag+"\r\n"...)
	}
	if q.wait > 0 {
		b = append(b, "Prefer: wait="+strconv.Itoa(int(q.wait/time.Second))+"\r\n"...)
	}
	if q.body != nil {
		b = append(b, "Content-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(q.body))+"\r\n"...)
	}
	b = append(b, "\r\n"...)
	return append(b, q.body...)
}

// reason is the error text of a JSON answer, or the start of any other.
func reason(body []byte) string {
	var e struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &e) == nil && e.Error != "" {
		return e.Error
	}
	return fmt.Sprintf("%.80q", bytes.TrimSpace(body))
}
