package haproxy

import (
	"bytes"
	"fmt"
	"slices"
)

// tables joins `show servers state` and `show stat` into servers. It is reused
// from read to read of one socket: what it keeps is texts and room.
type tables struct {
	asked   string // the command that is being answered
	texts   map[string]string
	servers []Server
	joined  []bool          // per server: its statistics were seen
	only    map[Name]bool   // the wanted ones, true once their state was seen; nil for all
	state   []column        // per field of the reply being read; nil = not wanted
	stat    []column        // the same for statistics
	px, sv  int             // fields pxname and svname …
	kind    int             // … and type
	live    map[string]bool // backends with statistics of their own
	cells   [][]byte        // of one record
	next    int             // the server whose statistics should come next
	index   map[string]int  // backend/server → place, made when another comes
}

const (
	maxTexts = 1 << 16 // texts kept from read to read …
	maxText  = 64      // … if no longer than this: names, addresses, states
)

// text is b as a string, the same one for the same text.
func (p *tables) text(b []byte) string {
	if len(b) > maxText {
		return string(b)
	}
	if s, ok := p.texts[string(b)]; ok {
		return s
	}
	if p.texts == nil || len(p.texts) >= maxTexts {
		p.texts = map[string]string{}
	}
	s := string(b)
	p.texts[s] = s
	return s
}

// reset begins a read, of only some servers if any are named. The servers of
// the last read belong to its reader.
func (p *tables) reset(only []Name) {
	*p = tables{
		texts: p.texts, servers: make([]Server, 0, len(p.servers)), joined: p.joined[:0], cells: p.cells,
		live: map[string]bool{},
	}
	if len(only) > 0 {
		p.only = make(map[Name]bool, len(only))
		for _, n := range only {
			p.only[n] = false
		}
	}
}

// begin expects the reply to a command.
func (p *tables) begin(line string) { p.asked, p.state, p.stat = line, nil, nil }

func (p *tables) bad(format string, a ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrProtocol, p.asked, fmt.Sprintf(format, a...))
}

// stateRow takes a line of `show servers state`.
func (p *tables) stateRow(line []byte) error {
	if p.state == nil {
		return p.stateHeader(line)
	}
	if len(p.servers) == cap(p.servers) {
		p.servers = slices.Grow(p.servers, len(p.servers)+16) // append alone copies a large table five times
	}
	p.servers = append(p.servers, Server{})
	s := &p.servers[len(p.servers)-1]
	n := 0
	for more := true; more && n < len(p.state); n++ {
		var cell []byte
		cell, line, more = bytes.Cut(line, space)
		if c := p.state[n]; c != nil && !c(p, s, cell) {
			return p.bad("field %d is %.80q", n+1, cell)
		}
	}
	if n != len(p.state) || len(line) != 0 {
		return p.bad("a line has %d fields and its header %d",
			n+bytes.Count(line, space)+min(1, len(line)), len(p.state))
	}
	if p.only != nil {
		name := Name{s.Backend, s.Name}
		if _, wanted := p.only[name]; !wanted {
			p.servers = p.servers[:len(p.servers)-1]
			return nil
		}
		p.only[name] = true
	}
	p.joined = append(p.joined, false)
	return nil
}

// stateHeader takes what comes before the servers: the version of the format,
// 1 from 1.6 to today, and the names of the fields.
func (p *tables) stateHeader(line []byte) error {
	if string(line) == "1" {
		return nil
	}
	names, ok := bytes.CutPrefix(line, headerMark)
	if !ok {
		return noTable(p.asked, string(line))
	}
	found := 0
	for name := range bytes.SplitSeq(names, space) {
		c := stateColumns[string(name)]
		if p.state = append(p.state, c); c != nil {
			found++
		}
	}
	if found != len(stateColumns) {
		return p.bad("%d of the %d fields needed", found, len(stateColumns))
	}
	return nil
}

var (
	space      = []byte{' '}
	headerMark = []byte("# ")
)

