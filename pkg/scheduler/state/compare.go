package state

import (
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Differences are records about which an owner and etcd differ. The event is still on its way, or the watch
// has lost it.
type Differences struct {
	Records map[string]int64  // by key, the mod revision in etcd; 0: etcd has no such record
	Unknown []store.ActiveKey // attempts that are active in etcd, and unknown to the owner
	Gone    []*Attempt        // attempts that are active for the owner, and have no record in etcd
	GoneOf  []*Task           // the task of each attempt in Gone
	Since   time.Time         // when the differences were found
}

// NotEmpty reports whether there are any differences.
func (d *Differences) NotEmpty() bool {
	return len(d.Records)+len(d.Unknown)+len(d.Gone) > 0
}

// maxDifferences limits how many differences one comparison returns. The next comparison finds the rest.
const maxDifferences = 1000

// DifferingRecords compares what is known with the keys of all records of the shard, without its history,
// as of revision rev. It returns the keys that differ with their mod revision in etcd, or 0 if etcd has no
// such record. Changes that the owner has learned of after rev are not differences.
func (r *Records) DifferingRecords(keys []store.ShardEvent, rev int64) map[string]int64 {
	found := map[string]int64{}
	doubt := func(key string, mod int64) {
		if len(found) < maxDifferences {
			found[key] = mod
		}
	}

	// First the records that etcd has and the owner does not know.
	entries, queued, links := make(map[string]bool, len(keys)), map[string]bool{}, map[string]bool{}
	for i := range keys {
		ev := &keys[i]
		switch ev.Kind {
		case record.KindEntry:
			entries[ev.Task] = true
		case record.KindQueued, record.KindPart:
			queued[ev.Key] = true
		case record.KindSubscriber, record.KindSent, record.KindTrigger:
			links[ev.Key] = true
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

	r.Links.eachRecord(r.Keys, r.Shard, func(key string, mod int64) {
		if mod <= rev && !links[key] {
			doubt(key, 0)
		}
	})

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

	return r.Links.lacks(ev)
}

// HasRecord reports whether a record exists according to the owner.
func (r *Records) HasRecord(ev *store.ShardEvent) bool {
	t := r.Tasks.Get(ev.Task)
	switch {
	case r.Links.has(ev):
		return true
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
func (r *Records) RunKey(t *Task, a *Attempt) record.RunKey {
	return record.RunKey{Node: a.Node, Ref: t.Ref(r.Shard), Run: a.Run}
}

// AttemptOf returns what is known of an attempt, or of a later attempt of its run. It returns nil if
// nothing is known.
func (r *Records) AttemptOf(k store.ActiveKey) *Attempt {
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

// RecordRepair decides which records an owner applies again after differences have persisted: read the records that
// Keys returns, and ask Judge about each of them, in the same order.
//
// A repaired entry gets no ticks that the watermark has passed meanwhile. The watermark covers the entry, so these
// ticks count as decided, and deciding them could decide a tick twice (G3).
//
// A queue record is applied only if the task is known in its current version. Otherwise the run would look like one of
// a task that no longer exists, and would be deleted.
type RecordRepair struct {
	known     *Records
	differing map[string]int64 // see Differences.Records
	entries   map[string]int64 // the entries that were read, by task: their mod revisions
}

// RepairRecords begins the repair of differences.
func (r *Records) RepairRecords(d Differences) *RecordRepair {
	return &RecordRepair{known: r, differing: d.Records, entries: map[string]int64{}}
}

// Keys returns the records to read: those that still differ, because the watch may have delivered some events
// meanwhile, and the entries of waiting runs that differ. Entries come before queue records.
func (r *RecordRepair) Keys() []string {
	var keys []string

	// entries holds the keys of the entries of waiting runs.
	entries := map[string]bool{}
	for key, mod := range r.differing {
		sk, ok := r.known.Keys.ParseShard(key)
		if !ok {
			continue
		}

		ev := store.ShardEvent{ShardKey: sk, Key: key, Task: sk.Ref.String(), Mod: mod}
		if mod > 0 && r.known.LacksRecord(&ev) || mod == 0 && r.known.HasRecord(&ev) {
			keys = append(keys, key)
			if sk.Kind == record.KindQueued {
				entries[r.known.Keys.Entry(sk.Ref)] = true
			}
		}
	}

	keys = slices.AppendSeq(keys, maps.Keys(entries))
	slices.Sort(keys)
	keys = slices.Compact(keys)

	// In reverse order, entries ("tasks/") come before queue records ("queue/").
	slices.Reverse(keys)

	return keys
}

// Verdict is what an owner does with a record that it has read again.
type Verdict int

const (
	LeaveRecord      Verdict = iota // nothing: it does not differ any more, or a later event brings it
	ApplyRecord                     // apply it: the watch has lost its event
	ForeignWatermark                // open the shard again: another worker has written the watermark
)

// Judge decides about a record as etcd has it now. The caller applies it before it asks about the next one.
func (r *RecordRepair) Judge(ev *store.ShardEvent) Verdict {
	mod, differs := r.differing[ev.Key]

	if ev.Kind == record.KindEntry && !ev.Deleted {
		r.entries[ev.Task] = ev.Mod
	}

	t := r.known.Tasks.Get(ev.Task)
	switch {
	case !differs:
		// It was read only because of a waiting run.
		return LeaveRecord
	case ev.Kind == record.KindQueued && !ev.Deleted && r.entries[ev.Task] > 0 && (t == nil || t.Mod < r.entries[ev.Task]):
		// The task is unknown or older than its entry in etcd. The watch or the next comparison brings the entry.
		return LeaveRecord
	case ev.Kind == record.KindWatermark:
		if r.known.WatermarkRev < ev.Mod {
			return ForeignWatermark
		}
		return LeaveRecord
	case ev.Deleted && mod == 0 && r.known.HasRecord(ev), !ev.Deleted && ev.Mod == mod && r.known.LacksRecord(ev):
		// Still the same difference: etcd has changed no further, and the watch has delivered nothing.
		return ApplyRecord
	}

	return LeaveRecord
}

// RunRepair decides which attempts an owner ends or adds after differences have persisted: read the attempts of Keys,
// and ask Ended and Added about each of them by its index in Keys.
type RunRepair struct {
	Keys []record.RunKey

	known *Records
	diff  Differences
	gone  map[int]int // index in Keys to index in Differences.Gone
}

// RepairRuns begins the repair of differences between active attempts. Keys holds those that still differ.
func (r *Records) RepairRuns(d Differences) *RunRepair {
	p := &RunRepair{known: r, diff: d, gone: map[int]int{}}
	for i, a := range d.Gone {
		if slices.Contains(d.GoneOf[i].Active(), a) {
			p.gone[len(p.Keys)] = i
			p.Keys = append(p.Keys, r.RunKey(d.GoneOf[i], a))
		}
	}

	for _, k := range d.Unknown {
		if r.AttemptOf(k) == nil {
			p.Keys = append(p.Keys, k.RunKey)
		}
	}

	return p
}

// MayEnd reports whether Ended can return an attempt.
func (r *RunRepair) MayEnd() bool { return len(r.gone) > 0 }

// Ended returns the attempt that has ended and its task, or nil: the record at index i of Keys is gone, or belongs to a
// later attempt. The end happened at or before the revision of the reading.
func (r *RunRepair) Ended(i int, v store.Sighting) (*Task, *Attempt) {
	g, isGone := r.gone[i]
	if !isGone {
		return nil, nil
	}

	if a := r.diff.Gone[g]; v.Gone || a.Create != 0 && v.Create != a.Create {
		return r.diff.GoneOf[g], a
	}

	return nil, nil
}

// Added reports whether the attempt at index i of Keys is still active in etcd, and still unknown to the owner.
func (r *RunRepair) Added(i int, v store.Sighting) bool {
	if _, isGone := r.gone[i]; isGone || v.Gone {
		return false
	}

	u := slices.IndexFunc(r.diff.Unknown, func(o store.ActiveKey) bool { return o.RunKey == r.Keys[i] })

	return r.diff.Unknown[u].Create == v.Create && r.known.AttemptOf(r.diff.Unknown[u]) == nil
}

// Orphans finds records of tasks that no longer exist on a page of the shard's history. They are deleted, and a deleted
// record cannot be restored. So the entries are read again first: read Entries, and pass each result to Of.
type Orphans struct {
	Entries []string // keys

	known    *Records
	suspects map[string][]store.ShardEvent // by the key of the entry of their task's name
}

// FindOrphans returns the records of a page that seem to belong to no task. It leaves out records after revision
// applied, which the watch has not delivered yet.
func (r *Records) FindOrphans(page []store.ShardEvent, applied int64) *Orphans {
	o := &Orphans{known: r, suspects: map[string][]store.ShardEvent{}}
	for _, ev := range page {
		if t := r.Tasks.Get(ev.Task); ev.Mod > applied || t != nil && !t.Orphan(ev.Run) {
			continue
		}

		key := r.Keys.Entry(ev.Ref)
		if o.suspects[key] == nil {
			o.Entries = append(o.Entries, key)
		}

		o.suspects[key] = append(o.suspects[key], ev)
	}

	return o
}

// Of returns the records that belong to no task, of those of one name. entry is the entry as etcd has it now.
func (o *Orphans) Of(entry *store.ShardEvent) (orphans []store.ShardEvent) {
	parts := &o.known.parts

	// If the entry cannot be read, it is unknown to which task the records belong. Leave them.
	if !entry.Deleted && parts.Split(entry.Value) != nil {
		return nil
	}

	for _, ev := range o.suspects[entry.Key] {
		if entry.Deleted || !task.RunBelongs(ev.Run, string(parts.UID)) {
			orphans = append(orphans, ev)
		}
	}

	return orphans
}
