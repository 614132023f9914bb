package record

import (
	"cmp"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Account is everything that etcd contains about a task around a period of time, read at one
// revision.
type Account struct {
	Task      *task.Task  // nil: absent or unreadable
	Entry     *task.Entry // nil: absent or unreadable
	EntryMade int64       // create revision of the entry; 0: absent
	Versions  []task.Task // former versions, the oldest first
	Deleted   *Tombstone  // nil: there is no readable tombstone
	Runs      []task.Run  // waiting and active runs, and those that ended around the period; the newest first
	Late      []task.Run  // late results of the period
	Dead      []string    // ids of dead runs
	Ledger    [][]byte    // the values of all chunks of the ledger, in the order of their keys; package ledger reads them
	Newer     int64       // the number of ended runs that are newer than all in Runs
	// CutAt is zero unless the period has too many ended runs. Then it is the time of the last
	// tick up to which they were read.
	CutAt     task.Time
	Unread    []Period      // ticks whose records may exist but were not read, because there are too many
	Broken    []string      // keys of records that cannot be read
	Owner     *Owner        // nil: the shard never had an owner
	Watermark *Watermark    // nil: absent or unreadable
	Nodes     []task.Node   // those that are present
	Freezes   *task.Freezes // nil: absent or unreadable
	Revision  int64         // of all reads
}

// Period is a time from one tick to another, both inclusive.
type Period struct{ From, To task.Time }

// countBroken records that a record cannot be read, and reports whether err says so.
func (a *Account) countBroken(e *mvccpb.KeyValue, err error) bool {
	if err != nil {
		a.Broken = append(a.Broken, string(e.Key))
	}
	return err != nil
}

// ReadTask decodes the records of the task itself.
func (a *Account) ReadTask(keys Keys, ref Ref, spec, entry, tomb *mvccpb.KeyValue, versions []*mvccpb.KeyValue) {
	if spec != nil {
		if t, err := DecodeTask(spec.Value, spec.ModRevision); !a.countBroken(spec, err) {
			a.Task = &t
		}
	}

	if entry != nil {
		a.EntryMade = entry.CreateRevision
		if e, err := DecodeEntry(entry.Value); !a.countBroken(entry, err) {
			a.Entry = &e
		}
	}

	if tomb != nil {
		if d, err := DecodeTombstone(tomb); !a.countBroken(tomb, err) {
			a.Deleted = d
		}
	}

	for _, v := range versions {
		if t, err := DecodeTask(v.Value, v.ModRevision); !a.countBroken(v, err) {
			a.Versions = append(a.Versions, t)
		}
	}
}

// ReadShard decodes the records of the task's shard and the freezes.
func (a *Account) ReadShard(keys Keys, owner, watermark, freezes *mvccpb.KeyValue) {
	if owner != nil {
		if list := DecodeOwners(keys, []*mvccpb.KeyValue{owner}); len(list) == 1 {
			a.Owner = &list[0]
		}
	}

	if watermark != nil {
		if w, err := DecodeWatermark(watermark.Value); !a.countBroken(watermark, err) {
			a.Watermark = &w
		}
	}

	if freezes != nil {
		if f, err := Decode[task.Freezes](freezes.Value); !a.countBroken(freezes, err) {
			a.Freezes = &f
		}
	}
}

// ReadRuns decodes records of runs into byID, and late results into Late.
func (a *Account) ReadRuns(keys Keys, all []*mvccpb.KeyValue, byID map[string]task.Run) {
	for _, e := range all {
		k, ok := keys.ParseShard(string(e.Key))
		if !ok {
			continue
		}

		if k.Late {
			if r, err := DecodeEnded(k, e.Value); !a.countBroken(e, err) {
				a.Late = append(a.Late, r)
			}
			continue
		}

		if r, readable := DecodeRun(keys, e); readable {
			byID[r.ID] = r
			continue
		}

		a.Broken = append(a.Broken, string(e.Key))
	}
}

// LastTick returns the time of the last tick to which the history records belong.
func LastTick(keys Keys, all []*mvccpb.KeyValue) task.Time {
	last := NewestRun(keys, all)
	switch {
	case last == nil:
		return task.Time{}
	case last.Count > 1:
		return last.Last
	}

	return last.ScheduledTime
}

// SourcesAccount is what an account of a dependent contains in addition.
type SourcesAccount struct {
	Triggers []Pending // those that wait, in the order in which they were sent
	Sources  []SourceAccount
}

// SourceAccount is what is read of a source.
type SourceAccount struct {
	Task string
	Gone bool       // there is no such task
	Runs []task.Run // its newest ended runs of the time, the newest first
}

// DecodeTriggers decodes triggers, and sorts them by their create revisions. It leaves out those that cannot be read.
func DecodeTriggers(keys Keys, all []*mvccpb.KeyValue) (list []Pending) {
	for _, e := range all {
		k, ok := keys.ParseShard(string(e.Key))
		if !ok || k.Kind != KindTrigger {
			continue
		}
		if p, err := DecodePending(k, e); err == nil {
			list = append(list, p)
		}
	}

	slices.SortStableFunc(list, func(a, b Pending) int { return cmp.Compare(a.Create, b.Create) })

	return list
}
