package guardian

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// remoteCounts contains, for each session and each Silence, the number of HTTP attempts in progress. An entry of a
// session without attempts means that the guardian has not been told so yet.
type remoteCounts map[int]map[time.Duration]int

// shortestSilence returns the smallest Silence of the attempts of a session, and 0 if it has none.
func (c remoteCounts) shortestSilence(session int) (shortest time.Duration) {
	for silence := range c[session] {
		if shortest == 0 || silence < shortest {
			shortest = silence
		}
	}

	return shortest
}

// RemoteHandle identifies an HTTP attempt that was announced to the guardian. A nil handle stands for no guardian; its
// methods do nothing. Its methods must not be called at the same time.
type RemoteHandle struct {
	client  *Client
	session int
	silence time.Duration
}

// AnnounceRemote announces an HTTP attempt: the daemon must not be alive when its session was last renewed more than
// silence ago. The attempt may send something only after a Flush that returned nil. The caller must call Ended in any
// case.
//
// The guardian is told about sessions, not about attempts, of which there may be thousands a second. One message
// announces the first attempt of a session. It is withdrawn only at the next SetRenewal, if no attempt is left then.
func (g *Client) AnnounceRemote(session int, silence time.Duration) *RemoteHandle {
	if g == nil {
		return nil
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	h := &RemoteHandle{client: g, session: session, silence: max(silence, 1)}
	h.count()

	return h
}

// SetSession assigns the attempt to another session, whose renewals keep it alive from then on.
func (h *RemoteHandle) SetSession(session int) {
	if h == nil || h.session == session {
		return
	}

	h.client.mu.Lock()
	h.discount()
	h.session = session
	h.count()
	h.client.mu.Unlock()

	_ = h.client.Flush() // if this fails, the next guardian receives everything
}

// Ended notes that the attempt sends nothing any more.
func (h *RemoteHandle) Ended() {
	if h == nil {
		return
	}

	h.client.mu.Lock()
	defer h.client.mu.Unlock()

	h.discount()
}

// count counts the attempt, and queues a message if the guardian has to know of it. The caller holds mu.
func (h *RemoteHandle) count() {
	g := h.client
	if g.remote[h.session] == nil {
		g.remote[h.session] = map[time.Duration]int{}
	}
	g.remote[h.session][h.silence]++

	if told, ok := g.watch.remotes[h.session]; !ok || h.silence < told {
		g.queueMessage(Message{Remote: &Remote{Session: h.session, Silence: h.silence}})
	}
}

// discount undoes count. The message remains until withdrawRemotes. The caller holds mu.
func (h *RemoteHandle) discount() {
	counts := h.client.remote[h.session]
	if counts[h.silence]--; counts[h.silence] == 0 {
		delete(counts, h.silence)
	}
}

// withdrawRemotes queues messages about the sessions that have no HTTP attempts any more, or only attempts that may be
// silent for longer. The caller holds mu.
func (g *Client) withdrawRemotes() {
	for session, counts := range g.remote {
		if shortest := g.remote.shortestSilence(session); shortest != g.watch.remotes[session] {
			g.queueMessage(Message{Remote: &Remote{Session: session, Silence: shortest}})
		}
		if len(counts) == 0 {
			delete(g.remote, session)
		}
	}
}

// WithdrawRemotes tells the guardian at once which sessions have no HTTP attempts any more.
func (g *Client) WithdrawRemotes() {
	if g == nil {
		return
	}

	g.mu.Lock()
	g.withdrawRemotes()
	g.mu.Unlock()

	_ = g.Flush() // if this fails, the next guardian receives everything
}

// daemonProcess is the daemon, which is the parent of the guardian.
type daemonProcess struct {
	pid   int
	pidfd int // -1: the kernel has no pidfds
}

// openDaemon returns the daemon with this process number, and nil if it is not the parent of this process. It is dead
// then, or the guardian was started by another program.
func openDaemon(pid int) *daemonProcess {
	if pid <= 0 {
		return nil
	}

	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		fd = -1
	}

	// If the daemon has died, this process has another parent, and the number may belong to another process.
	if os.Getppid() != pid {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil
	}

	return &daemonProcess{pid: pid, pidfd: fd}
}

// kill sends SIGKILL to the daemon. It returns nil if the daemon is dead already.
func (d *daemonProcess) kill() error {
	var err error
	switch {
	case d.pidfd >= 0:
		err = unix.PidfdSendSignal(d.pidfd, unix.SIGKILL, nil, 0)
	case os.Getppid() == d.pid:
		err = syscall.Kill(d.pid, syscall.SIGKILL)
	}

	if errors.Is(err, unix.ESRCH) {
		return nil
	}

	return os.NewSyscallError("kill", err)
}
