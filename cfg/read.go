package cfg

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
)

// Text is a file that has been read.
type Text struct {
	Name string
	Data []byte
}

// Read reads texts, in order, as one configuration.
func Read(texts []Text, o Options) *Config {
	r := &reader{
		o: o, env: make(map[string]string, len(o.Env)), c: &Config{},
		named: make(map[string]*proxy), ambiguous: make(map[string]bool),
		last: &proxy{kind: inDefaults, def: newDefaultServer(), Backend: builtInBackend()},
	}
	maps.Copy(r.env, o.Env)
	r.ownVariables()
	r.split.env = r.env
	r.c.Global = Global{StatsMaxconn: 10, Nbproc: 1, origins: make(origins)}
	for _, t := range texts {
		r.c.Files = append(r.c.Files, t.Name)
	}
	if len(texts) > math.MaxUint16 {
		r.note(Finding{ID: "too-many-files", Severity: Error, Why: fmt.Sprintf("only the first %d files are read.", math.MaxUint16)})
		texts = texts[:math.MaxUint16]
	}
	for i, t := range texts {
		r.text(uint16(i), t)
	}
	r.settle()
	return r.c
}

// ownVariables are those of which HAProxy 2.8 and later tells its own files what
// it is (haproxy.c).
func (r *reader) ownVariables() {
	if r.o.Version == "" || CompareVersions(r.o.Version, "2.8") < 0 {
		return
	}
	p := versionParts(r.o.Version)
	r.env["HAPROXY_BRANCH"] = fmt.Sprintf("%d.%d", p[0], p[1])
	if _, ok := r.env["HAPROXY_STARTUP_VERSION"]; !ok {
		r.env["HAPROXY_STARTUP_VERSION"] = r.o.Version
	}
}

// reader is the state between two lines. What HAProxy keeps in globals and in
// the static variables of its section parsers is here.
type reader struct {
	o   Options
	env map[string]string
	c   *Config

	split   splitter
	file    uint16
	line    int
	section string // the keyword of the section, "" outside of any
	foreign bool   // in a section that no version of HAProxy knows
	misled  bool   // HAProxy did not begin this section, see mislead
	// indented: the body of this section is; a word at the first column that
	// no version knows is then taken for a section.
	indented  bool
	conds     []branch
	proxies   []*proxy
	sections  int               // of the kinds that proxies has, and defaults
	named     map[string]*proxy // the first defaults section of each name
	ambiguous map[string]bool   // names that several defaults sections have
	last      *proxy            // the last defaults section
	cur       *proxy            // the section that is being read, nil in others
	expansion int               // bytes that expansion has added
	envSize   int               // bytes that setenv holds
}

// text reads one file (cfgparse.c readcfgfile).
func (r *reader) text(file uint16, t Text) {
	r.file, r.line, r.section, r.cur, r.foreign = file, 0, "", nil, false
	r.conds = r.conds[:0]
	r.split.file = t.Name
	data := t.Data
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		r.line = 1
		r.refuse("bom", "the file begins with a byte order mark, which HAProxy takes for a part of the first word.",
			"Save the file as UTF-8 without BOM.")
		data, r.line = data[3:], 0
	}
	r.c.Servers = slices.Grow(r.c.Servers, min(bytes.Count(data, []byte("server ")), maxServers/10))
	cut := len(data) > 0 && data[len(data)-1] != '\n'
	for len(data) > 0 && r.expansion < 2*maxFile {
		line := data
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			line, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		r.line++
		if i := bytes.IndexByte(line, 0); i >= 0 {
			r.refuse("nul", fmt.Sprintf("a NUL character at position %d, behind which the line is lost.", i+1),
				"Remove the character.")
			line = line[:i]
		}
		r.physical(string(line))
	}
	if cut {
		r.refuse("no-final-newline", "the last line has no newline, from which HAProxy 2.3 and later conclude that the file was cut.",
			"End the file with a newline.")
	}
	if len(r.conds) > 0 {
		r.line = r.conds[len(r.conds)-1].line
		r.refuse("if-open", "this .if has no .endif.", "Close it with .endif.")
	}
	if r.expansion >= 2*maxFile {
		r.refuse("too-long", "environment variables expand beyond what is read; the rest of the file is left out.",
			"Take the variable that grows out of the file.")
	}
}

