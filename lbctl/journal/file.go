package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"lbdrain/internal/haproxy"
	"lbdrain/lbctl/hold"
)

// load brings doc up to date with the files.
func (j *Journal) load() error {
	for _, name := range []string{nextFile, file} {
		path := filepath.Join(j.dir, name)
		now, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		if j.seen != nil && os.SameFile(now, j.seen) && now.ModTime().Equal(j.seen.ModTime()) && now.Size() == j.seen.Size() {
			return nil
		}
		d, err := read(path)
		switch {
		case name == nextFile && errors.Is(err, fs.ErrNotExist):
			continue // it has just become holds.json
		case name == nextFile && errors.Is(err, errTorn):
			continue // the machine went down before it was flushed
		case err != nil:
			return err
		}
		j.doc, j.seen = d, now
		return nil
	}
	j.doc, j.seen = Doc{}, nil
	return nil
}

// errTorn is a file that is no JSON document of a journal, errForeign one with
// records that lbctl does not write.
var (
	errTorn    = fmt.Errorf("%w: not a journal of lbctl", ErrVersion)
	errForeign = fmt.Errorf("%w: written by something else", ErrVersion)
)

func read(path string) (Doc, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Doc{}, fmt.Errorf("journal: %w", err)
	}
	var head struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(b, &head); err != nil || head.Version == nil {
		return Doc{}, fmt.Errorf("journal %s: %w", path, errTorn)
	}
	if *head.Version != Version {
		return Doc{}, fmt.Errorf("journal %s: %w: %d, this lbctl knows %d", path, ErrVersion, *head.Version, Version)
	}
	var d Doc
	if err := json.Unmarshal(b, &d); err != nil {
		return Doc{}, fmt.Errorf("journal %s: %w: %w", path, errTorn, err)
	}
	for name, lb := range d.LBs {
		for key, r := range lb.Records {
			if err := check(key, r); err != nil {
				return Doc{}, fmt.Errorf("journal %s: %w: %s: %.300q: %w", path, errForeign, name, key, err)
			}
		}
	}
	return d, nil
}

// check refuses a record that no lbctl wrote: its names would be asked of HAProxy
// at every turn.
func check(key string, r hold.Record) error {
	for _, name := range []string{r.Backend, r.Server} {
		if err := haproxy.CheckName(name); err != nil {
			return err
		}
	}
	switch {
	case key != r.Backend+"/"+r.Server:
		return fmt.Errorf("is about %s/%s", r.Backend, r.Server)
	case r.Op != nil && r.Op.Kind != hold.Drain && r.Op.Kind != hold.Maint:
		return fmt.Errorf("operator.kind %.40q: want drain or maint", r.Op.Kind)
	case r.Foreign != "" && r.Foreign != hold.Drain && r.Foreign != hold.Maint:
		return fmt.Errorf("foreign %.40q: want drain or maint", r.Foreign)
	}
	return nil
}

// stage puts d in force.
func (j *Journal) stage(d Doc) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", " ")
	if err := enc.Encode(d); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	info, err := put(filepath.Join(j.dir, nextFile), b.Bytes(), 0o640, false)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.doc, j.seen = d, info
	return nil
}

// flush makes what is staged survive the machine.
func (j *Journal) flush() error {
	next := filepath.Join(j.dir, nextFile)
	for {
		f, err := os.Open(next)
		if errors.Is(err, fs.ErrNotExist) {
			return syncDir(j.dir) // done, by whoever staged over it
		}
		if err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		done, err := j.settle(f, next)
		f.Close()
		if err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		if done {
			return syncDir(j.dir)
		}
	}
}

// settle flushes f and moves it to its place, if it is still the newest. The
// flush is outside the lock: nobody waits for it to stage.
func (j *Journal) settle(f *os.File, next string) (done bool, err error) {
	if err := f.Sync(); err != nil {
		return false, err
	}
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	l, err := lock(filepath.Join(j.dir, lockFile), 0)
	if err != nil {
		return false, err
	}
	defer l.Close()
	now, err := os.Stat(next)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case err != nil:
		return false, err
	case !os.SameFile(mine, now):
		return false, nil
	}
	return true, os.Rename(next, filepath.Join(j.dir, file))
}

// Background flushes beside the updates, one at a time, until ctx ends and
// everything is on the disk. Trouble is reported.
func (j *Journal) Background(ctx context.Context, report func(error)) (wait func()) {
	staged, done := make(chan struct{}, 1), make(chan struct{})
	j.mu.Lock()
	j.staged = staged
	j.mu.Unlock()
	flush := func() {
		if err := j.flush(); err != nil {
			report(err)
		}
	}
	go func() {
		defer close(done)
		for {
			select {
			case <-staged:
				flush()
			case <-ctx.Done():
				j.mu.Lock()
				j.staged = nil
				j.mu.Unlock()
				flush()
				return
			}
		}
	}()
	return func() { <-done }
}

// Replace writes a file so that a reader finds the old or the new one: a temporary
// file beside it, and a rename. With flush that holds for a machine that goes down
// too.
func Replace(path string, content []byte, mode fs.FileMode, flush bool) error {
	if _, err := put(path, content, mode, flush); err != nil || !flush {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// put writes a temporary file and moves it to path. Its error names path: the
// temporary one is another each time, and who logs changes would log every try.
func put(path string, content []byte, mode fs.FileMode, flush bool) (info fs.FileInfo, err error) {
	defer func() {
		var temporary *fs.PathError
		if errors.As(err, &temporary) {
			err = fmt.Errorf("%s %s: %w", temporary.Op, path, temporary.Err)
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name()) // after the rename there is nothing left to remove
	defer f.Close()
	if err := f.Chmod(mode); err != nil {
		return nil, err
	}
	if err := give(f); err != nil {
		return nil, err
	}
	if _, err := f.Write(content); err != nil {
		return nil, err
	}
	if flush {
		if err := f.Sync(); err != nil {
			return nil, err
		}
	}
	if info, err = f.Stat(); err != nil {
		return nil, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return nil, fmt.Errorf("rename to %s: %w", path, errors.Unwrap(err))
	}
	return info, nil
}

// give hands a file that root has just made to the owner of its directory: the
// daemon is that user, and could not start on what a person's command left as
// root. Never for a file that was there: it could be a link to somebody else's.
func give(f *os.File) error {
	if os.Geteuid() != 0 {
		return nil
	}
	var dir unix.Stat_t
	if err := unix.Stat(filepath.Dir(f.Name()), &dir); err != nil {
		return fmt.Errorf("owner of %s: %w", filepath.Dir(f.Name()), err)
	}
	return f.Chown(int(dir.Uid), int(dir.Gid))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// lock takes path's lock; with unix.LOCK_NB the error of a taken one is
// ErrLocked. It is released with the file, and by the kernel at the latest when
// the process ends.
func lock(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o640)
	switch {
	case err == nil:
		err = give(f)
	case errors.Is(err, fs.ErrExist):
		f, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|flags)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}
