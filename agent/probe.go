package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"lbdrain/agent/inflight"
	"lbdrain/internal/cli"
)

const (
	probeEvery = time.Second
	probeFirst = 100 * time.Millisecond // until the first success
	probeLimit = time.Second
	probeFails = 3 // in a row
)

// prober says whether what the pod serves with is alive. Without probes it is.
type prober struct {
	probes []*probe
}

type probe struct {
	name string
	ask  func(context.Context) error
	ok   atomic.Bool
}

func newProber(specs []string, sources []inflight.Source) (*prober, error) {
	p := &prober{}
	for _, spec := range specs {
		ask, err := newProbe(spec)
		if err != nil {
			return nil, err
		}
		p.probes = append(p.probes, &probe{name: spec, ask: ask})
	}
	for _, s := range sources {
		if e, ok := s.(*inflight.Envoy); ok {
			p.probes = append(p.probes, &probe{name: s.Name() + " /ready", ask: e.Ready})
		}
	}
	return p, nil
}

func newProbe(spec string) (func(context.Context) error, error) {
	if addr, ok := strings.CutPrefix(spec, "tcp:"); ok {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return nil, cli.Misuse("--probe tcp:127.0.0.1:8080", "--probe %q: %v", spec, err)
		}
		return func(ctx context.Context) error {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err != nil {
				return err
			}
			return c.Close()
		}, nil
	}
	req, err := http.NewRequest(http.MethodGet, spec, nil)
	if err != nil || req.URL.Scheme != "http" || req.URL.Host == "" {
		return nil, cli.Misuse("--probe http://127.0.0.1:8080/ready", "--probe %q: want http://… or tcp:ADDR", spec)
	}
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context) error {
		resp, err := client.Do(req.Clone(ctx))
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode < 200 || resp.StatusCode > 399 {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	}, nil
}

func (p *prober) healthy() bool {
	for _, x := range p.probes {
		if !x.ok.Load() {
			return false
		}
	}
	return true
}

func (p *prober) names() []string {
	var ns []string
	for _, x := range p.probes {
		ns = append(ns, x.name)
	}
	return ns
}

func (p *prober) run(ctx context.Context, log zerolog.Logger) {
	for _, x := range p.probes {
		go x.run(ctx, log)
	}
}

// run asks until ctx ends. One success is health, three failures in a row are
// its loss.
func (x *probe) run(ctx context.Context, log zerolog.Logger) {
	wait := probeFirst
	for fails := 0; ctx.Err() == nil; {
		call, cancel := context.WithTimeout(ctx, probeLimit)
		err := x.ask(call)
		cancel()
		switch {
		case err == nil:
			fails, wait = 0, probeEvery
			if !x.ok.Swap(true) {
				log.Info().Str("event", "probe").Str("probe", x.name).Bool("ok", true).Send()
			}
		default:
			if fails++; fails >= probeFails && x.ok.Swap(false) {
				log.Warn().Str("event", "probe").Str("probe", x.name).Bool("ok", false).Err(err).Send()
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}
