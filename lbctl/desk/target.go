package desk

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/keeper"
)

// ErrNoMatch says that a target names no server.
var ErrNoMatch = errors.New("no such server")

// AmbiguousError is a target that means servers of several pods.
type AmbiguousError struct {
	Target string
	Means  []string // as they can be typed, with their pod or address
}

// maxMeans is how many of them are told.
const maxMeans = 20

func (e *AmbiguousError) Error() string {
	means, more := e.Means, ""
	if len(means) > maxMeans {
		means, more = means[:maxMeans], fmt.Sprintf("\n  … and %d more", len(means)-maxMeans)
	}
	return fmt.Sprintf("%s could mean servers of different pods:\n  %s%s", e.Target, strings.Join(means, "\n  "), more)
}

// Targets says which servers people mean.
type Targets struct {
	Servers  []haproxy.Server
	Pods     map[string]string // agent by backend/server, where known
	Backends []string          // only these; empty: all
}

// All are the servers of the backends.
func (t Targets) All() []keeper.Key {
	var keys []keeper.Key
	for _, s := range t.Servers {
		if t.within(s) {
			keys = append(keys, keeper.Key{Backend: s.Backend, Server: s.Name})
		}
	}
	return keys
}

func (t Targets) within(s haproxy.Server) bool {
	return len(t.Backends) == 0 || slices.Contains(t.Backends, s.Backend)
}

// Find resolves one target: backend/server, a server's name in every backend, or
// the addr:port of a server or of a pod's agent. The error wraps ErrNoMatch or is
// an *AmbiguousError.
func (t Targets) Find(target string) ([]keeper.Key, error) {
	if target == "" { // what an unset variable leaves of a command line
		return nil, fmt.Errorf("empty target: %w", ErrNoMatch)
	}
	backend, name, exact := strings.Cut(target, "/")
	var found []haproxy.Server
	for _, s := range t.Servers {
		match := exact && s.Backend == backend && s.Name == name
		if !exact {
			match = s.Name == target || t.pod(s) == target || net.JoinHostPort(s.Addr, strconv.Itoa(s.Port)) == target
		}
		if match && t.within(s) {
			found = append(found, s)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: %w", target, ErrNoMatch)
	}
	var keys []keeper.Key
	var means []string
	same := true
	for _, s := range found {
		keys = append(keys, keeper.Key{Backend: s.Backend, Server: s.Name})
		means = append(means, fmt.Sprintf("%s/%s (%s)", s.Backend, s.Name, t.whose(s)))
		same = same && t.whose(s) == t.whose(found[0])
	}
	if !same {
		return nil, &AmbiguousError{target, means}
	}
	return keys, nil
}

func (t Targets) pod(s haproxy.Server) string { return t.Pods[s.Backend+"/"+s.Name] }

// whose is what makes two servers the same pod: their agent, else their address.
func (t Targets) whose(s haproxy.Server) string {
	if p := t.pod(s); p != "" {
		return "agent " + p
	}
	return net.JoinHostPort(s.Addr, strconv.Itoa(s.Port))
}

// Meant lists what targets could be, at most n of them.
func (t Targets) Meant(n int) string {
	var names []string
	for _, key := range t.All() {
		if len(names) == n {
			names = append(names, "…")
			break
		}
		names = append(names, key.String())
	}
	return strings.Join(names, " ")
}
