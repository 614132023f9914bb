package executor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

// What a room has besides talk: the directory in CARILLON_SCRATCH, and those that
// stand in for task.PrivateDirs.
const scratchName = "scratch"

func privateName(i int) string { return strings.ReplaceAll(task.PrivateDirs[i], "/", "-")[1:] }

// furnish gives an attempt the directories that it asks for, in its room.
func (l *launcher) furnish(what *launch) error {
	if what.process.Scratch {
		path, err := what.room.scratch(what.noRoom)
		if err != nil {
			if err = what.bound.cannot("scratch", "%s", err); err != nil {
				return err
			}
		} else {
			what.env = append(what.env, "CARILLON_SCRATCH="+path)
			what.scratch = path
		}
	}
	if what.bound.private {
		if err := what.room.privates(what.noRoom); err != nil {
			what.bound.private = false
			return what.bound.cannot("private_tmp", "%s", err)
		}
	}
	return nil
}

// where is the room's path; "" if there is none.
func (m *room) where() string {
	if m == nil {
		return ""
	}
	return m.path
}

// scratch makes the directory in CARILLON_SCRATCH. none is why there is no room.
func (m *room) scratch(none error) (path string, _ error) {
	if m == nil {
		return "", none
	}
	path = filepath.Join(m.path, scratchName)
	err := unix.Mkdirat(m.dir, scratchName, 0o700)
	if err == nil && m.owner != m.own {
		err = m.handOver(scratchName)
	}
	if err != nil {
		return "", &os.PathError{Op: "make", Path: path, Err: err}
	}
	return path, nil
}

// handOver makes a directory of the room its user's. The room is that user's, who may
// have put something else in its place since it was made: another's file, say, of
// which it has no more than a link.
func (m *room) handOver(name string) error {
	fd, err := openDir(m.dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchown(fd, int(m.owner.uid), int(m.owner.gid))
}

// privates makes what stands in for task.PrivateDirs: the daemon's, for everybody
// to write to, as those are. none is why there is no room.
func (m *room) privates(none error) error {
	if m == nil {
		return none
	}
	if hidden := task.PrivateDir(m.path); hidden != "" {
		return fmt.Errorf("the node keeps such directories in %s, which lies in %s itself: set scratch_dir", m.path, hidden)
	}
	for i := range task.PrivateDirs {
		if err := unix.Mkdirat(m.dir, privateName(i), 0o700); err != nil {
			return &os.PathError{Op: "make", Path: filepath.Join(m.path, privateName(i)), Err: err}
		}
		fd, err := openDir(m.dir, privateName(i))
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
