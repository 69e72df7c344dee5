// Package journal keeps the holds in STATE_DIR/holds.json, so that they survive
// kill -9 and are the same for the daemon and for a command line that works
// without it.
//
// An update is in force, and survives kill -9, once holds.next is in its place by
// rename; it survives the machine once that was flushed and has become
// holds.json. A command line waits for the second. A daemon does not, see
// [Journal.Background]: a flush takes 0.5 ms on an idle disk and 100 ms on a busy
// one, the first step of a drain waits for it, and a machine that goes down takes
// its HAProxy and every hold with it.
//
// Whoever reads sees a whole file, the old one or the new one. The top-level
// "version" is 1; with another one nothing is read and nothing is written:
// [ErrVersion].
package journal

import (
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
	nextFile   = "holds.next"  // newer than holds.json where it is
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

	mu     sync.Mutex
	doc    Doc
	seen   fs.FileInfo   // the file that doc was read from or written to
	staged chan struct{} // with Background: something waits to be flushed
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
	left, err := filepath.Glob(filepath.Join(j.dir, "."+nextFile+".*"))
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

// Update replaces one balancer's part by what change makes of it; when it returns
// that is in force, and without Background on the disk. change may be given the part as another process
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

// change replaces the document, and flushes it where nobody else does.
func (j *Journal) change(f func(map[string]LB) error) error {
	if err := j.replace(f); err != nil {
		return err
	}
	j.mu.Lock()
	staged := j.staged
	j.mu.Unlock()
	if staged == nil {
		return j.flush()
	}
	select {
	case staged <- struct{}{}:
	default:
	}
	return nil
}

func (j *Journal) replace(f func(map[string]LB) error) error {
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
	return j.stage(Doc{Version, lbs})
}
