package inflight

import (
	"context"
	"encoding/json"
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
	// maxBody bounds an answer that is held whole, in bytes, and maxStream one
	// that is read piece by piece. Envoy's /clusters is 1.2 MB at 1,005 clusters.
	maxBody   = 4 << 20
	maxStream = 64 << 20
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

// call is one request whose answer is read whole, at most maxBody of it.
func (d *door) call(ctx context.Context, method, path string) (body []byte, err error) {
	err = d.stream(ctx, method, path, func(r io.Reader) error {
		body, err = io.ReadAll(io.LimitReader(r, maxBody+1))
		if err == nil && len(body) > maxBody {
			err = fmt.Errorf("answer of more than %d MB", maxBody>>20)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return body, nil
}

// stream is one request with its own Limit, which begins when its turn has come;
// take reads the answer to its end. Anything but status 200 is an error.
func (d *door) stream(ctx context.Context, method, path string, take func(io.Reader) error) error {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return fmt.Errorf("%s %s: still waiting for the request before: %w", method, path, ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, d.base+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4, */*;q=0.5")
	resp, err := d.client.Do(req)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, cause(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 100))
		return fmt.Errorf("%s %s: status %d: %q", method, path, resp.StatusCode, strings.TrimSpace(string(text)))
	}
	if err := take(resp.Body); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, cause(err))
	}
	return nil
}

// eachOf reads a JSON object and hands out the elements of its array key one by
// one: what Envoy says of 5,000 clusters is 6 MB, and the agent's own memory
// limit is small. No such key means no element. At most maxStream is read.
func eachOf(r io.Reader, key string, each func(*json.Decoder) error) error {
	dec := json.NewDecoder(io.LimitReader(r, maxStream))
	if err := expect(dec, json.Delim('{')); err != nil {
		return err
	}
	for dec.More() {
		var skipped json.RawMessage
		if name, err := dec.Token(); err != nil {
			return err
		} else if name != key {
			if err := dec.Decode(&skipped); err != nil {
				return err
			}
			continue
		}
		if err := expect(dec, json.Delim('[')); err != nil {
			return err
		}
		for dec.More() {
			if err := each(dec); err != nil {
				return err
			}
		}
		if err := expect(dec, json.Delim(']')); err != nil {
			return err
		}
	}
	if err := expect(dec, json.Delim('}')); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("text behind the JSON")
	}
	return nil
}

func expect(dec *json.Decoder, want json.Delim) error {
	got, err := dec.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%v in the place of %v", got, want)
	}
	return nil
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
