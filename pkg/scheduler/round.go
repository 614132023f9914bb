package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/node"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/scheduler/triggers"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// runLoop applies events and decides rounds until ctx ends or an error requires another opening. It decides
// nothing before scan has delivered the active attempts. watch is that of the loaded shard.
func (w *worker) runLoop(ctx context.Context, watch *background.Feed, scan <-chan map[int][]store.ActiveKey) error {
	batches := watch.Batches
	w.batches = batches
	timer := time.NewTimer(maxIdleSleep)
	defer timer.Stop()

	scanned := false // the active attempts are known
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-batches:
			if err := w.applyBatch(b); err != nil {
				return err
			}

			// Apply everything that has arrived, so that one round decides on all of it.
			if err := w.applyPending(batches); err != nil {
				return err
			}
		case keys := <-scan:
			scan, scanned = nil, true

			if err := w.applyScan(ctx, keys[w.state.records.Shard]); err != nil {
				return err
			}

			w.serving.Store(true)
			w.served.Store(&served{w.state.rows.Index, watch, w.e.cfg.Now()})
			w.requestPast()
			w.lookAtSources()
		case r := <-w.reviews:
			if scanned {
				if err := r.reviewBy(ctx, w); err != nil {
					return err
				}
			}
		case <-w.wakeSignal:
			w.state.examineAll()
		case <-timer.C:
		}

		// Decide nothing before the scan: the former owner may have dispatched attempts that are not known
		// yet, and the overlap policy would be applied without them (G8).
		if !scanned {
			continue
		}
		if err := w.runRound(ctx); err != nil {
			return err
		}

		if time.Since(w.lookedAt) >= lookPeriod {
			w.lookAtSources()
		}

		timer.Reset(w.sleepFor())
	}
}

