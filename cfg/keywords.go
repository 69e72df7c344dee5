package cfg

import "strings"

// serverKeywords is what may stand on a server or default-server line: the 100
// words of 2.6 (`haproxy -dKall`, srv_kw_list in server.c, check.c,
// cfgparse-ssl.c, cfgparse-tcp.c) and those that came up to 3.5. The number of
// arguments is what keeps a value from being read as a keyword.
var serverKeywords = map[string]keyword{
	"check":          {set: func(s *setter, _ string) { s.flag(kCheck, &s.Check, true) }},
	"no-check":       {set: func(s *setter, _ string) { s.flag(kCheck, &s.Check, false) }},
	"backup":         {set: func(s *setter, _ string) { s.flag(kBackup, &s.Backup, true) }},
	"no-backup":      {set: func(s *setter, _ string) { s.flag(kBackup, &s.Backup, false) }},
	"disabled":       {set: func(s *setter, _ string) { s.flag(kDisabled, &s.Disabled, true) }},
	"enabled":        {set: func(s *setter, _ string) { s.flag(kDisabled, &s.Disabled, false) }},
	"agent-check":    {set: func(s *setter, _ string) { s.flag(kAgent, &s.Agent, true) }},
	"no-agent-check": {set: noAgent},

	"inter":       {args: 1, set: func(s *setter, v string) { s.duration(kInter, &s.Inter, v, true) }},
	"fastinter":   {args: 1, set: func(s *setter, v string) { s.duration(kFastinter, &s.fastInter, v, true) }},
	"downinter":   {args: 1, set: func(s *setter, v string) { s.duration(kDowninter, &s.downInter, v, true) }},
	"agent-inter": {args: 1, set: func(s *setter, v string) { s.duration(kAgentInter, &s.AgentInter, v, true) }},
	"slowstart":   {args: 1, set: func(s *setter, v string) { s.duration(kSlowstart, &s.Slowstart, v, false) }},

	"rise":    {args: 1, set: func(s *setter, v string) { s.number(kRise, &s.Rise, v, 1, 1<<31-1) }},
	"fall":    {args: 1, set: func(s *setter, v string) { s.number(kFall, &s.Fall, v, 1, 1<<31-1) }},
	"weight":  {args: 1, set: func(s *setter, v string) { s.number(kWeight, &s.Weight, v, 0, 256) }, bare: true},
	"maxconn": {args: 1, set: func(s *setter, v string) { s.number(kMaxconn, &s.Maxconn, v, -1<<31, 1<<31-1) }, bare: true},

	"port":       {args: 1, set: checkPort},
	"agent-port": {args: 1, set: agentPort},
	"addr":       {args: 1, set: checkAddr},
	"agent-addr": {args: 1, set: agentAddr},
	"agent-send": {args: 1, set: func(s *setter, v string) { s.text(kAgentSend, &s.AgentSend, v) }},

	"track":      {args: 1, set: func(s *setter, v string) { s.text(kTrack, &s.track, v) }},
	"cookie":     {args: 1, set: func(s *setter, v string) { s.text(kCookie, &s.Cookie, v) }},
	"resolvers":  {args: 1, set: func(s *setter, v string) { s.text(kResolvers, &s.Resolvers, v) }},
	"source":     {args: 1, set: func(s *setter, v string) { s.text(kSource, &s.Source, sourceAddress(v, s.env)) }},
	"observe":    {args: 1, set: func(s *setter, v string) { s.oneOf(kObserve, &s.Observe, v, "layer4", "layer7", "none") }},
	"on-error":   {args: 1, set: onError},
	"init-state": {args: 1, set: initState, since: "3.1"},
	"on-marked-down": {args: 1, set: func(s *setter, v string) {
		s.oneOf(kOnMarkedDown, &s.OnMarkedDown, v, "shutdown-sessions")
	}},
	"on-marked-up": {args: 1, set: func(s *setter, v string) {
		s.oneOf(kOnMarkedUp, &s.OnMarkedUp, v, "shutdown-backup-sessions")
	}},
	"healthcheck": {args: 1, set: func(s *setter, v string) { s.text(kType, &s.healthcheck, v) }, since: "3.4"},

	"init-addr": {args: 1, bare: true},
	"maxqueue":  {args: 1, bare: true},
	"minconn":   {args: 1, bare: true},

	"id":   {args: 1, onlyOn: true},
	"guid": {args: 1, onlyOn: true, since: "3.0"},
}

