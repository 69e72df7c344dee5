// Package ledger counts what a run did to its requests: each request once, with
// every mask its disruption wears.
//
// It is pure. Its inputs are what the clients saw, what the backends ran and what
// HAProxy logged; its output says for each request what a person would say of it
// (`200`, `502`, `EOF`, `200 twice`, `200 cut`), and which of the masks show it.
//
// No single witness suffices (measured on HAProxy 2.6.12): a request that is killed
// before its response headers on an h2 or a reused h1 connection leaves no line in
// HAProxy's log; an h2 client sends it again by itself, so that a POST runs twice
// behind one clean 200; a chunked stream cut over h2 ends as status 200 without an
// error. Hence three witnesses, joined by the id that every request carries in its
// query string.
package ledger

import (
	"slices"
	"strconv"
	"time"
)

// Mask is one way in which a disruption shows.
type Mask string

// The masks of summary.json. Keys only grow.
const (
	Status5xx          Mask = "5xx"                 // the client got a status of 500 or more
	ConnectionError    Mask = "connection_error"    // the client got no whole response, and knows it
	Truncated          Mask = "truncated"           // the body ended without its end marker
	Twice              Mask = "twice"               // more than one backend execution
	ServerAbort        Mask = "server_abort"        // a backend saw its running handler cancelled
	HAProxyTermination Mask = "haproxy_termination" // logged with a termination code that begins S, D or K
)

// Masks lists all of them in the order of the tables.
func Masks() []Mask {
	return []Mask{Status5xx, ConnectionError, Truncated, Twice, ServerAbort, HAProxyTermination}
}

// Seen is one request as its client saw it.
type Seen struct {
	ID       string    `json:"id"`
	Kind     string    `json:"kind"` // "h1 first", "h2 POST", …
	Status   int       `json:"status"`
	Bytes    int64     `json:"bytes"`
	Whole    bool      `json:"whole"`    // the body came to its end marker, or to its last byte
	Attempts int       `json:"attempts"` // how often the client's library sent it, 1 or more
	Curl     int       `json:"curl"`     // curl's exit code for the same error, 0 for none
	Error    string    `json:"error,omitempty"`
	Begin    time.Time `json:"begin"`
	End      time.Time `json:"end"`
}

// Ran is one execution of a request by a backend's handler. A zero End means that
// the backend never reported one: it was killed with the request in it.
type Ran struct {
	ID        string
	Pod       string
	Begin     time.Time
	End       time.Time
	Cancelled bool
}

// cut says whether the execution did not come to its own end.
func (r Ran) cut() bool { return r.Cancelled || r.End.IsZero() }

// Logged is one line of HAProxy's log. ID is empty where the line has none.
type Logged struct {
	ID          string
	Backend     string
	Server      string
	Status      int
	Termination string // two or four characters, "----" for a clean end
}

// killed says whether HAProxy blames the server or itself (S, D, K), which is
// what a drain can cause. C is the client's, P a deny, L a local answer.
func (l Logged) killed() bool {
	return l.Termination != "" && (l.Termination[0] == 'S' || l.Termination[0] == 'D' || l.Termination[0] == 'K')
}

// Entry is one request in the book.
type Entry struct {
	Seen
	Outcome string   `json:"outcome"`
	Masks   []Mask   `json:"masks"`
	Pods    []string `json:"pods"`   // that ran it, in order of time, one for each execution
	Logged  []string `json:"logged"` // termination codes of its log lines
}

// Disrupted says whether any mask shows.
func (e Entry) Disrupted() bool { return len(e.Masks) > 0 }

// Truth is what the backends saw, and how much of it the accounting found by the
// witnesses together.
type Truth struct {
	Cancelled int `json:"cancelled"` // requests with an execution that was cut off
	Twice     int `json:"twice"`     // requests with more than one execution
	Found     int `json:"found"`     // of both, each once, that stand in the book as disruptions
}

// Book is the accounting of one run.
type Book struct {
	Entries []Entry // in the order of Account's seen, then ids that no client reported
	Stray   int     // log lines that blame the server or HAProxy and carry no id
	Unseen  int     // disrupted requests without any HAProxy log line that blames it
	Terms   map[string]int
}

// Account joins the three witnesses by id.
func Account(seen []Seen, ran []Ran, logged []Logged) Book {
	runs, lines, order := join(seen, ran, logged)
	b := Book{Terms: map[string]int{}}
	for _, l := range logged {
		if l.Termination != "" {
			b.Terms[l.Termination]++
		}
		if l.ID == "" && l.killed() {
			b.Stray++
		}
	}
	for _, s := range order {
		e := enter(s, runs[s.ID], lines[s.ID])
		if e.Disrupted() && !slices.Contains(e.Masks, HAProxyTermination) {
			b.Unseen++
		}
		b.Entries = append(b.Entries, e)
	}
	return b
}

