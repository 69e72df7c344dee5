package cfg

import (
	"fmt"
	"strconv"
	"strings"
)

// serverLine reads server, server-template and default-server (server.c
// parse_server): a server begins as a copy of what default-server has come to by
// this line.
func (r *reader) serverLine(words []string) {
	p := r.cur
	if p.kind == builtIn || p.kind == inDefaults && words[0] != "default-server" {
		r.refuse("server-place", words[0]+" is not allowed in a "+p.Kind+" section.", "Put it into a backend.")
		return
	}
	if words[0] == "default-server" {
		if p.servers > 0 && p.LateDefault == 0 {
			p.LateDefault = r.line
		}
		l := onDefaultServer
		if p.kind == inDefaults {
			l = inDefaults
		}
		r.apply(&p.def, words[1:], l)
		return
	}
	low, high, rest, ok := r.serverHead(words)
	if !ok {
		return
	}
	a := parseAddress(rest[0], r.env)
	if a.problem != "" {
		r.refuse("address", fmt.Sprintf("server %s: %s.", words[1], a.problem), "Write ADDRESS:PORT.")
		return
	}
	r.c.Servers = append(r.c.Servers, p.def)
	s := &r.c.Servers[len(r.c.Servers)-1]
	s.Backend, s.px, s.files = p.Name, len(r.proxies)-1, r.c.Files
	s.File, s.Line = r.c.Files[r.file], r.line
	s.Name, s.template = words[1], words[0] == "server-template"
	s.Addr, s.Port, s.MapPorts = a.host, a.port, a.relative && a.network == "ip"
	s.marks[kAddr], s.marks[kSport] = r.at(onServer), r.at(onServer)
	r.apply(s, rest[1:], onServer)
	r.checkServer(s)
	p.servers++
	if s.template {
		r.slots(*s, low, high)
	}
}

// slots makes a server-template's servers of the first.
func (r *reader) slots(first Server, low, high int) {
	prefix := first.Name
	r.c.Servers = r.c.Servers[:len(r.c.Servers)-1]
	for i := low; i <= high; i++ {
		first.Name = prefix + strconv.Itoa(i)
		r.c.Servers = append(r.c.Servers, first)
	}
}

// serverHead reads the name and, of a template, the range; rest begins with the
// address.
func (r *reader) serverHead(words []string) (low, high int, rest []string, ok bool) {
	want, what := 3, "a name and an address"
	if words[0] == "server-template" {
		want, what = 4, "a prefix, a number or range and an address"
	}
	if len(words) < want {
		r.refuse("server-words", words[0]+" wants "+what+".", "Write them.")
		return 0, 0, nil, false
	}
	bad := badName(words[1])
	if want == 4 && bad == "" && strings.IndexByte(words[1], ':') >= 0 {
		bad = "the character ':'"
	}
	if bad != "" {
		r.refuse("name", fmt.Sprintf("the name %q of a %s has %s.", words[1], words[0], bad), "Use letters, digits and ._:- only.")
		return 0, 0, nil, false
	}
	if want == 4 {
		low, high = templateRange(words[2])
		if low < 0 || high < low {
			r.refuse("value", fmt.Sprintf("server-template range %q is not a number or LOW-HIGH.", words[2]), "Write as 5 or 1-5.")
			return 0, 0, nil, false
		}
	}
	if len(r.c.Servers)+high-low+1 > maxServers {
		r.refuse("too-many-servers", fmt.Sprintf("more than %d servers are not read.", maxServers), "Split the configuration.")
		return 0, 0, nil, false
	}
	return low, high, words[want-1:], true
}

// templateRange: N is 1 to N (server.c _srv_parse_tmpl_range).
func templateRange(s string) (low, high int) {
	if _, high, isRange := strings.Cut(s, "-"); isRange {
		return atoi(s), atoi(high)
	}
	return 1, atoi(s)
}