// The words whose values this package has no use for, by how many words they
// take. A word with a colon came with that version.
const (
	plainWords = `allow-0rtt check-send-proxy check-ssl check-via-socks4
		force-sslv3 force-tlsv10 force-tlsv11 force-tlsv12 force-tlsv13
		no-check-send-proxy no-check-ssl no-send-proxy no-send-proxy-v2 no-send-proxy-v2-ssl
		no-send-proxy-v2-ssl-cn no-ssl no-ssl-reuse no-sslv3 no-tfo no-tls-tickets no-tlsv10
		no-tlsv11 no-tlsv12 no-tlsv13 non-stick send-proxy send-proxy-v2 send-proxy-v2-ssl
		send-proxy-v2-ssl-cn ssl ssl-reuse stick tfo tls-tickets
		check-reuse-pool:3.2 no-check-reuse-pool:3.2 strict-maxconn:3.2 check-sni-auto:3.3
		no-check-sni-auto:3.3 sni-auto:3.3 no-sni-auto:3.3 renegotiate:3.3 no-renegotiate:3.3`
	valueWords = `alpn ca-file check-alpn check-proto check-sni ciphers ciphersuites crl-file crt
		error-limit log-proto max-reuse namespace npn pool-low-conn pool-max-conn
		pool-purge-delay proto proxy-v2-options redir resolve-net resolve-opts resolve-prefer
		sni socks4 ssl-max-ver ssl-min-ver tcp-ut verify verifyhost ws shard:2.7
		client-sigalgs:2.9 curves:2.9 log-bufsize:2.9 set-proxy-v2-tlv-fmt:2.9 sigalgs:2.9
		hash-key:3.0 pool-conn-name:3.0 check-pool-conn-name:3.2 idle-ping:3.2 cc:3.3 ktls:3.3
		tcp-md5sig:3.3 quic-cc-algo:3.4`
)

func init() {
	for args, words := range []string{plainWords, valueWords} {
		for _, w := range strings.Fields(words) {
			name, since, _ := strings.Cut(w, ":")
			serverKeywords[name] = keyword{args: args, since: since}
		}
	}
}

func noAgent(s *setter, _ string) {
	s.flag(kAgent, &s.Agent, false)
	s.text(kAgentSend, &s.AgentSend, "") // deinit_srv_agent_check frees it
}

// checkPort: the agent goes there too, unless agent-port was ever said.
func checkPort(s *setter, v string) {
	s.port(kCheckPort, &s.checkPort, v)
	if !s.agentPortSet {
		s.agentPort = s.checkPort
		s.mark(kAgentPort)
	}
}

func agentPort(s *setter, v string) {
	s.port(kAgentPort, &s.agentPort, v)
	s.agentPortSet = true
}

// checkAddr: the agent goes there too, unless agent-addr was ever said.
func checkAddr(s *setter, v string) {
	a := parseAddress(v, s.env)
	if a.problem != "" {
		s.problem = s.word + " " + a.problem
		return
	}
	s.checkAddr, s.checkAddrPort = a.host, a.port
	s.mark(kCheckAddr)
	if !s.agentAddrSet {
		s.agentAddr = a.host
		s.mark(kAgentAddr)
	}
}

func agentAddr(s *setter, v string) {
	s.agentAddr, s.agentAddrSet = v, true
	s.mark(kAgentAddr)
}

func onError(s *setter, v string) {
	s.oneOf(kOnError, &s.OnError, v, "fastinter", "fail-check", "sudden-death", "mark-down")
}

func initState(s *setter, v string) {
	s.oneOf(kInitState, &s.InitState, v, "up", "fully-up", "down", "fully-down", "none")
}

// Words that begin what may follow `source ADDRESS`.
var sourceTail = map[string]bool{"usesrc": true, "interface": true}

// proxyKeywords and globalKeywords are what may begin a line there, in 2.6 to
// 3.5: the common_kw_list of cfgparse-listen.c and cfgparse-global.c and every
// CFG_LISTEN and CFG_GLOBAL registration (of those, tune.* is taken whole). Not to interpret them: to say of a word
// that no version knows it.
var (
	proxyKeywords  = wordSet(proxyWords)
	globalKeywords = wordSet(globalWords)
	proxyOptions   = wordSet(optionWords)
	sections       = wordSet(sectionWords)
)

func wordSet(words string) map[string]bool {
	set := make(map[string]bool)
	for _, w := range strings.Fields(words) {
		set[w] = true
	}
	return set
}

const sectionWords = `acme backend cache crt-store defaults fcgi-app frontend global healthcheck
	http-errors listen log-forward log-profile mailers namespace_list peers program resolvers ring
	spoe-agent spoe-group spoe-message traces userlist`

const proxyWords = `acl appsession backend backlog balance be-unpublished bind bind-process block capture cliexp
	clitcpka-cnt clitcpka-idle clitcpka-intvl clitimeout compression contimeout cookie declare
	default-server default_backend defaults description disabled dispatch dynamic-cookie-key email-alert
	enabled error-log-format errorfile errorfiles errorloc errorloc302 errorloc303 external-check filter
	filter-sequence force-be-switch force-persist frontend fullconn grace guid hash-balance-factor
	hash-preserve-affinity hash-type http-after-response http-check http-error http-request
	http-response http-reuse http-send-name-header id ignore-persist listen load-server-state-from-file
	log log-balance log-format log-format-sd log-steps log-tag max-keep-alive-queue
	max-session-srv-conns maxconn mode monitor monitor-net monitor-uri option persist quic-initial
	rate-limit redirect redisp redispatch reqadd reqallow reqdel reqdeny reqiallow reqidel reqideny
	reqipass reqirep reqitarpit reqpass reqrep reqtarpit retries retry-on rspadd rspdel rspdeny rspidel
	rspideny rspirep rsprep server server-state-file-name server-template source srvexp srvtcpka-cnt
	srvtcpka-idle srvtcpka-intvl srvtimeout ssl-f-use stats stick stick-table tcp-check tcp-request
	tcp-response timeout transparent unique-id-format unique-id-header use-fcgi-app use-server
	use_backend usesrc`

