package kv_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

func TestBatcher_CancelledBeforeSendingIsLeftOut(t *testing.T) {
	c := kvtest.Memory(t)
	b, w, _, release := heldBatcher(t, c, kv.BatcherConfig{}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	gone := b.queue(ctx, putting("gone", "both"))
	behind := b.queue(t.Context(), putting("behind", "both"))
	alsoGone := b.queue(ctx, putting("also gone", "both")) // it waits for a transaction that waits itself
	last := b.queue(t.Context(), putting("last", "both"))
	cancel()

	for _, a := range []<-chan answer{gone, alsoGone} {
		if got := within(t, time.Minute, "the cancelled one", a); !errors.Is(got.err, context.Canceled) || kv.Unknown(got.err) {
			t.Errorf("%v, want a definite cancellation", got.err)
		}
	}

	release()

	for _, a := range []<-chan answer{behind, last} {
		if got := within(t, time.Minute, "one behind", a); got.err != nil {
			t.Error(got.err)
		}
	}

	if got := within(t, time.Minute, "an ended context", b.commit(ctx, putting("late"))); !errors.Is(got.err, context.Canceled) || kv.Unknown(got.err) {
		t.Errorf("%v, want a definite cancellation", got.err)
	}

	resp, err := c.Get(t.Context(), "", clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 4 || len(w.requests()) != 3 { // the requests are: first; behind and last; both
		t.Errorf("%d keys, %d requests, %v", len(resp.Kvs), len(w.requests()), err)
	}

	if b.count("queue") != 0 {
		t.Errorf("%d in the queue", b.count("queue"))
	}
}

func TestBatcher_CancelledAfterSendingIsUnknownAtOnceAndCutsNobody(t *testing.T) {
	c := kvtest.Memory(t)
	hold := make(chan struct{})
	b, w, _, release := heldBatcher(t, c, kv.BatcherConfig{}, func(n int) error {
		if n == 1 {
			await(t, hold)
		}
		return nil
	})

	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	gone := b.queue(ctx, putting("gone"))
	stays := b.queue(t.Context(), putting("stays"))
	release()
	eventually(t, "both under way", func() bool { return len(w.requests()) == 2 })
	cancel()

	if got := within(t, time.Minute, "the cancelled one", gone); !errors.Is(got.err, context.Canceled) || !kv.Unknown(got.err) {
		t.Errorf("%v, want an unknown outcome", got.err)
	}

	behind := b.queue(t.Context(), putting("gone")) // the earlier one is still in flight
	close(hold)

	for _, a := range []<-chan answer{stays, behind} {
		if got := within(t, time.Minute, "its neighbour", a); got.err != nil {
			t.Error(got.err)
		}
	}

	if resp, err := c.Get(t.Context(), "gone"); err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].Version != 2 {
		t.Errorf("%v, %v", resp, err)
	}
}

func TestBatcher_BacksOffWhenEtcdIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, busyFor := time.Now(), 3*time.Second
		w := &wire{KV: yes{}, before: func(int) error {
			if time.Since(begun) < busyFor {
				return rpctypes.ErrTooManyRequests
			}
			return nil
		}}

		b := runBatcher(t, w, kv.BatcherConfig{InFlight: 1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		first := b.commit(ctx, putting("first"))
		synctest.Wait()

		gone, stays := b.commit(ctx, putting("gone")), b.commit(t.Context(), putting("stays"))
		for _, a := range []<-chan answer{first, gone} {
			if got := <-a; !errors.Is(got.err, context.DeadlineExceeded) || kv.Unknown(got.err) {
				t.Errorf("%v, want a definite deadline", got.err)
			}
		}

		if d := time.Since(begun); d != time.Second {
			t.Errorf("their deadline came after %s", d)
		}

		if got := <-stays; got.err != nil {
			t.Error(got.err)
		}

		if d := time.Since(begun); d < busyFor || d > busyFor+time.Second {
			t.Errorf("etcd was busy for %s, and the answer took %s", busyFor, d)
		}

		sent := w.requests()
		if n := len(sent); n < 8 || n > 30 || b.count("too_many_requests_total") != n-1 || siblings(sent[n-1]) != 1 {
			t.Errorf("%d requests, the last one of %d transactions", n, siblings(sent[n-1]))
		}
	})
}

// A transaction that enters while all senders are busy is also sent after Patience, when one sender has nothing else
// to do and the request of the other one hangs.
func TestBatcher_PatienceEndsForWhatEnteredWhileAllWereBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := []chan struct{}{make(chan struct{}), make(chan struct{})}
		w := &wire{KV: yes{}, before: func(n int) error {
			if n < len(held) {
				await(t, held[n])
			}
			return nil
		}}

		const patience = 50 * time.Millisecond
		b := runBatcher(t, w, kv.BatcherConfig{InFlight: 2, Patience: patience})

		hangs := b.commit(t.Context(), putting("hangs"))
		synctest.Wait()
		second := b.commit(t.Context(), putting("second"))
		time.Sleep(patience)
		synctest.Wait()
		third := b.commit(t.Context(), putting("third"))
		synctest.Wait()

		if n := len(w.requests()); n != 2 {
			t.Fatalf("%d requests are under way, want two", n)
		}

		close(held[1])
		<-second
		time.Sleep(patience)
		synctest.Wait()

		select {
		case got := <-third:
			if got.err != nil {
				t.Error(got.err)
			}
		default:
			t.Error("it waits for the request that hangs")
		}

		close(held[0])
		<-hangs
	})
}

// yes is an etcd that accepts transactions without nesting and does nothing.
type yes struct{ clientv3.KV }

