// Package desk is where people's wishes are taken: hold these servers, give them
// back, how far is it.
//
// A [Desk] is one HAProxy. [Remote] speaks to the daemon over its control
// socket; [Local] is a keeper of its own for as long as the command lasts, with
// the same journal, where no daemon runs. [Handler] is the daemon's side.
//
// The control socket speaks HTTP and JSON: GET /v1/lbs, POST /v1/hold, /v1/lift
// and /v1/servers, each with a balancer's name and its servers. Errors are JSON
// {error, held}; held says that a server is held for a pod.
package desk
