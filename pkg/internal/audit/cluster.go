package audit

import (
	"context"
	"encoding/json"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// clusterJudge judges the records that exist exactly once in a cluster.
type clusterJudge struct{ judge }

// readCluster reads the cluster's record, which contains the number of shards.
func (j *clusterJudge) readCluster(ctx context.Context) error {
	key := j.keys.Cluster()
	found, err := j.reader.readKeys(ctx, key)
	if err != nil {
		return err
	}

	j.reader.progress.addRecords(len(found))

	e := found[key]
	if e == nil {
		j.addSuspect(kindNoCluster.newFinding("the record of the cluster is missing", key), store.Seen{Key: key})
		return nil
	}

	j.checkNoLease(e)

	var c task.Cluster
	if err := json.Unmarshal(e.Value, &c); err != nil || c.Shards <= 0 {
		j.addSuspect(kindNoCluster.newFinding("the record of the cluster cannot be read", key), seenRecord(e))
		return nil
	}

	j.cluster.shards = c.Shards
	j.cluster.changes.bootstrap = e.CreateRevision

	return nil
}

// readFreezes reads what is frozen. Runs that wait because of a freeze are not stuck.
func (j *clusterJudge) readFreezes(ctx context.Context) error {
	key := j.keys.Freezes()
	found, err := j.reader.readKeys(ctx, key)
	if err != nil {
		return err
	}

	e := found[key]
	if e == nil {
		return nil
	}

	j.checkNoLease(e)

	if err := json.Unmarshal(e.Value, &j.cluster.freezes); err != nil {
		j.suspectUnreadable(e, "the record of freezes", err)
	}

	return nil
}
