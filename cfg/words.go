package cfg

import (
	"fmt"
	"strconv"
	"strings"
)

// splitter cuts a line into words as HAProxy's tools.c parse_line does with the
// options that readcfgfile gives it.
type splitter struct {
	env  map[string]string
	out  []byte
	ends []int // where each word ends in out

	// What ${.FILE}, ${.LINE} and ${.SECTION} are.
	file, section string
	line          int
}

// split cuts a line without its newline. problem is what HAProxy says when it
// refuses the line, which has no words then. empty is the number of the word
// that is an empty string with others behind it, 0 if none: there HAProxy's
// keyword loops end the line, silently.
func (s *splitter) split(line string) (words []string, empty int, problem string) {
	line = strings.TrimLeft(line, " \t\v\f\r")
	if line == "" || line[0] == '#' {
		return nil, 0, ""
	}
	s.out, s.ends = s.out[:0], s.ends[:0]
	if problem = s.scan(line); problem != "" {
		return nil, 0, problem
	}
	s.ends = append(s.ends, len(s.out))
	if len(s.ends) > maxWords {
		return nil, 0, fmt.Sprintf("more than %d words", maxWords)
	}
	all, from := string(s.out), 0
	words = make([]string, 0, len(s.ends))
	for i, end := range s.ends {
		if from == end {
			if i < len(s.ends)-1 {
				empty = i + 1
			}
			break
		}
		words = append(words, all[from:end])
		from = end
	}
	return words, empty, ""
}

// joined is the whole line from the second word on, words apart by one space:
// what .if and .elif evaluate. It is only valid right after split.
func (s *splitter) joined() string {
	var b strings.Builder
	from := 0
	for i, end := range s.ends {
		if i > 1 {
			b.WriteByte(' ')
		}
		if i > 0 {
			b.Write(s.out[from:end])
		}
		from = end
	}
	return b.String()
}

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

func (s *splitter) scan(in string) (problem string) {
	var quote byte // the open quote, 0 outside
	for i := 0; i < len(in); {
		if len(s.out) > maxLine {
			return fmt.Sprintf("longer than %d bytes after expansion", maxLine)
		}
		switch c := in[i]; {
		case c == '\n' || c == '\r':
			i = len(in)
		case c == '#' && quote == 0:
			return ""
		case (c == '"' || c == '\'') && (quote == 0 || quote == c):
			quote ^= c
			i++
		case c == '\\' && quote != '\'':
			b, n := escape(in[i:], quote)
			if n == 0 {
				return "truncated or invalid hexadecimal sequence"
			}
			s.out = append(s.out, b)
			i += n
		case isSpace(c) && quote == 0:
			for i < len(in) && isSpace(in[i]) {
				i++
			}
			s.ends = append(s.ends, len(s.out))
		case c == '$' && quote == '"':
			n, problem := s.variable(in[i:])
			if problem != "" {
				return problem
			}
			i += n
		default:
			s.out = append(s.out, c)
			i++
		}
	}
	if quote != 0 {
		return "unmatched quote"
	}
	return ""
}

// escape decodes what a backslash begins and says how many bytes it took; 0 for
// a bad \x. Sequences that mean nothing here are left as they are.
func escape(in string, quote byte) (byte, int) {
	if len(in) == 1 {
		return '\\', 1
	}
	switch c := in[1]; {
	case c == ' ' || c == '\\' || c == '#' || c == '\'' || c == '"' || c == '$' && quote == '"':
		return c, 2
	case c == 't':
		return '\t', 2
	case c == 'n':
		return '\n', 2
	case c == 'r':
		return '\r', 2
	case c == 'x':
		if len(in) < 4 {
			return 0, 0
		}
		v, err := strconv.ParseUint(in[2:4], 16, 8)
		if err != nil {
			return 0, 0
		}
		return byte(v), 4
	}
	return '\\', 1
}

func isNameByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// badName is what a name of a section or server must not have, "" if it is good
// (tools.c invalid_char).
func badName(name string) string {
	if name == "" {
		return "no character"
	}
	for i := 0; i < len(name); i++ {
		if c := name[i]; !isNameByte(c) && c != '.' && c != ':' && c != '-' {
			return fmt.Sprintf("the character %q", c)
		}
	}
	return ""
}

// variable expands what a dollar begins, and says how many bytes it took.
func (s *splitter) variable(in string) (n int, problem string) {
	n = 1
	brace := n < len(in) && in[n] == '{'
	if brace {
		n++
	}
	start := n
	if n < len(in) && in[n] == '.' {
		n++
	}
	for n < len(in) && isNameByte(in[n]) {
		n++
	}
	name := in[start:n]
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		return 0, "forbidden first character in the name of an environment variable"
	}
	value, ok := s.lookup(name)
	if !ok && name[0] == '.' {
		return 0, fmt.Sprintf("unknown pseudo-variable %s", name)
	}
	apart := false
	if brace && n < len(in) && in[n] == '[' {
		if !strings.HasPrefix(in[n:], "[*]") {
			return 0, "truncated or invalid word expansion sequence"
		}
		apart, n = true, n+3
	}
	if brace {
		end := strings.IndexByte(in[n:], '}')
		if end < 0 || end > 0 && in[n] != '-' {
			return 0, "unmatched brace in the name of an environment variable"
		}
		if end > 0 && !ok {
			value = in[n+1 : n+end]
		}
		n += end + 1
	}
	s.emit(value, apart)
	return n, ""
}

