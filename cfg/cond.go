package cfg

import (
	"fmt"
	"strconv"
	"strings"
)

// truth is what a condition comes to.
type truth uint8

const (
	no truth = iota
	yes
	unknown // it asks for something that Options does not say
)

func (t truth) not() truth {
	switch t {
	case no:
		return yes
	case yes:
		return no
	}
	return unknown
}

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// condition evaluates the expression of an .if or .elif as HAProxy's cfgcond.c
// does: terms with !, then &&, then ||. missing names what could not be decided.
type condition struct {
	text    string
	env     map[string]string
	o       Options
	missing string
}

// evaluate returns an error where HAProxy refuses the expression.
func (c *condition) evaluate() (truth, error) {
	if c.text == "" {
		return no, nil
	}
	whole := c.text
	t, err := c.or(0)
	if err != nil {
		return no, err
	}
	c.space()
	if c.text != "" {
		return no, fmt.Errorf("unexpected %q at the end of the conditional expression %q", c.text[:1], whole)
	}
	return t, nil
}

func (c *condition) space() { c.text = strings.TrimLeft(c.text, " \t") }

func (c *condition) or(depth int) (truth, error) {
	t, err := c.and(depth)
	for err == nil {
		c.space()
		if !strings.HasPrefix(c.text, "||") {
			break
		}
		c.text = c.text[2:]
		var right truth
		if right, err = c.and(depth); t != yes && (right == yes || right == unknown) {
			t = right
		}
	}
	return t, err
}

func (c *condition) and(depth int) (truth, error) {
	t, err := c.term(depth)
	for err == nil {
		c.space()
		if !strings.HasPrefix(c.text, "&&") {
			break
		}
		c.text = c.text[2:]
		var right truth
		if right, err = c.term(depth); t != no && (right == no || right == unknown) {
			t = right
		}
	}
	return t, err
}

func (c *condition) term(depth int) (truth, error) {
	c.space()
	negated := false
	for strings.HasPrefix(c.text, "!") {
		negated = !negated
		c.text = c.text[1:]
		c.space()
	}
	t, err := c.plain(depth)
	if negated {
		t = t.not()
	}
	return t, err
}

func (c *condition) plain(depth int) (truth, error) {
	if n := numberLen(c.text); n > 0 {
		v, err := strconv.ParseInt(c.text[:n], 0, 64)
		c.text = c.text[n:]
		return truthOf(v != 0 || err != nil), nil
	}
	if strings.HasPrefix(c.text, "(") {
		if depth > maxNested {
			return no, fmt.Errorf("parentheses more than %d deep", maxNested)
		}
		c.text = c.text[1:]
		t, err := c.or(depth + 1)
		if err != nil {
			return no, err
		}
		if c.space(); !strings.HasPrefix(c.text, ")") {
			return no, fmt.Errorf("expected ')' at %q", c.text)
		}
		c.text = c.text[1:]
		return t, nil
	}
	end := strings.IndexAny(c.text, " (")
	if end < 0 {
		end = len(c.text)
	}
	name := c.text[:end]
	want, ok := predicates[name]
	if !ok {
		return no, fmt.Errorf("unparsable conditional expression %q", c.text)
	}
	c.text = c.text[end:]
	args, err := c.arguments(name)
	if err != nil {
		return no, err
	}
	if len(args) != want {
		return no, fmt.Errorf("%s wants %d arguments", name, want)
	}
	return c.predicate(name, args)
}

// numberLen is how much of s strtol would take, in base 0.
func numberLen(s string) int {
	n := 0
	if n < len(s) && (s[n] == '-' || s[n] == '+') {
		n++
	}
	digits := n
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	if n == digits {
		return 0
	}
	return n
}

// arguments reads (a,"b c") with quotes and backslashes inside, as arg.c
// make_arg_list does.
func (c *condition) arguments(name string) ([]string, error) {
	if !strings.HasPrefix(c.text, "(") {
		return nil, fmt.Errorf("missing arguments of %s", name)
	}
	var args []string
	var arg []byte
	var quote byte
	for i := 1; i < len(c.text); i++ {
		ch := c.text[i]
		switch {
		case ch == '\\' && quote != '\'':
			b, n := unescape(c.text[i:])
			arg = append(arg, b)
			i += n - 1
		case (ch == '"' || ch == '\'') && (quote == 0 || quote == ch):
			quote ^= ch
		case ch == ',' && quote == 0:
			args, arg = append(args, string(arg)), nil
		case ch == ')' && quote == 0:
			c.text = c.text[i+1:]
			return append(args, string(arg)), nil
		default:
			arg = append(arg, ch)
		}
	}
	return nil, fmt.Errorf("unclosed arguments of %s", name)
}

// unescape decodes the few escapes that arguments know; any other backslash is
// itself.
func unescape(s string) (b byte, n int) {
	if len(s) > 1 {
		switch s[1] {
		case '\\', ' ', '"', '\'':
			return s[1], 2
		case 'n':
			return '\n', 2
		case 'r':
			return '\r', 2
		case 't':
			return '\t', 2
		}
	}
	return '\\', 1
}

// predicates is how many arguments each takes: those of 2.6 and what came since.
var predicates = map[string]int{
	"defined": 1, "feature": 1, "streq": 2, "strneq": 2, "strstr": 2, "enabled": 1,
	"version_atleast": 1, "version_before": 1,
	"openssl_version_atleast": 1, "openssl_version_before": 1, "ssllib_name_startswith": 1,
	"awslc_api_atleast": 1, "awslc_api_before": 1,
}

