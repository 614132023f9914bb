package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Repair repairs a finding if it is still as it was found. It reads everything again, decides again, and writes in
// transactions that compare everything that it has read. If anything changes meanwhile, these transactions have no
// effect. It deletes records that no other component removes, and writes the missing records of dependents. Findings of other kinds
// are not_repairable.
//
// The error is task.ErrUnavailable, or task.ErrUnknown if the outcome of a write is unknown. Repeating a repair is
// safe.
func (au Auditor) Repair(ctx context.Context, request task.RepairRequest) (task.RepairResult, error) {
	result := task.RepairResult{RepairRequest: request, Result: task.NotRepairable, Message: "repair it yourself, as the finding describes"}
	au = au.withDefaults()
	reader := newReader(au, &progress{report: au.OnProgress}, &notes{})
	reader.at = au.Now()
	r := &repairer{reader: reader, keys: reader.keys, ref: au.Ref}

	// Only these kinds can be repaired.
	repair := map[string]func(context.Context, task.RepairRequest) (int64, error){
		kindQueueOrphan.name:    r.repairQueue,
		kindHistoryOrphan.name:  r.repairHistory,
		kindLedgerOrphan.name:   r.repairLedger,
		kindMoveStalled.name:    r.repairMove,
		kindCleared.name:        r.repairCleared,
		kindDeadOrphan.name:     r.repairDeadLetter,
		kindRunDataOrphan.name:  r.repairRunData,
		kindVersionOrphan.name:  r.repairVersion,
		kindStaleTombstone.name: r.repairTombstone,
		kindLinkOrphan.name:     r.repairLinkOrphan,
		kindLinkMissing.name:    r.repairLinkMissing,
	}[request.Kind]
	if repair == nil {
		return result, nil
	}

	var err error
	result.Deleted, err = repair(ctx, request)
	switch {
	case err == nil:
		result.Result, result.Message = task.Repaired, ""
	// The record changed, or the finding does not hold any more: nothing was written.
	case errors.Is(err, task.ErrConflict):
		result.Result, result.Message, err = task.NotAsFound, err.Error(), nil
	default:
		err = fmt.Errorf("repair %s: %w", request.Key, err)
	}

	return result, err
}

// repairer repairs the records of findings. Each of its methods repairs one kind, and returns how many records it
// has deleted.
type repairer struct {
	reader *reader // reads at the current revision
	keys   record.Keys
	ref    func(namespace, name string) record.Ref
}

// notAsFound returns the error for a record that is not as the finding describes it.
func notAsFound(what string, args ...any) error {
	return fmt.Errorf("%w: %s", task.ErrConflict, fmt.Sprintf(what, args...))
}

// readAsFound reads the record of a finding, and rejects one that has changed since.
func (r *repairer) readAsFound(ctx context.Context, request task.RepairRequest) (*mvccpb.KeyValue, error) {
	found, err := r.reader.readKeys(ctx, request.Key)
	if err != nil {
		return nil, err
	}
	if e := found[request.Key]; e != nil && e.ModRevision == request.Revision {
		return e, nil
	}

	return nil, notAsFound("%s has changed since the audit", request.Key)
}

// deleteRecord deletes one record if neither it nor the facts have changed.
func (r *repairer) deleteRecord(ctx context.Context, e *mvccpb.KeyValue, facts ...store.Seen) (int64, error) {
	if err := r.reader.store.DeleteSeen(ctx, []store.Seen{seenRecord(e)}, facts...); err != nil {
		return 0, err
	}
	return 1, nil
}

// taskRecords holds the spec and the entry of a task. While either exists, the task's other records must be kept.
type taskRecords struct {
	entry, spec *mvccpb.KeyValue // nil: absent
	seen        []store.Seen     // both keys, with mod revision 0 if absent
}

// readTask reads the spec and the entry of a task. Call it before you read other records of the task. The
// transaction that deletes those compares spec and entry, which then have not changed since before the records were
// read.
func (r *repairer) readTask(ctx context.Context, ref record.Ref) (taskRecords, error) {
	keys := []string{r.keys.Entry(ref), r.keys.Spec(ref)}
	found, err := r.reader.readKeys(ctx, keys...)

	records := taskRecords{entry: found[keys[0]], spec: found[keys[1]]}
	for _, key := range keys {
		s := store.Seen{Key: key}
		if e := found[key]; e != nil {
			s = seenRecord(e)
		}
		records.seen = append(records.seen, s)
	}

	return records, err
}

