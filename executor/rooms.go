package executor

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
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/filetrust"
)

const (
	roomsFree  = 64               // empty rooms that are kept for attempts to come
	roomClear  = 2 * time.Second  // for an attempt's room to be emptied before its end is told
	roomsClear = 10 * time.Second // for all of them, when the daemon ends
	roomsRetry = time.Minute      // between tries to empty what was set aside
	roomsAgain = 10 * time.Second // between tries to open the rooms
	roomsFirst = 5 * time.Second  // for the first of them, before attempts start without
	roomTalk   = "talk"           // the file that CARILLON_TALK names

	homeTries = 5 // to lock the directory of all rooms
	homePause = 20 * time.Millisecond
)

// RoomsDir is where the rooms of a node's attempts are: on disk, since they may hold
// much, and where the users that they run as can get, which the data directory is not.
// set is what the node's settings say, or "". All that is in it is the node's, and is
// removed when no daemon uses it: so it is never a directory that others may fill.
func RoomsDir(set, node, data string) string {
	switch {
	case set != "":
		return filepath.Join(set, "carillon-"+node)
	case os.Geteuid() == 0:
		return filepath.Join("/var/cache/carillon", node)
	}
	return filepath.Join(data, "rooms")
}

// rooms are the directories of attempts: one each, empty when it begins, its
// user's own (0700), and empty again when it has ended.
//
//	<dir>/<instance>/<n>/    talk, scratch, and what stands in for task.PrivateDirs
//
// Most attempts leave nothing, so rooms are kept for the next attempt of the same
// user; to find one empty costs two system calls. What cannot be emptied, or not
// soon, is set aside: it is told, tried again every minute, and given to nobody.
// A lock on <instance>, held while the daemon lives, tells its rooms from those
// that a dead one has left. Without rooms (nil, or a disk that takes no more)
// attempts run all the same, and have none.
type rooms struct {
	dir, instance string
	data          string // the data directory, in which dir may lie
	own           owner
	within        time.Duration // for a room to be emptied before it is set aside
	again         time.Duration // between tries to open them
	reach         func() (*os.File, error)
	log           *zap.Logger

	mu     sync.Mutex
	home   *os.File // <dir>/<instance>; nil: not open
	fd     int      // its descriptor
	failed error    // why not
	closed bool     // they are not to be opened any more
	next   int
	free   map[owner][]*room
	kept   int // in free
	aside  []*room
}

// owner is whom a room belongs to.
type owner struct{ uid, gid uint32 }

func newRooms(dir, data, instance string, log *zap.Logger) *rooms {
	own := owner{uint32(os.Geteuid()), uint32(os.Getegid())}
	return &rooms{dir: dir, data: data, instance: instance, within: roomClear, again: roomsAgain, log: cmp.Or(log, zap.NewNop()).Named("rooms"), free: map[owner][]*room{},
		own: own, failed: fmt.Errorf("%s has not been opened yet (scratch_dir)", dir),
		reach: func() (*os.File, error) { return openHome(dir, data, instance, own.uid) }}
}

// run opens the rooms, however often it takes, and tends them until ctx ends. tried
// is called when it has tried once.
func (r *rooms) run(ctx context.Context, tried func()) {
	began := time.Now()
	for first := true; ; first = false {
		opened := make(chan error, 1)
		go func() { opened <- r.open() }() // a disk that does not answer may keep it for ever
		var err error
		select {
		case <-ctx.Done():
			return
		case err = <-opened:
		}
		tried()
		switch {
		case err != nil && first:
			r.log.Error("attempts have no directories of their own; it is tried again", zap.Duration("every", r.again), zap.Error(err))
		case err == nil && (!first || time.Since(began) >= roomsFirst): // it was told that there are none
			r.log.Info("attempts have directories of their own now", zap.String("path", r.dir))
		}
		if err == nil {
			r.tend(ctx)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.again):
		}
	}
}

// tend removes what dead daemons have left, and tries now and then to empty what
// was set aside, until ctx ends. The rooms must be open.
func (r *rooms) tend(ctx context.Context) {
	if err := removeRooms(r.dir, r.data, r.instance, ctx.Done()); err != nil && ctx.Err() == nil {
		r.log.Warn("directories that a former daemon's attempts have left cannot be removed", zap.Error(err))
	}
	t := time.NewTicker(roomsRetry)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			r.retry(ctx.Done())
		}
	}
}

