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
func (p *Pool) buildDir(name string, who owner) (_ *Dir, err error) {
	m := &Dir{Pool: p, path: filepath.Join(p.lockDir.Name(), name), name: name, owner: who}

	if err := unix.Mkdirat(p.fd, name, 0o700); err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: m.path, Err: err}
	}
	if m.dir, err = openDir(p.fd, name); err != nil {
		return nil, errors.Join(err, unix.Unlinkat(p.fd, name, unix.AT_REMOVEDIR))
	}

	if who != p.own {
		err = unix.Fchown(m.dir, int(who.uid), int(who.gid))
	}

	var st unix.Stat_t
	if err = cmp.Or(err, unix.Fchmod(m.dir, 0o700), unix.Fstat(m.dir, &st)); err != nil {
		return nil, errors.Join(err, unix.Close(m.dir), unix.Unlinkat(p.fd, name, unix.AT_REMOVEDIR))
	}

	m.ino = st.Ino

	return m, nil
}

// isUntouched reports whether the directory is still at its path, belongs to its user, and has its original mode.
func (d *Dir) isUntouched() bool {
	var st unix.Stat_t
	err := unix.Fstatat(d.Pool.fd, d.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Ino == d.ino && st.Uid == d.owner.uid && st.Gid == d.owner.gid && st.Mode == unix.S_IFDIR|0o700
}

// FD returns the descriptor of the directory. It is valid until Release.
func (d *Dir) FD() int { return d.dir }

// UID returns the user to which the directory belongs.
func (d *Dir) UID() uint32 { return d.owner.uid }

// Release ends the use of a directory. No process of the attempt may run any more. If last is not nil, it is called before
// anything is removed; wrote is false if the attempt has left nothing. If Release returns nil, the directory is empty. If
// it returns an error, the directory is quarantined.
func (d *Dir) Release(last func(wrote bool)) error {
	if d == nil {
		return nil
	}

	names, err := d.listEntries()

	if last != nil {
		last(err != nil || len(names) > 0)
	}

	// Most attempts that leave anything leave only the status file.
	if err == nil && len(names) == 1 && names[0] == StatusFile && unix.Unlinkat(d.dir, StatusFile, 0) == nil {
		names = nil
	}

	// Only a directory in which nothing else was created is used again. Others are emptied and removed.
	pristine := err == nil && len(names) == 0
	if !pristine {
		late := make(chan struct{})
		t := time.AfterFunc(d.EmptyLimit, func() { close(late) })
		err = emptyDir(d.dir, late)
		t.Stop()
	}

	d.mu.Lock()
	defer d.mu.Unlock()

	switch {
	case err != nil:
		d.log.Warn("quarantined an attempt directory that cannot be emptied", zap.String("path", d.path), zap.Error(err))
		d.quarantined = append(d.quarantined, d)
		return fmt.Errorf("its directory %s is quarantined, because it cannot be emptied: %w", d.path, err)
	case pristine && (d.kept < maxKept || d.makeRoom()):
		d.free[d.owner], d.kept = append(d.free[d.owner], d), d.kept+1
	default:
		d.dropEmpty(d)
	}

	return nil
}

// makeRoom removes a kept directory of a user with more than one, if the owner of d has
// none. So a user who once had many attempts does not occupy all kept directories. It reports whether there is room for
// d now. The caller holds mu.
func (d *Dir) makeRoom() bool {
	if len(d.free[d.owner]) > 0 {
		return false
	}

	for who, free := range d.free {
		if last := len(free) - 1; last > 0 {
			d.dropEmpty(free[last])
			d.free[who], d.kept = free[:last], d.kept-1
			return true
		}
	}

	return false
}

// direntBuffers holds buffers for directory entries.
var direntBuffers = sync.Pool{New: func() any { b := make([]byte, 4<<10); return &b }}

// listEntries returns the names in the directory. If there are several, it returns at least two and may omit the
// rest, because the caller only distinguishes none, one and several.
func (d *Dir) listEntries() ([]string, error) {
	if _, err := unix.Seek(d.dir, 0, 0); err != nil {
		return nil, err
	}

	buf := direntBuffers.Get().(*[]byte)
	defer direntBuffers.Put(buf)

	for names := []string(nil); ; {
		n, err := unix.ReadDirent(d.dir, *buf)
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

// Path returns the path of the directory, or "" if d is nil.
func (d *Dir) Path() string {
	if d == nil {
		return ""
	}
	return d.path
}

// MakeScratch creates the scratch directory and returns its path. none is the error that it returns if d is nil.
func (d *Dir) MakeScratch(none error) (path string, _ error) {
	if d == nil {
		return "", none
	}

	path = filepath.Join(d.path, scratchName)
	err := unix.Mkdirat(d.dir, scratchName, 0o700)
	if err == nil && d.owner != d.own {
		err = d.chownEntry(scratchName)
	}

	if err != nil {
		return "", &os.PathError{Op: "make", Path: path, Err: err}
	}

	return path, nil
}

// chownEntry gives a directory in the working directory to the attempt's user. That user owns the working directory and may
// have replaced the entry since it was created, for example with a link to another user's
// file. So chownEntry opens the entry as a directory, without following a link, and changes what it has opened.
func (d *Dir) chownEntry(name string) error {
	fd, err := openDir(d.dir, name)
	if err != nil {
		return err
	}

	defer unix.Close(fd)

	return unix.Fchown(fd, int(d.owner.uid), int(d.owner.gid))
}

// MakePrivate creates the directories that replace task.PrivateDirs. Like those, they belong to the daemon's user, and
// everybody can write to them. none is the error that it returns if d is nil.
func (d *Dir) MakePrivate(none error) error {
	if d == nil {
		return none
	}
	if hidden := task.PrivateDir(d.path); hidden != "" {
		// A private /tmp would hide the attempt's own directory.
		return fmt.Errorf("the node keeps such directories in %s, which is below %s: set scratch_dir", d.path, hidden)
	}

	for i := range task.PrivateDirs {
		if err := unix.Mkdirat(d.dir, PrivateName(i), 0o700); err != nil {
			return &os.PathError{Op: "make", Path: filepath.Join(d.path, PrivateName(i)), Err: err}
		}

		fd, err := openDir(d.dir, PrivateName(i))
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
