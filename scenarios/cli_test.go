package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMisuse(t *testing.T) {
	dir := t.TempDir() // holds no programs
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"nonsense", 2, "no such command: nonsense"},
		{"run S1 --repeat x", 2, "invalid value"},
		{"run S1 --nonsense", 2, "flag provided but not defined"},
		{"demo --pods 4 --testdata ../testdata", 2, "want 1 to 3"},
		{"run S1 --no-envoy --bin " + dir + " --testdata ../testdata", 1, "make build"},
		{"run S1 --testdata " + dir, 1, "canonical configuration"},
	} {
		var out, errOut bytes.Buffer
		code := run(t.Context(), append([]string{"scenarios"}, strings.Fields(tt.args)...), &out, &errOut)
		if code != tt.code || !strings.Contains(errOut.String(), tt.says) {
			t.Errorf("%s: exit code %d, want %d; said %q, want %q", tt.args, code, tt.code, errOut.String(), tt.says)
		}
	}
}

// Refusals that come after the programs were found need programs to find.
func TestMisuseOfRun(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"agent", "lbctl"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ args, says string }{
		{"run", "which scenario?"},
		{"run S9", "want S1, S2, or one of the faults"},
		{"run S1 --mode fast", "want one of current, improved"},
		{"run S1 --repeat 0", "want 1 to 1000"},
		{"run S2 --fault nothing", "one of the faults"},
		{"run F1 --idle", "--idle is for S2"},
		{"run S1 --idle", "--idle is for S2"},
	} {
		var out, errOut bytes.Buffer
		args := append(strings.Fields("scenarios "+tt.args), "--no-envoy", "--bin", dir, "--testdata", "../testdata", "--out", dir)
		if code := run(t.Context(), args, &out, &errOut); code != 2 || !strings.Contains(errOut.String(), tt.says) {
			t.Errorf("%s: exit code %d, want 2; said %q, want %q", tt.args, code, errOut.String(), tt.says)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "2*")); len(left) > 0 {
		t.Errorf("a refused run left %v", left)
	}
}

func TestFlagsFirst(t *testing.T) {
	got := flagsFirst(strings.Fields("scenarios run S1 S2 --mode current --repeat 3"))
	if want := strings.Fields("scenarios run --mode current --repeat 3 S1 S2"); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	same := strings.Fields("scenarios demo --out x")
	if got := flagsFirst(same); !slices.Equal(got, same) {
		t.Errorf("%v, want %v", got, same)
	}
}

func TestSpread(t *testing.T) {
	if newSpread(nil) != nil {
		t.Error("an empty sample has no spread")
	}
	var hundred []float64
	for i := range 100 {
		hundred = append(hundred, float64(100-i))
	}
	if diff := cmp.Diff(&spread{N: 100, P50: 50, P95: 95, Max: 100}, newSpread(hundred)); diff != "" {
		t.Error(diff)
	}
	for _, sample := range [][]float64{{7}, {3, 9}} {
		if got := values(newSpread(sample)); !slices.Equal(got, sample) {
			t.Errorf("values of %v: %v", sample, got)
		}
	}
}

// The keys of summary.json are an interface.
func TestSummaryKeys(t *testing.T) {
	b, err := json.Marshal(summary{})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields(`schema scenario mode repetition seed valid invalid_why haproxy envoy terminations
		requests disruptions truth masks notice_ms overhead_ms pod_seconds`) {
		if _, ok := got[key]; !ok {
			t.Errorf("no key %s", key)
		}
	}
	for _, key := range []string{"haproxy", "envoy", "notice_ms", "overhead_ms", "pod_seconds"} {
		if got[key] != nil {
			t.Errorf("%s is %v, want null where nothing was measured", key, got[key])
		}
	}
	if truth := got["truth"].(map[string]any); !reflect.DeepEqual(truth, map[string]any{"cancelled": 0.0, "twice": 0.0, "found": 0.0}) {
		t.Errorf("truth %v", truth)
	}
}

func TestArtifacts(t *testing.T) {
	out, now := filepath.Join(t.TempDir(), "a/b"), time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, want := range []string{"20261130T120000Z", "20261130T120000Z-2"} {
		dir, err := newArtifacts(out, now)
		if err != nil || filepath.Base(dir) != want {
			t.Fatalf("%s, %v, want %s", dir, err, want)
		}
		if link, err := os.Readlink(filepath.Join(out, "latest")); err != nil || link != want {
			t.Errorf("latest is %s, %v, want %s", link, err, want)
		}
	}
}

func TestVerdict(t *testing.T) {
	if err := verdict([]summary{{Valid: true}}); err != nil {
		t.Error(err)
	}
	err := verdict([]summary{{Scenario: "S1", Mode: "current", Repetition: 1, InvalidWhy: []string{"cut nothing"}}})
	if err == nil || err.Error() != "S1-current run 1 is invalid: cut nothing" {
		t.Errorf("%v", err)
	}
}
