package guardian

import (
	"encoding/json"
	"errors"
	"os"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/proctree"
)

// appendLine appends a message as a line of JSON.
func appendLine(b []byte, v any) []byte {
	word, err := json.Marshal(v)
	if err != nil {
		panic("guardian: " + err.Error()) // all message types can be encoded
	}
	return append(append(b, word...), '\n')
}

// writePipe writes to the pipe. When it returns nil, the guardian will read the bytes even if the
// daemon dies now. It fails if the guardian does not read for writeLimit.
func writePipe(w *os.File, words []byte) error {
	_ = w.SetWriteDeadline(time.Now().Add(writeLimit))
	_, err := w.Write(words)
	return err
}

// queueMessage applies a message to the watch list and queues it for the next Flush. The caller holds mu.
func (c *Client) queueMessage(x Message) {
	c.watch.applyMessage(x)
	if c.pipe != nil {
		c.unsent = appendLine(c.unsent, x)
	}
}

// ErrNotReady means that there was no guardian directly before a fork, so the attempt was not started.
var ErrNotReady = errors.New("not started: no guardian is running")

// Flush writes all queued messages to the pipe. After nil, the guardian knows them, even if the daemon dies at once
// (G17). It returns ErrNotReady if there is no guardian; the messages are then sent to the next one.
func (c *Client) Flush() error {
	if c == nil {
		return nil
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	if c.pipe == nil {
		return ErrNotReady
	}
	if len(c.unsent) == 0 {
		return nil
	}

	if err := writePipe(c.pipe, c.unsent); err != nil {
		// The guardian may have received a part of the bytes, so it cannot be used any more. Run kills it.
		c.log.Warn("cannot reach the guardian", zap.Error(err))
		c.detachGuardian()
		c.down.Send()

		return ErrNotReady
	}

	c.unsent = c.unsent[:0]

	return nil
}

// WaitReady waits until there is a guardian and returns true. It returns false if off is closed before. The guardian
// may die again at once, so Flush decides.
func (c *Client) WaitReady(off <-chan struct{}) (ready bool) {
	if c == nil {
		return true
	}

	c.mu.Lock()
	up := c.up
	c.mu.Unlock()

	select {
	case <-up:
		return true
	case <-off:
		return false
	}
}

// Handle identifies an attempt that was announced to the guardian. The zero Handle stands for no
// guardian; its methods do nothing.
type Handle struct {
	*Client
	ID uint64 // the number of the attempt in messages
}

// Announce queues the message that an attempt is about to start. The attempt may be forked only after a Flush
// that returned nil. The caller must call Ended in any case.
func (c *Client) Announce(a Attempt) Handle {
	if c == nil {
		return Handle{}
	}

	a.ID = c.next.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()

	c.queueMessage(Message{Attempt: &a})

	return Handle{c, a.ID}
}

// Started queues the number and the birth of the attempt's process. The caller should flush soon: until then, the
// guardian finds the process only by its environment.
func (h Handle) Started(pid int, b proctree.Birth) {
	if h.Client == nil {
		return
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	if a, ok := h.watch.attempts[h.ID]; ok {
		a.Pid, a.From, a.To = pid, b.From, b.To
		h.queueMessage(Message{Attempt: &a})
	}
}

// Ended queues the message that no process of the attempt is left, or that it was not started. It does not need to be
// flushed soon: a guardian that kills such an attempt finds nothing.
func (h Handle) Ended() {
	if h.Client == nil {
		return
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	h.queueMessage(Message{End: h.ID})
}

// SetSession assigns the attempts with this mark to a session. From then on, the renewals of that session determine
// when the guardian kills them.
func (c *Client) SetSession(l proctree.Mark, session int) {
	if c == nil {
		return
	}

	c.mu.Lock()
	for _, a := range c.watch.attempts {
		if a.Mark == l && a.Session != session {
			a.Session = session
			c.queueMessage(Message{Attempt: &a})
		}
	}
	c.mu.Unlock()

	_ = c.Flush() // if this fails, the next guardian receives everything
}

// SetRenewal passes on when a session was last renewed, on CLOCK_BOOTTIME. Each of its attempts may live for its
// Silence from then on. The executor calls it at each of its checks, so it also flushes
// messages that do not hurry.
func (c *Client) SetRenewal(id int, at time.Duration) {
	if c == nil {
		return
	}

	c.mu.Lock()
	c.withdrawRemotes()
	if known, ok := c.watch.sessions[id]; !ok || known != at { // no message without a change
		c.queueMessage(Message{Session: &Session{ID: id, Renewed: at}})
	}
	c.mu.Unlock()

	_ = c.Flush() // if this fails, the next guardian receives everything
}

// remoteCounts contains, for each session and each Silence, the number of HTTP attempts in progress. An entry of a
// session without attempts means that the guardian does not know of it yet.
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
// The daemon announces sessions, not attempts, because there may be thousands of attempts a second. One message
// announces the first attempt of a session. It is withdrawn only at the next SetRenewal, if no attempt is left then.
func (c *Client) AnnounceRemote(session int, silence time.Duration) *RemoteHandle {
	if c == nil {
		return nil
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	h := &RemoteHandle{client: c, session: session, silence: max(silence, 1)}
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
func (c *Client) withdrawRemotes() {
	for session, counts := range c.remote {
		if shortest := c.remote.shortestSilence(session); shortest != c.watch.remotes[session] {
			c.queueMessage(Message{Remote: &Remote{Session: session, Silence: shortest}})
		}
		if len(counts) == 0 {
			delete(c.remote, session)
		}
	}
}

// WithdrawRemotes informs the guardian at once which sessions have no HTTP attempts any more.
func (c *Client) WithdrawRemotes() {
	if c == nil {
		return
	}

	c.mu.Lock()
	c.withdrawRemotes()
	c.mu.Unlock()

	_ = c.Flush() // if this fails, the next guardian receives everything
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
