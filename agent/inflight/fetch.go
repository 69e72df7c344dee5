package inflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// Limit is the longest that one request to a source may take. A stopped
	// Envoy accepts the connection and stays silent (measured with SIGSTOP).
	Limit = 2 * time.Second
	// maxBody bounds an answer, in bytes. Envoy's /clusters is 1.2 MB at 1,005
	// clusters.
	maxBody = 4 << 20
)

// door is where requests to one peer go through, one at a time: Envoy's admin is
// its main thread, and a second request only waits there instead of here.
type door struct {
	base   string // http://host:port, without a final slash
	client *http.Client
	turn   chan struct{}
	dials  atomic.Uint64 // connections opened so far
}

// newDoor opens nothing yet. With unix not empty, connections go to that path,
// whatever base says.
func newDoor(base, unix string) *door {
	d := &door{base: base, turn: make(chan struct{}, 1)}
	dialer := &net.Dialer{}
	d.client = &http.Client{
		Transport: &http.Transport{
			Proxy: nil, // a source is a neighbour: HTTP_PROXY is not for it
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				d.dials.Add(1)
				if unix != "" {
					network, addr = "unix", unix
				}
				return dialer.DialContext(ctx, network, addr)
			},
			MaxIdleConnsPerHost: 1,
			IdleConnTimeout:     30 * time.Second,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return d
}

// answerError is the error of a peer that answered, but not with what was asked.
type answerError struct{ error }

func (a answerError) Unwrap() error { return a.error }

// call is one request with its own Limit, which begins when its turn has come.
// Anything but a whole answer with status 200 is an error.
func (d *door) call(ctx context.Context, method, path string) ([]byte, error) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%s %s: still waiting for the request before: %w", method, path, ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, d.base+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4, */*;q=0.5")
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, cause(err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s %s: answer cut short: %w", method, path, cause(err))
	case resp.StatusCode != http.StatusOK:
		return nil, answerError{fmt.Errorf("%s %s: status %d: %.100q", method, path, resp.StatusCode, strings.TrimSpace(string(body)))}
	case len(body) > maxBody:
		return nil, answerError{fmt.Errorf("%s %s: answer of more than %d MB", method, path, maxBody>>20)}
	}
	return body, nil
}

// cause takes away what would make two notes of the same fault differ: the URL,
// and the number of the connection's local port.
func cause(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %v: %w", Limit, context.DeadlineExceeded)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op != "dial" {
		err = op.Err
	}
	return err
}