// ownsRecord reports whether a record with this uid belongs to the task. If spec or entry cannot be read, every
// record does.
func (t taskRecords) ownsRecord(uid string) bool {
	for _, e := range []*mvccpb.KeyValue{t.entry, t.spec} {
		if e != nil && (uidOf(e.Value) == uid || uidOf(e.Value) == "") {
			return true
		}
	}

	return false
}

// repairQueue deletes a waiting run whose task is gone.
func (r *repairer) repairQueue(ctx context.Context, request task.RepairRequest) (int64, error) {
	k, ok := r.keys.ParseShard(request.Key)
	if !ok || k.Kind != record.KindQueued {
		return 0, notAsFound("%s is not a waiting run", request.Key)
	}
	return r.deleteOrphan(ctx, k.Ref, request, waitingUID(k))
}

// repairDeadLetter deletes a dead-letter run whose task is gone.
func (r *repairer) repairDeadLetter(ctx context.Context, request task.RepairRequest) (int64, error) {
	k, ok := r.keys.ParseShard(request.Key)
	if !ok || k.Kind != record.KindDead {
		return 0, notAsFound("%s is not a dead run", request.Key)
	}
	return r.deleteOrphan(ctx, k.Ref, request, waitingUID(k))
}

// waitingUID returns a function that reads the uid of a waiting run or a dead-letter run.
func waitingUID(k record.ShardKey) func(value []byte) (string, error) {
	return func(value []byte) (string, error) {
		w, err := record.DecodeWaiting(k, value)
		return w.UID, err
	}
}

// repairVersion deletes a former version whose task is gone.
func (r *repairer) repairVersion(ctx context.Context, request task.RepairRequest) (int64, error) {
	key, isVersion := strings.CutPrefix(request.Key, versionsPrefix(r.keys))
	namespace, name, _, ok := parseVersionKey(key)
	if !isVersion || !ok {
		return 0, notAsFound("%s is not an earlier version", request.Key)
	}

	return r.deleteOrphan(ctx, r.ref(namespace, name), request, specUID)
}

// deleteOrphan deletes a record whose task is gone, unless the task is created again meanwhile.
func (r *repairer) deleteOrphan(ctx context.Context, ref record.Ref, request task.RepairRequest, uidIn func(value []byte) (string, error)) (int64, error) {
	owner, err := r.readTask(ctx, ref)
	if err != nil {
		return 0, err
	}

	e, err := r.readAsFound(ctx, request)
	if err != nil {
		return 0, err
	}
	if uid, err := uidIn(e.Value); err != nil || owner.ownsRecord(uid) {
		return 0, notAsFound("the task of %s exists", request.Key)
	}

	return r.deleteRecord(ctx, e, owner.seen...)
}

// repairHistory deletes the history of a task that is gone.
func (r *repairer) repairHistory(ctx context.Context, request task.RepairRequest) (deleted int64, err error) {
	// The key of the finding is the prefix of a task's history.
	k, ok := r.keys.ParseShard(request.Key + "run")
	if !ok || k.Kind != record.KindEnded || r.keys.HistoryOf(k.Ref) != request.Key {
		return 0, notAsFound("%s is not the history of a task", request.Key)
	}

	return r.deleteOrphansBelow(ctx, k.Ref, request.Key, func(e *mvccpb.KeyValue) (string, error) {
		k, ok := r.keys.ParseShard(string(e.Key))
		if !ok {
			return "", notAsFound("%s is not a record of a history", e.Key)
		}

		run, err := record.DecodeEnded(k, e.Value)

		return run.UID, err
	})
}

// repairLedger deletes the ledger of a task that is gone.
func (r *repairer) repairLedger(ctx context.Context, request task.RepairRequest) (deleted int64, err error) {
	// The key of the finding is the prefix of a task's ledger.
	shard, _, _ := strings.Cut(strings.TrimPrefix(request.Key, r.keys.Ledgers()), "/")
	number, err := strconv.Atoi(shard)
	if err != nil {
		return 0, notAsFound("%s is not the ledger of a task", request.Key)
	}

	ref, ok := parseLedgerKey(r.keys, number, request.Key+"chunk")
	if !ok || r.keys.LedgerOf(ref) != request.Key {
		return 0, notAsFound("%s is not the ledger of a task", request.Key)
	}

	return r.deleteOrphansBelow(ctx, ref, request.Key, func(e *mvccpb.KeyValue) (string, error) {
		c, _, err := ledger.Decode(e.Value)
		return c.UID, err
	})
}