// open makes the directory in which rooms are, and locks it. After an error it may be
// called again.
func (r *rooms) open() error {
	if r == nil {
		return nil
	}
	var home *os.File
	var err error
	// Another daemon of that name may just be removing what it takes for a dead one's.
	for range homeTries {
		if home, err = r.reach(); err == nil {
			break
		}
		time.Sleep(homePause)
	}
	r.mu.Lock() // only now: whoever wants a room does not wait for a disk that does not answer
	defer r.mu.Unlock()
	if err == nil && r.closed {
		err = errors.Join(errRoomsClosed, home.Close())
	}
	if err != nil {
		r.failed = err
		return fmt.Errorf("open the directories of attempts (scratch_dir): %w", err)
	}
	r.home, r.fd, r.failed = home, int(home.Fd()), nil
	return nil
}

var errRoomsClosed = errors.New("the rooms are closed")

// openRoomsDir opens the directory in which all rooms of a node are, by descriptor and without
// following a link at its name. It must belong to uid, and nobody else may be able to write to it,
// or to put another directory in its place: whatever is in it is emptied as root.
//
// The directories above it are checked (see package filetrust) unless dir lies directly in the data
// directory, which the daemon checks when it starts. With create, what is missing is made.
func openRoomsDir(dir, data string, uid uint32, create bool) (*os.File, error) {
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

// openHome makes, opens and locks the directory of one daemon's rooms.
func openHome(dir, data, instance string, uid uint32) (*os.File, error) {
	all, err := openRoomsDir(dir, data, uid, true)
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

// take gives an attempt of this user an empty room.
func (r *rooms) take(as account) (*room, error) {
	if r == nil {
		return nil, errors.New("this node keeps no directories for attempts")
	}
	who := r.own
	if as.credential != nil {
		who = owner{as.credential.Uid, as.credential.Gid}
	}
	r.mu.Lock()
	if r.home == nil {
		defer r.mu.Unlock()
		return nil, r.failed
	}
	for n := len(r.free[who]); n > 0; n-- {
		m := r.free[who][n-1]
		r.free[who], r.kept = r.free[who][:n-1], r.kept-1
		if m.stands() {
			r.mu.Unlock()
			return m, nil
		}
		r.drop(m)
	}
	r.next++
	n := strconv.Itoa(r.next)
	r.mu.Unlock()
	m, err := r.build(n, who)
	if err != nil {
		return nil, fmt.Errorf("make a directory for the attempt: %w", err)
	}
	return m, nil
}

// drop removes a room that is empty. mu is held.
func (r *rooms) drop(m *room) {
	unix.Close(m.dir)
	if err := unix.Unlinkat(r.fd, m.name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		r.log.Warn("the directory of an attempt cannot be removed", zap.String("path", m.path), zap.Error(err))
	}
}

// retry tries once more to empty what was set aside.
func (r *rooms) retry(done <-chan struct{}) {
	r.mu.Lock()
	aside := r.aside
	r.aside = nil
	r.mu.Unlock()
	for _, m := range aside {
		err := emptyDir(m.dir, done)
		r.mu.Lock()
		if err != nil {
			r.aside = append(r.aside, m)
		} else {
			r.drop(m)
			r.log.Info("the directory of an attempt that was set aside is empty now", zap.String("path", m.path))
		}
		r.mu.Unlock()
	}
}

// setAside is how many rooms could not be emptied.
func (r *rooms) setAside() int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.aside)
}

// close removes all rooms. What cannot be removed is left to the next start.
func (r *rooms) close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	opened := r.home != nil
	r.closed = true
	r.mu.Unlock()
	if !opened {
		return
	}
	late := make(chan struct{})
	defer time.AfterFunc(roomsClear, func() { close(late) }).Stop()
	r.retry(late)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, free := range r.free {
		for _, m := range free {
			r.drop(m)
		}
	}
	for _, m := range r.aside {
		unix.Close(m.dir)
	}
	home := r.home
	r.free, r.kept, r.home, r.failed = nil, 0, nil, errRoomsClosed
	if err := os.Remove(home.Name()); err != nil {
		r.log.Warn("directories of attempts are left", zap.Error(err))
	}
	home.Close()
	_ = os.Remove(r.dir) // unless another daemon uses it, too
}
