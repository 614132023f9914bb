package kv

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// anyTxn draws a transaction over few keys, with all kinds of operations and nested to a limited depth.
func anyTxn(t *rapid.T, deep int) Txn {
	return Txn{If: anyCmps(t), Then: anyOps(t, deep), Else: anyOps(t, deep)}
}

func anyKey(t *rapid.T) string {
	return rapid.SampledFrom([]string{
		"a", "b", "c/", "c/1", "c/2", "c0", "d",
		"/c/s/1/h/", "/c/s/1/h/a", "/c/s/1/h/a/x", "/c/s/1/h/b", "/c/s/1/h0", "/c/s/1/q/a", "/c/s/1/", "/c/s/10",
	}).Draw(t, "key")
}

func anyCmps(t *rapid.T) []clientv3.Cmp {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) clientv3.Cmp {
		c := clientv3.Compare(clientv3.Value(anyKey(t)), "=", "some value")
		if rapid.Bool().Draw(t, "of revisions") {
			c = clientv3.Compare(clientv3.ModRevision(anyKey(t)), ">", int64(1)<<62)
		}

		if rapid.IntRange(0, 7).Draw(t, "range") == 0 {
			c = c.WithRange(anyKey(t))
		}

		return c
	}), 0, 2).Draw(t, "cmps")
}

func anyOps(t *rapid.T, deep int) []clientv3.Op {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) clientv3.Op {
		key := anyKey(t)

		switch rapid.IntRange(0, 9).Draw(t, "op") {
		case 0, 1, 2:
			return clientv3.OpPut(key, rapid.StringN(0, 300, 300).Draw(t, "value"), clientv3.WithLease(1<<62), clientv3.WithPrevKV())
		case 3, 4:
			return clientv3.OpDelete(key, clientv3.WithPrevKV())
		case 5:
			return clientv3.OpDelete(key, clientv3.WithRange(anyKey(t)))
		case 6:
			return clientv3.OpGet(key, clientv3.WithFromKey(), clientv3.WithLimit(1<<62), clientv3.WithRev(1<<62),
				clientv3.WithSerializable(), clientv3.WithKeysOnly(), clientv3.WithCountOnly(),
				clientv3.WithMinModRev(1<<62), clientv3.WithMaxModRev(1<<62), clientv3.WithMinCreateRev(1<<62),
				clientv3.WithMaxCreateRev(1<<62), clientv3.WithSort(clientv3.SortByValue, clientv3.SortDescend))
		case 7:
			if deep > 0 {
				n := anyTxn(t, deep-1)
				return clientv3.OpTxn(n.If, n.Then, n.Else)
			}
		}

		return clientv3.OpGet(key)
	}), 0, 3).Draw(t, "ops")
}

func measured(t *rapid.T, txn Txn) *ticket {
	k := newTicket().(*ticket)
	k.txn = txn
	if err := k.measureTxn(txn); err != nil {
		t.Fatal(err)
	}

	return k
}

// conflict reports whether two transactions conflict, by comparing all pairs of their keys and ranges.
func conflict(a, b *ticket) bool {
	type part struct {
		start, end []byte
		writes     bool
	}
	parts := func(t *ticket) (all []part) {
		for _, k := range t.keys {
			if k.key != nil { // a lock that was acquired for a range has no key
				all = append(all, part{k.key, append(slices.Clone(k.key), 0), k.writes})
			}
		}

		for _, s := range t.spans {
			all = append(all, part{s.start, s.end, s.writes})
		}

		return all
	}

	before := func(a, end []byte) bool { return end == nil || bytes.Compare(a, end) < 0 }

	for _, x := range parts(a) {
		for _, y := range parts(b) {
			if (x.writes || y.writes) && before(x.start, y.end) && before(y.start, x.end) {
				return true
			}
		}
	}

	return false
}

func TestTurns_AreOfThoseThatConflictWithNoneBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := lockTable{locks: map[uint64]*lock{}}
		var live []*ticket
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				k := measured(t, anyTxn(t, 1))
				u.acquireAll(k)
				live = append(live, k)
			},
			"leave": func(t *rapid.T) { // the transaction is answered or withdrawn
				if len(live) == 0 {
					t.Skip("nobody is there")
				}

				i := rapid.IntRange(0, len(live)-1).Draw(t, "who")
				k := live[i]
				if live = slices.Delete(live, i, i+1); k.before == 0 {
					u.ready.removeTicket(k)
				}

				k.state = withdrawn
				u.releaseAll(k)
			},
			"": func(t *rapid.T) {
				var want, got []uint64
				for i, k := range live {
					if !slices.ContainsFunc(live[:i], func(o *ticket) bool { return conflict(o, k) }) {
						want = append(want, k.seq)
					}
				}

				for k := u.ready.first; k != nil; k = k.next {
					got = append(got, k.seq)
				}

				if !slices.Equal(want, got) {
					t.Fatalf("ready are %v, want %v", got, want)
				}

				if len(live) == 0 && (len(u.locks) > 0 || len(u.spans.list) > 0 || u.ready.last != nil) {
					t.Fatalf("%d locks and %d ranges are left", len(u.locks), len(u.spans.list))
				}
			},
		})
	})
}

