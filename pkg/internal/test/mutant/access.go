package mutant

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// OfAccess lists the mutants of how writes of the API are authorised (G27, G28). Package authority catches them with
// callers whose rights come and go, in its own test: the callers of a simulated cluster keep their rights.
var OfAccess = []Mutant{
	{"no-fence-compare", "writes of callers do not compare the fence", withoutComparisons(fenceKnown)},
	{"no-token-compare", "writes of callers do not compare the create revision of the caller's token", withoutComparisons(tokenKnown)},
	{"no-parent-token-compare", "writes of a session do not compare the create revision of its parent", withoutComparisons(parentTokenKnown)},
	{"link-used-twice", "the use of a login link does not compare that the link exists", withoutComparisons(usedLinkKnown)},
	{"half-revision", "who may do what follows from a part of a transaction's events", halfRevision},
	{"narrowing-as-grant", "a change of a binding does not put the fence", editTransactions(bindingUnfenced)},
	{"fence-apart", "the fence is put in a second transaction", fenceApart},
	{"audit-apart", "the audit record is written in a second transaction", auditApart},
}

// fenceKnown selects the comparison of the fence in writes that do not change access records. Those that do need it to
// follow one another.
func fenceKnown(k keysOf, t txn, key string) bool { return key == k.Fence() && !putsFence(k, t) }

func putsFence(k keysOf, t txn) bool {
	return t.putsKey(func(key string) bool { return key == k.Fence() })
}

// tokenKnown selects the comparison of the caller's token. A write that creates or deletes a token compares it, too.
func tokenKnown(k keysOf, t txn, key string) bool {
	return strings.HasPrefix(key, k.Tokens()) &&
		!slices.ContainsFunc(t.Then, func(op clientv3.Op) bool { return string(op.KeyBytes()) == key })
}

// parentTokenKnown selects the comparison of the token with which the caller's session was created.
func parentTokenKnown(k keysOf, t txn, key string) bool {
	for _, op := range t.Then {
		if !op.IsPut() || !strings.HasPrefix(string(op.KeyBytes()), k.AuditRecords()) {
			continue
		}

		a, err := record.Decode[task.AuditRecord](op.ValueBytes())
		return err == nil && tokenKnown(k, t, key) && key != k.Token(a.Token)
	}

	return false
}

// usedLinkKnown selects the comparisons of a login link in the write that replaces it by a session.
func usedLinkKnown(k keysOf, t txn, key string) bool {
	isToken := func(key string) bool { return strings.HasPrefix(key, k.Tokens()) }
	isDeleted := slices.ContainsFunc(t.Then, func(op clientv3.Op) bool { return op.IsDelete() && string(op.KeyBytes()) == key })

	return isToken(key) && isDeleted && t.putsKey(isToken)
}

// bindingUnfenced removes the put of the fence from writes of bindings, except for that which creates the cluster.
func bindingUnfenced(k keysOf, t txn) txn {
	changes := t.putsKey(func(key string) bool { return strings.HasPrefix(key, k.Bindings()) })
	creates := t.putsKey(func(key string) bool { return key == k.Cluster() })

	if changes && !creates {
		t.Then = slices.DeleteFunc(slices.Clone(t.Then), func(op clientv3.Op) bool { return op.IsPut() && string(op.KeyBytes()) == k.Fence() })
	}

	return t
}

// fenceApart puts the fence a little later than the record that it belongs to.
func fenceApart(k keysOf) injector { return apart(func(key string) bool { return key == k.Fence() }) }

// auditApart writes audit records a little later than the change that they belong to.
func auditApart(k keysOf) injector {
	return apart(func(key string) bool { return strings.HasPrefix(key, k.AuditRecords()) })
}

// apart moves the puts of the selected keys into their own transaction, which follows later. It leaves requests
// alone that contain several transactions: which of them succeed is not known when they are sent.
func apart(moved func(key string) bool) injector {
	return func(_ string, c *clientv3.Client) {
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			if !op.IsTxn() {
				return next(ctx, op)
			}

			var later []clientv3.Op
			cmps, then, els := op.Txn()
			then = slices.DeleteFunc(slices.Clone(then), func(op clientv3.Op) bool {
				yes := op.IsPut() && moved(string(op.KeyBytes()))
				if yes {
					later = append(later, op)
				}
				return yes
			})

			if len(later) == 0 {
				return next(ctx, op)
			}

			r, err := next(ctx, clientv3.OpTxn(cmps, then, els))
			if err == nil && r.Txn().Succeeded {
				time.Sleep(500 * time.Millisecond)
				_, _ = next(context.WithoutCancel(ctx), clientv3.OpTxn(nil, later, nil))
			}

			return r, err
		})
	}
}

