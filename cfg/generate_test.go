package cfg

import (
	"fmt"
	"math/rand"
	"strings"
)

// generator writes one configuration of the kinds of lines that decide about
// servers. Names carry the number of the file, so that several can be loaded
// together.
type generator struct {
	*rand.Rand
	n        int
	out      strings.Builder
	defaults []string // named sections so far
	servers  []string // BACKEND/SERVER that may be tracked
	vars     []string // variables that hold an address
	backends int
	names    int
	checked  bool // default-server has check on
	eol      string
}

func newGenerator(seed int64, n int) *generator {
	return &generator{Rand: rand.New(rand.NewSource(seed<<20 + int64(n))), n: n, eol: "\n"}
}

func (g *generator) one(words ...string) string { return words[g.Intn(len(words))] }

func (g *generator) chance(percent int) bool { return g.Intn(100) < percent }

func (g *generator) line(format string, a ...any) {
	text := fmt.Sprintf(format, a...)
	if g.chance(10) {
		text += g.one("  ", "\t", " # a comment", "  #x 'unmatched")
	}
	if g.chance(15) {
		text = strings.Replace(text, " ", g.one("\t", "   "), 1)
	}
	g.out.WriteString(text + g.eol)
}

// name is new, and of letters that names may have.
func (g *generator) name(kind string) string {
	g.names++
	return fmt.Sprintf("%s%s%d_%d", kind, g.one("", "-", ".", ":"), g.n, g.names)
}

// file is the whole text; a sixth of the files has one mistake.
func (g *generator) file() string {
	if g.chance(10) {
		g.eol = "\r\n"
	}
	g.line("# generated file %d", g.n)
	g.globals()
	for range 1 + g.Intn(3) {
		g.defaultsSection()
		for range 1 + g.Intn(3) {
			g.backend()
		}
	}
	if g.chance(16) {
		g.mistake()
	}
	return g.out.String()
}

func (g *generator) globals() {
	if g.chance(70) {
		g.line("global")
		for range g.Intn(3) {
			v := fmt.Sprintf("ADDR_%d_%d", g.n, len(g.vars))
			g.line(" %s %s 127.0.%d.%d", g.one("setenv", "presetenv"), v, g.Intn(250), 1+g.Intn(250))
			g.vars = append(g.vars, v)
		}
		if g.chance(20) {
			g.line(" setenv \"GONE_%d\" x", g.n)
			g.line(" unsetenv GONE_%d", g.n)
		}
		g.conditional(func() { g.line(" setenv COND_%d yes", g.n) })
	}
	if g.chance(20) {
		g.line("peers p%d", g.n)
		g.line(" peer localhost 127.0.0.1:1024")
		g.line(" server other%d 127.0.0.1:1025", g.n)
	}
	if g.chance(20) {
		g.line("ring r%d", g.n)
		g.line(" format rfc3164")
		g.line(" server log1 127.0.0.1:514")
	}
}

// conditional writes lines under an .if whose branches hold what no version
// would take where they are false.
func (g *generator) conditional(body func()) {
	truths := []string{
		"defined(OUTER)", "version_atleast(2.4)", "!defined(NOPE)", "feature(OPENSSL)", "1",
		"streq(a,a) && !streq(a,b)", `strneq("$OUTER","")`, "(0 || (1 && !0))", "!version_before(2.0-dev3)",
		"version_before(9.9)", "openssl_version_atleast(1.0.2)", "ssllib_name_startswith(Open)", "! ! 1", "defined( OUTER)||1",
	}
	lies := []string{
		"defined(NOPE)", "0", "version_before(2.4)", "feature(NO_SUCH_THING)", "!defined(OUTER) || 0",
		"streq(\"$OUTER\",x)", "version_atleast(9.0) && 1", "", "openssl_version_before(1.0.2)", "feature(OPENSS)",
	}
	junk := func() {
		g.line("  %s", g.one("frobnicate x", "server zz 127.0.0.1:80 frob", "backend nothing", ".notice"))
	}
	switch g.Intn(4) {
	case 0:
		body()
	case 1:
		g.line(".if %s", g.one(truths...))
		body()
		if g.chance(50) {
			g.line("%s", g.one(".else", ".elif 1"))
			junk()
		}
		g.line(" .endif")
	case 2:
		g.line(".if %s", g.one(lies...))
		junk()
		g.line(".elif %s", g.one(truths...))
		body()
		g.line(".else")
		junk()
		g.line(".endif")
	case 3:
		g.line(".if %s", g.one(lies...))
		g.line(".if %s", g.one(truths...))
		junk()
		g.line(".else")
		junk()
		g.line(".endif")
		g.line(".else")
		body()
		g.line(".endif")
	}
}

