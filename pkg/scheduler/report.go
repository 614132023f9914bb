package scheduler

import (
	"go.uber.org/zap"
)

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
			w.log.Info("paused a task that failed too often", append(about, zap.Int("failures", n.failures))...)
		case taskSetAside:
			w.e.metrics.SetAside.Inc()
			w.log.Warn("set aside a task: commits for it fail repeatedly", about...)
		case entryUnreadable:
			w.log.Error("cannot decode an entry; its task does not fire", about...)
		case queuedUnreadable:
			w.log.Error("cannot decode a queue record; it waits forever", about...)
		case partUnreadable:
			w.log.Error("cannot decode the record of a part; it counts as failed", about...)
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
		now = published{waiting: w.state.queued, unreadable: w.state.rows.Index.Size().Unreadable, aside: len(w.state.aside.retryAt)}
	}

	w.e.metrics.WaitingRuns.Add(float64(now.waiting - w.published.waiting))
	w.e.metrics.Unreadable.Add(int64(now.unreadable - w.published.unreadable))
	w.e.metrics.TasksAside.Add(float64(now.aside - w.published.aside))
	w.published = now
}

// published is what a shard has added to the node's gauges.
type published struct{ waiting, unreadable, aside int }

// currentSettings returns the settings for a plan that is made now.
func (w *worker) currentSettings() settings {
	now := settings{clock: w.e.cfg.Now(), cluster: w.e.cfg.Cluster(), namespaces: w.e.cfg.Namespaces()}
	now.freezes, now.freezesRead = w.e.currentFreezes()

	return now
}
