package audit

import (
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// shardLook is one shard while it is looked at.
type shardLook struct {
	id      int
	mark    record.Watermark
	markMod int64 // 0: there is none, or none that can be read
	entries map[string]inShard

	overdue int64 // tasks
	oldest  int64 // their oldest tick
	late    record.Ref

	queue   []queued // of one task
	orphans *orphans // records of history of one task that is gone
}

// lookAtShards reads the shards one after the other: watermark, entries, queue,
// ended parts, history and dead runs, each of which is judged by those before.
func (a *audit) lookAtShards() error {
	for id := range a.shards {
		s := &shardLook{id: id, entries: map[string]inShard{}}
		if err := a.lookAtMark(s); err != nil {
			return err
		}
		for _, part := range []struct {
			prefix string
			f      func(*shardLook, *mvccpb.KeyValue, record.ShardKey)
		}{
			{a.keys.Entries(id), func(s *shardLook, e *mvccpb.KeyValue, k record.ShardKey) { a.lookAtEntry(s, e, k.Ref) }},
			{a.keys.Queue(id), a.lookAtQueued},
			{a.keys.PartsIn(id), a.lookAtPart},
			{a.keys.History(id), a.lookAtEnded},
			{a.keys.Shard(id) + "dead/", a.lookAtDead},
		} {
			err := a.each(part.prefix, func(e *mvccpb.KeyValue) error {
				k, ok := a.keys.ParseShard(string(e.Key))
				if !ok {
					a.strange(e)
					return nil
				}
				part.f(s, e, k)
				return nil
			})
			if err != nil {
				return err
			}
			a.endQueue(s)
			a.endOrphans(s)
		}
		a.judgeTicks(s)
	}
	if err := a.specsWithoutEntry(); err != nil {
		return err
	}
	if err := a.lookAtKept(); err != nil {
		return err
	}
	return a.lookForStray()
}

func (a *audit) lookAtMark(s *shardLook) error {
	key := a.keys.Watermark(s.id)
	found, err := a.get([]string{key})
	if err != nil {
		return err
	}
	a.progress(len(found))
	e := found[key]
	if e == nil {
		a.suspect(kindNoMark.of(fmt.Sprintf("shard %d has no watermark", s.id), key), store.Seen{Key: key})
		return nil
	}
	a.unleased(e)
	w, err := record.DecodeWatermark(e.Value)
	if err != nil {
		a.suspect(kindBadMark.of(fmt.Sprintf("the watermark of shard %d cannot be read: %v", s.id, err), key), seen(e))
		return nil
	}
	s.mark, s.markMod = w, e.ModRevision
	if w.Time.Sub(a.at) > slack {
		a.suspect(kindMarkAhead.of(fmt.Sprintf("the watermark of shard %d is at %s, %s from now", s.id, timeText(w.Time.Time),
			w.Time.Sub(a.at).Round(time.Second)), key)).still = a.stillAhead(key)
	}
	return nil
}

// judgeTicks suspects a watermark that stands while ticks are due.
func (a *audit) judgeTicks(s *shardLook) {
	if s.overdue == 0 {
		return
	}
	key := a.keys.Watermark(s.id)
	f := kindMarkStands.of(fmt.Sprintf("%s of shard %d (owner %q) have undecided ticks: the oldest, of %s, was due %s; the watermark is at %s",
		countOf(s.overdue, "task"), s.id, a.owners[s.id].Node, s.late, a.ago(time.UnixMilli(s.oldest)), watermarkText(s.mark)), key, a.keys.Owner(s.id), a.keys.Entry(s.late))
	f.Count = s.overdue
	a.suspect(f, store.Seen{Key: key, Mod: s.markMod}, store.Seen{Key: a.keys.Owner(s.id), Mod: a.owners[s.id].Fence})
}

// lookForStray looks for shards that the cluster does not have.
func (a *audit) lookForStray() error {
	dirs := map[string]bool{}
	return a.eachIn(a.keys.Shard(a.shards), clientv3.GetPrefixRangeEnd(a.keys.Shards()), func(e *mvccpb.KeyValue) error {
		dir, _, _ := strings.Cut(strings.TrimPrefix(string(e.Key), a.keys.Shards()), "/")
		if !dirs[dir] && len(dirs) < mostOfAKind {
			dirs[dir] = true
			a.suspect(kindStray.of(fmt.Sprintf("records of shard %s, and the cluster has %d shards", dir, a.shards), string(e.Key)), seen(e))
		}
		return nil
	})
}

// lookAtPart judges how a part of a run has ended. What nobody needs any more the
// owner deletes.
func (a *audit) lookAtPart(_ *shardLook, e *mvccpb.KeyValue, k record.ShardKey) {
	a.unleased(e)
	if _, err := record.DecodeEnded(k, e.Value); err != nil {
		a.unreadable(e, fmt.Sprintf("the end of part %s of %s", k.Run, k.Ref), err)
	} else if !task.IsPart(k.Run) {
		a.strange(e)
	}
}

// orphans are records of history of a task that is gone.
type orphans struct {
	ref   record.Ref
	uid   string // of the entry that is there; "" if none is
	keys  []string
	count int64
	first store.Seen
}

func (a *audit) lookAtEnded(s *shardLook, e *mvccpb.KeyValue, k record.ShardKey) {
	if s.orphans != nil && s.orphans.ref != k.Ref {
		a.endOrphans(s)
	}
	a.unleased(e)
	r, err := record.DecodeEnded(k, e.Value)
	if err != nil {
		a.unreadable(e, fmt.Sprintf("a record of the history of %s", k.Ref), err)
		return
	}
	a.lookForTwoOwners(e, k.Ref, r)
	if a.has(s, k.Ref, r.UID) {
		return
	}
	if s.orphans == nil {
		s.orphans = &orphans{ref: k.Ref, uid: s.entries[k.Ref.String()].uid, first: seen(e)}
	}
	o := s.orphans
	if o.count++; len(o.keys) < mostKeys-1 {
		o.keys = append(o.keys, string(e.Key))
	}
}

func (a *audit) endOrphans(s *shardLook) {
	o := s.orphans
	if s.orphans = nil; o == nil {
		return
	}
	is := "is gone"
	if o.uid != "" {
		is = "was created anew"
	}
	f := kindHistoryOrphan.of(fmt.Sprintf("%s of history of task %s, which %s", countOf(o.count, "record"), o.ref, is),
		append([]string{a.keys.HistoryOf(o.ref)}, o.keys...)...)
	f.Count = o.count
	a.suspect(f, store.Seen{Key: a.keys.Entry(o.ref), Mod: s.entries[o.ref.String()].mod}, o.first)
}

// has reports whether a record of a task with this uid belongs to an entry of
// its shard, or to a spec that has lost its entry: that is another finding, and
// what the record says is not to be lost with it.
func (a *audit) has(s *shardLook, ref record.Ref, uid string) bool {
	entry, there := s.entries[ref.String()]
	return there && (entry.bad || entry.uid == uid) || a.specs.mayBe(ref, uid)
}

// lookForTwoOwners looks for a record of a decision that was written when its
// node did not own the shard: under the present fence, and by another than its
// owner. Only what the deciding commit itself wrote, and nobody since, proves it.
func (a *audit) lookForTwoOwners(e *mvccpb.KeyValue, ref record.Ref, r task.Run) {
	o := a.owners[ref.Shard]
	if r.Owner == "" || o.Node == "" || r.Owner == o.Node || e.CreateRevision <= o.Fence || r.Attempt > 1 || len(r.Attempts) > 0 {
		return
	}
	decided := r.State == task.Missed || r.State == task.Skipped || r.State.Active() && r.DispatchedAt.Equal(r.CreatedAt.Time)
	if !decided || !(r.Trigger == task.TriggerSchedule || r.Trigger == task.TriggerCatchUp) {
		return
	}
	f := kindTwoOwners.of(fmt.Sprintf("node %s decided a tick of shard %d at revision %d, and node %s has owned it since revision %d",
		r.Owner, ref.Shard, e.CreateRevision, o.Node, o.Fence), string(e.Key), a.keys.Owner(ref.Shard))
	f.Revision = e.ModRevision
	a.suspect(f, store.Seen{Key: a.keys.Owner(ref.Shard), Mod: o.Fence}) // the record is proof, even if it goes
}

func countOf(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

func timeText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func watermarkText(w record.Watermark) string {
	if w.Last == "" {
		return timeText(w.Time.Time)
	}
	return timeText(w.Time.Time) + " up to " + w.Last
}
