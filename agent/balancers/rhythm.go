package balancers

import (
	"slices"
	"time"
)

// maxPollers bounds how many server lines of one balancer poll this pod in turn
// and are told apart.
const maxPollers = 10

// leastInter keeps a peer that asks in bursts from being overdue at once.
const leastInter = 50 * time.Millisecond

// rhythm learns how often somebody asks.
type rhythm struct {
	at []time.Time // newest last, at most rhythmLen
}

const rhythmLen = 4 * maxPollers

func (r *rhythm) add(at time.Time) {
	if len(r.at) == rhythmLen {
		r.at = append(r.at[:0], r.at[1:]...)
	}
	r.at = append(r.at, at)
}

func (r *rhythm) last() time.Time {
	if len(r.at) == 0 {
		return time.Time{}
	}
	return r.at[len(r.at)-1]
}

// period is the learned interval of one poller, and how many pollers there are.
// Several server lines of one HAProxy poll from one address, each with its own
// phase, so the spacing alone would be too short: the smallest lag p at which
// arrivals repeat is the number of pollers. Without a repeating pattern it is
// the second largest spacing (the largest may be a pause), and before the third
// arrival HAProxy's default.
func (r *rhythm) period() (time.Duration, int) {
	n := len(r.at)
	if n < 3 {
		return defaultInter, 1
	}
	for p := 1; p <= maxPollers && (p == 1 || n >= 3*p+1); p++ { // fewer repeat by chance
		lags := r.lags(p, 3*p)
		low, high := slices.Min(lags), slices.Max(lags)
		if high-low <= max(high/8, 20*time.Millisecond) {
			return max(high, leastInter), p
		}
	}
	lags := r.lags(1, rhythmLen)
	slices.Sort(lags)
	return max(lags[len(lags)-2], leastInter), 1
}

// rest is the interval of those who ask besides the regular pollers: a server line
// with a longer agent-inter, whose few polls disappear among the others'. Zero if
// there is none. They are what arrives beyond what the period explains.
func (r *rhythm) rest() time.Duration {
	_, pollers := r.period()
	lags := r.lags(2*pollers, rhythmLen) // two rounds: two pollers half a period apart pass for one
	if len(lags) == 0 {
		return 0
	}
	slices.Sort(lags)
	round := max(lags[len(lags)/2]/2, leastInter)
	span := r.last().Sub(r.at[0])
	// The history begins and ends anywhere in a round of the regular ones.
	excess := float64(len(r.at)-pollers) - float64(pollers)*float64(span)/float64(round)
	if excess < 1.5 { // one may be the place where a reload moved the phases
		return 0
	}
	return time.Duration(float64(span) / excess)
}

// lags are the distances between arrivals p apart, of the newest n+1.
func (r *rhythm) lags(p, n int) []time.Duration {
	at := r.at[max(0, len(r.at)-n-1):]
	var ds []time.Duration
	for i := p; i < len(at); i++ {
		ds = append(ds, at[i].Sub(at[i-p]))
	}
	return ds
}

// overdue says whether the next one is late by two intervals.
func (r *rhythm) overdue(at time.Time) bool {
	if len(r.at) == 0 {
		return true
	}
	inter, _ := r.period()
	return at.Sub(r.last()) > 3*inter
}
