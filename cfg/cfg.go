// Package cfg reads haproxy.cfg as HAProxy does and says what it means for every
// server: where its checks go, how long a failing check takes to take it out of
// rotation, and which line decided it.
//
// # Contract
//
// [Load] takes what -f takes: files and directories (of a directory its *.cfg,
// hidden ones left out, in byte order), read in order as one configuration. It
// fails only where nothing can be read; whatever is wrong inside is a [Finding]
// with file and line, and the rest is still read. Findings with Refused set are
// those for which HAProxy refuses the file. [Read] does the same with text that
// is in memory already. Both are pure otherwise: no clock, no socket, no
// environment but [Options].Env; two calls may run at the same time.
//
// What is resolved as HAProxy resolves it (its cfgparse.c, server.c, proxy.c and
// tools.c at 2.6; a test runs 500 generated files through the real binary and
// compares): quotes, escapes and variables in double quotes, variables in
// addresses again, an empty word that ends a line, CRLF, .if/.elif/.else/.endif,
// setenv and its kin, `defaults` by name, by `from` and by position,
// default-server from the line where it stands onwards, no- forms,
// server-template, track chains, time units.
//
// # What reads which line
//
// The line reader, the sections and the server, default-server and
// server-template lines are this package's own: config-parser keeps neither
// their order nor their line numbers, drops words it does not know, keeps both
// branches of an .if, and needs 0.1 ms for a server line. Lines that have a form
// of their own and no order (stats socket, option httpchk, option redispatch,
// cookie, timeouts, simple options) go through config-parser's typed line
// parsers, after the words have been unquoted and expanded here; its reader and
// its package state are not used.
//
// # Bounds
//
// A file may have 64 MiB, a line 1 MiB after expansion, a configuration 50,000
// sections and 250,000 servers; more is a finding or an error, never memory. The first 1,000 findings
// of reading are kept.
package cfg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/haproxytech/config-parser/v5/params"
	"github.com/haproxytech/config-parser/v5/parsers"
	"github.com/haproxytech/config-parser/v5/types"
)

const (
	maxFile     = 64 << 20
	maxLine     = 1 << 20
	maxServers  = 250_000
	maxSections = 50_000
	maxFindings = 1000
	maxWhy      = 400 // bytes; values may be as long as a line
	maxNested   = 99  // of .if; MAXNESTEDCONDS in HAProxy's cfgcond-t.h
	maxWords    = 64  // MAX_LINE_ARGS in HAProxy's defaults.h
)

// Options is the world in which the files are read.
type Options struct {
	// Env is the environment HAProxy starts with.
	Env map[string]string
	// Version is HAProxy's, as `haproxy -v` prints it (2.6.12-1+deb12u4).
	// Empty is unknown: what .if asks of it cannot be decided then.
	Version string
	// Features is the "Feature list" of `haproxy -vv` (+OPENSSL -QUIC …),
	// empty if unknown.
	Features string
	// SSLLibrary is what `haproxy -vv` says it was built with
	// (OpenSSL 3.0.22 25 Aug 2026), empty if unknown.
	SSLLibrary string
}

// Config is what the files mean.
type Config struct {
	Files    []string
	Servers  []Server
	Backends []Backend // backend and listen sections, in the order of the files
	Sockets  []AdminSocket
	Global   Global
	// StateFile is the path of the global server-state-file with its base,
	// empty if none is set. Whether a backend loads it: Backend.LoadState.
	StateFile string
	// Findings are those of reading, in the order of the lines. What will
	// hurt a drain is the business of package lint.
	Findings []Finding

	byName map[string]int // backend name to index
}

// Backend returns the backend or listen section of that name, nil if there is
// none.
func (c *Config) Backend(name string) *Backend {
	i, ok := c.byName[name]
	if !ok {
		return nil
	}
	return &c.Backends[i]
}

// Refused returns nil, or an error that names the findings for which HAProxy
// refuses these files.
func (c *Config) Refused() error {
	var errs []error
	for _, f := range c.Findings {
		if f.Refused {
			errs = append(errs, fmt.Errorf("%s:%d: %s", f.File, f.Line, f.Why))
		}
	}
	return errors.Join(errs...)
}

// Origin says which line gave a value, and on which level: built-in, global,
// defaults, backend, listen, default-server or server. File is empty and Line 0
// for built-in.
type Origin struct {
	File  string `json:"file,omitempty"`
	Line  int    `json:"line,omitempty"`
	Level string `json:"level"`
}

// origins is where settings of a section come from.
type origins map[string]Origin

func (o origins) of(name string) Origin {
	if at, ok := o[name]; ok {
		return at
	}
	return Origin{Level: levelNames[builtIn]}
}

// Global is what the global sections set.
type Global struct {
	MasterWorker bool
	// HardStopAfter is when an old process is killed after a reload, 0 for never.
	HardStopAfter time.Duration
	// SpreadChecks is in percent of an interval, [0, 50].
	SpreadChecks int
	StateFile    string // server-state-file, as written
	StateBase    string // server-state-base
	StatsMaxconn int    // connections to all stats sockets, 10 unless set
	Nbproc       int    // 1 unless set

	origins origins
}

// Origin says where a setting comes from; level built-in for what no line says.
// The names: master_worker, hard_stop_after, spread_checks, server_state_file,
// server_state_base, stats_maxconn, nbproc.
func (g Global) Origin(name string) Origin { return g.origins.of(name) }

// AdminSocket is a `stats socket`.
type AdminSocket struct {
	Network string // unix, abns, tcp or fd
	Address string // path, name, host:port or number
	Level   string // user, operator (HAProxy's default) or admin
	Expose  bool   // expose-fd listeners: a reload takes the listeners over
	File    string
	Line    int
}

