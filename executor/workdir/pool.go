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
	mostKept   = 64               // empty directories that are kept for attempts to come
	emptyLimit = 2 * time.Second  // for an attempt's directory to be emptied before its end is told
	closeLimit = 10 * time.Second // for all of them, when the daemon ends
	retryEvery = time.Minute      // between tries to empty what was set aside
	openPause  = 10 * time.Second // between tries to open the directories

	lockTries = 5 // to lock the directory of all directories
	lockPause = 20 * time.Millisecond
)

// OpenPatience is how long attempts are to wait for Pool.Run to open the directories, before they start without.
const OpenPatience = 5 * time.Second

// Root is where the directories of a node's attempts are: on disk, since they may hold
// much, and where the users that they run as can get, which the data directory is not.
// set is what the node's settings say, or "". All that is in it is the node's, and is
// removed when no daemon uses it: so it is never a directory that others may fill.
func Root(set, node, data string) string {
	switch {
	case set != "":
		return filepath.Join(set, "carillon-"+node)
	case os.Geteuid() == 0:
		return filepath.Join("/var/cache/carillon", node)
	}

	return filepath.Join(data, "rooms")
}

// Pool has the directories of the attempts of one daemon. To find a directory empty that was used before costs two
// system calls. Without a pool (nil), or with a disk that takes no more, attempts run all the same, and have none.
type Pool struct {
	dir, instance string
	data          string // the data directory, in which dir may lie
	own           owner
	EmptyLimit    time.Duration // for a directory to be emptied before it is set aside
	again         time.Duration // between tries to open them
	openLock      func() (*os.File, error)
	log           *zap.Logger

	mu          sync.Mutex
	lockDir     *os.File // <dir>/<instance>; nil: not open
	fd          int      // its descriptor
	failed      error    // why not
	closed      bool     // they are not to be opened any more
	next        int
	free        map[owner][]*Dir
	kept        int // in free
	quarantined []*Dir
}

// owner is whom a directory belongs to.
type owner struct{ uid, gid uint32 }

// NewPool makes a pool, without any I/O. dir is where its directories are to be (see Root), in the data directory or
// elsewhere.
func NewPool(dir, data, instance string, log *zap.Logger) *Pool {
	own := owner{uint32(os.Geteuid()), uint32(os.Getegid())}
	return &Pool{dir: dir, data: data, instance: instance, EmptyLimit: emptyLimit, again: openPause, log: cmp.Or(log, zap.NewNop()).Named("rooms"), free: map[owner][]*Dir{},
		own: own, failed: fmt.Errorf("%s has not been opened yet (scratch_dir)", dir),
		openLock: func() (*os.File, error) { return openInstance(dir, data, instance, own.uid) }}
}

// Run opens the directories, however often it takes, and tends them until ctx ends. tried
// is called when it has tried once.
func (r *Pool) Run(ctx context.Context, tried func()) {
	began := time.Now()

	for first := true; ; first = false {
		opened := make(chan error, 1)
		go func() { opened <- r.Open() }() // a disk that does not answer may keep it for ever

		var err error
		select {
		case <-ctx.Done():
			return
		case err = <-opened:
		}

		tried()

		switch {
		case err != nil && first:
			r.log.Error("attempts run without their own directory; retrying", zap.Duration("every", r.again), zap.Error(err))
		case err == nil && (!first || time.Since(began) >= OpenPatience): // it was told that there are none
			r.log.Info("attempts have their own directories again", zap.String("path", r.dir))
		}

		if err == nil {
			r.runCleaner(ctx)
			return
		}

		select {
		case <-ctx.Done():
			return
		case <-time.After(r.again):
		}
	}
}

// runCleaner removes what dead daemons have left, and tries now and then to empty what
// was set aside, until ctx ends. The directories must be open.
func (r *Pool) runCleaner(ctx context.Context) {
	if err := removeAbandoned(r.dir, r.data, r.instance, ctx.Done()); err != nil && ctx.Err() == nil {
		r.log.Warn("cannot remove the directories of an earlier daemon's attempts", zap.Error(err))
	}

	t := time.NewTicker(retryEvery)
	defer t.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			r.retryQuarantined(ctx.Done())
		}
	}
}

