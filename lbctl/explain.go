package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	ucli "github.com/urfave/cli/v2"

	"lbdrain/cfg"
	"lbdrain/internal/cli"
)

// reading is the flags that say what is read, and in which world: those that
// check and explain share.
type reading struct {
	binary, version, output string
}

func (r *reading) flags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.StringSliceFlag{Name: "f", Usage: "haproxy.cfg, or a directory of *.cfg; repeatable, read in order as one", Value: ucli.NewStringSlice(defaultCfg)},
		&ucli.StringSliceFlag{Name: "env-file", Usage: "file of NAME=VALUE lines as systemd's EnvironmentFile, over the environment of this command; repeatable"},
		&ucli.StringFlag{Name: "haproxy", Usage: "binary that is asked for version and features, for .if (default: haproxy in PATH, if there is one)", Destination: &r.binary},
		&ucli.StringFlag{Name: "haproxy-version", Usage: "version of the HAProxy the files are for, as 2.6.12", Destination: &r.version},
		&ucli.StringFlag{Name: "o", Usage: "output: table or json", Value: "table", Destination: &r.output},
	}
}

// load reads the files; an error of it is exit code 2.
func (r *reading) load(c *ucli.Context) (*cfg.Config, cfg.Options, error) {
	if r.output != "table" && r.output != "json" {
		return nil, cfg.Options{}, cli.Misuse("-o table, or -o json", "output %q", r.output)
	}
	o, err := r.world(c.Context, c.StringSlice("env-file"))
	if err != nil {
		return nil, o, err
	}
	config, err := cfg.Load(c.StringSlice("f"), o)
	if err != nil {
		return nil, o, cli.Fail(cli.Usage, "-f FILE, or -f DIRECTORY with *.cfg in it", err)
	}
	return config, o, nil
}

// world is what the files may ask about: environment, version, features.
func (r *reading) world(ctx context.Context, envFiles []string) (cfg.Options, error) {
	o := cfg.Options{Env: environment()}
	for _, name := range envFiles {
		data, err := os.ReadFile(name)
		if err == nil {
			err = parseEnvFile(string(data), o.Env)
		}
		if err != nil {
			return o, cli.Fail(cli.Usage, "--env-file FILE with NAME=VALUE lines", fmt.Errorf("read environment file %s: %w", name, err))
		}
	}
	binary := r.binary
	if binary == "" {
		binary, _ = exec.LookPath("haproxy")
	}
	if binary != "" {
		if err := askBinary(ctx, binary, &o); err != nil && r.binary != "" {
			return o, cli.Fail(cli.Usage, "--haproxy /usr/sbin/haproxy", err)
		}
	}
	if r.version != "" {
		if o.Version != "" && cfg.CompareVersions(o.Version, r.version) != 0 {
			o.Features, o.SSLLibrary = "", "" // those of another build
		}
		o.Version = r.version
	}
	return o, nil
}

// environment is this process's.
func environment() map[string]string {
	env := make(map[string]string)
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	return env
}

// askBinary takes version, features and SSL library from `haproxy -vv`.
func askBinary(ctx context.Context, binary string, o *cfg.Options) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "-vv").Output()
	if err != nil {
		return fmt.Errorf("ask %s -vv: %w", binary, err)
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if v, ok := strings.CutPrefix(line, "HAProxy version "); ok && o.Version == "" {
			o.Version, _, _ = strings.Cut(v, " ")
		} else if v, ok := strings.CutPrefix(line, "Feature list : "); ok {
			o.Features = v
		} else if v, ok := strings.CutPrefix(line, "Built with OpenSSL version : "); ok {
			o.SSLLibrary = v
		}
	}
	if o.Version == "" {
		return fmt.Errorf("ask %s -vv: it names no HAProxy version", binary)
	}
	return nil
}

// parseEnvFile reads systemd's EnvironmentFile (systemd.exec): NAME=VALUE, lines
// that begin with # or ; are comments, values may be quoted or continued with a
// backslash at the end of the line.
func parseEnvFile(text string, env map[string]string) error {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		first, line := i+1, strings.TrimSpace(lines[i])
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		name, raw, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" || strings.ContainsAny(name, " \t\"'$") {
			return fmt.Errorf("line %d: %q is not NAME=VALUE", first, line)
		}
		value, open := unquote(raw)
		for open && i+1 < len(lines) {
			i++
			raw = strings.TrimSuffix(raw, "\\")
			if !strings.HasSuffix(lines[i-1], "\\") {
				raw += "\n"
			}
			raw += lines[i]
			value, open = unquote(raw)
		}
		if open {
			return fmt.Errorf("line %d: the value of %s does not end", first, name)
		}
		env[name] = value
	}
	return nil
}

