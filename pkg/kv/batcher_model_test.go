package kv_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
)

// call is one Commit and its result. begun and ended are times of one logical clock that all callers share.
type call struct {
	txn          kv.Txn
	res          kv.Result
	begun, ended int64
	wrote        bool
}

// explain executes the calls one by one, in the order that their revisions claim, and returns an error if a result is
// impossible. It leaves the final state in m.
func (m model) explain(calls []call) error {
	for i := range calls {
		calls[i].wrote = wrote(calls[i].res.Responses)
	}

	// Some calls with the same revision share the request that created it. A call that writes nothing is executed after
	// those that write: it conflicts with none of them, or was a separate request.
	slices.SortFunc(calls, func(a, b call) int {
		if a.res.Revision != b.res.Revision || a.wrote == b.wrote {
			return cmp.Or(cmp.Compare(a.res.Revision, b.res.Revision), cmp.Compare(a.begun, b.begun))
		}
		if a.wrote {
			return -1
		}

		return 1
	})

	latest := int64(0) // the latest begin so far
	for i, c := range calls {
		if c.ended < latest {
			return fmt.Errorf("call %d at revision %d ended before one began that took place before it", i, c.res.Revision)
		}

		latest = max(latest, c.begun)

		if got, want := show(c.res.Succeeded, c.res.Responses), m.txn(c.txn, c.res.Revision); got != want {
			return fmt.Errorf("call %d at revision %d was answered with\n%s\nand one by one it is\n%s", i, c.res.Revision, got, want)
		}
	}

	return nil
}

func wrote(responses []*etcdserverpb.ResponseOp) bool {
	return slices.ContainsFunc(responses, func(r *etcdserverpb.ResponseOp) bool {
		return r.GetResponsePut() != nil || r.GetResponseDeleteRange().GetDeleted() > 0 || wrote(r.GetResponseTxn().GetResponses())
	})
}

// model is the content of etcd, by key.
type model map[string]entry

type entry struct {
	value                string
	create, mod, version int64
}

func entryOf(e *mvccpb.KeyValue) entry {
	return entry{string(e.Value), e.CreateRevision, e.ModRevision, e.Version}
}

func (m model) holds(cmps []clientv3.Cmp) bool {
	for _, c := range cmps {
		p := c.GetCompare()
		found := m.in(p.Key, p.RangeEnd)
		if len(found) == 0 {
			if p.Target == etcdserverpb.Compare_VALUE {
				return false
			}
			found = []string{""} // an absent key, whose numbers are all 0
		}

		for _, k := range found {
			e := m[k]
			var order int

			switch p.Target {
			case etcdserverpb.Compare_VALUE:
				order = cmp.Compare(e.value, string(p.GetValue()))
			case etcdserverpb.Compare_CREATE:
				order = cmp.Compare(e.create, p.GetCreateRevision())
			case etcdserverpb.Compare_MOD:
				order = cmp.Compare(e.mod, p.GetModRevision())
			case etcdserverpb.Compare_VERSION:
				order = cmp.Compare(e.version, p.GetVersion())
			}

			if !map[etcdserverpb.Compare_CompareResult]bool{
				etcdserverpb.Compare_EQUAL: order == 0, etcdserverpb.Compare_NOT_EQUAL: order != 0,
				etcdserverpb.Compare_GREATER: order > 0, etcdserverpb.Compare_LESS: order < 0,
			}[p.Result] {
				return false
			}
		}
	}

	return true
}

func (m model) in(key, end []byte) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(k string) bool {
		if end == nil {
			return k != string(key)
		}
		return k < string(key) || string(end) != "\x00" && k >= string(end)
	})
}

// txn executes one transaction and returns the answer that etcd must give, in the format of show.
func (m model) txn(t kv.Txn, rev int64) string {
	return m.execute(m.plan(t), rev)
}

// plan evaluates all comparisons, including nested ones, before anything is written.
func (m model) plan(t kv.Txn) planned {
	p := planned{succeeded: m.holds(t.If), ops: t.Else}
	if p.succeeded {
		p.ops = t.Then
	}

	for _, op := range p.ops {
		n := planned{}
		if op.IsTxn() {
			cmps, then, els := op.Txn()
			n = m.plan(kv.Txn{If: cmps, Then: then, Else: els})
		}

		p.nested = append(p.nested, n)
	}

	return p
}

type planned struct {
	succeeded bool
	ops       []clientv3.Op
	nested    []planned
}

func (m model) execute(p planned, rev int64) string {
	out := fmt.Sprint(p.succeeded)
	for i, op := range p.ops {
		found := m.in(op.KeyBytes(), op.RangeBytes())

		switch {
		case op.IsTxn():
			out += " {" + m.execute(p.nested[i], rev) + "}"
		case op.IsGet():
			out += fmt.Sprintf(" get %d", len(found))
			for _, k := range found {
				out += m[k].show(k)
			}
		case op.IsDelete():
			out += fmt.Sprintf(" delete %d", len(found))
			for _, k := range found {
				delete(m, k)
			}
		case op.IsPut():
			out += " put"
			e := m[string(op.KeyBytes())]
			if e.version == 0 {
				e.create = rev
			}

			e.value, e.mod, e.version = string(op.ValueBytes()), rev, e.version+1
			m[string(op.KeyBytes())] = e
		}
	}

	return out
}

func show(succeeded bool, responses []*etcdserverpb.ResponseOp) string {
	out := fmt.Sprint(succeeded)
	for _, r := range responses {
		switch r := r.Response.(type) {
		case *etcdserverpb.ResponseOp_ResponseTxn:
			out += " {" + show(r.ResponseTxn.Succeeded, r.ResponseTxn.Responses) + "}"
		case *etcdserverpb.ResponseOp_ResponseRange:
			out += fmt.Sprintf(" get %d", r.ResponseRange.Count)
			for _, e := range r.ResponseRange.Kvs {
				out += entryOf(e).show(string(e.Key))
			}
		case *etcdserverpb.ResponseOp_ResponseDeleteRange:
			out += fmt.Sprintf(" delete %d", r.ResponseDeleteRange.Deleted)
		case *etcdserverpb.ResponseOp_ResponsePut:
			out += " put"
		}
	}

	return out
}

func (e entry) show(key string) string {
	return fmt.Sprintf(" %s=%s@%d,%d,%d", key, e.value, e.create, e.mod, e.version)
}
