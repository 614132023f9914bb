package kv_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

func TestBatcher_SendsAtOnceWhenIdleAndTogetherWhenBusy(t *testing.T) {
	c := kvtest.Memory(t)
	b, w, first, release := heldBatcher(t, c, kv.BatcherConfig{}, nil)
	rev := put(t, c, "guarded", "v")

	var others []<-chan answer
	for i := range 10 {
		others = append(others, b.queue(t.Context(), putting(numbered(i))))
	}

	lost := b.queue(t.Context(), kv.Txn{
		If:   []clientv3.Cmp{kv.ModFence("guarded", rev-1).Compare()},
		Then: []clientv3.Op{clientv3.OpPut("guarded", "w")},
		Else: []clientv3.Op{clientv3.OpGet("guarded")},
	})
	release()

	if a := within(t, time.Minute, "the first", first); a.err != nil || !a.Succeeded || a.Revision <= rev-1 {
		t.Errorf("%+v", a)
	}

	common := int64(0)
	for _, o := range others {
		a := within(t, time.Minute, "a sibling", o)
		if a.err != nil || !a.Succeeded || a.Revision <= rev || common != 0 && a.Revision != common {
			t.Errorf("%+v, others at revision %d", a, common)
		}
		common = a.Revision
	}

	a := within(t, time.Minute, "the one that fails", lost)
	if a.err != nil || a.Succeeded || a.Revision != common {
		t.Fatalf("%+v", a)
	}

	if found := a.Responses[0].GetResponseRange().Kvs[0]; found.ModRevision != rev || string(found.Value) != "v" {
		t.Errorf("the else branch read %v", found)
	}

	sent := w.requests()
	if len(sent) != 2 || siblings(sent[0]) != 1 || siblings(sent[1]) != 11 {
		t.Errorf("%d requests, want one flat and one of eleven", len(sent))
	}

	if b.count("requests_total") != 2 || b.count("transactions") != 2 || b.count("queue") != 0 {
		t.Error("the metrics say otherwise")
	}
}

func TestBatcher_BeginsAnotherRequestWhenEnoughHasComeTogether(t *testing.T) {
	c := kvtest.Memory(t)
	hold := make(chan struct{})
	w := &wire{KV: c, before: func(n int) error {
		if n < 2 {
			await(t, hold)
		}
		return nil
	}}

	b := runBatcher(t, w, kv.BatcherConfig{InFlight: 3, Patience: time.Hour})
	one := b.commit(t.Context(), putting("alone")) // sent at once, because etcd is idle
	eventually(t, "a request under way", func() bool { return len(w.requests()) == 1 })

	var others []<-chan answer
	for i := range 15 {
		others = append(others, b.queue(t.Context(), putting(numbered(i))))
	}

	if n := len(w.requests()); n != 1 {
		t.Fatalf("%d requests; fifteen puts are not worth another one yet", n)
	}

	others = append(others, b.commit(t.Context(), putting(numbered(15))))
	eventually(t, "two requests under way", func() bool { return len(w.requests()) == 2 })

	// A large transaction justifies a third request, although others wait before it.
	last := b.queue(t.Context(), putting("small"))

	var many []string
	for i := range 40 {
		many = append(many, numbered(100+i))
	}

	for _, a := range []<-chan answer{b.commit(t.Context(), putting(many...)), last} {
		if got := within(t, time.Minute, "the third request", a); got.err != nil {
			t.Error(got.err)
		}
	}

	close(hold)

	for _, a := range append(others, one) {
		if got := within(t, time.Minute, "what was under way", a); got.err != nil {
			t.Error(got.err)
		}
	}

	var sizes []int
	for _, r := range w.requests() {
		sizes = append(sizes, siblings(r))
	}

	if !slices.Equal(sizes, []int{1, 16, 2}) {
		t.Errorf("requests of %v transactions", sizes)
	}
}

// A transaction that does not justify a request is sent when the request in flight is answered, by whichever sender
// is free.
func TestBatcher_LeavesNobodyBehind(t *testing.T) {
	c := kvtest.Memory(t)
	hold := make(chan struct{})
	w := &wire{KV: c, before: func(n int) error {
		if n == 0 {
			await(t, hold)
		}
		return nil
	}}

	b := runBatcher(t, w, kv.BatcherConfig{InFlight: 4, Patience: time.Hour})
	first := b.commit(t.Context(), putting("first"))
	eventually(t, "a request under way", func() bool { return len(w.requests()) == 1 })
	alone := b.queue(t.Context(), putting("a"))
	close(hold)
	within(t, time.Minute, "the first", first)

	if a := within(t, time.Minute, "the one that waited", alone); a.err != nil || len(w.requests()) != 2 {
		t.Errorf("%v, %d requests", a.err, len(w.requests()))
	}
}

