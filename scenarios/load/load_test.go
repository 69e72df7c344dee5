package load

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"lbdrain/scenarios/ledger"
)

// serve starts a TLS server on loopback that speaks h1 and h2.
func serve(t *testing.T, h http.HandlerFunc) Client {
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return client(s.Listener.Addr(), s.Certificate())
}

func client(addr net.Addr, cert *x509.Certificate) Client {
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return Client{Frontend: netip.MustParseAddrPort(addr.String()), Host: "example.com", Roots: pool, Limit: 10 * time.Second}
}

func (c Client) get(t *testing.T, path string) ledger.Seen {
	conn, err := c.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.Get(t.Context(), "a", H1First, path, 0)
}

func TestH1(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			t.Errorf("spoke %s", r.Proto)
		}
		switch r.URL.Path {
		case "/whole":
			io.WriteString(w, "slept\n")
		case "/marked":
			io.WriteString(w, "chunk\n")
			http.NewResponseController(w).Flush()
			io.WriteString(w, EndMarker("a"))
		case "/unmarked":
			io.WriteString(w, "chunk\n")
			http.NewResponseController(w).Flush()
		case "/short":
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "chunk\n")
		case "/nothing":
			panic(http.ErrAbortHandler)
		case "/502":
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	for _, tt := range []struct {
		path   string
		status int
		whole  bool
		curl   int
	}{
		{"/whole", 200, true, 0},
		{"/marked", 200, true, 0},
		{"/unmarked", 200, false, 0}, // a chunked body that ends well and too early
		{"/short", 200, false, ledger.CurlPartial},
		{"/nothing", 0, false, ledger.CurlEmpty},
		{"/502", 502, true, 0},
	} {
		s := c.get(t, tt.path)
		if s.Status != tt.status || s.Whole != tt.whole || s.Curl != tt.curl || s.Attempts != 1 {
			t.Errorf("%s: %+v, want %+v", tt.path, s, tt)
		}
	}
}

// A reused connection that dies under its second request is reported, never hidden:
// net/http would send the request again.
func TestH1ReusedIsNotSentAgain(t *testing.T) {
	var requests atomic.Int32
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
	})
	conn, err := c.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if s := conn.Get(t.Context(), "w", WarmUp, "/", 0); s.Status != 200 {
		t.Fatalf("%+v", s)
	}
	if s := conn.Get(t.Context(), "a", H1Reused, "/", 0); s.Status != 0 || s.Curl != ledger.CurlEmpty || s.Attempts != 1 {
		t.Errorf("%+v", s)
	}
	if n := requests.Load(); n != 2 {
		t.Errorf("the server saw %d requests, want 2", n)
	}
}

func TestH2(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("spoke %s", r.Proto)
		}
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/post":
			fmt.Fprintf(w, "%s %s", r.Method, body)
		case "/marked":
			io.WriteString(w, EndMarker("a"))
			http.NewResponseController(w).Flush()
		case "/unmarked":
			io.WriteString(w, "chunk\n")
			http.NewResponseController(w).Flush()
		case "/reset":
			io.WriteString(w, "chunk\n")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	for _, tt := range []struct {
		path, kind string
		whole      bool
		curl       int
	}{
		{"/post", H2Post, true, 0},
		{"/marked", H2Stream, true, 0},
		{"/unmarked", H2Stream, false, 0},
		{"/reset", H2Stream, false, ledger.CurlH2Stream},
	} {
		s := c.H2(t.Context(), "a", tt.kind, tt.path)
		if s.Status != 200 || s.Whole != tt.whole || s.Curl != tt.curl || s.Attempts != 1 {
			t.Errorf("%s: %+v, want %+v", tt.path, s, tt)
		}
	}
}

// A stream that was refused is sent again by the library, a POST with its body too,
// and only Attempts tells.
func TestH2RefusedStreamIsSentAgain(t *testing.T) {
	cert := httptest.NewTLSServer(nil)
	defer cert.Close()
	ln, err := tls.Listen("tcp", "127.83.2.1:0", &tls.Config{Certificates: cert.TLS.Certificates, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	posted := make(chan string, 4)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		refuseFirst(conn, posted)
	}()
	c := client(ln.Addr(), cert.Certificate())
	s := c.H2(t.Context(), "a", H2Post, "/")
	if s.Status != 200 || !s.Whole || s.Attempts != 2 || s.Curl != 0 {
		t.Errorf("%+v, want a clean 200 behind two sendings", s)
	}
	if body := <-posted; body != "order a\n" {
		t.Errorf("the second sending carried %q", body)
	}
}

// refuseFirst is an h2 server that refuses its first stream and answers the second.
func refuseFirst(conn net.Conn, posted chan<- string) {
	br := bufio.NewReader(conn)
	if _, err := br.Discard(len(http2.ClientPreface)); err != nil {
		return
	}
	fr := http2.NewFramer(conn, br)
	fr.WriteSettings()
	streams := 0
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				fr.WriteSettingsAck()
			}
		case *http2.DataFrame:
			if !f.StreamEnded() && len(f.Data()) == 0 {
				continue
			}
			if streams++; streams == 1 {
				fr.WriteRSTStream(f.StreamID, http2.ErrCodeRefusedStream)
				continue
			}
			posted <- string(f.Data())
			var head strings.Builder
			enc := hpack.NewEncoder(&head)
			enc.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
			enc.WriteField(hpack.HeaderField{Name: "content-length", Value: "0"})
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: f.StreamID, BlockFragment: []byte(head.String()), EndHeaders: true, EndStream: true})
		}
	}
}

func TestPaced(t *testing.T) {
	const size, rate = 40_000, 200_000
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(size))
		w.Write(make([]byte, size))
	})
	conn, err := c.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := conn.Get(t.Context(), "a", H1Slow, "/", rate)
	if !s.Whole || s.Bytes != size {
		t.Errorf("%+v", s)
	}
	if took := s.End.Sub(s.Begin); took < size*time.Second/rate/2 {
		t.Errorf("read %d bytes at %d bytes/s in %s", size, rate, took)
	}
}

func TestLocal(t *testing.T) {
	for addr, ok := range map[string]bool{
		"127.0.0.1:1": true, "127.255.1.2:443": true, "[::ffff:127.0.0.1]:1": true,
		"203.0.113.211:443": false, "[::1]:1": false, "10.0.0.1:1": false, "0.0.0.0:1": false,
	} {
		err := Local(netip.MustParseAddrPort(addr))
		if (err == nil) != ok {
			t.Errorf("%s: %v", addr, err)
		}
		if !ok {
			c := Client{Frontend: netip.MustParseAddrPort(addr), Host: "x", Limit: time.Second}
			if _, err := c.Dial(context.Background()); err == nil {
				t.Errorf("dialled %s", addr)
			}
			if s := c.H2(context.Background(), "a", H2Post, "/"); s.Error == "" {
				t.Errorf("sent h2 to %s", addr)
			}
		}
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	conn, err := c.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if s := conn.Get(ctx, "a", H1First, "/", 0); s.Curl != ledger.CurlTimeout {
		t.Errorf("%+v", s)
	}
}