func (yes) Txn(context.Context) clientv3.Txn { return yesTxn{} }

type yesTxn struct{}

func (t yesTxn) If(...clientv3.Cmp) clientv3.Txn  { return t }
func (t yesTxn) Then(...clientv3.Op) clientv3.Txn { return t }
func (t yesTxn) Else(...clientv3.Op) clientv3.Txn { return t }
func (t yesTxn) Commit() (*clientv3.TxnResponse, error) {
	return &clientv3.TxnResponse{Header: &etcdserverpb.ResponseHeader{}, Succeeded: true}, nil
}

func TestBatcher_BlocksWhenTheQueueIsFull(t *testing.T) {
	c := kvtest.Memory(t)
	b, _, _, release := heldBatcher(t, c, kv.BatcherConfig{Queue: 2}, nil)
	one, two := b.queue(t.Context(), putting("one")), b.queue(t.Context(), putting("two"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()

	if _, err := b.Commit(ctx, putting("three")); !errors.Is(err, context.DeadlineExceeded) || kv.Unknown(err) {
		t.Errorf("%v, want a definite deadline", err)
	}

	four := b.commit(t.Context(), putting("four"))
	release()

	for _, a := range []<-chan answer{one, two, four} {
		if got := within(t, time.Minute, "an answer", a); got.err != nil {
			t.Error(got.err)
		}
	}
}

func TestBatcher_EndAnswersAll(t *testing.T) {
	c := kvtest.Memory(t)
	b, w, first, release := heldBatcher(t, c, kv.BatcherConfig{Queue: 2}, nil)
	waits, behind := b.queue(t.Context(), putting("k")), b.queue(t.Context(), putting("k"))
	blocked := b.commit(t.Context(), putting("blocked"))
	ended := make(chan struct{})
	go func() { defer close(ended); b.stop() }()

	for _, a := range []<-chan answer{waits, behind, blocked} {
		if got := within(t, time.Minute, "one that was not sent", a); got.err == nil || kv.Unknown(got.err) {
			t.Errorf("%v, want a definite error", got.err)
		}
	}

	release()

	if got := within(t, time.Minute, "the one under way", first); got.err != nil || !got.Succeeded {
		t.Errorf("%+v", got)
	}

	within(t, time.Minute, "Run", ended)

	if _, err := b.Commit(t.Context(), putting("late")); err == nil || kv.Unknown(err) {
		t.Errorf("%v, want a definite error", err)
	}

	if len(w.requests()) != 1 || b.count("queue") != 0 {
		t.Errorf("%d requests, %d in the queue", len(w.requests()), b.count("queue"))
	}

	if err := b.Run(t.Context()); err == nil {
		t.Error("a batcher ran twice")
	}
}

func TestBatcher_EndsWhileItBacksOff(t *testing.T) {
	c := kvtest.Memory(t)
	w := &wire{KV: c, before: func(int) error { return rpctypes.ErrTooManyRequests }}
	b := runBatcher(t, w, kv.BatcherConfig{})
	a := b.commit(t.Context(), putting("k"))
	eventually(t, "a refusal", func() bool { return b.count("too_many_requests_total") > 0 })
	b.stop()

	if got := within(t, time.Minute, "an answer", a); got.err == nil || kv.Unknown(got.err) {
		t.Errorf("%v, want a definite error", got.err)
	}
}

// A request that is refused after the end is not sent again, and its callers get an answer.
func TestBatcher_EndAnswersWhatIsRefusedAfterIt(t *testing.T) {
	c := kvtest.Memory(t)
	hold := make(chan struct{})
	w := &wire{KV: c, before: func(int) error {
		await(t, hold)
		return rpctypes.ErrTooManyRequests
	}}

	b := runBatcher(t, w, kv.BatcherConfig{InFlight: 1})
	first := b.commit(t.Context(), putting("first"))
	eventually(t, "it under way", func() bool { return len(w.requests()) == 1 })
	waits := b.queue(t.Context(), putting("waits"))
	ended := make(chan struct{})
	go func() { defer close(ended); b.stop() }()
	within(t, time.Minute, "the one that was not sent", waits) // so the Batcher has ended
	close(hold)

	if got := within(t, time.Minute, "the one under way", first); got.err == nil || kv.Unknown(got.err) {
		t.Errorf("%v, want a definite error", got.err)
	}

	within(t, time.Minute, "Run", ended)
}

func TestBatcher_ForgetsWhoGaveUpBeforeARefusal(t *testing.T) {
	c := kvtest.Memory(t)
	hold := make(chan struct{})
	w := &wire{KV: c, before: func(n int) error {
		if n > 0 {
			return nil
		}
		await(t, hold)
		return rpctypes.ErrTooManyRequests
	}}

	b := runBatcher(t, w, kv.BatcherConfig{InFlight: 1})
	ctx, cancel := context.WithCancel(t.Context())
	gone := b.commit(ctx, putting("k"))
	eventually(t, "it under way", func() bool { return len(w.requests()) == 1 })
	cancel()

	if got := within(t, time.Minute, "the cancelled one", gone); !kv.Unknown(got.err) {
		t.Errorf("%v, want an unknown outcome", got.err)
	}

	behind := b.queue(t.Context(), putting("k"))
	close(hold)

	if got := within(t, time.Minute, "the one behind", behind); got.err != nil {
		t.Error(got.err)
	}

	if resp, err := c.Get(t.Context(), "k"); err != nil || resp.Kvs[0].Version != 1 {
		t.Errorf("%v, %v; want only the write of the waiting caller", resp, err)
	}
}
