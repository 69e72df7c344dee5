package haproxy

import (
	"strconv"
	"time"
)

// query reads one scope, once or more, on one connection.
type query struct {
	k        *conn
	tables   *tables
	backends []string // each once; none for all
	ids      []int    // of the backends that have servers, once they are known
	level    string
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

// again reads a further time.
func (q *query) again() (Read, error) {
	at := time.Now()
	if err := q.k.send(q.lines()); err != nil {
		return Read{}, err
	}
	return q.replies(at)
}

// lines asks for the worker, the states and the statistics; in this order, so
// that session counts are never older than the admin bits beside them.
//
// Statistics of a backend are asked for by its id. By its name, a frontend of
// the same name would answer (stats.c, cli_parse_show_stat), so the first read
// of some backends has to learn their ids before it can ask.
func (q *query) lines() []byte {
	lines := []byte("show info\n")
	for _, line := range q.stateLines() {
		lines = append(append(lines, line...), '\n')
	}
	return append(lines, q.statLines()...)
}

func (q *query) stateLines() []string {
	if len(q.backends) == 0 {
		return []string{"show servers state"}
	}
	var lines []string
	for _, b := range q.backends {
		lines = append(lines, "show servers state "+b)
	}
	return lines
}

// statLines asks for backends and servers: 6.
func (q *query) statLines() []byte {
	var lines []byte
	for _, id := range q.ids {
		lines = append(append(lines, statLine(id)...), '\n')
	}
	return lines
}

func statLine(id int) string { return "show stat " + strconv.Itoa(id) + " 6 -1" }

// replies reads what lines asked for.
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
	q.tables.reset()
	for _, line := range q.stateLines() {
		q.tables.begin(line)
		if err := q.k.table(line, q.tables.stateRow); err != nil {
			return r, err
		}
		if q.tables.state == nil {
			return r, q.tables.bad("no header")
		}
	}
	if err := q.stats(); err != nil {
		return r, err
	}
	var err error
	r.Servers, r.Disabled, err = q.tables.end()
	r.Took = time.Since(at)
	return r, err
}

func (q *query) stats() error {
	if q.ids == nil {
		q.ids = q.tables.ids()
		if err := q.k.send(q.statLines()); err != nil {
			return err
		}
	}
	for _, id := range q.ids {
		line := statLine(id)
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
