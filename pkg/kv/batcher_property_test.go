package kv_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// randomTxn draws a transaction over few keys whose comparisons hold now and then.
func randomTxn(t *rapid.T, nested int) kv.Txn {
	key := func() string {
		return rapid.SampledFrom([]string{"p/a", "p/b", "p/c", "q/a", "q/b", "r"}).Draw(t, "key")
	}

	limits := func() clientv3.OpOption {
		return rapid.SampledFrom([]clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithRange("q/b"), clientv3.WithFromKey()}).Draw(t, "range")
	}

	var txn kv.Txn
	for range rapid.IntRange(0, 2).Draw(t, "cmps") {
		relation := rapid.SampledFrom([]string{"=", ">", "<", "!="}).Draw(t, "relation")
		var c clientv3.Cmp

		switch rapid.IntRange(0, 4).Draw(t, "cmp") {
		case 0:
			c = clientv3.Compare(clientv3.Value(key()), relation, rapid.SampledFrom([]string{"x", "y"}).Draw(t, "value"))
		case 1:
			c = clientv3.Compare(clientv3.CreateRevision(key()), relation, 0)
		case 2:
			c = clientv3.Compare(clientv3.ModRevision(key()), relation, rapid.Int64Range(0, 60).Draw(t, "rev"))
		case 3:
			c = clientv3.Compare(clientv3.Version(key()), relation, rapid.Int64Range(0, 3).Draw(t, "version"))
		case 4:
			c = clientv3.Compare(clientv3.Version("p/"), relation, rapid.Int64Range(0, 3).Draw(t, "version")).WithPrefix()
		}

		txn.If = append(txn.If, c)
	}

	ops := func() (ops []clientv3.Op) {
		for range rapid.IntRange(0, 2).Draw(t, "ops") {
			switch rapid.IntRange(0, 8).Draw(t, "op") {
			case 0, 1, 2:
				ops = append(ops, clientv3.OpPut(key(), rapid.SampledFrom([]string{"x", "y"}).Draw(t, "value")))
			case 3, 4:
				ops = append(ops, clientv3.OpGet(key()))
			case 5:
				ops = append(ops, clientv3.OpDelete(key()))
			case 6:
				ops = append(ops, clientv3.OpDelete("p/", clientv3.WithPrefix()))
			case 7:
				ops = append(ops, clientv3.OpGet("p/b", limits()))
			case 8:
				if nested > 0 {
					n := randomTxn(t, nested-1)
					ops = append(ops, clientv3.OpTxn(n.If, n.Then, n.Else))
				}
			}
		}

		return ops
	}

	txn.Then, txn.Else = ops(), ops()

	return txn
}

// The long form of this test uses a real etcd.
func TestBatcher_AnswersAreThoseOfOneByOne(t *testing.T) {
	t.Parallel()

	c := kvtest.Memory(t)
	if !testing.Short() {
		c = kvtest.Start(t)
	}

	rapid.Check(t, func(rt *rapid.T) {
		if _, err := c.Delete(t.Context(), "", clientv3.WithPrefix()); err != nil {
			rt.Fatal(err)
		}

		load := make([][]kv.Txn, 12)
		for i := range load {
			load[i] = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) kv.Txn { return randomTxn(t, 1) }), 1, 12).Draw(rt, "caller")
		}

		b := runBatcher(t, c, kv.BatcherConfig{InFlight: rapid.IntRange(1, 4).Draw(rt, "in flight")})
		defer b.stop()

		answered, refused := runCalls(rt, b, load)
		m := model{}
		if err := m.explain(answered); err != nil {
			rt.Fatal(err)
		}

		resp, err := c.Get(t.Context(), "", clientv3.WithPrefix())
		if err != nil {
			rt.Fatal(err)
		}

		held := model{}
		for _, e := range resp.Kvs {
			held[string(e.Key)] = entryOf(e)
		}

		if !maps.Equal(held, m) {
			rt.Fatalf("etcd holds %v, and one by one it is %v", held, m)
		}

		for _, txn := range refused {
			if _, err := kv.Direct(c).Commit(t.Context(), txn); err == nil || kv.Unknown(err) {
				rt.Fatalf("a transaction was refused that etcd accepts when it is alone: %v", err)
			}
		}
	})
}

// runCalls makes each caller commit its transactions one after another.
func runCalls(t *rapid.T, c kv.Committer, load [][]kv.Txn) (answered []call, refused []kv.Txn) {
	var clock atomic.Int64
	var mu sync.Mutex
	var callers sync.WaitGroup

	for _, txns := range load {
		callers.Go(func() {
			for _, txn := range txns {
				one := call{txn: txn, begun: clock.Add(1)}
				var err error
				one.res, err = c.Commit(t.Context(), txn)
				one.ended = clock.Add(1)
				mu.Lock()
				switch {
				case err == nil:
					answered = append(answered, one)
				case errors.Is(err, rpctypes.ErrDuplicateKey):
					refused = append(refused, txn)
				default:
					t.Errorf("commit: %v", err)
				}
				mu.Unlock()
			}
		})
	}

	callers.Wait()

	return answered, refused
}

