package handshake

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

const goodAck = `{
  "version": 1,
  "drain": {"instance": "pod-1764460800123", "seq": 7},
  "interval_ms": 1000,
  "window_ms": {"best": 2000, "mean": 3000, "worst": 4000},
  "sources": ["203.0.113.211"],
  "haproxy": {"pid": 4711, "start": 1764400000, "present": true},
  "deferred": false,
  "servers": [
    {"backend": "be", "server": "worker1", "admin": 8, "operational": 2, "agent_off": true, "health_off": true,
     "check_in_progress": false, "sessions": 0, "queued": 0, "zero_reads": 2, "old_sessions": null}
  ],
  "a field of a later version": {}
}`

func TestAckWord(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		want           Word
		missing        string
	}{
		{"all of it", "", "", HeldZero, ""},
		{"maint needs no guard", `"admin": 8, "operational": 2, "agent_off": true, "health_off": true`, `"admin": 1, "operational": 0, "agent_off": true, "health_off": false`, HeldZero, ""},
		{"one read is not two", `"zero_reads": 2`, `"zero_reads": 1`, Held, "be/worker1 was read empty once"},
		{"unknown is not zero", `"sessions": 0`, `"sessions": null`, Held, "unknown sessions"},
		{"queued", `"queued": 0`, `"queued": 3`, Held, "3 queued"},
		{"a check that runs may still kill", `"check_in_progress": false`, `"check_in_progress": true`, Held, "be/worker1 has a check in progress"},
		{"no guard", `"health_off": true`, `"health_off": false`, Held, "be/worker1 has its health check on"},
		{"an agent that polls can undo it", `"agent_off": true`, `"agent_off": false`, Watching, "be/worker1 still has its agent check"},
		{"up", `"admin": 8`, `"admin": 0`, Watching, "be/worker1 is not in DRAIN"},
		{"inherited maint is not held", `"admin": 8`, `"admin": 2`, Watching, "be/worker1 is not in DRAIN"},
		{"deferred", `"deferred": false`, `"deferred": true`, Deferred, ""},
		{"stopped", `"present": true`, `"present": false`, Absent, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := DecodeAck([]byte(strings.Replace(goodAck, c.old, c.new, 1)))
			if err != nil {
				t.Fatal(err)
			}
			if a.Word() != c.want || a.Missing() != c.missing {
				t.Errorf("word %q missing %q, want %q %q", a.Word(), a.Missing(), c.want, c.missing)
			}
		})
	}
	if w := (Ack{HAProxy: Process{Present: true}}).Word(); w != Watching {
		t.Errorf("no servers: %q, want watching: all of none proves nothing", w)
	}
}

func TestDecodeAckRefuses(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"no version", `"version": 1,`, ``, `field "version": missing or null`},
		{"another version", `"version": 1`, `"version": 3`, `field "version": 3 is not spoken here, 1 is`},
		{"version 0", `"version": 1`, `"version": 0`, `field "version": 0 is not spoken here, 1 is`},
		{"no seq", `, "seq": 7`, ``, `field "drain.seq": missing or null`},
		{"present null reads as stopped", `"present": true`, `"present": null`, `field "haproxy.present": missing or null`},
		{"no sessions", `"sessions": 0, `, ``, `field "servers[0].sessions": missing or null`},
		{"sessions -1", `"sessions": 0`, `"sessions": -1`, `document: count -1: want a whole number of at least 0, or null`},
		{"sessions text", `"sessions": 0`, `"sessions": "0"`, `document: count "0": want a whole number of at least 0, or null`},
		{"admin text", `"admin": 8`, `"admin": "8"`, `field "servers.admin": cannot be a string`},
		{"servers null", `"servers": [`, `"servers": null, "x": [`, `field "servers": missing or null`},
		{"interval 0", `"interval_ms": 1000`, `"interval_ms": 0`, `field "interval_ms": want more than 0`},
		{"interval for ever", `"interval_ms": 1000`, `"interval_ms": 1e300`, `document: duration 1e300: want milliseconds in [0, 31536000000]`},
		{"source", `203.0.113.211`, `lb1`, `field "sources": "lb1" is not an address`},
		{"half", `"a field of a later version": {}`, `"a`, `document: want a JSON object`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := DecodeAck([]byte(strings.Replace(goodAck, c.old, c.new, 1)))
			var f *FieldError
			if !errors.As(err, &f) || err.Error() != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestStatusRoundTrip(t *testing.T) {
	at := At(time.Date(2026, 11, 30, 0, 0, 0, 123456789, time.FixedZone("x", 3600)))
	in := Status{
		Version: 1, State: "DRAINING", Instance: "i", Seq: 7, Since: at,
		Drain:    &Drain{DrainID: DrainID{"i", 7}, Finish: true},
		Progress: Progress{InFlight: map[string]Count{"envoy": Known(3), "sockets": {}}},
	}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"since":"2026-11-29T23:00:00.123Z"`, `"drain":{"instance":"i","seq":7,"finish":true,"deadline":null}`,
		`"in_flight":{"envoy":3,"sockets":null}`, `"upgrades":null`, `"quiet_since":null`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s\nlacks %s", b, want)
		}
	}
	out, err := DecodeStatus(b)
	if err != nil || out.ETag() != `"i.7"` || out.Progress.InFlight["sockets"].Known {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := DecodeStatus([]byte(`{"status":"ok"}`)); err == nil {
		t.Error("somebody else's JSON was taken for a status")
	}
}

// A name that is an address would be taken for a balancer without a name.
func TestLBName(t *testing.T) {
	for _, name := range []string{"lb1", "lb1:admin.sock", "10.0.0.1:admin.sock", "a_b-c.d", strings.Repeat("x", 128), "cafe:1"} {
		if err := CheckLBName(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "a b", "a/b", "ä", strings.Repeat("x", 129), "10.0.0.1", "::1", "fd00::7", "::ffff:10.0.0.1"} {
		if CheckLBName(name) == nil {
			t.Errorf("%q was taken", name)
		}
	}
}

func FuzzDecodeAck(f *testing.F) {
	f.Add([]byte(goodAck))
	f.Add([]byte(`{"version":1,"drain":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := DecodeAck(b)
		if err == nil {
			a.Word()
			a.Missing()
		}
	})
}
