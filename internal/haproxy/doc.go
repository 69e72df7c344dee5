// Package haproxy is the only door to HAProxy's admin sockets.
//
// The door is one call: [Client.Turn] opens a connection, reads, lets the
// caller decide from that read, sends the commands, reads back, and closes. A
// connection never outlives its turn: an open one stays attached to the old
// worker after a reload and keeps it alive (measured on 2.6, 3.0 and 3.2).
//
// What a caller can rely on:
//
//   - No answer is an error, and so is an answer that was cut short. A turn
//     never takes silence for success.
//   - A command succeeded only if its reply was empty. Any text is an error
//     that carries it, for HAProxy puts refusals and remarks in the same place.
//   - A [Read] is whole: every server of the scope with its admin bits and its
//     session counts, or an error. The admin bits are the older of the two, so
//     "DRAIN and no sessions" in one read means none after DRAIN.
//   - Nothing is ever created or written where no HAProxy listens.
//   - At most two connections at a time, always closed: HAProxy's command line
//     has ten slots by default, shared by all sockets (stats maxconn).
//
// Framing: prompt mode with one command per line. That is the framing which is
// the same from 2.6 to 3.2: a reply, an empty line, `> ` (cli.c,
// cli_io_handler; 3.2 leaves the prompt out between commands joined by `;`, so
// these are never used).
package haproxy
