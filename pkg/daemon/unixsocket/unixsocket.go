// Package unixsocket opens the API's unix socket, and determines which users of the host need no
// token on it: root, the daemon's user, and the members of the group carillon.
//
// A listener holds a lock file beside the socket, so that two daemons cannot
// replace each other's socket. Listen replaces the socket of a daemon that was killed. It
// fails if another process listens there, if the path is another kind of file, or if other users could
// replace the socket.
package unixsocket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
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
			return nil, fmt.Errorf("listen unix %s: a file exists there that is not a socket", path)
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

// Administrators determines which users of this host need no token on the unix socket.
type Administrators struct {
	gid     uint32 // the number of task.AdminGroup
	noGroup bool   // the host has no such group
}

// LookupAdministrators looks up the group. If that fails, only root and the daemon's user need no token.
func LookupAdministrators(log *zap.Logger) Administrators {
	group, err := user.LookupGroup(task.AdminGroup)
	if err != nil {
		var unknown user.UnknownGroupError
		if !errors.As(err, &unknown) {
			log.Warn("cannot look up the group of the unix socket; its members need a token", zap.String("group", task.AdminGroup), zap.Error(err))
		}
		return Administrators{noGroup: true}
	}

	gid, err := strconv.ParseUint(group.Gid, 10, 32)
	if err != nil {
		return Administrators{noGroup: true}
	}

	return Administrators{gid: uint32(gid)}
}

// Peer is the user who has opened a connection to the unix socket.
type Peer struct {
	UID     uint32
	Trusted bool // the user needs no token
	// Refused is why the user needs a token, although their rights on this host are those of a trusted user; "" otherwise.
	Refused string
}

// Peer returns the user who has opened a connection to the unix socket, and false if c is not such a connection.
// Users who need no token are root and the daemon's own user, because they can do everything that the daemon
// can, and the members of the group, because the host's administrator has given them the same.
//
// A process of a task is never trusted, whatever its user: those who may change the task would be administrators of the
// cluster.
func (a Administrators) Peer(c net.Conn) (p Peer, ok bool) {
	if p.UID, ok = connlimit.PeerUID(c); !ok {
		return p, false
	}

	own := p.UID == 0 || int(p.UID) == os.Geteuid()
	if !own && (a.noGroup || !connlimit.PeerInGroup(c, a.gid)) {
		return p, true
	}

	if err := checkNoAttempt(c); err != nil {
		p.Refused = err.Error()
		return p, true
	}

	p.Trusted = true

	return p, true
}

// ConnContext adds the connection to the context of its requests and, if a user of this host who needs no token
// has opened it, that user.
func (a Administrators) ConnContext(ctx context.Context, c net.Conn) context.Context {
	ctx = connlimit.Context(ctx, c)

	p, ok := a.Peer(connlimit.Inner(c))
	switch {
	case !ok:
	case p.Trusted:
		ctx = api.WithTrustedUser(ctx, p.UID)
	case p.Refused != "":
		ctx = api.WithRefusedUser(ctx, p.Refused)
	}

	return ctx
}

// checkNoAttempt returns an error if the process that opened a connection belongs to an attempt, or if that cannot be
// determined. Such a process is
//
//   - in the control group of an attempt, of any daemon on this host; or
//   - a descendant of this daemon. Where attempts have no control groups, the daemon is a subreaper, so they stay its
//     descendants, whatever they do.
//
// The kernel has recorded the process that connected. So it makes no difference if that process has executed another program
// since, or has passed the connection on. The process must exist before and after the check, so that the answer is not about a
// later process with the same number.
func checkNoAttempt(c net.Conn) error {
	p, err := peerProcess(c)
	if err != nil {
		return err
	}

	defer p.close()

	group, err := cgroup.AttemptGroup(p.PID)
	if err != nil {
		return p.unknown(err)
	}

	descends := false
	if self := os.Getpid(); p.PID != self {
		if descends, err = proctree.IsDescendant(p.PID, self); err != nil {
			return p.unknown(err)
		}
	}

	if err := p.checkUnchanged(); err != nil {
		return p.unknown(err)
	}

	switch {
	case group != "":
		return fmt.Errorf("process %d belongs to a task: it is in the control group %s", p.PID, group)
	case descends:
		return fmt.Errorf("process %d belongs to a task: it is a descendant of the daemon", p.PID)
	}

	return nil
}

