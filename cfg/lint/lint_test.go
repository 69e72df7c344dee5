package lint

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"lbdrain/cfg"
)

var update = flag.Bool("update", false, "write what is found into testdata; read the diff before it is committed")

// TestFindings: testdata has one file for each mistake, with the exact words.
// The line `clean` in front of the first file stands for a configuration that
// nothing is wrong with; `version`, `grace` and `drain` are options.
func TestFindings(t *testing.T) {
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatalf("this test needs HAProxy: %v; install it with: make deps", err)
	}
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	seen := make(map[string]bool)
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(name)
			if err != nil || len(a.Files) != 2 {
				t.Fatalf("%v, %d files", err, len(a.Files))
			}
			o, world := options(t, string(a.Comment))
			text := strings.ReplaceAll(string(a.Files[0].Data), "[NUL]", "\x00")
			text = strings.ReplaceAll(strings.ReplaceAll(text, "[BOM]", "\ufeff"), "[NOLF]\n", "")
			found := Check(cfg.Read([]cfg.Text{{Name: "x.cfg", Data: []byte(text)}}, world), o)
			var got strings.Builder
			refused := false
			for _, f := range found {
				seen[f.ID] = true
				refused = refused || f.Refused || strings.HasPrefix(f.ID, "unknown-")
				who := f.Backend
				if f.Server != "" {
					who += "/" + f.Server
				}
				fmt.Fprintf(&got, "%d %s %s %s\n  %s\n  %s\n", f.Line, f.Severity, f.ID, who, f.Why, f.Fix)
			}
			if *update {
				a.Files[1].Data = []byte(got.String())
				if err := os.WriteFile(name, txtar.Format(a), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if d := cmp.Diff(string(a.Files[1].Data), got.String()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if world.Version == ours {
				oracle(t, bin, text, refused)
			}
		})
	}
	documented(t, seen)
}

// ours is the version of the oracle.
const ours = "2.6.12"

func options(t *testing.T, comment string) (Options, cfg.Options) {
	o, world := Options{}, cfg.Options{Version: ours, Features: "+OPENSSL", Env: map[string]string{}}
	for line := range strings.Lines(comment) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		var err error
		switch word {
		case "version":
			world.Version = value
		case "grace":
			o.Grace, err = time.ParseDuration(value)
		case "drain":
			o.Drain, err = time.ParseDuration(value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	o.Version = world.Version
	return o, world
}

// oracle: HAProxy refuses what we say it refuses, and nothing else.
func oracle(t *testing.T, bin, text string, refused bool) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "x.cfg")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(bin, "-c", "-f", name).CombinedOutput()
	var exit *exec.ExitError
	taken := err == nil || errors.As(err, &exit) && exit.ExitCode() == 2
	if taken == refused {
		t.Errorf("HAProxy takes it: %v; we say refused: %v\n%s", taken, refused, out)
	}
}

// documented: every finding of this package is in its comment and in testdata,
// and none is there that is not.
func documented(t *testing.T, seen map[string]bool) {
	data, err := os.ReadFile("lint.go")
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(data), "package lint\n")
	listed := make(map[string]bool)
	for line := range strings.Lines(head) {
		if id, _, ok := strings.Cut(strings.TrimPrefix(line, "//\t  "), " "); ok && strings.HasPrefix(line, "//\t  ") {
			listed[id] = true
			if !seen[id] {
				t.Errorf("the package comment names %s, which no file of testdata shows", id)
			}
		}
	}
	for _, name := range []string{"lint.go", "servers.go", "backends.go"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(data), `", cfg.`)[:strings.Count(string(data), `", cfg.`)] {
			if id := part[strings.LastIndexByte(part, '"')+1:]; !listed[id] && !strings.Contains(id, " ") {
				t.Errorf("%s finds %s, which the package comment does not name", name, id)
			}
		}
	}
}

// TestTestdata: the canonical configuration without agent is what this product
// is for; with it, nothing cuts.
func TestTestdata(t *testing.T) {
	for file, want := range map[string]int{"haproxy.cfg": 3, "haproxy-agent.cfg": 0} {
		c, err := cfg.Load([]string{filepath.Join("../../testdata", file)}, cfg.Options{})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range Check(c, Options{}) {
			if f.Severity == cfg.Error {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: %d errors, want %d", file, n, want)
		}
	}
}

// FuzzCheck: no text makes it fail, and every finding is whole.
func FuzzCheck(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		f.Fatal(err)
	}
	for _, name := range files {
		a, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(a.Files[0].Data))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, found := range Check(cfg.Read([]cfg.Text{{Name: "x.cfg", Data: []byte(text)}}, cfg.Options{}), Options{}) {
			if found.ID == "" || found.Why == "" || found.Fix == "" || found.Severity < cfg.Info || found.Severity > cfg.Error || found.File == "" {
				t.Fatalf("%+v", found)
			}
		}
	})
}