func (c *condition) predicate(name string, args []string) (truth, error) {
	switch name {
	case "defined":
		_, ok := c.env[args[0]]
		return truthOf(ok), nil
	case "streq":
		return truthOf(args[0] == args[1]), nil
	case "strneq":
		return truthOf(args[0] != args[1]), nil
	case "strstr":
		return truthOf(strings.Contains(args[0], args[1])), nil
	case "feature":
		if c.o.Features == "" {
			return c.lacks("the feature list of `haproxy -vv`")
		}
		return truthOf(hasFeature(c.o.Features, args[0])), nil
	case "version_atleast", "version_before":
		if c.o.Version == "" {
			return c.lacks("the version of HAProxy")
		}
		return truthOf((CompareVersions(c.o.Version, args[0]) >= 0) == (name == "version_atleast")), nil
	case "openssl_version_atleast", "openssl_version_before":
		kind, version, _ := strings.Cut(c.o.SSLLibrary, " ")
		if kind != "OpenSSL" {
			return c.lacks("the OpenSSL version of `haproxy -vv`")
		}
		return truthOf((compareSSL(version, args[0]) >= 0) == (name == "openssl_version_atleast")), nil
	case "ssllib_name_startswith":
		if c.o.SSLLibrary == "" {
			return c.lacks("the SSL library of `haproxy -vv`")
		}
		return truthOf(strings.HasPrefix(c.o.SSLLibrary, args[0])), nil
	}
	return c.lacks("what " + name + " asks of a running HAProxy")
}

func (c *condition) lacks(what string) (truth, error) {
	c.missing = what
	return unknown, nil
}

func hasFeature(list, name string) bool {
	for _, f := range strings.Fields(list) {
		if f == "+"+name {
			return true
		}
	}
	return false
}

// compareSSL orders OpenSSL versions: three numbers and, up to 1.1.1, a letter.
func compareSSL(a, b string) int {
	split := func(v string) (p [4]int) {
		for i, s := range strings.SplitN(v, ".", 3) {
			n := numberLen(s)
			p[i], _ = strconv.Atoi(s[:n])
			if i == 2 && n < len(s) && s[n] >= 'a' && s[n] <= 'z' {
				p[3] = int(s[n]-'a') + 1
			}
		}
		return p
	}
	x, y := split(a), split(b)
	for i := range x {
		if x[i] != y[i] {
			return x[i] - y[i]
		}
	}
	return 0
}

// branch is one .if with its .elif and .else.
type branch struct {
	state    branchState
	elseSeen bool
	line     int
}

type branchState uint8

const (
	taking  branchState = iota
	pending             // false so far: a later branch may be taken
	done                // one was taken, or the block stands in one that is not, or it cannot be decided
)

func (r *reader) active() bool {
	return len(r.conds) == 0 || r.conds[len(r.conds)-1].state == taking
}

// directive handles the words that begin with a dot; false if it is none of them
// and may be a name.
func (r *reader) directive(words []string) bool {
	switch words[0] {
	case ".if":
		r.begin()
	case ".elif", ".else", ".endif":
		r.turn(words)
	default:
		if r.active() {
			r.message(words)
		}
	}
	return true
}

func (r *reader) begin() {
	b := branch{state: done, line: r.line}
	if len(r.conds) >= maxNested {
		r.refuse("if-deep", fmt.Sprintf("more than %d nested .if.", maxNested), "Nest less.")
	} else if r.active() {
		b.state = r.decide()
	}
	r.conds = append(r.conds, b)
}

// decide evaluates the condition of the current line.
func (r *reader) decide() branchState {
	c := condition{text: r.split.joined(), env: r.env, o: r.o}
	t, err := c.evaluate()
	switch {
	case err != nil:
		r.refuse("if-wrong", err.Error()+".", "Correct the condition; none of its branches was read.")
		return done
	case t == yes:
		return taking
	case t == no:
		return pending
	}
	r.problem(Finding{
		ID: "if-undecided", Severity: Error,
		Why: "the condition cannot be decided without " + c.missing + ", so none of its branches was read.",
		Fix: "Give --haproxy PATH or --haproxy-version, or ask on the host: haproxy -cc '" + r.split.joined() + "'.",
	})
	return done
}

func (r *reader) turn(words []string) {
	if len(r.conds) == 0 {
		r.refuse("if-lone", words[0]+" without an .if before it.", "Remove it, or add the .if.")
		return
	}
	if len(words) > 1 && words[0] != ".elif" {
		r.refuse("if-words", fmt.Sprintf("%q does not belong behind %s.", words[1], words[0]), "Remove it.")
	}
	b := &r.conds[len(r.conds)-1]
	if words[0] == ".endif" {
		r.conds = r.conds[:len(r.conds)-1]
		return
	}
	if b.elseSeen {
		r.refuse("if-lone", words[0]+" after .else.", "Put it before the .else.")
		return
	}
	switch {
	case b.state != pending:
		b.state = done
	case words[0] == ".else":
		b.state = taking
	default:
		b.state = r.decide()
	}
	b.elseSeen = words[0] == ".else"
}

func (r *reader) message(words []string) {
	switch words[0] {
	case ".notice", ".warning", ".diag":
	case ".alert":
		text := ""
		if len(words) > 1 {
			text = words[1]
		}
		r.refuse("alert", "the file stops here with .alert: "+text+".", "Do what the message says.")
	default:
		r.refuse("unknown-directive", "unknown directive "+words[0]+".", "Remove the line.")
	}
}
