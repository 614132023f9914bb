package kv_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

func TestUnknown(t *testing.T) {
	for _, c := range []struct {
		err     error
		unknown bool
	}{
		{nil, false},
		{errors.New("whatever"), true},
		{io.EOF, true},
		{context.Canceled, true},
		{context.DeadlineExceeded, true},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), true},
		{status.Error(codes.Unavailable, "connection refused"), true},
		{status.Error(codes.Canceled, "grpc: the client connection is closing"), true},
		{status.Error(codes.Internal, "stream terminated"), true},
		{status.Error(codes.ResourceExhausted, "trying to send message larger than max (9 vs. 2)"), false},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 2)"), true},
		{status.Error(codes.ResourceExhausted, "grpc: trying to send message larger than max (9 vs. 2)"), true},
		{rpctypes.ErrTimeout, true},
		{rpctypes.ErrTimeoutDueToLeaderFail, true},
		{rpctypes.ErrTimeoutDueToConnectionLost, true},
		{rpctypes.ErrLeaderChanged, true},
		{rpctypes.ErrNoLeader, true},
		{rpctypes.ErrStopped, true},
		{rpctypes.ErrUnhealthy, true},
		{rpctypes.ErrCorrupt, true},
		{rpctypes.ErrGRPCCanceled, true},
		{rpctypes.ErrNoSpace, true},
		{rpctypes.ErrGRPCNoSpace, true},
		{rpctypes.ErrTooManyRequests, false},
		{rpctypes.ErrRequestTooLarge, false},
		{rpctypes.ErrTooManyOps, false},
		{rpctypes.ErrDuplicateKey, false},
		{rpctypes.ErrEmptyKey, false},
		{rpctypes.ErrLeaseNotFound, false},
		{rpctypes.ErrPermissionDenied, false},
		{rpctypes.ErrInvalidAuthToken, false},
		{rpctypes.ErrFutureRev, false},
		{rpctypes.ErrGRPCDuplicateKey, false},
	} {
		for _, err := range []error{c.err, wrap(c.err)} {
			if got := kv.Unknown(err); got != c.unknown {
				t.Errorf("%v: unknown is %v", err, got)
			}
		}
	}
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("claim run: %w", fmt.Errorf("commit: %w", err))
}

func TestDirect_CommitsOrSaysWhatMoved(t *testing.T) {
	c := kvtest.Memory(t)
	d := kv.Direct(c)
	rev := put(t, c, "k", "1")
	guarded := func(rev int64) kv.Txn {
		return kv.Txn{
			If:   []clientv3.Cmp{kv.ModFence("k", rev).Compare()},
			Then: []clientv3.Op{clientv3.OpPut("k", "2")},
			Else: []clientv3.Op{clientv3.OpGet("k")},
		}
	}

	res, err := d.Commit(t.Context(), guarded(rev))
	if err != nil || !res.Succeeded || res.Revision != rev+1 {
		t.Fatalf("%+v, %v", res, err)
	}

	res, err = d.Commit(t.Context(), guarded(rev))
	if err != nil || res.Succeeded {
		t.Fatalf("%+v, %v", res, err)
	}

	if found := res.Responses[0].GetResponseRange().Kvs[0]; found.ModRevision != rev+1 || string(found.Value) != "2" {
		t.Errorf("the else branch read %v", found)
	}
}

func TestDirect_DefiniteErrorsWriteNothing(t *testing.T) {
	c := kvtest.Start(t)
	over := func(bytes int) []clientv3.Op {
		return []clientv3.Op{clientv3.OpPut("k", strings.Repeat("x", bytes))}
	}

	many := make([]clientv3.Op, 129)
	for i := range many {
		many[i] = clientv3.OpPut(fmt.Sprint("k", i), "v")
	}

	for name, ops := range map[string][]clientv3.Op{
		"key twice":                   {clientv3.OpPut("k", "1"), clientv3.OpPut("k", "2")},
		"no such lease":               {clientv3.OpPut("j", "1"), clientv3.OpPut("k", "1", clientv3.WithLease(4711))},
		"too many operations":         many,
		"too large for etcd":          over(1600 << 10),
		"too large for the transport": over(3 << 20),
		"empty key":                   {clientv3.OpPut("", "1")},
		"future revision":             {clientv3.OpPut("k", "1"), clientv3.OpGet("k", clientv3.WithRev(1<<40))},
	} {
		if _, err := kv.Direct(c).Commit(t.Context(), kv.Txn{Then: ops}); err == nil || kv.Unknown(err) {
			t.Errorf("%s: %v, want a definite error", name, err)
		}
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()

	if _, err := kv.Direct(c).Commit(ended, kv.Txn{Then: []clientv3.Op{clientv3.OpPut("k", "1")}}); err == nil || kv.Unknown(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v, want a definite cancellation", err)
	}

	resp, err := c.Get(t.Context(), "", clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 0 {
		t.Errorf("%d keys were written, %v", len(resp.Kvs), err)
	}
}

// etcd answers the write that exceeds the quota with "no space" although it applies it. So this error proves nothing.
func TestNoSpace_MayHaveWritten(t *testing.T) {
	c := kvtest.StartWithQuota(t, 8<<20).Client()
	value := strings.Repeat("x", 512<<10)
	refused, applied := 0, 0
	var mu sync.Mutex
	var wg sync.WaitGroup

	for w := range 8 {
		wg.Go(func() {
			// etcd measures its size at each commit of its file. On a busy machine, much is written before the next one.
			full := func() bool { mu.Lock(); defer mu.Unlock(); return refused > 0 }
			for i := 0; i < 8 || i < 80 && !full(); i++ {
				key := fmt.Sprintf("k/%d/%d", w, i)
				_, err := kv.Direct(c).Commit(t.Context(), kv.Txn{Then: []clientv3.Op{clientv3.OpPut(key, value)}})
				if err == nil {
					continue
				}

				if !kv.NoSpace(err) {
					t.Errorf("%s: %v", key, err)
				}

				resp, err := c.Get(t.Context(), key, clientv3.WithCountOnly())
				if err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}

				mu.Lock()
				refused++
				applied += int(resp.Count)
				mu.Unlock()
			}
		})
	}

	wg.Wait()

	if refused == 0 {
		t.Fatal("the quota was never reached")
	}

	t.Logf("%d writes were answered with no space, %d of them were applied", refused, applied)
}
