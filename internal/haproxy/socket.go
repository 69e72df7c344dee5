package haproxy

import (
	"fmt"
	"net"
	"strings"
)

// Socket is the address of an admin socket.
type Socket struct {
	Network string // "unix" or "tcp"
	Address string // a path, or HOST:PORT
}

// maxPath is what fits into sun_path with its NUL.
const maxPath = 107

// ParseSocket reads unix:PATH, a PATH that starts with / or ., or tcp:HOST:PORT.
func ParseSocket(s string) (Socket, error) {
	network, address, ok := strings.Cut(s, ":")
	if strings.HasPrefix(s, "/") || strings.HasPrefix(s, ".") {
		network, address, ok = "unix", s, true
	}
	switch {
	case !ok || address == "" || strings.ContainsFunc(s, control):
	case network == "unix" && len(address) > maxPath:
		return Socket{}, fmt.Errorf("socket %q: the path is longer than %d bytes", s, maxPath)
	case network == "unix":
		return Socket{Network: network, Address: address}, nil
	case network == "tcp":
		if _, port, err := net.SplitHostPort(address); err == nil && port != "" {
			return Socket{Network: network, Address: address}, nil
		}
	}
	return Socket{}, fmt.Errorf("socket %q: want unix:PATH, /PATH or tcp:HOST:PORT", s)
}

// String is a form that ParseSocket reads.
func (s Socket) String() string { return s.Network + ":" + s.Address }

func control(r rune) bool { return r < ' ' || r == 0x7f }
