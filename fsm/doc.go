// Package fsm is the pod's state machine: which moves there are, and what each
// state tells the load balancer, the kubelet and everybody who asks.
//
//	OPEN → DRAINING → CLOSING → CLOSED, FAULT from anywhere,
//	reopen from DRAINING and CLOSING back to OPEN.
//
// It is pure: it reads no clock and does no I/O. Time is an input of
// [Machine.Step]; whoever owns the machine (one goroutine) carries out what a
// move means. The moves are the rows of one table ([Table]), from which
// [Mermaid] draws the README's diagram.
//
// Each step down switches off exactly one signal, in this order: the load
// balancer's traffic (DRAINING), its health check (CLOSING), readiness
// (CLOSED). Liveness never fails on the way, or the kubelet would restart the
// pod in the middle of its drain.
package fsm
