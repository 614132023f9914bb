package known

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// Differences are records about which an owner and etcd differ. The event is still on its way, or the watch
// has lost it.
type Differences struct {
	Records map[string]int64     // by key, the mod revision in etcd; 0: etcd has no such record
	Unknown []store.ActiveKey    // attempts that are active in etcd, and unknown to the owner
	Gone    []*taskstate.Attempt // attempts that are active for the owner, and have no record in etcd
	GoneOf  []*taskstate.Task    // the task of each attempt in Gone
	Since   time.Time            // when the differences were found
}

// NotEmpty reports whether there are any differences.
func (d *Differences) NotEmpty() bool {
	return len(d.Records)+len(d.Unknown)+len(d.Gone) > 0
}

// maxDifferences limits how many differences one comparison returns. The next comparison finds the rest.
const maxDifferences = 1000

// DifferingRecords compares what is known with the keys of all records of the shard, without its history,
// as of revision rev. It returns the keys that differ with their mod revision in etcd, or 0 if etcd has no
// such record. What the owner has learned after rev is not a difference.
func (r *Records) DifferingRecords(keys []store.ShardEvent, rev int64) map[string]int64 {
	found := map[string]int64{}
	doubt := func(key string, mod int64) {
		if len(found) < maxDifferences {
			found[key] = mod
		}
	}

	// First the records that etcd has and the owner does not know.
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

	// Then the records that the owner knows and etcd does not have.
	for t := range r.Tasks.All() {
		if t.Present && t.Mod <= rev && !entries[t.FullName()] {
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

// LacksRecord reports whether the owner does not know that a record exists, or knows only an older version.
func (r *Records) LacksRecord(ev *store.ShardEvent) bool {
	t := r.Tasks.Get(ev.Task)

	switch ev.Kind {
	case record.KindEntry:
		return t == nil || t.Mod < ev.Mod
	case record.KindQueued:
		if t == nil || t.Activity == nil {
			return true
		}
		i, waits := t.FindWaiting(ev.Run)
		return (!waits || t.Activity.Queue[i].Mod < ev.Mod) && !slices.Contains(t.Activity.Unreadable, ev.Run)

	case record.KindPart:
		return t == nil || t.Activity == nil || t.Activity.Returned[ev.Run].Mod < ev.Mod
	case record.KindWatermark:
		return r.WatermarkRev < ev.Mod
	}

	return false
}

// HasRecord reports whether a record exists according to the owner.
func (r *Records) HasRecord(ev *store.ShardEvent) bool {
	t := r.Tasks.Get(ev.Task)
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

	_, waits := t.FindWaiting(ev.Run)

	return waits || slices.Contains(t.Activity.Unreadable, ev.Run)
}

// DifferingRuns compares what is known with all attempts of the shard that are active at revision rev. It
// returns those that are active only for the owner, or only in etcd.
func (r *Records) DifferingRuns(active []store.ActiveKey, rev int64) (d Differences) {
	found := map[record.RunKey]int64{}
	for _, k := range active {
		found[k.RunKey] = k.Create
		if r.AttemptOf(k) == nil && len(d.Unknown) < maxDifferences {
			d.Unknown = append(d.Unknown, k)
		}
	}

	for t := range r.Tasks.All() {
		for _, a := range t.Active() {
			// A different create revision means that the run has had another attempt since. An attempt that
			// was created after rev is not in the listing, and is not a difference.
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

// AttemptOf returns what is known of an attempt, or of a later attempt of its run. It returns nil if
// nothing is known.
func (r *Records) AttemptOf(k store.ActiveKey) *taskstate.Attempt {
	t := r.Tasks.Get(k.Ref.String())
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
