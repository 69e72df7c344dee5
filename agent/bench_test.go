package main

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"
)

// BenchmarkNotice is POST /drain → the held GET of a watcher is answered, each
// time on a reopened pod.
func BenchmarkNotice(b *testing.B) {
	src := newSource(b, 0)
	p := serveAgent(b, src.flag())
	p.get("/health_check.html")
	lb := p.balancer("lb1")
	if _, err := lb.watch(0); err != nil {
		b.Fatal(err)
	}
	var took []time.Duration
	for b.Loop() {
		noticed := make(chan time.Time, 1)
		held := make(chan struct{})
		go func() {
			close(held)
			_, _ = lb.watch(30)
			noticed <- time.Now()
		}()
		<-held
		time.Sleep(5 * time.Millisecond) // the GET is held
		at := time.Now()
		p.post("/drain")
		took = append(took, (<-noticed).Sub(at))
		p.post("/reopen")
		_, _ = lb.watch(0)
	}
	report(b, "notice", took)
}

// BenchmarkIdlePod is SIGTERM → exit of a pod with nothing in flight, behind a
// balancer that acknowledges at once; --quiet's 50 ms are inside.
func BenchmarkIdlePod(b *testing.B) { benchExit(b, 0) }

// BenchmarkOverhead is the last request's end → exit.
func BenchmarkOverhead(b *testing.B) { benchExit(b, 1) }

func benchExit(b *testing.B, inFlight int64) {
	var took []time.Duration
	for b.Loop() {
		src := newSource(b, inFlight)
		p := serveAgent(b, src.flag())
		p.get("/health_check.html")
		lb := p.balancer("lb1")
		if _, err := lb.watch(0); err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		go lb.run(ctx)
		at := time.Now()
		p.signal(syscall.SIGTERM)
		if inFlight > 0 {
			p.await("held_zero")
			time.Sleep(150 * time.Millisecond)
			at = time.Now()
			src.n.Store(0)
		}
		if code := p.exit(); code != 0 {
			b.Fatalf("exit %d", code)
		}
		took = append(took, time.Since(at))
		cancel()
	}
	report(b, "exit", took)
}

func report(b *testing.B, what string, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(took[len(took)/2]), what+"-p50-ms")
	b.ReportMetric(ms(took[len(took)*95/100]), what+"-p95-ms")
	b.ReportMetric(ms(took[len(took)-1]), what+"-max-ms")
}
