package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lbdrain/scenarios/lab"
	"lbdrain/scenarios/ledger"
	"lbdrain/scenarios/load"
)

// These tests drive the built binaries in front of a real HAProxy and a real Envoy,
// as a person would. Figures of time are not asserted: `scenarios run` prints them.

var (
	buildOnce sync.Once
	buildDir  string
	errBuild  error
)

func TestMain(m *testing.M) {
	flag.Parse()
	// These tests wait, they do not compute: many fit on few cores.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	code := m.Run()
	if buildDir != "" {
		os.RemoveAll(buildDir)
	}
	os.Exit(code)
}

// binaries builds the three programs once.
func binaries(t *testing.T) string {
	t.Helper()
	buildOnce.Do(func() {
		if buildDir, errBuild = os.MkdirTemp("", "lbdrain-bin-"); errBuild != nil {
			return
		}
		out, err := exec.Command("go", "build", "-o", buildDir+"/", "../agent", "../lbctl", ".").CombinedOutput()
		if err != nil {
			errBuild = errors.New(string(out))
		}
	})
	if errBuild != nil {
		t.Fatalf("build the programs: %v", errBuild)
	}
	return buildDir
}

// envoy is where the tests find it: ENVOY_BIN, the repository's .venv, PATH.
func envoy(t *testing.T) string {
	t.Helper()
	if e := os.Getenv("ENVOY_BIN"); e != "" {
		return e
	}
	if found, _ := filepath.Glob("../.venv/lib/python3*/site-packages/envoy/_bin/envoy"); len(found) > 0 {
		abs, err := filepath.Abs(found[0])
		if err != nil {
			t.Fatal(err)
		}
		return abs
	}
	found, err := exec.LookPath("envoy")
	if err != nil {
		t.Fatal("envoy: not found: `make deps` installs it")
	}
	return found
}

// command is `scenarios args`, with its artifacts in out.
func command(ctx context.Context, t *testing.T, out string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	testdata, err := filepath.Abs("../testdata")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(binaries(t), "scenarios"), append(args, "--out", out, "--testdata", testdata)...)
	cmd.Env = append(os.Environ(), "ENVOY_BIN="+envoy(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	return cmd, &text
}

// runs is every summary of one `scenarios` command, which must end well.
func runs(t *testing.T, args ...string) ([]summary, string) {
	t.Helper()
	out := t.TempDir()
	cmd, text := command(t.Context(), t, out, args...)
	if err := cmd.Run(); err != nil {
		t.Errorf("scenarios %s: %v\n%s", strings.Join(args, " "), err, text)
	}
	b, err := os.ReadFile(filepath.Join(out, "latest/all.json"))
	if err != nil {
		explain(t, filepath.Join(out, "latest/*"))
		t.Fatal(err)
	}
	var sums []summary
	if err := json.Unmarshal(b, &sums); err != nil {
		t.Fatal(err)
	}
	for _, s := range sums {
		dir := filepath.Join(out, "latest", s.Scenario+"-"+s.Mode)
		if len(s.InvalidWhy)+len(s.Failures) > 0 || !s.Valid {
			t.Errorf("%s-%s: invalid %v, failures %v", s.Scenario, s.Mode, s.InvalidWhy, s.Failures)
			explain(t, dir)
		}
		checkFiles(t, dir)
	}
	return sums, text.String()
}

// explain shows the logs of a run that failed; the directory goes with the test.
func explain(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"run.log", "load.out", "hook.log", "hc.log", "lbctl.log"} {
		files, _ := filepath.Glob(filepath.Join(dir, name))
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil {
				t.Logf("%s:\n%s", f, b[max(0, len(b)-6000):])
			}
		}
	}
}

func checkFiles(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{
		"run.log", "summary.json", "haproxy.log", "hc.log", "haproxy.cfg", "backend.log", "load.out",
		"haproxy-stat-timeline.csv", "haproxy-stat-before.csv", "haproxy-stat-after.csv",
	} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Size() == 0 && name != "load.out" {
			t.Errorf("artifact %s/%s: missing or empty", filepath.Base(dir), name)
		}
	}
}

func find(t *testing.T, sums []summary, scenario, mode string) summary {
	t.Helper()
	i := slices.IndexFunc(sums, func(s summary) bool { return s.Scenario == scenario && s.Mode == mode })
	if i < 0 {
		t.Fatalf("no run %s-%s", scenario, mode)
	}
	return sums[i]
}

// outcomes of the four requests, in the order of load.Kinds.
func outcomes(s summary) []string {
	var out []string
	for _, kind := range load.Kinds() {
		i := slices.IndexFunc(s.Entries, func(e ledger.Entry) bool { return e.Kind == kind })
		if i < 0 {
			return append(out, "no "+kind)
		}
		out = append(out, s.Entries[i].Outcome)
	}
	return out
}

