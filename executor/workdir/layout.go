package workdir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

// What a directory has: the file that CARILLON_STATUS_FILE names, the directory in CARILLON_SCRATCH, and the directories that
// stand in for task.PrivateDirs.
const (
	StatusFile  = "status"
	scratchName = "scratch"
)

// PrivateName is the name of what stands in for the directory task.PrivateDirs[i].
func PrivateName(i int) string { return strings.ReplaceAll(task.PrivateDirs[i], "/", "-")[1:] }

// Path is the room's path; "" if there is none.
func (m *Dir) Path() string {
	if m == nil {
		return ""
	}
	return m.path
}

// MakeScratch makes the directory in CARILLON_SCRATCH. none is why there is no directory.
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

// chownEntry makes a directory of the directory its user's. The directory is that user's, who may
// have put something else in its place since it was made: another's file, say, of
// which it has no more than a link.
func (m *Dir) chownEntry(name string) error {
	fd, err := openDir(m.dir, name)
	if err != nil {
		return err
	}

	defer unix.Close(fd)

	return unix.Fchown(fd, int(m.owner.uid), int(m.owner.gid))
}

// MakePrivate makes what stands in for task.PrivateDirs: the daemon's, for everybody
// to write to, as those are. none is why there is no directory.
func (m *Dir) MakePrivate(none error) error {
	if m == nil {
		return none
	}
	if hidden := task.PrivateDir(m.path); hidden != "" {
		return fmt.Errorf("the node keeps such directories in %s, which lies in %s itself: set scratch_dir", m.path, hidden)
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