// halfRevision delivers the fence of a revision, and loses the rest of its access records until the next list.
func halfRevision(k keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		c.Watcher = halfWatcher{Watcher: c.Watcher, keys: k}
	}
}

type halfWatcher struct {
	clientv3.Watcher
	keys keysOf
}

// Watch implements clientv3.Watcher.
func (w halfWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in := w.Watcher.Watch(ctx, key, opts...)
	if key != w.keys.Access() {
		return in
	}

	out := make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)

		for r := range in {
			fenced := map[int64]bool{}
			for _, e := range r.Events {
				fenced[e.Kv.ModRevision] = fenced[e.Kv.ModRevision] || string(e.Kv.Key) == w.keys.Fence()
			}

			r.Events = slices.DeleteFunc(slices.Clone(r.Events), func(e *clientv3.Event) bool {
				return fenced[e.Kv.ModRevision] && string(e.Kv.Key) != w.keys.Fence()
			})

			select {
			case out <- r:
			case <-ctx.Done():
				return
			}
		}
	}()

	return out
}

// openNamespaces shows nodes each namespace as one that allows everything. Owners then start what the record forbids.
func openNamespaces(k keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		showRecords(c, func(e *mvccpb.KeyValue) []byte {
			if !strings.HasPrefix(string(e.Key), k.Namespaces()) || len(e.Value) == 0 {
				return e.Value
			}

			return editObject(e.Value, func(m map[string]any) {
				any := []string{"*"}
				m["run_as"], m["groups"], m["env_files"], m["shell"] = any, any, any, true
				delete(m, "nodes")
			})
		})
	}
}

// unseenLimits shows nodes each limit of nodes as one that allows every label.
func unseenLimits(k keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		showRecords(c, func(e *mvccpb.KeyValue) []byte {
			if !strings.HasPrefix(string(e.Key), k.NodeLimits()) || len(e.Value) == 0 {
				return e.Value
			}

			return editObject(e.Value, func(m map[string]any) { m["labels"] = []string{"*"} })
		})
	}
}

// mutantArgs is the number of arguments by which acceptAnything recognizes what it has shown.
const mutantArgs = task.MaxAcceptArgs

// acceptAnything shows owners each task as one that accepts everything from a manual run. When an owner writes the entry of a
// task, it gets back what its user wrote: the check judges attempts by that.
func acceptAnything(k keysOf) injector {
	var mu sync.Mutex
	written := map[string]any{} // by the key of the entry

	hide := func(t txn) txn {
		ops := make([]clientv3.Op, len(t.Then))
		for i, op := range t.Then {
			if key := string(op.KeyBytes()); op.IsPut() && inShard(k, key, "/tasks/") {
				op.WithValueBytes(editObject(op.ValueBytes(), func(m map[string]any) {
					accept, _ := m["accept"].(map[string]any)
					if accept["args"] != float64(mutantArgs) {
						return
					}

					mu.Lock()
					defer mu.Unlock()
					if delete(m, "accept"); written[key] != nil {
						m["accept"] = written[key]
					}
				}))
			}
			ops[i] = op
		}

		t.Then = ops

		return t
	}

	return func(_ string, c *clientv3.Client) {
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			return next(ctx, editedTxns(op, hide))
		})

		showRecords(c, func(e *mvccpb.KeyValue) []byte {
			if len(e.Value) == 0 || !inShard(k, string(e.Key), "/tasks/") {
				return e.Value
			}

			return editObject(e.Value, func(m map[string]any) {
				mu.Lock()
				defer mu.Unlock()
				written[string(e.Key)] = m["accept"]
				m["accept"] = map[string]any{"args": mutantArgs, "env": []string{"DAY"}, "target": true}
			})
		})
	}
}