// apply applies the keywords of a line. The values of words that are not used
// here are stepped over, so that none is read as a keyword.
func (r *reader) apply(s *Server, words []string, l level) {
	set := setter{Server: s, env: r.env, at: r.at(l)}
	unknown := false
	for i := 0; i < len(words); {
		name := words[i]
		base, _, _ := strings.Cut(name, "(") // srv_find_kw takes what is before it: set-proxy-v2-tlv-fmt(0xE1)
		k, known := serverKeywords[base]
		if !known && unknown {
			i++ // the value of the one before, or more that nobody knows
			continue
		}
		if unknown = !known; unknown {
			r.warn("unknown-keyword", fmt.Sprintf("no HAProxy up to 3.4 has %q on a %s line; the rest of the line was read.", name, lineName(l)), "Correct the word.")
			i++
			continue
		}
		if k.since != "" && r.o.Version != "" && CompareVersions(r.o.Version, k.since) < 0 {
			r.refuse("newer-keyword", fmt.Sprintf("%s came with HAProxy %s; this one is %s.", name, k.since, r.o.Version), "Remove it, or upgrade.")
		}
		v := ""
		switch {
		case i+k.args < len(words):
			v = words[i+k.args]
		case k.bare:
			r.warn("value", name+" has no value, which HAProxy reads as 0 or as none.", "Write it.")
		default:
			r.refuse("value", name+" wants a value.", "Write it.")
			return
		}
		if k.onlyOn && l != onServer {
			r.warn("not-on-default-server", name+" is not accepted on default-server; HAProxy drops it with an alert.", "Move it to the server lines.")
		} else if k.set != nil {
			set.word, set.problem, set.odd = name, "", ""
			k.set(&set, v)
			r.report(&set, l)
		}
		i += 1 + k.args
		for base == "source" && i+1 < len(words) && sourceTail[words[i]] {
			i += 2
		}
	}
}

func lineName(l level) string {
	if l == onServer {
		return "server"
	}
	return "default-server"
}

func (r *reader) report(s *setter, l level) {
	if s.problem != "" {
		r.refuse("value", s.problem+".", "Correct the value; the one before it was kept.")
	}
	if s.odd == "" {
		return
	}
	f := Finding{ID: "value", Severity: Warning, Why: s.odd + ".", Fix: "Write one number with one unit."}
	if s.word == "port" || s.word == "agent-port" {
		f.ID, f.Fix = "check-port-word", "Write the number of the port."
	}
	if l == onServer {
		f.Server = s.Name
	}
	r.problem(f)
}

// checkServer is what _srv_parse_finalize refuses.
func (r *reader) checkServer(s *Server) {
	if s.Check && s.track != "" {
		r.serverProblem(s, "track-and-check", "checks itself and tracks another, which HAProxy refuses", "Remove check or track (no-check undoes a default-server).")
	}
	if s.Agent && s.agentPort == 0 {
		r.serverProblem(s, "agent-without-port", "has agent-check and no agent port, which HAProxy refuses: it is not agent-checked", "Add agent-port PORT.")
		s.Agent = false
	}
}

func (r *reader) serverProblem(s *Server, id, why, fix string) {
	r.problem(Finding{ID: id, Severity: Error, Backend: s.Backend, Server: s.Name, Why: s.Name + " " + why + ".", Fix: fix, Refused: true})
}

