package fsm

import (
	"errors"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)

// in puts a machine into s by moves of the table alone.
func in(t *testing.T, s State) *Machine {
	t.Helper()
	path := map[State][]Event{
		Draining: {Drain}, Closing: {Drain, CloseLB}, Closed: {Drain, CloseLB, Close}, Fault: {Break},
	}
	m := New(t0)
	for _, e := range path[s] {
		if _, err := m.Step(Input{At: t0, Event: e}); err != nil {
			t.Fatal(err)
		}
	}
	if m.State() != s {
		t.Fatalf("reached %s, want %s", m.State(), s)
	}
	return m
}

// Every state with every event: what moves, and that all else is refused and
// changes nothing. Written out, so that a row added to the table by accident
// fails here.
func TestEveryStateEveryEvent(t *testing.T) {
	want := map[State][5]State{ //  drain     close-lb close   reopen fault
		Open:     {Draining, 0, 0, 0, Fault},
		Draining: {0, Closing, 0, Open, Fault},
		Closing:  {0, 0, Closed, Open, Fault},
		Closed:   {0, 0, 0, 0, Fault},
		Fault:    {0, 0, 0, 0, 0},
	}
	for _, s := range States() {
		for i, e := range Events() {
			m := in(t, s)
			before, at := *m, t0.Add(time.Second)
			got, err := m.Step(Input{At: at, Event: e, Reason: "because"})
			if to := want[s][i]; to != 0 {
				if w := (Transition{s, to, "because", at}); err != nil || got != w {
					t.Errorf("%s in %s: %+v, %v, want %+v", e, s, got, err, w)
				}
				h := m.History()
				if m.State() != to || m.Since() != at || m.Seq() != before.seq+1 || h[len(h)-1] != got {
					t.Errorf("%s in %s: machine is %s since %v, seq %d", e, s, m.State(), m.Since(), m.Seq())
				}
				continue
			}
			var r *Refused
			if !errors.As(err, &r) || *r != (Refused{s, e}) {
				t.Errorf("%s in %s: error %v, want Refused", e, s, err)
			}
			if *m != before {
				t.Errorf("%s in %s was refused and changed the machine", e, s)
			}
		}
	}
	if _, err := New(t0).Step(Input{Event: 77}); err == nil || err.Error() != "Event(77) in OPEN: no such move" {
		t.Errorf("unknown event: %v", err)
	}
}

// Each step of a drain switches off one signal and liveness never.
func TestSignals(t *testing.T) {
	want := map[State]Signals{
		Open:     {Health: 200, HealthBody: "OK", Readiness: 200, Liveness: 200, Word: "up"},
		Draining: {Health: 200, HealthBody: "OK", Readiness: 200, Liveness: 200, Word: "drain"},
		Closing:  {Health: 503, HealthBody: "DRAIN", Readiness: 200, Liveness: 200, Word: "drain"},
		Closed:   {Health: 503, HealthBody: "DRAIN", Readiness: 503, Liveness: 200, Word: "drain"},
		Fault:    {Health: 503, HealthBody: "DRAIN", Readiness: 503, Liveness: 500, Word: "down #fault"},
	}
	got := map[State]Signals{}
	for _, s := range States() {
		got[s] = s.Signals()
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if State(0).Signals() != Fault.Signals() || State(9).Signals() != Fault.Signals() {
		t.Error("a value that is no state does not answer as FAULT")
	}
	drain := []State{Open, Draining, Closing, Closed}
	for i := 1; i < len(drain); i++ {
		a, b := drain[i-1].Signals(), drain[i].Signals()
		off := 0
		for _, changed := range []bool{a.Word != b.Word, a.Health != b.Health, a.Readiness != b.Readiness, a.Liveness != b.Liveness} {
			if changed {
				off++
			}
		}
		if off != 1 {
			t.Errorf("%s → %s switches %d signals, want one", drain[i-1], drain[i], off)
		}
	}
}

func TestParseState(t *testing.T) {
	for name, want := range map[string]State{
		"OPEN": Open, "DRAINING": Draining, "CLOSING": Closing, "CLOSED": Closed, "FAULT": Fault,
		"READY": Open, "DRAINED_WAIT_LB": Closing, "TERMINATING": Closed, "FAILED": Fault,
	} {
		if got, err := ParseState(name); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", name, got, err, want)
		}
	}
	for _, name := range []string{"", "open", "OPEN ", "State(0)", "UP"} {
		if s, err := ParseState(name); err == nil {
			t.Errorf("%q was taken for %s", name, s)
		}
	}
	if s := State(0).String(); s != "State(0)" {
		t.Errorf("zero state is called %s", s)
	}
}

