package unixsocket

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
)

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
