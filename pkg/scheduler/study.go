package scheduler

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// study has t's history read before the next plan: what the watch has told is not
// all that matters.
func (w *worker) study(t *taskState) { w.unread[t] = struct{}{} }

// studies reads the histories that were asked for, a few between two plans: ticks
// of others must not wait for long. Of those that cannot be read now, the tasks are
// looked at again in a second.
func (w *worker) studies(ctx context.Context, now int64) {
	if len(w.unread) == 0 {
		return
	}
	some := slices.SortedFunc(maps.Keys(w.unread), byName)
	some = some[:min(len(some), store.HistoriesAtOnce)]
	refs := make([]store.Ref, len(some))
	for i, t := range some {
		delete(w.unread, t)
		refs[i] = t.ref(w.shard)
	}
	list, err := w.readPasts(ctx, some, refs)
	if err != nil {
		w.log.Debug("could not read histories", zap.Error(err))
		for _, t := range some {
			w.rest(t, now+1000)
		}
		return
	}
	for _, s := range list {
		s.conclude(now)
		w.look(s.t)
	}
}

// retrospect is how far the history of a task has been read, from its newest record
// backwards.
type retrospect struct {
	t    *taskState
	rev  int64
	keys []store.ShardEvent // yet to be read, the newest first
	ends []end              // the newest first
	read bool               // of some of them
	last int64              // when the newest ended, ms; 0: there is none
}

func (w *worker) readPasts(ctx context.Context, of []*taskState, refs []store.Ref) ([]*retrospect, error) {
	keys, rev, err := w.e.cfg.Store.HistoriesOf(ctx, refs)
	if err != nil {
		return nil, err
	}
	list := make([]*retrospect, len(of))
	for i, t := range of {
		own := slices.DeleteFunc(keys[i], func(ev store.ShardEvent) bool { return t.orphan(ev.Run) })
		slices.SortFunc(own, func(a, b store.ShardEvent) int { return cmp.Or(cmp.Compare(b.Mod, a.Mod), cmp.Compare(b.Key, a.Key)) })
		list[i] = &retrospect{t: t, rev: rev, keys: own}
	}
	for want := 1; ; want *= 4 {
		var page []string
		var of []*retrospect
		for _, s := range list {
			for _, ev := range s.wants(want) {
				page, of = append(page, ev.Key), append(of, s)
			}
		}
		if len(page) == 0 {
			return list, nil
		}
		events, err := w.e.cfg.Store.RecordsNow(ctx, page)
		if err != nil {
			return nil, err
		}
		for i, ev := range events {
			of[i].take(ev)
		}
	}
}

// wants is what is to be read next, so many records at most: the newest, and, if
// it matters how runs end, those that are not counted, back to one that succeeded,
// or as far as is enough to pause the task.
func (s *retrospect) wants(most int) []store.ShardEvent {
	n := 0
	if !s.read {
		n = min(most, len(s.keys))
	} else if t := s.t; t.present && !t.bad && t.counts() {
		if slices.ContainsFunc(s.ends, func(e end) bool { return e.state == task.Succeeded }) || inARow(0, s.ends) >= t.how.pauseAfter {
			return nil
		}
		for n < min(most, len(s.keys)) && s.keys[n].Mod > t.own().Counted {
			n++
		}
	}
	page := s.keys[:n]
	s.keys, s.read = s.keys[n:], true
	return page
}

// take takes a record that was read. One that is gone meanwhile, or cannot be
// read, counts for nothing.
func (s *retrospect) take(ev store.ShardEvent) {
	if ev.Deleted {
		return
	}
	r, err := store.DecodeEnded(ev.ShardKey, ev.Value)
	if err != nil {
		return
	}
	s.ends = append(s.ends, end{ev.Mod, r.State})
	if s.last == 0 {
		s.last = r.EndedAt.UnixMilli()
	}
}

// conclude makes what was read the task's past.
func (s *retrospect) conclude(now int64) {
	if !s.t.present || s.t.bad {
		return
	}
	p := s.t.history()
	p.studied, p.upTo = true, s.rev
	p.setEnded(s.last, now)
	if len(s.keys) > 0 && s.keys[0].Mod > s.t.own().Counted {
		// Those read are enough. What had failed before does not add to them: among what was
		// not read something may have succeeded.
		s.ends = append(s.ends, end{s.keys[0].Mod, task.Succeeded})
	}
	slices.Reverse(s.ends)
	p.ends = s.ends
}
