package store

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// Briefs lists specs in the order of their keys: of one namespace, or of all if
// namespace is ""; with a namespace only those whose name begins with prefix.
// after is where the page before ended ("" for the first).
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

// BriefsOf are the specs of certain tasks, in their order; those that are not
// there are left out.
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

// DeadTasks are the tasks, of one namespace or of all (""), that have dead runs,
// without order.
func (s Tasks) DeadTasks(ctx context.Context, shards int, namespace string) ([]record.Ref, error) {
	var list []record.Ref
	for id := range shards {
		prefix := s.keys.Shard(id) + "dead/"
		if namespace != "" {
			prefix += namespace + "/"
		}

		all, _, err := s.getAll(ctx, prefix, clientv3.WithKeysOnly())
		if err != nil {
			return nil, fmt.Errorf("list tasks with dead runs: %w", err)
		}

		for _, e := range all {
			k, ok := s.keys.ParseShard(string(e.Key))
			if ok && (len(list) == 0 || list[len(list)-1] != k.Ref) { // those of a task are neighbours
				list = append(list, k.Ref)
			}
		}
	}

	return list, nil
}