// A request that hangs does not delay other transactions for long.
func TestBatcher_LosesPatienceWithARequestThatHangs(t *testing.T) {
	c := kvtest.Memory(t)
	hold := make(chan struct{})
	w := &wire{KV: c, before: func(n int) error {
		if n == 0 {
			await(t, hold)
		}
		return nil
	}}

	b := runBatcher(t, w, kv.BatcherConfig{InFlight: 2})
	first := b.commit(t.Context(), putting("first"))
	eventually(t, "a request under way", func() bool { return len(w.requests()) == 1 })

	for i := range 3 { // a new Batcher each time
		if a := within(t, time.Minute, "one of little weight", b.commit(t.Context(), putting(numbered(i)))); a.err != nil {
			t.Error(a.err)
		}
	}

	close(hold)
	within(t, time.Minute, "the first", first)
}

func TestBatcher_KeepsTheOrderOfThoseThatConflict(t *testing.T) {
	c := kvtest.Memory(t)
	hold := make(chan struct{})
	w := &wire{KV: c, before: func(n int) error {
		if n == 0 {
			await(t, hold)
		}
		return nil
	}}

	b := runBatcher(t, w, kv.BatcherConfig{InFlight: 4, Patience: time.Hour}) // three senders could overtake
	var writers, readers []<-chan answer
	prefix := clientv3.WithPrefix()

	for i := range 20 {
		txn := putting("log/last")

		switch i % 4 {
		case 1:
			txn = kv.Txn{Then: []clientv3.Op{clientv3.OpDelete("log/", prefix), clientv3.OpPut("other", "v")}}
		case 2:
			txn.If = []clientv3.Cmp{clientv3.Compare(clientv3.Version("log/"), ">", -1).WithPrefix()}
		}

		if i == 0 {
			writers = append(writers, b.commit(t.Context(), txn))
			eventually(t, "the first under way", func() bool { return len(w.requests()) == 1 })
			continue
		}

		writers = append(writers, b.queue(t.Context(), txn))
		readers = append(readers, b.queue(t.Context(), kv.Txn{Then: []clientv3.Op{clientv3.OpGet("log/last")}}))
	}

	var free []string // enough keys for a separate request
	for i := range 40 {
		free = append(free, numbered(i))
	}

	if free := within(t, time.Minute, "one that conflicts with none", b.commit(t.Context(), putting(free...))); free.err != nil {
		t.Error(free.err)
	}

	if n := len(w.requests()); n != 2 {
		t.Errorf("%d requests before the first one's answer, want it and the free one", n)
	}

	close(hold)
	var last int64
	for i, a := range writers {
		got := within(t, time.Minute, "a writer", a)
		if got.err != nil || got.Revision <= last {
			t.Fatalf("writer %d: revision %d after %d, %v", i, got.Revision, last, got.err)
		}

		if last = got.Revision; i == 0 {
			continue
		}

		read := within(t, time.Minute, "a reader", readers[i-1])
		if read.err != nil || read.Revision < last {
			t.Fatalf("reader %d: revision %d after %d, %v", i, read.Revision, last, read.err)
		}

		found := read.Responses[0].GetResponseRange().Kvs
		if deleted := i%4 == 1; deleted != (len(found) == 0) || !deleted && found[0].ModRevision != last {
			t.Fatalf("reader %d found %v after writer %d", i, found, last)
		}
	}

	for _, r := range w.requests() {
		if siblings(r) != 1 {
			t.Error("two that conflict shared a request")
		}
	}

	if b.count("deferred_total") != 38 {
		t.Errorf("%d deferred", b.count("deferred_total"))
	}
}

