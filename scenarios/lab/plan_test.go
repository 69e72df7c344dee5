package lab

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// canonical reads one of the two canonical configurations.
func canonical(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The lab's configuration is the canonical one, line by line, but for the mapping.
func TestDeriveChangesNothingElse(t *testing.T) {
	p := plan{prefix: "127.99.7."}
	for _, m := range Modes() {
		text := canonical(t, m.Config)
		got, err := derive(text, p, "/tmp/run", "/tmp/run/bundle.pem", m.extra)
		if err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
		back := strings.NewReplacer(
			"127.99.7.211:10443", "*:443", "127.99.7.211:10080", "*:80",
			"/tmp/run/bundle.pem", "/etc/haproxy/certs/homelab-lb-bundle.pem",
			"/tmp/run/admin.sock", "/run/haproxy/admin.sock", "/tmp/run/log.sock", "/dev/log",
		).Replace(got)
		back = strings.ReplaceAll(back, "bind 127.99.7.211:", "bind *:")
		back = strings.ReplaceAll(back, "127.99.7.", "203.0.113.")
		want := strings.ReplaceAll(strings.ReplaceAll(text, "    user haproxy\n", ""), "    group haproxy\n", "")
		if m.Name == "404" {
			want = strings.Replace(want, "    http-check expect", "    http-check disable-on-404\n    http-check expect", 1)
		}
		if back != want {
			t.Errorf("%s: derived file differs from %s beyond the mapping:\n%s", m.Name, m.Config, got)
		}
	}
}

func TestDeriveNoticesAMovedFile(t *testing.T) {
	text := strings.ReplaceAll(canonical(t, "haproxy.cfg"), "/run/haproxy/admin.sock", "/run/other.sock")
	_, err := derive(text, plan{prefix: "127.99.7."}, "/tmp/run", "/tmp/b.pem", nil)
	if err == nil || !strings.Contains(err.Error(), "admin socket") {
		t.Errorf("%v, want an error that names the admin socket", err)
	}
}

func TestDerivedConfigurationsAreAccepted(t *testing.T) {
	haproxy, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatal("haproxy: not found: `make deps` installs it")
	}
	for _, m := range Modes() {
		for _, withState := range []bool{false, true} {
			run := t.TempDir()
			bundle := filepath.Join(run, "bundle.pem")
			if _, err := certify(bundle); err != nil {
				t.Fatal(err)
			}
			extra := m.extra
			if withState {
				extra = append(extra[:len(extra):len(extra)], stateFile(run)...)
			}
			text, err := derive(canonical(t, m.Config), plan{prefix: "127.99.7."}, run, bundle, extra)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(run, "haproxy.cfg")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(haproxy, "-c", "-f", file).CombinedOutput(); err != nil {
				t.Errorf("%s, server-state-file %v: %v\n%s", m.Name, withState, err, out)
			}
		}
	}
}

// Two labs never share an address, and a closed one gives its addresses back.
func TestClaim(t *testing.T) {
	same := func() *rand.Rand { return rand.New(rand.NewPCG(1, 1)) }
	a, err := claimPlan(same())
	if err != nil {
		t.Fatal(err)
	}
	defer a.claim.Close()
	b, err := claimPlan(same())
	if err != nil {
		t.Fatal(err)
	}
	defer b.claim.Close()
	if a.prefix == b.prefix {
		t.Errorf("both have %s", a.prefix)
	}
	if !a.ip(213).IsLoopback() || !strings.HasPrefix(a.prefix, "127.") {
		t.Errorf("%s is not loopback", a.prefix)
	}
}

func TestParseServers(t *testing.T) {
	reply := `1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr srv_agent_addr srv_agent_port
7 web 1 s1 127.0.0.1 2 0 1 1 5 15 3 3 7 22 0 0 - 30080 - 0 30180 - - 30180
7 web 2 s2 127.0.0.1 2 8 1 1 5 15 3 3 2 2 0 0 - 30080 - 0 30180 - - 30180
7 web 3 s3 127.0.0.1 0 8 1 1 5 15 3 0 6 0 0 0 - 30080 - 0 0 - - 0
7 web 4 s4 127.0.0.1 0 1 1 1 5 15 3 3 14 0 0 0 - 30080 - 0 0 - - 0
7 web 5 s5 127.0.0.1 3 0 1 1 5 15 3 3 6 0 0 0 - 30080 - 0 0 - - 0

`
	servers, err := parseServers(reply)
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, s := range servers {
		words = append(words, s.Name+" "+s.Word())
	}
	if got, want := strings.Join(words, ", "), "s1 UP, s2 DRAIN, s3 DOWN, s4 MAINT, s5 NOLB"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if servers[0].Guarded() || !servers[1].Guarded() {
		t.Errorf("guarded: s1 %v, s2 %v, want false, true", servers[0].Guarded(), servers[1].Guarded())
	}
	for _, bad := range []string{"", "\n", "Permission denied\n", strings.Replace(reply, " 2 0 1 1 ", " x 0 1 1 ", 1)} {
		if s, err := parseServers(bad); err == nil {
			t.Errorf("%.40q was taken as %v", bad, s)
		}
	}
}
