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

// MaxPath is the longest path that the kernel takes for a socket.
const MaxPath = 107

// ValidatePath checks the path of the unix socket; "" is no socket.
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

// listener removes its socket when it is closed.
type listener struct {
	*net.UnixListener
	path string
	lock *os.File
}

// Listen opens the API's unix socket for root, the daemon's user and the members of
// the group carillon. Only root and the daemon's user may be able to put another socket in its
// place. A socket that a daemon left behind that was killed is replaced; one on which
// somebody listens is not.
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

	// Two daemons that start together must not both find the socket of a third stale.
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

	return &listener{l, path, lock}, nil
}

// replaceSocket listens on a new socket, and puts it in place of one that nobody uses.
func replaceSocket(path string, users Administrators) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("listen unix %s: there is a file that is no socket", path)
		}

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

// shareSocket gives the socket to the group, if there is one and the daemon may.
func shareSocket(path string, users Administrators) error {
	if !users.noGroup {
		err := os.Chown(path, -1, int(users.gid))
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}

	return os.Chmod(path, 0o660)
}

// Close stops listening, and removes the socket.
func (l *listener) Close() error {
	return errors.Join(l.UnixListener.Close(), l.lock.Close())
}
