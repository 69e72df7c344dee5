package journal

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"lbdrain/lbctl/hold"
)

func record(server string) hold.Record {
	return hold.Record{
		Backend: "web", Server: server, Muted: true, Guarded: true, Unproven: true, Foreign: hold.Drain,
		Pod:      &hold.PodHold{Endpoint: "192.0.2.1:30180", Instance: "one", Seq: 7, Since: time.Unix(1, 0).UTC(), Deadline: time.Unix(9, 0).UTC()},
		Op:       &hold.OpHold{Kind: hold.Maint, Reason: "kernel", By: "ann", Since: time.Unix(2, 0).UTC(), Guard: time.Unix(3, 0).UTC()},
		Finished: &hold.Worker{Pid: 1, Start: 2},
		Return:   &hold.Probation{Worker: hold.Worker{Pid: 1, Start: 2}, Since: time.Unix(4, 0).UTC(), FromMaint: true},
	}
}

func write(t *testing.T, j *Journal, lb, server string) {
	t.Helper()
	err := j.Update(lb, func(l *LB) error {
		l.Socket = "unix:/" + lb
		l.Records["web/"+server] = record(server)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made on demand")
	write(t, Open(dir), "lb1", "s1")
	lb, err := Open(dir).LB("lb1")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]hold.Record{"web/s1": record("s1")}
	if d := cmp.Diff(want, lb.Records); d != "" || lb.Socket != "unix:/lb1" {
		t.Error(d, lb.Socket)
	}
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil || !strings.Contains(string(b), `"version": 1`) || b[len(b)-1] != '\n' {
		t.Errorf("%s %v", b, err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("%v %v: want the journal and its lock, and nothing temporary", files, err)
	}
}

// TestOwner: what a command as root leaves behind, the daemon can read and write.
func TestOwner(t *testing.T) {
	dir, want := t.TempDir(), os.Geteuid()
	if want == 0 {
		want = 12345
		if err := os.Chown(dir, want, want); err != nil {
			t.Fatal(err)
		}
	}
	write(t, Open(dir), "lb1", "s1")
	release, err := Open(dir).Claim()
	if err != nil {
		t.Fatal(err)
	}
	release()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 3 {
		t.Fatalf("%v %v: want the journal and two locks", files, err)
	}
	for _, f := range files {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, f.Name()), &st); err != nil || int(st.Uid) != want {
			t.Errorf("%s belongs to %d (%v), want %d", f.Name(), st.Uid, err, want)
		}
	}
}

// TestTwo: what another process wrote is seen, and kept.
func TestTwo(t *testing.T) {
	dir := t.TempDir()
	a, b := Open(dir), Open(dir)
	write(t, a, "lb1", "s1")
	write(t, b, "lb1", "s2")
	write(t, a, "lb2", "s3")
	lb, err := b.LB("lb1")
	if err != nil || len(lb.Records) != 2 {
		t.Errorf("%v %v", lb, err)
	}
	lb.Records["web/s1"] = hold.Record{} // a copy: not the journal's
	if again, _ := b.LB("lb1"); again.Records["web/s1"].Pod == nil {
		t.Error("a reader changed the journal")
	}
}

func TestManyWriters(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { write(t, Open(dir), "lb1", string(rune('a'+i))) })
	}
	all.Wait()
	if lb, err := Open(dir).LB("lb1"); err != nil || len(lb.Records) != 8 {
		t.Errorf("%d records, %v", len(lb.Records), err)
	}
}

func TestUpdateFails(t *testing.T) {
	j := Open(t.TempDir())
	write(t, j, "lb1", "s1")
	no := errors.New("no")
	err := j.Update("lb1", func(l *LB) error { clear(l.Records); return no })
	if lb, _ := j.LB("lb1"); !errors.Is(err, no) || len(lb.Records) != 1 {
		t.Errorf("%v, %v", err, lb)
	}
}

func TestAdopt(t *testing.T) {
	j := Open(t.TempDir())
	write(t, j, "host:a.sock", "s1")
	write(t, j, "elsewhere", "s2")
	if err := j.Adopt("lb1", "unix:/host:a.sock"); err != nil {
		t.Fatal(err)
	}
	if name := j.Named("unix:/host:a.sock"); name != "lb1" {
		t.Errorf("named %q", name)
	}
	lb, err := j.LB("lb1")
	if _, ok := lb.Records["web/s1"]; err != nil || !ok || len(lb.Records) != 1 {
		t.Errorf("%v %v", lb, err)
	}
}

