package mutant

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
)

// isChunk reports whether a key is that of a chunk of a ledger.
func isChunk(k keysOf, key string) bool { return strings.HasPrefix(key, k.Ledgers()) }

// isFold reports whether t moves records from a history to a ledger.
func isFold(k keysOf, t txn) bool {
	return t.putsKey(func(key string) bool { return isChunk(k, key) })
}

// foldApart puts the chunks of a fold in a second transaction, after the one that deletes the records.
func foldApart(k keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			var chunks []clientv3.Op
			op = editedTxns(op, func(t txn) txn {
				isPut := func(op clientv3.Op) bool { return op.IsPut() && isChunk(k, string(op.KeyBytes())) }
				for _, op := range t.Then {
					if isPut(op) {
						chunks = append(chunks, op)
					}
				}

				t.Then = slices.DeleteFunc(slices.Clone(t.Then), isPut)

				return t
			})

			r, err := next(ctx, op)
			if err == nil && len(chunks) > 0 {
				_, err = next(ctx, clientv3.OpTxn(nil, chunks, nil))
			}

			return r, err
		})
	}
}

// chunkKnown selects a fold's comparisons of the ledger. It also selects those of the records, which would reject most
// of the same writes.
func chunkKnown(k keysOf, t txn, key string) bool {
	return isFold(k, t) && (isChunk(k, key) || inShard(k, key, "/history/"))
}

// rangeKnown selects a fold's comparisons of the records that their owner may extend.
func rangeKnown(k keysOf, t txn, key string) bool {
	return isFold(k, t) && inShard(k, key, "/history/")
}

// editChunks edits the chunks that a transaction puts. They stay as a node writes them, because nodes change no other chunks.
func editChunks(k keysOf, t txn, edit func(c *ledger.Chunk)) txn {
	ops := make([]clientv3.Op, len(t.Then))
	for i, op := range t.Then {
		if op.IsPut() && isChunk(k, string(op.KeyBytes())) {
			c, whole, err := ledger.Decode(op.ValueBytes())
			edit(&c)
			if value, encodeErr := json.Marshal(c); whole && err == nil && encodeErr == nil {
				op.WithValueBytes(value)
			}
		}
		ops[i] = op
	}

	t.Then = ops

	return t
}

// exceptionDropped removes the newest exception from each chunk.
func exceptionDropped(k keysOf, t txn) txn {
	return editChunks(k, t, func(c *ledger.Chunk) {
		if n := len(c.Exceptions); n > 0 {
			c.Exceptions = c.Exceptions[:n-1]
		}
	})
}

// spanOverHole makes one span of the last two of each chunk, whatever is between them.
func spanOverHole(k keysOf, t txn) txn {
	return editChunks(k, t, func(c *ledger.Chunk) {
		n := len(c.Spans)
		if n < 2 {
			return
		}

		merged, last := c.Spans[n-2], c.Spans[n-1]
		merged.Last, merged.Count = last.Last, merged.Count+last.Count
		c.Spans = append(c.Spans[:n-2:n-2], merged)
	})
}
