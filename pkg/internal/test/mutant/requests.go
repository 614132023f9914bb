package mutant

import (
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/task"
)

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