func TestRestore(t *testing.T) {
	m := Restore(Draining, 7, t0, "state file")
	if m.State() != Draining || m.Seq() != 7 || m.Since() != t0 {
		t.Errorf("%s seq %d since %v", m.State(), m.Seq(), m.Since())
	}
	if d := cmp.Diff([]Transition{{Draining, Draining, "state file", t0}}, m.History()); d != "" {
		t.Error(d)
	}
	if tr, err := m.Step(Input{At: t0, Event: Reopen}); err != nil || tr.To != Open || m.Seq() != 8 {
		t.Errorf("reopen: %+v, %v, seq %d", tr, err, m.Seq())
	}
	if h := Restore(Open, 3, t0, "x").History(); len(h) != 0 {
		t.Errorf("restored OPEN has a history: %v", h)
	}
	if s := Restore(State(200), 3, t0, "x").State(); s != Fault {
		t.Errorf("restored garbage is %s", s)
	}
}

// Whatever is asked in whatever order: seq counts the moves, the history is the
// last of them, and nothing leaves CLOSED but a fault, nothing FAULT.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := New(t0)
		var all []Transition
		for i, e := range rapid.SliceOfN(rapid.Uint8Range(0, 6), 0, 400).Draw(t, "events") {
			was, seq := m.State(), m.Seq()
			tr, err := m.Step(Input{At: t0.Add(time.Duration(i)), Event: Event(e), Reason: strconv.Itoa(i)})
			if err != nil {
				if m.State() != was || m.Seq() != seq {
					t.Fatalf("refused, and yet %s → %s", was, m.State())
				}
				continue
			}
			if was == Fault || was == Closed && tr.To != Fault || tr.From != was || tr.To != m.State() || m.Seq() != seq+1 {
				t.Fatalf("%s → %+v", was, tr)
			}
			all = append(all, tr)
		}
		if len(all) > HistoryLen {
			all = all[len(all)-HistoryLen:]
		}
		if d := cmp.Diff(all, append([]Transition(nil), m.History()...)); d != "" {
			t.Fatal(d)
		}
	})
}

func TestHistoryKeepsTheLast100(t *testing.T) {
	m := New(t0)
	for i := range 125 {
		for _, e := range []Event{Drain, Reopen} {
			if _, err := m.Step(Input{At: t0, Event: e, Reason: strconv.Itoa(i)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	h := m.History()
	if len(h) != 100 || h[0].Reason != "75" || h[99].Reason != "124" || m.Seq() != 250 {
		t.Errorf("%d entries, first %+v, seq %d", len(h), h[0], m.Seq())
	}
	h[0].Reason = "mine"
	if m.History()[0].Reason != "75" {
		t.Error("History hands out the ring itself")
	}
}

// The README's diagram is this table.
func TestREADME(t *testing.T) {
	const begin, end = "<!-- fsm:begin -->", "<!-- fsm:end -->"
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatalf("README.md with the state diagram between %s and %s: %v", begin, end, err)
	}
	_, rest, ok := strings.Cut(string(text), begin)
	block, _, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("README.md has no block %s … %s", begin, end)
	}
	want := "```mermaid\n" + Mermaid() + "```"
	if d := cmp.Diff(want, strings.TrimSpace(block)); d != "" {
		t.Errorf("README.md is not what the table says (-want +README):\n%s\npaste this between the markers:\n%s", d, want)
	}
}

// The machine decides on values: nothing but these may be imported.
func TestPure(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range parsed.Imports {
			if p := i.Path.Value; p != `"fmt"` && p != `"strings"` && p != `"time"` {
				t.Errorf("%s imports %s: fsm has no I/O, so that every state can be enumerated in a test", f, p)
			}
		}
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(src), "time.Now(") {
			t.Errorf("%s reads the clock: time is an input", f)
		}
	}
}
