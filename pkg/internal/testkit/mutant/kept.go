package mutant

import (
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// editPuts edits the values of the puts of a commit whose keys are in a part of a
// shard.
func editPuts(k keysOf, t txn, part string, edit func(m map[string]any)) txn {
	if !isCommit(k, t) {
		return t
	}

	ops := make([]clientv3.Op, len(t.Then))
	for i, op := range t.Then {
		if op.IsPut() && inShard(k, string(op.KeyBytes()), part) {
			op.WithValueBytes(edited(op.ValueBytes(), edit))
		}
		ops[i] = op
	}

	t.Then = ops

	return t
}

// runUncounted has an entry say one run less than its commit makes of it.
func runUncounted(k keysOf, t txn) txn {
	return editPuts(k, t, "/tasks/", func(m map[string]any) {
		if own, ok := m["own"].(map[string]any); ok {
			if runs, ok := own["runs"].(float64); ok && runs > 1 {
				own["runs"] = int64(runs) - 1
			}
		}
	})
}

// rangeShort leaves a tick out of a range's count.
func rangeShort(k keysOf, t txn) txn {
	return editPuts(k, t, "/history/", func(m map[string]any) {
		if n, ok := m["count"].(float64); ok && n > 2 {
			m["count"] = int64(n) - 1
		}
	})
}

// nothingKept leaves out what is kept of what is overwritten, or has failed.
func nothingKept(k keysOf, t txn) txn {
	t.Then = slices.DeleteFunc(slices.Clone(t.Then), func(op clientv3.Op) bool {
		key := string(op.KeyBytes())
		return op.IsPut() && (strings.HasPrefix(key, k.Root()+"versions/") || inShard(k, key, "/dead/"))
	})
	return t
}
