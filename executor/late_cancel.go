package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// errStopped means that the loop of the executor has ended.
var errStopped = errors.New("the executor has stopped")

// lateCancel is a late cancel as the loop knows it.
type lateCancel struct {
	task.LateCancel          // End is set only if a former process of the node has recorded it here
	attempt         *attempt // nil until the inbox has shown the attempt
	refused         bool     // it came too late: it has no effect, and is about to be dropped
}

// applyTo returns the record of the attempt with the cancel in it, as if it had been requested there. Everything that
// the executor decides or writes follows from the record, so a late cancel is handled like any other.
func (l *lateCancel) applyTo(h *record.Held) *record.Held {
	if l == nil || h.CancelRequested && h.CancelledBy.Equal(l.By) && h.CancelReason == "" {
		return h
	}

	c := *h
	c.CancelRequested, c.CancelledBy, c.CancelReason = true, l.By, ""

	return &c
}

// setHeld replaces the record of an attempt. A late cancel is not in the record that etcd has, so it is added.
func (a *attempt) setHeld(h *record.Held) { a.Held = a.late.applyTo(h) }

// mayCancelLate reports whether an attempt can be cancelled without a change of its record. It returns the attempt's
// state, which is final if the attempt has ended and only its record is missing. Its error is task.ErrConflict: the
// record of the run contains its outcome, or will soon.
func (a *attempt) mayCancelLate() (task.State, error) {
	refuse := func(why string) (task.State, error) {
		return "", fmt.Errorf("cancel run %s of %s: %w: %s", a.ID, a.Ref(), task.ErrConflict, why)
	}

	switch {
	case a.recordGone, a.phase == phaseSettled:
		return refuse("the attempt has ended")
	// Nothing of it runs here, and its owner or this node records that it is lost.
	case a.foreign, a.stale:
		return refuse("the attempt is about to be declared lost")
	// It may be in the queue by now. The request for an ordinary cancel changes the record, which makes a hand-back
	// void; a late cancel cannot.
	case a.phase == phaseWaiting && (a.busy || a.mayBeHandedBack()):
		return refuse("the attempt has not started, and may have been returned to the queue")
	case a.phase == phaseEnded:
		return a.end.run.State, nil
	}

	return a.State, nil
}

// CancelAttempt ends an attempt of this node whose record cannot be changed, because etcd is full. The cancel is on
// disk when CancelAttempt returns: it holds, and the attempt's end is recorded as soon as etcd has space, even if
// the daemon restarts before. If the returned state is final, the attempt has ended before, and the cancel has no
// effect.
//
// An error that wraps task.ErrConflict means that nothing was done: the attempt is not here any more, or etcd accepts
// writes, so that the cancel can be requested in the record. While etcd accepts writes, this call has no effect.
func (e *Executor) CancelAttempt(ctx context.Context, c task.LateCancel) (task.LateCancelled, error) {
	id := lateIDOf(&c)

	var out task.LateCancelled
	var err error
	var held *record.Held
	var fence kv.Fence

	if looped := e.callAndWait(ctx, func() {
		a := e.findAttempt(id)
		if a == nil {
			err = fmt.Errorf("cancel run %s of %s/%s: %w: no such attempt is on this node", c.Run, c.Namespace, c.Task, task.ErrConflict)
			return
		}

		out.State, err = a.mayCancelLate()
		out.Repeated = a.late != nil
		held, fence = a.Held, e.session.Fence
	}); looped != nil {
		return task.LateCancelled{}, looped
	}

	if err != nil || out.Repeated || out.State.Final() {
		return out, err
	}

	// The node finds out for itself that etcd is full. It rewrites the attempt's own record, which changes nothing.
	if err := checkFull(ctx, e.cfg.Inbox, fence, held); err != nil {
		return out, fmt.Errorf("cancel run %s of %s: %w", c.Run, held.Ref(), err)
	}

	// From here on, the cancel survives a crash. Nobody is told so before the loop has applied it.
	if err := e.lateFile.keep(c); err != nil {
		return out, fmt.Errorf("cancel run %s of %s: %w", c.Run, held.Ref(), err)
	}

	if looped := e.callAndWait(ctx, func() { out, err = e.applyLateCancel(c) }); looped != nil {
		return task.LateCancelled{}, fmt.Errorf("%w: %w", task.ErrUnknown, looped)
	}

	return out, err
}

