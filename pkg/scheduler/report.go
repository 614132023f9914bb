package scheduler

import (
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
)

// report logs and counts what the shard has noticed.
func (w *worker) report() {
	for _, n := range w.notices {
		about := []zap.Field{zap.String("task", n.task)}
		if n.run != "" {
			about = append(about, zap.String("run", n.run))
		}

		if n.err != nil {
			about = append(about, zap.Error(n.err))
		}

		switch n.kind {
		case taskPaused:
			w.e.metrics.paused.Inc()
			w.log.Info("a task is paused: it failed too often", append(about, zap.Int("failures", n.failures))...)
		case taskSetAside:
			w.e.metrics.aside.Inc()
			w.log.Error("a task is set aside: every commit for it fails", about...)
		case entryUnreadable:
			w.log.Error("an entry cannot be read; its task does not fire", about...)
		case queuedUnreadable:
			w.log.Error("a queue record cannot be read; it waits for ever", about...)
		case partUnreadable:
			w.log.Error("the record of a part cannot be read; it counts as failed", about...)
		case partNowhere:
			w.log.Error("a part of a run is nowhere on record; it is lost", about...)
		case attemptUnreadable:
			w.log.Error("the record of an attempt whose node is gone cannot be read; it is lost when that has been long enough", about...)
		}
	}

	clear(w.notices)
	w.notices = w.notices[:0]
	w.publish()
}

// publish sets the gauges that all shards of the node share, by how this one has changed them.
func (w *worker) publish() {
	var now published
	if w.owner {
		now = published{waiting: w.queued, unreadable: w.census.Of[taskstate.Unreadable]}
	}

	w.e.metrics.waiting.Add(float64(now.waiting - w.published.waiting))
	w.e.metrics.unreadable.Add(int64(now.unreadable - w.published.unreadable))
	w.published = now
}

// published is what a shard has added to the gauges.
type published struct{ waiting, unreadable int }

// settings reads them.
func (w *worker) settings() settings {
	now := settings{clock: w.e.cfg.Now(), cluster: w.e.cfg.Cluster()}
	now.freezes, now.freezesRead = w.e.frozen()

	return now
}
