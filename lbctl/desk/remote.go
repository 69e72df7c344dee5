package desk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"lbdrain/lbctl/hold"
	"lbdrain/lbctl/keeper"
)

// remoteTime bounds one question to the daemon.
const remoteTime = 5 * time.Second

// Daemon is a running daemon, as its control socket shows it.
type Daemon struct {
	path   string
	client http.Client
	LBs    []LB
}

// ErrNoDaemon says that nobody listens on the control socket.
var ErrNoDaemon = errors.New("no daemon")

// Dial finds the daemon of a control socket; the error is ErrNoDaemon if none
// runs there.
func Dial(ctx context.Context, path string) (*Daemon, error) {
	d := &Daemon{path: path, client: http.Client{Timeout: remoteTime, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var n net.Dialer
			return n.DialContext(ctx, "unix", path)
		},
	}}}
	a, err := d.ask(ctx, http.MethodGet, "/v1/lbs", nil)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, ErrNoDaemon
	}
	if err != nil {
		return nil, err
	}
	d.LBs = a.LBs
	return d, nil
}

// Desk is that of one of its balancers.
func (d *Daemon) Desk(lb string) Desk { return remote{d, lb} }

func (d *Daemon) ask(ctx context.Context, method, path string, q any) (answer, error) {
	var body bytes.Buffer
	if q != nil {
		if err := json.NewEncoder(&body).Encode(q); err != nil {
			return answer{}, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://lbctl"+path, &body)
	if err != nil {
		return answer{}, err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return answer{}, fmt.Errorf("control socket %s: %w", d.path, err)
	}
	defer resp.Body.Close()
	a, err := decode(resp.Body)
	switch {
	case err != nil:
		return a, fmt.Errorf("control socket %s: not a daemon of lbctl: %w", d.path, err)
	case a.Held:
		return a, &HeldError{a.Error}
	case a.Error != "":
		return a, errors.New(a.Error)
	case resp.StatusCode != http.StatusOK:
		return a, fmt.Errorf("control socket %s: %s", d.path, resp.Status)
	}
	return a, nil
}

// remote is a desk of the daemon.
type remote struct {
	*Daemon
	lb string
}

func (r remote) Hold(ctx context.Context, keys []keeper.Key, op hold.OpHold) ([]keeper.Key, error) {
	a, err := r.ask(ctx, http.MethodPost, "/v1/hold", wish{r.lb, keys, op})
	return a.Changed, err
}

func (r remote) Lift(ctx context.Context, keys []keeper.Key) error {
	_, err := r.ask(ctx, http.MethodPost, "/v1/lift", wish{LB: r.lb, Servers: keys})
	return err
}

func (r remote) Reports(ctx context.Context, keys []keeper.Key) ([]Report, error) {
	a, err := r.ask(ctx, http.MethodPost, "/v1/servers", wish{LB: r.lb, Servers: keys})
	return a.Reports, err
}
