package etcdhook

import (
	"context"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Reads counts the keys and values that etcd reads to answer a client. Tests compare the counts for stores of different sizes.
// Writes are not counted.
//
// etcd applies the limit of a range only if the answer is in the order of the keys, ascending. For any other order it reads
// the whole range, sorts it, and returns the first keys.
type Reads struct {
	mu    sync.Mutex
	total ReadCount
}

// ReadCount contains the counts of Reads.
type ReadCount struct {
	// Requests counts requests that read, and Ranges the gets in them.
	Requests, Ranges int64
	// Values counts the keys that etcd has read with their values, and Bytes the size of the values in its answers.
	Values, Bytes int64
	// Keys counts the keys that etcd has read without their values.
	Keys int64
}

// KV returns a KV whose reads are counted.
func (r *Reads) KV(kv clientv3.KV) clientv3.KV {
	return KV(kv, func(ctx context.Context, op clientv3.Op, next Do) (clientv3.OpResponse, error) {
		res, err := next(ctx, op)
		if err == nil {
			r.add(op, res)
		}

		return res, err
	})
}

// Take returns the counts since the last call.
func (r *Reads) Take() ReadCount {
	r.mu.Lock()
	defer r.mu.Unlock()
	total := r.total
	r.total = ReadCount{}

	return total
}

func (r *Reads) add(op clientv3.Op, res clientv3.OpResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()

	before := r.total.Ranges
	switch {
	case op.IsGet():
		r.total.addRange(op, (*etcdserverpb.RangeResponse)(res.Get()))
	case op.IsTxn():
		r.total.addTxn(op, (*etcdserverpb.TxnResponse)(res.Txn()))
	}

	if r.total.Ranges > before {
		r.total.Requests++
	}
}

func (c *ReadCount) addTxn(op clientv3.Op, res *etcdserverpb.TxnResponse) {
	_, ops, els := op.Txn()
	if !res.Succeeded {
		ops = els
	}

	for i, o := range ops {
		switch {
		case o.IsGet():
			c.addRange(o, res.Responses[i].GetResponseRange())
		case o.IsTxn():
			c.addTxn(o, res.Responses[i].GetResponseTxn())
		}
	}
}

func (c *ReadCount) addRange(op clientv3.Op, res *etcdserverpb.RangeResponse) {
	c.Ranges++
	if op.IsCountOnly() {
		return
	}

	read := int64(len(res.Kvs))
	if op.IsSortSet() {
		read = res.Count
	}

	if op.IsKeysOnly() {
		c.Keys += read
		return
	}

	c.Values += read
	for _, e := range res.Kvs {
		c.Bytes += int64(len(e.Value))
	}
}
