package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// specSet records which tasks have a spec, with which uid, and which of them have an entry. It uses 17 bytes for
// each task. Two names with the same hash hide each other. Among a million tasks the probability of this is one in
// thirty million.
type specSet struct {
	specs    []specHash // ordered by the hash of the name after sortSpecs
	hasEntry []bool     // by index of specs
}

// specHash is a spec, as hashes of its name and its uid.
type specHash struct{ name, uid uint64 }

// hashOf returns the hash of a task's name.
func hashOf(ref record.Ref) uint64 { return xxhash.Sum64String(ref.String()) }

// addSpec adds a spec. Call sortSpecs before any lookup.
func (s *specSet) addSpec(ref record.Ref, uid string) {
	s.specs = append(s.specs, specHash{hashOf(ref), xxhash.Sum64String(uid)})
}

// sortSpecs orders the specs for binary search.
func (s *specSet) sortSpecs() {
	slices.SortFunc(s.specs, func(a, b specHash) int { return cmp.Compare(a.name, b.name) })
	s.hasEntry = make([]bool, len(s.specs))
}

// findSpec returns the index of a task's spec, or false if it has none.
func (s *specSet) findSpec(ref record.Ref) (int, bool) {
	return slices.BinarySearchFunc(s.specs, hashOf(ref), func(a specHash, b uint64) int { return cmp.Compare(a.name, b) })
}

// mayBe reports whether a task's spec has this uid, or has a uid that cannot be read.
func (s *specSet) mayBe(ref record.Ref, uid string) bool {
	i, ok := s.findSpec(ref)
	return ok && (s.specs[i].uid == xxhash.Sum64String(uid) || s.specs[i].uid == xxhash.Sum64String(""))
}

// specJudge judges the specs of the tasks.
type specJudge struct {
	judge
	links *linkJudge
}

// readSpecs reads all specs, and records which tasks have one.
func (j *specJudge) readSpecs(ctx context.Context) error {
	err := j.reader.eachRecord(ctx, j.keys.Specs(), func(_ context.Context, e *mvccpb.KeyValue) error {
		namespace, name, ok := j.keys.ParseSpec(string(e.Key))
		if !ok {
			j.suspectUnknownKey(e)
			return nil
		}

		j.checkNoLease(e)
		j.cluster.changes.addSpec(e)

		uid, err := specUID(e.Value)
		if err != nil {
			j.suspectUnreadable(e, fmt.Sprintf("the spec of %s/%s", namespace, name), err)
		}

		j.cluster.specs.addSpec(j.ref(namespace, name), uid)
		j.links.addSpec(j.ref(namespace, name), e, err != nil)

		return nil
	})

	j.cluster.specs.sortSpecs()

	return err
}

// specUID returns the uid in a spec.
func specUID(value []byte) (string, error) {
	var t struct {
		UID string `json:"uid"`
	}
	err := json.Unmarshal(value, &t)
	return t.UID, err
}

// checkAllHaveEntries suspects the specs for which no shard has an entry. It reads the specs again to get their
// names, because the set contains only hashes.
func (j *specJudge) checkAllHaveEntries(ctx context.Context) error {
	specs := &j.cluster.specs
	if !slices.Contains(specs.hasEntry, false) {
		return nil
	}

	return j.reader.eachRecord(ctx, j.keys.Specs(), func(_ context.Context, e *mvccpb.KeyValue) error {
		namespace, name, ok := j.keys.ParseSpec(string(e.Key))
		ref := j.ref(namespace, name)
		if i, found := specs.findSpec(ref); !ok || !found || specs.hasEntry[i] {
			return nil
		}

		j.addSuspect(kindNoEntry.newFinding(fmt.Sprintf("task %s has a spec but no entry", ref), string(e.Key), j.keys.Entry(ref)),
			seenRecord(e), store.Seen{Key: j.keys.Entry(ref)})

		return nil
	})
}

// entryJudge compares the entries of a shard with the specs of their tasks.
type entryJudge struct {
	judge
	ticks *tickJudge
	links *linkJudge
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

	// Ticks and links are judged only for an entry that its owner can read.
	if err == nil {
		j.links.checkEntry(e, ref, entry)
	}
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

	if err := schedule.Check(e.Timing()); err != nil {
		return e, err
	}

	return e, e.Validate()
}

