package executor

import (
	"context"
	"runtime"
	"time"

	"go.uber.org/zap"
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
