// Package front is the agent's listeners: one port, two protocols, told apart by
// the first bytes.
//
// A peer that sends an HTTP method speaks HTTP (HAProxy's health check is
// HTTP/1.0 without Host). One that sends nothing for FirstByte, or one printable
// line (agent-send; lb=NAME names the balancer), is an agent-check poll and gets
// the word and a newline. Anything else (a TLS hello, a PROXY header, binary
// noise) is dropped and makes no balancer. Connections, lines, headers and bodies
// are bounded and have deadlines; over the limit one of the kind that most are of
// is closed, never a new one refused: a refused check would mark the pod DOWN.
//
// The public listener reads and acknowledges. The control listener also has the
// POSTs, and counts nobody as a balancer.
package front