// callAndWait makes the loop call f, and waits until it has. After an error, the loop may still call f.
func (e *Executor) callAndWait(ctx context.Context, f func()) error {
	done := make(chan struct{})
	e.callInLoop(func() { f(); close(done) })

	select {
	case <-done:
		return nil
	case <-e.left:
		return errStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// checkFull returns nil if etcd refuses the node's own writes for lack of space.
func checkFull(ctx context.Context, inbox Inbox, session kv.Fence, h *record.Held) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()

	_, err := inbox.Rewrite(ctx, session, *h)
	switch {
	case store.NoSpace(err):
		return nil
	case err == nil:
		return fmt.Errorf("%w: etcd accepts writes", task.ErrConflict)
	case errors.Is(err, task.ErrFenced):
		return fmt.Errorf("%w: the node is joining the cluster again", task.ErrConflict)
	}

	return err
}

// findAttempt returns the attempt of this node with an identity; nil if there is none.
func (s *state) findAttempt(id lateID) *attempt {
	for _, a := range s.all {
		if a.Create == id.token && a.ID == id.run && a.Task == id.task && a.Namespace == id.namespace {
			return a
		}
	}

	return nil
}

// applyLateCancel cancels an attempt whose cancel is on disk. The attempt may have ended or moved since it was first
// looked at. Then the cancel is refused, and dropLateCancels removes it from the disk.
func (e *Executor) applyLateCancel(c task.LateCancel) (out task.LateCancelled, err error) {
	id := lateIDOf(&c)
	a := e.findAttempt(id)
	if a == nil {
		err = fmt.Errorf("cancel run %s of %s/%s: %w: the attempt has ended", c.Run, c.Namespace, c.Task, task.ErrConflict)
	} else {
		out.State, err = a.mayCancelLate()
	}

	// Somebody else has cancelled the attempt in between. That cancel holds, or is about to be dropped.
	if l := e.cancelsLate[id]; l != nil {
		if out.Repeated = !l.refused; l.refused && err == nil {
			err = fmt.Errorf("cancel run %s of %s: %w: an earlier cancel was refused just now", c.Run, a.Ref(), task.ErrConflict)
		}
		return out, err
	}

	refused := err != nil || out.State.Final()
	e.cancelsLate[id] = &lateCancel{LateCancel: c, refused: refused}
	if refused {
		return out, err
	}

	e.log.Warn("ending an attempt whose cancel etcd cannot store, because it is full",
		zap.String("task", a.Namespace+"/"+a.Task), zap.String("run", a.ID), zap.Stringer("by", c.By))
	e.bindLateCancel(a)
	e.markDirty(a)

	return out, nil
}

// bindLateCancel applies a late cancel to its attempt, if there is one for it.
func (s *state) bindLateCancel(a *attempt) {
	if len(s.cancelsLate) == 0 {
		return
	}

	if l := s.cancelsLate[lateID{a.Namespace, a.Task, a.ID, a.Create}]; l != nil && !l.refused {
		l.attempt, a.late = a, l
		a.setHeld(a.Held)
	}
}

// endOfLost returns the end of an attempt that cannot be running any more, and whose outcome nobody has recorded. If it
// was cancelled while etcd was full, and a former process of this node has seen its end, that is its end.
func (a *attempt) endOfLost(now time.Time, gap *task.Gap) task.Run {
	if a.late != nil && a.late.End != nil {
		return *a.late.End
	}

	end := LostEnd(a.Assigned, a.Create, now)

	// It may have ended in a history that a restore has lost.
	if gap.HasRecord(a.Create) {
		end.Reason = task.ReasonRestored
		if end.Message != "" {
			end.Message = "; " + end.Message
		}
		end.Message = gap.String() + end.Message
	}

	return end
}

// dropLateCancels forgets late cancels that no attempt needs any more: its end is recorded and its record gone, or the
// inbox does not contain it. It gives the change of the file to a writer.
func (e *Executor) dropLateCancels() {
	for id, l := range e.cancelsLate {
		needed := !e.listed // until then, the attempt of a cancel of a former process may be in the inbox
		switch {
		case l.refused:
			needed = false
		case l.attempt != nil:
			needed = l.attempt.place >= 0
		}
		if needed || e.toWrite.isFull() {
			continue
		}

		delete(e.cancelsLate, id)
		e.toWrite.jobs <- func(context.Context) {
			if err := e.lateFile.drop(id); err != nil {
				e.log.Warn("cannot forget a late cancel", zap.Error(err))
			}
		}
	}
}

// keepEnd keeps the end of an attempt that was cancelled while etcd was full. The finisher calls it before it records
// the end for the first time.
func (e *Executor) keepEnd(x *ending) {
	if x.late == nil || x.kept {
		return
	}
	x.kept = true

	c := *x.late
	c.End = &x.run
	if err := e.lateFile.keep(c); err != nil {
		// The cancel is kept, so the run is not retried. If the daemon ends now, its attempt ends as lost.
		e.log.Warn("cannot keep the end of an attempt", zap.String("run", x.run.ID), zap.Error(err))
	}
}

const (
	// maxLateCancels is how many late cancels a node keeps at most.
	maxLateCancels = 10_000
	// maxLateLines is how many lines of the file may be out of date before it is rewritten.
	maxLateLines = 1000
)

// lateID identifies the attempt of a late cancel.
type lateID struct {
	namespace, task, run string
	token                int64
}

func lateIDOf(c *task.LateCancel) lateID { return lateID{c.Namespace, c.Task, c.Run, c.Token} }

// lateCancels keeps late cancels in a file of the data directory, so that neither the cancel nor the end of its attempt
// is lost if the daemon ends before etcd has space. Each line of the file is a task.LateCancel; the last line of an
// attempt counts. Its methods may be called from any goroutine; they wait for the disk.
type lateCancels struct {
	path string

	mu      sync.Mutex
	kept    map[lateID]task.LateCancel
	size    int64 // of the whole lines in the file
	expired int   // lines that no longer count
}

// openLateCancels reads the late cancels that former processes have left in a data directory.
func openLateCancels(dir string) (*lateCancels, error) {
	l := &lateCancels{path: filepath.Join(dir, "late-cancels"), kept: map[lateID]task.LateCancel{}}

	content, err := os.ReadFile(l.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("late cancels: %w", err)
	}

	// A crash may have torn the last line. Nobody was told that it is kept, and the next line replaces it.
	content = content[:bytes.LastIndexByte(content, '\n')+1]
	l.size = int64(len(content))

	for line := range bytes.Lines(content) {
		var c task.LateCancel
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, fmt.Errorf("late cancels: %s is damaged: %w", l.path, err)
		}

		if _, again := l.kept[lateIDOf(&c)]; again {
			l.expired++
		}
		l.kept[lateIDOf(&c)] = c
	}

	return l, nil
}

