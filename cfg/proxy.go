package cfg

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/haproxytech/config-parser/v5/common"
	"github.com/haproxytech/config-parser/v5/parsers"
	"github.com/haproxytech/config-parser/v5/parsers/simple"
	"github.com/haproxytech/config-parser/v5/types"
)

// Backend is what a backend or listen section, with its defaults, says beside
// its servers.
type Backend struct {
	Name, Kind string // Kind: backend or listen
	Mode       string // tcp or http
	Disabled   bool

	// CheckType is the option that says how checks are done, tcp without one.
	CheckType                    string
	CheckMethod, CheckURI        string // of option httpchk; empty: OPTIONS, /
	DisableOn404                 bool   // http-check disable-on-404
	ConnectPort                  int    // of the first connect in the check rules, 0 without a port there
	TimeoutCheck, TimeoutConnect time.Duration

	Retries    int // 3 unless set
	Redispatch bool
	RetryOn    []string // empty: conn-failure
	Persist    bool     // option persist: cookies win over DOWN and MAINT

	Cookie        string // name, empty without
	DynamicCookie bool
	Stick         bool // a stick rule that chooses a server
	ForcePersist  bool
	// LoadState is load-server-state-from-file: none, local or global.
	LoadState string
	// LateDefault is the line of a default-server that stands after a server
	// of this section, 0 if none.
	LateDefault int

	File string
	Line int

	origins origins
}

// Origin says where a setting comes from; level built-in for what no line says.
// The names are those of the fields in snake case: mode, disabled, check_type,
// disable_on_404, connect_port, t_check, t_connect, retries, redispatch,
// retry_on, persist, cookie, stick, force_persist, load_state.
func (b Backend) Origin(name string) Origin { return b.origins.of(name) }

func builtInBackend() Backend {
	return Backend{Mode: "tcp", CheckType: "tcp", Retries: 3, LoadState: "none"}
}

// proxy is a defaults, frontend, listen or backend section while it is read.
type proxy struct {
	Backend
	kind    level // inDefaults, inBackend, inListen; builtIn for a frontend
	def     Server
	servers int // server lines so far
	source  string
	// ownRules: the section has check rules of its own, instead of those of
	// its defaults. connects are the ports of their first connect, by keyword.
	ownRules bool
	connects map[string]int
	// What servers have of their backend, where it comes from.
	modeAt, typeAt, checkTimeoutAt, connectTimeoutAt, sourceAt mark
}

// says notes that the current line gives a setting of the section.
func (r *reader) says(name string) {
	r.cur.origins[name] = r.at(r.cur.kind).origin(r.c.Files)
}

// startProxy begins a section that inherits.
func (r *reader) startProxy(words []string) {
	if r.sections++; r.sections > maxSections {
		r.foreign = true
		r.refuse("too-many-sections", fmt.Sprintf("more than %d sections are not read.", maxSections), "Split the configuration.")
		return
	}
	name, from := r.proxyHead(words)
	p := &proxy{}
	*p = *from
	p.Name, p.Kind, p.kind, p.servers, p.LateDefault, p.ownRules = name, words[0], builtIn, 0, 0, false
	if p.origins = maps.Clone(from.origins); p.origins == nil {
		p.origins = make(origins)
	}
	p.File, p.Line = r.c.Files[r.file], r.line
	r.cur = p
	switch words[0] {
	case "defaults":
		p.kind, r.last = inDefaults, p
		if _, ok := r.named[name]; ok {
			r.ambiguous[name] = true
		} else if name != "" {
			r.named[name] = p
		}
		return
	case "backend":
		p.kind = inBackend
	case "listen":
		p.kind = inListen
	}
	if bad := badName(name); bad != "" {
		r.refuse("name", fmt.Sprintf("the name %q of a %s has %s.", name, words[0], bad), "Use letters, digits and ._:- only.")
	}
	if name == "" {
		r.cur, r.foreign = nil, true
		return
	}
	if p.kind != builtIn && !r.misled {
		r.proxies = append(r.proxies, p)
	}
}