// checkCut: mode current shows every mask, and what the log hides is found.
func checkCut(t *testing.T, s summary) {
	t.Helper()
	if got, want := outcomes(s), []string{"502", "EOF", "200 twice", "200 cut"}; !slices.Equal(got, want) {
		t.Errorf("%s-%s: %v, want %v", s.Scenario, s.Mode, got, want)
	}
	if s.Truth != (ledger.Truth{Cancelled: 4, Twice: 1, Found: 4}) || s.Disruptions != 4 {
		t.Errorf("%s-%s: truth %+v, %d disruptions", s.Scenario, s.Mode, s.Truth, s.Disruptions)
	}
	if s.Unseen != 2 { // h1 reused has no line at all, h2 POST one that says 200
		t.Errorf("%s-%s: %d disruptions without a line that blames anybody, want 2", s.Scenario, s.Mode, s.Unseen)
	}
	if s.NoticeBy != "DOWN" {
		t.Errorf("%s-%s: noticed by %q, want DOWN", s.Scenario, s.Mode, s.NoticeBy)
	}
}

// checkWhole: nothing was lost, by any mask.
func checkWhole(t *testing.T, s summary) {
	t.Helper()
	if s.Disruptions != 0 || s.Truth != (ledger.Truth{}) || len(s.Failures) > 0 {
		t.Errorf("%s-%s: %d disruptions, truth %+v, masks %v, failures %v", s.Scenario, s.Mode, s.Disruptions, s.Truth, s.Masks, s.Failures)
	}
	if s.NoticeMS == nil {
		t.Errorf("%s-%s: no notice was measured", s.Scenario, s.Mode)
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	sums, text := runs(t, "demo")
	checkCut(t, find(t, sums, "S1", "current"))
	for mode, by := range map[string]string{"agent-check": "DRAIN", "404": "NOLB", "coordinated": "DRAIN"} {
		s := find(t, sums, "S1", mode)
		checkWhole(t, s)
		if s.NoticeBy != by {
			t.Errorf("%s: noticed by %q, want %s", mode, s.NoticeBy, by)
		}
	}
	if s := find(t, sums, "S1", "improved"); s.OverheadMS == nil || s.OverheadMS.P50 < 10_000 {
		t.Errorf("improved: overhead %+v, want the 10 s of its buffer at least", s.OverheadMS)
	}
	for _, m := range lab.Modes() {
		if !regexp.MustCompile(`(?m)^` + m.Name + ` +\S+ `).MatchString(text) {
			t.Errorf("no row %s in\n%s", m.Name, text)
		}
	}
	if !strings.Contains(text, "delete worker1, 4 requests running") {
		t.Errorf("no progress in\n%s", text)
	}
}

// One replica: the re-sent request has nowhere to go.
func TestOnePodWithoutEnvoy(t *testing.T) {
	t.Parallel()
	sums, _ := runs(t, "run", "S1", "--mode", "current,improved,coordinated", "--no-envoy", "--pods", "1")
	s := find(t, sums, "S1", "current")
	if got, want := outcomes(s), []string{"502", "EOF", "503", "200 cut"}; !slices.Equal(got, want) {
		t.Errorf("current: %v, want %v", got, want)
	}
	if s.Envoy != nil {
		t.Errorf("envoy %v, want null", *s.Envoy)
	}
	checkWhole(t, find(t, sums, "S1", "coordinated"))
	checkWhole(t, find(t, sums, "S1", "improved"))
}

func TestS2(t *testing.T) {
	t.Parallel()
	sums, _ := runs(t, "run", "S2", "--mode", "current,coordinated")
	if s := find(t, sums, "S2", "current"); s.Truth.Cancelled == 0 || s.Truth.Found < s.Truth.Cancelled {
		t.Errorf("current: truth %+v", s.Truth)
	}
	checkWhole(t, find(t, sums, "S2", "coordinated"))
}

func TestIdle(t *testing.T) {
	t.Parallel()
	sums, _ := runs(t, "run", "S2", "--idle", "--mode", "coordinated")
	s := find(t, sums, "S2-idle", "coordinated")
	checkWhole(t, s)
	if s.OverheadMS == nil || s.OverheadMS.N != 2 {
		t.Errorf("idle: %+v, want two pods measured", s.OverheadMS)
	}
}

func TestFaults(t *testing.T) {
	for group := range slices.Chunk(faults(), 3) {
		t.Run(group[0].Name, func(t *testing.T) {
			t.Parallel()
			args := []string{"run"}
			for _, f := range group {
				args = append(args, f.ID)
			}
			sums, _ := runs(t, args...)
			for _, f := range group {
				s := find(t, sums, f.ID, "coordinated")
				checkWhole(t, s)
				if !slices.Equal(s.Hooks, []int{f.hook}) {
					t.Errorf("%s: hook exit codes %v, want %d", f.Name, s.Hooks, f.hook)
				}
				if f.slow && (s.Entries[0].Bytes != slowBytes || !s.Entries[0].Whole) {
					t.Errorf("%s: %d bytes, whole %v", f.Name, s.Entries[0].Bytes, s.Entries[0].Whole)
				}
			}
		})
	}
}

// The fault has teeth: without the guard of lbctl a failing health check cuts.
func TestCheckFailCutsWithoutTheGuard(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	cmd, text := command(t.Context(), t, out, "run", "S2", "--fault", "check-fail", "--mode", "agent-check")
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("%v, want exit code 1\n%s", err, text)
	}
	if !strings.Contains(text.String(), "4 of 5 requests disrupted") {
		t.Errorf("%s", text)
	}
}

