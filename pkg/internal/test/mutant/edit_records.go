package mutant

import (
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// editPuts edits the values that a commit puts into the given part of a shard.
func editPuts(k keysOf, t txn, part string, edit func(m map[string]any)) txn {
	if !isCommit(k, t) {
		return t
	}

	ops := make([]clientv3.Op, len(t.Then))
	for i, op := range t.Then {
		if op.IsPut() && inShard(k, string(op.KeyBytes()), part) {
			op.WithValueBytes(editObject(op.ValueBytes(), edit))
		}
		ops[i] = op
	}

	t.Then = ops

	return t
}

// runUncounted makes an entry count one run less than its commit created.
func runUncounted(k keysOf, t txn) txn {
	return editPuts(k, t, "/tasks/", func(m map[string]any) {
		if own, ok := m["own"].(map[string]any); ok {
			if runs, ok := own["runs"].(float64); ok && runs > 1 {
				own["runs"] = int64(runs) - 1
			}
		}
	})
}

// rangeShort makes the count of a range one tick too small when it grows beyond two.
func rangeShort(k keysOf, t txn) txn {
	return editPuts(k, t, "/history/", func(m map[string]any) {
		if n, ok := m["count"].(float64); ok && n > 2 {
			m["count"] = int64(n) - 1
		}
	})
}

// nothingKept removes the puts of former versions and of dead-letter runs.
func nothingKept(k keysOf, t txn) txn {
	t.Then = slices.DeleteFunc(slices.Clone(t.Then), func(op clientv3.Op) bool {
		key := string(op.KeyBytes())
		return op.IsPut() && (strings.HasPrefix(key, k.Root()+"versions/") || inShard(k, key, "/dead/"))
	})
	return t
}
