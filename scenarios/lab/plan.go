package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The canonical host's ports. Those under 1024 are raised by 10000, so that nobody
// needs root.
const (
	httpsPort   = 10443
	dataPort    = 30080
	grpcPort    = 31443
	healthPort  = 30180
	controlPort = 18180
	adminPort   = 15000 // Envoy's admin, or the backend's gauge
	backendPort = 9101
	gatePort    = 30181 // where the agent listens behind a gate
	adminGate   = 15001 // where the agent asks for Envoy behind a gate
	claimPort   = 10254
)

// plan is the lab's own part of 127.0.0.0/8: 203.0.113.X becomes prefix.X. Nothing
// else uses it while the claim is open, so runs can go side by side and ports never
// clash. (That matters more than it seems: Envoy's listeners use SO_REUSEPORT, and a
// forgotten one on the same address takes half of the connections silently.)
type plan struct {
	prefix string // "127.87.12."
	claim  net.Listener
}

func claimPlan(rng *mrand.Rand) (plan, error) {
	var last error
	for range 100 {
		prefix := fmt.Sprintf("127.%d.%d.", 64+rng.IntN(128), 1+rng.IntN(254))
		ln, err := net.Listen("tcp", prefix+"254:"+strconv.Itoa(claimPort))
		if err == nil {
			return plan{prefix: prefix, claim: ln}, nil
		}
		last = err
	}
	return plan{}, fmt.Errorf("claim a part of 127.0.0.0/8: %w", last)
}

func (p plan) ip(last int) netip.Addr { return netip.MustParseAddr(p.prefix + strconv.Itoa(last)) }

func (p plan) at(last, port int) string {
	return p.prefix + strconv.Itoa(last) + ":" + strconv.Itoa(port)
}

// edit is one mechanical change to the canonical configuration.
type edit struct {
	what string
	find *regexp.Regexp
	with string
}

// derive makes the lab's haproxy.cfg from a canonical one: addresses, low ports and
// paths are mapped, the user is dropped, and nothing else changes but what extra
// adds. An edit that finds nothing is an error: the canonical file has moved on.
func derive(cfg string, p plan, run, bundle string, extra []edit) (string, error) {
	edits := append([]edit{
		{"addresses", regexp.MustCompile(`203\.0\.113\.`), p.prefix},
		{"admin socket", regexp.MustCompile(`/run/haproxy/admin\.sock`), run + "/admin.sock"},
		{"log socket", regexp.MustCompile(`/dev/log`), run + "/log.sock"},
		{"certificate", regexp.MustCompile(`/etc/haproxy/certs/\S+\.pem`), bundle},
		{"user", regexp.MustCompile(`(?m)^    (user|group) .*\n`), ""},
	}, extra...)
	for _, e := range edits {
		if !e.find.MatchString(cfg) {
			return "", fmt.Errorf("derive haproxy.cfg: %s: nothing matches %s", e.what, e.find)
		}
		cfg = e.find.ReplaceAllString(cfg, strings.ReplaceAll(e.with, "$", "$$"))
	}
	return bind.ReplaceAllStringFunc(cfg, func(s string) string {
		port, _ := strconv.Atoi(bind.FindStringSubmatch(s)[1]) // the expression lets only digits through
		if port < 1024 {
			port += 10000
		}
		return "bind " + p.at(balancerHost, port)
	}), nil
}

var bind = regexp.MustCompile(`\bbind \*:(\d+)`)

// balancerHost is the last byte of the balancer's address.
const balancerHost = 211

// disable404 is what mode 404 adds: the answer 404 takes a server out of balancing
// (NOLB) without marking it down.
var disable404 = edit{
	"http-check disable-on-404",
	regexp.MustCompile(`(?m)^    http-check expect status 200$`),
	"    http-check disable-on-404\n    http-check expect status 200",
}

// stateFile lets a new worker begin with the admin states of the one before.
func stateFile(run string) []edit {
	return []edit{
		{"server-state-file", regexp.MustCompile(`(?m)^global$`), "global\n    server-state-file " + run + "/server-state"},
		{"load-server-state-from-file", regexp.MustCompile(`(?m)^defaults$`), "defaults\n    load-server-state-from-file global"},
	}
}

// Host is the name in the certificate.
const Host = "homelab.example"

// certify writes a self-signed bundle, certificate and key, as HAProxy's crt wants
// it, and returns the pool that trusts it.
func certify(file string) (*x509.CertPool, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: Host}, DNSNames: []string{Host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	bundle := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})...)
	if err := os.WriteFile(file, bundle, 0o600); err != nil {
		return nil, fmt.Errorf("write the certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool, nil
}
