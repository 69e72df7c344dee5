package inflight

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"lbdrain/internal/handshake"
)

// listeners is what Envoy is configured to do, whatever its statistics show.
type listeners struct {
	managers []string          // stat_prefix of every HTTP connection manager, as in the statistics
	byName   map[string]string // listener's configured name → its name in the statistics
	tcp      []string          // statistics' names of listeners with a tcp_proxy
}

type listenerConfig struct {
	Name       string `json:"name"`
	StatPrefix string `json:"stat_prefix"`
	Address    struct {
		Socket struct {
			Address string `json:"address"`
			Port    int    `json:"port_value"`
		} `json:"socket_address"`
	} `json:"address"`
	Chains  []filterChain `json:"filter_chains"`
	Default filterChain   `json:"default_filter_chain"`
}

type filterChain struct {
	Filters []struct {
		Name   string `json:"name"`
		Config struct {
			Type       string `json:"@type"`
			StatPrefix string `json:"stat_prefix"`
		} `json:"typed_config"`
	} `json:"filters"`
}

// add reads one answer of /config_dump. Listeners that warm up or drain count
// like the active ones: they have connection managers too.
func (l *listeners) add(body []byte) error {
	type state struct {
		Listener listenerConfig `json:"listener"`
	}
	var doc struct {
		Configs []struct {
			Listener listenerConfig `json:"listener"`
			Active   state          `json:"active_state"`
			Warming  state          `json:"warming_state"`
			Draining state          `json:"draining_state"`
		} `json:"configs"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return fmt.Errorf("not Envoy's JSON of listeners: %w", err)
	}
	for _, c := range doc.Configs {
		for _, s := range []listenerConfig{c.Listener, c.Active.Listener, c.Warming.Listener, c.Draining.Listener} {
			if err := l.one(s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *listeners) one(c listenerConfig) error {
	own := c.StatPrefix
	if own == "" {
		own = net.JoinHostPort(c.Address.Socket.Address, strconv.Itoa(c.Address.Socket.Port))
	}
	own = sanitize(own)
	if c.Name != "" {
		if l.byName == nil {
			l.byName = map[string]string{}
		}
		l.byName[c.Name] = own
	}
	for _, chain := range append(c.Chains, c.Default) {
		for _, f := range chain.Filters {
			switch {
			case f.Config.Type == "":
				return fmt.Errorf("listener %q has filter %q from elsewhere", c.Name, f.Name)
			case strings.HasSuffix(f.Config.Type, ".HttpConnectionManager"):
				l.managers = insert(l.managers, sanitize(f.Config.StatPrefix))
			case strings.HasSuffix(f.Config.Type, ".TcpProxy"):
				l.tcp = insert(l.tcp, own)
			}
		}
	}
	return nil
}

// insert keeps a sorted set.
func insert(set []string, s string) []string {
	if i, there := slices.BinarySearch(set, s); !there {
		return slices.Insert(set, i, s)
	}
	return set
}

// parseClusters sums what /clusters says of the hosts of every cluster but the
// excluded: requests that run and those that wait for a connection. Numbers are
// strings there, and one that is 0 has no value at all.
func parseClusters(body []byte, exclude []string) (handshake.Count, error) {
	var doc struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Stats []struct {
					Name  string          `json:"name"`
					Value json.RawMessage `json:"value"`
				} `json:"stats"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return handshake.Count{}, fmt.Errorf("not Envoy's JSON of clusters: %w", err)
	}
	total, counted := handshake.Known(0), 0
	for _, c := range doc.Clusters {
		if matches(exclude, c.Name) {
			continue
		}
		for _, h := range c.Hosts {
			active := false
			for _, s := range h.Stats {
				if s.Name != "rq_active" && s.Name != "rq_pending_active" {
					continue
				}
				active = active || s.Name == "rq_active"
				n := handshake.Known(0)
				if s.Value != nil {
					n = quoted(s.Value)
				}
				if !n.Known {
					return n, fmt.Errorf("cluster %q: %s is no count", c.Name, s.Name)
				}
				total = total.Add(n)
			}
			if !active {
				return handshake.Count{}, fmt.Errorf("cluster %q: no rq_active", c.Name)
			}
			counted++
		}
	}
	if counted == 0 {
		return handshake.Count{}, errors.New("no cluster that counts has a host")
	}
	return total, nil
}

// quoted reads a number in a JSON string.
func quoted(v json.RawMessage) handshake.Count {
	var s string
	if json.Unmarshal(v, &s) != nil || string(v) == "null" {
		return handshake.Count{}
	}
	return integer(s)
}

// Info is what Envoy says of itself.
type Info struct {
	Version   string        // "1.40.0"
	State     string        // LIVE, DRAINING, PRE_INITIALIZING or INITIALIZING
	DrainTime time.Duration // --drain-time-s; 0 if it does not say
	Uptime    time.Duration // of this process, in whole seconds
}

// parseInfo reads /server_info.
func parseInfo(body []byte) (Info, error) {
	var doc struct {
		Version string `json:"version"`
		State   string `json:"state"`
		Uptime  string `json:"uptime_current_epoch"`
		Options struct {
			DrainTime string `json:"drain_time"`
		} `json:"command_line_options"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return Info{}, fmt.Errorf("not Envoy's /server_info: %w", err)
	}
	if doc.State == "" {
		return Info{}, errors.New("not Envoy's /server_info: no state")
	}
	i := Info{Version: doc.Version, State: doc.State}
	// commit/version/tree/build/TLS library
	if parts := strings.Split(doc.Version, "/"); len(parts) > 1 {
		i.Version = parts[1]
	}
	var err error
	if i.Uptime, err = time.ParseDuration(doc.Uptime); err != nil || i.Uptime < 0 {
		return Info{}, fmt.Errorf("/server_info: uptime_current_epoch %.40q is no duration", doc.Uptime)
	}
	if doc.Options.DrainTime == "" {
		return i, nil
	}
	if i.DrainTime, err = time.ParseDuration(doc.Options.DrainTime); err != nil || i.DrainTime < 0 {
		return Info{}, fmt.Errorf("/server_info: drain_time %.40q is no duration", doc.Options.DrainTime)
	}
	return i, nil
}
