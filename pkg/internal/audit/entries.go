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

// entryJudge compares the entries of a shard with the specs of their tasks.
type entryJudge struct {
	judge
	ticks *tickJudge
}

// checkEntry judges an entry, and stores in s what its queue and history are compared with.
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

	// Compare the entry with the spec of its task.
	i, hasSpec := j.cluster.specs.findSpec(ref)
	switch home := j.ref(ref.Namespace, ref.Name); {
	case home.Shard != ref.Shard:
		j.addSuspect(kindWrongShard.newFinding(fmt.Sprintf("the entry of %s is in shard %d, but belongs to shard %d", ref, ref.Shard, home.Shard), string(e.Key)), seenRecord(e))
		return
	case !hasSpec:
		j.addSuspect(kindNoSpec.newFinding(fmt.Sprintf("task %s has an entry but no spec", ref), string(e.Key), j.keys.Spec(ref)),
			seenRecord(e), store.Seen{Key: j.keys.Spec(ref)})
	default:
		j.cluster.specs.hasEntry[i] = true
		if err == nil && j.cluster.specs.specs[i].uid != xxhash.Sum64String(entry.UID) {
			j.suspectUIDs(ctx, e, ref)
		}
	}

	// Ticks are judged only for an entry that its owner can read.
	if err == nil && entry.Ticks() && !usedUp(entry) {
		j.ticks.checkTicks(s, ref, entry, e.CreateRevision)
	}
}

// suspectUIDs suspects a spec whose uid differs from its entry's. One transaction writes both, so they must agree.
// It reads the spec, because the set of specs contains only hashes.
func (j *entryJudge) suspectUIDs(ctx context.Context, e *mvccpb.KeyValue, ref record.Ref) {
	key := j.keys.Spec(ref)
	found, err := j.reader.readKeys(ctx, key)
	spec := found[key]
	if err != nil || spec == nil {
		return // the task was deleted meanwhile
	}

	uid, err := specUID(spec.Value)
	if err != nil || uid == uidOf(e.Value) {
		return // readSpecs has reported it as unreadable
	}

	j.addSuspect(kindUIDs.newFinding(fmt.Sprintf("the spec of %s has uid %q, its entry %q", ref, uid, uidOf(e.Value)), string(e.Key), key),
		seenRecord(e), seenRecord(spec))
}

// uidOf returns the uid of an entry, or "" if the entry cannot be read.
func uidOf(value []byte) string {
	e, _ := record.DecodeEntry(value)
	return e.UID
}

// usedUp reports whether an entry has had as many runs as max_runs allows.
func usedUp(e task.Entry) bool { return e.MaxRuns > 0 && e.Own != nil && e.Own.Runs >= e.MaxRuns }

// maxEntrySize is the size up to which an owner reads an entry.
const maxEntrySize = 2 * task.MaxAction

// readEntry reads an entry as its owner does. It returns an error for everything that the owner would reject.
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
		PauseAfter: e.PauseAfter, KillSignal: e.KillSignal, Success: e.Success, Accept: e.Accept,
	}

	if err := schedule.Check(e.Timing()); err != nil {
		return e, err
	}

	return e, spec.Validate()
}
