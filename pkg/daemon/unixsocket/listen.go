package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/task"
)

// MaxPath is the maximum length of a socket's path in bytes, a limit of the kernel.
const MaxPath = 107

// ValidatePath returns an error if a path is not valid for the unix socket. "" is valid and means no socket.
func ValidatePath(path string) error {
	if path == "" {
		return nil
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return task.Invalid(task.CodeBadValue, "socket", "%s is not a clean absolute path", task.Quote(path))
	}
	if len(path) > MaxPath {
		return task.Invalid(task.CodeTooLong, "socket", "the path of a socket has at most %d bytes, this has %d", MaxPath, len(path))
	}

	return nil
}

// listener is a listener on the socket. It removes the socket and releases the lock when it is closed.
type listener struct {
	*net.UnixListener
	lock *os.File
}

// Listen opens the API's unix socket for root, the daemon's user and the members of
// the group carillon. It fails if other users than root and the daemon's could replace the
// socket. It replaces a socket that a killed daemon has left, but not one on which
// a process listens.
func Listen(path string, users Administrators) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}

	opened, err := filetrust.OpenDir(dir, uint32(os.Geteuid()))
	if err != nil {
		return nil, fmt.Errorf("the directory of the socket: %w", err)
	}

	opened.Close()

	// Without the lock, two daemons that start at the same time could both find a stale socket, and the second would
	// remove the socket of the first.
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("listen unix %s: another daemon listens there", path), lock.Close())
	}

	l, err := replaceSocket(path, users)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}

	return &listener{l, lock}, nil
}

// replaceSocket removes a stale socket and listens on a new one. The caller holds the lock.
func replaceSocket(path string, users Administrators) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("listen unix %s: there is a file that is no socket", path)
		}

		// A process without the lock may listen, such as the service manager. If the dial succeeds, leave it alone.
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, fmt.Errorf("listen unix %s: somebody listens there", path)
		}

		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}

	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}

	l.SetUnlinkOnClose(true)

	if err := shareSocket(path, users); err != nil {
		return nil, errors.Join(err, l.Close())
	}

	return l, nil
}

// shareSocket gives the socket to the group, if there is one and the daemon is allowed to, and sets its mode.
func shareSocket(path string, users Administrators) error {
	if !users.noGroup {
		err := os.Chown(path, -1, int(users.gid))
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}

	return os.Chmod(path, 0o660)
}

// Close stops listening, removes the socket, and releases the lock.
func (l *listener) Close() error {
	return errors.Join(l.UnixListener.Close(), l.lock.Close())
}
