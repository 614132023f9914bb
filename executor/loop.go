package executor

import (
	"context"
	"runtime"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
)

// runLoop owns the state until ctx ends. Each iteration applies what other goroutines have
// reported, then advances the attempts that this concerns. On each tick of the clock, after a
// join, and while stopping, it advances all attempts.
func (e *Executor) runLoop(ctx context.Context, follow *inboxFollower) {
	clock := time.NewTicker(checkInterval)
	defer clock.Stop()
	for {
		// beats grows at least once in each checkInterval, because the ticker ends the wait.
		e.beats.Add(1)
		var b inboxBatch
		all := false

		select {
		case <-ctx.Done():
			return
		case b = <-e.batches:
		case <-e.wakeSignal:
			runtime.Gosched() // results come in bursts: let other goroutines add theirs to the mailbox
		case <-clock.C:
			all = true
		}

		// Process the mailbox first, no matter what has woken the loop: a join in it supersedes the batch that was just
		// received.
		if m := e.readMail(); m.session != nil {
			e.beginSession(*m.session)
			follow.restartInSession(ctx, e.session.id)
			all = true
		} else if m.drain != nil || m.stop {
			all = true // a drain concerns attempts that no event touches
		}

		// A batch of an earlier session is rejected by applyBatch. A join in the same iteration
		// was processed first, so no batch is applied under the wrong session.
		if b.taken != nil {
			b.taken <- e.applyBatch(b)
		}

		e.advanceAttempts(all)
	}
}

// readMail empties the mailbox and processes all of it except a new session, which it leaves to the
// caller. stop stays set in the mailbox until Resume clears it.
func (e *Executor) readMail() mailbox {
	e.mu.Lock()
	m := e.mailbox
	// The two slices of ends take turns, so that a busy node allocates none.
	e.mailbox = mailbox{stop: m.stop, recorded: e.spare}
	e.mu.Unlock()

	if m.drain != nil {
		e.draining = *m.drain
	}

	e.stopping = m.stop
	e.drainers = append(e.drainers, m.drainWaiters...)

	for _, x := range m.recorded {
		e.endRecorded(x)
	}

	// Drop the references, so that the ends can be collected before the slice is filled again.
	clear(m.recorded)
	e.spare = m.recorded[:0]

	for _, f := range m.callbacks {
		f()
	}

	return m
}

// windDown runs after the loop has ended. It kills the attempts that are still running and
// records their ends. It returns when nothing is left; after stopLimit it waits only for
// processes, and unrecorded results are lost: their attempts end as lost later. Before the first join there is nothing
// to do.
func (e *Executor) windDown(ctx context.Context) {
	e.mu.Lock()
	e.mailbox.drain, e.mailbox.stop = new(true), true
	e.mu.Unlock()

	if e.session.id == 0 {
		return
	}

	limit := time.NewTimer(stopLimit)
	defer limit.Stop()

	clock := time.NewTicker(checkInterval)
	defer clock.Stop()

	quick := false
	// The first pass does not wait: it sends the kills.
	for first := true; ; first = false {
		if !first {
			select {
			case <-e.wakeSignal:
			case <-clock.C:
			case <-limit.C:
				quick = true // give up on results, but never leave a process behind (G20)
			}
		}

		e.readMail()
		e.advanceAttempts(true)

		if running := e.countPhase(phaseRunning); running == 0 && (quick || e.settledAll()) {
			if n := e.countPhase(phaseEnded); n > 0 {
				e.log.Warn("stopped before all results were recorded", zap.Int("attempts", n))
			}
			return
		}
	}
}

// inboxFollower runs the goroutines that follow the inbox and the freezes for the latest session.
type inboxFollower struct {
	e      *Executor
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// newInboxFollower returns an inboxFollower without goroutines. restartInSession starts them.
func newInboxFollower(e *Executor) *inboxFollower { return &inboxFollower{e: e, cancel: func() {}} }

// restartInSession follows under a new session. It does not wait for the follower of the earlier session,
// which may still hand in a batch; applyBatch rejects that with errSuperseded.
func (f *inboxFollower) restartInSession(ctx context.Context, session int) {
	f.cancel()
	ctx, f.cancel = context.WithCancel(ctx)
	f.wg.Go(func() { f.e.followInbox(ctx, session) })
	f.wg.Go(func() { f.e.followFreezes(ctx, session) })
}

// stop ends the followers and waits for the goroutines. The loop must have ended.
func (f *inboxFollower) stop() {
	f.cancel()
	f.wg.Wait()
}

// followInbox passes the inbox to the loop until ctx ends, and lists it again about every minute
// in case the watch has lost a change.
func (e *Executor) followInbox(ctx context.Context, session int) {
	for ctx.Err() == nil {
		err := e.cfg.Inbox.FollowInbox(ctx, e.cfg.Node, e.reread, func(b store.InboxBatch) error { return e.handBatch(ctx, b, session) })

		if ctx.Err() != nil {
			return
		}

		e.log.Warn("the watch of the inbox ended", zap.Error(err))

		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// handBatch gives a batch to the loop and waits until it is applied, so the watch cannot run ahead
// of the state.
func (e *Executor) handBatch(ctx context.Context, b store.InboxBatch, session int) error {
	if !b.Reset && !b.Replayed && len(b.Events) == 0 {
		return nil
	}

	x := inboxBatch{InboxBatch: b, session: session, taken: make(chan error, 1)}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case e.batches <- x:
		return <-x.taken
	}
}

// compareList counts the changes that the watch of the inbox has lost. It is called with a list
// before the list is applied. A change at or before the revision up to which the inbox was
// known is certainly lost. Any other difference may still be in flight: either the watch
// reports it soon, as an echo, or a later list finds that it was lost.
func (e *Executor) compareList(b store.InboxBatch) {
	missed := e.pendingDiffs.Lost(e.patience)
	listed := make(map[string]bool, len(b.Events))
	for i := range b.Events {
		ev := &b.Events[i]
		listed[ev.Key] = true
		a := e.byKey[ev.Key]
		switch {
		// Known already: as unreadable, or at this revision or a later one.
		case ev.Err != nil && e.unreadable[ev.Key], a != nil && a.Mod >= ev.Mod:
		case ev.Mod <= e.floor:
			missed++
		default:
			e.pendingDiffs.Add(ev.Key, ev.Mod)
		}
	}

	for key, a := range e.byKey {
		if !listed[key] && a.Mod <= b.Revision {
			// The record was deleted after a.Mod, at a revision that the list does not show.
			e.pendingDiffs.Add(key, a.Mod+1)
		}
	}

	if missed > 0 {
		e.metrics.repairs.Add(float64(missed))
		e.log.Warn("repaired the inbox: its watch had missed changes", zap.Int("attempts", missed), zap.Int64("rev", b.Revision))
	}
}

// applyReplay takes note of events that the watch reports after a list has already shown them.
func (e *Executor) applyReplay(b store.InboxBatch) {
	if len(b.Events) == 0 { // a new watch, which does not replay what the list has shown
		e.pendingDiffs.Clear()
	}

	for i := range b.Events {
		e.pendingDiffs.Resolve(b.Events[i].Key, b.Events[i].Mod)
	}
}
