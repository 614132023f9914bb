package mutant

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/task"
)

// seenAhead makes the watermark claim a revision that the owner cannot have seen. A task that is created before
// that revision, with a tick that the watermark has passed, then counts as covered, and the tick as decided.
func seenAhead(k keysOf, t txn) txn {
	return editMark(k, t, func(m map[string]any) {
		if seen, ok := m["seen"].(float64); ok {
			m["seen"] = int64(seen) + 1000
		}
	})
}

// tickAgain sets the watermark to a time before the ticks that its commit decides, as if the next tick of a
// schedule were not later than its last.
func tickAgain(k keysOf, t txn) txn {
	return editMark(k, t, func(m map[string]any) {
		if at, err := time.Parse(time.RFC3339, asText(m["time"])); err == nil && at.Year() > 2000 {
			m["time"] = at.Add(-1500 * time.Millisecond).UTC().Format("2006-01-02T15:04:05.000Z")
			delete(m, "last")
		}
	})
}

// editMark edits the watermark that a transaction puts.
func editMark(k keysOf, t txn, edit func(m map[string]any)) txn {
	ops := make([]clientv3.Op, len(t.Then))
	for i, op := range t.Then {
		if op.IsPut() && isWatermark(k, string(op.KeyBytes())) {
			op.WithValueBytes(editObject(op.ValueBytes(), edit))
		}
		ops[i] = op
	}

	t.Then = ops
	return t
}

// editObject returns a JSON object after edit has changed it. A value that is not a JSON object is returned unchanged.
func editObject(value []byte, edit func(m map[string]any)) []byte {
	var m map[string]any
	if json.Unmarshal(value, &m) != nil {
		return value
	}

	edit(m)
	b, err := json.Marshal(m)
	if err != nil {
		return value
	}

	return b
}

// asText returns v if it is a string, or else "".
func asText(v any) string {
	s, _ := v.(string)
	return s
}

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

// editFans edits the records of runs with parts that a commit puts into the given part of a shard.
func editFans(k keysOf, t txn, part string, edit func(run, fan map[string]any)) txn {
	return editPuts(k, t, part, func(m map[string]any) {
		if fan, ok := m["fan_out"].(map[string]any); ok {
			edit(m, fan)
		}
	})
}

// partAgain lists a part as left in its parent's record although the commit puts it into an inbox.
func partAgain(k keysOf, t txn) txn {
	index, given := 0, false
	for _, op := range t.Then {
		if key := string(op.KeyBytes()); op.IsPut() && strings.HasPrefix(key, k.Runs()) && !given {
			_, index, given = task.ParentOf(key[strings.LastIndexByte(key, '/')+1:])
		}
	}

	if !given {
		return t
	}

	return editFans(k, t, "/queue/", func(_, fan map[string]any) {
		left, _ := fan["left"].([]any)
		fan["left"] = append([]any{index}, left...)
	})
}

// partAstray assigns the parts of a run to each other's nodes in the parent's record.
func partAstray(k keysOf, t txn) txn {
	return editFans(k, t, "/queue/", func(_, fan map[string]any) {
		if nodes, ok := fan["nodes"].([]any); ok {
			slices.Reverse(nodes)
		}
	})
}

// partUntold removes the last part from the record of its parent's end.
func partUntold(k keysOf, t txn) txn {
	return editFans(k, t, "/history/", func(_, fan map[string]any) {
		if parts, ok := fan["parts"].([]any); ok {
			fan["parts"] = parts[:len(parts)-1]
		}
	})
}

// ruleBent records a run as succeeded that failed because of its parts.
func ruleBent(k keysOf, t txn) txn {
	return editFans(k, t, "/history/", func(run, _ map[string]any) {
		if run["reason"] == task.ReasonParts {
			run["state"] = string(task.Succeeded)
			delete(run, "reason")
		}
	})
}

