package store

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// BriefPage says which page of the specs Briefs lists.
type BriefPage struct {
	Namespace string // "": all namespaces
	Prefix    string // with a namespace: only tasks whose name begins with it
	After     string // what the previous page returned as next; "": the first page
	Limit     int

	// Splits are full names in order that divide the tasks into parts of similar sizes. They change only what the page
	// costs, so they need not be up to date. For a range, etcd counts all keys, even if only the first ones are wanted: half
	// a microsecond for each. Splits let a page read short ranges.
	Splits []string
}

// splitsAhead is how many splits ahead a request for a page reads at first. Fewer would need more requests.
const splitsAhead = 4

// Briefs lists a page of specs in the order of their keys, at one revision. next is the After of the next page, or empty
// if this is the last one.
func (s Tasks) Briefs(ctx context.Context, q BriefPage) (list []record.Brief, next string, err error) {
	below := s.keys.Specs()
	if q.Namespace != "" {
		below = s.keys.SpecsOf(q.Namespace) + q.Prefix
	}

	from, end := below, clientv3.GetPrefixRangeEnd(below)
	if q.After != "" {
		from = max(from, s.keys.Specs()+q.After+"\x00")
	}

	if from >= end {
		return nil, "", nil
	}

	pages := kv.NewPages(s.etcd, from, end, q.Limit+1)
	pages.UseSplits(s.keys.Specs(), q.Splits, splitsAhead)

	kvs, _, err := s.nextPage(ctx, pages, 0)
	if err != nil {
		return nil, "", fmt.Errorf("list tasks: %w", err)
	}

	// One more than the page holds shows that there is a next page.
	if len(kvs) > q.Limit {
		kvs = kvs[:q.Limit]
		next = string(kvs[q.Limit-1].Key)[len(s.keys.Specs()):]
	}

	for _, e := range kvs {
		if b, ok := record.DecodeBrief(s.keys, e); ok {
			list = append(list, b)
		}
	}

	return list, next, nil
}

// BriefsOf reads the specs of some tasks, in their order. It omits those that do not exist.
func (s Tasks) BriefsOf(ctx context.Context, refs []record.Ref) ([]record.Brief, error) {
	keys := make([]string, len(refs))
	for i, ref := range refs {
		keys[i] = s.keys.Spec(ref)
	}

	list := make([]record.Brief, 0, len(refs))
	err := s.eachKey(ctx, keys, func(_ int, e *mvccpb.KeyValue) {
		if e == nil {
			return
		}

		if b, ok := record.DecodeBrief(s.keys, e); ok {
			list = append(list, b)
		}
	})

	if err != nil {
		return nil, fmt.Errorf("read tasks: %w", err)
	}

	return list, nil
}

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
