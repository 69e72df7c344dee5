package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	ucli "github.com/urfave/cli/v2"

	"lbdrain/cfg"
	"lbdrain/internal/cli"
	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/journal"
)

// saveTime bounds the writing of a server-state-file.
const saveTime = 5 * time.Second

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
		return cli.Fail(cli.Failed, "global: server-state-file /var/lib/lbctl/server-state; defaults: load-server-state-from-file global",
			errors.New("the configuration names no server-state-file by its whole path"))
	}
	sockets, err := r.addresses(nil, config)
	if err != nil {
		return err
	}
	if err := saveState(ctx, haproxy.New(sockets[0], haproxy.Options{ReadOnly: true}), path); err != nil {
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
func saveState(ctx context.Context, c *haproxy.Client, path string) error {
	ctx, cancel := context.WithTimeout(ctx, saveTime)
	defer cancel()
	text, err := c.ServerState(ctx)
	if err != nil {
		return fmt.Errorf("server state: %w", err)
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