// proxyHead reads the line that begins a section: its name, and whom it inherits
// from (cfgparse-listen.c): the defaults it names, else the last; a defaults
// section only the one it names.
func (r *reader) proxyHead(words []string) (name string, from *proxy) {
	isDefaults, rest := words[0] == "defaults", words[1:]
	if len(rest) > 0 && !(isDefaults && rest[0] == "from" && len(rest) == 2) {
		name, rest = rest[0], rest[1:]
	}
	if from = r.last; isDefaults {
		from = &proxy{kind: inDefaults, def: newDefaultServer(), Backend: builtInBackend()}
	}
	r.misled = len(rest) == 1 && !isDefaults || len(rest) > 0 && !isDefaults && rest[0] != "from"
	switch {
	case r.misled:
		r.problem(Finding{
			ID: "section-words", Severity: Error, Why: fmt.Sprintf("%q does not belong behind the name of a section: HAProxy begins none here.", rest[0]),
			Fix: "Put addresses on a bind line, and only `from NAME` here.",
		})
	case len(rest) > 2 && !isDefaults:
		r.refuse("section-words", fmt.Sprintf("%q does not belong behind `from NAME`.", rest[2]), "Remove it.")
	}
	if r.misled || len(rest) < 2 || rest[0] != "from" {
		return name, from
	}
	if named := r.defaults(rest[1]); named != nil {
		return name, named
	}
	r.refuse("defaults-unknown", fmt.Sprintf("there is no defaults section %q before this line.", rest[1]), "Name one that stands before, or correct the name.")
	return name, from
}

// mislead is for the first line of a section that HAProxy did not begin: it
// refuses the line, and the section is read here nevertheless.
func (r *reader) mislead() {
	r.misled = false
	r.refuse("section-words", "the line belongs to no section, since the line that was to begin one has too many words.", "Correct that line.")
	if r.cur.kind != builtIn {
		r.proxies = append(r.proxies, r.cur)
	}
}

// defaults finds a defaults section by name; with several of a name HAProxy
// refuses the file.
func (r *reader) defaults(name string) *proxy {
	if r.ambiguous[name] {
		r.refuse("defaults-ambiguous", fmt.Sprintf("several defaults sections have the name %q.", name), "Give each its own name.")
	}
	return r.named[name]
}

// lineParser is one of config-parser's parsers, used for one line.
type lineParser interface {
	Init()
	Parse(line string, parts []string, comment string) (string, error)
	Get(createIfNotExist bool) (common.ParserData, error)
}

// typed lets config-parser read one line whose words are known.
func typed[T any](p lineParser, words []string) (data T, ok bool) {
	p.Init()
	if _, err := p.Parse(strings.Join(words, " "), words, ""); err != nil {
		return data, false
	}
	v, err := p.Get(false)
	if err != nil {
		return data, false
	}
	data, ok = v.(T)
	return data, ok
}

// proxyLine reads a line of a defaults, frontend, listen or backend section.
func (r *reader) proxyLine(words []string, negated, indented bool) {
	p := r.cur
	switch w := words[0]; w {
	case "server", "server-template", "default-server":
		r.serverLine(words)
	case "mode":
		r.mode(words)
	case "timeout":
		r.timeout(words)
	case "option":
		r.option(words, negated)
	case "http-check", "tcp-check":
		r.checkRule(words)
	case "disabled", "enabled":
		p.Disabled = w == "disabled"
		r.says("disabled")
	case "retries":
		if n, ok := typed[*types.Int64C](&simple.Number{Name: "retries"}, words); ok {
			p.Retries = int(n.Value)
			r.says("retries")
		}
	case "retry-on":
		p.RetryOn = words[1:]
		r.says("retry_on")
	case "cookie":
		if c, ok := typed[*types.Cookie](&parsers.Cookie{}, words); ok {
			p.Cookie, p.DynamicCookie = c.Name, c.Dynamic
			r.says("cookie")
		}
	case "stick":
		if len(words) > 1 && (words[1] == "on" || words[1] == "match") {
			p.Stick = true
			r.says("stick")
		}
	case "force-persist":
		p.ForcePersist = true
		r.says("force_persist")
	case "load-server-state-from-file":
		if s, ok := typed[*types.LoadServerStateFromFile](&parsers.LoadServerStateFromFile{}, words); ok {
			p.LoadState = s.Argument
			r.says("load_state")
		}
	case "source":
		if len(words) > 1 {
			p.source, p.sourceAt = sourceAddress(words[1], r.env), r.at(p.kind)
		}
	default:
		if !proxyKeywords[w] {
			r.unknown(words, indented)
		}
	}
}

func (r *reader) mode(words []string) {
	p := r.cur
	if len(words) == 2 && (words[1] == "tcp" || words[1] == "http" || words[1] == "log" || words[1] == "spop" || words[1] == "haterm") {
		p.Mode, p.modeAt = words[1], r.at(p.kind)
		r.says("mode")
		return
	}
	r.refuse("value", fmt.Sprintf("unknown mode %q.", strings.Join(words[1:], " ")), "Write mode http or mode tcp.")
}

