package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	accountTriggers = task.MaxTriggerQueue
	accountEnds     = 8 // of a source
)

// AccountOfSources reads what waits to start a dependent, and the newest runs of its sources that had started by a time. rev is
// the revision of the dependent's own account.
func (s Tasks) AccountOfSources(ctx context.Context, ref record.Ref, sources []record.Ref, until time.Time, rev int64) (record.SourcesAccount, error) {
	k := s.keys
	at := clientv3.WithRev(rev)
	triggers := k.Triggers(ref)
	behindID := strings.TrimSuffix(task.RunID(until.Add(time.Millisecond), ""), "-")

	ops := []clientv3.Op{clientv3.OpGet(triggers, withPrefix(triggers), clientv3.WithLimit(accountTriggers), at)}
	for _, source := range sources {
		history := k.HistoryOf(source)
		ops = append(ops, clientv3.OpGet(k.Spec(source), clientv3.WithKeysOnly(), at), clientv3.OpGet(history, clientv3.WithRange(history+behindID),
			clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(accountEnds), at))
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return record.SourcesAccount{}, fmt.Errorf("read the sources of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	a := record.SourcesAccount{Triggers: record.DecodeTriggers(k, res.Responses[0].GetResponseRange().Kvs)}
	for i, source := range sources {
		spec, ended := res.Responses[1+2*i].GetResponseRange(), res.Responses[2+2*i].GetResponseRange()

		var read record.Account
		byID := map[string]task.Run{}
		read.ReadRuns(k, ended.Kvs, byID)
		a.Sources = append(a.Sources, record.SourceAccount{Task: source.Name, Gone: len(spec.Kvs) == 0, Runs: record.SortRuns(byID)})
	}

	return a, nil
}
