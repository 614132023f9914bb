package guardian

import (
	"encoding/json"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"

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
func (g *Client) queueMessage(x Message) {
	g.watch.applyMessage(x)
	if g.pipe != nil {
		g.unsent = appendLine(g.unsent, x)
	}
}

// ErrNotReady means that there was no guardian directly before a fork, so the attempt was not started.
var ErrNotReady = errors.New("not started: no guardian is running")

// Flush writes all queued messages to the pipe. After nil, the guardian knows them, even if the daemon dies at once
// (G17). It returns ErrNotReady if there is no guardian; the messages are then sent to the next one.
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
		// The guardian may have received a part of the bytes, so it cannot be used any more. Run kills it.
		g.log.Warn("cannot reach the guardian", zap.Error(err))
		g.detachGuardian()
		g.down.Send()

		return ErrNotReady
	}

	g.unsent = g.unsent[:0]

	return nil
}

// WaitReady waits until there is a guardian and returns true. It returns false if off is closed before. The guardian
// may die again at once, so Flush decides.
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

// Handle identifies an attempt that was announced to the guardian. The zero Handle stands for no
// guardian; its methods do nothing.
type Handle struct {
	*Client
	ID uint64 // the number of the attempt in messages
}

// Announce queues the message that an attempt is about to start. The attempt may be forked only after a Flush
// that returned nil. The caller must call Ended in any case.
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

// Started queues the number and the birth of the attempt's process. The caller should flush soon: until then, the
// guardian finds the process only by its environment.
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

// Ended queues the message that no process of the attempt is left, or that it was not started. It does not need to be
// flushed soon: a guardian that kills such an attempt finds nothing.
func (w Handle) Ended() {
	if w.Client == nil {
		return
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.queueMessage(Message{End: w.ID})
}

// SetSession assigns the attempts with this mark to a session. From then on, the renewals of that session determine
// when the guardian kills them.
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

	_ = g.Flush() // if this fails, the next guardian receives everything
}

// SetRenewal passes on when a session was last renewed, on CLOCK_BOOTTIME. Each of its attempts may live for its
// Silence from then on. The executor calls it at each of its checks, so it also flushes
// messages that do not hurry.
func (g *Client) SetRenewal(id int, at time.Duration) {
	if g == nil {
		return
	}

	g.mu.Lock()
	g.withdrawRemotes()
	if known, ok := g.watch.sessions[id]; !ok || known != at { // no message without a change
		g.queueMessage(Message{Session: &Session{ID: id, Renewed: at}})
	}
	g.mu.Unlock()

	_ = g.Flush() // if this fails, the next guardian receives everything
}