// Two keys with the same hash share a lock. Every range then has to treat the lock as one of its own.
func TestTurns_KeysOfOneHashAreNotLost(t *testing.T) {
	u := lockTable{locks: map[uint64]*lock{}}
	enter := func(txn Txn, hash uint64) *ticket {
		k := newTicket().(*ticket)
		if err := k.measureTxn(txn); err != nil {
			t.Fatal(err)
		}

		for i := range k.keys {
			k.keys[i].hash = hash
		}

		u.acquireAll(k)

		return k
	}

	enter(Txn{Then: []clientv3.Op{clientv3.OpGet("a")}}, 1)
	enter(Txn{Then: []clientv3.Op{clientv3.OpGet("z/1")}}, 1)

	if k := enter(Txn{Then: []clientv3.Op{clientv3.OpDelete("z/", clientv3.WithPrefix())}}, 2); k.before != 1 {
		t.Errorf("a range waits for %d, want 1", k.before)
	}
}

func TestDirOfRange(t *testing.T) {
	const dir = "/c/shards/0001/history/"

	for _, c := range []struct {
		start, end string
		in         string // the directory, or empty
	}{
		{dir, "/c/shards/0001/history0", dir},
		{dir + "ns/a/", dir + "ns/a0", dir},
		{dir + "ns/a/1", dir + "ns/a/2", dir},
		{dir + "ns/a/1", "/c/shards/0001/history0", dir},
		{dir + "ns/a/1", "/c/shards/0001/history0x", ""},
		{dir + "ns/a/1", "/c/shards/0001/queue/", ""},
		{dir + "ns/a/1", "/c/shards/0002/history0", ""},
		{"/c/shards/0001/", "/c/shards/00010", ""},
		{"/c/owners/0001", "/c/owners/0002", ""},
	} {
		want := uint16(noDir)
		if c.in != "" {
			want = dirOf([]byte(c.in + "any/key"))
		}

		if got := dirOfRange([]byte(c.start), []byte(c.end)); got != want {
			t.Errorf("[%s, %s) has directory %d, want %d", c.start, c.end, got, want)
		}
	}
}

// The deletion of a task has ranges in some directories. It must not visit the locks of all transactions that wait.
func TestTurns_ARangeVisitsItsDirectory(t *testing.T) {
	u := lockTable{locks: map[uint64]*lock{}}
	enter := func(txn Txn) *ticket {
		k := newTicket().(*ticket)
		if err := k.measureTxn(txn); err != nil {
			t.Fatal(err)
		}

		u.acquireAll(k)

		return k
	}

	for i := range 8192 {
		task := fmt.Sprintf("/carillon/shards/%04d/tasks/default/t%d", i%64, i)
		run := fmt.Sprintf("/carillon/runs/node-1/%04d/default/t%d/1", i%64, i)
		enter(Txn{
			If:   []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(task), "=", 1)},
			Then: []clientv3.Op{clientv3.OpPut(run, "v"), clientv3.OpDelete(fmt.Sprintf("/carillon/shards/%04d/history/default/t%d/", i%64, i), clientv3.WithPrefix())},
		})
	}

	visited := 0
	for _, kind := range []string{"dead", "history", "ledger", "parts", "queue", "tasks"} {
		k := enter(Txn{Then: []clientv3.Op{clientv3.OpDelete("/carillon/shards/0001/"+kind+"/default/t1/", clientv3.WithPrefix())}})
		s := k.spans[0]
		u.eachLockNear(s, func(*lock) { visited++ })
		u.eachSpanNear(s, func(span) { visited++ })

		if want := kind == "history"; (k.before == 1) != want {
			t.Errorf("the range of %s waits for %d", kind, k.before)
		}
	}

	// Only directories with the same number and those of the shard are visited: a few hundred of 16,384 locks and
	// 8,192 ranges, for each of the six.
	t.Logf("%d locks and ranges are visited", visited)
	if visited > 3000 {
		t.Errorf("%d locks and ranges are visited", visited)
	}
}

// capture keeps the last transaction that a client sends.
type capture struct {
	pb.KVClient
	txn *pb.TxnRequest
}

func (c *capture) Txn(_ context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	c.txn = r
	return &pb.TxnResponse{}, nil
}

func TestFootprint_IsNoSmallerThanTheRequest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &capture{}
		etcd := clientv3.NewKVFromKVClient(c, nil)
		pack := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Txn { return anyTxn(t, 2) }), 1, 5).Draw(t, "pack")
		bytes := txnBytes
		var nested []clientv3.Op
		for _, txn := range pack {
			bytes += measured(t, txn).bytes
			nested = append(nested, clientv3.OpTxn(txn.If, txn.Then, txn.Else))
		}

		if _, err := etcd.Txn(context.Background()).Then(nested...).Commit(); err != nil {
			t.Fatal(err)
		}

		if size := proto.Size(c.txn); size > bytes {
			t.Fatalf("a request of %d bytes was taken for one of %d", size, bytes)
		}
	})
}