// timeouts are the names that `timeout` has.
var timeouts = wordSet("check client client-fin client-hs connect http-keep-alive http-request queue server server-fin tarpit tunnel")

func (r *reader) timeout(words []string) {
	p, at := r.cur, r.at(r.cur.kind)
	if len(words) < 3 {
		r.refuse("value", strings.Join(words, " ")+" wants a time.", "Write it, as 5s.")
		return
	}
	if !timeouts[words[1]] {
		r.warn("unknown-keyword", fmt.Sprintf("no HAProxy up to 3.4 has a timeout %q.", words[1]), "Correct the word.")
		return
	}
	d, problem, odd := parseTime(words[2])
	if problem != "" {
		r.refuse("value", fmt.Sprintf("timeout %s %q %s.", words[1], words[2], problem), "Write a time, as 5s.")
		return
	}
	if odd != "" {
		r.warn("value", fmt.Sprintf("timeout %s %q %s.", words[1], words[2], odd), "Write one number with one unit.")
	}
	if t, ok := typed[*types.SimpleTimeout](&simple.Timeout{Name: words[1]}, words); ok && t != nil {
		switch words[1] {
		case "check":
			p.TimeoutCheck, p.checkTimeoutAt = d, at
			r.says("t_check")
		case "connect":
			p.TimeoutConnect, p.connectTimeoutAt = d, at
			r.says("t_connect")
		}
	}
}

// checkTypes are the options that choose how checks are done; the last one wins.
var checkTypes = map[string]bool{
	"httpchk": true, "tcp-check": true, "mysql-check": true, "pgsql-check": true, "redis-check": true,
	"smtpchk": true, "ldap-check": true, "ssl-hello-chk": true, "spop-check": true, "external-check": true,
}

func (r *reader) option(words []string, negated bool) {
	if len(words) < 2 {
		r.refuse("value", "option wants a name.", "Write it.")
		return
	}
	p, name := r.cur, words[1]
	switch {
	case checkTypes[name]:
		if negated {
			r.refuse("no-form", "option "+name+" has no `no` form.", "Remove the line, or choose another check.")
			return
		}
		p.CheckType, p.typeAt = name, r.at(p.kind)
		r.says("check_type")
		if h, ok := typed[*types.OptionHttpchk](&parsers.OptionHttpchk{}, words); ok {
			p.CheckMethod, p.CheckURI = h.Method, h.URI
		}
	case name == "redispatch":
		p.Redispatch = !negated && (len(words) < 3 || atoi(words[2]) != 0)
		r.says("redispatch")
	case name == "persist":
		o, ok := typed[*types.SimpleOption](&simple.Option{Name: "persist"}, words)
		p.Persist = ok && !o.NoOption && !negated
		r.says("persist")
	case name == "lb-agent-chk":
		r.refuse("unknown-option", "option lb-agent-chk was a word of a development version and is gone since 1.5: no server here is agent-checked.",
			"Remove it and write agent-check agent-port PORT on the server lines.")
	case !proxyOptions[name]:
		r.warn("unknown-option", fmt.Sprintf("no HAProxy up to 3.4 has option %q.", name), "Correct the name.")
	}
}

// checkRule keeps of http-check and tcp-check what decides about a drain.
func (r *reader) checkRule(words []string) {
	p := r.cur
	if len(words) < 2 || words[1] == "send-state" {
		return
	}
	if words[1] == "disable-on-404" {
		p.DisableOn404 = true
		r.says("disable_on_404")
		return
	}
	if !p.ownRules {
		p.ownRules, p.connects = true, make(map[string]int)
	}
	if _, ok := p.connects[words[0]]; ok || words[1] != "connect" {
		return
	}
	p.connects[words[0]] = 0
	for i := 2; i+1 < len(words); i++ {
		if words[i] == "port" {
			p.connects[words[0]] = atoi(words[i+1])
			r.says("connect_port")
		}
	}
}

// connectPort is the port that the check rules name, which goes before that of
// the server line (tcpcheck.c tcpcheck_eval_connect); 0 for none.
func (p *proxy) connectPort() int {
	switch p.CheckType {
	case "httpchk":
		return p.connects["http-check"]
	case "tcp-check":
		return p.connects["tcp-check"]
	}
	return 0
}
