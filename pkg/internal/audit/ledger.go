package audit

import (
	"context"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

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