// Open makes the directory in which directories are, and locks it. After an error it may be
// called again.
func (r *Pool) Open() error {
	if r == nil {
		return nil
	}

	var home *os.File
	var err error
	// Another daemon of that name may just be removing what it takes for a dead one's.
	for range lockTries {
		if home, err = r.openLock(); err == nil {
			break
		}
		time.Sleep(lockPause)
	}

	r.mu.Lock() // only now: whoever wants a directory does not wait for a disk that does not answer
	defer r.mu.Unlock()

	if err == nil && r.closed {
		err = errors.Join(errClosed, home.Close())
	}

	if err != nil {
		r.failed = err
		return fmt.Errorf("open the directories of attempts (scratch_dir): %w", err)
	}

	r.lockDir, r.fd, r.failed = home, int(home.Fd()), nil

	return nil
}

var errClosed = errors.New("the rooms are closed")

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

// openOwnDir opens the directory name in parent if it belongs to uid and nobody else can write to it.
// It does not follow a link. With create, it makes the directory if there is none.
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
		err = dir.Chmod(0o711) // the umask, or an administrator, may have made it narrower: users must get in
	}

	if err != nil {
		dir.Close()
		return nil, err
	}

	return dir, nil
}

// openInstance makes, opens and locks the directory of one daemon's directories.
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

	// Whoever removes what a dead daemon left may have had the lock first.
	locked, err1 := home.Stat()
	there, err2 := os.Lstat(home.Name())
	if err := errors.Join(err1, err2); err != nil || !os.SameFile(locked, there) {
		home.Close()
		return nil, fmt.Errorf("%s was removed meanwhile: %w", home.Name(), cmp.Or(err, fs.ErrNotExist))
	}

	return home, nil
}

// Take gives an attempt of this user, nil for the daemon's own, an empty directory.
func (r *Pool) Take(as *syscall.Credential) (*Dir, error) {
	if r == nil {
		return nil, errors.New("this node keeps no directories for attempts")
	}

	who := r.own
	if as != nil {
		who = owner{as.Uid, as.Gid}
	}

	r.mu.Lock()
	if r.lockDir == nil {
		defer r.mu.Unlock()
		return nil, r.failed
	}

	for n := len(r.free[who]); n > 0; n-- {
		m := r.free[who][n-1]
		r.free[who], r.kept = r.free[who][:n-1], r.kept-1

		if m.isUntouched() {
			r.mu.Unlock()
			return m, nil
		}

		r.dropEmpty(m)
	}

	r.next++
	n := strconv.Itoa(r.next)
	r.mu.Unlock()

	m, err := r.buildDir(n, who)
	if err != nil {
		return nil, fmt.Errorf("make a directory for the attempt: %w", err)
	}

	return m, nil
}

// dropEmpty removes a directory that is empty. mu is held.
func (r *Pool) dropEmpty(m *Dir) {
	unix.Close(m.dir)
	if err := unix.Unlinkat(r.fd, m.name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		r.log.Warn("cannot remove the directory of an attempt", zap.String("path", m.path), zap.Error(err))
	}
}

// retryQuarantined tries once more to empty what was set aside.
func (r *Pool) retryQuarantined(done <-chan struct{}) {
	r.mu.Lock()
	aside := r.quarantined
	r.quarantined = nil
	r.mu.Unlock()

	for _, m := range aside {
		err := emptyDir(m.dir, done)
		r.mu.Lock()
		if err != nil {
			r.quarantined = append(r.quarantined, m)
		} else {
			r.dropEmpty(m)
			r.log.Info("emptied a quarantined attempt directory", zap.String("path", m.path))
		}
		r.mu.Unlock()
	}
}

// Path is the directory that all directories are in.
func (r *Pool) Path() string { return r.dir }

// Quarantined is how many directories could not be emptied.
func (r *Pool) Quarantined() int {
	if r == nil {
		return 0
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	return len(r.quarantined)
}

// Close removes all directories. What cannot be removed is left to the next start.
func (r *Pool) Close() {
	if r == nil {
		return
	}

	r.mu.Lock()
	opened := r.lockDir != nil
	r.closed = true
	r.mu.Unlock()

	if !opened {
		return
	}

	late := make(chan struct{})
	defer time.AfterFunc(closeLimit, func() { close(late) }).Stop()

	r.retryQuarantined(late)
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, free := range r.free {
		for _, m := range free {
			r.dropEmpty(m)
		}
	}

	for _, m := range r.quarantined {
		unix.Close(m.dir)
	}

	home := r.lockDir
	r.free, r.kept, r.lockDir, r.failed = nil, 0, nil, errClosed

	if err := os.Remove(home.Name()); err != nil {
		r.log.Warn("attempt directories remain", zap.Error(err))
	}

	home.Close()
	_ = os.Remove(r.dir) // unless another daemon uses it, too
}
