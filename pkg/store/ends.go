package store

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/task"
)

// HistoriesAtOnce is how many histories HistoriesOf lists at most: each may have
// thousands of keys.
const HistoriesAtOnce = 20

// HistoriesOf lists the keys of some tasks' histories, without values, at one
// revision, which it returns. Late results are left out: they are no ends.
func (s *Store) HistoriesOf(ctx context.Context, refs []Ref) (keys [][]ShardEvent, rev int64, err error) {
	ops := make([]clientv3.Op, len(refs))
	for i, ref := range refs {
		prefix := s.keys.HistoryOf(ref)
		ops[i] = clientv3.OpGet(prefix, below(prefix), clientv3.WithKeysOnly())
	}
	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, 0, fmt.Errorf("list histories: %w: %w", task.ErrUnavailable, err)
	}
	for _, r := range res.Responses {
		keys = append(keys, s.ends(r.GetResponseRange().Kvs))
	}
	return keys, res.Header.Revision, nil
}

func (s *Store) ends(kvs []*mvccpb.KeyValue) []ShardEvent {
	return slices.DeleteFunc(s.shardEvents(kvs), func(ev ShardEvent) bool { return ev.Kind != KindEnded || ev.Late })
}
