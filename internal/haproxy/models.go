package haproxy

import (
	"strconv"

	"github.com/haproxytech/client-native/v5/models"
)

// Runtime is the server as the Data Plane API's runtime endpoints give it, so
// that scripts written for them read ours. It differs from client-native's own
// in one thing: that one reads HAProxy's decimal admin bits as hexadecimal, and
// so calls DRAIN of a server with `disabled` in its line (12), and DRAIN
// inherited from a tracked one (16), "maint".
func (s Server) Runtime() models.RuntimeServer {
	port := int64(s.Port)
	m := models.RuntimeServer{
		Name:             s.Name,
		ID:               strconv.Itoa(s.ID),
		Address:          s.Addr,
		Port:             &port,
		AdminState:       models.RuntimeServerAdminStateReady,
		OperationalState: models.RuntimeServerOperationalStateUp,
	}
	switch {
	case s.Admin.Maint():
		m.AdminState = models.RuntimeServerAdminStateMaint
	case s.Admin.Drain():
		m.AdminState = models.RuntimeServerAdminStateDrain
	}
	switch s.Operational {
	case OpStopped:
		m.OperationalState = models.RuntimeServerOperationalStateDown
	case OpStopping:
		m.OperationalState = models.RuntimeServerOperationalStateStopping
	}
	return m
}

// Native is the server's statistics in the same API's form, as far as a Read
// has them.
func (s Server) Native() models.NativeStat {
	n := func(v int64) *int64 { return &v }
	st := &models.NativeStatStats{
		Iid: n(int64(s.BackendID)), Sid: n(int64(s.ID)), Mode: s.Mode,
		Status: s.Status, Weight: n(int64(s.Weight)), Lastchg: n(int64(s.LastChange.Seconds())), Tracked: s.Tracks,
		Scur: n(int64(s.Sessions)), Qcur: n(int64(s.Queued)), Stot: n(int64(s.Total)),
		CheckStatus: s.CheckStatus, AgentStatus: s.AgentStatus,
	}
	if s.MaxConn != 0 {
		st.Slim = n(int64(s.MaxConn))
	}
	if s.Check&Configured != 0 {
		st.CheckRise, st.CheckFall = n(int64(s.Rise)), n(int64(s.Fall))
		st.CheckHealth, st.CheckDuration = n(int64(s.CheckHealth)), n(s.CheckDuration.Milliseconds())
		st.LastChk = &s.LastCheck
		if s.CheckCode != 0 {
			st.CheckCode = n(int64(s.CheckCode))
		}
	}
	if s.Agent&Configured != 0 {
		st.LastAgt = &s.LastAgent
	}
	return models.NativeStat{BackendName: s.Backend, Name: s.Name, Type: models.NativeStatTypeServer, Stats: st}
}
