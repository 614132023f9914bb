package store

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Entries reads the entries of several tasks. The result is nil for an entry that is absent or
// cannot be read.
func (s Tasks) Entries(ctx context.Context, refs []record.Ref) ([]*task.Entry, error) {
	keys := make([]string, len(refs))
	for i, ref := range refs {
		keys[i] = s.keys.Entry(ref)
	}

	list := make([]*task.Entry, len(refs))
	err := s.eachKey(ctx, keys, func(i int, e *mvccpb.KeyValue) {
		if e == nil {
			return
		}

		if entry, err := record.DecodeEntry(e.Value); err == nil {
			list[i] = &entry
		}
	})

	if err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}

	return list, nil
}
