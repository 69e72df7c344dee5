package haproxy

import "testing"

const small = `
backend be
    option httpchk GET /health
    server s1 127.77.1.2:1 check port 1 inter 100ms rise 2 fall 2 agent-check agent-port 1 agent-inter 300ms on-marked-down shutdown-sessions
    server s2 127.77.1.3:1
    server t1 127.77.1.3:1 track be/s1
backend other
    mode tcp
    server-template p 1-3 127.77.1.4:80 disabled weight 7 maxconn 5
`

func TestTry(t *testing.T) {
	p := start(t, small)
	r := read(t, p.client(Options{}))
	t.Logf("%+v", r)
	for _, s := range r.Servers { t.Logf("%+v", s) }
	r = read(t, p.client(Options{}), "be")
	t.Logf("%d %v", len(r.Servers), r.Took)
	turn := do(t, p.client(Options{}), SetState("be","s1",Drain), DisableAgent("be","s2"), SetState("be","nope",Drain), EnableAgent("be","s2"))
	t.Logf("%+v", turn.Err())
	t.Logf("%+v", turn.After.Servers[0])
}
