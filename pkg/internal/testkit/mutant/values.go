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

	"github.com/carillonhq/carillon/pkg/internal/testkit/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
)

// seenAhead lets the watermark claim a revision that no owner can have seen: a
// task that is created meanwhile, with a tick that the watermark has passed, is
// taken for decided.
func seenAhead(k keysOf, t txn) txn {
	return editMark(k, t, func(m map[string]any) {
		if seen, ok := m["seen"].(float64); ok {
			m["seen"] = int64(seen) + 1000
		}
	})
}

// tickAgain puts the watermark before what has just been decided, as a schedule
// would whose next tick is not later than the last.
func tickAgain(k keysOf, t txn) txn {
	return editMark(k, t, func(m map[string]any) {
		if at, err := time.Parse(time.RFC3339, asText(m["time"])); err == nil && at.Year() > 2000 {
			m["time"] = at.Add(-1500 * time.Millisecond).UTC().Format("2006-01-02T15:04:05.000Z")
			delete(m, "last")
		}
	})
}

func asText(v any) string {
	s, _ := v.(string)
	return s
}

func editMark(k keysOf, t txn, edit func(m map[string]any)) txn {
	ops := make([]clientv3.Op, len(t.Then))
	for i, op := range t.Then {
		if op.IsPut() && isWatermark(k, string(op.KeyBytes())) {
			op.WithValueBytes(edited(op.ValueBytes(), edit))
		}
		ops[i] = op
	}

	t.Then = ops
	return t
}

// edited is a JSON object, changed; what is none stays as it is.
func edited(value []byte, edit func(m map[string]any)) []byte {
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

// errorIsDone answers what nobody knows with a success.
func errorIsDone(keysOf) infect {
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

			if err == nil {
				newest.Revision = max(newest.Revision, r.Txn().Header.GetRevision())
				return r, nil
			}

			if !kv.Unknown(err) || ctx.Err() != nil && context.Cause(ctx) == context.Canceled {
				return r, err
			}

			_, then, _ := op.Txn()
			header := &pb.ResponseHeader{Revision: newest.Revision}

			return (&clientv3.TxnResponse{Header: header, Succeeded: true, Responses: done(then, header)}).OpResponse(), nil
		})
	}
}

// errorIsNothing answers what nobody knows with an error which says that nothing
// was written.
func errorIsNothing(keysOf) infect {
	return func(_ string, c *clientv3.Client) {
		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			r, err := next(ctx, op)
			if kv.Unknown(err) && etcdhook.Writes(op) {
				err = rpctypes.ErrNotCapable // of those that prove it, one for which nothing is sent again
			}
			return r, err
		})
	}
}

// staleScan answers scans of all active runs with what an earlier scan found,
// for up to half a minute.
func staleScan(k keysOf) infect {
	return func(_ string, c *clientv3.Client) {
		var mu sync.Mutex
		var kept *clientv3.GetResponse
		var at time.Time
		c.KV = reads(c.KV, func(op clientv3.Op, resp *clientv3.GetResponse) {
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

// clearedUnseen answers that whatever instance is asked for has been cleared.
func clearedUnseen(k keysOf) infect {
	prefix := strings.TrimSuffix(k.Cleared("x"), "x")
	return func(_ string, c *clientv3.Client) {
		c.KV = reads(c.KV, func(op clientv3.Op, resp *clientv3.GetResponse) {
			if key := op.KeyBytes(); strings.HasPrefix(string(key), prefix) && len(resp.Kvs) == 0 {
				rev := resp.Header.GetRevision()
				resp.Kvs = []*mvccpb.KeyValue{{Key: key, Value: []byte(`{}`), CreateRevision: rev, ModRevision: rev}}
				resp.Count = 1
			}
		})
	}
}
