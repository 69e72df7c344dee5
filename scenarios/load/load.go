// Package load sends the requests of an experiment and reports truthfully what came
// back.
//
// The h1 client is written by hand, because net/http sends a request again when a
// reused connection turns out to be dead, and that is the very thing to be seen. The
// h2 client is net/http's: like curl's and every browser's it sends a stream again
// that was refused (RST_STREAM REFUSED_STREAM), a POST included as long as its body
// can be had again, and tells nobody; Seen.Attempts counts it.
//
// It sends to 127.0.0.0/8 and nowhere else.
package load

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"lbdrain/scenarios/ledger"
)

// The kinds of request.
const (
	H1First  = "h1 first"  // GET, the first request of its connection
	H1Reused = "h1 reused" // GET, the second request of its connection
	H2Post   = "h2 POST"
	H2Stream = "h2 stream" // GET of a chunked body that flows all the time
	WarmUp   = "warm-up"   // the first request of h1 reused
	H1Slow   = "h1 slow"   // GET of a large body, read slowly
)

// Kinds are the four of S1 and S2, in the order of the table.
func Kinds() []string { return []string{H1First, H1Reused, H2Post, H2Stream} }

// Client sends to one https frontend.
type Client struct {
	Frontend netip.AddrPort
	Host     string // of the Host header and the certificate
	Roots    *x509.CertPool
	Limit    time.Duration // of one request, more than its seconds
}

// Local refuses an address outside 127.0.0.0/8.
func Local(a netip.AddrPort) error {
	if !netip.MustParsePrefix("127.0.0.0/8").Contains(a.Addr().Unmap()) {
		return fmt.Errorf("send load to %s: not in 127.0.0.0/8", a)
	}
	return nil
}

// Sleep is the path of a request that is silent for d and then answered at once.
func Sleep(id string, d time.Duration) string {
	return fmt.Sprintf("/sleep?seconds=%g&id=%s", d.Seconds(), id)
}

// Stream is the path of a body that flows for d.
func Stream(id string, d time.Duration) string {
	return fmt.Sprintf("/stream?seconds=%g&id=%s", d.Seconds(), id)
}

// Body is the path of a body of n bytes.
func Body(id string, n int64) string { return fmt.Sprintf("/body?bytes=%d&id=%s", n, id) }

// EndMarker is the last line of every stream: a chunked body that was cut over h2
// ends like a whole one.
func EndMarker(id string) string { return "end " + id + "\n" }

// dial opens a TLS connection that speaks the one protocol.
func (c Client) dial(ctx context.Context, proto string) (net.Conn, error) {
	if err := Local(c.Frontend); err != nil {
		return nil, err
	}
	d := tls.Dialer{
		NetDialer: &net.Dialer{Timeout: 5 * time.Second},
		Config:    &tls.Config{ServerName: c.Host, RootCAs: c.Roots, NextProtos: []string{proto}},
	}
	return d.DialContext(ctx, "tcp", c.Frontend.String())
}

// Conn is one h1 connection, used for one request at a time.
type Conn struct {
	client Client
	conn   net.Conn
	r      *bufio.Reader
}

// Dial opens an h1 connection.
func (c Client) Dial(ctx context.Context) (*Conn, error) {
	conn, err := c.dial(ctx, "http/1.1")
	if err != nil {
		return nil, fmt.Errorf("open an h1 connection to %s: %w", c.Frontend, err)
	}
	return &Conn{client: c, conn: conn, r: bufio.NewReaderSize(conn, 32<<10)}, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// Get sends one GET and reads its answer, at no more than rate bytes a second
// where rate is not 0. Nothing is ever sent again.
func (c *Conn) Get(ctx context.Context, id, kind, path string, rate int) ledger.Seen {
	s := ledger.Seen{ID: id, Kind: kind, Attempts: 1, Begin: time.Now()}
	stop := context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c.conn.SetDeadline(time.Now().Add(c.client.Limit))
	_, err := fmt.Fprintf(c.conn, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: lbdrain-scenarios\r\n\r\n", path, c.client.Host)
	var resp *http.Response
	if err == nil {
		resp, err = http.ReadResponse(c.r, nil)
	}
	if err == nil {
		s.Status = resp.StatusCode
		err = take(&s, resp, rate)
	}
	return finish(s, err)
}

// H2 sends one request on an h2 connection of its own: a POST with a small body, or
// a GET.
func (c Client) H2(ctx context.Context, id, kind, path string) ledger.Seen {
	s := ledger.Seen{ID: id, Kind: kind, Begin: time.Now()}
	tr := &http.Transport{
		ForceAttemptHTTP2: true,
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.dial(ctx, "h2")
		},
	}
	defer tr.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	method, body := http.MethodGet, io.Reader(nil)
	if kind == H2Post {
		method, body = http.MethodPost, bytes.NewReader([]byte("order "+id+"\n")) // NewRequest gives it a GetBody
	}
	var sent atomic.Int32
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// Once for each sending, before it. (WroteRequest may come after the answer.)
		GotConn: func(httptrace.GotConnInfo) { sent.Add(1) },
	})
	req, err := http.NewRequestWithContext(ctx, method, "https://"+c.Host+path, body)
	if err == nil {
		var resp *http.Response
		if resp, err = tr.RoundTrip(req); err == nil {
			s.Status = resp.StatusCode
			err = take(&s, resp, 0)
		}
	}
	s.Attempts = max(1, int(sent.Load()))
	return finish(s, err)
}

// take reads the body into s: how much, and whether it came to its end.
func take(s *ledger.Seen, resp *http.Response, rate int) error {
	defer resp.Body.Close()
	var tail tail
	n, err := io.Copy(&tail, paced(resp.Body, rate))
	s.Bytes = n
	switch {
	case err != nil:
	case resp.ContentLength >= 0:
		s.Whole = n == resp.ContentLength
	default:
		s.Whole = strings.HasSuffix(string(tail.b), EndMarker(s.ID))
	}
	return err
}

func finish(s ledger.Seen, err error) ledger.Seen {
	s.End = time.Now()
	if err != nil {
		s.Curl, s.Error = ledger.Curl(err, s.Status != 0), err.Error()
	}
	return s
}

// tail keeps the last bytes of what is written to it, enough for an end marker.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if over := len(t.b) - 256; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

// paced reads at most rate bytes a second from r; 0 is as fast as they come.
func paced(r io.Reader, rate int) io.Reader {
	if rate <= 0 {
		return r
	}
	return &pacer{r: r, rate: rate, begin: time.Now()}
}

type pacer struct {
	r     io.Reader
	rate  int
	begin time.Time
	n     int64
}

func (p *pacer) Read(b []byte) (int, error) {
	const step = 50 * time.Millisecond
	due := p.begin.Add(time.Duration(float64(p.n) / float64(p.rate) * float64(time.Second)))
	if wait := time.Until(due); wait > 0 {
		time.Sleep(wait)
	}
	n, err := p.r.Read(b[:min(len(b), max(1, int(float64(p.rate)*step.Seconds())))])
	p.n += int64(n)
	return n, err
}