// unquote reads one value. open says that a quote or a backslash asks for the
// next line.
func unquote(raw string) (value string, open bool) {
	var b strings.Builder
	var quote byte
	raw = strings.TrimLeft(raw, " \t")
	kept := 0 // what is left when blanks at the end are cut
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '\\' && quote != '\'':
			if i+1 == len(raw) {
				return "", true
			}
			i++
			if quote == '"' && !strings.ContainsRune("\"\\`$", rune(raw[i])) {
				b.WriteByte('\\')
			}
			b.WriteByte(raw[i])
			kept = b.Len()
		case (c == '"' || c == '\'') && (quote == 0 || quote == c):
			quote ^= c
			kept = b.Len()
		default:
			b.WriteByte(c)
			if quote != 0 || c != ' ' && c != '\t' && c != '\r' {
				kept = b.Len()
			}
		}
	}
	return b.String()[:kept], quote != 0
}

func explainCommand() *ucli.Command {
	r := &reading{}
	return &ucli.Command{
		Name: "explain", Usage: "the effective settings of every server, and which line gave them",
		ArgsUsage: "[BACKEND/SERVER | BACKEND | SERVER | ADDR:PORT]...",
		Description: "WINDOW is how long a failing check takes to mark a server DOWN: best/mean/worst for a\n" +
			"check that is answered at once. SILENT is the worst where checks are not answered at all.",
		OnUsageError: cli.UsageError,
		Flags:        r.flags(),
		Action: func(c *ucli.Context) error {
			config, _, err := r.load(c)
			if err != nil {
				return err
			}
			servers, err := pick(config, c.Args().Slice())
			if err != nil {
				return err
			}
			for _, f := range config.Findings {
				fmt.Fprintf(c.App.ErrWriter, "%s%s: %s [%s]\n", place(f), f.Severity, f.Why, f.ID)
			}
			if r.output == "json" {
				return explainJSON(c.App.Writer, servers)
			}
			return explainTable(c.App.Writer, servers)
		},
	}
}

// pick is the servers that the targets name, in the order of the files; each
// target must name one.
func pick(config *cfg.Config, targets []string) ([]cfg.Server, error) {
	if len(targets) == 0 {
		return config.Servers, nil
	}
	var picked []cfg.Server
	hit := make(map[string]bool)
	for _, s := range config.Servers {
		names := []string{s.Backend, s.Name, s.Backend + "/" + s.Name, hostPort(s.Addr, s.Port)}
		if s.Agent {
			names = append(names, hostPort(s.AgentAddr, s.AgentPort))
		}
		wanted := false
		for _, t := range targets {
			for _, n := range names {
				if t == n {
					wanted, hit[t] = true, true
				}
			}
		}
		if wanted {
			picked = append(picked, s)
		}
	}
	for _, t := range targets {
		if !hit[t] {
			return nil, cli.Fail(noSuchServer, "lbctl explain, without a target, lists all", fmt.Errorf("no server is %q, nor in a backend of that name", t))
		}
	}
	return picked, nil
}

func explainTable(w io.Writer, servers []cfg.Server) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SERVER\tADDRESS\tCHECK\tINTER/FAST/DOWN\tRISE/FALL\tWINDOW\tSILENT\tAGENT\tON-DOWN\tLINE")
	for _, s := range servers {
		check, agent, down := "-", "-", "-"
		if s.Check {
			check = s.Type + " " + hostPort(s.CheckTarget(), s.CheckPort)
		} else if s.TrackRoot != "" {
			check = "track " + s.TrackRoot
		}
		timing, counts, window, silent := "-", "-", "-", "-"
		if check != "-" {
			timing = fmt.Sprintf("%s/%s/%s", cfg.Short(s.Inter), cfg.Short(s.FastInter), cfg.Short(s.DownInter))
			counts = fmt.Sprintf("%d/%d", s.Rise, s.Fall)
		}
		if win := s.Window(); win.Mean > 0 {
			window = fmt.Sprintf("%s/%s/%s", cfg.Short(win.Best), cfg.Short(win.Mean), cfg.Short(win.Worst))
			silent = cfg.Short(s.WindowAt(s.CheckLimit()).Worst)
		}
		if s.Agent {
			agent = hostPort(s.AgentAddr, s.AgentPort) + " every " + cfg.Short(s.AgentInter)
			if s.AgentSend != "" {
				agent += " sends " + strconv.Quote(s.AgentSend)
			}
		}
		if s.OnMarkedDown != "" {
			down = s.OnMarkedDown
		}
		fmt.Fprintf(t, "%s/%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s:%d\n", s.Backend, s.Name, hostPort(s.Addr, s.Port), check, timing, counts, window, silent, agent, down, s.File, s.Line)
	}
	return t.Flush()
}

