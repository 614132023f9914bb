package workdir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/filetrust"
)

const (
	maxKept    = 64               // maximum number of empty directories that are kept for later attempts; each holds a descriptor
	emptyLimit = 2 * time.Second  // time limit for emptying a directory; the end of its attempt waits for that
	closeLimit = 10 * time.Second // time limit for emptying all quarantined directories when the daemon stops
	retryEvery = time.Minute      // interval between tries to empty quarantined directories
	openPause  = 10 * time.Second // pause between tries to open the pool's directory

	lockTries = 5 // number of tries to lock the instance's directory
	lockPause = 20 * time.Millisecond
)

// OpenTimeout is how long a starting node waits for Pool.Run to open the pool's directory. After that, attempts start
// without working directories.
const OpenTimeout = 5 * time.Second

// Root returns the directory in which a node's pools are. It is on disk, because attempts may
// store much, and the users of attempts can reach it, unlike the data directory of root.
// set is the node's setting scratch_dir, or "". The whole directory belongs to the node: its contents are
// removed when no daemon uses them. So with a setting, it is a subdirectory that only the node uses.
func Root(set, node, data string) string {
	switch {
	case set != "":
		return filepath.Join(set, "carillon-"+node)
	case os.Geteuid() == 0:
		return filepath.Join("/var/cache/carillon", node)
	}

	return filepath.Join(data, "rooms")
}

// Pool manages the working directories of one daemon's attempts. A kept directory costs an attempt two
// system calls, which check that it is empty. If the pool is nil or the disk is full, attempts run without
// directories. The methods may be called from any goroutine.
type Pool struct {
	dir, instance string
	data          string                   // the data directory; dir may be in it
	own           owner                    // the daemon's user and group
	EmptyLimit    time.Duration            // time limit for emptying a directory before it is quarantined
	again         time.Duration            // pause between tries to open the pool's directory
	openLock      func() (*os.File, error) // openInstance, except in tests
	log           *zap.Logger

	mu          sync.Mutex
	lockDir     *os.File         // <dir>/<instance>, with its lock; nil: not open
	fd          int              // the descriptor of lockDir
	failed      error            // why lockDir is not open
	closed      bool             // Close was called, so the directory must not be opened any more
	next        int              // the last number given to a directory
	free        map[owner][]*Dir // empty directories
	kept        int              // number of directories in free
	quarantined []*Dir           // directories that could not be emptied
}

// owner is the user and the group to which a directory belongs.
type owner struct{ uid, gid uint32 }

// NewPool returns a pool that is not open. It does no I/O. dir is the directory from Root, which may be in the data
// directory.
func NewPool(dir, data, instance string, log *zap.Logger) *Pool {
	own := owner{uint32(os.Geteuid()), uint32(os.Getegid())}
	return &Pool{dir: dir, data: data, instance: instance, EmptyLimit: emptyLimit, again: openPause, log: cmp.Or(log, zap.NewNop()).Named("rooms"), free: map[owner][]*Dir{},
		own: own, failed: fmt.Errorf("%s has not been opened yet (scratch_dir)", dir),
		openLock: func() (*os.File, error) { return openInstance(dir, data, instance, own.uid) }}
}

// Run opens the pool's directory, retries until that succeeds, and then cleans up until ctx ends. It calls tried
// after each try to open, so the caller must accept several calls.
func (p *Pool) Run(ctx context.Context, tried func()) {
	began := time.Now()

	for first := true; ; first = false {
		opened := make(chan error, 1)
		go func() { opened <- p.Open() }() // if the disk does not respond, this goroutine may never end

		var err error
		select {
		case <-ctx.Done():
			return
		case err = <-opened:
		}

		tried()

		switch {
		case err != nil && first:
			p.log.Error("attempts run without their own directory; retrying", zap.Duration("every", p.again), zap.Error(err))
		case err == nil && (!first || time.Since(began) >= OpenTimeout): // the log says that attempts run without
			p.log.Info("attempts have their own directories again", zap.String("path", p.dir))
		}

		if err == nil {
			p.runCleaner(ctx)
			return
		}

		select {
		case <-ctx.Done():
			return
		case <-time.After(p.again):
		}
	}
}

