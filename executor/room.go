package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	roomsFree  = 64               // empty rooms that are kept for attempts to come
	roomClear  = 2 * time.Second  // for an attempt's room to be emptied before its end is told
	roomsClear = 10 * time.Second // for all of them, when the daemon ends
	roomsRetry = time.Minute      // between tries to empty what was set aside
	roomTalk   = "talk"           // the file that CARILLON_TALK names
)

// RoomsDir is where the rooms of a node's attempts are: where the users that
// they run as can get, which the data directory is not.
func RoomsDir(node, data string) string {
	if os.Geteuid() == 0 {
		return filepath.Join("/run/carillon", node)
	}
	return filepath.Join(data, "rooms")
}

// rooms are the directories of attempts: one each, empty when it begins, its
// user's own (0700), and empty again when it has ended.
//
//	<dir>/<instance>/<n>/    talk, and what else an attempt is given
//
// Most attempts leave nothing, so rooms are kept for the next attempt of the same
// user; to find one empty costs two system calls. What cannot be emptied, or not
// soon, is set aside: it is told, tried again every minute, and given to nobody.
// A lock on <instance>, held while the daemon lives, tells its rooms from those
// that a dead one has left. Without rooms (nil, or a disk that takes no more)
// attempts run all the same, and have none.
type rooms struct {
	dir, instance string
	own           owner
	within        time.Duration // for a room to be emptied before it is set aside
	log           *zap.Logger

	mu     sync.Mutex
	home   *os.File // <dir>/<instance>; nil: not open
	fd     int      // its descriptor
	failed error    // why not
	next   int
	free   map[owner][]*room
	kept   int // in free
	aside  []*room
}

// owner is whom a room belongs to.
type owner struct{ uid, gid uint32 }

// room is the directory of one attempt. nil is none.
type room struct {
	*rooms
	path  string
	name  string
	owner owner
	dir   int // its descriptor
	ino   uint64
}

func newRooms(dir, instance string, log *zap.Logger) *rooms {
	return &rooms{dir: dir, instance: instance, within: roomClear, log: orNop(log).Named("rooms"), free: map[owner][]*room{},
		own: owner{uint32(os.Geteuid()), uint32(os.Getegid())}, failed: errors.New("there are no rooms yet")}
}

// tend removes what dead daemons have left, and tries now and then to empty what
// was set aside, until ctx ends. The rooms must be open.
func (r *rooms) tend(ctx context.Context) {
	if err := removeRooms(r.dir, r.instance, ctx.Done()); err != nil && ctx.Err() == nil {
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

// open makes the directory in which rooms are, and locks it.
func (r *rooms) open() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.home, r.failed = openHome(r.dir, r.instance, r.own.uid); r.failed != nil {
		return fmt.Errorf("open the directories of attempts: %w", r.failed)
	}
	r.fd = int(r.home.Fd())
	return nil
}

func openHome(dir, instance string, uid uint32) (*os.File, error) {
	home := filepath.Join(dir, instance)
	if err := os.MkdirAll(home, 0o711); err != nil {
		return nil, err
	}
	for _, d := range []string{dir, home} { // nobody else may put things there, or take them away
		var st unix.Stat_t
		if err := unix.Lstat(d, &st); err != nil {
			return nil, &os.PathError{Op: "lstat", Path: d, Err: err}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != uid || st.Mode&0o022 != 0 {
			return nil, fmt.Errorf("%s is not a directory of user %d that others cannot write to", d, uid)
		}
		if err := os.Chmod(d, 0o711); err != nil {
			return nil, err
		}
	}
	f, err := os.Open(home)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "lock", Path: home, Err: err}
	}
	return f, nil
}

// take gives an attempt of this user an empty room.
func (r *rooms) take(as account) (*room, error) {
	if r == nil {
		return nil, nil
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

func (r *rooms) build(name string, who owner) (_ *room, err error) {
	m := &room{rooms: r, path: filepath.Join(r.home.Name(), name), name: name, owner: who}
	if err := unix.Mkdirat(r.fd, name, 0o700); err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: m.path, Err: err}
	}
	if m.dir, err = openDir(r.fd, name); err != nil {
		return nil, errors.Join(err, unix.Unlinkat(r.fd, name, unix.AT_REMOVEDIR))
	}
	if who != r.own {
		err = unix.Fchown(m.dir, int(who.uid), int(who.gid))
	}
	var st unix.Stat_t
	if err = cmp.Or(err, unix.Fchmod(m.dir, 0o700), unix.Fstat(m.dir, &st)); err != nil {
		return nil, errors.Join(err, unix.Close(m.dir), unix.Unlinkat(r.fd, name, unix.AT_REMOVEDIR))
	}
	m.ino = st.Ino
	return m, nil
}

// stands reports whether the room is where it was, its user's, and nobody else's.
func (m *room) stands() bool {
	var st unix.Stat_t
	err := unix.Fstatat(m.rooms.fd, m.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Ino == m.ino && st.Uid == m.owner.uid && st.Gid == m.owner.gid && st.Mode == unix.S_IFDIR|0o700
}

// env is what tells an attempt where it may speak, and what the one before it said last.
func (m *room) env(a *task.Assigned) (env []string) {
	if m != nil {
		env = append(env, "CARILLON_TALK="+filepath.Join(m.path, roomTalk))
	}
	if a.Checkpoint != "" {
		env = append(env, "CARILLON_CHECKPOINT="+a.Checkpoint)
	}
	return env
}

// leave ends the use of a room: nothing of the attempt may run any more. t is heard
// first, if it may have said anything. The room is empty when leave returns, or set
// aside, which is the error.
func (m *room) leave(t *talk, r *Result) error {
	if m == nil {
		return nil
	}
	names, err := m.entries()
	t.end(r, err != nil || len(names) > 0)
	if err == nil && len(names) == 1 && names[0] == roomTalk && unix.Unlinkat(m.dir, roomTalk, 0) == nil {
		names = nil
	}
	pristine := err == nil && len(names) == 0
	if !pristine {
		late := make(chan struct{})
		t := time.AfterFunc(m.within, func() { close(late) })
		err = emptyDir(m.dir, late)
		t.Stop()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err != nil:
		m.log.Warn("the directory of an attempt is set aside: it cannot be emptied", zap.String("path", m.path), zap.Error(err))
		m.aside = append(m.aside, m)
		return fmt.Errorf("its directory %s is set aside: it cannot be emptied: %w", m.path, err)
	case pristine && m.kept < roomsFree:
		m.free[m.owner], m.kept = append(m.free[m.owner], m), m.kept+1
	default:
		m.drop(m)
	}
	return nil
}

// entries are the names in the room, if they are few.
func (m *room) entries() ([]string, error) {
	if _, err := unix.Seek(m.dir, 0, 0); err != nil {
		return nil, err
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for names := []string(nil); ; {
		n, err := unix.ReadDirent(m.dir, *buf)
		if err != nil || n <= 0 || len(names) > 1 {
			return names, err
		}
		_, _, names = unix.ParseDirent((*buf)[:n], 2, names)
	}
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
	if r == nil || r.home == nil {
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
	r.free, r.kept, r.home, r.failed = nil, 0, nil, errors.New("the rooms are closed")
	if err := os.Remove(home.Name()); err != nil {
		r.log.Warn("directories of attempts are left", zap.Error(err))
	}
	home.Close()
	_ = os.Remove(r.dir) // unless another daemon uses it, too
}