// Whatever ends the program, Ctrl-C or kill -9, no process of the lab stays.
func TestNothingStays(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			out := t.TempDir()
			cmd, text := command(t.Context(), t, out, "run", "S1", "--mode", "coordinated")
			cmd.Env = append(cmd.Env, "TMPDIR="+t.TempDir()) // nobody is left to remove the sockets
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			log := filepath.Join(out, "latest/S1-coordinated/run.log")
			until(t, "lbctl has started", func() bool {
				b, _ := os.ReadFile(log) // not there yet
				return strings.Contains(string(b), "lbctl started")
			})
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			err := cmd.Wait()
			if err == nil {
				t.Errorf("ended well\n%s", text)
			}
			b, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			pids := regexp.MustCompile(`started, pid (\d+)`).FindAllStringSubmatch(string(b), -1)
			if len(pids) < 11 { // three pods of three, haproxy, lbctl
				t.Errorf("only %d processes in\n%s", len(pids), b)
			}
			for _, m := range pids {
				until(t, "process "+m[1]+" is gone", func() bool {
					stat, err := os.ReadFile("/proc/" + m[1] + "/stat")
					return err != nil || bytes.Contains(stat, []byte(") Z "))
				})
			}
			until(t, "no HAProxy worker is left", func() bool {
				return len(running(filepath.Dir(log))) == 0
			})
		})
	}
}

// running are the processes whose command line holds s.
func running(s string) []string {
	var out []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(s)) {
			out = append(out, string(b))
		}
	}
	return out
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("a minute without: %s", what)
		}
	}
}

// A run whose control did not hold is never passed.
func TestAssess(t *testing.T) {
	mode := func(name string) lab.Mode {
		m, err := lab.FindMode(name)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	tests := []struct {
		name    string
		x       experiment
		s       summary
		r       result
		invalid string
		failure string
	}{
		{"current cut", experiment{Mode: mode("current")}, summary{Disruptions: 4, Truth: ledger.Truth{Cancelled: 4}}, result{}, "", ""},
		{"current cut nothing", experiment{Mode: mode("current")}, summary{}, result{}, "current cut nothing", ""},
		{"current, seen by clients only", experiment{Mode: mode("current")}, summary{Disruptions: 4}, result{}, "current cut nothing", ""},
		{"current, idle", experiment{Mode: mode("current"), Idle: true}, summary{}, result{}, "", ""},
		{"not pinned", experiment{Mode: mode("coordinated")}, summary{}, result{invalid: []string{"routing not pinned"}}, "routing not pinned", ""},
		{"coordinated lost one", experiment{Mode: mode("coordinated")}, summary{Requests: 5, Disruptions: 1}, result{}, "", "1 of 5 requests disrupted"},
		{"improved lost one", experiment{Mode: mode("improved")}, summary{Requests: 5, Disruptions: 1}, result{}, "", ""},
	}
	for _, tt := range tests {
		tt.x.assess(&tt.s, tt.r)
		if got := strings.Join(tt.s.InvalidWhy, ";"); !strings.Contains(got, tt.invalid) || tt.s.Valid != (tt.invalid == "") {
			t.Errorf("%s: valid %v, %q", tt.name, tt.s.Valid, got)
		}
		if got := strings.Join(tt.s.Failures, ";"); got != tt.failure {
			t.Errorf("%s: failures %q, want %q", tt.name, got, tt.failure)
		}
		if (verdict([]summary{tt.s}) == nil) != (tt.invalid == "" && tt.failure == "") {
			t.Errorf("%s: verdict %v", tt.name, verdict([]summary{tt.s}))
		}
	}
}