// emit writes a value; apart makes its spaces end words, as ${NAME[*]} asks.
func (s *splitter) emit(value string, apart bool) {
	for i := 0; i < len(value); i++ {
		if !apart || !isSpace(value[i]) {
			s.out = append(s.out, value[i])
			continue
		}
		s.ends = append(s.ends, len(s.out))
		for i+1 < len(value) && isSpace(value[i+1]) {
			i++
		}
	}
}

func (s *splitter) lookup(name string) (string, bool) {
	switch name {
	case ".LINE":
		return strconv.Itoa(s.line), true
	case ".FILE":
		return s.file, true
	case ".SECTION":
		return s.section, true
	}
	v, ok := s.env[name]
	return v, ok
}

// expandAddress expands the variables of an address, which HAProxy does a second
// time and whatever the quotes were (tools.c str2sa_range, env_expand). An unset
// variable is nothing; there are no defaults.
func expandAddress(in string, env map[string]string) string {
	if strings.IndexByte(in, '$') < 0 {
		return in
	}
	var b strings.Builder
	for i := 0; i < len(in) && b.Len() <= maxLine; {
		if in[i] != '$' {
			b.WriteByte(in[i])
			i++
			continue
		}
		i++
		brace := i < len(in) && in[i] == '{'
		if brace {
			i++
		}
		start := i
		for i < len(in) && isNameByte(in[i]) {
			i++
		}
		b.WriteString(env[in[start:i]])
		if brace && i < len(in) && in[i] == '}' {
			i++
		}
	}
	return b.String()
}

// address is what tools.c str2sa_range makes of ADDR[:PORT].
type address struct {
	network string // ip, or unix, abns, fd and the like
	host    string // without brackets; of other networks the text as it stands
	port    int
	// relative: no port, or one that counts from the client's (+N, -N).
	relative bool
	problem  string
}

// prefixes are the families that may stand before an address, and whether an IP
// address follows.
var prefixes = []struct {
	text string
	ip   bool
}{
	{"ipv4@", true},
	{"ipv6@", true},
	{"ip@", true},
	{"tcp4@", true},
	{"tcp6@", true},
	{"tcp@", true},
	{"mptcp4@", true},
	{"mptcp6@", true},
	{"mptcp@", true},
	{"udp4@", true},
	{"udp6@", true},
	{"udp@", true},
	{"quic4@", true},
	{"quic6@", true},
	{"unix@", false},
	{"uxst@", false},
	{"uxdg@", false},
	{"abns@", false},
	{"abnsz@", false},
	{"fd@", false},
	{"sockpair@", false},
	{"rhttp@", false},
}

func parseAddress(text string, env map[string]string) address {
	s := expandAddress(text, env)
	if s == "" {
		return address{problem: fmt.Sprintf("%q is an empty address (environment variable missing?)", text)}
	}
	s = strings.TrimPrefix(strings.TrimPrefix(s, "stream+"), "dgram+")
	if s != "" && s[0] == '/' {
		return address{network: "unix", host: s}
	}
	if strings.IndexByte(s, '@') > 0 {
		for _, p := range prefixes {
			if !strings.HasPrefix(s, p.text) {
				continue
			}
			if !p.ip {
				return address{network: p.text[:len(p.text)-1], host: s}
			}
			s = s[len(p.text):]
			break
		}
	}
	return parseHostPort(s, text)
}

func parseHostPort(s, text string) address {
	host, port := s, ""
	if i := strings.LastIndexAny(s, "]:"); i >= 0 && s[i] == ':' {
		host, port = s[:i], s[i+1:]
	}
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	if host == "" || host == "*" {
		host = "0.0.0.0"
	}
	a := address{network: "ip", host: host}
	switch {
	case port == "":
		a.relative = true
	case port[0] == '+' || port[0] == '-':
		a.relative = true
	case port[0] >= '0' && port[0] <= '9':
		if a.port = atoi(port); a.port > 65535 || strings.IndexByte(port, '-') > 0 {
			a.problem = fmt.Sprintf("%q has an invalid port", text)
		}
		a.relative = a.port == 0
	default:
		a.problem = fmt.Sprintf("%q has an invalid character %q in its port", text, port[:1])
	}
	return a
}

// sourceAddress is the address of a `source`, without its port or range; empty
// for any.
func sourceAddress(text string, env map[string]string) string {
	s := expandAddress(text, env)
	if i := strings.LastIndexAny(s, "]:"); i >= 0 && s[i] == ':' {
		s = s[:i]
	}
	s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	if s == "*" || s == "0.0.0.0" || s == "::" {
		return ""
	}
	return s
}