// This test verifies that the check of the previous test detects a violation.
func TestBatcher_OneByOneCatchesConflictsInOneRequest(t *testing.T) {
	c := kvtest.Memory(t)
	take := func(who string) kv.Txn {
		return kv.Txn{
			If:   []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision("taken"), "=", 0)},
			Then: []clientv3.Op{clientv3.OpPut(who, "v")},
			Else: []clientv3.Op{clientv3.OpGet("taken")},
		}
	}

	both := []kv.Txn{take("taken"), take("b")}
	res, err := kv.Direct(c).Commit(t.Context(), kv.Txn{Then: []clientv3.Op{
		clientv3.OpTxn(both[0].If, both[0].Then, both[0].Else), clientv3.OpTxn(both[1].If, both[1].Then, both[1].Else),
	}})
	if err != nil {
		t.Fatal(err)
	}

	var calls []call
	for i, r := range res.Responses {
		n := r.GetResponseTxn()
		calls = append(calls, call{txn: both[i], begun: 1, ended: 2, res: kv.Result{Succeeded: n.Succeeded, Revision: res.Revision, Responses: n.Responses}})
	}

	if err := (model{}).explain(calls); err == nil {
		t.Error("one put the key that the other wanted absent, both succeeded, and that was explained")
	}
}

// etcd must accept every request that the Batcher fills, up to the limit of operations and up to that of bytes.
func TestBatcher_PacksNothingThatEtcdRefuses(t *testing.T) {
	c := kvtest.Start(t)
	b, w, _, release := heldBatcher(t, c, kv.BatcherConfig{MaxSiblings: 128}, nil)
	var all []<-chan answer
	add := func(txn kv.Txn) { all = append(all, b.queue(t.Context(), txn)) }

	for n := range 130 { // small transactions, then ones with many operations, some of them nested
		add(putting(numbered(n)))
	}

	for n := range 40 {
		var txn kv.Txn
		for i := range 1 + 37*n%120 {
			key := fmt.Sprintf("%d/%d", n, i)
			op := clientv3.OpPut(key, "v")
			if n%5 == 0 && i < 60 {
				op = clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Version(key), "=", 0)}, []clientv3.Op{op}, nil)
			}

			if n%5 != 0 || i < 60 {
				txn.Then = append(txn.Then, op)
			}
		}

		add(txn)
	}

	for n := range 60 { // large transactions
		add(kv.Txn{Then: []clientv3.Op{clientv3.OpPut(fmt.Sprint("large/", n), strings.Repeat("x", 7919*n%300_000))}})
	}

	release()

	for i, a := range all {
		if got := <-a; got.err != nil || !got.Succeeded {
			t.Errorf("transaction %d: %v", i, got.err)
		}
	}

	if n := b.count("halved_total"); n != 0 {
		t.Errorf("%d requests were refused", n)
	}

	most := 0
	for _, r := range w.requests() {
		most = max(most, siblings(r))
	}

	if most != 127 || len(w.requests()) > 60 {
		t.Errorf("%d requests, the largest of %d transactions; 127 fit", len(w.requests()), most)
	}
}

// A commit of 120 operations leaves room for seven more transactions of any size in its request. Most of the small
// transactions do not share a request with such a commit.
func TestBatcher_PacksLargeAmongSmall(t *testing.T) {
	c := kvtest.Memory(t)
	b, w, _, release := heldBatcher(t, c, kv.BatcherConfig{}, nil)

	var all []<-chan answer
	for n := range 200 {
		txn := putting(numbered(n))
		if n%10 == 3 {
			for i := range 119 {
				key := fmt.Sprintf("large/%d/%d", n, i)
				txn.If = append(txn.If, clientv3.Compare(clientv3.ModRevision(key), "=", 0))
				txn.Then = append(txn.Then, clientv3.OpPut(key, "v"))
			}
		}

		all = append(all, b.queue(t.Context(), txn))
	}

	release()

	for i, a := range all {
		if got := within(t, time.Minute, "an answer", a); got.err != nil || !got.Succeeded {
			t.Errorf("transaction %d: %v", i, got.err)
		}
	}

	// The optimum is five requests: three with eight large transactions each, two with 96 small ones each. In strict order
	// of entry, there would be 25.
	if n := len(w.requests()) - 1; n > 10 || b.count("halved_total") > 0 {
		t.Errorf("%d requests, %d halved", n, b.count("halved_total"))
	}
}
