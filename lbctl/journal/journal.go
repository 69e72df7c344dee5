// Package journal keeps the holds in STATE_DIR/holds.json, so that they survive
// kill -9 and are the same for the daemon and for a command line that works
// without it.
//
// The file is replaced whole (temporary file, fsync, rename, fsync of the
// directory) under a lock, so a reader sees the old or the new one. Its
// top-level "version" is 1; with another one nothing is read and nothing is
// written: [ErrVersion].
package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"lbdrain/lbctl/hold"
)

// Version of holds.json.
const Version = 1

// What can be wrong with a journal.
var (
	ErrVersion = errors.New("holds.json has another version")
	ErrLocked  = errors.New("another lbctl daemon uses this state directory")
)

const (
	file       = "holds.json"
	lockFile   = "holds.lock"  // held for one update
	daemonFile = "daemon.lock" // held for a daemon's life
)

// A claim is tried a few times.
const (
	claims    = 5
	claimWait = 20 * time.Millisecond
)

// Doc is the content of holds.json.
type Doc struct {
	Version int           `json:"version"`
	LBs     map[string]LB `json:"lbs"` // by balancer name
}

// LB is what is journaled of one HAProxy.
type LB struct {
	Socket  string                 `json:"socket"`  // as haproxy.Socket prints it
	Worker  hold.Worker            `json:"worker"`  // last seen
	Records map[string]hold.Record `json:"records"` // by backend/server
}

// Journal is one state directory. It is safe for concurrent use.
type Journal struct {
	dir string

	mu   sync.Mutex
	doc  Doc
	seen fs.FileInfo // the file that doc was read from or written to
}

// Open is the journal in dir. Nothing is created before the first update.
func Open(dir string) *Journal { return &Journal{dir: dir} }

// Claim makes this process the daemon of the state directory until release.
// The error is ErrLocked if there is one.
func (j *Journal) Claim() (release func(), err error) {
	if err := os.MkdirAll(j.dir, 0o750); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	var f *os.File
	for range claims {
		if f, err = lock(filepath.Join(j.dir, daemonFile), unix.LOCK_NB); !errors.Is(err, ErrLocked) {
			break
		}
		time.Sleep(claimWait) // a command line may be looking just now, see Claimed
	}
	if err != nil {
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(j.dir, "."+file+".*"))
	for _, name := range left {
		err = errors.Join(err, os.Remove(name)) // of a writer that was killed
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("state directory: %w", err)
	}
	return func() { f.Close() }, nil
}

// Claimed says whether a daemon uses the state directory now.
func (j *Journal) Claimed() bool {
	f, err := os.Open(filepath.Join(j.dir, daemonFile))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// LB reads one balancer's part. No file is an empty one.
func (j *Journal) LB(name string) (LB, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.load(); err != nil {
		return LB{}, err
	}
	return j.doc.LBs[name].clone(), nil
}

// Named is the balancer that was last known at a socket, "" for none.
func (j *Journal) Named(socket string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.load() != nil {
		return ""
	}
	for name, lb := range j.doc.LBs {
		if lb.Socket == socket {
			return name
		}
	}
	return ""
}

// Adopt gives a balancer what is journaled of its socket under other names: a
// command line that ran before the daemon did not know its name.
func (j *Journal) Adopt(name, socket string) error {
	return j.change(func(lbs map[string]LB) error {
		mine := lbs[name].clone()
		for other, lb := range lbs {
			if other == name || lb.Socket != socket {
				continue
			}
			for key, r := range lb.Records {
				if _, known := mine.Records[key]; !known {
					mine.Records[key] = r
				}
			}
			delete(lbs, other)
		}
		mine.Socket = socket
		lbs[name] = mine
		return nil
	})
}

// Update replaces one balancer's part by what change makes of it, and returns
// when that is on the disk. change may be given the part as another process
// left it; its error leaves the file alone.
func (j *Journal) Update(name string, change func(*LB) error) error {
	return j.change(func(lbs map[string]LB) error {
		lb := lbs[name].clone()
		err := change(&lb)
		lbs[name] = lb
		return err
	})
}

func (l LB) clone() LB {
	l.Records = maps.Clone(l.Records)
	if l.Records == nil {
		l.Records = map[string]hold.Record{}
	}
	return l
}

// change replaces the file under the lock.
func (j *Journal) change(f func(map[string]LB) error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := os.MkdirAll(j.dir, 0o750); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	l, err := lock(filepath.Join(j.dir, lockFile), 0)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := j.load(); err != nil {
		return err
	}
	lbs := maps.Clone(j.doc.LBs)
	if lbs == nil {
		lbs = map[string]LB{}
	}
	if err := f(lbs); err != nil {
		return err
	}
	return j.save(Doc{Version, lbs})
}

// load brings doc up to date with the file.
func (j *Journal) load() error {
	path := filepath.Join(j.dir, file)
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		j.doc, j.seen = Doc{}, nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if j.seen != nil && os.SameFile(now, j.seen) && now.ModTime().Equal(j.seen.ModTime()) && now.Size() == j.seen.Size() {
		return nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	var head struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(b, &head); err != nil || head.Version == nil {
		return fmt.Errorf("journal %s: %w: not a journal of lbctl", path, ErrVersion)
	}
	if *head.Version != Version {
		return fmt.Errorf("journal %s: %w: %d, this lbctl knows %d", path, ErrVersion, *head.Version, Version)
	}
	var d Doc
	if err := json.Unmarshal(b, &d); err != nil {
		return fmt.Errorf("journal %s: %w: %w", path, ErrVersion, err)
	}
	j.doc, j.seen = d, now
	return nil
}

// save writes d whole.
func (j *Journal) save(d Doc) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", " ")
	if err := enc.Encode(d); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	info, err := Replace(filepath.Join(j.dir, file), b.Bytes(), 0o640)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.doc, j.seen = d, info
	return nil
}

// Replace writes a file so that after a crash there is the old or the new one:
// temporary file beside it, fsync, rename, fsync of the directory.
func Replace(path string, content []byte, mode fs.FileMode) (fs.FileInfo, error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name()) // after the rename there is nothing left to remove
	defer f.Close()
	if err := f.Chmod(mode); err != nil {
		return nil, err
	}
	if _, err := f.Write(content); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return nil, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return info, d.Sync()
}

// lock takes path's lock; with unix.LOCK_NB the error of a taken one is
// ErrLocked. It is released with the file, and by the kernel at the latest when
// the process ends.
func lock(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o640)
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
