package executor

import (
	"encoding/json"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/proctree"
)

// line appends a word to others.
func line(b []byte, v any) []byte {
	word, err := json.Marshal(v)
	if err != nil {
		panic("guardian: " + err.Error()) // all that is said can be
	}
	return append(append(b, word...), '\n')
}

// write says words at once: they are in the pipe when it returns, and the
// guardian reads them even if the daemon dies now.
func write(w *os.File, words []byte) error {
	_ = w.SetWriteDeadline(time.Now().Add(guardianWrite))
	_, err := w.Write(words)
	return err
}

// tell applies a word; the guardian hears it with the next flush. mu is held.
func (g *Guardian) tell(x word) {
	g.watch.apply(x)
	if g.pipe != nil {
		g.unsaid = line(g.unsaid, x)
	}
}

// errUnguarded means that there was no guardian directly before the fork.
var errUnguarded = errors.New("not started: there is no guardian")

// flush returns when the guardian knows all that it was told.
func (g *Guardian) flush() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe == nil {
		return errUnguarded
	}
	if len(g.unsaid) == 0 {
		return nil
	}
	if err := write(g.pipe, g.unsaid); err != nil {
		g.log.Warn("cannot talk to the guardian", zap.Error(err))
		g.lose()
		g.down.Send()
		return errUnguarded
	}
	g.unsaid = g.unsaid[:0]
	return nil
}

// await returns when there is a guardian, however long that takes, unless it is
// called off.
func (g *Guardian) await(off <-chan struct{}) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	up := g.up
	g.mu.Unlock()
	select {
	case <-up:
		return nil
	case <-off:
		return errCalledOff
	}
}

// guarded is an attempt that the guardian is told of. Its zero value, without a
// guardian, does nothing.
type guarded struct {
	*Guardian
	id uint64
}

// intend announces that an attempt is about to be started. After the next flush
// the guardian knows, and it may be.
func (g *Guardian) intend(a ward) guarded {
	if g == nil {
		return guarded{}
	}
	a.ID = g.next.Add(1)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tell(word{Ward: &a})
	return guarded{g, a.ID}
}

// born tells of its process; at the next flush, which is to follow at once.
func (w guarded) born(pid int, b proctree.Birth) {
	if w.Guardian == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if a, ok := w.watch.wards[w.id]; ok {
		a.Pid, a.From, a.To = pid, b.From, b.To
		w.tell(word{Ward: &a})
	}
}

// ended tells that nothing is left of it, or that it was not started. There is
// no hurry: a guardian that kills it once more finds nothing.
func (w guarded) ended() {
	if w.Guardian == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tell(word{End: w.id})
}

// cover says that attempts belong to a session from now on.
func (g *Guardian) cover(l proctree.Mark, session int) {
	if g == nil {
		return
	}
	g.mu.Lock()
	for _, a := range g.watch.wards {
		if a.Mark == l && a.Session != session {
			a.Session = session
			g.tell(word{Ward: &a})
		}
	}
	g.mu.Unlock()
	_ = g.flush() // or the next guardian is told
}

// renewed says when a session was last renewed, on CLOCK_BOOTTIME: its attempts may live
// for as long after that as was said of each. It comes at every look, and carries what
// else is unsaid.
func (g *Guardian) renewed(id int, at time.Duration) {
	if g == nil {
		return
	}
	g.mu.Lock()
	if known, ok := g.watch.sessions[id]; !ok || known != at {
		g.tell(word{Session: &session{ID: id, Renewed: at}})
	}
	g.mu.Unlock()
	_ = g.flush() // or the next guardian is told
}
