// Package handshake holds the two documents that agent and lbctl exchange:
// Status (GET /drain/status, and the answer to every PUT) and Ack
// (PUT /drain/lbs/{lb}).
//
// Rules that hold for both:
//
//   - times are RFC 3339 in UTC with milliseconds, durations are numbers in
//     milliseconds in fields that end in _ms;
//   - a count that nobody could read is null ([Count] with Known false) and is
//     never 0;
//   - unknown fields are ignored, a missing required one is an error that names
//     it ([FieldError]);
//   - version is [Version]; a reader accepts its own and the one before.
//
// A balancer reports facts; the agent derives the word from them ([Ack.Word]).
// The package knows nothing of how the documents travel.
package handshake
