package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"lbdrain/agent/drain"
	"lbdrain/agent/inflight"
	"lbdrain/internal/handshake"
)

// counter lends a source to the drain.
type counter struct{ inflight.Source }

func (c counter) Read(ctx context.Context) drain.Reading {
	r := c.Source.Read(ctx)
	_, envoy := c.Source.(*inflight.Envoy)
	return drain.Reading{
		Count: r.Count, Upgrades: r.Upgrades, Note: r.Note, Detail: r.Detail, Envoy: envoy, Refused: r.Refused, Restarted: r.Restarted,
	}
}

// envoy lends Envoy's drain to the drain.
type envoy struct {
	*inflight.Envoy
	timeout time.Duration // of the drain
	tcp     bool          // tcp listeners are counted: their clients need to be told
}

// Check: from Envoy 1.40 on a drain cuts websockets, with traffic on them, from
// 0.69 of --drain-time-s on (measured; 1.39.3 and 1.37.0 do not). Behind mode
// http the call protects nothing, so there it is refused rather than cut any.
func (e envoy) Check(ctx context.Context, upgrades handshake.Count) (harm string, refuse bool, err error) {
	info, err := e.Info(ctx)
	if err != nil {
		return "", false, err
	}
	if !cutsUpgrades(info.Version) || info.DrainTime >= e.timeout*3/2 {
		return "", false, nil
	}
	harm = fmt.Sprintf("Envoy %s with --drain-time-s %d cuts websockets from %s after the call on; the drain may take %s: set --drain-time-s %d",
		info.Version, int(info.DrainTime.Seconds()), info.DrainTime*69/100, e.timeout, int((e.timeout * 3 / 2).Seconds()))
	return harm, !e.tcp && upgrades.Known && upgrades.N > 0, nil
}

// cutsUpgrades says whether the version is 1.40 or later, or unknown.
func cutsUpgrades(version string) bool {
	parts := strings.Split(version, ".")
	if len(parts) < 2 {
		return true
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return err1 != nil || err2 != nil || major > 1 || minor >= 40
}

// stateFile keeps a drain's memory. It is written beside everything else, the
// newest only: nothing waits for a disk.
type stateFile struct {
	path  string
	log   zerolog.Logger
	queue chan drain.Memory
	done  sync.WaitGroup
}

// load is what an earlier process has left; nil if nothing of use.
func (f *stateFile) load() *drain.Memory {
	b, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var m drain.Memory
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err == nil && m.Version != drain.MemoryVersion {
		err = fmt.Errorf("version %d is not known here", m.Version)
	}
	if err != nil {
		f.log.Warn().Str("event", "state_file").Err(err).Str("detail", "ignored: the pod starts OPEN").Send()
		return nil
	}
	return &m
}

// stateRetry is the wait after a write that failed: a full disk may empty again.
const stateRetry = time.Second

// start gives the function that queues a memory for writing.
func (f *stateFile) start() func(drain.Memory) {
	f.queue = make(chan drain.Memory, 1)
	f.done.Go(func() {
		for m := range f.queue {
			f.keep(m)
		}
	})
	return func(m drain.Memory) {
		select { // the newest counts
		case <-f.queue:
		default:
		}
		f.queue <- m
	}
}

// keep writes until it has succeeded, or there is something newer to write: an
// old file that says DRAINING must not outlive a reopen.
func (f *stateFile) keep(m drain.Memory) {
	for failed := false; ; {
		err := write(f.path, m)
		switch {
		case err == nil && failed:
			f.log.Info().Str("event", "state_file").Str("detail", "written again").Send()
			return
		case err == nil:
			return
		case !failed:
			failed = true
			f.log.Error().Str("event", "state_file").Err(err).Str("detail", "repeated until it is written").Send()
		}
		var ok bool
		select {
		case m, ok = <-f.queue:
			if !ok {
				return
			}
		case <-time.After(stateRetry):
		}
	}
}

func (f *stateFile) stop() {
	if f.queue != nil {
		close(f.queue)
		f.done.Wait()
	}
}

// write replaces the file as a whole, so that a reader sees the old or the new.
func write(path string, m drain.Memory) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	// Always the same name: a kill -9 now leaves one file behind, not one each time.
	tmp, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(append(b, '\n'))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", tmp.Name(), err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
