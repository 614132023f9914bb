package kv_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
)

// wire is a KV that receives each request before etcd does, and can delay or answer it.
type wire struct {
	clientv3.KV
	// before is called with the number of each request, from 0. It may block. If it returns an error, that is the answer.
	before func(n int) error

	mu   sync.Mutex
	sent []clientv3.Op // the requests, as transactions
}

func (w *wire) Txn(ctx context.Context) clientv3.Txn { return &wireTxn{Txn: w.KV.Txn(ctx), w: w} }

func (w *wire) requests() []clientv3.Op {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]clientv3.Op(nil), w.sent...)
}

type wireTxn struct {
	clientv3.Txn
	w         *wire
	cmps      []clientv3.Cmp
	then, els []clientv3.Op
}

func (t *wireTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { t.cmps = append(t.cmps, cs...); return t }
func (t *wireTxn) Then(ops ...clientv3.Op) clientv3.Txn { t.then = append(t.then, ops...); return t }
func (t *wireTxn) Else(ops ...clientv3.Op) clientv3.Txn { t.els = append(t.els, ops...); return t }

func (t *wireTxn) Commit() (*clientv3.TxnResponse, error) {
	t.w.mu.Lock()
	n := len(t.w.sent)
	t.w.sent = append(t.w.sent, clientv3.OpTxn(t.cmps, t.then, t.els))
	t.w.mu.Unlock()

	if t.w.before != nil {
		if err := t.w.before(n); err != nil {
			return nil, err
		}
	}

	return t.Txn.If(t.cmps...).Then(t.then...).Else(t.els...).Commit()
}

// await waits until a channel is closed, or fails the test.
func await(t *testing.T, c <-chan struct{}) {
	select {
	case <-c:
	case <-t.Context().Done():
	}
}

// siblings returns how many transactions a request contains.
func siblings(op clientv3.Op) int {
	cmps, then, _ := op.Txn()
	if len(cmps) > 0 || len(then) == 0 || !then[0].IsTxn() {
		return 1
	}
	return len(then)
}

// batcher is a running Batcher of a test.
type batcher struct {
	*kv.Batcher
	t    *testing.T
	reg  *prometheus.Registry
	stop func() // ends the Batcher and waits for it
}

func runBatcher(t *testing.T, c clientv3.KV, cfg kv.BatcherConfig) *batcher {
	t.Helper()
	b := &batcher{t: t, reg: prometheus.NewRegistry()}
	cfg.Registerer = b.reg
	b.Batcher = kv.NewBatcher(c, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := b.Run(ctx); err != nil {
			t.Error(err)
		}
	})

	b.stop = func() { cancel(); run.Wait() }
	t.Cleanup(b.stop)

	return b
}

func (b *batcher) count(name string) int {
	b.t.Helper()
	return int(counted(b.t, b.reg, "carillon_batch_"+name))
}

// answer is the result of a Commit.
type answer struct {
	kv.Result
	err error
}

// commit starts a Commit.
func (b *batcher) commit(ctx context.Context, t kv.Txn) <-chan answer {
	c := make(chan answer, 1)
	go func() {
		r, err := b.Commit(ctx, t)
		c <- answer{r, err}
	}()

	return c
}

// queue starts a Commit and waits until its transaction has entered, so that the order of the transactions is that of
// the calls.
func (b *batcher) queue(ctx context.Context, t kv.Txn) <-chan answer {
	b.t.Helper()
	waiting, entered := b.count("queue"), b.Entered()
	c := b.commit(ctx, t)
	eventually(b.t, "a transaction in the queue", func() bool { return b.count("queue") > waiting && b.Entered() > entered })

	return c
}

// heldBatcher returns a Batcher with one request at a time. Its first request is in flight and is delayed until
// release is called. rest, if it is not nil, answers the others.
func heldBatcher(t *testing.T, c clientv3.KV, cfg kv.BatcherConfig, rest func(n int) error) (b *batcher, w *wire, first <-chan answer, release func()) {
	t.Helper()
	hold := make(chan struct{})
	w = &wire{KV: c, before: func(n int) error {
		switch {
		case n == 0:
			await(t, hold)
		case rest != nil:
			return rest(n)
		}

		return nil
	}}

	release = sync.OnceFunc(func() { close(hold) })
	cfg.InFlight = 1
	b = runBatcher(t, w, cfg)
	t.Cleanup(release)
	first = b.commit(t.Context(), putting("first"))
	eventually(t, "the first request under way", func() bool { return len(w.requests()) == 1 })

	return b, w, first, release
}

func putting(keys ...string) kv.Txn {
	var t kv.Txn
	for _, k := range keys {
		t.Then = append(t.Then, clientv3.OpPut(k, "v"))
	}
	return t
}

func numbered(n int) string { return fmt.Sprintf("k/%03d", n) }
