package balancers

import (
	"slices"
	"time"
)

// maxPollers bounds how many server lines of one balancer poll this pod in turn
// and are told apart.
const maxPollers = 6

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
// the median spacing of one, and before the third arrival HAProxy's default.
func (r *rhythm) period() (time.Duration, int) {
	n := len(r.at)
	if n < 3 {
		return defaultInter, 1
	}
	for p := 1; p <= maxPollers && n >= 2*p+1; p++ {
		lags := r.lags(p)
		low, high := slices.Min(lags), slices.Max(lags)
		jitter := high / 4
		if p > 1 { // a pause must not look like several pollers
			jitter = high / 10
		}
		if high-low <= max(jitter, 20*time.Millisecond) {
			return max(high, time.Millisecond), p
		}
	}
	lags := r.lags(1)
	slices.Sort(lags)
	return max(lags[len(lags)/2], time.Millisecond), 1
}

// lags are the distances between arrivals p apart, of the newest 3p+1.
func (r *rhythm) lags(p int) []time.Duration {
	at := r.at[max(0, len(r.at)-3*p-1):]
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