// statRow takes a record of `show stat`.
func (p *tables) statRow(rec []byte) error {
	if len(rec) == 0 {
		return nil // before the prompt stands one more empty line
	}
	if p.stat == nil {
		return p.statHeader(rec)
	}
	cells, ok := split(p.cells[:0], rec)
	p.cells = cells
	if !ok || len(cells) != len(p.stat) {
		return p.bad("a record has %d fields and its header %d", len(cells), len(p.stat))
	}
	if string(cells[p.kind]) == kindBackend {
		p.live[p.text(cells[p.px])] = true
		return nil
	}
	i := p.find(cells[p.px], cells[p.sv])
	if i < 0 {
		return fmt.Errorf("%w: %.80s/%.80s has statistics and no state", ErrTorn, cells[p.px], cells[p.sv])
	}
	if p.joined[i] {
		return p.bad("%.80s/%.80s twice", cells[p.px], cells[p.sv])
	}
	p.joined[i] = true
	for n, c := range p.stat {
		if c != nil && !c(p, &p.servers[i], cells[n]) {
			return p.bad("field %d of %.80s/%.80s is %.80q",
				n+1, cells[p.px], cells[p.sv], cells[n])
		}
	}
	return nil
}

// kindBackend is what field type says of a backend's own line (stats-t.h,
// STATS_TYPE_BE).
const kindBackend = "1"

func (p *tables) statHeader(rec []byte) error {
	names, ok := bytes.CutPrefix(rec, headerMark)
	if !ok {
		return noTable(p.asked, string(rec))
	}
	p.px, p.sv, p.kind = -1, -1, -1
	needed := 0
	for name := range bytes.SplitSeq(names, comma) {
		switch string(name) {
		case "pxname":
			p.px = len(p.stat)
		case "svname":
			p.sv = len(p.stat)
		case "type":
			p.kind = len(p.stat)
		case "scur", "qcur", "status", "weight":
			needed++
		}
		p.stat = append(p.stat, statColumns[string(name)])
	}
	if p.px < 0 || p.sv < 0 || p.kind < 0 || needed != 4 {
		return p.bad("pxname, svname, type, scur, qcur, status or weight is missing")
	}
	return nil
}

var comma = []byte{','}

// find is the place of a server, -1 if it has no state. HAProxy lists both
// tables in the same order.
func (p *tables) find(backend, name []byte) int {
	is := func(i int) bool {
		return i < len(p.servers) && p.servers[i].Name == string(name) && p.servers[i].Backend == string(backend)
	}
	i := p.next
	if !is(i) {
		if p.index == nil {
			p.index = make(map[string]int, len(p.servers))
			for i := range p.servers {
				p.index[p.servers[i].Backend+"/"+p.servers[i].Name] = i
			}
		}
		var ok bool
		if i, ok = p.index[string(backend)+"/"+string(name)]; !ok {
			return -1
		}
	}
	p.next = i + 1
	return i
}

// split appends the cells of a CSV record, unquoted; false if its quotes do
// not match.
func split(cells [][]byte, rec []byte) ([][]byte, bool) {
	for {
		if len(rec) > 0 && rec[0] == '"' {
			cell, rest, ok := unquote(rec)
			if !ok || len(rest) > 0 && rest[0] != ',' {
				return cells, false
			}
			if cells = append(cells, cell); len(rest) == 0 {
				return cells, true
			}
			rec = rest[1:]
			continue
		}
		i := bytes.IndexByte(rec, ',')
		if i < 0 {
			return append(cells, rec), true
		}
		cells = append(cells, rec[:i])
		rec = rec[i+1:]
	}
}

// unquote takes a quoted cell off the front of rec; quotes inside are doubled.
func unquote(rec []byte) (cell, rest []byte, ok bool) {
	doubled := false
	for i := 1; i < len(rec); i++ {
		switch {
		case rec[i] != '"':
		case i+1 < len(rec) && rec[i+1] == '"':
			doubled = true
			i++
		default:
			if cell = rec[1:i]; doubled {
				cell = bytes.ReplaceAll(cell, []byte(`""`), quote)
			}
			return cell, rec[i+1:], true
		}
	}
	return nil, nil, false
}

// end gives the servers, and the backends that have no statistics of their own:
// these say `disabled` (stats.c leaves them out, proxy.c does not). A server
// without statistics in any other backend came or went in between.
func (p *tables) end() (servers []Server, disabled []string, err error) {
	servers = p.servers[:0]
	for i := range p.servers {
		s := &p.servers[i]
		switch {
		case p.joined[i]:
			servers = append(servers, *s)
		case p.live[s.Backend]:
			return nil, nil, fmt.Errorf("%w: %s/%s has a state and no statistics", ErrTorn, s.Backend, s.Name)
		case len(disabled) == 0 || disabled[len(disabled)-1] != s.Backend:
			disabled = append(disabled, s.Backend)
		}
	}
	return servers, disabled, nil
}

// number reads a decimal number; false for anything else.
func number(b []byte) (int64, bool) {
	neg := len(b) > 0 && b[0] == '-'
	if neg {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	if neg {
		n = -n
	}
	return n, true
}
