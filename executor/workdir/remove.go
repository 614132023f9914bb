package workdir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxOpenDepth is the maximum number of directories that are open at once while one is emptied. Deeper
// directories are moved to the top first, so that no depth exhausts descriptors or memory.
const maxOpenDepth = 32

// errNoTime means that done was closed before a directory was empty.
var errNoTime = errors.New("it contains too many files to be removed immediately")

// RemoveAbandoned removes the directories that dead daemons have left in dir (see Root), until done is
// closed. It does not touch those of living daemons. The guardian calls it when no process of an attempt is left,
// and so does the next start of the daemon.
//
// It runs as root and deletes everything that it finds. It therefore works on descriptors alone,
// follows no link, and refuses a directory that another user owns, may write to, or may have put there.
func RemoveAbandoned(dir, data string, done <-chan struct{}) error {
	return removeAbandoned(dir, data, "", done)
}

// removeAbandoned is RemoveAbandoned without the instance except.
func removeAbandoned(dir, data, except string, done <-chan struct{}) error {
	uid := uint32(os.Geteuid())

	all, err := openRoot(dir, data, uid, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}

	defer all.Close()

	instances, err := all.Readdirnames(-1)
	for _, instance := range instances {
		if instance != except {
			err = errors.Join(err, removeInstance(all, instance, uid, done))
		}
	}

	_ = os.Remove(dir) // fails if something is left in it, or if another daemon uses it

	return err
}

// removeInstance removes the directories of one instance if its daemon is dead, which is so if nobody holds its lock.
func removeInstance(all *os.File, instance string, uid uint32, done <-chan struct{}) error {
	home, err := openOwnDir(all, instance, uid, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}

	defer home.Close()

	if err := unix.Flock(int(home.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // its daemon is alive
	}

	if err := emptyDir(int(home.Fd()), done); err != nil {
		return fmt.Errorf("empty %s: %w", home.Name(), err)
	}

	if err := unix.Unlinkat(int(all.Fd()), instance, unix.AT_REMOVEDIR); err != nil {
		return &os.PathError{Op: "remove", Path: home.Name(), Err: err}
	}

	return nil
}

// emptyDir removes everything in a directory, until done is closed. It does not follow
// links or enter other mounts, and it handles anything that a task can leave there.
// An error names an entry that is left, and the reason.
func emptyDir(fd int, done <-chan struct{}) error {
	mount, err := mountOf(fd)
	if err != nil {
		return err
	}
	return (&cleaner{top: fd, mount: mount, done: done}).emptyDir(fd, 0)
}

// cleaner empties one directory.
type cleaner struct {
	top   int    // the descriptor of the directory
	mount string // the mount that top is on
	moved int    // number of directories that were moved to top
	done  <-chan struct{}
}

// emptyDir empties a directory in rounds. It stops when a round finds nothing, or when a round could remove nothing.
// Several rounds may be necessary, because a listing may skip entries while others are removed.
func (c *cleaner) emptyDir(fd, depth int) error {
	for {
		found, removed, err := c.removeRound(fd, depth)
		if found == 0 || removed == 0 || errors.Is(err, errNoTime) {
			return err
		}
	}
}

// removeRound removes the entries of one listing. It returns how many it found and removed, and the first error.
func (c *cleaner) removeRound(fd, depth int) (found, removed int, first error) {
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return 0, 0, err
	}

	buf := make([]byte, 8<<10)

	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil {
			return found, removed, os.NewSyscallError("getdents", err)
		}
		if n <= 0 {
			return found, removed, first
		}

		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			select {
			case <-c.done:
				return found, removed, errNoTime
			default:
			}

			found++
			err := c.removeEntry(fd, name, depth)
			if errors.Is(err, errNoTime) {
				return found, removed, err
			}

			// Continue after an error: other entries may be removable, and the first error is reported.
			if err == nil {
				removed++
			} else if first == nil {
				first = fmt.Errorf("%q: %w", name, err)
			}
		}
	}
}

// removeEntry removes one entry, with everything below it.
func (c *cleaner) removeEntry(fd int, name string, depth int) error {
	err := unix.Unlinkat(fd, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	// Linux returns EISDIR for a directory, and POSIX allows EPERM. EPERM may also mean an immutable file; openDir then
	// fails with ENOTDIR.
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	if depth == maxOpenDepth {
		return c.moveUp(fd, name)
	}

	sub, oerr := openDir(fd, name)
	if oerr == unix.ENOTDIR || oerr == unix.ELOOP {
		return err
	}
	if oerr != nil {
		return oerr
	}

	defer unix.Close(sub)

	if mount, err := mountOf(sub); err != nil || mount != c.mount {
		return errors.Join(err, errors.New("a file system is mounted there"))
	}
	if err := c.emptyDir(sub, depth+1); err != nil {
		return err
	}

	return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
}

// moveUp moves a directory to the top, where a later round finds it at depth 0.
func (c *cleaner) moveUp(fd int, name string) error {
	for range 1000 { // the task may have created entries with these names
		c.moved++
		err := unix.Renameat2(fd, name, c.top, ".deep-"+strconv.Itoa(c.moved), unix.RENAME_NOREPLACE)
		switch err {
		case unix.EEXIST:
		case unix.EACCES: // its mode does not let its owner write; openDir changes that
			sub, err := openDir(fd, name)
			if err != nil {
				return err
			}
			unix.Close(sub)
		default:
			return err
		}
	}

	return unix.EEXIST
}

// openDir opens a directory and does not follow a link. If the daemon does not run as root, an attempt with the same
// user may have removed its owner's permissions, so openDir restores them first.
func openDir(at int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

	if os.Geteuid() != 0 {
		if fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil && st.Mode&0o700 != 0o700 {
				_ = unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700) // if it fails, so does the open below
			}
			unix.Close(fd)
		}
	}

	return unix.Openat(at, name, flags, 0)
}

// mountOf returns the kernel's id of the mount that an open file is on. The device
// number is not enough, because a directory of the same file system may be mounted there.
func mountOf(fd int) (string, error) {
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return "", err
	}

	for line := range bytes.Lines(b) {
		if id, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			return string(bytes.TrimSpace(id)), nil
		}
	}

	return "", errors.New("the kernel does not report mounts")
}