const globalWords = `51degrees-allow-unmatched 51degrees-cache-size 51degrees-data-file 51degrees-difference
	51degrees-drift 51degrees-property-name-list 51degrees-property-separator
	51degrees-use-performance-graph 51degrees-use-predictive-graph acme.scheduler anonkey busy-polling
	ca-base chroot close-spread-time cluster-secret cpu-affinity cpu-map cpu-policy cpu-set crt-base
	daemon debug.counters default-path description deviceatlas-cache-size deviceatlas-json-file
	deviceatlas-log-level deviceatlas-properties-cookie deviceatlas-property-separator dns-accept-family
	expose-deprecated-directives expose-experimental-directives external-check fd-hard-limit
	force-cfg-parser-pause gid global grace group h1-accept-payload-with-any-method h1-case-adjust
	h1-case-adjust-file h1-do-not-close-on-insecure-transfer-encoding
	h2-workaround-bogus-websocket-clients hard-stop-after harden.reject-privileged-ports.quic
	harden.reject-privileged-ports.tcp http-err-codes http-fail-codes httpclient.resolvers.disabled
	httpclient.resolvers.id httpclient.resolvers.prefer httpclient.retries httpclient.ssl.ca-file
	httpclient.ssl.verify httpclient.timeout.connect insecure-fork-wanted insecure-setuid-wanted
	issuers-chain-path jwt.decrypt_alg_list jwt.decrypt_enc_list key-base limited-quic localpeer log
	log-send-hostname log-tag lua-load lua-load-per-thread lua-prepend-path master-worker
	max-spread-checks max-threads-per-group maxcompcpuusage maxcomprate maxconn maxconnrate maxpipes
	maxsessrate maxsslconn maxsslrate maxzlibmem mworker-max-reloads nbproc nbthread no-memory-trimming
	no-quic node noepoll noevports nogetaddrinfo nokqueue noktls nopoll noreuseport nosplice
	numa-cpu-mapping ocsp-update.disable ocsp-update.httpproxy ocsp-update.maxdelay ocsp-update.mindelay
	ocsp-update.mode pidfile pp2-never-send-local prealloc-fd presetenv profiling.memory profiling.tasks
	quick-exit quiet resetenv server-state-base server-state-file set-dumpable set-var set-var-fmt
	setcap setenv shm-stats-file shm-stats-file-max-objects spread-checks ssl-default-bind-ciphers
	ssl-default-bind-ciphersuites ssl-default-bind-client-sigalgs ssl-default-bind-curves
	ssl-default-bind-options ssl-default-bind-sigalgs ssl-default-server-ciphers
	ssl-default-server-ciphersuites ssl-default-server-client-sigalgs ssl-default-server-curves
	ssl-default-server-options ssl-default-server-sigalgs ssl-dh-param-file ssl-engine
	ssl-load-extra-del-ext ssl-load-extra-files ssl-mode-async ssl-passphrase-cmd ssl-propquery
	ssl-provider ssl-provider-path ssl-security-level ssl-server-verify ssl-skip-self-issued-ca stats
	stats-file stress-level strict-limits thread-group thread-groups thread-hard-limit trace uid
	ulimit-n unix-bind unsetenv user warn-blocked-traffic-after wurfl-cache-size wurfl-data-file
	wurfl-engine-mode wurfl-information-list wurfl-information-list-separator wurfl-patch-file
	wurfl-useragent-priority zero-warning`

const optionWords = `abortonclose accept-invalid-http-request accept-invalid-http-response
	accept-unsafe-violations-in-http-request accept-unsafe-violations-in-http-response allbackups
	assume-rfc6587-ntf checkcache clitcpka contstats disable-h2-upgrade dont-parse-log dontlog-normal
	dontlognull external-check forceclose forwarded forwardfor h1-case-adjust-bogus-client
	h1-case-adjust-bogus-server http-buffer-request http-drop-request-trailers
	http-drop-response-trailers http-ignore-probes http-keep-alive http-no-delay http-pretend-keepalive
	http-restrict-req-hdr-names http-server-close http-tunnel http-use-proxy-header http_proxy httpchk
	httpclose httplog httpslog idle-close-on-response independent-streams ldap-check log-health-checks
	log-separate-errors logasap mysql-check nolinger originalto persist pgsql-check prefer-last-server
	redis-check redispatch smtpchk socket-stats splice-auto splice-request splice-response spop-check
	srvtcpka ssl-hello-chk tcp-check tcp-smart-accept tcp-smart-connect tcpka tcplog transparent
	use-small-buffers`