// runCleaner removes what dead daemons have left, and then retries quarantined directories every retryEvery
// until ctx ends. The pool must be open.
func (p *Pool) runCleaner(ctx context.Context) {
	if err := removeAbandoned(p.dir, p.data, p.instance, ctx.Done()); err != nil && ctx.Err() == nil {
		p.log.Warn("cannot remove the directories of an earlier daemon's attempts", zap.Error(err))
	}

	t := time.NewTicker(retryEvery)
	defer t.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			p.retryQuarantined(ctx.Done())
		}
	}
}

// Open creates and locks the instance's directory. After an error it may be
// called again. It may block for as long as the disk does not respond.
func (p *Pool) Open() error {
	if p == nil {
		return nil
	}

	var home *os.File
	var err error
	// A try fails if RemoveAbandoned of another process locks the new directory first, because it takes it for
	// that of a dead daemon.
	for range lockTries {
		if home, err = p.openLock(); err == nil {
			break
		}
		time.Sleep(lockPause)
	}

	p.mu.Lock() // not earlier, because Take must not wait for a disk that does not respond
	defer p.mu.Unlock()

	if err == nil && p.closed {
		err = errors.Join(errClosed, home.Close())
	}

	if err != nil {
		p.failed = err
		return fmt.Errorf("open the directories of attempts (scratch_dir): %w", err)
	}

	p.lockDir, p.fd, p.failed = home, int(home.Fd()), nil

	return nil
}

// errClosed means that the pool was closed.
var errClosed = errors.New("the pool of directories is closed")

// openRoot opens the directory in which all directories of a node are, by descriptor and without
// following a link at its name. It must belong to uid, and nobody else may be able to write to it,
// or to put another directory in its place: whatever is in it is emptied as root.
//
// The directories above it are checked (see package filetrust) unless dir lies directly in the data
// directory, which the daemon checks when it starts. With create, what is missing is made.
func openRoot(dir, data string, uid uint32, create bool) (*os.File, error) {
	parent, name := filepath.Split(dir)
	parent = filepath.Clean(parent)

	if create {
		if err := os.MkdirAll(parent, 0o711); err != nil {
			return nil, err
		}
	}

	var above *os.File
	var err error
	if parent == filepath.Clean(data) {
		above, err = os.Open(parent)
	} else {
		above, err = filetrust.OpenDir(parent, uid)
	}

	if err != nil {
		return nil, err
	}

	defer above.Close()

	return openOwnDir(above, name, uid, create)
}

// openOwnDir opens the directory name in parent if it belongs to uid and no other user can write to it.
// It does not follow a link. With create, it creates the directory if it does not exist.
func openOwnDir(parent *os.File, name string, uid uint32, create bool) (*os.File, error) {
	path := filepath.Join(parent.Name(), name)

	if create {
		if err := unix.Mkdirat(int(parent.Fd()), name, 0o711); err != nil && err != unix.EEXIST {
			return nil, &os.PathError{Op: "mkdir", Path: path, Err: err}
		}
	}

	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}

	dir := os.NewFile(uintptr(fd), path)

	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (st.Uid != uid || st.Mode&0o022 != 0) {
		err = fmt.Errorf("%s is not a directory of user %d that others cannot write to", path, uid)
	}

	if err == nil && create {
		err = dir.Chmod(0o711) // the umask or an administrator may have removed permissions that users need to enter it
	}

	if err != nil {
		dir.Close()
		return nil, err
	}

	return dir, nil
}