// physical reads one line without its newline.
func (r *reader) physical(raw string) {
	trimmed := strings.TrimLeft(raw, " \t\v\f\r")
	if trimmed == "" || trimmed[0] == '#' || trimmed[0] == '[' {
		return // '[' begins a scope, which only matters to a few global words
	}
	r.split.line = r.line
	words, empty, problem := r.split.split(trimmed)
	if problem != "" {
		r.refuse("line", problem+".", "Correct the line; nothing of it was read.")
		return
	}
	if n := len(r.split.out) - len(raw); n > 0 {
		r.expansion += n
	}
	if len(words) > 0 && words[0][0] == '.' && r.directive(words) {
		return
	}
	if !r.active() {
		return
	}
	if empty > 0 {
		r.emptyWord(empty)
	}
	if len(words) == 0 {
		return
	}
	r.statement(words, len(trimmed) < len(raw))
}

// emptyWord: up to 3.2 the rest of the line is silently dropped (3.2 warns), from
// 3.3 on HAProxy refuses it.
func (r *reader) emptyWord(n int) {
	f := Finding{
		ID: "empty-word", Severity: Warning,
		Why: fmt.Sprintf("word %d is an empty string (an unset variable?), and HAProxy drops what follows it on the line.", n),
		Fix: "Remove the empty word, or give the variable a default: \"${NAME-default}\".",
	}
	if r.o.Version != "" && CompareVersions(r.o.Version, "3.3") >= 0 {
		f.Severity, f.Refused = Error, true
		f.Why = fmt.Sprintf("word %d is an empty string (an unset variable?), which HAProxy 3.3 and later refuse.", n)
	}
	r.problem(f)
}

// statement handles a line with words, outside of what .if masks.
func (r *reader) statement(words []string, indented bool) {
	// `default` puts back what an option is without the line: off, for all here.
	negated := len(words) > 1 && (words[0] == "no" || words[0] == "default")
	if negated {
		words = words[1:]
		switch words[0] {
		case "option", "log", "busy-polling", "set-dumpable", "strict-limits", "insecure-fork-wanted",
			"numa-cpu-mapping", "h2-workaround-bogus-websocket-clients", "insecure-setuid-wanted":
		default:
			r.refuse("no-form", "`no` and `default` are known for options, log and a few global words only.", "Remove the line.")
			return
		}
	}
	if sections[words[0]] {
		r.start(words)
		return
	}
	if r.section == "" && !r.foreign {
		r.refuse("no-section", words[0]+" stands before any section.", "Put it into a section.")
		return
	}
	if indented {
		r.indented = true
	}
	switch {
	case r.foreign:
	case r.section == "global":
		r.global(words, indented)
	case r.cur != nil:
		if r.misled {
			r.mislead()
		}
		r.proxyLine(words, negated, indented)
	}
}

// start begins a section.
func (r *reader) start(words []string) {
	r.section, r.foreign, r.indented, r.cur = words[0], false, false, nil
	r.misled = false
	r.split.section = words[len(words)-1]
	if len(words) > 1 {
		r.split.section = words[1]
	}
	switch words[0] {
	case "defaults", "frontend", "backend", "listen":
		r.startProxy(words)
	}
}

// unknown reports a word that no version of HAProxy knows; one at the first
// column of a file with indented bodies is a section, whose lines belong to
// nobody. A build with more words than the community's may know it: a warning.
func (r *reader) unknown(words []string, indented bool) {
	if r.indented && !indented {
		r.foreign = true
		r.warn("unknown-section", fmt.Sprintf("no HAProxy up to 3.4 has a section %q; its lines were left out.", words[0]), "Correct the word.")
		return
	}
	r.warn("unknown-keyword", fmt.Sprintf("no HAProxy up to 3.4 has %q in %s; the line was left out.", words[0], article(r.section)), "Correct the word.")
}

func article(section string) string {
	if section == "global" {
		return "the global section"
	}
	return "a " + section + " section"
}

