package haproxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/haproxytech/client-native/v5/models"
	cn "github.com/haproxytech/client-native/v5/runtime"
	"github.com/haproxytech/client-native/v5/runtime/options"
)

// Sessions and queue are what is in flight, and ShutdownSessions cuts it.
func TestInFlight(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.77.1.6:0")
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	backend := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release })}
	go backend.Serve(l)
	t.Cleanup(func() { backend.Close() })
	p := start(t, "frontend f\n    bind DIR/f.sock\n    default_backend be\nbackend be\n    cookie S\n    server s1 "+l.Addr().String()+" cookie s1 maxconn 2\n")
	c := p.client(Options{})
	answers := make(chan string, 5)
	for range cap(answers) {
		go func() { answers <- p.get() }()
	}
	await := func(sessions, queued uint64) {
		eventually(t, func() error {
			if s := server(t, read(t, c, "be"), "be", "s1"); s.Sessions != sessions || s.Queued != queued {
				return fmt.Errorf("%d sessions, %d queued, want %d and %d", s.Sessions, s.Queued, sessions, queued)
			}
			return nil
		})
	}
	await(2, 3)
	if turn := do(t, c, ShutdownSessions("be", "s1")); turn.Err() != nil {
		t.Error(turn.Err())
	}
	for range 2 {
		if a := <-answers; a == "200" {
			t.Error("a request outlived shutdown sessions")
		}
	}
	close(release)
	for range 3 {
		if a := <-answers; a != "200" {
			t.Errorf("a queued request: %s", a)
		}
	}
	await(0, 0)
	if s := server(t, read(t, c), "be", "s1"); s.Total != 5 || s.MaxConn != 2 {
		t.Errorf("%+v", s)
	}
}

// get sends one request through the frontend f, with the cookie of s1: only
// then it waits in the server's queue and not in the backend's.
func (p *process) get() string {
	nc, err := net.Dial("unix", filepath.Join(p.dir, "f.sock"))
	if err != nil {
		return err.Error()
	}
	defer nc.Close()
	io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\nCookie: S=s1\r\nConnection: close\r\n\r\n")
	b, _ := io.ReadAll(nc)
	if len(b) < 12 {
		return "EOF"
	}
	return string(b[9:12])
}

// What a pod answers to a check reaches us through HAProxy's CSV: line ends,
// quotes and a prompt in it change nothing.
func TestPodsText(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.77.1.7:0")
	if err != nil {
		t.Fatal(err)
	}
	pod := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(503)
		io.WriteString(w, "\"a\",\n\n> \n\n> b,c\n")
	})}
	go pod.Serve(l)
	t.Cleanup(func() { pod.Close() })
	c := start(t, `
backend be
    option httpchk GET /
    http-check expect status 200 on-error "%[res.body]"
    server s1 `+l.Addr().String()+` check inter 50ms
`).client(Options{})
	eventually(t, func() error {
		r, err := c.Read(context.Background(), Scope{})
		if err != nil {
			t.Fatal(err)
		}
		if s := server(t, r, "be", "s1"); !strings.Contains(s.LastCheck, "a") {
			return fmt.Errorf("last check %q", s.LastCheck)
		}
		return nil
	})
	t.Logf("%q", server(t, read(t, c), "be", "s1").LastCheck)
}

// Our JSON is client-native's, but for the two values it gets wrong.
func TestRuntimeModel(t *testing.T) {
	t.Parallel()
	p := start(t, small)
	c := p.client(Options{})
	do(t, c, SetState("be", "s2", Drain), SetState("other", "p1", Ready), SetState("other", "p2", Drain), SetState("be", "s1", Drain))
	native, err := cn.New(context.Background(), options.Sockets(map[int]string{1: c.Socket().Address}))
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{"be", "other"} {
		theirs, err := native.GetServersState(backend)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range read(t, c, backend).Servers {
			ours := s.Runtime()
			if s.Admin == InheritedDrain || s.Admin == ConfigMaint|ForcedDrain {
				if ours.AdminState != "drain" || theirs[i].AdminState != "maint" {
					t.Errorf("%s: admin %d is %s, theirs %s", s.Name, s.Admin, ours.AdminState, theirs[i].AdminState)
				}
				theirs[i].AdminState = "drain"
			}
			if diff := cmp.Diff(*theirs[i], ours); diff != "" {
				t.Errorf("%s/%s:\n%s", backend, s.Name, diff)
			}
			if err := ours.Validate(nil); err != nil {
				t.Error(err)
			}
		}
	}
	for _, s := range read(t, c).Servers {
		theirs := find(native.GetStats(), s.Backend, s.Name)
		if ours := s.Native(); theirs == nil || !subset(ours.Stats, theirs.Stats) || ours.Type != theirs.Type {
			t.Errorf("%s/%s:\n%s", s.Backend, s.Name, cmp.Diff(theirs, &ours))
		}
	}
}

func find(all models.NativeStats, backend, name string) *models.NativeStat {
	for _, s := range all[0].Stats {
		if s.BackendName == backend && s.Name == name {
			return s
		}
	}
	return nil
}

// subset says whether every field that ours has, theirs has with the same
// value; what moves with time apart.
func subset(ours, theirs *models.NativeStatStats) bool {
	a, b := reflect.ValueOf(ours).Elem(), reflect.ValueOf(theirs).Elem()
	for i := range a.NumField() {
		switch a.Type().Field(i).Name {
		case "Lastchg", "CheckStatus", "AgentStatus", "CheckDuration", "LastAgt":
			continue
		}
		if !a.Field(i).IsZero() && !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			return false
		}
	}
	return true
}