// applyPending applies the batches that have already arrived. It does not wait.
func (w *worker) applyPending(batches <-chan store.ShardBatch) error {
	for {
		select {
		case b := <-batches:
			if err := w.applyBatch(b); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// maxIdleSleep is the longest time that a worker sleeps without reading the clock. A timer counts neither
// the time during which a machine was suspended nor steps of the clock.
const maxIdleSleep = 5 * time.Second

// sleepFor returns how long the worker may sleep until something is due, at most maxIdleSleep. It also
// publishes the due time of the first undecided tick.
func (w *worker) sleepFor() time.Duration {
	now := w.e.cfg.Now()
	sleep := maxIdleSleep
	w.undecided.Store(0)

	// The next tick.
	if len(w.state.due) > 0 {
		due := w.state.due[0].DueAt()
		w.undecided.Store(due)
		sleep = min(sleep, state.Instant(due).Sub(now))
	}

	// The next time at which all waiting and active runs must be examined.
	if !w.state.agenda.examineAllAt.IsZero() {
		sleep = min(sleep, w.state.agenda.examineAllAt.Sub(now))
	}

	// The next time at which a single task must be examined.
	if at, ok := w.state.agenda.later.next(); ok {
		sleep = min(sleep, state.Instant(at).Sub(now))
	}

	// The next commit for a task that is set aside.
	if at, ok := w.state.aside.nextRetry(); ok {
		sleep = min(sleep, state.Instant(at).Sub(now))
	}

	// The next turn of the shard for catch-up tokens.
	if w.state.line.Len() > 0 {
		sleep = min(sleep, w.state.line.Turn.Sub(now))
	}

	return max(sleep, 0)
}

// runRound decides everything that is due at one value of now, in as many commits as that takes. If a
// commit fails because state has changed, nothing was written: runRound applies the changes and decides
// again.
//
// It returns nil when nothing is left to decide for now, and also when it postpones the rest: after
// maxConflictsPerRound conflicts, when etcd refuses commits, and while the records of the namespaces are not
// known. An error means that the state in memory may not match etcd (task.ErrUnknown, store.ErrMoved) or that
// this worker may not write any more (task.ErrFenced). In both cases the plan has been abandoned, and the caller must
// discard the state.
func (w *worker) runRound(ctx context.Context) error {
	defer w.logNotices()

	wallClock := w.e.cfg.Now()

	// Ticks and deadlines have a resolution of milliseconds, so decisions use a truncated now. Comparisons
	// with wake-up times use wallClock: with the truncated time, a wake-up between two milliseconds would
	// appear to be in the future, and the worker would run rounds without a pause until it passes.
	now := wallClock.Truncate(time.Millisecond)

	// A clock that was set back must not delay what waits for as long as it was set back.
	setBack := w.state.agenda.clockWasSetBack(wallClock)
	if at := w.state.agenda.examineAllAt; setBack || !at.IsZero() && !wallClock.Before(at) {
		w.state.agenda.examineAllAt = time.Time{}
		w.state.examineAll()
	}

	w.state.agenda.moveDueTasks(now.UnixMilli())

	w.state.grantTokens(wallClock)

	if len(w.state.aside.retryAt) > 0 {
		w.state.examineSetAside(now)
	}

	// This needs wallClock because of its monotonic reading, which Truncate removes. A step of the clock
	// must not shorten the time after which an attempt is declared lost (G17).
	if len(w.state.agenda.toExamine) > 0 {
		if err := w.watchAttempts(ctx, wallClock); err != nil {
			return err
		}
	}

	for conflicts := 0; ; {
		// Read the histories that earlier plans of this round have requested, a few at a time.
		if len(w.state.unread) > 0 {
			w.readHistories(ctx, now.UnixMilli())
		}
		if len(w.state.wantedPlans) > 0 {
			w.readPlans(ctx, now)
		}

		w.state.rows.Flush(w.state.applied)

		if !w.state.hasWork(now) {
			return nil
		}

		as := w.currentSettings()
		if as.namespaces == nil {
			// Decide nothing, as while etcd is unavailable. The caller of WakeWorkers wakes the worker.
			w.state.agenda.examineAllBy(now.Add(namespacesRetry))

			if !clock.Sleep(ctx, namespacesRetry) {
				return ctx.Err()
			}

			return nil
		}

		p := w.state.buildPlan(now, as)

		// A deletion because of the ttl is a separate transaction that compares the entry. So it is
		// requested whether or not the plan's commit succeeds.
		w.e.ttlDeleter.AskAll(p.deletions, w.wakeUp)

		if p.commit.Empty() {
			// An empty plan holds no reservations, so there is nothing to give back. Without a commit it
			// counts as settled (mustBeSettled).
			p.commit = nil

			if len(w.state.unread) > 0 || len(w.state.wantedPlans) > 0 {
				continue
			}

			w.state.endIdleSetAside(now)

			return nil
		}

		// May can refuse because this node must not decide any more, for example after its clock has
		// jumped.
		if err := w.e.cfg.MayCommit(); err != nil {
			w.state.applyAbandoned(p)
			return fmt.Errorf("%w: %w", task.ErrFenced, err)
		}

		// From here until the plan is applied or abandoned, no event may be applied to the shard: the
		// plan's effects point into its state.
		began, alone := time.Now(), p.alone
		rev, err := w.e.cfg.Store.Commit(ctx, p.commit)
		w.e.metrics.CommitSeconds.Observe(time.Since(began).Seconds())
		w.e.metrics.Commits.WithLabelValues(resultLabel(err)).Inc()

		if p.commit.ResolvedAs != "" {
			w.e.metrics.ResolvedCommits.WithLabelValues(p.commit.ResolvedAs).Inc()
		}

		var conflict *store.Conflict
		switch {
		case err == nil:
			w.state.applyCommitted(p, rev)
			w.observePlan(p)
			w.noteProgress()
			conflicts = 0

			if w.newlyDue(now) {
				// Ticks have become due during the commit. Start a new round for them instead of serving
				// what is left first: that may be a thousand parts of runs, and each takes a commit.
				return nil
			}
		case errors.As(err, &conflict):
			// Learn the freezes first. The next plan must compare their new revision and obey them (G21).
			if conflict.Freezes != nil {
				w.e.learnFreezes(conflict.Freezes)
			}

			// Abandon the plan and apply the changed records. Tasks for which commits fail repeatedly are set
			// aside, so that the next plan decides for the others. The commit may have taken long, and waits of what it
			// has found begin now.
			if err := w.state.applyConflict(p, conflict, w.e.cfg.Now()); err != nil {
				return err
			}

			// An edit gave a task ticks that this worker has not seen yet. Learn of it before the
			// watermark moves past them (G4).
			if conflict.Revised != nil {
				if err := w.learnRevised(ctx, *conflict.Revised); err != nil {
					return err
				}
				if conflict.OnlyRevised() {
					// This does not count as a conflict. After maxOvertaken of them in a row, the next plan
					// leaves the watermark in place, and its commit does not compare the revised key.
					continue
				}
			}

			// Commits for a task that is set aside cannot fail forever in this round: its next turn is later.
			if alone {
				continue
			}

			if conflicts++; conflicts == maxConflictsPerRound {
				// Records change faster than this worker commits. Apply the watch's events before the next
				// attempt.
				w.state.agenda.examineAllBy(now)

				if !clock.Sleep(ctx, 20*time.Millisecond) {
					return ctx.Err()
				}

				return nil
			}
		case errors.Is(err, task.ErrUnavailable):
			// Nothing was written: etcd is out of space or overloaded. Try again in a second, or at the
			// next event.
			w.state.applyAbandoned(p)
			w.log.Debug("commit refused", zap.Error(err))
			w.state.agenda.examineAllBy(now.Add(time.Second))

			if !clock.Sleep(ctx, 250*time.Millisecond) {
				return ctx.Err()
			}

			return nil
		default:
			// The watermark was changed, the commit was fenced, or its outcome is unknown. In each case the
			// caller discards the state.
			w.state.applyAbandoned(p)
			return err
		}
	}
}

// namespacesRetry is the time after which a worker asks again for the records of the namespaces.
const namespacesRetry = 100 * time.Millisecond

// maxConflictsPerRound is how many commits of one round may fail with a conflict before the round ends.
const maxConflictsPerRound = 10

// currentSettings returns the settings for a plan that is made now.
func (w *worker) currentSettings() settings {
	now := settings{clock: w.e.cfg.Now(), cluster: w.e.cfg.Cluster(), namespaces: w.e.cfg.Namespaces()}
	now.freezes, now.freezesRead = w.e.currentFreezes()

	return now
}

// freezes holds the freezes record that a rejected commit returned. It is used until the follower of that
// record (Config.Freezes) reports another one than it did at that time.
type freezes struct {
	learned atomic.Pointer[learnedFreezes]
}

type learnedFreezes struct {
	instead int64               // the mod revision that the follower reported at that time
	is      *store.FreezeRecord // the record to use instead
}

// currentFreezes returns the newest freezes that are known, and the mod revision of their record, which
// every commit compares (G21). The freezes are nil if there are none.
func (e *Engine) currentFreezes() (*task.Freezes, int64) {
	f, mod := e.cfg.Freezes()
	if l := e.freezes.learned.Load(); l != nil && l.instead == mod {
		return &l.is.Freezes, l.is.Mod
	}
	return f, mod
}

// learnFreezes stores the freezes record to which a commit lost.
func (e *Engine) learnFreezes(is *store.FreezeRecord) {
	_, mod := e.cfg.Freezes()
	if is.Mod > mod || is.Mod == 0 && mod != 0 {
		// Mod 0 means that the record is gone, which happens only if somebody deletes it by hand.
		e.freezes.learned.Store(&learnedFreezes{instead: mod, is: is})
		return
	}

	e.freezes.learned.Store(nil) // the follower is already ahead
}

// observePlan updates metrics and the counts of the last minute with what the plan has decided. Its commit has
// succeeded.
func (w *worker) observePlan(p *plan) {
	w.e.metrics.CountOutcomes(node.Outcomes{Run: p.counts.run, NotRun: p.counts.notRun, Lost: p.counts.lost})

	for outcome, n := range p.counts.triggers {
		if n > 0 {
			w.e.metrics.TriggersTaken.WithLabelValues(triggerLabels[outcome]).Add(float64(n))
		}
	}

	if skipped := p.counts.neverRun(); skipped > 0 || len(p.counts.lateness) > 0 {
		w.e.recent.AddDecided(p.now, skipped, p.counts.lateness)
	}

	for _, late := range p.counts.lateness {
		w.e.metrics.Lateness.Observe(late.Seconds())
	}
}

// triggerLabels are the labels of the outcomes of triggers in the metric carillon_triggers_taken_total.
var triggerLabels = [triggers.Outcomes]string{
	triggers.Start: "run", triggers.Queue: "run", triggers.Skip: "skipped", triggers.Miss: "missed", triggers.Delete: "deleted",
}

// newlyDue reports whether all ticks that were due at now are decided, and others have become due since.
func (w *worker) newlyDue(now time.Time) bool {
	return len(w.state.due) > 0 && w.state.due[0].DueAt() > now.UnixMilli() && w.state.due[0].DueAt() <= w.e.cfg.Now().UnixMilli()
}

// resultLabel returns the label of a commit's result in the metric carillon_commits_total.
func resultLabel(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, task.ErrConflict):
		return "conflict"
	case errors.Is(err, task.ErrFenced):
		return "fenced"
	case errors.Is(err, store.ErrMoved):
		return "moved"
	}

	return "error"
}

// logNotices logs and counts the notices of the shard, and publishes its gauges.
func (w *worker) logNotices() {
	for _, n := range w.state.notices {
		about := []zap.Field{zap.String("task", n.task)}
		if n.run != "" {
			about = append(about, zap.String("run", n.run))
		}

		if n.err != nil {
			about = append(about, zap.Error(n.err))
		}

		switch n.kind {
		case taskPaused:
			w.e.metrics.Paused.Inc()
			w.log.Info("paused a task that failed too often", append(about, zap.Int("failures", n.failedRuns))...)
		case taskSetAside:
			w.e.metrics.SetAside.Inc()
			w.log.Warn("set aside a task: commits for it fail repeatedly", about...)
		case entryUnreadable:
			w.log.Error("cannot decode an entry; its task does not fire", about...)
		case queuedUnreadable:
			w.log.Error("cannot decode a queue record; it waits forever", about...)
		case partUnreadable:
			w.log.Error("cannot decode the record of a part; it counts as failed", about...)
		case triggerUnreadable:
			w.log.Error("cannot decode a trigger; it starts nothing", about...)
		case partNowhere:
			w.log.Error("a part of a run has no record; it is lost", about...)
		case attemptUnreadable:
			w.log.Error("cannot decode the record of an attempt on a missing node; it is declared lost later", about...)
		}
	}

	clear(w.state.notices)
	w.state.notices = w.state.notices[:0]
	w.publishGauges()
}

// publishGauges updates the gauges of the node by the difference between this shard's current and last
// contribution.
func (w *worker) publishGauges() {
	var now published
	if w.state.owner {
		size := w.state.rows.Index.Size()
		now = published{waiting: w.state.queued, triggers: w.state.records.Links.Waiting(), unreadable: size.Unreadable, failing: size.Failing, aside: len(w.state.aside.retryAt)}
	}

	w.e.metrics.WaitingRuns.Add(float64(now.waiting - w.published.waiting))
	w.e.metrics.TriggersWaiting.Add(float64(now.triggers - w.published.triggers))
	w.e.metrics.Unreadable.Add(int64(now.unreadable - w.published.unreadable))
	w.e.metrics.TasksFailing.Add(float64(now.failing - w.published.failing))
	w.e.metrics.TasksAside.Add(float64(now.aside - w.published.aside))
	w.published = now
}

// published is what a shard has added to the node's gauges.
type published struct{ waiting, triggers, unreadable, failing, aside int }
