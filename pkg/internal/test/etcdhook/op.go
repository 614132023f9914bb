package etcdhook

import (
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Each returns an operation with every transaction in it rewritten, nested ones first. rewrite must return an
// operation that replaces the transaction.
func Each(op clientv3.Op, rewrite func(cmps []clientv3.Cmp, then, els []clientv3.Op) clientv3.Op) clientv3.Op {
	if !op.IsTxn() {
		return op
	}
	cmps, then, els := op.Txn()
	return rewrite(cmps, rewriteEach(then, rewrite), rewriteEach(els, rewrite))
}

// rewriteEach applies Each to a list of operations.
func rewriteEach(ops []clientv3.Op, rewrite func([]clientv3.Cmp, []clientv3.Op, []clientv3.Op) clientv3.Op) []clientv3.Op {
	done := make([]clientv3.Op, len(ops))
	for i, o := range ops {
		done[i] = Each(o, rewrite)
	}
	return done
}
