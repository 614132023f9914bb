package mutant

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
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

// asText returns v if it is a string, or else "".
func asText(v any) string {
	s, _ := v.(string)
	return s
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

// errorIsDone answers a transaction of unknown outcome with success, at the newest revision that the client has
// seen. A call that its caller cancels still fails.
func errorIsDone(keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		var mu sync.Mutex
		var newest pb.ResponseHeader
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			r, err := next(ctx, op)

			if !op.IsTxn() {
				return r, err
			}

			mu.Lock()
			defer mu.Unlock()

			// Remember the newest revision, as a plausible one for forged answers.
			if err == nil {
				newest.Revision = max(newest.Revision, r.Txn().Header.GetRevision())
				return r, nil
			}

			// Errors that prove that nothing was written are passed on.
			if !kv.Unknown(err) || ctx.Err() != nil && context.Cause(ctx) == context.Canceled {
				return r, err
			}

			_, then, _ := op.Txn()
			header := &pb.ResponseHeader{Revision: newest.Revision}

			return (&clientv3.TxnResponse{Header: header, Succeeded: true, Responses: successResponses(then, header)}).OpResponse(), nil
		})
	}
}

// errorIsNothing answers a write of unknown outcome with an error that proves that nothing was written.
func errorIsNothing(keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			r, err := next(ctx, op)
			if kv.Unknown(err) && etcdhook.Writes(op) {
				err = rpctypes.ErrNotCapable // of the errors that prove it, one that causes no retry
			}
			return r, err
		})
	}
}

// staleScan answers scans of all active runs with the result of an earlier scan, for up to half a minute.
func staleScan(k keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		var mu sync.Mutex
		var kept *clientv3.GetResponse
		var at time.Time
		c.KV = editReads(c.KV, func(op clientv3.Op, resp *clientv3.GetResponse) {
			if string(op.KeyBytes()) != k.Runs() || !op.IsKeysOnly() {
				return
			}

			mu.Lock()
			defer mu.Unlock()

			if kept == nil || time.Since(at) > 30*time.Second {
				kept, at = resp, time.Now()
				return
			}

			resp.Kvs, resp.More, resp.Count = kept.Kvs, kept.More, kept.Count
		})
	}
}

// clearedUnseen answers that every instance has been cleared.
func clearedUnseen(k keysOf) injector {
	prefix := strings.TrimSuffix(k.Cleared("x"), "x")
	return func(_ string, c *clientv3.Client) {
		c.KV = editReads(c.KV, func(op clientv3.Op, resp *clientv3.GetResponse) {
			if key := op.KeyBytes(); strings.HasPrefix(string(key), prefix) && len(resp.Kvs) == 0 {
				rev := resp.Header.GetRevision()
				resp.Kvs = []*mvccpb.KeyValue{{Key: key, Value: []byte(`{}`), CreateRevision: rev, ModRevision: rev}}
				resp.Count = 1
			}
		})
	}
}
