package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	ucli "github.com/urfave/cli/v2"
	"golang.org/x/term"

	"lbdrain/scenarios/lab"
	"lbdrain/scenarios/ledger"
	"lbdrain/scenarios/load"
)

func demoCommand(stdout, stderr io.Writer) *ucli.Command {
	return &ucli.Command{
		Name:            "demo",
		Usage:           "S1 in the five modes, one table",
		Flags:           placeFlags(),
		HideHelpCommand: true,
		Action: func(c *ucli.Context) error {
			o, err := baseOptions(c)
			if err != nil {
				return err
			}
			var xs []experiment
			for _, m := range lab.Modes() {
				x := experiment{Scenario: "S1", Mode: m, Repetition: 1, Seed: o.Seed, Options: o}
				x.Options.Mode = m
				xs = append(xs, x)
			}
			return carryOut(c, xs, stdout, stderr, printDemo)
		},
	}
}

// printDemo is the table of the demo: what became of each request, and of the time.
func printDemo(w io.Writer, sums []summary) {
	fmt.Fprintf(w, "\nOne of three pods is deleted with four requests running on it (HAProxy %s, Envoy %s).\n\n", text(sums[0].HAProxy), text(sums[0].Envoy))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := append([]string{"mode"}, load.Kinds()...)
	fmt.Fprintln(t, strings.Join(append(head, "cut", "twice", "unlogged", "notice", "by", "overhead"), "\t"))
	for _, s := range sums {
		row := []string{s.Mode}
		for _, kind := range load.Kinds() {
			word := "-"
			if i := slices.IndexFunc(s.Entries, func(e ledger.Entry) bool { return e.Kind == kind }); i >= 0 {
				word = s.Entries[i].Outcome
			}
			row = append(row, word)
		}
		row = append(row, fmt.Sprint(s.Truth.Cancelled), fmt.Sprint(s.Truth.Twice), fmt.Sprint(s.Unseen),
			duration(s.NoticeMS), dash(s.NoticeBy), duration(s.OverheadMS))
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	t.Flush()
	fmt.Fprint(w, `
cut       requests whose running handler the backend saw cancelled
twice     requests that two backends executed, behind one answer
unlogged  disrupted requests that HAProxy's log does not blame on anybody
notice    POST /drain to the first DRAIN, NOLB or DOWN on the admin socket
overhead  end of the pod's last request to the end of the pod
`)
	for _, m := range lab.Modes() {
		fmt.Fprintf(w, "%-12s %s\n", m.Name, m.About)
	}
	fmt.Fprintln(w)
}

// printRuns is one line for each run, and the spread over the repetitions.
func printRuns(w io.Writer, sums []summary) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "scenario\tmode\trun\trequests\tdisrupted\tcut\ttwice\ttruncated\tunlogged\tnotice\tby\toverhead\tpod\tvalid")
	for _, s := range sums {
		valid := "yes"
		if !s.Valid {
			valid = "NO"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", s.Scenario, s.Mode, s.Repetition, s.Requests,
			s.Disruptions, s.Truth.Cancelled, s.Truth.Twice, s.Masks[ledger.Truncated], s.Unseen,
			duration(s.NoticeMS), dash(s.NoticeBy), duration(s.OverheadMS), seconds(s.PodSeconds), valid)
	}
	t.Flush()
	if slices.ContainsFunc(sums, func(s summary) bool { return s.Scenario == "S2-idle" }) {
		fmt.Fprintln(w, "S2-idle has no request: its overhead is POST /drain to the end of the pod")
	}
	printSpread(w, sums)
}

// printSpread sums up every scenario and mode that ran more than once.
func printSpread(w io.Writer, sums []summary) {
	type cell struct{ scenario, mode string }
	var order []cell
	groups := map[cell][]summary{}
	for _, s := range sums {
		c := cell{s.Scenario, s.Mode}
		if groups[c] == nil {
			order = append(order, c)
		}
		groups[c] = append(groups[c], s)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	wrote := false
	for _, c := range order {
		g := groups[c]
		if len(g) < 2 {
			continue
		}
		if !wrote {
			fmt.Fprintln(t, "\nscenario\tmode\truns\tdisrupted\tnotice p50\tp95\tmax\toverhead p50\tp95\tmax (ms)")
			wrote = true
		}
		disrupted := 0
		var notice, over []float64
		for _, s := range g {
			disrupted += s.Disruptions
			notice, over = append(notice, values(s.NoticeMS)...), append(over, values(s.OverheadMS)...)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\n", c.scenario, c.mode, len(g), disrupted, figures(newSpread(notice)), figures(newSpread(over)))
	}
	t.Flush()
}

// values are the measurements behind a spread of one or two, which is what one run
// has.
func values(s *spread) []float64 {
	switch {
	case s == nil:
		return nil
	case s.N == 1:
		return []float64{s.Max}
	}
	return []float64{s.P50, s.Max}
}

func figures(s *spread) string {
	if s == nil {
		return "-\t-\t-"
	}
	return fmt.Sprintf("%.1f\t%.1f\t%.1f", s.P50, s.P95, s.Max)
}

func duration(s *spread) string {
	switch {
	case s == nil:
		return "-"
	case s.Max >= 1000:
		return fmt.Sprintf("%.2f s", s.Max/1000)
	}
	return fmt.Sprintf("%.1f ms", s.Max)
}

func seconds(s *spread) string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f s", s.Max)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func text(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}

// progress tells a person that something is going on: on a terminal one line that
// counts the seconds, else one line for each step.
type progress struct {
	w     io.Writer
	began time.Time
	tty   bool
	stop  chan struct{}
	done  chan struct{}

	mu   sync.Mutex
	line string
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	p := &progress{w: w, began: time.Now(), tty: ok && term.IsTerminal(int(f.Fd())), stop: make(chan struct{}), done: make(chan struct{})}
	go p.tick()
	return p
}

func (p *progress) say(format string, a ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line = fmt.Sprintf(format, a...)
	if p.tty {
		p.draw()
		return
	}
	fmt.Fprintf(p.w, "[%5.1f s] %s\n", time.Since(p.began).Seconds(), p.line)
}

func (p *progress) draw() {
	fmt.Fprintf(p.w, "\r\x1b[K[%3.0f s] %s", time.Since(p.began).Seconds(), p.line)
}

func (p *progress) tick() {
	defer close(p.done)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-t.C:
		}
		if p.tty {
			p.mu.Lock()
			p.draw()
			p.mu.Unlock()
		}
	}
}

// close clears the line. It may be called again.
func (p *progress) close() {
	select {
	case <-p.stop:
		return
	default:
	}
	close(p.stop)
	<-p.done
	if p.tty {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
