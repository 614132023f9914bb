package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// queueJudge judges the waiting runs of a shard, those of one task together.
type queueJudge struct {
	judge
	waiting []queuedRun   // of the task that is being read
	limits  *access.Table // judges the labels of nodes; nil until it is needed
	data    *runDataJudge
}

// queuedRun is a queue record with the key and revision at which it was read.
type queuedRun struct {
	task.Waiting
	ref record.Ref
	store.Seen
}

// maxQueued is how many queue records of one task are judged together.
const maxQueued = 1000

// checkQueued judges one queue record. It collects the records of a task for finishTask.
func (j *queueJudge) checkQueued(_ context.Context, s *shardState, e *mvccpb.KeyValue, k record.ShardKey) {
	if len(j.waiting) > 0 && j.waiting[0].ref != k.Ref {
		j.finishTask(s)
	}

	j.checkNoLease(e)
	w, err := record.DecodeWaiting(k, e.Value)
	if err != nil {
		j.suspectUnreadable(e, fmt.Sprintf("a waiting run of %s", k.Ref), err)
		return
	}

	entry, hasEntry := s.entries[k.Ref.String()]

	if !j.hasTask(s, k.Ref, w.UID) {
		j.addSuspect(kindQueueOrphan.newFinding(fmt.Sprintf("run %s waits, but its task %s (uid %s) was deleted", k.Run, k.Ref, w.UID), string(e.Key)),
			seenRecord(e), store.Seen{Key: j.keys.Entry(k.Ref), Mod: entry.mod})
		return
	}

	j.data.addRun(e, k, w.Fan)
	if hasEntry && len(j.waiting) < maxQueued {
		j.waiting = append(j.waiting, queuedRun{w, k.Ref, seenRecord(e)})
	}
}

// finishTask judges the queue of one task. Its first run is stuck if all of its runs are due, none is active, a
// node could run each of them, and the shard has had its owner for a while. A run is not stuck if it is frozen, if it waits
// for the catch-up rate, or if its parts are under way.
func (j *queueJudge) finishTask(s *shardState) {
	all := j.waiting
	j.waiting = j.waiting[:0]

	if len(all) == 0 {
		return
	}

	ref := all[0].ref
	waitsAsItShould := func(q queuedRun) bool { return q.Reason == task.ReasonCatchUp || q.UnderWay() }
	if j.cluster.freezes.Of(ref.Namespace) != nil || slices.ContainsFunc(all, waitsAsItShould) {
		return
	}

	// A new owner needs some time to dispatch what waits.
	entry, o := s.entries[ref.String()], j.cluster.owners[s.id]
	if entry.unreadable || j.cluster.active[hashOf(ref)] || j.reader.timeSince(o.Since.Time) < timeTolerance {
		return
	}

	// A run whose request named a node waits for that node, and the others may wait behind it.
	mayWait := func(q queuedRun) bool {
		return j.dueFor(q.Waiting) < timeTolerance || !j.hasTaker(ref.Namespace, entry, q.TargetNode)
	}
	if slices.ContainsFunc(all, mayWait) {
		return
	}

	first, ownerKey := all[0], j.keys.Owner(s.id)
	f := kindStuck.newFinding(fmt.Sprintf("run %s of %s waits (%s), and has been due since %s", first.ID, ref, first.Reason,
		j.dueFor(first.Waiting).Round(time.Second)), first.Key, ownerKey)
	f.Count = int64(len(all))
	j.suspectWith(f, taskStillIdle{j.reader.store, ref}, first.Seen, store.Seen{Key: ownerKey, Mod: o.Fence})
}

// dueFor returns for how long a run could have been dispatched.
func (j *queueJudge) dueFor(w task.Waiting) time.Duration {
	since := w.NotBefore.Time
	if since.IsZero() {
		since = w.CreatedAt.Time
	}
	return j.reader.timeSince(since)
}

// hasTaker reports whether some node could run a task of a namespace. If the request of the run named a node, only that one
// can, whatever the target of the task is. If a selector compares measured facts, the answer is false, because it is not
// known for how long a node has matched.
func (j *queueJudge) hasTaker(namespace string, e entryState, targetNode string) bool {
	if j.limits == nil {
		j.limits, _ = access.Compile(access.Records{NodeLimits: j.cluster.limits})
	}

	var nodes []task.Node
	for _, n := range j.cluster.nodes {
		if targetNode == "" || n.Name == targetNode {
			nodes = append(nodes, j.limits.LimitNode(n.Node))
		}
	}

	target := e.target
	if targetNode != "" {
		target = task.Target{}
	}
	target.Selector = access.JoinSelector(j.cluster.namespaces[namespace], target.Selector)

	return !task.ComparesInSelector(target.Selector) && len(target.Takers(nodes, e.needsKey)) > 0
}

// taskStillIdle confirms that a task still has no active run.
type taskStillIdle struct {
	store *store.Store
	ref   record.Ref
}

func (t taskStillIdle) stillHolds(ctx context.Context) (bool, error) {
	active, err := t.store.ActiveOf(ctx, t.ref)
	return len(active) == 0, err
}