func (g *generator) defaultsSection() {
	head := "defaults"
	g.checked = false
	if g.chance(60) {
		n := g.name("d")
		head += " " + n
		if len(g.defaults) > 0 && g.chance(60) {
			head += " from " + g.one(g.defaults...)
		}
		defer func() { g.defaults = append(g.defaults, n) }()
	} else if len(g.defaults) > 0 && g.chance(30) {
		head += " from " + g.one(g.defaults...)
	}
	g.line("%s", head)
	g.line(" mode %s", g.one("http", "tcp"))
	g.line(" timeout connect %s", g.time())
	g.line(" timeout client 10s")
	g.line(" timeout server 10s")
	if g.chance(40) {
		g.line(" timeout check %s", g.time())
	}
	if g.chance(40) {
		g.line(" %s", g.one("option httpchk", "option tcp-check", "option httpchk GET /x", "option redispatch", "retries 2"))
	}
	for range g.Intn(3) {
		g.conditional(func() { g.line(" default-server %s", g.keywords(false)) })
	}
}

func (g *generator) time() string {
	return g.one("2s", "1500", "700ms", "1m", "90000us", "2000us", "1h", "3s", "250", "100ms")
}

func (g *generator) backend() {
	kind := g.one("backend", "backend", "listen")
	name := g.name("b")
	head := kind + " " + name
	if len(g.defaults) > 0 && g.chance(40) {
		head += " from " + g.one(g.defaults...)
	}
	g.line("%s", g.quoted(head))
	g.backends++
	if g.chance(50) {
		g.line(" mode %s", g.one("http", "tcp"))
	}
	if g.chance(50) {
		g.line(" %s", g.one("option httpchk", "option tcp-check", "no option redispatch", "option mysql-check", "balance leastconn", "no log"))
	}
	if g.chance(8) {
		g.line(" disabled")
	}
	for range 1 + g.Intn(4) {
		if g.chance(35) {
			g.conditional(func() { g.line(" default-server %s", g.keywords(false)) })
		}
		g.conditional(func() { g.server(name) })
	}
}

// quoted puts the second word of a line into quotes now and then.
func (g *generator) quoted(line string) string {
	words := strings.SplitN(line, " ", 3)
	if !g.chance(20) || len(words) < 2 {
		return line
	}
	q := g.one(`"`, `'`)
	words[1] = q + words[1] + q
	return strings.Join(words, " ")
}

func (g *generator) server(backend string) {
	if g.chance(15) {
		prefix := g.name("t")
		prefix = strings.ReplaceAll(prefix, ":", "")
		g.line(" server-template %s %s %s %s", prefix, g.one("1", "3", "2-4", "0-1", "5-5"), g.address(), g.keywords(true))
		return
	}
	name := g.name("s")
	words := g.keywords(true)
	if g.chance(4) && !strings.Contains(words, "#") {
		words += g.one(" weight", " maxconn", " init-addr", " minconn", " maxqueue")
	}
	if len(g.servers) > 0 && g.chance(15) {
		words = "no-check no-agent-check track " + g.one(g.servers...)
	} else if strings.HasPrefix(words, "check") && !strings.Contains(words, "no-check") && !strings.Contains(words, `""`) && !strings.Contains(words, "#") {
		g.servers = append(g.servers, backend+"/"+name)
	}
	g.line(" server %s %s %s", g.one(name, name, `"`+name+`"`, `'`+name+`'`), g.address(), words)
}

