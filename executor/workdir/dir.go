package workdir

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

// Dir is the working directory of one attempt. A nil Dir stands for an attempt without one. It belongs to the attempt's
// goroutine until Release.
type Dir struct {
	*Pool
	path  string
	name  string // its name in the pool's directory
	owner owner
	dir   int    // its descriptor
	ino   uint64 // its inode number, by which a replacement is recognized
}

// buildDir creates a directory for a user. After an error nothing of it is left.
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

// isUntouched reports whether the directory is still at its path, belongs to its user, and has its original mode.
func (m *Dir) isUntouched() bool {
	var st unix.Stat_t
	err := unix.Fstatat(m.Pool.fd, m.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Ino == m.ino && st.Uid == m.owner.uid && st.Gid == m.owner.gid && st.Mode == unix.S_IFDIR|0o700
}

// FD returns the descriptor of the directory. It is valid until Release.
func (m *Dir) FD() int { return m.dir }

// UID returns the user to which the directory belongs.
func (m *Dir) UID() uint32 { return m.owner.uid }

// Release ends the use of a directory. No process of the attempt may run any more. If last is not nil, it is called before
// anything is removed; wrote is false if the attempt has left nothing. If Release returns nil, the directory is empty. If
// it returns an error, the directory is quarantined.
func (m *Dir) Release(last func(wrote bool)) error {
	if m == nil {
		return nil
	}

	names, err := m.listEntries()

	if last != nil {
		last(err != nil || len(names) > 0)
	}

	// Most attempts that leave anything leave only the status file.
	if err == nil && len(names) == 1 && names[0] == StatusFile && unix.Unlinkat(m.dir, StatusFile, 0) == nil {
		names = nil
	}

	// Only a directory in which nothing else was created is used again. Others are emptied and removed.
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
		return fmt.Errorf("its directory %s is quarantined, because it cannot be emptied: %w", m.path, err)
	case pristine && (m.kept < mostKept || m.makeRoom()):
		m.free[m.owner], m.kept = append(m.free[m.owner], m), m.kept+1
	default:
		m.dropEmpty(m)
	}

	return nil
}

// makeRoom removes a kept directory of a user with more than one, if the owner of m has
// none. So a user who once had many attempts does not occupy all kept directories. It reports whether there is room for
// m now. The caller holds mu.
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

// direntBuffers holds buffers for directory entries.
var direntBuffers = sync.Pool{New: func() any { b := make([]byte, 4<<10); return &b }}

// listEntries returns the names in the directory. If there are several, it returns at least two and may omit the
// rest, because the caller only distinguishes none, one and several.
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

// Names in a working directory: the file that CARILLON_STATUS_FILE names, and the directory that CARILLON_SCRATCH names.
// PrivateName returns the names of the directories that replace task.PrivateDirs.
const (
	StatusFile  = "status"
	scratchName = "scratch"
)

// PrivateName returns the name of the directory that replaces task.PrivateDirs[i].
func PrivateName(i int) string { return strings.ReplaceAll(task.PrivateDirs[i], "/", "-")[1:] }

// Path returns the path of the directory, or "" if m is nil.
func (m *Dir) Path() string {
	if m == nil {
		return ""
	}
	return m.path
}

// MakeScratch creates the scratch directory and returns its path. none is the error that it returns if m is nil.
func (m *Dir) MakeScratch(none error) (path string, _ error) {
	if m == nil {
		return "", none
	}

	path = filepath.Join(m.path, scratchName)
	err := unix.Mkdirat(m.dir, scratchName, 0o700)
	if err == nil && m.owner != m.own {
		err = m.chownEntry(scratchName)
	}

	if err != nil {
		return "", &os.PathError{Op: "make", Path: path, Err: err}
	}

	return path, nil
}

// chownEntry gives a directory in the working directory to the attempt's user. That user owns the working directory and may
// have replaced the entry since it was created, for example with a link to another user's
// file. So chownEntry opens the entry as a directory, without following a link, and changes what it has opened.
func (m *Dir) chownEntry(name string) error {
	fd, err := openDir(m.dir, name)
	if err != nil {
		return err
	}

	defer unix.Close(fd)

	return unix.Fchown(fd, int(m.owner.uid), int(m.owner.gid))
}

// MakePrivate creates the directories that replace task.PrivateDirs. Like those, they belong to the daemon's user, and
// everybody can write to them. none is the error that it returns if m is nil.
func (m *Dir) MakePrivate(none error) error {
	if m == nil {
		return none
	}
	if hidden := task.PrivateDir(m.path); hidden != "" {
		// A private /tmp would hide the attempt's own directory.
		return fmt.Errorf("the node keeps such directories in %s, which is below %s: set scratch_dir", m.path, hidden)
	}

	for i := range task.PrivateDirs {
		if err := unix.Mkdirat(m.dir, PrivateName(i), 0o700); err != nil {
			return &os.PathError{Op: "make", Path: filepath.Join(m.path, PrivateName(i)), Err: err}
		}

		fd, err := openDir(m.dir, PrivateName(i))
		if err != nil {
			return err
		}

		err = unix.Fchmod(fd, 0o1777)
		unix.Close(fd)
		if err != nil {
			return os.NewSyscallError("chmod", err)
		}
	}

	return nil
}
