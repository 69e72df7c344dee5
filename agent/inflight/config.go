package inflight

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
func (l *listeners) add(body io.Reader) error {
	type state struct {
		Listener listenerConfig `json:"listener"`
	}
	return eachOf(body, "configs", func(dec *json.Decoder) error {
		var c struct {
			Listener listenerConfig `json:"listener"`
			Active   state          `json:"active_state"`
			Warming  state          `json:"warming_state"`
			Draining state          `json:"draining_state"`
		}
		if err := dec.Decode(&c); err != nil {
			return err
		}
		for _, s := range []listenerConfig{c.Listener, c.Active.Listener, c.Warming.Listener, c.Draining.Listener} {
			if err := l.one(s); err != nil {
				return err
			}
		}
		return nil
	})
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

type clusterStatus struct {
	Name  string `json:"name"`
	Hosts []struct {
		Stats []struct {
			Name  string          `json:"name"`
			Value json.RawMessage `json:"value"`
		} `json:"stats"`
	} `json:"host_statuses"`
}

// parseClusters sums what /clusters says of the hosts of every cluster but the
// excluded.
func parseClusters(body io.Reader, exclude []string) (handshake.Count, error) {
	total, hosts := handshake.Known(0), 0
	err := eachOf(body, "cluster_statuses", func(dec *json.Decoder) error {
		var c clusterStatus
		if err := dec.Decode(&c); err != nil {
			return err
		}
		if matches(exclude, c.Name) {
			return nil
		}
		n, err := c.active()
		total, hosts = total.Add(n), hosts+len(c.Hosts)
		return err
	})
	if err != nil {
		return handshake.Count{}, err
	}
	if hosts == 0 {
		return handshake.Count{}, errors.New("no cluster that counts has a host")
	}
	return total, nil
}

// active counts the requests that run on the cluster's hosts and, unlike
// rq_active alone, those that still wait for a connection (on 1.40 such a
// request shows in rq_pending_active only). Numbers are strings there, and one
// that is 0 has no value at all.
func (c clusterStatus) active() (handshake.Count, error) {
	total := handshake.Known(0)
	for _, h := range c.Hosts {
		shown := false
		for _, s := range h.Stats {
			if s.Name != "rq_active" && s.Name != "rq_pending_active" {
				continue
			}
			shown = shown || s.Name == "rq_active"
			n := handshake.Known(0)
			if s.Value != nil {
				n = quoted(s.Value)
			}
			if !n.Known {
				return n, fmt.Errorf("cluster %q: %s is no count", c.Name, s.Name)
			}
			total = total.Add(n)
		}
		if !shown {
			return handshake.Count{}, fmt.Errorf("cluster %q: no rq_active", c.Name)
		}
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
