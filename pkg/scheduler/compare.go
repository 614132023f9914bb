package scheduler

import (
	"slices"
	"time"

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
	gone    []*attempt // of runs that the worker takes for active
	of      []*taskState
	since   time.Time
}

func (d *differences) any() bool { return len(d.records)+len(d.there)+len(d.gone) > 0 }

// maxDifferences bounds what is doubted at once: whoever is as wrong as that has the
// rest repaired in the next period.
const maxDifferences = 1000

// differing lists the records that the worker knows otherwise than r does.
func (s *knownRecords) differing(r review) map[string]int64 {
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
		if s.lacks(ev) {
			doubt(ev.Key, ev.Mod)
		}
	}
	for name, t := range s.tasks {
		if t.present && t.mod <= r.rev && !entries[name] {
			doubt(s.keys.Entry(t.ref(s.shard)), 0)
		}
		if t.activity == nil {
			continue
		}
		for _, q := range t.activity.queue {
			if key := s.keys.Queued(t.ref(s.shard), q.ID); q.mod <= r.rev && !queued[key] {
				doubt(key, 0)
			}
		}
		for id, part := range t.activity.returned {
			if key := s.keys.Ended(t.ref(s.shard), id); part.mod <= r.rev && !queued[key] {
				doubt(key, 0)
			}
		}
		for _, run := range t.activity.unreadable {
			if key := s.keys.Queued(t.ref(s.shard), run); !queued[key] {
				doubt(key, 0)
			}
		}
	}
	return found
}

// lacks reports whether the worker does not know that a record exists, or only
// an older version.
func (s *knownRecords) lacks(ev *store.ShardEvent) bool {
	t := s.tasks[ev.Task]
	switch ev.Kind {
	case record.KindEntry:
		return t == nil || t.mod < ev.Mod
	case record.KindQueued:
		if t == nil || t.activity == nil {
			return true
		}
		i := slices.IndexFunc(t.activity.queue, func(q *waiting) bool { return q.ID == ev.Run })
		return (i < 0 || t.activity.queue[i].mod < ev.Mod) && !slices.Contains(t.activity.unreadable, ev.Run)
	case record.KindPart:
		return t == nil || t.activity == nil || t.activity.returned[ev.Run].mod < ev.Mod
	case record.KindWatermark:
		return s.known < ev.Mod
	}
	return false
}

// has reports whether the worker takes a record for existing.
func (s *knownRecords) has(ev *store.ShardEvent) bool {
	t := s.tasks[ev.Task]
	switch {
	case t == nil:
		return false
	case ev.Kind == record.KindEntry:
		return t.present
	case t.activity == nil:
		return false
	case ev.Kind == record.KindPart:
		_, ok := t.activity.returned[ev.Run]
		return ok
	}
	return slices.Contains(t.activity.unreadable, ev.Run) || slices.ContainsFunc(t.activity.queue, func(q *waiting) bool { return q.ID == ev.Run })
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
		for _, a := range t.active() {
			create, ok := found[s.runKey(t, a)]
			if (!ok || a.create != 0 && a.create != create) && a.create <= r.rev && len(d.gone) < maxDifferences {
				d.gone, d.of = append(d.gone, a), append(d.of, t)
			}
		}
	}
	return d
}

func (s *knownRecords) runKey(t *taskState, a *attempt) record.RunKey {
	return record.RunKey{Node: a.node, Ref: t.ref(s.shard), Run: a.run}
}

// attemptOf is what the worker knows of an attempt, or of a later one of its run; nil: nothing.
func (s *knownRecords) attemptOf(k store.ActiveKey) *attempt {
	t := s.tasks[k.Ref.String()]
	if t == nil {
		return nil
	}
	for _, a := range t.active() {
		if a.run == k.Run && (a.create >= k.Create || a.create == 0) {
			return a
		}
	}
	return nil
}
