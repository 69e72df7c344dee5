package handshake

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"time"
)

// Version is the version of both documents.
const Version = 1

// Count is a three-valued count: a number, or unknown. The zero value is
// unknown, so that a field nobody filled in can never be taken for "none".
type Count struct {
	N     uint64
	Known bool
}

// Known is the count n.
func Known(n uint64) Count { return Count{N: n, Known: true} }

// Zero says whether the count is known to be 0.
func (c Count) Zero() bool { return c.Known && c.N == 0 }

// Add is the sum, unknown if either side is.
func (c Count) Add(d Count) Count {
	if !c.Known || !d.Known {
		return Count{}
	}
	return Known(c.N + d.N)
}

// String is the number, or "unknown".
func (c Count) String() string {
	if !c.Known {
		return "unknown"
	}
	return strconv.FormatUint(c.N, 10)
}

// MarshalJSON writes the number, or null.
func (c Count) MarshalJSON() ([]byte, error) {
	if !c.Known {
		return []byte("null"), nil
	}
	return strconv.AppendUint(nil, c.N, 10), nil
}

// UnmarshalJSON reads a whole number of at least 0, or null.
func (c *Count) UnmarshalJSON(b []byte) error {
	*c = Count{}
	if string(b) == "null" {
		return nil
	}
	n, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return fmt.Errorf("count %s: want a whole number of at least 0, or null", b)
	}
	*c = Known(n)
	return nil
}

// Time is a time.Time that travels as RFC 3339 in UTC with milliseconds.
// The zero time travels as null.
type Time struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// At wraps t.
func At(t time.Time) Time { return Time{t} }

// String is the form on the wire.
func (t Time) String() string { return t.UTC().Format(timeLayout) }

// MarshalJSON writes the time, or null for the zero time.
func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return []byte(`"` + t.String() + `"`), nil
}

// UnmarshalJSON reads RFC 3339, or null.
func (t *Time) UnmarshalJSON(b []byte) error {
	t.Time = time.Time{}
	if string(b) == "null" {
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("time %s: want an RFC 3339 string, or null", b)
	}
	v, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return fmt.Errorf("time %q: want RFC 3339: %w", s, err)
	}
	t.Time = v.UTC()
	return nil
}

// Millis is a duration that travels as a number of milliseconds.
type Millis time.Duration

// Duration is the same as a time.Duration.
func (m Millis) Duration() time.Duration { return time.Duration(m) }

// MarshalJSON writes milliseconds, with a fraction where there is one.
func (m Millis) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(m)/float64(time.Millisecond), 'f', -1, 64), nil
}

// maxMillis keeps a hostile number from overflowing a time.Duration: one year.
const maxMillis = 365 * 24 * 3600 * 1000

// UnmarshalJSON reads a number of milliseconds in [0, one year].
func (m *Millis) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || !(f >= 0 && f <= maxMillis) {
		return fmt.Errorf("duration %s: want milliseconds in [0, %d]", b, maxMillis)
	}
	*m = Millis(f * float64(time.Millisecond))
	return nil
}

var lbName = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

// CheckLBName refuses a balancer's name that is not 1 to 128 letters, digits
// and ._:- and one that is an address: a balancer without a name goes by that.
func CheckLBName(name string) error {
	if !lbName.MatchString(name) {
		return fmt.Errorf("balancer name %.140q: want 1 to 128 letters, digits and ._:-", name)
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return fmt.Errorf("balancer name %q: want a name, not an address", name)
	}
	return nil
}