func TestBatcher_FillsWithinItsLimitsTheOldestFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewBatcher(nil, BatcherConfig{MaxSiblings: rapid.IntRange(1, 20).Draw(t, "siblings"), MaxBytes: 40_000})
		n := rapid.IntRange(1, 40).Draw(t, "n")
		for i := range n {
			var txn Txn
			for j := range rapid.IntRange(1, 100).Draw(t, "ops") {
				value := make([]byte, rapid.IntRange(0, 1000).Draw(t, "bytes"))
				txn.Then = append(txn.Then, clientv3.OpPut(fmt.Sprint(i, "/", j), string(value)))
			}

			b.room <- struct{}{}
			b.turns.acquireAll(measured(t, txn))
		}

		sent := 0
		for b.turns.ready.first != nil {
			oldest := b.turns.ready.first
			pack := b.fillPack(nil)
			depth, bytes := 0, txnBytes
			for _, k := range pack {
				depth, bytes = max(depth, k.depth), bytes+k.bytes
			}

			if sent += len(pack); pack[0] != oldest {
				t.Fatal("the oldest was passed over")
			}

			if len(pack) > 1 && (len(pack) > b.cfg.MaxSiblings || len(pack)+depth > b.cfg.MaxOps || bytes > b.cfg.MaxBytes) {
				t.Fatalf("%d transactions of up to %d operations in %d bytes", len(pack), depth, bytes)
			}
		}

		if sent != n || len(b.room) != 0 {
			t.Fatalf("%d of %d packed", sent, n)
		}
	})
}

// failingKV is an etcd that applies nothing, and sometimes returns an error for that.
type failingKV struct{ pb.KVClient }

func (failingKV) Txn(_ context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	switch rand.N(10) {
	case 0:
		return nil, rpctypes.ErrTooManyRequests
	case 1:
		return nil, rpctypes.ErrTimeout
	case 2:
		time.Sleep(time.Millisecond)
	}

	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: true}
	for _, op := range r.Success {
		if n := op.GetRequestTxn(); n != nil {
			if len(n.Success) > 2 {
				return nil, rpctypes.ErrDuplicateKey
			}
			resp.Responses = append(resp.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{}}})
		}
	}

	return resp, nil
}

func TestBatcher_StressLeavesNothingBehind(t *testing.T) {
	b := NewBatcher(clientv3.NewKVFromKVClient(failingKV{}, nil), BatcherConfig{Queue: 40})
	ctx, cancel := context.WithCancel(t.Context())
	var run, callers sync.WaitGroup
	run.Go(func() { _ = b.Run(ctx) })
	load := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Txn { return anyTxn(t, 1) }), 50, 50)

	for i := range 64 {
		txns := load.Example(i)
		callers.Go(func() {
			for _, txn := range txns {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(20*time.Millisecond))
				_, _ = b.Commit(ctx, txn)
				cancel()
			}
		})
	}

	callers.Wait()
	cancel()
	run.Wait()

	if u := &b.turns; len(b.room) > 0 || len(u.locks) > 0 || len(u.spans.list) > 0 || u.ready.first != nil {
		t.Errorf("%d wait, %d locks, %d ranges", len(b.room), len(u.locks), len(u.spans.list))
	}
}

// BenchmarkTurns measures what the lock table costs the dispatch of a tick (three fences, the own state and a new
// run) while 1,000 other transactions wait.
func BenchmarkTurns(b *testing.B) {
	for _, ranges := range []int{0, 1, 100} {
		b.Run(fmt.Sprintf("ranges=%d", ranges), func(b *testing.B) {
			u := lockTable{locks: map[uint64]*lock{}}
			live := make([]*ticket, 1000)
			for i := range live {
				mark := fmt.Sprintf("/carillon/shards/%04d/watermark", i)
				txn := Txn{
					If: []clientv3.Cmp{
						clientv3.Compare(clientv3.ModRevision(fmt.Sprintf("/carillon/owners/%04d", i)), "=", 1),
						clientv3.Compare(clientv3.CreateRevision("/carillon/nodes/node-1"), "=", 1),
						clientv3.Compare(clientv3.ModRevision(mark), "=", 1),
					},
					Then: []clientv3.Op{clientv3.OpPut(mark, "v"), clientv3.OpPut(fmt.Sprintf("/carillon/runs/node-1/%04d/default/backup/1", i), "v")},
				}
				if i < ranges {
					txn = Txn{Then: []clientv3.Op{clientv3.OpDelete(fmt.Sprintf("/carillon/shards/%04d/history/", i), clientv3.WithPrefix())}}
				}

				live[i] = newTicket().(*ticket)
				live[i].txn = txn
			}

			for i := 0; b.Loop(); i++ {
				k := live[i%len(live)]
				if k.seq > 0 {
					u.ready.removeTicket(k)
					u.releaseAll(k)
				}

				k.footprint.reset()
				_ = k.measureTxn(k.txn)
				u.acquireAll(k)
			}
		})
	}
}