// join sorts the witnesses by id. A request that a backend ran or HAProxy logged
// and of which no client reported anything is still a request.
func join(seen []Seen, ran []Ran, logged []Logged) (map[string][]Ran, map[string][]Logged, []Seen) {
	runs, lines := map[string][]Ran{}, map[string][]Logged{}
	order, known := slices.Clone(seen), map[string]bool{}
	for _, s := range seen {
		known[s.ID] = true
	}
	add := func(id string) {
		if id != "" && !known[id] {
			known[id] = true
			order = append(order, Seen{ID: id, Kind: "unreported", Attempts: 1, Curl: CurlTimeout, Error: "its client reported nothing"})
		}
	}
	for _, r := range ran {
		runs[r.ID] = append(runs[r.ID], r)
		add(r.ID)
	}
	for _, l := range logged {
		lines[l.ID] = append(lines[l.ID], l)
		add(l.ID)
	}
	return runs, lines, order
}

func enter(s Seen, runs []Ran, lines []Logged) Entry {
	e := Entry{Seen: s, Pods: []string{}, Logged: []string{}, Masks: []Mask{}}
	slices.SortStableFunc(runs, func(a, b Ran) int { return a.Begin.Compare(b.Begin) })
	twice, aborted := len(runs) > 1, false
	for _, r := range runs {
		e.Pods = append(e.Pods, r.Pod)
		aborted = aborted || r.cut()
	}
	killed := false
	for _, l := range lines {
		e.Logged = append(e.Logged, l.Termination)
		killed = killed || l.killed()
	}
	for _, m := range []struct {
		mask Mask
		on   bool
	}{
		{Status5xx, s.Status >= 500},
		{ConnectionError, s.Curl != 0},
		{Truncated, s.cutBody()},
		{Twice, twice},
		{ServerAbort, aborted},
		{HAProxyTermination, killed},
	} {
		if m.on {
			e.Masks = append(e.Masks, m.mask)
		}
	}
	e.Outcome = outcome(s, twice)
	return e
}

// cutBody: a good status whose body did not come to its end.
func (s Seen) cutBody() bool { return s.Status != 0 && s.Status < 500 && !s.Whole }

// outcome is the request in the words of the table: what the client saw, and what
// it could not see behind it.
func outcome(s Seen, twice bool) string {
	word := strconv.Itoa(s.Status)
	switch {
	case s.Status == 0 && s.Curl == CurlEmpty:
		word = "EOF"
	case s.Status == 0 && s.Curl == CurlTimeout:
		word = "no answer"
	case s.Status == 0:
		word = "error " + strconv.Itoa(s.Curl)
	case s.cutBody():
		word += " cut"
	}
	if twice {
		word += " twice"
	}
	return word
}

// Disruptions is the number of disrupted requests, each once.
func (b Book) Disruptions() int {
	n := 0
	for _, e := range b.Entries {
		if e.Disrupted() {
			n++
		}
	}
	return n
}

// Masks counts the disruptions by mask. One request may wear several.
func (b Book) Masks() map[Mask]int {
	n := map[Mask]int{}
	for _, m := range Masks() {
		n[m] = 0
	}
	for _, e := range b.Entries {
		for _, m := range e.Masks {
			n[m]++
		}
	}
	return n
}

// Truth counts the backends' side straight from their reports, and looks each of
// its requests up in the book.
func (b Book) Truth(ran []Ran) Truth {
	var t Truth
	times, cut := map[string]int{}, map[string]bool{}
	for _, r := range ran {
		times[r.ID]++
		cut[r.ID] = cut[r.ID] || r.cut()
	}
	booked := map[string]bool{}
	for _, e := range b.Entries {
		booked[e.ID] = e.Disrupted()
	}
	for id, n := range times {
		if cut[id] {
			t.Cancelled++
		}
		if n > 1 {
			t.Twice++
		}
		if (cut[id] || n > 1) && booked[id] {
			t.Found++
		}
	}
	return t
}

// Kind is the first entry of that kind.
func (b Book) Kind(kind string) (Entry, bool) {
	i := slices.IndexFunc(b.Entries, func(e Entry) bool { return e.Kind == kind })
	if i < 0 {
		return Entry{}, false
	}
	return b.Entries[i], true
}