// list returns the cancels that are kept.
func (l *lateCancels) list() []task.LateCancel {
	l.mu.Lock()
	defer l.mu.Unlock()

	list := make([]task.LateCancel, 0, len(l.kept))
	for _, c := range l.kept {
		list = append(list, c)
	}

	return list
}

// keep keeps a cancel until drop. It is on disk when keep returns nil.
func (l *lateCancels) keep(c task.LateCancel) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	_, again := l.kept[lateIDOf(&c)]
	if !again && len(l.kept) >= maxLateCancels {
		return fmt.Errorf("late cancels: the node keeps %d already", len(l.kept))
	}

	line, err := encodeLateCancel(c)
	if err == nil {
		err = l.writeAt(line, l.size)
	}
	if err != nil {
		return fmt.Errorf("late cancels: %w", err)
	}

	l.size += int64(len(line))
	l.kept[lateIDOf(&c)] = c
	if again {
		l.expired++
	}

	return nil
}

// drop forgets a cancel whose attempt's end is recorded. If the file cannot be changed, the next process forgets the
// cancel again.
func (l *lateCancels) drop(id lateID) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	if _, kept := l.kept[id]; !kept {
		return nil
	}

	delete(l.kept, id)
	l.expired++

	if len(l.kept) > 0 && l.expired < maxLateLines {
		return nil
	}
	if err := l.rewriteFile(); err != nil {
		return fmt.Errorf("late cancels: %w", err)
	}

	return nil
}

func encodeLateCancel(c task.LateCancel) ([]byte, error) {
	line, err := json.Marshal(c)
	return append(line, '\n'), err
}

// writeAt writes and syncs a part of the file. The caller must hold mu.
func (l *lateCancels) writeAt(b []byte, offset int64) error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}

	_, err = f.WriteAt(b, offset)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Truncate(l.path, offset) // the next line replaces it in any case
	}

	return err
}

// rewriteFile rewrites the file with only the cancels that are kept. The caller must hold mu.
func (l *lateCancels) rewriteFile() error {
	if len(l.kept) == 0 {
		if err := os.Truncate(l.path, 0); err != nil {
			return err
		}
		l.size, l.expired = 0, 0

		return nil
	}

	var content []byte
	for _, c := range l.kept {
		line, err := encodeLateCancel(c)
		if err != nil {
			return err
		}
		content = append(content, line...)
	}

	tmp := &lateCancels{path: l.path + ".new"}
	if err := os.Remove(tmp.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := tmp.writeAt(content, 0); err != nil {
		return err
	}
	if err := os.Rename(tmp.path, l.path); err != nil {
		return err
	}
	l.size, l.expired = int64(len(content)), 0

	return nil
}
