package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	ucli "github.com/urfave/cli/v2"

	"lbdrain/cfg"
	"lbdrain/internal/cli"
	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/journal"
)

const (
	dumpTime = 5 * time.Second
	dumpMax  = 64 << 20
)

func stateCommand() *ucli.Command {
	r := &reach{}
	return &ucli.Command{
		Name: "state", Usage: "the server-state-file that keeps DRAIN over a reload", OnUsageError: cli.UsageError,
		Action: func(*ucli.Context) error { return cli.Misuse("lbctl state save", "state needs a verb") },
		Subcommands: []*ucli.Command{{
			Name: "save", Usage: "writes the servers' state where the next start of HAProxy reads it", OnUsageError: cli.UsageError,
			Flags: r.flags(),
			Action: func(c *ucli.Context) error {
				r.parse(c)
				return r.saveState(c.Context)
			},
		}},
	}
}

// saveState is `lbctl state save`.
func (r *reach) saveState(ctx context.Context) error {
	config, err := r.load(ctx)
	if err != nil {
		return err
	}
	path := ""
	if config != nil {
		path = stateFile(config)
	}
	if path == "" {
		return cli.Fail(cli.Failed, "global: server-state-file /var/lib/haproxy/state; defaults: load-server-state-from-file global",
			errors.New("the configuration names no server-state-file by its whole path"))
	}
	sockets, err := r.addresses(nil, config)
	if err != nil {
		return err
	}
	if err := saveState(ctx, sockets[0], path); err != nil {
		return cli.Fail(cli.Failed, haproxy.Hint(err), err)
	}
	return nil
}

// stateFile is the path of the global server-state-file, "" without one. A
// relative path means something to HAProxy only.
func stateFile(c *cfg.Config) string {
	if !filepath.IsAbs(c.StateFile) {
		return ""
	}
	return c.StateFile
}

// saveState writes what `show servers state` says to path: a temporary file, and
// a rename. HAProxy drops a file that does not end in a newline without a word.
func saveState(ctx context.Context, s haproxy.Socket, path string) error {
	text, err := dumpState(ctx, s)
	if err != nil {
		return fmt.Errorf("server state of %s: %w", s, err)
	}
	mode := os.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	// A reload reads it from memory; a machine that goes down takes what it
	// describes with it: no flush.
	if err := journal.Replace(path, text, mode, false); err != nil {
		return fmt.Errorf("server-state-file: %w", err)
	}
	return nil
}

// dumpState is the raw text of `show servers state`, whole or an error.
func dumpState(ctx context.Context, s haproxy.Socket) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, dumpTime)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, s.Network, s.Address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.WriteString(c, "show servers state\n"); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(c, dumpMax+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > dumpMax:
		return nil, haproxy.ErrTooLarge
	case !bytes.HasPrefix(text, []byte("1\n# be_id be_name ")) || !bytes.HasSuffix(text, []byte("\n\n")):
		return nil, fmt.Errorf("%w: %.60q", haproxy.ErrTruncated, text)
	}
	return text, nil
}