// process is the process that opened a connection.
type process struct {
	connlimit.Process
	uid   uint32        // the effective user as whom it connected
	first proctree.Stat // without a pidfd: tells the process from a later one with the same number
}

// peerProcess returns the process that opened a connection. The caller closes it.
func peerProcess(c net.Conn) (*process, error) {
	peer, err := connlimit.PeerProcess(c)
	if err != nil {
		return nil, fmt.Errorf("it is not known which process has opened the connection: %w", err)
	}

	p := &process{Process: peer}
	p.uid, _ = connlimit.PeerUID(c)

	if p.PID <= 0 {
		p.close()
		return nil, errors.New("it is not known whether the connection belongs to a task: the process that opened it is in another PID namespace, such as that of another container")
	}
	if p.PIDFD < 0 {
		if p.first, err = proctree.ReadStat(p.PID); err != nil {
			return nil, p.unknown(err)
		}
	}

	return p, nil
}

// unknown is the error for a process that may belong to an attempt.
func (p *process) unknown(why error) error {
	return fmt.Errorf("it is not known whether process %d, which opened the connection, belongs to a task: %w", p.PID, why)
}

// checkUnchanged returns an error if the process has ended. If it returns nil, everything that was read about its number
// since peerProcess was about this process.
//
// A process that was not reaped yet has ended, too, and one whose first thread has: cgroup v1 does not tell the groups in
// which it was. A process of an attempt could otherwise let a child, or its own first thread, connect and end.
func (p *process) checkUnchanged() error {
	ended := errors.New("it has ended")

	now, err := proctree.ReadStat(p.PID)
	if err != nil || now.Exiting() {
		return errors.Join(ended, err)
	}

	if p.PIDFD >= 0 {
		if pid, err := pidOf(p.PIDFD); err != nil || pid != p.PID {
			return errors.Join(ended, err)
		}
	} else if now.Start != p.first.Start {
		return ended
	}

	if p.Certain {
		return nil
	}

	// The process that connected may have ended before the connection was accepted, and another one may have its number.
	// For that, all process numbers of the host must be used within a few milliseconds. At least, the process
	// must belong to the same user.
	uid, err := effectiveUser(p.PID)
	if err == nil && uid != p.uid {
		err = fmt.Errorf("it runs as user %d, and connected as user %d", uid, p.uid)
	}

	return err
}

func (p *process) close() {
	if p.PIDFD >= 0 {
		unix.Close(p.PIDFD)
	}
}

// pidOf returns the number of the process of a pidfd: -1 when the process has ended and was reaped.
func pidOf(pidfd int) (int, error) {
	value, err := procField("/proc/self/fdinfo/"+strconv.Itoa(pidfd), "Pid")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(value)
}

// effectiveUser returns the effective user of a process.
func effectiveUser(pid int) (uint32, error) {
	value, err := procField("/proc/"+strconv.Itoa(pid)+"/status", "Uid")
	if err != nil {
		return 0, err
	}

	// The real, effective, saved and file system user.
	ids := strings.Fields(value)
	if len(ids) != 4 {
		return 0, fmt.Errorf("users %q", value)
	}

	uid, err := strconv.ParseUint(ids[1], 10, 32)

	return uint32(uid), err
}

// procField returns the value of a line "name: value" of a file in /proc.
func procField(path, name string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}

	for line := range bytes.Lines(b) {
		if value, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			return string(bytes.TrimSpace(value)), nil
		}
	}

	return "", fmt.Errorf("%s has no field %s", path, name)
}
