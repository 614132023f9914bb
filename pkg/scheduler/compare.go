package scheduler

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// review is something for a worker to compare with what it knows.
type review struct {
	rev int64 // at which it was read

	shard bool               // keys are all of the shard, but its history
	keys  []store.ShardEvent // without values

	active bool // runs are all active attempts of the shard
	runs   []store.ActiveKey

	history []store.ShardEvent // keys of history

	settle bool // differences, of the shard or the active attempts, have lasted for long enough

	recalled *recollection // what failed before the shard was opened
}

// differences are what a worker knows otherwise than etcd: events on their way, or
// lost.
type differences struct {
	records map[string]int64 // by key: the mod revision that etcd has; 0: it has none
	there   []store.ActiveKey
	gone    []*taskstate.Attempt // of runs that the worker takes for active
	of      []*taskstate.Task
	since   time.Time
}

func (d *differences) notEmpty() bool { return len(d.records)+len(d.there)+len(d.gone) > 0 }

// maxDifferences bounds what is doubted at once: whoever is as wrong as that has the
// rest repaired in the next period.
const maxDifferences = 1000

// revisionsThatDiffer lists the records that the worker knows otherwise than r does.
func (s *knownRecords) revisionsThatDiffer(r review) map[string]int64 {
	found := map[string]int64{}
	doubt := func(key string, mod int64) {
		if len(found) < maxDifferences {
			found[key] = mod
		}
	}

	entries, queued := make(map[string]bool, len(r.keys)), map[string]bool{}
	for i := range r.keys {
		ev := &r.keys[i]
		switch ev.Kind {
		case record.KindEntry:
			entries[ev.Task] = true
		case record.KindQueued, record.KindPart:
			queued[ev.Key] = true
		}

		if s.lacksRecord(ev) {
			doubt(ev.Key, ev.Mod)
		}
	}

	for name, t := range s.tasks {
		if t.Present && t.Mod <= r.rev && !entries[name] {
			doubt(s.keys.Entry(t.Ref(s.shard)), 0)
		}

		if t.Activity == nil {
			continue
		}

		for _, q := range t.Activity.Queue {
			if key := s.keys.Queued(t.Ref(s.shard), q.ID); q.Mod <= r.rev && !queued[key] {
				doubt(key, 0)
			}
		}

		for id, part := range t.Activity.Returned {
			if key := s.keys.Ended(t.Ref(s.shard), id); part.Mod <= r.rev && !queued[key] {
				doubt(key, 0)
			}
		}

		for _, run := range t.Activity.Unreadable {
			if key := s.keys.Queued(t.Ref(s.shard), run); !queued[key] {
				doubt(key, 0)
			}
		}
	}

	return found
}

// lacksRecord reports whether the worker does not know that a record exists, or only
// an older version.
func (s *knownRecords) lacksRecord(ev *store.ShardEvent) bool {
	t := s.tasks[ev.Task]

	switch ev.Kind {
	case record.KindEntry:
		return t == nil || t.Mod < ev.Mod
	case record.KindQueued:
		if t == nil || t.Activity == nil {
			return true
		}
		i := slices.IndexFunc(t.Activity.Queue, func(q *taskstate.Waiting) bool { return q.ID == ev.Run })
		return (i < 0 || t.Activity.Queue[i].Mod < ev.Mod) && !slices.Contains(t.Activity.Unreadable, ev.Run)

	case record.KindPart:
		return t == nil || t.Activity == nil || t.Activity.Returned[ev.Run].Mod < ev.Mod
	case record.KindWatermark:
		return s.known < ev.Mod
	}

	return false
}

// hasRecord reports whether the worker takes a record for existing.
func (s *knownRecords) hasRecord(ev *store.ShardEvent) bool {
	t := s.tasks[ev.Task]
	switch {
	case t == nil:
		return false
	case ev.Kind == record.KindEntry:
		return t.Present
	case t.Activity == nil:
		return false
	case ev.Kind == record.KindPart:
		_, ok := t.Activity.Returned[ev.Run]
		return ok
	}

	return slices.Contains(t.Activity.Unreadable, ev.Run) || slices.ContainsFunc(t.Activity.Queue, func(q *taskstate.Waiting) bool { return q.ID == ev.Run })
}

// differingRuns are the attempts that are active for only one of worker and etcd.
func (s *knownRecords) differingRuns(r review) (d differences) {
	found := map[record.RunKey]int64{}
	for _, k := range r.runs {
		found[k.RunKey] = k.Create
		if s.attemptOf(k) == nil && len(d.there) < maxDifferences {
			d.there = append(d.there, k)
		}
	}

	for _, t := range s.tasks {
		for _, a := range t.Active() {
			create, ok := found[s.runKey(t, a)]
			if (!ok || a.Create != 0 && a.Create != create) && a.Create <= r.rev && len(d.gone) < maxDifferences {
				d.gone, d.of = append(d.gone, a), append(d.of, t)
			}
		}
	}

	return d
}

func (s *knownRecords) runKey(t *taskstate.Task, a *taskstate.Attempt) record.RunKey {
	return record.RunKey{Node: a.Node, Ref: t.Ref(s.shard), Run: a.Run}
}

// attemptOf is what the worker knows of an attempt, or of a later one of its run; nil: nothing.
func (s *knownRecords) attemptOf(k store.ActiveKey) *taskstate.Attempt {
	t := s.tasks[k.Ref.String()]
	if t == nil {
		return nil
	}

	for _, a := range t.Active() {
		if a.Run == k.Run && (a.Create >= k.Create || a.Create == 0) {
			return a
		}
	}

	return nil
}
