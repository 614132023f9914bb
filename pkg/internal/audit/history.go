package audit

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// historyJudge judges the runs of a shard that have ended: parts, history and
// dead-letter runs.
type historyJudge struct {
	judge
	owners  *ownerJudge
	orphans *orphanHistory // of the task that is read; nil: none so far
}

// orphanHistory is the records of history of one task that is gone.
type orphanHistory struct {
	ref   record.Ref
	uid   string // of the entry that is there; "" if there is none
	keys  []string
	count int64
	first store.Seen
}

// checkPart judges how a part of a run has ended. The owner deletes the records that
// nobody needs any more.
func (j *historyJudge) checkPart(_ context.Context, _ *shardState, e *mvccpb.KeyValue, k record.ShardKey) {
	j.checkNoLease(e)

	if _, err := record.DecodeEnded(k, e.Value); err != nil {
		j.suspectUnreadable(e, fmt.Sprintf("the end of part %s of %s", k.Run, k.Ref), err)
	} else if !task.IsPart(k.Run) {
		j.suspectStrange(e)
	}
}

// checkEnded judges a record of history.
func (j *historyJudge) checkEnded(_ context.Context, s *shardState, e *mvccpb.KeyValue, k record.ShardKey) {
	if j.orphans != nil && j.orphans.ref != k.Ref {
		j.finishTask(s)
	}

	j.checkNoLease(e)
	r, err := record.DecodeEnded(k, e.Value)
	if err != nil {
		j.suspectUnreadable(e, fmt.Sprintf("a record of the history of %s", k.Ref), err)
		return
	}

	j.owners.checkDecidedByOwner(e, k.Ref, r)

	if j.hasTask(s, k.Ref, r.UID) {
		return
	}

	if j.orphans == nil {
		j.orphans = &orphanHistory{ref: k.Ref, uid: s.entries[k.Ref.String()].uid, first: seenRecord(e)}
	}

	j.orphans.count++
	if len(j.orphans.keys) < maxKeys-1 {
		j.orphans.keys = append(j.orphans.keys, string(e.Key))
	}
}

// finishTask suspects the history of one task that is gone.
func (j *historyJudge) finishTask(s *shardState) {
	orphans := j.orphans
	if j.orphans = nil; orphans == nil {
		return
	}

	state := "is gone"
	if orphans.uid != "" {
		state = "was created anew"
	}

	f := kindHistoryOrphan.newFinding(fmt.Sprintf("%s of history of task %s, which %s", countOf(orphans.count, "record"), orphans.ref, state),
		append([]string{j.keys.HistoryOf(orphans.ref)}, orphans.keys...)...)
	f.Count = orphans.count
	j.addSuspect(f, store.Seen{Key: j.keys.Entry(orphans.ref), Mod: s.entries[orphans.ref.String()].mod}, orphans.first)
}

// checkDeadLetter judges a dead-letter run: if its task is gone, nobody runs it again.
func (j *historyJudge) checkDeadLetter(_ context.Context, s *shardState, e *mvccpb.KeyValue, k record.ShardKey) {
	j.checkNoLease(e)
	w, err := record.DecodeWaiting(k, e.Value)
	if err != nil {
		j.suspectUnreadable(e, fmt.Sprintf("a dead run of %s", k.Ref), err)
		return
	}

	if j.hasTask(s, k.Ref, w.UID) {
		return
	}

	j.addSuspect(kindDeadOrphan.newFinding(fmt.Sprintf("run %s is dead, and its task %s (uid %s) is gone", k.Run, k.Ref, w.UID), string(e.Key)),
		seenRecord(e), store.Seen{Key: j.keys.Entry(k.Ref), Mod: s.entries[k.Ref.String()].mod})
}
