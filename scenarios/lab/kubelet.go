package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Ending is how a pod was ended.
type Ending struct {
	Deleted  time.Time // the hooks began
	Hooked   time.Time // the agent container's hook had ended
	HookExit int       // its exit code; -1 where the grace ended it
	Exited   time.Time // the last of the pod's processes was gone
	Killed   []string  // processes that needed SIGKILL
}

// errGrace is the cause of what the end of the grace period cuts off.
var errGrace = errors.New("the grace period has passed")

// Delete ends a pod as the kubelet does: every container on its own, at the same
// time: preStop, SIGTERM as soon as its own hook has ended, SIGKILL at the end of
// the grace period, which hook and stop share. (kuberuntime_container.go,
// killContainersWithSyncResult and killContainer.)
func (l *Lab) Delete(ctx context.Context, p *Pod) (Ending, error) {
	e := Ending{Deleted: time.Now(), HookExit: -1}
	ctx, cancel := context.WithDeadlineCause(ctx, e.Deleted.Add(l.o.Grace), errGrace)
	defer cancel()
	l.say("kubelet: delete %s, grace %s", p.Name, l.o.Grace)
	var wg sync.WaitGroup
	var hookErr error
	var killed [2][]string
	hooked := make(chan struct{})
	wg.Go(func() {
		e.HookExit, hookErr = l.preStop(ctx, p)
		e.Hooked = time.Now()
		close(hooked)
		killed[0] = l.stop(ctx, p.Agent())
	})
	wg.Go(func() {
		l.dataPreStop(ctx, p, hooked)
		killed[1] = l.stop(ctx, p.dataProcs()...)
	})
	wg.Wait()
	e.Killed = append(killed[0], killed[1]...)
	for _, proc := range append(p.dataProcs(), p.Agent()) {
		if _, at := proc.Exit(); at.After(e.Exited) {
			e.Exited = at
		}
	}
	l.say("kubelet: %s is gone after %.3f s, hook exit code %d, killed %v", p.Name, e.Exited.Sub(e.Deleted).Seconds(), e.HookExit, e.Killed)
	if hookErr != nil && !errors.Is(hookErr, errGrace) {
		return e, hookErr
	}
	return e, nil
}

// preStop runs the agent container's hook: `agent drain`, or the mode's script.
func (l *Lab) preStop(ctx context.Context, p *Pod) (int, error) {
	m := l.o.Mode
	if m.hook == "" {
		return l.agentDrain(ctx, p, "hook.log")
	}
	script := filepath.Join(l.run, "hook.sh")
	if err := os.WriteFile(script, []byte(m.hook), 0o755); err != nil {
		return -1, fmt.Errorf("write the hook: %w", err)
	}
	env := append([]string{
		"HC_URL=http://" + p.at(controlPort), "ENVOY_ADMIN=http://" + p.at(adminPort), "HOLD=" + strconv.Itoa(currentHold),
	}, m.env...)
	return l.run1(ctx, "hook", "hook.log", env, "/bin/sh", script)
}

func (l *Lab) agentDrain(ctx context.Context, p *Pod, file string) (int, error) {
	return l.run1(ctx, "agent drain", file, nil, l.o.Programs.Agent, "drain",
		"--control", p.at(controlPort), "--drain-timeout", l.o.DrainTimeout.String())
}

// dataPreStop is the data container's hook. With `agent drain` in the agent's
// container it is an httpGet of /drain/wait from the node, whose status the kubelet
// ignores. But a broken connection is a failed hook to the kubelet, which then sends
// SIGTERM at once: where the agent may be killed in the drain, the data container
// needs `agent drain` as well, which asks again (ExecHook). A script knows nothing
// like either: there both containers get the same hook, whose end is the script's:
// the kindest reading of the old experiment.
func (l *Lab) dataPreStop(ctx context.Context, p *Pod, hooked <-chan struct{}) {
	if l.o.Mode.hook != "" {
		select {
		case <-hooked:
		case <-ctx.Done():
		}
		return
	}
	if l.o.ExecHook {
		if code, err := l.agentDrain(ctx, p, "hook-data.log"); err != nil || code != 0 {
			l.say("kubelet: hook of %s's data container ended with %d, %v", p.Name, code, err)
		}
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.listen()+"/drain/wait", nil)
	if err != nil {
		l.say("kubelet: httpGet hook of %s: %v", p.Name, err)
		return
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		l.say("kubelet: FailedPreStopHook of %s: %v", p.Name, err) // then SIGTERM at once, as the kubelet does
		return
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // only for the log
	l.say("kubelet: httpGet hook of %s ended with %d %s", p.Name, resp.StatusCode, trimNewline(string(body)))
}

// stop sends SIGTERM to a container's processes and SIGKILL when the grace is over,
// but never less than 2 s later (minimumGracePeriodInSeconds).
func (l *Lab) stop(ctx context.Context, procs ...*Proc) []string {
	least := time.Now().Add(2 * time.Second)
	for _, p := range procs {
		p.Signal(syscall.SIGTERM)
	}
	var killed []string
	for _, p := range procs {
		select {
		case <-p.Done():
			continue
		case <-ctx.Done():
		}
		select {
		case <-p.Done():
		case <-time.After(time.Until(least)):
			killed = append(killed, p.Name)
			p.Signal(syscall.SIGKILL)
			<-p.Done()
		}
	}
	return killed
}
