package haproxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"
)

// recorded is a peer whose every word is known beforehand.
type recorded struct {
	net.Conn
	r io.Reader
}

func (r *recorded) Read(b []byte) (int, error)     { return r.r.Read(b) }
func (*recorded) Write(b []byte) (int, error)      { return len(b), nil }
func (*recorded) SetReadDeadline(time.Time) error  { return nil }
func (*recorded) SetWriteDeadline(time.Time) error { return nil }

// hear is a read of all from what a peer says, whatever it is.
func hear(says []byte) (Read, error) {
	k := &conn{ctx: context.Background(), nc: &recorded{r: bytes.NewReader(says)}, left: maxTurn, timeout: time.Hour, end: time.Now().Add(time.Hour)}
	k.r = bufio.NewReaderSize((*wire)(k), maxLine)
	q, err := newQuery(Scope{}, &tables{})
	q.k = k
	var r Read
	if err == nil {
		r, err = q.open()
	}
	if err == nil {
		err = k.send(nil) // nothing may be left
	}
	return r, err
}

// Whatever the peer says, the read ends, and it is whole or an error of one of
// the kinds a caller knows.
func FuzzRead(f *testing.F) {
	whole := "\n> admin\n\n> " + fakeInfo + "\n> " + fakeState + "\n> " + fakeStat + "\n> "
	for _, cut := range []int{0, 1, 3, 20, 100, 200, 600, len(whole) - 1, len(whole)} {
		f.Add([]byte(whole[:min(cut, len(whole))]))
	}
	f.Add([]byte(strings.Replace(whole, ",OK,", ",\"O\"\"K\n\n> \",", 1)))
	f.Add([]byte("\n> Permission denied\n\n> "))
	f.Fuzz(func(t *testing.T, says []byte) {
		r, err := hear(says)
		if err != nil {
			for _, kind := range []error{ErrTruncated, ErrProtocol, ErrTorn, ErrPermission, ErrUnknownCommand, ErrNoSuchBackend, ErrNoSuchServer} {
				if errors.Is(err, kind) {
					return
				}
			}
			t.Fatalf("error of no kind: %v", err)
		}
		if r.Info.Version == "" || r.Level == "" {
			t.Errorf("%+v", r)
		}
		for _, s := range r.Servers {
			if s.Name == "" && s.Backend == "" {
				t.Errorf("%+v", s)
			}
		}
	})
}

// Our CSV is encoding/csv's, where that accepts a record.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{"", ",", "a,b", `"a""b",c`, "\"a\nb\",", `a"b`, `"a"b`, `"`, `""`, `"",""`, " a, b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for i, c := range s {
			// A line end outside of quotes is never in a record; \r\n is
			// changed by encoding/csv.
			if c == '\r' || c == '\n' && strings.Count(s[:i], `"`)%2 == 0 {
				return
			}
		}
		cells, ok := split(nil, []byte(s))
		r := csv.NewReader(strings.NewReader(s))
		want, err := r.Read()
		if err != nil {
			return
		}
		got := make([]string, len(cells))
		for i, c := range cells {
			got[i] = string(c)
		}
		if !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %q, want %q", s, got, want)
		}
	})
}

// A name that is taken cannot change the line it stands in.
func FuzzName(f *testing.F) {
	for _, s := range []string{"s1", "s1\nset", "s;1", "#1", "a/b", "ß", "s 1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		line := SetState("be", s, Maint).String()
		if line == "" {
			return
		}
		if strings.ContainsAny(line[len("set server be/"):], "\n\r;/#<\\\"' \x00") && len(strings.Fields(line)) != 5 {
			t.Errorf("%q became %q", s, line)
		}
		if line != "set server be/"+s+" state maint" {
			t.Errorf("%q became %q", s, line)
		}
	})
}

func FuzzParseSocket(f *testing.F) {
	for _, s := range []string{"/run/a", "unix:/a", "tcp:h:1", "tcp:[::1]:1", "./x", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := ParseSocket(s)
		if err != nil {
			return
		}
		if again, err := ParseSocket(k.String()); err != nil || again != k {
			t.Errorf("%q: %+v, then %+v, %v", s, k, again, err)
		}
	})
}
