package internal

import (
	"os/exec"
	"strings"
	"testing"
)

// rules is the dependency direction: packages that begin with from import
// nothing that begins with to, unless from is also in except.
var rules = []struct {
	from, to string
	except   []string
	why      string
}{
	{"lbdrain/fsm", "lbdrain/", []string{"lbdrain/fsm"}, "the pod's state machine is pure: std only"},
	{"lbdrain/fsm", "github.com/", nil, "the pod's state machine is pure: std only"},
	{"lbdrain/fsm", "golang.org/", nil, "the pod's state machine is pure: std only"},
	{"lbdrain/cfg", "lbdrain/", []string{"lbdrain/cfg"}, "cfg reads files and knows neither sockets nor agents"},
	{"lbdrain/internal/", "lbdrain/agent", nil, "what programs share knows no program"},
	{"lbdrain/internal/", "lbdrain/lbctl", nil, "what programs share knows no program"},
	{"lbdrain/internal/", "lbdrain/scenarios", nil, "what programs share knows no program"},
	{"lbdrain/agent", "lbdrain/cfg", nil, "the pod knows nothing of haproxy.cfg"},
	{"lbdrain/agent", "lbdrain/internal/haproxy", nil, "admin sockets are the balancer's side"},
	{"lbdrain/agent", "lbdrain/lbctl", nil, "the two programs meet in internal/handshake only"},
	{"lbdrain/agent", "lbdrain/scenarios", nil, "programs are run, not imported"},
	{"lbdrain/lbctl", "lbdrain/agent", nil, "the two programs meet in internal/handshake only"},
	{"lbdrain/lbctl", "lbdrain/fsm", nil, "the pod's states reach the balancer as words in a status"},
	{"lbdrain/lbctl", "lbdrain/scenarios", nil, "programs are run, not imported"},
	{"lbdrain/scenarios", "lbdrain/agent", nil, "scenarios runs the built programs, as an operator would"},
	{"lbdrain/scenarios", "lbdrain/lbctl", nil, "scenarios runs the built programs, as an operator would"},
	{"lbdrain", "github.com/haproxytech/client-native", []string{"lbdrain/internal/haproxy"}, "internal/haproxy is the only door to admin sockets"},
	{"lbdrain", "github.com/haproxytech/config-parser", []string{"lbdrain/cfg"}, "cfg is the only reader of haproxy.cfg"},
}

// TestDirection holds the direction of the imports. The rules are looked up
// for what is built, not for tests.
func TestDirection(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}{{"\n"}}{{end}}`, "lbdrain/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	edges := 0
	for line := range strings.Lines(string(out)) {
		from, to, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		edges++
		if why := forbidden(from, to); why != "" {
			t.Errorf("%s imports %s: %s", from, to, why)
		}
	}
	if edges < 50 {
		t.Fatalf("go list gave %d imports: the rules were looked up against nothing", edges)
	}
}

// TestForbidden shows that the rules can fail.
func TestForbidden(t *testing.T) {
	for _, c := range []struct {
		from, to string
		bad      bool
	}{
		{"lbdrain/fsm", "lbdrain/internal/handshake", true},
		{"lbdrain/fsm", "golang.org/x/sys/unix", true},
		{"lbdrain/fsm", "time", false},
		{"lbdrain/agent/drain", "lbdrain/cfg", true},
		{"lbdrain/agent/drain", "lbdrain/agent/balancers", false},
		{"lbdrain/lbctl/pods", "lbdrain/agent/front", true},
		{"lbdrain/lbctl", "github.com/haproxytech/client-native/v5/models", true},
		{"lbdrain/internal/haproxy", "github.com/haproxytech/client-native/v5/models", false},
		{"lbdrain/internal/haproxy", "lbdrain/lbctl/hold", true},
		{"lbdrain/cfg", "github.com/haproxytech/config-parser/v5", false},
		{"lbdrain/cfg", "lbdrain/internal/haproxy", true},
	} {
		if why := forbidden(c.from, c.to); (why != "") != c.bad {
			t.Errorf("%s imports %s: %q, want forbidden %v", c.from, c.to, why, c.bad)
		}
	}
}

// forbidden says why from must not import to, or "".
func forbidden(from, to string) string {
	for _, r := range rules {
		if within(from, r.from) && within(to, r.to) && !exempt(from, to, r.except) {
			return r.why
		}
	}
	return ""
}

func within(pkg, prefix string) bool {
	return pkg == prefix || strings.HasPrefix(pkg, strings.TrimSuffix(prefix, "/")+"/")
}

// exempt says whether the importer is allowed to, or both are the same room.
func exempt(from, to string, except []string) bool {
	for _, e := range except {
		if within(from, e) && (within(to, e) || !strings.HasPrefix(to, "lbdrain/")) {
			return true
		}
	}
	return false
}
