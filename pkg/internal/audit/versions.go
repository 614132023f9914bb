package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

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
