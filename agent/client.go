package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"lbdrain/internal/cli"
	"lbdrain/internal/handshake"
)

// client speaks to the control listener of a serving agent.
type client struct {
	http  *http.Client
	base  string
	token string
}

func newClient(control, tokenFile string) (*client, error) {
	t, err := token(tokenFile)
	if err != nil {
		return nil, fmt.Errorf("--control-token-file: %w", err)
	}
	network, addr := "tcp", control
	if path, ok := strings.CutPrefix(control, "unix:"); ok {
		network, addr = "unix", path
	} else if strings.HasPrefix(addr, ":") {
		addr = "127.0.0.1" + addr
	}
	d := net.Dialer{Timeout: 2 * time.Second}
	return &client{
		http: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, network, addr) },
		}},
		base: "http://agent", token: t,
	}, nil
}

// do sends a request and reads a bounded answer.
func (c *client) do(ctx context.Context, method, path string, header map[string]string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, nil)
	if err != nil {
		return 0, nil, err
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, b, err
}

// refusal is an answer that no repeating changes.
func refusal(what string, code int, body []byte) error {
	var e struct {
		Error string `json:"error"`
	}
	_ = json.Unmarshal(body, &e)
	hint := ""
	if code == http.StatusUnauthorized {
		hint = "--control-token-file FILE"
	}
	return cli.Fail(cli.Failed, hint, fmt.Errorf("%s: status %d: %s", what, code, e.Error))
}

func (c *client) status(ctx context.Context) (handshake.Status, []byte, error) {
	code, b, err := c.do(ctx, http.MethodGet, "/drain/status", nil)
	if err != nil {
		return handshake.Status{}, nil, err
	}
	if code != http.StatusOK {
		return handshake.Status{}, nil, refusal("status", code, b)
	}
	s, err := handshake.DecodeStatus(b)
	return s, b, err
}
