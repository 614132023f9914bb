package kv_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
)

// slow is a KV that answers each request after a delay, or never if the delay is 0.
type slow struct {
	clientv3.KV
	takes *time.Duration
}

func (s slow) Txn(ctx context.Context) clientv3.Txn { return slowTxn{ctx: ctx, takes: *s.takes} }

type slowTxn struct {
	yesTxn
	ctx   context.Context
	takes time.Duration
}

func (t slowTxn) If(...clientv3.Cmp) clientv3.Txn  { return t }
func (t slowTxn) Then(...clientv3.Op) clientv3.Txn { return t }
func (t slowTxn) Else(...clientv3.Op) clientv3.Txn { return t }
func (t slowTxn) Commit() (*clientv3.TxnResponse, error) {
	var answer <-chan time.Time
	if t.takes > 0 {
		answer = time.After(t.takes)
	}

	select {
	case <-answer:
		return t.yesTxn.Commit()
	case <-t.ctx.Done():
		return nil, t.ctx.Err()
	}
}

// The test runs in virtual time. It checks how long the Batcher waits for an answer, and that it does not flood a
// slow etcd with repeated requests.
func TestBatcher_DoesNotWaitLongForWhatItsCallersSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var takes time.Duration
		b := runBatcher(t, slow{takes: &takes}, kv.BatcherConfig{InFlight: 1})
		defer b.stop()

		commit := func(settled bool) (took time.Duration, err error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()

			begun := time.Now()
			txn := putting("a")
			txn.ResolvedByCaller = settled
			_, err = b.Commit(ctx, txn)

			return time.Since(begun), err
		}

		for _, want := range []time.Duration{1500 * time.Millisecond, 3 * time.Second, 5 * time.Second, 5 * time.Second} {
			if took, err := commit(true); took != want || !errors.Is(err, context.DeadlineExceeded) || !kv.Unknown(err) {
				t.Errorf("no answer: %v after %s, want an unknown outcome after %s", err, took, want)
			}
		}

		takes = 2 * time.Second

		for range 3 { // the deadline is three times the last latency, so no request is cancelled
			if took, err := commit(true); took != takes || err != nil {
				t.Errorf("a slow answer: %v after %s", err, took)
			}
		}

		takes = time.Millisecond

		if _, err := commit(true); err != nil {
			t.Error(err)
		}

		takes = 0

		if took, _ := commit(true); took != 1500*time.Millisecond {
			t.Errorf("after a fast answer the next one is waited for %s", took)
		}

		// Other callers rely on the answer. Only their own contexts end the wait.
		takes = 2 * time.Minute

		if took, err := commit(false); took != time.Minute || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a caller that resolves it: %v after %s", err, took)
		}
	})
}