func (r *reader) global(words []string, indented bool) {
	g, value := &r.c.Global, ""
	if len(words) > 1 {
		value = words[1]
	}
	switch w := words[0]; w {
	case "setenv", "presetenv", "unsetenv", "resetenv":
		r.environment(words)
	case "stats":
		r.stats(words)
	case "master-worker":
		g.MasterWorker = true
		r.globalSays("master_worker")
	case "hard-stop-after":
		if d, problem, _ := parseTime(value); problem == "" {
			g.HardStopAfter = d
			r.globalSays("hard_stop_after")
		} else {
			r.refuse("value", fmt.Sprintf("hard-stop-after %q %s.", value, problem), "Write a time, as 30s.")
		}
	case "spread-checks":
		r.globalSays("spread_checks")
		if g.SpreadChecks = atoi(value); g.SpreadChecks < 0 || g.SpreadChecks > 50 {
			g.SpreadChecks = 0
			r.refuse("value", "spread-checks is within 0 and 50 percent.", "Correct the number.")
		}
	case "server-state-file":
		if g.StateFile == "" { // a second one is ignored, with an alert that stops nothing
			g.StateFile = value
			r.globalSays("server_state_file")
		}
	case "server-state-base":
		if g.StateBase == "" {
			g.StateBase = value
			r.globalSays("server_state_base")
		}
	case "nbproc":
		g.Nbproc = atoi(value)
		r.globalSays("nbproc")
		if r.o.Version != "" && CompareVersions(r.o.Version, "2.5") >= 0 {
			r.refuse("nbproc", "HAProxy 2.5 and later refuse nbproc.", "Remove the line and use nbthread.")
		}
	default:
		if !globalKeywords[w] && !strings.HasPrefix(w, "tune.") {
			r.unknown(words, indented)
		}
	}
}

// globalSays notes that the current line gives a setting of the process.
func (r *reader) globalSays(name string) {
	r.c.Global.origins[name] = r.at(inGlobal).origin(r.c.Files)
}

// environment is setenv and its kin (cfgparse-global.c).
func (r *reader) environment(words []string) {
	switch words[0] {
	case "unsetenv":
		for _, name := range words[1:] {
			delete(r.env, name)
		}
	case "resetenv":
		keep := make(map[string]bool)
		for _, name := range words[1:] {
			keep[name] = true
		}
		for name := range r.env {
			if !keep[name] {
				delete(r.env, name)
			}
		}
	default:
		if len(words) < 3 {
			r.refuse("value", words[0]+" wants a name and a value.", "Write both.")
			return
		}
		if r.envSize += len(words[2]); r.envSize > maxFile/4 {
			r.refuse("too-long", "setenv holds more than is read.", "Take the variable that grows out of the file.")
			return
		}
		if _, ok := r.env[words[1]]; !ok || words[0] == "setenv" {
			r.env[words[1]] = words[2]
		}
	}
}

// at is the mark of the current line.
func (r *reader) at(l level) mark {
	return mark{line: int32(min(r.line, math.MaxInt32)), file: r.file, level: l}
}

// problem keeps a finding about the current line.
func (r *reader) problem(f Finding) {
	f.File, f.Line = r.c.Files[r.file], r.line
	r.note(f)
}

func (r *reader) note(f Finding) {
	if r.cur != nil && f.Backend == "" && r.cur.kind != inDefaults {
		f.Backend = r.cur.Name
	}
	if len(f.Why) > maxWhy {
		f.Why = f.Why[:maxWhy] + "…"
	}
	switch n := len(r.c.Findings); {
	case n < maxFindings:
		r.c.Findings = append(r.c.Findings, f)
	case n == maxFindings:
		r.c.Findings = append(r.c.Findings, Finding{
			ID: "too-many", Severity: Error, File: f.File, Line: f.Line,
			Why: fmt.Sprintf("more than %d findings; the rest is not listed.", maxFindings), Fix: "Begin with the first.",
		})
	}
}

func (r *reader) refuse(id, why, fix string) {
	r.problem(Finding{ID: id, Severity: Error, Why: why, Fix: fix, Refused: true})
}

func (r *reader) warn(id, why, fix string) {
	r.problem(Finding{ID: id, Severity: Warning, Why: why, Fix: fix})
}

// statePath is where a server-state-file stands (server_state.c): absolute as it
// is, else under the base.
func statePath(base, file string) string {
	if file == "" || path.IsAbs(file) || base == "" {
		return file
	}
	return path.Join(base, file)
}