func (g *generator) address() string {
	port := 1 + g.Intn(60000)
	ip := fmt.Sprintf("127.%d.%d.%d", g.Intn(200), g.Intn(200), 1+g.Intn(200))
	choices := []string{
		fmt.Sprintf("%s:%d", ip, port), fmt.Sprintf("%s:%d", ip, port), fmt.Sprintf(`"%s:%d"`, ip, port),
		fmt.Sprintf(`"${OUTER}:%d"`, port), fmt.Sprintf(`${OUTER}:%d`, port), `"$OUTER":"${OUTPORT}"`, `127.0.0.2:${OUTPORT}`,
		fmt.Sprintf(`"${UNSET_VAR-%s}:%d"`, ip, port), fmt.Sprintf("ipv4@%s:%d", ip, port), fmt.Sprintf("::1:%d", port),
		fmt.Sprintf("[::1]:%d", port), fmt.Sprintf("ipv6@[::1]:%d", port), `'${OUTER}:80'`,
	}
	for _, v := range g.vars {
		choices = append(choices, fmt.Sprintf(`"$%s:%d"`, v, port))
	}
	return g.one(choices...)
}

// keywords is what stands behind the address. On a server line check stands
// first and port among them, so that HAProxy finds all it wants.
func (g *generator) keywords(server bool) string {
	all := []string{
		"inter " + g.time(), "fastinter " + g.time(), "downinter " + g.time(), `"inter" "1s"`,
		fmt.Sprintf("rise %d", 1+g.Intn(9)), fmt.Sprintf("fall %d", 1+g.Intn(9)), `fall "3"`, "rise 4x",
		fmt.Sprintf("port %d", 1+g.Intn(60000)), `port "${OUTPORT}"`,
		fmt.Sprintf("addr 127.1.1.%d", 1+g.Intn(250)), fmt.Sprintf("addr 127.1.1.1:%d", 1+g.Intn(60000)), "addr ${OUTER}",
		"agent-check agent-port 9001", "agent-inter " + g.time(), "agent-addr 127.3.3.3", "agent-check agent-port 9002",
		`agent-send "hello\n"`, "agent-send x\\ y", "no-agent-check", "no-check", "agent-port 9003",
		fmt.Sprintf("weight %d", g.Intn(257)), "backup", "no-backup", "disabled", "enabled", "maxconn 30", "slowstart 10s",
		"on-marked-down shutdown-sessions", "on-marked-up shutdown-backup-sessions", "observe layer4", "on-error mark-down",
		"error-limit 4", "source 127.0.0.1", "source 127.0.0.1:1000-2000", "send-proxy", "non-stick", "cookie c1", "minconn 2",
		"pool-max-conn 5", "tfo no-tfo", "verify none", "init-addr none", "no-ssl", "check-send-proxy", `"${SPACED[*]}"`,
		`init-addr "none" # "`, "maxqueue 3",
	}
	var words []string
	if server && g.chance(80) {
		words = append(words, g.one("check", "check", `"check"`))
	} else if g.chance(10) {
		words = append(words, "check")
	}
	for range g.Intn(6) {
		w := g.one(all...)
		words = append(words, w)
		if strings.Contains(w, "#") {
			break
		}
		if g.chance(2) {
			words = append(words, g.one(`""`, `"$NO_SUCH_VARIABLE"`), "fall 99")
		}
	}
	return strings.Join(words, " ")
}

