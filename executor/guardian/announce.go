package guardian

import (
	"encoding/json"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/proctree"
)

// appendLine appends a message to others.
func appendLine(b []byte, v any) []byte {
	word, err := json.Marshal(v)
	if err != nil {
		panic("guardian: " + err.Error()) // all that is said can be
	}
	return append(append(b, word...), '\n')
}

// writePipe says messages at once: they are in the pipe when it returns, and the
// guardian reads them even if the daemon dies now.
func writePipe(w *os.File, words []byte) error {
	_ = w.SetWriteDeadline(time.Now().Add(writeLimit))
	_, err := w.Write(words)
	return err
}

// queueMessage applies a message; the guardian hears it with the next flush. mu is held.
func (g *Client) queueMessage(x Message) {
	g.watch.applyMessage(x)
	if g.pipe != nil {
		g.unsent = appendLine(g.unsent, x)
	}
}

// ErrNotReady means that there was no guardian directly before the fork.
var ErrNotReady = errors.New("not started: there is no guardian")

// Flush returns when the guardian knows all that it was told.
func (g *Client) Flush() error {
	if g == nil {
		return nil
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	if g.pipe == nil {
		return ErrNotReady
	}
	if len(g.unsent) == 0 {
		return nil
	}

	if err := writePipe(g.pipe, g.unsent); err != nil {
		g.log.Warn("cannot reach the guardian", zap.Error(err))
		g.detachGuardian()
		g.down.Send()

		return ErrNotReady
	}

	g.unsent = g.unsent[:0]

	return nil
}

// WaitReady returns true when there is a guardian, however long that takes, and false when off is closed before.
func (g *Client) WaitReady(off <-chan struct{}) (ready bool) {
	if g == nil {
		return true
	}

	g.mu.Lock()
	up := g.up
	g.mu.Unlock()

	select {
	case <-up:
		return true
	case <-off:
		return false
	}
}

// Handle is an attempt that the guardian is told of. Its zero value, without a
// guardian, does nothing.
type Handle struct {
	*Client
	ID uint64
}

// Announce announces that an attempt is about to be started. After the next flush
// the guardian knows, and it may be.
func (g *Client) Announce(a Attempt) Handle {
	if g == nil {
		return Handle{}
	}

	a.ID = g.next.Add(1)
	g.mu.Lock()
	defer g.mu.Unlock()

	g.queueMessage(Message{Attempt: &a})

	return Handle{g, a.ID}
}

// Started tells of its process; at the next flush, which is to follow at once.
func (w Handle) Started(pid int, b proctree.Birth) {
	if w.Client == nil {
		return
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if a, ok := w.watch.attempts[w.ID]; ok {
		a.Pid, a.From, a.To = pid, b.From, b.To
		w.queueMessage(Message{Attempt: &a})
	}
}

// Ended tells that nothing is left of it, or that it was not started. There is
// no hurry: a guardian that kills it once more finds nothing.
func (w Handle) Ended() {
	if w.Client == nil {
		return
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.queueMessage(Message{End: w.ID})
}

// SetSession says that attempts belong to a session from now on.
func (g *Client) SetSession(l proctree.Mark, session int) {
	if g == nil {
		return
	}

	g.mu.Lock()
	for _, a := range g.watch.attempts {
		if a.Mark == l && a.Session != session {
			a.Session = session
			g.queueMessage(Message{Attempt: &a})
		}
	}
	g.mu.Unlock()

	_ = g.Flush() // or the next guardian is told
}

// SetRenewal says when a session was last renewed, on CLOCK_BOOTTIME: its attempts may live
// for as long after that as was said of each. It comes at every look, and carries what
// else is unsaid.
func (g *Client) SetRenewal(id int, at time.Duration) {
	if g == nil {
		return
	}

	g.mu.Lock()
	if known, ok := g.watch.sessions[id]; !ok || known != at {
		g.queueMessage(Message{Session: &Session{ID: id, Renewed: at}})
	}
	g.mu.Unlock()

	_ = g.Flush() // or the next guardian is told
}