// settle is what HAProxy does after the last line (check_config_validity): what
// depends on the whole section, and on other sections.
func (r *reader) settle() {
	r.cur = nil
	r.c.byName = make(map[string]int, len(r.proxies))
	r.c.Backends = make([]Backend, len(r.proxies))
	for i, p := range r.proxies {
		p.ConnectPort = p.connectPort()
		r.c.Backends[i] = p.Backend
		if first, ok := r.c.byName[p.Name]; ok {
			r.settled(&r.c.Backends[i], nil, "duplicate-backend", fmt.Sprintf("%s %s has the name of the one at %s:%d.", p.Kind, p.Name,
				r.c.Backends[first].File, r.c.Backends[first].Line), "Give each its own name.")
			continue
		}
		r.c.byName[p.Name] = i
	}
	r.c.StateFile = statePath(r.c.Global.StateBase, r.c.Global.StateFile)
	index := make(map[serverKey]int, len(r.c.Servers))
	for i := range r.c.Servers {
		s := &r.c.Servers[i]
		r.effective(s, r.proxies[s.px])
		if first, ok := index[serverKey{s.px, s.Name}]; ok {
			r.settled(nil, s, "duplicate-server", fmt.Sprintf("another server %s stands at line %d.", s.Name, r.c.Servers[first].Line), "Give each its own name.")
			continue
		}
		index[serverKey{s.px, s.Name}] = i
	}
	t := tracker{r: r, index: index, root: make([]int, len(r.c.Servers))}
	for i := range r.c.Servers {
		if r.c.Servers[i].track != "" {
			t.resolve(i)
		}
	}
	for i := range r.c.Servers {
		if root := t.root[i]; root > 0 {
			r.c.Servers[i].follow(&r.c.Servers[root-1])
		}
	}
}

type serverKey struct {
	px   int
	name string
}

// settled keeps a finding about a section or a server after the last line.
// check_config_validity does not look at the servers of a disabled section.
func (r *reader) settled(b *Backend, s *Server, id, why, fix string) {
	if s != nil && r.proxies[s.px].Disabled {
		return
	}
	f := Finding{ID: id, Severity: Error, Why: why, Fix: fix, Refused: true}
	if b != nil {
		f.File, f.Line, f.Backend = b.File, b.Line, b.Name
	} else {
		f.File, f.Line, f.Backend, f.Server = s.File, s.Line, s.Backend, s.Name
	}
	r.note(f)
}

// effective fills in what a server has of its backend and what is derived.
func (r *reader) effective(s *Server, p *proxy) {
	s.Mode, s.marks[kMode] = p.Mode, p.modeAt
	s.TimeoutCheck, s.marks[kTimeoutCheck] = p.TimeoutCheck, p.checkTimeoutAt
	s.TimeoutConnect, s.marks[kTimeoutConnect] = p.TimeoutConnect, p.connectTimeoutAt
	s.spread = r.c.Global.SpreadChecks
	if s.Source == "" && p.source != "" {
		s.Source, s.marks[kSource] = p.source, p.sourceAt
	}
	s.FastInter, s.DownInter = s.fastInter, s.downInter
	if s.FastInter == 0 {
		s.FastInter, s.marks[kFastinter] = s.Inter, s.marks[kInter]
	}
	if s.DownInter == 0 {
		s.DownInter, s.marks[kDowninter] = s.Inter, s.marks[kInter]
	}
	if s.AgentAddr, s.AgentPort = s.agentAddr, s.agentPort; s.AgentAddr == "" {
		s.AgentAddr, s.marks[kAgentAddr] = s.Addr, s.marks[kAddr]
	}
	s.CheckAddr = s.checkAddr
	if s.Check {
		r.effectiveCheck(s, p)
	}
}

// effectiveCheck is the type and the port of the check (tcpcheck.c
// srv_check_healthcheck_port; init_srv_check for what has none).
func (r *reader) effectiveCheck(s *Server, p *proxy) {
	if s.Type = "healthcheck"; s.healthcheck == "" {
		s.Type, s.marks[kType] = p.CheckType, p.typeAt
	}
	switch connect := p.connectPort(); {
	case connect > 0:
		s.CheckPort = connect
	case s.checkPort > 0:
		s.CheckPort = s.checkPort
	case s.checkAddrPort > 0:
		s.CheckPort, s.marks[kCheckPort] = s.checkAddrPort, s.marks[kCheckAddr]
	case !s.MapPorts:
		s.CheckPort, s.marks[kCheckPort] = s.Port, s.marks[kSport]
	}
	if s.CheckPort == 0 && s.MapPorts {
		r.settled(nil, s, "no-check-port", "server "+s.Name+" has neither a port of its own nor a check port.", "Write ADDRESS:PORT, or port PORT for the check.")
	}
}

