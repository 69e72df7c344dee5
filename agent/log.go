package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

const (
	logLines = 1024                   // that wait for a slow reader
	lastLog  = 200 * time.Millisecond // an exit waits so long for them
)

// logWriter writes beside everything else: a reader of stderr that stalls (a
// container runtime's pipe holds 64 kB) or is gone holds up neither an answer nor
// the drain. What does not fit is counted and said afterwards (event log_lost).
type logWriter struct {
	out     io.Writer
	lines   chan []byte
	waiting atomic.Int64
	lost    atomic.Int64
}

func newLogWriter(out io.Writer) *logWriter {
	w := &logWriter{out: out, lines: make(chan []byte, logLines)}
	go w.run()
	return w
}

func (w *logWriter) Write(line []byte) (int, error) {
	w.waiting.Add(1)
	select {
	case w.lines <- append([]byte(nil), line...):
	default:
		w.waiting.Add(-1)
		w.lost.Add(1)
	}
	return len(line), nil
}

func (w *logWriter) run() {
	for line := range w.lines {
		if n := w.lost.Swap(0); n > 0 {
			fmt.Fprintf(w.out, "{\"level\":\"warn\",\"event\":\"log_lost\",\"lines\":%d,\"ts\":%q}\n", n, time.Now().UTC().Format("2006-01-02T15:04:05.000Z"))
		}
		_, _ = w.out.Write(line)
		w.waiting.Add(-1)
	}
}

// flush waits for what is still to be written, at most limit.
func (w *logWriter) flush(limit time.Duration) {
	for end := time.Now().Add(limit); w.waiting.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}
