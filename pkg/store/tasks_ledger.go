package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// TaskLedger is what etcd contains about a task's ledger, at one revision.
type TaskLedger struct {
	Task    task.Task
	Chunks  [][]byte     // the values of the chunks, in the order of their keys; package ledger reads them
	Cluster task.Cluster // the default and the limit of the time for which ledgers remember ticks

	Revision int64 // at which all was read
}

// Ledger reads the ledger of a task. It returns task.ErrNotFound if
// the task does not exist.
func (s Tasks) Ledger(ctx context.Context, ref record.Ref) (TaskLedger, error) {
	chunks := s.keys.LedgerOf(ref)
	res, err := s.etcd.Txn(ctx).Then(
		clientv3.OpGet(s.keys.Spec(ref)), clientv3.OpGet(s.keys.Entry(ref)), clientv3.OpGet(s.keys.Cluster()),
		clientv3.OpGet(chunks, withPrefix(chunks)),
	).Commit()
	if err != nil {
		return TaskLedger{}, fmt.Errorf("read the ledger of %s: %w: %w", ref, task.ErrUnavailable, err)
	}

	read := kv.Result{Responses: res.Responses}
	st, err := storedFrom(ref, readAt(read, 0), readAt(read, 1))
	if err != nil {
		return TaskLedger{}, err
	}

	l := TaskLedger{Task: st.Task, Revision: res.Header.Revision}
	if e := readAt(read, 2); e != nil {
		c, err := DecodeCluster(e)
		if err != nil {
			return TaskLedger{}, fmt.Errorf("read the cluster's record: %w", err)
		}
		l.Cluster = c.Cluster
	}

	for _, e := range res.Responses[3].GetResponseRange().Kvs {
		l.Chunks = append(l.Chunks, e.Value)
	}

	return l, nil
}
