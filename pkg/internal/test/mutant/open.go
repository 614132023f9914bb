package mutant

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
)

// openByRead opens shards without a write. The opening commit writes nothing but the watermark, and compares the
// owner key and a node key. It becomes a read with the same comparisons. The worker takes the revision of the read
// for that of the watermark, so later comparisons with it are translated back to the watermark's real revision.
func openByRead(k keysOf) injector {
	return func(_ string, c *clientv3.Client) {
		o := &opener{keys: k, known: map[opening]int64{}}
		c.KV = etcdhook.KV(c.KV, o.callNext)
	}
}

// opening is a shard's watermark at the revision at which a worker believes to have written it.
type opening struct {
	mark     string // the key of the watermark
	revision int64  // of the answer to the read that replaced the opening commit
}

// opener translates the revisions of watermarks for one client.
type opener struct {
	keys keysOf

	mu    sync.Mutex
	known map[opening]int64 // the real mod revision of each watermark
}

// callNext replaces opening commits by reads, and translates the watermark comparisons of all others.
func (o *opener) callNext(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
	read := map[string]int64{}
	r, err := next(ctx, editedTxns(op, func(t txn) txn {
		known := int64(0)
		cmps := make([]clientv3.Cmp, len(t.If))
		for i, c := range t.If {
			if cmps[i] = c; isWatermark(o.keys, string(c.KeyBytes())) {
				known = o.trueRevision(string(c.KeyBytes()), c.GetCompare().GetModRevision())
				cmps[i] = kv.ModIs(string(c.KeyBytes()), known)
			}
		}

		t.If = cmps

		// An opening commit has four comparisons and one put.
		if len(t.Then) == 1 && len(t.If) == 4 && isCommit(o.keys, t) {
			mark := string(t.Then[0].KeyBytes())
			t.Then, read[mark] = []clientv3.Op{clientv3.OpGet(mark)}, known
		}

		return t
	}))

	// The worker takes the revision of the answer for the watermark's. Remember which one it really is.
	if err == nil && op.IsTxn() {
		o.mu.Lock()
		defer o.mu.Unlock()
		for mark, known := range read {
			o.known[opening{mark, r.Txn().Header.GetRevision()}] = known
		}
	}

	return r, err
}

// trueRevision returns the real mod revision of a watermark for the one that a worker compares.
func (o *opener) trueRevision(mark string, revision int64) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()

	if known, is := o.known[opening{mark, revision}]; is {
		return known
	}

	return revision
}
