package known

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// Differences are what a worker knows otherwise than etcd: events on their way, or lost.
type Differences struct {
	Records map[string]int64     // by key: the mod revision that etcd has; 0: it has none
	Unknown []store.ActiveKey    // attempts that are active, and the worker does not know them
	Gone    []*taskstate.Attempt // attempts that the worker takes for active, and etcd has no record of them
	GoneOf  []*taskstate.Task    // the task of each of Gone
	Since   time.Time            // when they were found
}

// NotEmpty reports whether there are any differences.
func (d *Differences) NotEmpty() bool {
	return len(d.Records)+len(d.Unknown)+len(d.Gone) > 0
}

// maxDifferences is how many differences one comparison finds. The next period finds the rest.
const maxDifferences = 1000

// DifferingRecords compares what is known with the keys of all records of the shard but its history, as
// they were at revision rev. It returns the keys of those that differ, with the mod revision that etcd
// has, or 0 if etcd has no such record. What the worker has learned after rev is no difference.
func (r *Records) DifferingRecords(keys []store.ShardEvent, rev int64) map[string]int64 {
	found := map[string]int64{}
	doubt := func(key string, mod int64) {
		if len(found) < maxDifferences {
			found[key] = mod
		}
	}

	entries, queued := make(map[string]bool, len(keys)), map[string]bool{}
	for i := range keys {
		ev := &keys[i]
		switch ev.Kind {
		case record.KindEntry:
			entries[ev.Task] = true
		case record.KindQueued, record.KindPart:
			queued[ev.Key] = true
		}

		if r.LacksRecord(ev) {
			doubt(ev.Key, ev.Mod)
		}
	}

	for name, t := range r.Tasks {
		if t.Present && t.Mod <= rev && !entries[name] {
			doubt(r.Keys.Entry(t.Ref(r.Shard)), 0)
		}

		if t.Activity == nil {
			continue
		}

		for _, q := range t.Activity.Queue {
			if key := r.Keys.Queued(t.Ref(r.Shard), q.ID); q.Mod <= rev && !queued[key] {
				doubt(key, 0)
			}
		}

		for id, part := range t.Activity.Returned {
			if key := r.Keys.Ended(t.Ref(r.Shard), id); part.Mod <= rev && !queued[key] {
				doubt(key, 0)
			}
		}

		for _, run := range t.Activity.Unreadable {
			if key := r.Keys.Queued(t.Ref(r.Shard), run); !queued[key] {
				doubt(key, 0)
			}
		}
	}

	return found
}

// LacksRecord reports whether the worker does not know that a record exists, or only
// an older version.
func (r *Records) LacksRecord(ev *store.ShardEvent) bool {
	t := r.Tasks[ev.Task]

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
		return r.WatermarkRev < ev.Mod
	}

	return false
}

// HasRecord reports whether the worker takes a record for existing.
func (r *Records) HasRecord(ev *store.ShardEvent) bool {
	t := r.Tasks[ev.Task]
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

// DifferingRuns compares what is known with active, all attempts of the shard that are active at revision
// rev. It returns those that only one of worker and etcd takes for active.
func (r *Records) DifferingRuns(active []store.ActiveKey, rev int64) (d Differences) {
	found := map[record.RunKey]int64{}
	for _, k := range active {
		found[k.RunKey] = k.Create
		if r.AttemptOf(k) == nil && len(d.Unknown) < maxDifferences {
			d.Unknown = append(d.Unknown, k)
		}
	}

	for _, t := range r.Tasks {
		for _, a := range t.Active() {
			create, ok := found[r.RunKey(t, a)]
			if (!ok || a.Create != 0 && a.Create != create) && a.Create <= rev && len(d.Gone) < maxDifferences {
				d.Gone, d.GoneOf = append(d.Gone, a), append(d.GoneOf, t)
			}
		}
	}

	return d
}

// RunKey returns the key of an attempt of t.
func (r *Records) RunKey(t *taskstate.Task, a *taskstate.Attempt) record.RunKey {
	return record.RunKey{Node: a.Node, Ref: t.Ref(r.Shard), Run: a.Run}
}

// AttemptOf returns what is known of an attempt, or of a later one of its run; nil if nothing is.
func (r *Records) AttemptOf(k store.ActiveKey) *taskstate.Attempt {
	t := r.Tasks[k.Ref.String()]
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
