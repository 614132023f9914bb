package workdir

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Dir is the directory of one attempt. nil is none.
type Dir struct {
	*Pool
	path  string
	name  string
	owner owner
	dir   int // its descriptor
	ino   uint64
}

func (r *Pool) buildDir(name string, who owner) (_ *Dir, err error) {
	m := &Dir{Pool: r, path: filepath.Join(r.lockDir.Name(), name), name: name, owner: who}

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

// isUntouched reports whether the directory is where it was, its user's, and nobody else's.
func (m *Dir) isUntouched() bool {
	var st unix.Stat_t
	err := unix.Fstatat(m.Pool.fd, m.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Ino == m.ino && st.Uid == m.owner.uid && st.Gid == m.owner.gid && st.Mode == unix.S_IFDIR|0o700
}

// FD is the descriptor of the directory.
func (m *Dir) FD() int { return m.dir }

// UID is the user that the directory belongs to.
func (m *Dir) UID() uint32 { return m.owner.uid }

// Release ends the use of a directory: nothing of the attempt may run any more. last, if it is not nil, is called before
// anything is removed; wrote says whether the attempt has left anything. The directory is empty when Release returns, or set
// aside, which is the error.
func (m *Dir) Release(last func(wrote bool)) error {
	if m == nil {
		return nil
	}

	names, err := m.listEntries()

	if last != nil {
		last(err != nil || len(names) > 0)
	}

	if err == nil && len(names) == 1 && names[0] == StatusFile && unix.Unlinkat(m.dir, StatusFile, 0) == nil {
		names = nil
	}

	pristine := err == nil && len(names) == 0
	if !pristine {
		late := make(chan struct{})
		t := time.AfterFunc(m.EmptyLimit, func() { close(late) })
		err = emptyDir(m.dir, late)
		t.Stop()
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	switch {
	case err != nil:
		m.log.Warn("quarantined an attempt directory that cannot be emptied", zap.String("path", m.path), zap.Error(err))
		m.quarantined = append(m.quarantined, m)
		return fmt.Errorf("its directory %s is set aside: it cannot be emptied: %w", m.path, err)
	case pristine && (m.kept < mostKept || m.makeRoom()):
		m.free[m.owner], m.kept = append(m.free[m.owner], m), m.kept+1
	default:
		m.dropEmpty(m)
	}

	return nil
}

// makeRoom drops a directory that another user has more than one of, if the directory's own has
// none: whoever had many attempts once does not keep all that are kept. mu is held.
func (m *Dir) makeRoom() bool {
	if len(m.free[m.owner]) > 0 {
		return false
	}

	for who, free := range m.free {
		if last := len(free) - 1; last > 0 {
			m.dropEmpty(free[last])
			m.free[who], m.kept = free[:last], m.kept-1
			return true
		}
	}

	return false
}

// direntBuffers have room for some names.
var direntBuffers = sync.Pool{New: func() any { b := make([]byte, 4<<10); return &b }}

// listEntries are the names in the directory, if they are few.
func (m *Dir) listEntries() ([]string, error) {
	if _, err := unix.Seek(m.dir, 0, 0); err != nil {
		return nil, err
	}

	buf := direntBuffers.Get().(*[]byte)
	defer direntBuffers.Put(buf)

	for names := []string(nil); ; {
		n, err := unix.ReadDirent(m.dir, *buf)
		if err != nil || n <= 0 || len(names) > 1 {
			return names, err
		}
		_, _, names = unix.ParseDirent((*buf)[:n], 2, names)
	}
}
