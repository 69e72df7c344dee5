// Package pods watches the agents: one keep-alive connection and one goroutine
// for each.
//
// While its pod is OPEN a watch hangs on a held GET /drain/status, so a drain is
// known within a round trip. While the pod drains it sends acknowledgements as
// they are given to [Watch.Say], at least every interval something, and while a
// hold waits for a fresh OPEN it asks every [attention]. All of it goes over the
// same connection: behind a NodePort a new one may reach another pod.
//
// A request without an answer within its time ends the connection; it is dialled
// again at once and then with backoff.
package pods
