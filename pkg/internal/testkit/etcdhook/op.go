package etcdhook

import (
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Without is an operation without those comparisons that match, on all its levels.
func Without(op clientv3.Op, match func(clientv3.Cmp) bool) clientv3.Op {
	return Each(op, func(cmps []clientv3.Cmp, then, els []clientv3.Op) clientv3.Op {
		var rest []clientv3.Cmp
		for _, c := range cmps {
			if !match(c) {
				rest = append(rest, c)
			}
		}
		return clientv3.OpTxn(rest, then, els)
	})
}

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
