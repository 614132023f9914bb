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

// EachEnded calls visit with the records in a task's history that begin at since or later, in the order of their ticks.
// A zero time means all of them. It returns how many records the history has in total, and the tick of the oldest one.
// All is read at revision rev, or at the current one if rev is 0, in pages, so that a long history needs little memory. It
// omits late results, and records that cannot be read.
func (s Runs) EachEnded(ctx context.Context, ref record.Ref, rev int64, since time.Time, visit func(*task.Run)) (kept int, oldest task.Time, err error) {
	const page = 500 // records of at most some KB each

	prefix := s.keys.HistoryOf(ref)
	end := clientv3.GetPrefixRangeEnd(prefix)

	all, err := s.readKey(ctx, prefix, clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithKeysOnly(), clientv3.WithRev(rev))
	if err != nil {
		return 0, oldest, fmt.Errorf("read the history of %s: %w", ref, err)
	}
	if rev == 0 {
		rev = all.Header.Revision
	}
	if len(all.Kvs) == 0 {
		return 0, oldest, nil
	}

	if at, ok := task.TimeOfRunID(strings.TrimPrefix(string(all.Kvs[0].Key), prefix)); ok {
		oldest = task.At(at)
	}

	for from := prefix + idBound(since); ; {
		res, err := s.readKey(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(rev))
		if err != nil {
			return 0, oldest, fmt.Errorf("read the history of %s: %w", ref, err)
		}

		for _, e := range res.Kvs {
			if run, ok := record.DecodeRun(s.keys, e); ok {
				visit(&run)
			}
		}

		if !res.More || len(res.Kvs) == 0 {
			return int(all.Count), oldest, nil
		}

		from = string(res.Kvs[len(res.Kvs)-1].Key) + "\x00"
	}
}
