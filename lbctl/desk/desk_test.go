package desk

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/keeper"
)

func TestState(t *testing.T) {
	for want, s := range map[string]haproxy.Server{
		"UP":                 {Operational: haproxy.OpRunning, UserWeight: 1, Status: "UP 1/2"},
		"UP (weight 0)":      {Operational: haproxy.OpRunning},
		"DOWN":               {UserWeight: 1},
		"NOLB":               {Operational: haproxy.OpStopping, UserWeight: 1},
		"DRAIN":              {Admin: haproxy.ForcedDrain, Operational: haproxy.OpRunning, Status: "DRAIN (agent)"},
		"DRAIN (down)":       {Admin: haproxy.ForcedDrain, Status: "DOWN"},
		"DRAIN (via web/s1)": {Admin: haproxy.InheritedDrain, Operational: haproxy.OpRunning, Tracks: "web/s1"},
		"MAINT":              {Admin: haproxy.ForcedMaint | haproxy.ConfigMaint},
		"MAINT (via web/s1)": {Admin: haproxy.InheritedMaint, Tracks: "web/s1"},
		"MAINT (resolution)": {Admin: haproxy.ResolutionMaint},
	} {
		if got := State(s); got != want {
			t.Errorf("%+v is %q, want %q", s, got, want)
		}
	}
}

func keys(pairs ...string) (all []keeper.Key) {
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, keeper.Key{Backend: pairs[i], Server: pairs[i+1]})
	}
	return all
}

// TestTargets is the canonical host: one address is the gateway's pod and the
// only API server.
func TestTargets(t *testing.T) {
	servers := []haproxy.Server{
		{Backend: "http", Name: "master1", Addr: "203.0.113.212", Port: 30080},
		{Backend: "grpc", Name: "worker1", Addr: "203.0.113.213", Port: 31443},
		{Backend: "http", Name: "worker1", Addr: "203.0.113.213", Port: 30080},
		{Backend: "kube", Name: "master1", Addr: "203.0.113.212", Port: 6443},
	}
	with := Targets{Servers: servers, Pods: map[string]string{
		"http/master1": "203.0.113.212:30180", "http/worker1": "203.0.113.213:30180", "grpc/worker1": "203.0.113.213:30180",
	}}
	for _, c := range []struct {
		name   string
		t      Targets
		target string
		want   []keeper.Key
		means  []string
	}{
		{"exact", with, "http/master1", keys("http", "master1"), nil},
		{"one pod in two backends", with, "worker1", keys("grpc", "worker1", "http", "worker1"), nil},
		{"by its agent", with, "203.0.113.213:30180", keys("grpc", "worker1", "http", "worker1"), nil},
		{"by its address", with, "203.0.113.213:31443", keys("grpc", "worker1"), nil},
		{"one name, two machines' work", with, "master1", nil, []string{"http/master1 (agent 203.0.113.212:30180)", "kube/master1 (203.0.113.212:6443)"}},
		{"without agents the ports tell them apart", Targets{Servers: servers}, "worker1", nil, []string{"grpc/worker1 (203.0.113.213:31443)", "http/worker1 (203.0.113.213:30080)"}},
		{"within a backend", Targets{Servers: servers, Backends: []string{"http"}}, "worker1", keys("http", "worker1"), nil},
		{"none", with, "http/worker9", nil, nil},
		{"half a name", with, "worker", nil, nil},
		{"nothing, which is the agent of every server that has none", Targets{Servers: servers[:1]}, "", nil, nil},
		{"a host alone", with, "203.0.113.213", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.t.Find(c.target)
			var many *AmbiguousError
			switch {
			case c.want != nil && (err != nil || !slices.Equal(got, c.want)):
				t.Errorf("%v, %v", got, err)
			case c.means != nil && (!errors.As(err, &many) || !slices.Equal(many.Means, c.means)):
				t.Errorf("%v, %v", got, err)
			case c.want == nil && c.means == nil && !errors.Is(err, ErrNoMatch):
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// TestAmbiguous: what a name could mean is told, and not ten thousand times.
func TestAmbiguous(t *testing.T) {
	e := &AmbiguousError{Target: "s1"}
	for i := range 10000 {
		e.Means = append(e.Means, fmt.Sprintf("b%d/s1", i))
	}
	if text := e.Error(); !strings.Contains(text, "b0/s1") || !strings.Contains(text, "and 9980 more") || strings.Count(text, "\n") > 21 {
		t.Errorf("%.2000s", text)
	}
}

// TestListen: what is left of a dead daemon is replaced, anything else is not.
func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if _, err := Listen(path); err == nil {
		t.Error("took the socket of a living daemon")
	}
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(plain); err == nil {
		t.Error("took a file for a socket")
	}
	if b, err := os.ReadFile(plain); err != nil || string(b) != "kept" {
		t.Errorf("%q %v", b, err)
	}
}