// historyJudge judges the runs of a shard that have ended: parts, history and dead-letter runs.
type historyJudge struct {
	judge
	owners  *ownerJudge
	data    *runDataJudge
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
		j.data.addRun(e, k, w.Fan)
		return
	}

	j.addSuspect(kindDeadOrphan.newFinding(fmt.Sprintf("run %s is dead, but its task %s (uid %s) was deleted", k.Run, k.Ref, w.UID), string(e.Key)),
		seenRecord(e), store.Seen{Key: j.keys.Entry(k.Ref), Mod: s.entries[k.Ref.String()].mod})
}

// ledgerJudge judges the ledgers of the tasks of a shard, after their histories. Each run is in one of the two (G31).
type ledgerJudge struct {
	judge
	orphans *orphanChunks // of the task that is being read; nil: none so far
}

// orphanChunks collects the chunks of one task that is gone. They become one finding.
type orphanChunks struct {
	ref   record.Ref
	uid   string   // of the entry that now has this name; "" if there is none
	keys  []string // the first few of them
	count int64
	first store.Seen // one chunk is a fact of the finding, for all of them
}

// ledgersIn is the prefix of the ledgers of the tasks of a shard.
func ledgersIn(keys record.Keys, shard int) string {
	return keys.Ledgers() + record.ShardName(shard) + "/"
}

// parseLedgerKey returns the task in the key of a chunk, or false if it is not one.
func parseLedgerKey(keys record.Keys, shard int, key string) (record.Ref, bool) {
	rest, ok := strings.CutPrefix(key, ledgersIn(keys, shard))
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return record.Ref{}, false
	}

	return record.Ref{Namespace: parts[0], Name: parts[1], Shard: shard}, true
}

// noteEnded remembers a history record, to compare the ledger with it.
func (s *shardState) noteEnded(e *mvccpb.KeyValue) {
	if s.ended == nil {
		s.ended = map[uint64]int64{}
	}
	s.ended[xxhash.Sum64(e.Key)] = e.ModRevision
}

// checkLedgers judges the chunks of all ledgers of a shard.
func (j *ledgerJudge) checkLedgers(ctx context.Context, s *shardState) error {
	err := j.reader.eachRecord(ctx, ledgersIn(j.keys, s.id), func(_ context.Context, e *mvccpb.KeyValue) error {
		ref, ok := parseLedgerKey(j.keys, s.id, string(e.Key))
		if !ok {
			j.suspectUnknownKey(e)
			return nil
		}

		j.checkChunk(s, ref, e)

		return nil
	})

	j.finishTask(s)

	return err
}

// checkChunk judges a chunk. Chunks of one task follow each other, so those of a task that is gone are collected until the
// next task begins.
func (j *ledgerJudge) checkChunk(s *shardState, ref record.Ref, e *mvccpb.KeyValue) {
	if j.orphans != nil && j.orphans.ref != ref {
		j.finishTask(s)
	}

	j.checkNoLease(e)

	c, _, err := ledger.Decode(e.Value)
	if err != nil {
		j.suspectUnreadable(e, fmt.Sprintf("a chunk of the ledger of %s", ref), err)
		return
	}

	if !j.hasTask(s, ref, c.UID) {
		j.collectOrphan(s, ref, e)
		return
	}

	// The history was read at the same revision, unless etcd has compacted that meanwhile. Then the second read shows that
	// the record is gone.
	for _, line := range ledger.NewBook(c.UID, [][]byte{e.Value}).Lines {
		key := j.keys.Ended(ref, line.Run)
		mod, kept := s.ended[xxhash.Sum64String(key)]
		if line.Run == "" || task.IsPart(line.Run) || !kept {
			continue
		}

		j.addSuspect(kindCountedTwice.newFinding(fmt.Sprintf("run %s of task %s is in the ledger and in the history", line.Run, ref), string(e.Key), key),
			seenRecord(e), store.Seen{Key: key, Mod: mod})
	}
}

// collectOrphan notes a chunk of a task that is gone.
func (j *ledgerJudge) collectOrphan(s *shardState, ref record.Ref, e *mvccpb.KeyValue) {
	if j.orphans == nil {
		j.orphans = &orphanChunks{ref: ref, uid: s.entries[ref.String()].uid, first: seenRecord(e)}
	}

	j.orphans.count++
	if len(j.orphans.keys) < maxKeys-1 {
		j.orphans.keys = append(j.orphans.keys, string(e.Key))
	}
}

// finishTask adds the collected chunks of one task that is gone as a suspect.
func (j *ledgerJudge) finishTask(s *shardState) {
	orphans := j.orphans
	if j.orphans = nil; orphans == nil {
		return
	}

	state := "was deleted"
	if orphans.uid != "" {
		state = "was created again"
	}

	f := kindLedgerOrphan.newFinding(fmt.Sprintf("%s of the ledger of task %s, which %s", countOf(orphans.count, "chunk"), orphans.ref, state),
		append([]string{j.keys.LedgerOf(orphans.ref)}, orphans.keys...)...)
	f.Count = orphans.count
	j.addSuspect(f, store.Seen{Key: j.keys.Entry(orphans.ref), Mod: s.entries[orphans.ref.String()].mod}, orphans.first)
}
