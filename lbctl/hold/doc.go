// Package hold decides what happens to one server line of HAProxy, and nothing
// else: it has no socket, no file and no clock.
//
// [Next] takes everything a decision rests on (one whole read of HAProxy, what
// the pod's agent last said, the journal's record, the time) and returns the
// record to be journaled and at most one command. The caller journals first,
// sends the command on the connection of that read, reads back, and calls Next
// again.
//
// # The hold
//
// For a pod: drain, disable agent (both read back: held), disable health, wait
// until no check is in progress and the server was read empty twice at least
// [ZeroGap] apart, and only then maint (held-zero). For a person the agent goes
// off first.
//
// # The return
//
// Never before the pod said OPEN in an answer younger than [Fresh]: enable
// health, from MAINT to DRAIN, a passed check that ended after that, ready,
// enable agent. A hold that a successor of its pod ends goes through MAINT first:
// pooled connections to the old pod would be reused otherwise.
//
// # What always holds
//
//   - maint only on a server that this very read and one at least ZeroGap
//     earlier, of the same worker, found in DRAIN, agent off, and empty, unless
//     a person forced it;
//   - ready only with a fresh OPEN, or for a person's hold with a pod that is
//     not leaving; and only after a passed check where there is a check;
//   - health off by us: the agent is off, the server in DRAIN or MAINT, and the
//     record says so;
//   - bits that others set are never undone by a return.
package hold
