package ledger

import (
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// curl's exit codes for what a client saw. They name the errors because every SRE
// knows them; the clients here are Go's.
const (
	CurlConnect  = 7  // nobody listens
	CurlPartial  = 18 // the body ended early
	CurlTimeout  = 28 // no answer in time
	CurlTLS      = 35
	CurlEmpty    = 52 // closed without a byte
	CurlSend     = 55
	CurlReceive  = 56 // reset while reading
	CurlH2Stream = 92 // RST_STREAM, or a stream that ended as it must not
)

// Curl is the exit code that stands for err; headers says whether the response's
// headers had come. It is 0 for nil.
func Curl(err error, headers bool) int {
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &timeout) && timeout.Timeout():
		return CurlTimeout
	case errors.Is(err, syscall.ECONNREFUSED):
		return CurlConnect
	case errors.Is(err, syscall.EPIPE):
		return CurlSend
	case errors.Is(err, syscall.ECONNRESET):
		return CurlReceive
	case strings.Contains(err.Error(), "stream error"), strings.Contains(err.Error(), "GOAWAY"):
		// net/http keeps its http2 error types to itself; their text is stable.
		return CurlH2Stream
	case strings.Contains(err.Error(), "tls: "):
		return CurlTLS
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		if headers {
			return CurlPartial
		}
		return CurlEmpty
	}
	return CurlReceive
}

// httpLine is HAProxy's `option httplog` from the accept date on (configuration.txt
// 8.2.3): frontend, backend/server, timers, status, bytes, two captures, termination
// state, connection counts, queues, request.
var httpLine = regexp.MustCompile(`\] \S+ ([^ /]+)/(\S+) \S+ (-?\d+) \d+ \S+ \S+ ([A-Za-z-]{4}) `)

// tcpLine is `option tcplog` (8.2.2): no status, two characters of state.
var tcpLine = regexp.MustCompile(`\] \S+ ([^ /]+)/(\S+) \S+ \d+ ([A-Za-z-]{2}) `)

// id is where every request of ours carries its name.
var id = regexp.MustCompile(`[?&]id=([A-Za-z0-9._-]+)`)

// ParseLine reads one line of HAProxy's log; false for one that is no request.
func ParseLine(line string) (Logged, bool) {
	var l Logged
	if m := httpLine.FindStringSubmatch(line); m != nil {
		l = Logged{Backend: m[1], Server: m[2], Termination: m[4]}
		l.Status, _ = strconv.Atoi(m[3]) // the expression lets only digits through
	} else if m := tcpLine.FindStringSubmatch(line); m != nil {
		l = Logged{Backend: m[1], Server: m[2], Termination: m[3]}
	} else {
		return l, false
	}
	if m := id.FindStringSubmatch(line); m != nil {
		l.ID = m[1]
	}
	return l, true
}

// ParseLog reads a whole log.
func ParseLog(text string) []Logged {
	var out []Logged
	for line := range strings.Lines(text) {
		if l, ok := ParseLine(line); ok {
			out = append(out, l)
		}
	}
	return out
}

// Report is one line of a backend's log: a request that began or ended.
type Report struct {
	Event    string    `json:"event"` // "begin", "request"
	TS       time.Time `json:"ts"`
	ID       string    `json:"id"`
	Hostname string    `json:"hostname"`
	Status   int       `json:"status"` // 499 where the client went away
	Begin    time.Time `json:"begin"`
}

// StatusCancelled is what a backend logs for a handler whose client went away.
const StatusCancelled = 499

// Executions joins a backend's begin lines with its request lines. A begin without
// an end is an execution with a zero End. Lines that are no reports are left out.
func Executions(lines []string) []Ran {
	var out []Ran
	open := map[string][]int{} // by id and pod, indices of executions that have not ended
	for _, line := range lines {
		var r Report
		if json.Unmarshal([]byte(line), &r) != nil || r.ID == "" {
			continue
		}
		key := r.Hostname + "\x00" + r.ID
		switch r.Event {
		case "begin":
			open[key] = append(open[key], len(out))
			out = append(out, Ran{ID: r.ID, Pod: r.Hostname, Begin: r.TS})
		case "request":
			if len(open[key]) == 0 {
				continue
			}
			i := open[key][0]
			open[key] = open[key][1:]
			out[i].End, out[i].Cancelled = r.TS, r.Status == StatusCancelled
		}
	}
	return out
}
