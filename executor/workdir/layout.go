package workdir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

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
