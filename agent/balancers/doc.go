// Package balancers knows who the pod's load balancers are, what each has shown
// in this drain, and what each is still missing.
//
// It is pure: time is an input, and a [Table] does no I/O and takes no lock. Its
// owner serialises the calls; they are all short, so that a health answer can be
// counted before it is written without waiting on anything.
//
// Who is a balancer: a watcher (it names itself on GET /drain/status?lb=NAME and
// acknowledges on that connection), or an address that has asked three times for
// the health page or the agent-check word. An address that a watcher covers
// (where its watch comes from, or listed in its acknowledgement's sources) is
// that watcher's and needs no evidence of its own.
//
// What counts as evidence that nothing more comes from a balancer:
//
//   - an acknowledgement that amounts to held-zero, or absent, while it is fresh;
//   - one that amounted to held or more and has expired: the server stays in
//     DRAIN with its agent check off, whoever died;
//   - for one that never watched, fell silent before it held, or took its leave:
//     three agent-check polls answered drain, counted from that moment and
//     again from 0 when a poll is overdue by two agent-inters, and not before a
//     server line that polls more rarely from there has been told too;
//   - gone: no check, no poll, no watch and no socket on the data port for
//     max(60 s, twice its detection window): its HAProxy has marked the pod DOWN
//     by itself.
//
// Silence is unknown. A balancer that nobody has heard of may exist until the
// learning period is over, and a table without balancers proves nothing.
package balancers
