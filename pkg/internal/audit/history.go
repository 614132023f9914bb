package audit

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// historyJudge judges the runs of a shard that have ended: parts, history and dead-letter runs.
type historyJudge struct {
	judge
	owners  *ownerJudge
	orphans *orphanHistory // of the task that is being read; nil: none so far
}

// orphanHistory collects the history records of one task that is gone. They become one finding.
type orphanHistory struct {
	ref   record.Ref
	uid   string   // of the entry that now has this name; "" if there is none
	keys  []string // the first few of them
	count int64
	first store.Seen // one record is a fact of the finding, for all of them
}

// checkPart judges the record of a part's end. Parts that are no longer needed are not findings, because the owner
// deletes them.
func (j *historyJudge) checkPart(_ context.Context, _ *shardState, e *mvccpb.KeyValue, k record.ShardKey) {
	j.checkNoLease(e)

	if _, err := record.DecodeEnded(k, e.Value); err != nil {
		j.suspectUnreadable(e, fmt.Sprintf("the end of part %s of %s", k.Run, k.Ref), err)
	} else if !task.IsPart(k.Run) {
		j.suspectUnknownKey(e)
	}
}

// checkEnded judges a history record. Records of one task follow each other, so those of a task that is gone are
// collected until the next task begins.
func (j *historyJudge) checkEnded(_ context.Context, s *shardState, e *mvccpb.KeyValue, k record.ShardKey) {
	if j.orphans != nil && j.orphans.ref != k.Ref {
		j.finishTask(s)
	}

	j.checkNoLease(e)
	s.noteEnded(e)

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

// finishTask adds the collected history of one task that is gone as a suspect.
func (j *historyJudge) finishTask(s *shardState) {
	orphans := j.orphans
	if j.orphans = nil; orphans == nil {
		return
	}

	state := "was deleted"
	if orphans.uid != "" {
		state = "was created again"
	}

	f := kindHistoryOrphan.newFinding(fmt.Sprintf("%s of history of task %s, which %s", countOf(orphans.count, "record"), orphans.ref, state),
		append([]string{j.keys.HistoryOf(orphans.ref)}, orphans.keys...)...)
	f.Count = orphans.count
	j.addSuspect(f, store.Seen{Key: j.keys.Entry(orphans.ref), Mod: s.entries[orphans.ref.String()].mod}, orphans.first)
}

// checkDeadLetter judges a dead-letter run. If its task is gone, nobody can retry it.
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

	j.addSuspect(kindDeadOrphan.newFinding(fmt.Sprintf("run %s is dead, but its task %s (uid %s) was deleted", k.Run, k.Ref, w.UID), string(e.Key)),
		seenRecord(e), store.Seen{Key: j.keys.Entry(k.Ref), Mod: s.entries[k.Ref.String()].mod})
}
