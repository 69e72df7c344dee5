package haproxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// Socket is the address of an admin socket.
type Socket struct {
	Network string // "unix" or "tcp"
	Address string // a path, or HOST:PORT
}

// maxPath is what fits into sun_path with its NUL.
const maxPath = 107

// ParseSocket reads unix:PATH, a PATH that starts with / or ., or tcp:HOST:PORT.
func ParseSocket(s string) (Socket, error) {
	network, address, ok := strings.Cut(s, ":")
	if strings.HasPrefix(s, "/") || strings.HasPrefix(s, ".") {
		network, address, ok = "unix", s, true
	}
	switch {
	case !ok || address == "" || strings.ContainsFunc(s, control):
	case network == "unix" && len(address) > maxPath:
		return Socket{}, fmt.Errorf("socket %q: the path is longer than %d bytes", s, maxPath)
	case network == "unix":
		return Socket{Network: network, Address: address}, nil
	case network == "tcp":
		if _, port, err := net.SplitHostPort(address); err == nil && port != "" {
			return Socket{Network: network, Address: address}, nil
		}
	}
	return Socket{}, fmt.Errorf("socket %q: want unix:PATH, /PATH or tcp:HOST:PORT", s)
}

// String is a form that ParseSocket reads.
func (s Socket) String() string { return s.Network + ":" + s.Address }

func control(r rune) bool { return r < ' ' || r == 0x7f }

// prompt ends every reply of a worker's socket. A master's says `master> `, or
// `PID> ` after @PID: support for it starts here.
const prompt = "> "

const (
	maxLine  = 64 << 10 // one line or record; HAProxy builds them in tune.bufsize, 16 KiB by default
	maxTurn  = 64 << 20 // everything HAProxy says in one turn
	maxWords = 16 << 10 // what is kept of an answer in words
)

// conn is one connection in prompt mode.
type conn struct {
	ctx     context.Context
	nc      net.Conn
	r       *bufio.Reader
	timeout time.Duration // of silence
	end     time.Time     // of the turn
	left    int           // bytes HAProxy may still send
	forget  func() bool   // the context
}

// dial connects; r is reused for its buffer.
func dial(ctx context.Context, s Socket, o Options, r *bufio.Reader) (*conn, error) {
	d := net.Dialer{Timeout: o.Timeout}
	start := time.Now()
	nc, err := d.DialContext(ctx, s.Network, s.Address)
	// The backlog of a unix socket is full: try again, as a blocking connect would.
	for errors.Is(err, syscall.EAGAIN) && time.Since(start) < o.Timeout && pause(ctx, 2*time.Millisecond) {
		nc, err = d.DialContext(ctx, s.Network, s.Address)
	}
	if err != nil {
		return nil, dialError(ctx, s, err)
	}
	c := &conn{ctx: ctx, nc: nc, r: r, timeout: o.Timeout, end: time.Now().Add(o.Limit), left: maxTurn}
	c.forget = context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	r.Reset((*wire)(c))
	return c, nil
}

func (c *conn) close() {
	c.forget()
	c.nc.Close()
	c.r.Reset(nil)
}

// pause waits for d; false if the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func dialError(ctx context.Context, s Socket, err error) error {
	kind := ErrRefused
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		return waitError(ctx)
	case errors.Is(err, syscall.ENOENT):
		kind = ErrNoSocket
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("connect: %w: %w", ErrPermission, fs.ErrPermission)
	case errors.Is(err, syscall.ECONNREFUSED):
		// A path that is no socket refuses as a dead socket does.
		if fi, serr := os.Stat(s.Address); s.Network == "unix" && serr == nil && fi.Mode()&fs.ModeSocket == 0 {
			kind = ErrNotSocket
		}
	case errors.Is(err, syscall.ENOTSOCK), errors.Is(err, syscall.EPROTOTYPE), errors.Is(err, syscall.ENOTDIR):
		kind = ErrNotSocket
	case errors.Is(err, syscall.EAGAIN), errors.As(err, &timeout) && timeout.Timeout():
		kind = ErrBusy
	default:
		return fmt.Errorf("connect: %w: %w", ErrRefused, err)
	}
	return fmt.Errorf("connect: %w", kind)
}

// waitError is the error of a context that ended while HAProxy was asked.
func waitError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
	return ctx.Err()
}

// wire is the connection under the buffer: it bounds time and size.
type wire conn

func (w *wire) Read(b []byte) (int, error) {
	if w.left <= 0 {
		return 0, ErrTooLarge
	}
	if err := w.nc.SetReadDeadline(w.deadline()); err != nil {
		return 0, err
	}
	// After the deadline was set: a context that ends from here on sets its own.
	if err := w.ctx.Err(); err != nil {
		return 0, waitError(w.ctx)
	}
	n, err := w.nc.Read(b[:min(len(b), w.left)])
	w.left -= n
	return n, w.explain(err)
}

