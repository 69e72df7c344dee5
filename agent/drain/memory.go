package drain

import (
	"reflect"
	"time"

	"lbdrain/agent/balancers"
	"lbdrain/fsm"
	"lbdrain/internal/handshake"
)

// MemoryVersion is the version of the state file.
const MemoryVersion = 1

// Memory is what the state file keeps: enough to come back DRAINING and to know
// who the balancers are; never an acknowledgement, which they repeat.
type Memory struct {
	Version   int               `json:"version"`
	UID       string            `json:"uid"`
	State     string            `json:"state"`
	Seq       uint64            `json:"seq"`
	Finish    bool              `json:"finish"`
	Deadline  handshake.Time    `json:"deadline"`
	Balancers []balancers.Known `json:"balancers"`
}

// remember hands the memory to the state file when it has changed.
func (p *Pod) remember() {
	if p.cfg.Save == nil {
		return
	}
	p.mu.Lock()
	known := p.table.Known()
	p.mu.Unlock()
	k := &p.course
	m := Memory{
		Version: MemoryVersion, UID: p.cfg.UID, State: p.machine.State().String(), Seq: p.machine.Seq(),
		Finish: k.finish || !k.rejoinBy.IsZero(), Deadline: handshake.At(k.deadline.Round(0)), Balancers: known,
	}
	if !reflect.DeepEqual(m, p.saved) {
		p.saved = m
		p.cfg.Save(m)
	}
}

// recall takes up what an earlier process of this pod has left. A finishing
// drain waits for its caller to join; a person's drain stays. What belongs to
// another pod, or to a drain whose deadline is long over, is no drain of ours.
func (p *Pod) recall(m *Memory) {
	if m == nil || m.UID != p.cfg.UID {
		return
	}
	now := p.cfg.Start
	p.table.Restore(m.Balancers)
	state, err := fsm.ParseState(m.State)
	over := m.Finish && !m.Deadline.IsZero() && m.Deadline.Before(now)
	if err != nil || state == fsm.Open || state == fsm.Fault || over {
		// seq goes on growing: an old drain's id must not come again.
		p.machine = fsm.Restore(fsm.Open, m.Seq+1, now, "start")
		return
	}
	p.machine = fsm.Restore(fsm.Draining, m.Seq+1, now, "state file: was "+m.State)
	p.course = course{
		id: handshake.DrainID{Instance: p.cfg.Instance, Seq: m.Seq + 1}, since: now, moved: now, next: now,
		half: now.Add(p.cfg.Timeout / 2), ended: make(chan struct{}),
	}
	if m.Finish {
		p.course.rejoinBy = now.Add(p.cfg.Rejoin)
		if p.course.deadline = m.Deadline.Time; p.course.deadline.IsZero() {
			p.course.deadline = now.Add(p.cfg.Timeout)
		}
	}
	p.table.Enter(p.phase())
	p.cfg.Log.Info().Str("event", "rejoin").Str("was", m.State).Bool("finish", m.Finish).
		Dur("wait_ms", p.cfg.Rejoin).Int("balancers", len(m.Balancers)).Send()
}

// status is the document without what the table has to say.
func (p *Pod) status() handshake.Status {
	k, m := &p.course, p.machine
	s := handshake.Status{
		Version: handshake.Version, Ready: m.State().Signals().Readiness == 200, State: m.State().String(),
		Instance: p.cfg.Instance, Seq: m.Seq(), Since: handshake.At(m.Since()),
	}
	if k.ended != nil {
		s.Drain = &handshake.Drain{DrainID: k.id, Finish: k.finish}
		if k.finish {
			s.Drain.Deadline = handshake.At(k.deadline)
		}
	}
	s.Progress = handshake.Progress{
		StartedAt: handshake.At(k.since), InFlight: map[string]handshake.Count{}, Upgrades: k.last.upgrades(),
		QuietSince: handshake.At(k.quiet), Envoy: p.envoyState(), LBs: []handshake.LB{}, Transitions: []handshake.Transition{},
	}
	for _, src := range p.cfg.Sources {
		s.Progress.InFlight[src.Name()] = handshake.Count{}
	}
	for name, c := range k.last.counts() {
		s.Progress.InFlight[name] = c
	}
	for _, tr := range m.History() {
		s.Progress.Transitions = append(s.Progress.Transitions, handshake.Transition{
			From: tr.From.String(), To: tr.To.String(), Reason: tr.Reason, At: handshake.At(tr.At),
		})
	}
	if k.drained && m.State() == fsm.Open {
		s.Warning = "envoy: drained, and stays so until it is restarted"
	}
	return s
}

// receipt is the drain in one line: who showed what and when, what was in flight
// at each step, and what was not known.
func (p *Pod) receipt(now time.Time, o Outcome) {
	k := &p.course
	p.mu.Lock()
	rs, v := p.table.Receipts(), p.table.Look(now)
	p.mu.Unlock()
	lbs := []map[string]any{}
	for _, lb := range v.LBs {
		l := map[string]any{"lb": lb.LB, "evidence": lb.Evidence, "missing": lb.Missing}
		for _, r := range rs {
			if r.LB == lb.LB {
				l["held"], l["held_zero"], l["old_sessions_unknown"] = handshake.At(r.Held), handshake.At(r.HeldZero), r.OldUnknown
			}
		}
		lbs = append(lbs, l)
	}
	steps := []map[string]any{}
	for _, s := range append(k.stages, stage{p.machine.State(), k.last.counts()}) {
		steps = append(steps, map[string]any{"state": s.state.String(), "in_flight": s.count})
	}
	p.cfg.Log.Info().Str("event", "receipt").Str("outcome", string(o)).Int64("ms", now.Sub(k.since).Milliseconds()).
		Interface("lbs", lbs).Interface("steps", steps).Str("waiting", k.last.waiting).Str("unknown", k.unknown(v)).Send()
}

func (k *course) unknown(v balancers.Verdict) string {
	s := k.last.notes()
	if v.Polled {
		s = join(s, "some balancers show by polls only that nothing new comes, not that the last answer was delivered")
	}
	return s
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}
