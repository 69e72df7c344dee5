package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Sighting is a change of a server's state as the independent observer saw it.
type Sighting struct {
	At     time.Time
	Server Server
}

// observer reads `show servers state` over and over on one connection in prompt
// mode. It belongs to the lab and tells nobody but the lab.
type observer struct {
	socket   string
	interval atomic.Int64 // time.Duration between reads
	renewed  atomic.Int64 // grows when the connection is to be opened again

	mu   sync.Mutex
	last map[string]Server
	seen []Sighting
	wake chan struct{}
}

// The observer's pace: while a notice is measured, and otherwise. One read is 0.1 ms
// of HAProxy's time.
const (
	paceFast = 500 * time.Microsecond
	paceSlow = 50 * time.Millisecond
)

func observe(ctx context.Context, socket string) *observer {
	o := &observer{socket: socket, last: map[string]Server{}, wake: make(chan struct{})}
	o.interval.Store(int64(paceSlow))
	go func() {
		for ctx.Err() == nil {
			o.connection(ctx) // ends with its worker: the next one speaks to the new
			select {
			case <-ctx.Done():
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return o
}

// connection reads on one connection for at most two seconds: an open one stays with
// the worker that accepted it, over any reload, and keeps that worker alive.
func (o *observer) connection(ctx context.Context) {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", o.socket)
	if err != nil {
		return
	}
	defer conn.Close()
	end, renewed := time.Now().Add(2*time.Second), o.renewed.Load()
	conn.SetDeadline(end.Add(time.Second))
	r := bufio.NewReaderSize(conn, 64<<10)
	if _, err := io.WriteString(conn, "prompt\n"); err != nil || readPrompt(r) == "" {
		return
	}
	for ctx.Err() == nil && time.Now().Before(end) && o.renewed.Load() == renewed {
		if _, err := io.WriteString(conn, "show servers state "+HTTPBackend+"\n"); err != nil {
			return
		}
		servers, err := parseServers(readPrompt(r))
		if err != nil {
			return
		}
		o.note(time.Now(), servers)
		time.Sleep(time.Duration(o.interval.Load()))
	}
}

// readPrompt reads to the prompt, which is "\n> " at the end of a reply. No server's
// name holds it.
func readPrompt(r *bufio.Reader) string {
	var b strings.Builder
	for {
		part, err := r.ReadString('>')
		b.WriteString(part)
		if err != nil {
			return ""
		}
		if s := b.String(); s == ">" || strings.HasSuffix(s, "\n>") {
			if c, err := r.ReadByte(); err != nil || c != ' ' {
				return ""
			}
			return s
		}
	}
}

func (o *observer) note(at time.Time, servers []Server) {
	o.mu.Lock()
	defer o.mu.Unlock()
	changed := false
	for _, s := range servers {
		s.Check &^= 1 // an ordinary check comes and goes
		s.Agent &^= 1
		s.Health = 0
		if o.last[s.Name] != s {
			o.last[s.Name], changed = s, true
			o.seen = append(o.seen, Sighting{at, s})
		}
	}
	if changed {
		close(o.wake)
		o.wake = make(chan struct{})
	}
}

// sightings of one server, and a channel that closes at the next change of any.
func (o *observer) sightings(server string) ([]Sighting, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []Sighting
	for _, s := range o.seen {
		if s.Server.Name == server {
			out = append(out, s)
		}
	}
	return out, o.wake
}

// Sightings of one server of the http backend so far, oldest first. Bits "check in
// progress" and the health counter are left out of them.
func (l *Lab) Sightings(server string) []Sighting {
	s, _ := l.watch.sightings(server)
	return s
}

// AwaitServer waits until the observer has seen the server as ok wants it, at or
// after since.
func (l *Lab) AwaitServer(ctx context.Context, server string, since time.Time, ok func(Server) bool) (Sighting, error) {
	for {
		all, wake := l.watch.sightings(server)
		for i, s := range all {
			// What it was at since counts too: the last sighting before it.
			current := i == len(all)-1 || all[i+1].At.After(since)
			if current && ok(s.Server) {
				return s, nil
			}
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return Sighting{}, fmt.Errorf("watch %s/%s: %w", HTTPBackend, server, context.Cause(ctx))
		}
	}
}

// Notice is the time from since to the first DRAIN, NOLB, DOWN or MAINT of a server,
// and which it was; false where there was none.
func (l *Lab) Notice(server string, since time.Time) (time.Duration, string, bool) {
	for _, s := range l.Sightings(server) {
		if w := s.Server.Word(); w != "UP" && s.At.After(since) {
			return s.At.Sub(since), w, true
		}
	}
	return 0, "", false
}

// Fast makes the observer read twice a millisecond, and returns when it does; or it
// goes back to its usual pace.
func (l *Lab) Fast(on bool) {
	if !on {
		l.watch.interval.Store(int64(paceSlow))
		return
	}
	l.watch.interval.Store(int64(paceFast))
	time.Sleep(2 * paceSlow) // it may have begun a slow pause
}

// statTimeline appends `show stat` to haproxy-stat-timeline.csv every half second, a
// time line before each.
func (l *Lab) statTimeline(ctx context.Context) error {
	f, err := os.Create(filepath.Join(l.o.Artifacts, "haproxy-stat-timeline.csv"))
	if err != nil {
		return fmt.Errorf("open the stat timeline: %w", err)
	}
	go func() {
		defer f.Close()
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			if csv, err := l.Admin("show stat"); err == nil {
				fmt.Fprintf(f, "%s\n%s", time.Now().UTC().Format(stampLayout), csv)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

// stampLayout is RFC 3339 in UTC with milliseconds.
const stampLayout = "2006-01-02T15:04:05.000Z"

// SaveStat writes `show stat` to haproxy-stat-NAME.csv.
func (l *Lab) SaveStat(name string) error {
	csv, err := l.Admin("show stat")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(l.o.Artifacts, "haproxy-stat-"+name+".csv"), []byte(csv), 0o644); err != nil {
		return fmt.Errorf("save show stat: %w", err)
	}
	return nil
}
