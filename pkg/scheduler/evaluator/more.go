package evaluator

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// writeMoreEvery is how often a record of counted alerts is rewritten, at most.
const writeMoreEvery = 15 * time.Second

// writeMore writes how many alerts of a shard have no record of their own, for each of their receivers.
func (e *Evaluator) writeMore(ctx context.Context, s *shardAlerts) {
	counts := s.countMore()
	now := e.cfg.Now()

	rooms := map[room]bool{}
	for r := range counts {
		rooms[r] = true
	}
	for r := range s.more {
		rooms[r] = true
	}

	for r := range rooms {
		next := moreAlert(s.more[r], r, counts[r], now)
		if next == nil || now.Sub(s.wrote[r]) < writeMoreEvery {
			continue
		}

		mod, err := e.cfg.Store.PutMoreAlerts(ctx, s.Fences, s.ID, *next)
		if err != nil {
			// Somebody has acknowledged it, or it is not known whether it was written.
			s.isLoaded = false
			e.cfg.Logger.Debug("could not count alerts", zap.Int("shard", s.ID), zap.Error(err))
			continue
		}

		next.Mod, next.ID = mod, cmp.Or(next.ID, mod)
		s.more[r], s.wrote[r] = next, now
	}
}

// countMore returns the numbers of alerts without records by receiver and kind. An alert counts for each of its receivers. The
// numbers are not smaller than those of a former owner that still count.
func (s *shardAlerts) countMore() map[room]map[task.AlertKind]int {
	counts := map[room]map[task.AlertKind]int{}

	for _, t := range s.tasks {
		if t.counted == 0 {
			continue
		}

		for _, r := range roomsOf(t.namespace(), t.receivers) {
			if r.receiver == "" {
				continue // nobody is to be told
			}

			if counts[r] == nil {
				counts[r] = map[task.AlertKind]int{}
			}
			for _, kind := range alert.Kinds {
				if t.counted.Has(readmodel.AlertFlag(kind)) {
					counts[r][kind]++
				}
			}
		}
	}

	for r, former := range s.former {
		if counts[r] == nil {
			counts[r] = map[task.AlertKind]int{}
		}
		for kind, n := range former {
			counts[r][kind] = max(counts[r][kind], n)
		}
	}

	return counts
}

// moreAlert returns the next version of a record of counted alerts, or nil if it stays as it is.
func moreAlert(current *task.Alert, r room, counts map[task.AlertKind]int, now time.Time) *task.Alert {
	isOpen := current != nil && current.IsOpen()
	at := task.At(now)

	if len(counts) == 0 {
		if !isOpen {
			return nil
		}

		a := *current
		a.Closed = &task.AlertClose{At: at, Why: task.AlertSolved}

		return &a
	}

	a := task.Alert{
		Namespace: r.namespace, Kind: task.AlertMore, Receiver: r.receiver, Since: at, OpenedAt: at, Notify: []string{r.receiver}, Openings: 1,
	}

	switch {
	case isOpen:
		if maps.Equal(current.More, counts) {
			return nil
		}
		a = *current
	case current != nil:
		a.ID, a.Mod = current.ID, current.Mod
		alert.CountOpening(&a, current)
	}

	a.More = counts

	return &a
}

// deleteClosed deletes the alerts of a shard that have been closed for long enough, and the oldest ones of a room with many.
func (e *Evaluator) deleteClosed(ctx context.Context, s *shardAlerts) {
	old := s.closedLongAgo(e.cfg.Now())
	if len(old) == 0 {
		return
	}

	if err := e.cfg.Store.DeleteAlerts(ctx, s.Fences, s.ID, old); err != nil {
		// One of them was changed, or it is not known whether they were deleted.
		s.isLoaded = false
		e.cfg.Logger.Debug("could not delete closed alerts", zap.Int("shard", s.ID), zap.Error(err))

		return
	}

	for i := range old {
		s.forget(&old[i])
	}
}

// forget forgets the record of an alert that was deleted.
func (s *shardAlerts) forget(a *task.Alert) {
	if a.Kind == task.AlertMore {
		delete(s.more, room{a.Namespace, a.Receiver})
		return
	}
	if t := s.tasks[a.Namespace+"/"+a.Task]; t != nil {
		t.records[kindIndex(a.Kind)] = nil
	}
}

// closedLongAgo returns the alerts to delete.
func (s *shardAlerts) closedLongAgo(now time.Time) (old []task.Alert) {
	isOld := func(a *task.Alert) bool { return now.Sub(a.Closed.At.Time) >= alert.KeepClosed }

	for _, a := range s.more {
		if !a.IsOpen() && isOld(a) {
			old = append(old, *a)
		}
	}

	closed := map[room][]*task.Alert{}
	for _, t := range s.tasks {
		for _, a := range t.records {
			switch {
			case a == nil || a.IsOpen():
			case isOld(a):
				old = append(old, *a)
			default:
				r := roomsOf(a.Namespace, a.Notify)[0]
				closed[r] = append(closed[r], a)
			}
		}
	}

	for _, list := range closed {
		if len(list) <= maxClosed {
			continue
		}

		slices.SortFunc(list, func(a, b *task.Alert) int { return a.Closed.At.Compare(b.Closed.At.Time) })
		for _, a := range list[:len(list)-maxClosed] {
			old = append(old, *a)
		}
	}

	return old
}
