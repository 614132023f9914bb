package mutant

import (
	"context"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/testkit/etcdhook"
)

// without is a mutant that leaves comparisons out.
func without(dropped func(k keysOf, t txn, key string) bool) func(k keysOf) infect {
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

// parentKnown is the record of a run that a commit compares, and neither writes nor
// deletes: it gives out a part of that run.
func parentKnown(k keysOf, t txn, key string) bool {
	return inShard(k, key, "/queue/") && isCommit(k, t) &&
		!slices.ContainsFunc(t.Then, func(op clientv3.Op) bool { return string(op.KeyBytes()) == key })
}

func freezesKnown(k keysOf, t txn, key string) bool { return key == k.Freezes() && isCommit(k, t) }

func revisedKnown(k keysOf, t txn, key string) bool { return isRevised(k, key) && isCommit(k, t) }

func isRevised(k keysOf, key string) bool {
	return strings.HasPrefix(key, k.Shards()) && strings.HasSuffix(key, "/revised") && strings.Count(key[len(k.Shards()):], "/") == 1
}

// unrevised leaves out of edits what tells a shard's owner of new ticks.
func unrevised(k keysOf, t txn) txn {
	t.Then = slices.DeleteFunc(slices.Clone(t.Then), func(op clientv3.Op) bool { return op.IsPut() && isRevised(k, string(op.KeyBytes())) })
	return t
}

func runKnown(k keysOf, _ txn, key string) bool { return strings.HasPrefix(key, k.Runs()) }

// noTerm leaves the comparison of a leader's term out, and has what a leader
// writes come a second later, whether or not it leads by then: a leader that knows
// that it is deposed writes nothing, so that the comparison is for what is on its way.
func noTerm(k keysOf) infect {
	without := without(func(k keysOf, _ txn, key string) bool { return strings.HasPrefix(key, k.Leader()) })(k)
	return func(node string, c *clientv3.Client) {
		without(node, c)
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			leads := false
			editedTxns(op, func(t txn) txn {
				leads = leads || slices.ContainsFunc(t.If, func(c clientv3.Cmp) bool { return strings.HasPrefix(string(c.KeyBytes()), k.Leader()) })
				return t
			})

			if !leads {
				return next(ctx, op)
			}

			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()

			return next(ctx, op)
		})
	}
}

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
