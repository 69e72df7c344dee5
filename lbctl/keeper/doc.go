// Package keeper keeps the holds of one HAProxy: it fetches the facts (the admin
// socket, the agents, the journal), lets package hold decide, and carries out
// what it says. The daemon runs one keeper for each admin socket; a command line
// without a daemon runs one for as long as it waits.
//
// One goroutine, [Keeper.Run], owns everything. It looks at HAProxy every
// interval, at once when a pod's state changes or a person wants something, turn
// after turn while a step is due, and every 10 to 30 ms while a hold waits for
// sessions to end.
//
// A turn writes the journal at most once, before its commands go out. Whatever
// it reads back it works out again from the next read, so nothing is lost if it
// is killed in between.
package keeper
