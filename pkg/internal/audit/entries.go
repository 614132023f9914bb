package audit

import (
	"context"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// entryJudge judges the entries of a shard by the specs of their tasks.
type entryJudge struct {
	judge
	ticks *tickJudge
}

// checkEntry judges an entry, and remembers what its queue and history are judged by.
func (j *entryJudge) checkEntry(ctx context.Context, s *shardState, e *mvccpb.KeyValue, k record.ShardKey) {
	ref := k.Ref
	j.checkNoLease(e)

	entry, err := readEntry(e.Value)
	if err != nil {
		j.suspectUnreadable(e, "the entry of "+ref.String(), err)
	}

	s.entries[ref.String()] = entryState{
		uid: entry.UID, mod: e.ModRevision, target: entry.Target, needsKey: entry.Action.NeedsKey(), unreadable: err != nil,
	}

	i, hasSpec := j.cluster.specs.findSpec(ref)
	switch home := j.ref(ref.Namespace, ref.Name); {
	case home.Shard != ref.Shard:
		j.addSuspect(kindWrongShard.newFinding(fmt.Sprintf("the entry of %s is in shard %d, and belongs into shard %d", ref, ref.Shard, home.Shard), string(e.Key)), seenRecord(e))
		return
	case !hasSpec:
		j.addSuspect(kindNoSpec.newFinding(fmt.Sprintf("task %s has an entry and no spec", ref), string(e.Key), j.keys.Spec(ref)),
			seenRecord(e), store.Seen{Key: j.keys.Spec(ref)})
	default:
		j.cluster.specs.hasEntry[i] = true
		if err == nil && j.cluster.specs.specs[i].uid != xxhash.Sum64String(entry.UID) {
			j.suspectUIDs(ctx, e, ref)
		}
	}

	if err == nil && entry.Ticks() && !usedUp(entry) {
		j.ticks.checkTicks(s, ref, entry, e.CreateRevision)
	}
}

// suspectUIDs suspects a spec whose uid differs from its entry's. Both are written
// together, and neither may have changed at the second read.
func (j *entryJudge) suspectUIDs(ctx context.Context, e *mvccpb.KeyValue, ref record.Ref) {
	key := j.keys.Spec(ref)
	found, err := j.reader.readKeys(ctx, key)
	spec := found[key]
	if err != nil || spec == nil {
		return // it is deleted meanwhile: no finding
	}

	uid, err := specUID(spec.Value)
	if err != nil || uid == uidOf(e.Value) {
		return // readSpecs has suspected it as unreadable
	}

	j.addSuspect(kindUIDs.newFinding(fmt.Sprintf("the spec of %s has uid %q, its entry %q", ref, uid, uidOf(e.Value)), string(e.Key), key),
		seenRecord(e), seenRecord(spec))
}

// uidOf returns the uid in an entry; "" if it cannot be read.
func uidOf(value []byte) string {
	e, _ := record.DecodeEntry(value)
	return e.UID
}

// usedUp reports whether an entry has had as many runs as it may.
func usedUp(e task.Entry) bool { return e.MaxRuns > 0 && e.Own != nil && e.Own.Runs >= e.MaxRuns }

// maxEntrySize is how large an entry may be that an owner reads.
const maxEntrySize = 2 * task.MaxAction

// readEntry reads an entry as its owner does: what the owner would refuse is an error.
func readEntry(value []byte) (task.Entry, error) {
	if len(value) > maxEntrySize {
		return task.Entry{}, fmt.Errorf("%d bytes; at most %d are read", len(value), maxEntrySize)
	}

	e, err := record.DecodeEntry(value)
	if err != nil {
		return e, err
	}

	spec := task.Spec{
		Name: "name", Namespace: "namespace", Action: e.Action, Schedule: e.Schedule, Timezone: e.Timezone,
		Timeout: e.Timeout, KillGrace: e.KillGrace, Overlap: e.Overlap, Missed: e.Missed, Retry: e.Retry,
		Target: e.Target, History: e.History, Output: e.Output, Start: e.Start, End: e.End, Jitter: e.Jitter,
		MaxRuns: e.MaxRuns, TTL: e.TTL, Queue: e.Queue, MaxActive: e.MaxActive, Deadline: e.Deadline,
		PauseAfter: e.PauseAfter, KillSignal: e.KillSignal, Success: e.Success,
	}

	if err := schedule.Check(e.Timing()); err != nil {
		return e, err
	}

	return e, spec.Validate()
}