func (w *wire) Write(b []byte) (int, error) {
	if err := w.nc.SetWriteDeadline(w.deadline()); err != nil {
		return 0, err
	}
	if err := w.ctx.Err(); err != nil {
		return 0, waitError(w.ctx)
	}
	n, err := w.nc.Write(b)
	return n, w.explain(err)
}

func (w *wire) deadline() time.Time {
	if d := time.Now().Add(w.timeout); d.Before(w.end) {
		return d
	}
	return w.end
}

func (w *wire) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case w.ctx.Err() != nil:
		return waitError(w.ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ErrBusy
	case errors.Is(err, io.EOF), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
		return ErrTruncated
	}
	return fmt.Errorf("%w: %w", ErrTruncated, err)
}

// send writes command lines. Nothing of an earlier reply may be left: if there
// is, a prompt was found where none was.
func (c *conn) send(lines []byte) error {
	if n := c.r.Buffered(); n > 0 {
		return fmt.Errorf("%w: %d bytes after the last prompt", ErrProtocol, n)
	}
	_, err := (*wire)(c).Write(lines)
	return err
}

// hello reads the reply to `prompt`: none. Whatever else says anything first
// is no HAProxy.
func (c *conn) hello() error {
	b, err := c.r.Peek(1)
	if err == nil && b[0] != '\n' {
		b, _ = c.r.Peek(min(c.r.Buffered(), 80))
		return fmt.Errorf("%w: %q where a prompt should be", ErrProtocol, b)
	}
	text, err := c.words("prompt")
	if err == nil && text != "" {
		return fmt.Errorf("%w: %.80q where a prompt should be", ErrProtocol, text)
	}
	return err
}

// words reads the reply to a command that answers in words or not at all,
// without the white space around it. It ends at the first line that begins with
// the prompt: some texts lack the newline at their end, and none has a line
// that begins so.
func (c *conn) words(asked string) (string, error) {
	var text []byte
	for {
		line, err := c.line()
		if err != nil {
			return "", fmt.Errorf("%s: %w", asked, err)
		}
		if len(text) < maxWords {
			text = append(append(text, line...), '\n')
		}
		done, err := c.atPrompt()
		if err != nil {
			return "", fmt.Errorf("%s: %w", asked, err)
		}
		if done {
			return string(bytes.TrimSpace(text)), nil
		}
	}
}

// table reads the reply to a command that answers in lines, and gives each to
// row, valid during the call. It ends at a prompt after an empty line, for
// lines may begin with anything.
func (c *conn) table(asked string, row func([]byte) error) error {
	return c.rows(asked, c.line, row)
}

// records is table for CSV: an empty line inside of quotes ends nothing, and
// what a health check answered may contain one.
func (c *conn) records(asked string, row func([]byte) error) error {
	return c.rows(asked, c.record, row)
}

func (c *conn) rows(asked string, next func() ([]byte, error), row func([]byte) error) error {
	for n := 0; ; n++ {
		line, err := next()
		done := false
		if err == nil && len(line) == 0 {
			done, err = c.atPrompt()
		}
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", asked, err)
		case done && n == 0:
			return fmt.Errorf("%w: %s: nothing", ErrProtocol, asked)
		case done:
			return nil
		}
		if err := row(line); err != nil {
			return err
		}
	}
}

var quote = []byte{'"'}

// record is the lines of one CSV record.
func (c *conn) record() ([]byte, error) {
	line, err := c.line()
	if err != nil || bytes.Count(line, quote)%2 == 0 {
		return line, err
	}
	rec := bytes.Clone(line)
	for bytes.Count(rec, quote)%2 == 1 {
		if line, err = c.line(); err != nil {
			return nil, err
		}
		if rec = append(append(rec, '\n'), line...); len(rec) > maxLine {
			return nil, fmt.Errorf("%w: a record longer than %d bytes", ErrProtocol, maxLine)
		}
	}
	return rec, nil
}

func (c *conn) line() ([]byte, error) {
	b, err := c.r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, fmt.Errorf("%w: a line longer than %d bytes", ErrProtocol, maxLine)
	case err != nil:
		return nil, err
	}
	return b[:len(b)-1], nil
}

// atPrompt takes the prompt if it is next. It is only asked where at least the
// prompt must follow, so it never waits for what does not come.
func (c *conn) atPrompt() (bool, error) {
	b, err := c.r.Peek(len(prompt))
	if err != nil || string(b) != prompt {
		return false, err
	}
	_, err = c.r.Discard(len(prompt))
	return true, err
}
