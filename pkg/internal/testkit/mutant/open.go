package mutant

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/testkit/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
)

// openByRead opens shards without a write: the opening commit, which writes
// nothing but the watermark under an owner key and a node key, becomes a read
// under the same comparisons. The worker takes the read's revision for the
// watermark's; what it compares with that later is compared with what was there.
func openByRead(k keysOf) infect {
	return func(_ string, c *clientv3.Client) {
		o := &opener{keys: k, known: map[opening]int64{}}
		c.KV = etcdhook.KV(c.KV, o.call)
	}
}

// opening is the watermark of a shard as a worker believes to have written it.
type opening struct {
	mark     string
	revision int64
}

type opener struct {
	keys keysOf

	mu    sync.Mutex
	known map[opening]int64 // at which revision it is instead
}

func (o *opener) call(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
	read := map[string]int64{}
	r, err := next(ctx, editedTxns(op, func(t txn) txn {
		known := int64(0)
		cmps := make([]clientv3.Cmp, len(t.If))
		for i, c := range t.If {
			if cmps[i] = c; isWatermark(o.keys, string(c.KeyBytes())) {
				known = o.really(string(c.KeyBytes()), c.GetCompare().GetModRevision())
				cmps[i] = kv.ModIs(string(c.KeyBytes()), known)
			}
		}

		t.If = cmps
		if len(t.Then) == 1 && len(t.If) == 4 && isCommit(o.keys, t) {
			mark := string(t.Then[0].KeyBytes())
			t.Then, read[mark] = []clientv3.Op{clientv3.OpGet(mark)}, known
		}

		return t
	}))

	if err == nil && op.IsTxn() {
		o.mu.Lock()
		defer o.mu.Unlock()
		for mark, known := range read {
			o.known[opening{mark, r.Txn().Header.GetRevision()}] = known
		}
	}

	return r, err
}

func (o *opener) really(mark string, revision int64) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()

	if known, is := o.known[opening{mark, revision}]; is {
		return known
	}

	return revision
}
