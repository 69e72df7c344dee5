package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"lbdrain/scenarios/ledger"
)

// summary is summary.json of one run. It is an interface: keys only grow.
type summary struct {
	Schema       int                 `json:"schema"` // 1
	Scenario     string              `json:"scenario"`
	Mode         string              `json:"mode"`
	Repetition   int                 `json:"repetition"` // from 1
	Seed         uint64              `json:"seed"`
	Valid        bool                `json:"valid"` // the control held
	InvalidWhy   []string            `json:"invalid_why"`
	HAProxy      *string             `json:"haproxy"` // version
	Envoy        *string             `json:"envoy"`   // version, null with --no-envoy
	Terminations map[string]int      `json:"terminations"`
	Requests     int                 `json:"requests"`
	Disruptions  int                 `json:"disruptions"` // each request once
	Truth        ledger.Truth        `json:"truth"`
	Masks        map[ledger.Mask]int `json:"masks"`
	NoticeMS     *spread             `json:"notice_ms"`   // DRAINING to the first DRAIN, NOLB or DOWN
	OverheadMS   *spread             `json:"overhead_ms"` // end of the last request (S2-idle: DRAINING) to the end of the pod
	PodSeconds   *spread             `json:"pod_seconds"` // delete to the end of the pod

	NoticeBy string         `json:"notice_by,omitempty"` // DRAIN, NOLB or DOWN
	Unseen   int            `json:"unseen_by_haproxy"`   // disruptions that HAProxy's log does not show
	Stray    int            `json:"stray_terminations"`  // its S, D and K lines that carry no id
	Hooks    []int          `json:"hook_exit_codes"`
	Failures []string       `json:"failures"` // what the mode or the fault must not show, and did
	Entries  []ledger.Entry `json:"entries"`
}

// spread is a sample in milliseconds, or seconds for pod_seconds.
type spread struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	Max float64 `json:"max"`
}

// newSpread is nil for an empty sample. Percentiles are values that were measured
// (nearest rank), never in between.
func newSpread(sample []float64) *spread {
	if len(sample) == 0 {
		return nil
	}
	s := slices.Sorted(slices.Values(sample))
	rank := func(p float64) float64 {
		return round(s[max(0, int(math.Ceil(p*float64(len(s))))-1)])
	}
	return &spread{N: len(s), P50: rank(0.5), P95: rank(0.95), Max: round(s[len(s)-1])}
}

func round(f float64) float64 { return math.Round(f*1000) / 1000 }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// optional is nil for "".
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func writeJSON(file string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// newArtifacts makes out/<timestamp> and points out/latest at it.
func newArtifacts(out string, now time.Time) (string, error) {
	dir := filepath.Join(out, now.UTC().Format("20060102T150405Z"))
	for i := 2; ; i++ {
		err := os.MkdirAll(filepath.Dir(dir), 0o755)
		if err == nil {
			err = os.Mkdir(dir, 0o755)
		}
		if err == nil {
			break
		}
		if !os.IsExist(err) || i > 99 {
			return "", fmt.Errorf("make artifacts: %w", err)
		}
		dir = filepath.Join(out, now.UTC().Format("20060102T150405Z")+fmt.Sprintf("-%d", i))
	}
	link := filepath.Join(out, "latest")
	temp := link + ".new"
	_ = os.Remove(temp) // left by a run that died here
	if err := os.Symlink(filepath.Base(dir), temp); err != nil {
		return "", fmt.Errorf("link artifacts: %w", err)
	}
	if err := os.Rename(temp, link); err != nil {
		return "", fmt.Errorf("link artifacts: %w", err)
	}
	return dir, nil
}