// editRetries edits the queue records by which nodes let another attempt follow. token is that of the attempt that has ended.
func editRetries(k keysOf, t txn, edit func(m map[string]any, token int64)) txn {
	if isCommit(k, t) {
		return t
	}

	// A finish compares the create revision of the attempt's record.
	var token int64
	for _, c := range t.If {
		if created, ok := c.GetCompare().TargetUnion.(*pb.Compare_CreateRevision); ok && strings.HasPrefix(string(c.KeyBytes()), k.Runs()) {
			token = created.CreateRevision
		}
	}

	ops := make([]clientv3.Op, len(t.Then))
	for i, op := range t.Then {
		if token != 0 && op.IsPut() && inShard(k, string(op.KeyBytes()), "/queue/") {
			op.WithValueBytes(editObject(op.ValueBytes(), func(m map[string]any) { edit(m, token) }))
		}
		ops[i] = op
	}

	t.Then = ops

	return t
}

// unsentCounted lists attempts that were not sent, so that they count for the retry policy.
func unsentCounted(k keysOf, t txn) txn {
	return editRetries(k, t, func(m map[string]any, token int64) {
		unsent, ok := m["unsent"].(map[string]any)
		if !ok || m["reason"] != task.ReasonTarget {
			return
		}

		attempt, _ := m["attempt"].(float64)
		attempts, _ := m["attempts"].([]any)
		m["attempts"] = append(attempts, map[string]any{
			"attempt": attempt - 1, "state": task.Failed, "reason": task.ReasonUnsent, "node": unsent["node"], "token": token, "ended_at": unsent["last"],
		})
		m["reason"] = task.ReasonRetry
		delete(m, "not_before_by")

		if count, _ := unsent["count"].(float64); count > 1 {
			unsent["count"] = count - 1
		} else {
			delete(m, "unsent")
		}
	})
}

// unsentForever forgets when the first attempt of a run ended that was not sent, so that unsent_for never passes.
func unsentForever(k keysOf, t txn) txn {
	return editRetries(k, t, func(m map[string]any, _ int64) {
		if unsent, ok := m["unsent"].(map[string]any); ok && m["reason"] == task.ReasonTarget {
			unsent["first"] = unsent["last"]
		}
	})
}

// unsentAfterSent counts attempts as not sent that were not answered.
func unsentAfterSent(k keysOf, t txn) txn {
	return editRetries(k, t, func(m map[string]any, _ int64) {
		attempts, _ := m["attempts"].([]any)
		if len(attempts) == 0 {
			return
		}

		last, _ := attempts[len(attempts)-1].(map[string]any)
		if last["reason"] != task.ReasonUnanswered {
			return
		}

		unsent, ok := m["unsent"].(map[string]any)
		if !ok {
			unsent = map[string]any{"count": 0.0, "first": last["ended_at"]}
		}

		count, _ := unsent["count"].(float64)
		unsent["count"], unsent["last"], unsent["node"] = count+1, last["ended_at"], last["node"]
		m["unsent"], m["reason"], m["not_before_by"] = unsent, task.ReasonTarget, task.NotBeforeByTarget

		if m["attempts"] = attempts[:len(attempts)-1]; len(attempts) == 1 {
			delete(m, "attempts")
		}
	})
}

// showQueued shows a node other queue records than those that exist.
func showQueued(edit func(m map[string]any)) func(k keysOf) injector {
	return func(k keysOf) injector {
		return func(_ string, c *clientv3.Client) {
			showRecords(c, func(e *mvccpb.KeyValue) []byte {
				if len(e.Value) == 0 || !inShard(k, string(e.Key), "/queue/") {
					return e.Value
				}
				return editObject(e.Value, edit)
			})
		}
	}
}

// waitUnknown hides that the target of a request chose how long the run waits.
func waitUnknown(m map[string]any) { delete(m, "not_before_by") }

// targetUnknown hides that a run waits for its target.
func targetUnknown(m map[string]any) {
	if m["reason"] == task.ReasonTarget {
		m["reason"] = task.ReasonRetry
	}
}

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