// deleteOrphansBelow deletes the records below a prefix whose task is gone, with as many in a transaction as fit. uidOf
// returns the uid of a record's task; records that cannot be read stay. Each transaction compares that the task was not
// created again. If one fails, the records of earlier ones are deleted, and deleted counts them.
func (r *repairer) deleteOrphansBelow(ctx context.Context, ref record.Ref, prefix string, uidOf func(*mvccpb.KeyValue) (string, error)) (deleted int64, err error) {
	owner, err := r.readTask(ctx, ref)
	if err != nil {
		return 0, err
	}

	// Collect as many records as fit into one transaction together with the comparisons of spec and entry.
	var page []store.Seen
	deletePage := func() error {
		if len(page) == 0 {
			return nil
		}

		err := r.reader.store.DeleteSeen(ctx, page, owner.seen...)
		if err == nil {
			deleted += int64(len(page))
		}

		page = page[:0]

		return err
	}

	err = r.reader.eachRecord(ctx, prefix, func(_ context.Context, e *mvccpb.KeyValue) error {
		if uid, err := uidOf(e); err != nil || owner.ownsRecord(uid) {
			return nil
		}
		if page = append(page, seenRecord(e)); len(page) < store.MostMended-len(owner.seen) {
			return nil
		}

		return deletePage()
	})

	if err == nil {
		err = deletePage()
	}

	// Nothing was left to delete: the finding does not hold any more.
	if err == nil && deleted == 0 {
		err = notAsFound("no records of deleted tasks are left below %s", prefix)
	}

	return deleted, err
}

// repairMove deletes the record of a handover that takes too long.
func (r *repairer) repairMove(ctx context.Context, request task.RepairRequest) (int64, error) {
	if !strings.HasPrefix(request.Key, movesPrefix(r.keys)) {
		return 0, notAsFound("%s is not a handover", request.Key)
	}

	e, err := r.readAsFound(ctx, request)
	if err != nil {
		return 0, err
	}

	var move struct {
		Since task.Time `json:"since"`
	}
	if json.Unmarshal(e.Value, &move) != nil || r.reader.timeSince(move.Since.Time) <= movesFor {
		return 0, notAsFound("the handover %s is in progress", request.Key)
	}

	return r.deleteRecord(ctx, e)
}

// repairCleared deletes the record of a cleared instance that no owner can still wait for.
func (r *repairer) repairCleared(ctx context.Context, request task.RepairRequest) (int64, error) {
	if !strings.HasPrefix(request.Key, r.keys.Cleared("")) {
		return 0, notAsFound("%s does not clear an instance", request.Key)
	}

	e, err := r.readAsFound(ctx, request)
	if err != nil {
		return 0, err
	}

	var cleared record.Timestamp
	if err := json.Unmarshal(e.Value, &cleared); err != nil || e.Lease != 0 || r.reader.timeSince(cleared.At.Time) < clearedFor {
		return 0, notAsFound("%s is younger than %s; a node may still wait for it", request.Key, clearedFor.Round(time.Hour))
	}

	return r.deleteRecord(ctx, e)
}

// repairTombstone deletes the tombstone of a task that exists, or was deleted long ago.
func (r *repairer) repairTombstone(ctx context.Context, request task.RepairRequest) (int64, error) {
	key, isTombstone := strings.CutPrefix(request.Key, r.keys.Tombstones())
	namespace, name, ok := strings.Cut(key, "/")
	if !isTombstone || !ok {
		return 0, notAsFound("%s is not a tombstone", request.Key)
	}

	owner, err := r.readTask(ctx, r.ref(namespace, name))
	if err != nil {
		return 0, err
	}

	e, err := r.readAsFound(ctx, request)
	if err != nil {
		return 0, err
	}

	var tombstone record.Tombstone
	if json.Unmarshal(e.Value, &tombstone) != nil || owner.spec == nil && r.reader.timeSince(tombstone.DeletedAt.Time) <= tombstonesFor {
		return 0, notAsFound("the task of %s no longer exists", request.Key)
	}

	return r.deleteRecord(ctx, e, owner.seen...)
}
