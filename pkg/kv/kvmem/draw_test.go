package kvmem_test

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func (p *pair) drawKey(rt *rapid.T) string {
	return p.prefix + rapid.SampledFrom([]string{"a", "b", "b/1", "b/2", "c"}).Draw(rt, "key")
}

// drawSpan draws a key, a range, or the whole prefix of the round.
func (p *pair) drawSpan(rt *rapid.T) (key, end string) {
	key = p.drawKey(rt)

	switch rapid.IntRange(0, 3).Draw(rt, "span") {
	case 0:
		return key, ""
	case 1:
		return key, p.drawKey(rt)
	case 2:
		return key, clientv3.GetPrefixRangeEnd(key)
	}

	return p.prefix, clientv3.GetPrefixRangeEnd(p.prefix)
}

// drawRevision draws a revision, usually one of the round, otherwise the next one or 0.
func (p *pair) drawRevision(rt *rapid.T) int64 {
	return rapid.OneOf(rapid.Int64Range(max(p.first, p.compacted), p.now+1), rapid.Int64Range(p.first, p.now), rapid.Just(p.now)).Draw(rt, "revision")
}

func (p *pair) drawRange(rt *rapid.T) (string, []clientv3.OpOption) {
	key, end := p.drawSpan(rt)
	var opts []clientv3.OpOption
	maybe := func(name string, o func() clientv3.OpOption) {
		if rapid.IntRange(0, 3).Draw(rt, name) == 0 {
			opts = append(opts, o())
		}
	}

	if end != "" {
		opts = append(opts, clientv3.WithRange(end))
	}

	maybe("at", func() clientv3.OpOption { return clientv3.WithRev(p.drawRevision(rt)) })
	maybe("limit", func() clientv3.OpOption { return clientv3.WithLimit(rapid.Int64Range(0, 3).Draw(rt, "most")) })
	maybe("keys only", clientv3.WithKeysOnly)
	maybe("count only", clientv3.WithCountOnly)
	maybe("min mod", func() clientv3.OpOption { return clientv3.WithMinModRev(p.drawRevision(rt)) })
	maybe("max create", func() clientv3.OpOption { return clientv3.WithMaxCreateRev(p.drawRevision(rt)) })
	maybe("sort", func() clientv3.OpOption { // by a field whose values are distinct
		return clientv3.WithSort(clientv3.SortByKey, rapid.SampledFrom([]clientv3.SortOrder{clientv3.SortNone, clientv3.SortAscend, clientv3.SortDescend}).Draw(rt, "order"))
	})

	return key, opts
}

func (p *pair) drawCompare(rt *rapid.T) clientv3.Cmp {
	key, end := p.drawSpan(rt)
	sign := rapid.SampledFrom([]string{"=", "!=", "<", ">"}).Draw(rt, "sign")
	rev := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(p.first, p.now)).Draw(rt, "of")
	var c clientv3.Cmp

	switch rapid.IntRange(0, 4).Draw(rt, "target") {
	case 0:
		c = clientv3.Compare(clientv3.ModRevision(key), sign, rev)
	case 1:
		c = clientv3.Compare(clientv3.CreateRevision(key), sign, rev)
	case 2:
		c = clientv3.Compare(clientv3.Version(key), sign, rapid.IntRange(0, 3).Draw(rt, "version"))
	case 3:
		c = clientv3.Compare(clientv3.Value(key), sign, p.drawValue(rt))
	default:
		c = clientv3.Compare(clientv3.LeaseValue(key), sign, clientv3.NoLease)
	}

	if end != "" && rapid.IntRange(0, 2).Draw(rt, "over a range") == 0 {
		c = c.WithRange(end)
	}

	return c
}

func (p *pair) drawValue(rt *rapid.T) string {
	return fmt.Sprint(rapid.IntRange(0, 3).Draw(rt, "value"))
}

// plan creates an operation for a side, with the leases of that side.
type plan func(*side) clientv3.Op

func (p *pair) drawOps(rt *rapid.T, depth int) []plan {
	ops := make([]plan, rapid.IntRange(0, 3).Draw(rt, "operations"))
	for i := range ops {
		ops[i] = p.drawOp(rt, depth)
	}
	return ops
}

func (p *pair) drawOp(rt *rapid.T, depth int) plan {
	kinds := []string{"put", "put", "put", "delete", "get"}
	if depth > 0 {
		kinds = append(kinds, "txn", "txn")
	}

	switch rapid.SampledFrom(kinds).Draw(rt, "operation") {
	case "put":
		key, value, lease := p.drawKey(rt), p.drawValue(rt), -1
		if n := len(p.mem.leases); n > 0 && rapid.Bool().Draw(rt, "leased") {
			lease = rapid.IntRange(0, n-1).Draw(rt, "lease")
		}

		opts := []clientv3.OpOption{}

		switch rapid.IntRange(0, 5).Draw(rt, "kind of put") {
		case 0:
			opts = append(opts, clientv3.WithPrevKV())
		case 1:
			value, opts = "", append(opts, clientv3.WithIgnoreValue())
		case 2:
			lease, opts = -1, append(opts, clientv3.WithIgnoreLease())
		}

		return func(s *side) clientv3.Op {
			if lease >= 0 {
				return clientv3.OpPut(key, value, append(opts[:len(opts):len(opts)], clientv3.WithLease(s.leases[lease]))...)
			}
			return clientv3.OpPut(key, value, opts...)
		}

	case "delete":
		key, end := p.drawSpan(rt)
		opts := []clientv3.OpOption{}
		if end != "" {
			opts = append(opts, clientv3.WithRange(end))
		}

		if rapid.Bool().Draw(rt, "previous") {
			opts = append(opts, clientv3.WithPrevKV())
		}

		return func(*side) clientv3.Op { return clientv3.OpDelete(key, opts...) }

	case "get":
		key, opts := p.drawRange(rt)
		return func(*side) clientv3.Op { return clientv3.OpGet(key, opts...) }
	}

	ifs, then, els := p.drawTxn(rt, depth-1)

	return func(s *side) clientv3.Op { return clientv3.OpTxn(ifs, made(s, then), made(s, els)) }
}

func (p *pair) drawTxn(rt *rapid.T, depth int) (ifs []clientv3.Cmp, then, els []plan) {
	for range rapid.IntRange(0, 2).Draw(rt, "compares") {
		ifs = append(ifs, p.drawCompare(rt))
	}
	return ifs, p.drawOps(rt, depth), p.drawOps(rt, depth)
}

func made(s *side, plans []plan) (ops []clientv3.Op) {
	for _, one := range plans {
		ops = append(ops, one(s))
	}
	return ops
}

func (p *pair) txn(rt *rapid.T) {
	ifs, then, els := p.drawTxn(rt, 2)
	p.same(rt, "txn", func(s *side) (proto.Message, error) {
		resp, err := s.Txn(p.ctx).If(ifs...).Then(made(s, then)...).Else(made(s, els)...).Commit()
		return (*pb.TxnResponse)(resp), err
	})
}
