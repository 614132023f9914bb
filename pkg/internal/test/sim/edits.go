package sim

import (
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// edits records which edits of tasks do not compare the watermark of their shard because two that did have failed. Only for these
// edits, ticks after their time stamp may have been decided before them.
type edits struct {
	mu         sync.Mutex
	failed     map[record.Ref]int // writes with a comparison that have failed in a row
	uncompared map[int64]bool     // by the revision of the write
}

// neededFailures is how many writes of an edit must fail before one may omit the comparison.
const neededFailures = 2

// wereUncompared reports whether edits were written at a revision without the comparison, and had a reason.
func (e *edits) wereUncompared(rev int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.uncompared[rev]
}

// noteAnswer notes the edits in a request that etcd has answered.
func (e *edits) noteAnswer(keys record.Keys, op clientv3.Op, r clientv3.OpResponse) {
	if !op.IsTxn() || r.Txn() == nil {
		return
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	e.noteTransaction(keys, op, (*pb.TxnResponse)(r.Txn()), r.Txn().Header.Revision)
}

// noteTransaction notes the edits in a transaction and in those that are nested in it.
func (e *edits) noteTransaction(keys record.Keys, op clientv3.Op, r *pb.TxnResponse, rev int64) {
	cmps, then, els := op.Txn()
	for _, ref := range editsIn(keys, cmps, then) {
		compares := false
		for _, c := range cmps {
			compares = compares || string(c.KeyBytes()) == keys.Watermark(ref.Shard)
		}

		switch {
		case !r.Succeeded && compares:
			e.failed[ref]++
		case r.Succeeded:
			if !compares && e.failed[ref] >= neededFailures {
				e.uncompared[rev] = true
			}
			delete(e.failed, ref)
		}
	}

	ops := then
	if !r.Succeeded {
		ops = els
	}

	for i, o := range ops {
		if nested := r.Responses[i].GetResponseTxn(); nested != nil {
			e.noteTransaction(keys, o, nested, rev)
		}
	}
}

// editsIn returns the tasks whose entries a transaction compares and whose specs it writes.
func editsIn(keys record.Keys, cmps []clientv3.Cmp, then []clientv3.Op) (refs []record.Ref) {
	puts := map[string]bool{}
	for _, o := range then {
		if o.IsPut() {
			puts[string(o.KeyBytes())] = true
		}
	}

	for _, c := range cmps {
		k, ok := keys.ParseShard(string(c.KeyBytes()))
		if ok && k.Kind == record.KindEntry && c.GetCompare().GetModRevision() > 0 && puts[keys.Spec(k.Ref)] {
			refs = append(refs, k.Ref)
		}
	}

	return refs
}
