package cfg

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	parser "github.com/haproxytech/config-parser/v5"
	"github.com/haproxytech/config-parser/v5/options"
)

// bigFile is 200 backends of 50 servers, each with the canonical server line.
func bigFile() string {
	var b strings.Builder
	b.WriteString("global\n stats socket /run/haproxy/admin.sock level admin\ndefaults\n mode http\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n" +
		"frontend f\n bind 127.0.0.1:45555\n default_backend b0\n")
	for i := range 200 {
		fmt.Fprintf(&b, "backend b%d\n balance roundrobin\n option httpchk GET /health_check.html\n http-check expect status 200\n", i)
		for j := range 50 {
			fmt.Fprintf(&b, " server s%d 10.%d.0.%d:30080 check port 30180 inter 2s rise 2 fall 2 on-marked-down shutdown-sessions\n", j, i, j)
		}
	}
	return b.String()
}

// BenchmarkLoad reads and resolves 10,000 servers. of-haproxy-c is its time as a
// part of what `haproxy -c` takes for the same file on the same machine.
func BenchmarkLoad(b *testing.B) {
	bin := haproxyBinary(b)
	file := filepath.Join(b.TempDir(), "big.cfg")
	if err := os.WriteFile(file, []byte(bigFile()), 0o600); err != nil {
		b.Fatal(err)
	}
	oracle := time.Hour
	for range 5 {
		start := time.Now()
		if says, taken := haproxyCheck(b, bin, file); !taken {
			b.Fatal(says)
		}
		oracle = min(oracle, time.Since(start))
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if c, err := Load([]string{file}, Options{}); err != nil || len(c.Servers) != 10_000 {
			b.Fatal(err)
		}
	}
	per := b.Elapsed() / time.Duration(b.N)
	b.ReportMetric(float64(oracle.Microseconds())/1000, "haproxy-c-ms")
	b.ReportMetric(float64(per)/float64(oracle), "of-haproxy-c")
}

// BenchmarkConfigParser is the whole-file reader of config-parser on the same
// file, without resolving anything: why server lines are read here.
func BenchmarkConfigParser(b *testing.B) {
	file := filepath.Join(b.TempDir(), "big.cfg")
	if err := os.WriteFile(file, []byte(bigFile()), 0o600); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for range b.N {
		if _, err := parser.New(options.Path(file), options.UseListenSectionParsers); err != nil {
			b.Fatal(err)
		}
	}
}
