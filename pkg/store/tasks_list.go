package store

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// Briefs lists a page of specs in the order of their keys, of one namespace or, if namespace is
// empty, of all. With a namespace, it lists only tasks whose name begins with prefix. after is
// the value that the previous page returned as next, or empty for the first page.
func (s Tasks) Briefs(ctx context.Context, namespace, prefix, after string, limit int) (list []record.Brief, next string, err error) {
	below := s.keys.Specs()
	if namespace != "" {
		below = s.keys.SpecsOf(namespace) + prefix
	}

	from, end := below, clientv3.GetPrefixRangeEnd(below)
	if after != "" {
		from = max(from, s.keys.Specs()+after+"\x00")
	}

	if from >= end {
		return nil, "", nil
	}

	res, err := s.readKey(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return nil, "", fmt.Errorf("list tasks: %w", err)
	}

	for _, e := range res.Kvs {
		if b, ok := record.DecodeBrief(s.keys, e); ok {
			list = append(list, b)
		}
	}

	if res.More && len(res.Kvs) > 0 {
		next = string(res.Kvs[len(res.Kvs)-1].Key)[len(s.keys.Specs()):]
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