// stats reads the stats lines of the global section.
func (r *reader) stats(words []string) {
	if len(words) < 3 {
		r.refuse("value", strings.Join(words, " ")+" wants a value.", "Write it.")
		return
	}
	switch words[1] {
	case "maxconn":
		r.c.Global.StatsMaxconn = atoi(words[2])
		r.globalSays("stats_maxconn")
	case "socket":
		sockets, ok := typed[[]types.Socket](&parsers.Socket{}, words)
		if !ok || len(sockets) != 1 {
			return
		}
		a := parseAddress(sockets[0].Path, r.env)
		if a.problem != "" {
			r.refuse("address", "stats socket "+a.problem+".", "Write a path.")
			return
		}
		r.c.Sockets = append(r.c.Sockets, r.adminSocket(a, sockets[0].Params))
	}
}

// adminSocket: unix-bind prefix does not reach it (cfgparse.c str2listener).
func (r *reader) adminSocket(a address, bind []params.BindOption) AdminSocket {
	s := AdminSocket{Network: a.network, Address: a.host, Level: "operator", File: r.c.Files[r.file], Line: r.line}
	switch a.network {
	case "ip":
		s.Network, s.Address = "tcp", a.host+":"+strconv.Itoa(a.port)
		if strings.IndexByte(a.host, ':') >= 0 {
			s.Address = "[" + a.host + "]:" + strconv.Itoa(a.port)
		}
	case "uxst":
		s.Network = "unix"
	}
	if i := strings.IndexByte(s.Address, '@'); i > 0 && a.network != "ip" {
		s.Address = s.Address[i+1:]
	}
	for _, option := range bind {
		switch o := option.(type) {
		case *params.BindOptionValue:
			if o.Name == "level" {
				s.Level = o.Value
			}
		case *params.BindOptionDoubleWord:
			s.Expose = s.Expose || o.Name == "expose-fd"
		}
	}
	return s
}

// Load reads files and directories as `haproxy -f` does.
func Load(paths []string, o Options) (*Config, error) {
	var texts []Text
	for _, p := range paths {
		names, err := expand(p)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			data, err := readFile(n)
			if err != nil {
				return nil, err
			}
			texts = append(texts, Text{Name: n, Data: data})
		}
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("read configuration %s: no file that ends in .cfg", strings.Join(paths, ", "))
	}
	return Read(texts, o), nil
}

// expand gives the files of a path: itself, or of a directory what HAProxy takes
// (haproxy.c cfgfiles_expand_directories).
func expand(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	var names []string
	for _, e := range entries {
		name := filepath.Join(path, e.Name())
		if !strings.HasSuffix(name, ".cfg") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names, nil
}

func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err == nil && info.Size() > maxFile {
		err = fmt.Errorf("%s: %d bytes, at most %d are read", name, info.Size(), maxFile)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return data, nil
}

// Severity is how much a finding hurts.
type Severity uint8

// The severities, rising.
const (
	Info    Severity = iota + 1 // worth knowing
	Warning                     // loses requests in some ordinary drain, or reads otherwise than it looks
	Error                       // cuts requests, or HAProxy refuses the file
)

func (s Severity) String() string {
	switch s {
	case Info:
		return "info"
	case Warning:
		return "warning"
	case Error:
		return "error"
	}
	return fmt.Sprintf("severity %d", uint8(s))
}

// MarshalText is String.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseSeverity.
func (s *Severity) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSeverity(string(text))
	return err
}

// ParseSeverity reads info, warning or error.
func ParseSeverity(s string) (Severity, error) {
	for v := Info; v <= Error; v++ {
		if s == v.String() {
			return v, nil
		}
	}
	return 0, fmt.Errorf("severity %q: want info, warning or error", s)
}

// Finding is one thing to know about a line.
type Finding struct {
	ID       string   `json:"id"` // fixed, kebab-case
	Severity Severity `json:"severity"`
	File     string   `json:"file"`
	Line     int      `json:"line"` // 1 is the first; 0: the file or the whole configuration
	Backend  string   `json:"backend,omitempty"`
	Server   string   `json:"server,omitempty"`
	Why      string   `json:"why"` // one sentence
	Fix      string   `json:"fix"` // one sentence
	// Refused: HAProxy does not start with this.
	Refused bool `json:"refused,omitempty"`
}

// Short is a duration as a person writes it: 2s, 1m30s, 2m, 500ms.
func Short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// CompareVersions orders two HAProxy versions (2.6, 2.6.12-1+deb12u4,
// 3.5-dev4-50872d) as tools.c compare_current_version does, a release counting
// above any dev: below 0 if a is older.
func CompareVersions(a, b string) int {
	x, y := versionParts(a), versionParts(b)
	for i := range x {
		if x[i] != y[i] {
			return x[i] - y[i]
		}
	}
	return 0
}

// versionParts is major, minor, branch (dev < pre < rc < release) and patch.
func versionParts(v string) (p [4]int) {
	p[2] = 3
	rest := v
	number := func() int {
		n := 0
		for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
			n++
		}
		i, _ := strconv.Atoi(rest[:n])
		rest = rest[n:]
		return i
	}
	p[0] = number()
	rest = strings.TrimPrefix(rest, ".")
	p[1] = number()
	for i, stage := range []string{"-dev", "-pre", "-rc"} {
		if strings.HasPrefix(rest, stage) {
			rest, p[2] = rest[len(stage):], i
			p[3] = number()
			return p
		}
	}
	rest = strings.TrimPrefix(rest, ".")
	p[3] = number()
	return p
}