// keptJudge judges former versions of specs, and tombstones of deleted tasks.
type keptJudge struct{ judge }

// tombstonesFor is how old a tombstone may be. Leaders remove it after a week, and some may be late.
const tombstonesFor = 9 * 24 * time.Hour

// checkKept judges the former versions of all tasks, and the tombstones.
func (j *keptJudge) checkKept(ctx context.Context) error {
	if err := j.reader.eachRecord(ctx, versionsPrefix(j.keys), j.checkVersion); err != nil {
		return err
	}
	return j.reader.eachRecord(ctx, j.keys.Tombstones(), j.checkTombstone)
}

// parseVersionKey splits the key of a former version, without the prefix, into its parts.
func parseVersionKey(key string) (namespace, name string, generation int64, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return "", "", 0, false
	}

	generation, err := strconv.ParseInt(parts[2], 10, 64)
	return parts[0], parts[1], generation, err == nil
}

// checkVersion judges a former version of a task: its task must exist.
func (j *keptJudge) checkVersion(ctx context.Context, e *mvccpb.KeyValue) error {
	namespace, name, generation, ok := parseVersionKey(strings.TrimPrefix(string(e.Key), versionsPrefix(j.keys)))
	if !ok {
		j.suspectUnknownKey(e)
		return nil
	}

	j.checkNoLease(e)

	ref := j.ref(namespace, name)

	uid, err := specUID(e.Value)
	if err != nil {
		j.suspectUnreadable(e, fmt.Sprintf("generation %d of %s", generation, ref), err)
		return nil
	}

	if j.cluster.specs.mayBe(ref, uid) {
		return nil
	}

	// The absence of the spec, or its revision, is a fact of the finding.
	spec, err := j.readSpec(ctx, ref)
	if err != nil {
		return err
	}

	j.addSuspect(kindVersionOrphan.newFinding(fmt.Sprintf("generation %d of task %s (uid %s), which was deleted", generation, ref, uid), string(e.Key)), seenRecord(e), spec)

	return nil
}

// checkTombstone judges a tombstone: its task must not exist, and must not have been deleted too long ago.
func (j *keptJudge) checkTombstone(ctx context.Context, e *mvccpb.KeyValue) error {
	namespace, name, ok := strings.Cut(strings.TrimPrefix(string(e.Key), j.keys.Tombstones()), "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		j.suspectUnknownKey(e)
		return nil
	}

	j.checkNoLease(e)

	var tombstone record.Tombstone
	if err := json.Unmarshal(e.Value, &tombstone); err != nil {
		j.suspectUnreadable(e, fmt.Sprintf("the tombstone of %s/%s", namespace, name), err)
		return nil
	}

	ref := j.ref(namespace, name)

	// The set of specs contains hashes, so read the spec itself to be sure.
	if _, exists := j.cluster.specs.findSpec(ref); exists {
		spec, err := j.readSpec(ctx, ref)
		if err == nil && spec.Mod != 0 {
			j.addSuspect(kindStaleTombstone.newFinding(fmt.Sprintf("task %s exists, but its tombstone says that it was deleted %s", ref,
				j.reader.formatAgo(tombstone.DeletedAt.Time)), string(e.Key)), seenRecord(e), spec)
		}

		return err
	}

	if j.reader.timeSince(tombstone.DeletedAt.Time) > tombstonesFor {
		j.addSuspect(kindStaleTombstone.newFinding(fmt.Sprintf("task %s was deleted %s, but its tombstone still exists", ref,
			j.reader.formatAgo(tombstone.DeletedAt.Time)), string(e.Key)), seenRecord(e))
	}

	return nil
}

// readSpec returns the key of a task's spec and its mod revision, which is 0 without a spec.
func (j *keptJudge) readSpec(ctx context.Context, ref record.Ref) (store.Seen, error) {
	key := j.keys.Spec(ref)
	found, err := j.reader.readKeys(ctx, key)
	if e := found[key]; e != nil {
		return seenRecord(e), err
	}

	return store.Seen{Key: key}, err
}
