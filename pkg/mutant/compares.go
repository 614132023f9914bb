package mutant

import (
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store"
)

type keysOf = store.Keys

// without is a mutant that leaves comparisons out.
func without(dropped func(k keysOf, t txn, key string) bool) func(k keysOf) func(string, *clientv3.Client) {
	return transactions(func(k keysOf, t txn) txn {
		var kept []clientv3.Cmp
		for _, c := range t.If {
			if !dropped(k, t, string(c.KeyBytes())) {
				kept = append(kept, c)
			}
		}
		t.If = kept
		return t
	})
}

func ownerFence(k keysOf, t txn, key string) bool {
	return strings.HasPrefix(key, k.Owners()) && isCommit(k, t)
}

func sessionFence(k keysOf, t txn, key string) bool {
	return strings.HasPrefix(key, k.Nodes()) && isCommit(k, t)
}

func watermarkKnown(k keysOf, _ txn, key string) bool { return isWatermark(k, key) }

func entryKnown(k keysOf, t txn, key string) bool {
	return inShard(k, key, "/tasks/") && isCommit(k, t)
}

func queueKnown(k keysOf, t txn, key string) bool {
	return inShard(k, key, "/queue/")
}

func runKnown(k keysOf, _ txn, key string) bool { return strings.HasPrefix(key, k.Runs()) }

func termKnown(k keysOf, _ txn, key string) bool { return strings.HasPrefix(key, k.Leader()) }

// isCommit says that t is an owner's commit: nothing else writes a watermark.
func isCommit(k keysOf, t txn) bool {
	return t.puts(func(key string) bool { return isWatermark(k, key) })
}

func isWatermark(k keysOf, key string) bool {
	return strings.HasPrefix(key, k.Shards()) && strings.HasSuffix(key, "/watermark") && strings.Count(key[len(k.Shards()):], "/") == 1
}

func inShard(k keysOf, key, part string) bool {
	return strings.HasPrefix(key, k.Shards()) && strings.Contains(key[len(k.Shards()):], part)
}