// Verifies: G19
func TestBatcher_HalvesDownToTheCulprit(t *testing.T) {
	c := kvtest.Memory(t)
	b, w, _, release := heldBatcher(t, c, kv.BatcherConfig{}, nil)
	culprits := map[int]kv.Txn{
		5:  putting("twice", "twice"),
		17: {Then: []clientv3.Op{clientv3.OpPut("leased", "v", clientv3.WithLease(4711))}},
		18: {Then: []clientv3.Op{clientv3.OpPut("", "v")}},
		30: {Then: []clientv3.Op{clientv3.OpPut("x", "v"), clientv3.OpGet("y", clientv3.WithRev(1<<40))}},
	}
	var all []<-chan answer
	for i := range 40 {
		txn, ok := culprits[i]
		if !ok {
			txn = putting(numbered(i))
		}
		all = append(all, b.queue(t.Context(), txn))
	}

	release()

	for i, a := range all {
		got := within(t, time.Minute, "an answer", a)
		if _, bad := culprits[i]; bad != (got.err != nil) || kv.Unknown(got.err) {
			t.Errorf("transaction %d: %v", i, got.err)
		}
	}

	resp, err := c.Get(t.Context(), "k/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || resp.Count != 36 {
		t.Errorf("%d of 36 were written, %v", resp.Count, err)
	}

	if n := b.count("halved_total"); n < 4 || n > 4*6 || len(w.requests()) > 2+2*n {
		t.Errorf("halved %d times, %d requests", n, len(w.requests()))
	}
}

func TestBatcher_LoneGiantGetsEtcdsOwnError(t *testing.T) {
	c := kvtest.Memory(t)
	b, _, _, release := heldBatcher(t, c, kv.BatcherConfig{}, nil)

	many := make([]string, 129)
	for i := range many {
		many[i] = numbered(i)
	}

	large := kv.Txn{Then: []clientv3.Op{clientv3.OpPut("large", strings.Repeat("x", 1600<<10))}}
	answers := []<-chan answer{
		b.queue(t.Context(), putting(many...)), b.queue(t.Context(), large),
		b.queue(t.Context(), putting("a")), b.queue(t.Context(), putting("b")),
	}
	release()

	for i, want := range []error{rpctypes.ErrTooManyOps, rpctypes.ErrRequestTooLarge, nil, nil} {
		if got := within(t, time.Minute, "an answer", answers[i]); !errors.Is(got.err, want) || kv.Unknown(got.err) {
			t.Errorf("transaction %d: %v, want %v", i, got.err, want)
		}
	}

	if n := b.count("halved_total"); n != 0 {
		t.Errorf("halved %d times", n)
	}
}

func TestBatcher_ZeroOperationIsRefused(t *testing.T) {
	b := kv.NewBatcher(nil, kv.BatcherConfig{})
	nested := clientv3.OpTxn(nil, nil, []clientv3.Op{{}})
	if _, err := b.Commit(t.Context(), kv.Txn{Then: []clientv3.Op{nested}}); err == nil || kv.Unknown(err) {
		t.Error(err)
	}
}

func TestBatcher_UnknownGoesToEachAndIsNeverSentAgain(t *testing.T) {
	c := kvtest.Memory(t)

	for _, failure := range []error{
		status.Error(codes.Unavailable, "connection reset"), rpctypes.ErrTimeout, rpctypes.ErrNoSpace, context.DeadlineExceeded,
	} {
		b, w, _, release := heldBatcher(t, c, kv.BatcherConfig{}, func(n int) error {
			if n == 1 {
				return failure
			}
			return nil
		})

		var all []<-chan answer
		for i := range 5 {
			all = append(all, b.queue(t.Context(), putting(numbered(i))))
		}

		release()

		for _, a := range all {
			if got := within(t, time.Minute, "an answer", a); !kv.Unknown(got.err) || kv.NoSpace(failure) != kv.NoSpace(got.err) {
				t.Errorf("%v, want an unknown outcome because of %v", got.err, failure)
			}
		}

		if a := within(t, time.Minute, "the next", b.commit(t.Context(), putting(numbered(0)))); a.err != nil {
			t.Error(a.err)
		}

		if n := len(w.requests()); n != 3 {
			t.Errorf("%d requests, want three", n)
		}

		b.stop()
	}
}

// A full etcd accepts transactions without puts, so they must not fail together with others.
func TestBatcher_SendsThoseThatNeedNoSpaceApart(t *testing.T) {
	c := kvtest.Memory(t)
	b, w, _, release := heldBatcher(t, c, kv.BatcherConfig{}, nil)

	var all []<-chan answer
	for i := range 12 {
		txn := putting(numbered(i))
		if i%3 == 0 {
			txn = kv.Txn{Then: []clientv3.Op{clientv3.OpDelete(numbered(i))}}
		}
		all = append(all, b.queue(t.Context(), txn))
	}

	release()

	for _, a := range all {
		if got := within(t, time.Minute, "an answer", a); got.err != nil {
			t.Error(got.err)
		}
	}

	sent := w.requests()
	if len(sent) != 3 || siblings(sent[1]) != 4 || siblings(sent[2]) != 8 {
		t.Errorf("%d requests, want four deletes and eight puts", len(sent))
	}
}