// hostPort is an address with its port, or without where it has none.
func hostPort(host string, port int) string {
	if port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// explained is a server in JSON; null is "not there".
type explained struct {
	File         string                `json:"file"`
	Line         int                   `json:"line"`
	Proxy        string                `json:"proxy"`
	Server       string                `json:"server"`
	Addr         string                `json:"addr"`
	Sport        *int                  `json:"sport"`
	Check        bool                  `json:"check"`
	Type         *string               `json:"type"`
	Inter        int64                 `json:"inter"`
	Fastinter    int64                 `json:"fastinter"`
	Downinter    int64                 `json:"downinter"`
	Fall         int                   `json:"fall"`
	Rise         int                   `json:"rise"`
	CheckPort    *int                  `json:"check_port"`
	CheckAddr    *string               `json:"check_addr"`
	Agent        bool                  `json:"agent"`
	AgentPort    *int                  `json:"agent_port"`
	AgentInter   *int64                `json:"agent_inter"`
	AgentAddr    *string               `json:"agent_addr"`
	AgentSend    *string               `json:"agent_send"`
	OnMarkedDown string                `json:"on_marked_down"` // none, or shutdown-sessions
	OnMarkedUp   string                `json:"on_marked_up"`
	Track        *string               `json:"track"`
	TrackRoot    *string               `json:"track_root"`
	Disabled     bool                  `json:"disabled"`
	Backup       bool                  `json:"backup"`
	Weight       int                   `json:"weight"`
	Cookie       *string               `json:"cookie"`
	Slowstart    *int64                `json:"slowstart"`
	Maxconn      *int                  `json:"maxconn"`
	Observe      *string               `json:"observe"`
	OnError      *string               `json:"on_error"`
	InitState    *string               `json:"init_state"`
	Source       *string               `json:"source"`
	Resolvers    *string               `json:"resolvers"`
	TCheck       *int64                `json:"t_check"`
	TConnect     *int64                `json:"t_connect"`
	Mode         string                `json:"mode"`
	Window       *windowMS             `json:"window_ms"`
	Silent       *windowMS             `json:"window_silent_ms"` // every check runs into its limit
	Origin       map[string]cfg.Origin `json:"origin"`
}

// windowMS is a window in milliseconds.
type windowMS struct {
	Best  int64 `json:"best"`
	Mean  int64 `json:"mean"`
	Worst int64 `json:"worst"`
}

func explainJSON(w io.Writer, servers []cfg.Server) error {
	all := make([]explained, 0, len(servers))
	for _, s := range servers {
		all = append(all, explain(s))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(all); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// unless is a value, or null where it is the zero one.
func unless[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func millis(d time.Duration) *int64 { return unless(d.Milliseconds()) }

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func explain(s cfg.Server) explained {
	e := explained{
		File: s.File, Line: s.Line, Proxy: s.Backend, Server: s.Name,
		Addr: s.Addr, Sport: unless(s.Port), Check: s.Check, Type: unless(s.Type),
		Inter: s.Inter.Milliseconds(), Fastinter: s.FastInter.Milliseconds(), Downinter: s.DownInter.Milliseconds(),
		Fall: s.Fall, Rise: s.Rise, CheckPort: unless(s.CheckPort), CheckAddr: unless(s.CheckAddr),
		Agent: s.Agent, OnMarkedDown: orNone(s.OnMarkedDown), OnMarkedUp: orNone(s.OnMarkedUp),
		Track: unless(s.Track), TrackRoot: unless(s.TrackRoot),
		Disabled: s.Disabled, Backup: s.Backup, Weight: s.Weight, Cookie: unless(s.Cookie),
		Slowstart: millis(s.Slowstart), Maxconn: unless(s.Maxconn), Observe: unless(s.Observe), OnError: unless(s.OnError),
		InitState: unless(s.InitState), Source: unless(s.Source), Resolvers: unless(s.Resolvers),
		TCheck: millis(s.TimeoutCheck), TConnect: millis(s.TimeoutConnect), Mode: s.Mode,
		Origin: make(map[string]cfg.Origin, len(cfg.Keys())),
	}
	if s.Agent {
		e.AgentPort, e.AgentInter, e.AgentAddr, e.AgentSend = unless(s.AgentPort), millis(s.AgentInter), unless(s.AgentAddr), unless(s.AgentSend)
	}
	if w := s.Window(); w.Mean > 0 {
		e.Window, e.Silent = inMillis(w), inMillis(s.WindowAt(s.CheckLimit()))
	}
	for _, k := range cfg.Keys() {
		e.Origin[k] = s.Origin(k)
	}
	return e
}

func inMillis(w cfg.Window) *windowMS {
	return &windowMS{Best: w.Best.Milliseconds(), Mean: w.Mean.Milliseconds(), Worst: w.Worst.Milliseconds()}
}
