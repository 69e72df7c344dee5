package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lbdrain/internal/handshake"
)

// BenchmarkNotice is from the pod's DRAINING to DRAIN on the admin socket, and
// to held-zero of an idle pod, as the pod hears it. One drain an iteration.
func BenchmarkNotice(b *testing.B) {
	l := newLab(b, labOptions{pods: 1})
	p := l.pods[0]
	l.up("web", "s1")
	l.serve(append([]string{"--log-level", "info"}, strings.Fields(os.Getenv("SERVE"))...)...)
	eventually(b, "the greeting", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.acks) > 0 })
	var notice, empty []time.Duration
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		p.drain()
		for l.server("web", "s1").Admin == 0 {
			if time.Since(began) > 10*time.Second {
				b.Fatal("no DRAIN")
			}
		}
		notice = append(notice, time.Since(began))
		for p.lastWord() != handshake.HeldZero {
			if time.Since(began) > 10*time.Second {
				b.Fatal("no held-zero")
			}
			time.Sleep(200 * time.Microsecond)
		}
		empty = append(empty, time.Since(began))
		p.reopen(fmt.Sprint("instance ", i))
		l.up("web", "s1")
		l.up("api", "s1")
	}
	for name, d := range map[string][]time.Duration{"notice": notice, "zero": empty} {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2])/1e6, name+"-p50-ms")
		b.ReportMetric(float64(d[len(d)*95/100])/1e6, name+"-p95-ms")
	}
	b.ReportMetric(0, "ns/op")
}