// openInstance creates, opens and locks the directory of one daemon's instance. The lock lasts until the file is closed
// or the process dies.
func openInstance(dir, data, instance string, uid uint32) (*os.File, error) {
	all, err := openRoot(dir, data, uid, true)
	if err != nil {
		return nil, err
	}

	defer all.Close()

	home, err := openOwnDir(all, instance, uid, true)
	if err != nil {
		return nil, err
	}

	if err := unix.Flock(int(home.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		home.Close()
		return nil, &os.PathError{Op: "lock", Path: home.Name(), Err: err}
	}

	// RemoveAbandoned may have held the lock first and removed the directory. The lock is then on a directory
	// without a name.
	locked, err1 := home.Stat()
	there, err2 := os.Lstat(home.Name())
	if err := errors.Join(err1, err2); err != nil || !os.SameFile(locked, there) {
		home.Close()
		return nil, fmt.Errorf("%s was removed in the meantime: %w", home.Name(), cmp.Or(err, fs.ErrNotExist))
	}

	return home, nil
}

// Take returns an empty directory for an attempt of a user; nil means the daemon's own user. The caller must call
// Release. After an error the attempt can run without a directory.
func (p *Pool) Take(as *syscall.Credential) (*Dir, error) {
	if p == nil {
		return nil, errors.New("this node provides no directories for attempts")
	}

	who := p.own
	if as != nil {
		who = owner{as.Uid, as.Gid}
	}

	p.mu.Lock()
	if p.lockDir == nil {
		defer p.mu.Unlock()
		return nil, p.failed
	}

	for n := len(p.free[who]); n > 0; n-- {
		m := p.free[who][n-1]
		p.free[who], p.kept = p.free[who][:n-1], p.kept-1

		if m.isUntouched() {
			// It was empty when it was released. Since then, only processes of the same user can have changed it.
			p.mu.Unlock()
			return m, nil
		}

		p.dropEmpty(m)
	}

	p.next++
	n := strconv.Itoa(p.next)
	p.mu.Unlock()

	m, err := p.buildDir(n, who)
	if err != nil {
		return nil, fmt.Errorf("create a directory for the attempt: %w", err)
	}

	return m, nil
}

// dropEmpty removes an empty directory and closes its descriptor. The caller holds mu.
func (p *Pool) dropEmpty(m *Dir) {
	unix.Close(m.dir)
	if err := unix.Unlinkat(p.fd, m.name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		p.log.Warn("cannot remove the directory of an attempt", zap.String("path", m.path), zap.Error(err))
	}
}

// retryQuarantined tries once to empty and remove each quarantined directory, until done is closed.
func (p *Pool) retryQuarantined(done <-chan struct{}) {
	p.mu.Lock()
	aside := p.quarantined
	p.quarantined = nil
	p.mu.Unlock()

	for _, m := range aside {
		err := emptyDir(m.dir, done)
		p.mu.Lock()
		if err != nil {
			p.quarantined = append(p.quarantined, m)
		} else {
			p.dropEmpty(m)
			p.log.Info("emptied a quarantined attempt directory", zap.String("path", m.path))
		}
		p.mu.Unlock()
	}
}

// Path returns the directory that contains all directories of the node.
func (p *Pool) Path() string { return p.dir }

// Quarantined returns the number of directories that could not be emptied.
func (p *Pool) Quarantined() int {
	if p == nil {
		return 0
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	return len(p.quarantined)
}

// Close removes all directories and closes the pool for good. All attempts must have released their directories. The
// next start removes what cannot be removed now.
func (p *Pool) Close() {
	if p == nil {
		return
	}

	p.mu.Lock()
	opened := p.lockDir != nil
	p.closed = true
	p.mu.Unlock()

	if !opened {
		return
	}

	late := make(chan struct{})
	defer time.AfterFunc(closeLimit, func() { close(late) }).Stop()

	p.retryQuarantined(late)
	p.mu.Lock()
	defer p.mu.Unlock()

	for _, free := range p.free {
		for _, m := range free {
			p.dropEmpty(m)
		}
	}

	for _, m := range p.quarantined {
		unix.Close(m.dir)
	}

	home := p.lockDir
	p.free, p.kept, p.lockDir, p.failed = nil, 0, nil, errClosed

	if err := os.Remove(home.Name()); err != nil {
		p.log.Warn("attempt directories remain", zap.Error(err))
	}

	home.Close()
	_ = os.Remove(p.dir) // fails if another daemon uses it, too
}
