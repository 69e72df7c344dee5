package keeper

import (
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"lbdrain/internal/handshake"
	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/hold"
)

// rowMemory is how many commands of a server a row remembers.
const rowMemory = 50

func (k *Keeper) event(e *zerolog.Event, name string) *zerolog.Event {
	return e.Str("event", name).Str("lb", k.o.Name)
}

func (k *Keeper) about(name string, key Key) *zerolog.Event {
	return k.event(k.o.Log.Info(), name).Str("backend", key.Backend).Str("server", key.Server)
}

// changed logs what a new record means.
func (k *Keeper) changed(key Key, old, r hold.Record, s hold.Step) {
	if r.Pod != nil && (old.Pod == nil || old.Pod.Instance != r.Pod.Instance || old.Pod.Seq != r.Pod.Seq) {
		k.about("hold_set", key).Str("pod", r.Pod.Endpoint).Str("instance", r.Pod.Instance).Uint64("seq", r.Pod.Seq).Send()
	}
	if r.Foreign != old.Foreign {
		k.about("foreign_state", key).Str("was", old.Foreign).Str("state", r.Foreign).Send()
	}
	if r.Pod == nil && r.Op == nil && (old.Pod != nil || old.Op != nil) {
		k.about("returned", key).Str("why", s.Why).Send()
	}
}

// outcomes logs and remembers the commands of a turn.
func (k *Keeper) outcomes(t haproxy.Turn) {
	for _, o := range t.Outcomes {
		key := Key{o.Command.Backend(), o.Command.Server()}
		var cut uint64
		if strings.HasSuffix(o.Command.String(), " state maint") && o.Err == nil {
			s, _ := t.Before.Server(key.Backend, key.Server)
			cut = s.Sessions // none, unless a person forced it
		}
		k.note(key, o, cut)
		if o.Err != nil {
			k.event(k.o.Log.Error(), "alarm").Str("command", o.Command.String()).Str("reply", o.Reply).Err(o.Err).Send()
			k.repeat[key] = repeated{k.repeat[key].verb, futile}
			continue
		}
		e := k.event(k.o.Log.Debug(), "command")
		if strings.HasSuffix(o.Command.String(), " state maint") {
			e = k.about("maint", key).Uint64("cut", cut)
		}
		e.Str("command", o.Command.String()).Send()
	}
}

// note adds a command to a server's row.
func (k *Keeper) note(key Key, o haproxy.Outcome, cut uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.rows[key]
	r.Sent = append(slices.Clone(r.Sent), o.Command.String())
	r.Cut += cut
	if len(r.Sent) > rowMemory {
		r.Sent = r.Sent[1:]
	}
	r.Refused = ""
	if o.Err != nil {
		r.Refused = o.Err.Error()
	}
	k.rows[key] = r
}

// row remembers what a turn has shown of a server that is or was held.
func (k *Keeper) row(key Key, v hold.View, s hold.Step, saved bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old, ok := k.rows[key]
	if !ok && s.Record.Empty() {
		return
	}
	k.rows[key] = Row{v.Now, v.Worker, v.Server, v.Pod, s, saved, old.Sent, old.Cut, old.Refused}
}

// wrong logs trouble with HAProxy or the journal when it begins or changes.
func (k *Keeper) wrong(event string, err error) {
	k.setBroken(err.Error())
	if text := event + err.Error(); text != k.trouble {
		k.trouble = text
		hint := haproxy.Hint(err)
		if event == "alarm" {
			hint = "" // not about the socket
		}
		k.event(k.o.Log.Error(), event).Err(err).Str("hint", hint).Send()
	}
}

// well logs that it has ended.
func (k *Keeper) well() {
	k.setBroken("")
	if k.trouble != "" {
		k.trouble = ""
		k.event(k.o.Log.Info(), "socket_ok").Send()
	}
}

// reloaded takes note of another worker.
func (k *Keeper) reloaded(w hold.Worker) {
	if k.worker != (hold.Worker{}) {
		k.event(k.o.Log.Warn(), "reload_seen").Int("old_pid", k.worker.Pid).Int("pid", w.Pid).
			Time("start", time.Unix(w.Start, 0).UTC()).Send()
		for key := range k.retired {
			delete(k.lines, key)
		}
		clear(k.retired)
		k.whole = false // it may have read the file
	}
	k.worker, k.saved = w, ""
	clear(k.repeat)
}

// said logs what the acknowledgement amounts to now.
func (k *Keeper) said(endpoint string, old, word handshake.Word, a handshake.Ack) {
	name, level := "", zerolog.InfoLevel
	switch {
	case rank(word) < rank(old):
		name, level = "revoked", zerolog.WarnLevel
	case word == handshake.Held:
		name = "held"
	case word == handshake.HeldZero:
		name = "held_zero"
	default:
		return
	}
	k.event(k.o.Log.WithLevel(level), name).Str("pod", endpoint).Str("instance", a.Drain.Instance).
		Uint64("seq", a.Drain.Seq).Str("missing", a.Missing()).Send()
}

func rank(w handshake.Word) int {
	return slices.Index([]handshake.Word{handshake.Held, handshake.HeldZero}, w)
}

// podChanged logs what an agent says when it says something else.
func (k *Keeper) podChanged(endpoint string, old, p hold.Pod) {
	switch {
	case !p.Lost.IsZero():
		if old.Lost.IsZero() && old.Phase != hold.Unknown {
			k.event(k.o.Log.Warn(), "pod_unreachable").Str("pod", endpoint).Str("instance", p.Instance).Send()
		}
	case p.Phase == hold.Open && (old.Phase != hold.Open || old.Instance != p.Instance || !old.Lost.IsZero()):
		k.event(k.o.Log.Info(), "pod_open").Str("pod", endpoint).Str("instance", p.Instance).Send()
	case p.Phase == hold.Broken && old.Phase != hold.Broken:
		k.event(k.o.Log.Error(), "alarm").Str("pod", endpoint).Str("instance", p.Instance).Msg("the pod is in FAULT")
	}
}

// podTrouble logs a change of what keeps an agent from being watched.
func (k *Keeper) podTrouble(endpoint string, err error) {
	if err != nil {
		k.event(k.o.Log.Warn(), "watch").Str("pod", endpoint).Err(err).Send()
		return
	}
	k.event(k.o.Log.Info(), "watch").Str("pod", endpoint).Send()
}

// would logs what observe mode keeps from doing, once for each command.
func (k *Keeper) would(commands []haproxy.Command) {
	for _, c := range commands {
		key := Key{c.Backend(), c.Server()}
		if k.told[key] == c.String() {
			continue
		}
		k.told[key] = c.String()
		k.about("would", key).Str("would", c.String()).Send()
	}
}
