// Package drain owns the pod's state machine and runs the drain.
//
// One goroutine ([Pod.Run]) owns the machine: it alone moves it, decides on
// joining, rejoining, reopening and the deadline. What an answer to a balancer
// depends on (the table of balancers and the state they are told) is behind a
// mutex that is never held over I/O, so that a request is counted before it is
// answered and no answer waits on a transition. Everybody else reads a snapshot.
//
// The one condition for leaving DRAINING, for CLOSED, and for the end: all at the
// same time, nothing in flight (every source read 0 and none unknown, for Quiet)
// and evidence from every balancer (package balancers). It is decided from a
// reading that began after the last move.
//
// The outside is given in [Config]: sources, sockets, Envoy, the state file.
// Reads run beside the loop, one round at a time, so that a source that hangs
// moves neither the deadline nor an answer.
package drain
