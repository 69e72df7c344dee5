package haproxy

import (
	"fmt"
	"strconv"
)

// State is what `set server … state` takes.
type State string

const (
	Drain State = "drain" // nothing new; what runs goes on, until the health check fails
	Maint State = "maint" // out; with on-marked-down shutdown-sessions everything on it is cut
	Ready State = "ready" // from MAINT: takes traffic at once, before any check
)

// Command is one runtime command about one server. The zero Command, and one
// made from a name that HAProxy cannot have, is refused before anything is
// sent. Commands compare with ==.
type Command struct {
	line            string
	backend, server string
}

// String is the exact runtime line.
func (c Command) String() string { return c.line }

// Backend and Server are whom it is about.
func (c Command) Backend() string { return c.backend }

// Server is the server's name.
func (c Command) Server() string { return c.server }

// SetState is `set server B/S state …`.
func SetState(backend, server string, s State) Command {
	if s != Drain && s != Maint && s != Ready {
		return refused(backend, server)
	}
	return about("set server ", backend, server, " state "+string(s))
}

// DisableAgent is `disable agent B/S`: the words of the agent have no effect
// any more, the one on its way included.
func DisableAgent(backend, server string) Command {
	return about("disable agent ", backend, server, "")
}

// EnableAgent is `enable agent B/S`.
func EnableAgent(backend, server string) Command {
	return about("enable agent ", backend, server, "")
}

// DisableHealth is `disable health B/S`. A check in progress still counts:
// wait until InProgress is off.
func DisableHealth(backend, server string) Command {
	return about("disable health ", backend, server, "")
}

// EnableHealth is `enable health B/S`.
func EnableHealth(backend, server string) Command {
	return about("enable health ", backend, server, "")
}

// SetWeight is `set server B/S weight N`, N in [0, 256].
func SetWeight(backend, server string, weight int) Command {
	if weight < 0 || weight > 256 {
		return refused(backend, server)
	}
	return about("set server ", backend, server, " weight "+strconv.Itoa(weight))
}

// ShutdownSessions is `shutdown sessions server B/S`: cuts everything on it.
func ShutdownSessions(backend, server string) Command {
	return about("shutdown sessions server ", backend, server, "")
}

func about(verb, backend, server, rest string) Command {
	if CheckName(backend) != nil || CheckName(server) != nil {
		return refused(backend, server)
	}
	return Command{line: verb + backend + "/" + server + rest, backend: backend, server: server}
}

func refused(backend, server string) Command {
	return Command{backend: backend, server: server}
}

// check refuses what no constructor made whole.
func (c Command) check() error {
	for _, name := range []string{c.backend, c.server} {
		if err := CheckName(name); err != nil {
			return err
		}
	}
	if c.line == "" {
		return fmt.Errorf("command about %s/%s: value out of range", c.backend, c.server)
	}
	return nil
}

// CheckName refuses what HAProxy does not take as the name of a backend or
// server: anything but 1 to 255 letters, digits and _.:- (tools.c,
// invalid_char). A newline, a `;` or a space would start another command, a
// leading # would address by number.
func CheckName(name string) error {
	ok := name != "" && len(name) <= 255
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			c == '_' || c == '.' || c == ':' || c == '-'
	}
	if !ok {
		return fmt.Errorf("name %.260q: want 1 to 255 letters, digits and _.:-", name)
	}
	return nil
}
