package etcdhook

import (
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Each rewrites every transaction in an operation, the nested ones first.
func Each(op clientv3.Op, rewrite func(cmps []clientv3.Cmp, then, els []clientv3.Op) clientv3.Op) clientv3.Op {
	if !op.IsTxn() {
		return op
	}
	cmps, then, els := op.Txn()
	return rewrite(cmps, each(then, rewrite), each(els, rewrite))
}

func each(ops []clientv3.Op, rewrite func([]clientv3.Cmp, []clientv3.Op, []clientv3.Op) clientv3.Op) []clientv3.Op {
	done := make([]clientv3.Op, len(ops))
	for i, o := range ops {
		done[i] = Each(o, rewrite)
	}
	return done
}