// follow gives a tracking server the check of the one it tracks: `show stat`
// reports it with that one's, and goes down with it (stats.c stats_fill_sv_stats).
func (s *Server) follow(root *Server) {
	s.TrackRoot = root.Backend + "/" + root.Name
	s.Type, s.CheckPort, s.CheckAddr = root.Type, root.CheckPort, root.CheckAddr
	s.Inter, s.FastInter, s.DownInter = root.Inter, root.FastInter, root.DownInter
	s.Rise, s.Fall = root.Rise, root.Fall
	s.TimeoutCheck, s.TimeoutConnect = root.TimeoutCheck, root.TimeoutConnect
	if s.CheckAddr == "" && root.Addr != s.Addr {
		s.CheckAddr, s.marks[kCheckAddr] = root.Addr, root.marks[kAddr]
	} else {
		s.marks[kCheckAddr] = root.marks[kCheckAddr]
	}
	for _, k := range []key{kType, kCheckPort, kInter, kFastinter, kDowninter, kRise, kFall, kTimeoutCheck, kTimeoutConnect} {
		s.marks[k] = root.marks[k]
	}
}

// tracker resolves track chains (server.c srv_apply_track). root is 1 + the
// index of the end of a server's chain; 0 not looked at, -1 no end, -2 on the
// chain that is being followed.
type tracker struct {
	r     *reader
	index map[serverKey]int
	root  []int
}

// resolve follows the chain that begins at a server and settles all on it.
func (t *tracker) resolve(i int) {
	var chain []int
	end := -1
	for at := i; ; {
		if t.root[at] != 0 {
			if t.root[at] == -2 {
				t.refuse(at, "track-loop", "belongs to a track chain that leads back to itself", "Let one of the chain check itself.")
			} else {
				end = t.root[at]
			}
			break
		}
		s := &t.r.c.Servers[at]
		if s.track == "" {
			if end = at + 1; !s.Check && !s.Agent {
				end = -1
				t.refuse(chain[len(chain)-1], "track-no-root", "tracks "+s.Backend+"/"+s.Name+", which has neither check nor agent-check",
					"Add check there, or track a server that has it.")
			}
			break
		}
		t.root[at] = -2
		chain = append(chain, at)
		next, ok := t.next(at)
		if !ok {
			break
		}
		at = next
	}
	for _, at := range chain {
		t.root[at] = end
	}
}

// next finds the server that one tracks.
func (t *tracker) next(i int) (int, bool) {
	s := &t.r.c.Servers[i]
	px, name := s.px, s.track
	if cut := strings.LastIndexByte(s.track, '/'); cut >= 0 {
		backend := s.track[:cut]
		name = s.track[cut+1:]
		found, ok := t.r.c.byName[backend]
		if !ok {
			t.refuse(i, "track-no-root", "tracks "+s.track+", and there is no backend "+backend, "Correct the name.")
			return 0, false
		}
		px = found
	}
	s.Track = t.r.proxies[px].Name + "/" + name
	next, ok := t.index[serverKey{px, name}]
	if !ok {
		t.refuse(i, "track-no-root", "tracks "+s.Track+", and there is no such server", "Correct the name.")
		return 0, false
	}
	if own, other := t.r.proxies[s.px], t.r.proxies[px]; own != other && own.DisableOn404 != other.DisableOn404 {
		t.refuse(i, "track-404", "tracks a server of a backend where http-check disable-on-404 is not the same as here", "Set it in both, or in none.")
	}
	return next, true
}

func (t *tracker) refuse(i int, id, why, fix string) {
	s := &t.r.c.Servers[i]
	t.r.settled(nil, s, id, s.Name+" "+why+".", fix)
}