// mistake writes one thing that HAProxy refuses.
func (g *generator) mistake() {
	b, s := g.name("b"), g.name("s")
	g.eol = "\n"
	switch g.Intn(20) {
	case 0:
		g.line("backend %s\n server %s 127.0.0.1:80 check %s", b, s, g.one("inter", "fall", "port", "agent-port", "on-marked-down", "weight 300", "cookie", "slowstart"))
	case 1:
		g.line("backend %s\n server x1 127.0.0.1:80 check\n server %s 127.0.0.1:80 no-agent-check check track x1", b, s)
	case 2:
		g.line("defaults\nbackend %s\n server %s 127.0.0.1:80 agent-check", b, s)
	case 3:
		g.line("backend %s\n server %s 127.0.0.1:80\n server %s 127.0.0.1:81", b, s, s)
	case 4:
		g.line("backend %s\nbackend %s", b, b)
	case 5:
		g.line("backend %s from nobody%d", b, g.n)
	case 6:
		g.line("backend %s\n server %s \"127.0.0.1:80 check", b, s)
	case 7:
		g.line("backend %s\n server %s 127.0.0.1:80 check inter %s", b, s, g.one("x", "0", "3y", "-1", "99999999999s", "1us2 x"))
	case 8:
		g.line("backend %s\n server %s 127.0.0.1:80 %s", b, s, g.one("rise 0", "fall x", "fall -1", "weight -3", "on-error nothing", "on-marked-up x"))
	case 9:
		g.line("defaults\nbackend %s\n server %s 127.0.0.1 check", b, s)
	case 10:
		g.line("%s", g.one(".elif 1", ".else", ".endif", ".if 1", ".if (1", ".if frob(1)", ".if defined", ".if 1 2", ".if version_atleast(2.0", ".bogus"))
	case 11:
		g.line("backend %s\n server %s 127.0.0.1:80 no-check no-agent-check track %s", b, s, g.one("nobody", "nobody/x", s, b+"/nobody"))
	case 12:
		g.line("defaults\n server %s 127.0.0.1:80", s)
	case 13:
		g.line("backend %s\n server a%d 127.0.0.1:80 track b%d\n server b%d 127.0.0.1:81 track a%d", b, g.n, g.n, g.n, g.n)
	case 14:
		g.line("backend %s\n server-template t%d %s 127.0.0.1:80", b, g.n, g.one("0", "5-4", "x-", "-1-3"))
	case 15:
		g.line("backend %s\n %s", b, g.one("frobnicate", "option frobnicate", "server x y:z", "timeout connect", "timeout check 3q", "mode mood", "no retries 3", "server s/1 127.0.0.1:80", "server s1"))
	case 16:
		g.line("backend %s\n server %s 127.0.0.1:80 %s", b, s, g.one("frobnicate", "init-state up", "guid x", "usesrc client", "addr", `"${X`, `\x1`, `"$1"`, `"${X[}"`, `"$.NOPE"`))
	case 17:
		g.out.WriteString("backend " + b + "\n server " + s + " 127.0.0.1:80 check")
	case 18:
		g.out.WriteString("backend " + b + "\n server " + s + " 127.0.0.1:80 check\x00\n mode tcp\n")
	case 19:
		g.line("backend %s\n server %s 127.0.0.1:80 %s", b, s, strings.Repeat("check ", 62))
	}
}

// mutant is a generated text with a few accidents of the editor: lines and words
// that are swapped, doubled, lost, or broken by a stray character.
func (g *generator) mutant() string {
	lines := strings.Split(g.file(), "\n")
	for range 1 + g.Intn(4) {
		i, j := g.Intn(len(lines)), g.Intn(len(lines))
		switch g.Intn(5) {
		case 0:
			lines[i], lines[j] = lines[j], lines[i]
		case 1:
			lines = append(lines[:i:i], append([]string{lines[j]}, lines[i:]...)...)
		case 2:
			words, others := strings.Split(lines[i], " "), strings.Split(lines[j], " ")
			words[g.Intn(len(words))] = g.one(others...)
			lines[i] = strings.Join(words, " ")
		case 3:
			words := strings.Split(lines[i], " ")
			a, b := g.Intn(len(words)), g.Intn(len(words))
			words[a], words[b] = words[b], words[a]
			lines[i] = strings.Join(words[g.Intn(2)%len(words):], " ")
		case 4:
			at := g.Intn(len(lines[i]) + 1)
			stray := g.one(`"`, "'", `\`, "$", "#", " ", "\t", "{", "}", "0", "x", "-", `""`, `"$OUTER"`, "no ", `\ `, `\x20`, "\r")
			lines[i] = lines[i][:at] + stray + lines[i][at:]
		}
	}
	return strings.Join(lines, "\n")
}
