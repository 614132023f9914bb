package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// runDataFor is how old a run must be before data without its record are a finding. The owner removes them in a while.
const runDataFor = time.Hour

// runDataJudge compares the data of the runs of workflows with the records of these runs. One transaction writes both, except for
// data of dead runs that were trimmed, and of waiting retries that their owner ended: it removes them later.
type runDataJudge struct {
	judge
	runs []flowRun // those of the shard that is being read that must have data
}

// flowRun is a run of a workflow that has begun, or retries another one, or is dead.
type flowRun struct {
	ref  record.Ref
	run  string
	dead bool
	store.Seen
}

// addRun remembers a run of the queue or a dead run, if it must have data.
func (j *runDataJudge) addRun(e *mvccpb.KeyValue, k record.ShardKey, fan *task.Fan) {
	if fan != nil && fan.Flow != nil {
		j.runs = append(j.runs, flowRun{k.Ref, k.Run, k.Kind == record.KindDead, seenRecord(e)})
	}
}

// checkRunData judges the data of all runs of a shard.
func (j *runDataJudge) checkRunData(ctx context.Context, s *shardState) error {
	missing := map[string]flowRun{} // by the key of their data
	for _, r := range j.runs {
		missing[j.keys.RunData(r.ref, r.run)] = r
	}
	j.runs = j.runs[:0]

	err := j.reader.eachRecord(ctx, runDataIn(j.keys, s.id), func(_ context.Context, e *mvccpb.KeyValue) error {
		namespace, name, run, ok := parseRunDataKey(j.keys, string(e.Key))
		if !ok {
			j.suspectUnknownKey(e)
			return nil
		}
		ref := record.Ref{Namespace: namespace, Name: name, Shard: s.id}
		j.checkNoLease(e)

		_, needed := missing[string(e.Key)]
		delete(missing, string(e.Key))

		at, hasTime := task.TimeOfRunID(run)
		_, err := record.Decode[task.RunData](e.Value)
		switch {
		case needed && err != nil:
			j.suspectUnreadable(e, fmt.Sprintf("the record of the steps of run %s of %s", run, ref), err)
		case !needed && (!hasTime || j.reader.timeSince(at) > runDataFor):
			j.addSuspect(kindRunDataOrphan.newFinding(fmt.Sprintf("there are data of run %s of %s, which neither waits nor is active nor dead", run, ref), string(e.Key)),
				append([]store.Seen{seenRecord(e)}, recordsOf(j.keys, ref, run)...)...)
		}

		return nil
	})

	for key, r := range missing {
		what := fmt.Sprintf("run %s of %s has no record of its steps, so it cannot go on", r.run, r.ref)
		if r.dead {
			what = fmt.Sprintf("the dead run %s of %s has no record of its steps, so it cannot be retried", r.run, r.ref)
		}
		j.addSuspect(kindRunDataMissing.newFinding(what, r.Key, key), r.Seen, store.Seen{Key: key})
	}

	return err
}

// recordsOf returns the keys of the records that a run with data has: one of them. They are absent.
func recordsOf(keys record.Keys, ref record.Ref, run string) []store.Seen {
	return []store.Seen{{Key: keys.Queued(ref, run)}, {Key: keys.DeadRun(ref, run)}}
}

// runDataIn is the prefix of the data of the runs of a shard.
func runDataIn(keys record.Keys, shard int) string {
	return keys.AllRunData() + record.ShardName(shard) + "/"
}

// repairRunData deletes data of a run that has no record any more.
func (r *repairer) repairRunData(ctx context.Context, request task.RepairRequest) (int64, error) {
	namespace, name, run, ok := parseRunDataKey(r.keys, request.Key)
	if !ok {
		return 0, notAsFound("%s is not the key of data of a run", request.Key)
	}

	ref := r.ref(namespace, name)
	e, err := r.readAsFound(ctx, request)
	if err != nil {
		return 0, err
	}
	// Data in another shard than that of their task belong to no run.
	if r.keys.RunData(ref, run) != request.Key {
		return r.deleteRecord(ctx, e)
	}

	facts := recordsOf(r.keys, ref, run)
	found, err := r.reader.readKeys(ctx, facts[0].Key, facts[1].Key)
	if err != nil {
		return 0, err
	}
	if len(found) > 0 {
		return 0, notAsFound("run %s of %s has a record", run, ref)
	}

	return r.deleteRecord(ctx, e, facts...)
}

// parseRunDataKey returns the task and the run of the key of the data of a run.
func parseRunDataKey(keys record.Keys, key string) (namespace, name, run string, ok bool) {
	rest, isData := strings.CutPrefix(key, keys.AllRunData())
	parts := strings.Split(rest, "/")
	if !isData || len(parts) != 4 {
		return "", "", "", false
	}

	return parts[1], parts[2], parts[3], true
}
