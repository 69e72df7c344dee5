package haproxy

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// query reads one scope, once or more, on one connection.
type query struct {
	k      *conn
	tables *tables
	level  string
	state  []string // the commands that ask for states
	stat   []string // the commands that ask for statistics; nil until the ids are known
	only   []Name   // nil for every server
}

// newQuery refuses names that would ask for something else.
func newQuery(s Scope, t *tables) (query, error) {
	if len(s.Backends) > 0 && len(s.Servers) > 0 {
		return query{}, fmt.Errorf("scope has backends and servers")
	}
	backends := slices.Clone(s.Backends)
	for _, n := range s.Servers {
		if err := CheckName(n.Server); err != nil {
			return query{}, fmt.Errorf("server %w", err)
		}
		backends = append(backends, n.Backend)
	}
	slices.Sort(backends)
	q := query{tables: t, only: s.Servers}
	for _, b := range slices.Compact(backends) {
		if err := CheckName(b); err != nil {
			return query{}, fmt.Errorf("backend %w", err)
		}
		q.state = append(q.state, "show servers state "+b)
	}
	if len(q.state) == 0 {
		q.state, q.stat = []string{"show servers state"}, []string{"show stat -1 6 -1"}
	}
	return q, nil
}

// lines asks for the worker, the states and the statistics; in this order, so
// that session counts are never older than the admin bits beside them.
func (q *query) lines() []byte {
	lines := []byte("show info\n")
	for _, part := range [][]string{q.state, q.stat} {
		lines = appendLines(lines, part)
	}
	return lines
}

func appendLines(b []byte, lines []string) []byte {
	for _, line := range lines {
		b = append(append(b, line...), '\n')
	}
	return b
}

// statLines asks for statistics by ids. By its name, a frontend of the same
// name would answer for a backend (stats.c, cli_parse_show_stat), so the first
// read of a scope has to learn the ids before it can ask. 2 is backends, 4 is
// servers; a backend's own line says that it is not `disabled`.
func (q *query) statLines() []string {
	lines := []string{} // known, even if none
	seen := map[int]bool{}
	for _, s := range q.tables.servers {
		be := strconv.Itoa(s.BackendID)
		if !seen[s.BackendID] {
			seen[s.BackendID] = true
			if q.only == nil {
				lines = append(lines, "show stat "+be+" 6 -1")
				continue
			}
			lines = append(lines, "show stat "+be+" 2 -1")
		}
		if q.only != nil {
			lines = append(lines, "show stat "+be+" 4 "+strconv.Itoa(s.ID))
		}
	}
	return lines
}

// open switches to prompt mode and reads for the first time.
func (q *query) open() (Read, error) {
	at := time.Now()
	if err := q.k.send(append([]byte("prompt\nshow cli level\n"), q.lines()...)); err != nil {
		return Read{}, err
	}
	if err := q.k.hello(); err != nil {
		return Read{}, err
	}
	level, err := q.k.words("show cli level")
	if err != nil {
		return Read{}, err
	}
	switch level {
	case "admin", "operator", "user":
		q.level = level
	default:
		return Read{}, noTable("show cli level", level)
	}
	return q.replies(at)
}

// replies reads what lines asked for at a time.
func (q *query) replies(at time.Time) (Read, error) {
	r := Read{Level: q.level, At: at}
	var info infoReply
	if err := q.k.table("show info", info.row); err != nil {
		return r, err
	}
	if err := info.end(); err != nil {
		return r, err
	}
	r.Info = info.info
	if err := q.states(); err != nil {
		return r, err
	}
	if err := q.stats(); err != nil {
		return r, err
	}
	var err error
	r.Servers, r.Disabled, err = q.tables.end()
	r.Took = time.Since(at)
	return r, err
}

func (q *query) states() error {
	q.tables.reset(q.only)
	for _, line := range q.state {
		q.tables.begin(line)
		if err := q.k.table(line, q.tables.stateRow); err != nil {
			return err
		}
		if q.tables.state == nil {
			return q.tables.bad("no header")
		}
	}
	for name, found := range q.tables.only {
		if !found {
			return fmt.Errorf("%s: %w", name, ErrNoSuchServer)
		}
	}
	return nil
}

func (q *query) stats() error {
	if q.stat == nil {
		q.stat = q.statLines()
		if err := q.k.send(appendLines(nil, q.stat)); err != nil {
			return err
		}
	}
	for _, line := range q.stat {
		q.tables.begin(line)
		if err := q.k.records(line, q.tables.statRow); err != nil {
			return err
		}
		if q.tables.stat == nil {
			return q.tables.bad("no header")
		}
	}
	return nil
}