// TestNotOurs: what cannot be read whole is neither taken for empty nor written.
func TestNotOurs(t *testing.T) {
	for _, text := range []string{
		`{"version": 2}`, `{}`, `[]`, ``, `{"version": 1, "lbs": 3}`, `{"version": "1"}`, "\x00",
		records(`"web/s1": {"backend": "web", "server": "s2"}`), records(`"web/s1": null`),
		records(`"web/s1\nx/y": {"backend": "web", "server": "s1\nx/y"}`), records(`"/": {"backend": "", "server": ""}`),
		records(`"web/s1": {"backend": "web", "server": "s1", "operator": {"kind": "kill"}}`),
		records(`"web/s1": {"backend": "web", "server": "s1", "foreign": "up"}`),
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		j := Open(dir)
		if _, err := j.LB("lb1"); !errors.Is(err, ErrVersion) {
			t.Errorf("%q read: %v", text, err)
		}
		if err := j.Update("lb1", func(*LB) error { return nil }); !errors.Is(err, ErrVersion) {
			t.Errorf("%q update: %v", text, err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("%q became %q, %v", text, b, err)
		}
	}
}

// TestSameError: a disk that stays full is one error, not another at each try.
func TestSameError(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, nextFile), 0o750); err != nil { // no file can take its place
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, nextFile), filepath.Join(dir, "gone", "x")} {
		_, first := put(path, nil, 0o640, false)
		_, again := put(path, nil, 0o640, false)
		if first == nil || again == nil || first.Error() != again.Error() || !strings.Contains(first.Error(), path+": ") {
			t.Errorf("%v, then %v", first, again)
		}
	}
}

func records(text string) string {
	return `{"version": 1, "lbs": {"lb1": {"records": {` + text + `}}}}`
}

func TestClaim(t *testing.T) {
	dir := t.TempDir()
	a, b := Open(dir), Open(dir)
	if b.Claimed() {
		t.Error("claimed by nobody")
	}
	release, err := a.Claim()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Claim(); !errors.Is(err, ErrLocked) || !b.Claimed() {
		t.Errorf("second claim: %v", err)
	}
	write(t, b, "lb1", "s1") // a daemon's claim is no lock on the journal
	release()
	if b.Claimed() {
		t.Error("still claimed")
	}
	if release, err := b.Claim(); err != nil {
		t.Error(err)
	} else {
		release()
	}
}

// TestTorn: what was staged when the machine went down, and did not reach the
// disk whole, gives way to what had.
func TestTorn(t *testing.T) {
	for _, text := range []string{"", "\x00\x00", `{"version": 1, "lbs"`} {
		dir := t.TempDir()
		write(t, Open(dir), "lb1", "s1")
		if err := os.WriteFile(filepath.Join(dir, nextFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if lb, err := Open(dir).LB("lb1"); err != nil || len(lb.Records) != 1 {
			t.Errorf("%q: %v, %v", text, lb, err)
		}
	}
	dir := t.TempDir()
	write(t, Open(dir), "lb1", "s1")
	if err := os.WriteFile(filepath.Join(dir, nextFile), []byte(`{"version": 2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir).LB("lb1"); !errors.Is(err, ErrVersion) {
		t.Errorf("staged by a later lbctl: %v", err)
	}
}

// TestBackground: in force at once for every reader, on the disk at the end.
func TestBackground(t *testing.T) {
	dir := t.TempDir()
	j := Open(dir)
	ctx, cancel := context.WithCancel(t.Context())
	wait := j.Background(ctx, func(err error) { t.Error(err) })
	for i := range 20 {
		write(t, j, "lb1", string(rune('a'+i)))
		if lb, err := Open(dir).LB("lb1"); err != nil || len(lb.Records) != i+1 {
			t.Fatalf("%d records after %d updates, %v", len(lb.Records), i+1, err)
		}
	}
	cancel()
	wait()
	if _, err := os.Stat(filepath.Join(dir, nextFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("not flushed: %v", err)
	}
	write(t, j, "lb1", "z")
	if d, err := read(filepath.Join(dir, file)); err != nil || len(d.LBs["lb1"].Records) != 21 {
		t.Errorf("%v", err)
	}
}

// TestKilled: a writer that is killed -9 at any moment leaves a whole journal.
func TestKilled(t *testing.T) {
	if dir := os.Getenv("JOURNAL_VICTIM"); dir != "" {
		for j := Open(dir); ; {
			write(t, j, "lb1", "s1")
		}
	}
	dir := t.TempDir()
	write(t, Open(dir), "lb1", "s1")
	for range 20 {
		c := exec.Command(os.Args[0], "-test.run", "^TestKilled$")
		c.Env = append(os.Environ(), "JOURNAL_VICTIM="+dir)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		before, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			if now, err := os.Stat(filepath.Join(dir, file)); err == nil && !os.SameFile(before, now) {
				break
			}
		}
		c.Process.Kill()
		c.Wait()
		if lb, err := Open(dir).LB("lb1"); err != nil || len(lb.Records) != 1 {
			t.Fatalf("%v %v", lb, err)
		}
	}
	write(t, Open(dir), "lb1", "s2")
}
