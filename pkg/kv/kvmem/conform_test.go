package kvmem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// both runs a test against etcd and against the in-memory store.
func both(t *testing.T, test func(t *testing.T, c *kv.Client)) {
	t.Run("etcd", func(t *testing.T) { test(t, kvtest.Start(t)) })
	t.Run("memory", func(t *testing.T) { test(t, memory(t, kvmem.Config{MinTTL: 1})) })
}

func memory(t testing.TB, cfg kvmem.Config) *kv.Client {
	s := kvmem.New(cfg)
	t.Cleanup(s.Close)
	c := kv.Wrap(s.Client(t.Context()), 0)
	t.Cleanup(func() { c.Close() })

	return c
}

func put(t *testing.T, c *kv.Client, key, value string, opts ...clientv3.OpOption) int64 {
	t.Helper()
	resp, err := c.Put(t.Context(), key, value, opts...)
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}

	return resp.Header.Revision
}

func get(t *testing.T, c *kv.Client, key string, opts ...clientv3.OpOption) *clientv3.GetResponse {
	t.Helper()
	resp, err := c.Get(t.Context(), key, opts...)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}

	return resp
}

// shown returns the content of a range as text: key=value@create/mod/version for each key.
func shown(resp *clientv3.GetResponse) string {
	var b strings.Builder
	for _, kv := range resp.Kvs {
		fmt.Fprintf(&b, "%s=%s@%d/%d/%d ", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version)
	}
	return fmt.Sprintf("%sof %d at %d", b.String(), resp.Count, resp.Header.Revision)
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s; want %s", what, got, want)
	}
}

func TestRange(t *testing.T) {
	both(t, func(t *testing.T, c *kv.Client) {
		put(t, c, "a", "1") // revision 2
		put(t, c, "b", "2")
		put(t, c, "a", "3")
		put(t, c, "c", "4")

		if _, err := c.Delete(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}

		expect(t, "all", shown(get(t, c, "a", clientv3.WithFromKey())), "a=3@2/4/2 c=4@5/5/1 of 2 at 6")
		expect(t, "then", shown(get(t, c, "a", clientv3.WithRange("c"), clientv3.WithRev(3))), "a=1@2/2/1 b=2@3/3/1 of 2 at 6")
		expect(t, "limit", shown(get(t, c, "a", clientv3.WithRange("z"), clientv3.WithLimit(1))), "a=3@2/4/2 of 2 at 6")
		expect(t, "keys", shown(get(t, c, "a", clientv3.WithKeysOnly())), "a=@2/4/2 of 1 at 6")
		expect(t, "count", shown(get(t, c, "a", clientv3.WithRange("z"), clientv3.WithCountOnly())), "of 2 at 6")
		expect(t, "newest", shown(get(t, c, "a", clientv3.WithLastRev()...)), "a=3@2/4/2 of 1 at 6")
		expect(t, "sorted", shown(get(t, c, "", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend))), "c=4@5/5/1 a=3@2/4/2 of 2 at 6")

		if !get(t, c, "a", clientv3.WithRange("z"), clientv3.WithLimit(1)).More {
			t.Error("a range cut short does not say that there is more")
		}

		if _, err := c.Get(t.Context(), "a", clientv3.WithRev(99)); !errors.Is(err, rpctypes.ErrFutureRev) {
			t.Errorf("a future revision: %v", err)
		}

		if _, err := c.Compact(t.Context(), 4); err != nil {
			t.Fatal(err)
		}

		if _, err := c.Get(t.Context(), "a", clientv3.WithRev(3)); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("a compacted revision: %v", err)
		}

		expect(t, "at the compacted", shown(get(t, c, "b", clientv3.WithRev(4))), "b=2@3/3/1 of 1 at 6")

		if _, err := c.Compact(t.Context(), 4); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("compacted twice: %v", err)
		}

		if _, err := c.Compact(t.Context(), 99); !errors.Is(err, rpctypes.ErrFutureRev) {
			t.Errorf("the future compacted: %v", err)
		}

		put(t, c, "b", "again")
		expect(t, "created anew", shown(get(t, c, "b")), "b=again@7/7/1 of 1 at 7")
	})
}

func TestTxn_NestedComparesSeeTheStateBefore(t *testing.T) {
	both(t, func(t *testing.T, c *kv.Client) {
		absent := clientv3.Compare(clientv3.ModRevision("a"), "=", 0)
		resp, err := c.Txn(t.Context()).Then(
			clientv3.OpPut("a", "1"),
			clientv3.OpTxn([]clientv3.Cmp{absent}, []clientv3.Op{clientv3.OpPut("b", "2"), clientv3.OpGet("a")}, nil),
		).Commit()
		if err != nil {
			t.Fatal(err)
		}

		nested := resp.Responses[1].GetResponseTxn()
		if !nested.Succeeded || nested.Header.Revision != 0 || resp.Header.Revision != 2 {
			t.Errorf("nested: succeeded %t at revision %d, outer at %d", nested.Succeeded, nested.Header.Revision, resp.Header.Revision)
		}

		expect(t, "read in the request", shown((*clientv3.GetResponse)(nested.Responses[1].GetResponseRange())), "a=1@2/2/1 of 1 at 2")
		// A comparison of a range holds if it holds for all keys in it.
		older := clientv3.Compare(clientv3.ModRevision("a").WithRange("z"), "<", 3)
		put(t, c, "c", "3")

		if resp, err := c.Txn(t.Context()).If(older).Then(clientv3.OpPut("d", "4")).Commit(); err != nil || resp.Succeeded {
			t.Errorf("a range with one newer key: %v, %v", resp, err)
		}
	})
}

func TestTxn_Refusals(t *testing.T) {
	many := make([]clientv3.Op, 129)
	for i := range many {
		many[i] = clientv3.OpPut(fmt.Sprint("k", i), "")
	}

	nest := func(ops ...clientv3.Op) clientv3.Op { return clientv3.OpTxn(nil, ops, nil) }
	cases := map[string]struct {
		ops  []clientv3.Op
		want error
	}{
		"a key put twice":                    {[]clientv3.Op{clientv3.OpPut("a", "1"), clientv3.OpPut("a", "2")}, rpctypes.ErrDuplicateKey},
		"put twice in two nested":            {[]clientv3.Op{nest(many[0]), nest(many[0])}, rpctypes.ErrDuplicateKey},
		"put in one and deleted in another":  {[]clientv3.Op{nest(clientv3.OpDelete("k", clientv3.WithPrefix())), nest(many[0])}, rpctypes.ErrDuplicateKey},
		"deleted in one, then put by itself": {[]clientv3.Op{nest(clientv3.OpDelete("k0")), many[0]}, rpctypes.ErrDuplicateKey},
		"deleted twice":                      {[]clientv3.Op{clientv3.OpDelete("a"), clientv3.OpDelete("a", clientv3.WithPrefix())}, nil},
		"put by either side of one nested":   {[]clientv3.Op{clientv3.OpTxn(nil, many[:1], many[:1])}, nil},
		"too many":                           {many, rpctypes.ErrTooManyOps},
		"as many as may be":                  {many[:128], nil},
		"too many nested":                    {[]clientv3.Op{nest(nest(many[:127]...))}, rpctypes.ErrTooManyOps},
		"nested as many as may be":           {[]clientv3.Op{nest(nest(many[:126]...))}, nil},
		"without its lease":                  {[]clientv3.Op{clientv3.OpPut("a", "1"), clientv3.OpPut("b", "", clientv3.WithLease(7))}, rpctypes.ErrLeaseNotFound},
		"keeping the value of nothing":       {[]clientv3.Op{clientv3.OpPut("none", "", clientv3.WithIgnoreValue())}, rpctypes.ErrKeyNotFound},
		"reading the future":                 {[]clientv3.Op{clientv3.OpPut("a", ""), clientv3.OpGet("a", clientv3.WithRev(1<<40))}, rpctypes.ErrFutureRev},
		"without a key":                      {[]clientv3.Op{clientv3.OpPut("", "1")}, rpctypes.ErrEmptyKey},
		"too large":                          {[]clientv3.Op{clientv3.OpPut("a", strings.Repeat("x", 3<<19))}, rpctypes.ErrRequestTooLarge},
	}
	both(t, func(t *testing.T, c *kv.Client) {
		for name, k := range cases {
			before := get(t, c, "a").Header.Revision
			_, err := c.Txn(t.Context()).Then(k.ops...).Commit()
			if !errors.Is(err, k.want) {
				t.Errorf("%s: %v; want %v", name, err, k.want)
			}

			if after := get(t, c, "a").Header.Revision; k.want != nil && after != before {
				t.Errorf("%s: refused, and something was written", name)
			}
		}
	})
}

func TestLease(t *testing.T) {
	both(t, func(t *testing.T, c *kv.Client) {
		t.Parallel() // the test takes as long as the lease, which must not expire early on a busy machine
		ctx := t.Context()

		l, err := c.Grant(ctx, 3)
		if err != nil || l.TTL != 3 {
			t.Fatalf("grant: %v, %v", l, err)
		}

		put(t, c, "a", "1", clientv3.WithLease(l.ID))
		put(t, c, "b", "1", clientv3.WithLease(l.ID))
		put(t, c, "b", "2") // detaches the key from the lease

		if got, err := c.TimeToLive(ctx, l.ID, clientv3.WithAttachedKeys()); err != nil || len(got.Keys) != 1 || got.GrantedTTL != 3 {
			t.Errorf("time to live: %v, %v", got, err)
		}

		if got, err := c.KeepAliveOnce(ctx, l.ID); err != nil || got.TTL != 3 {
			t.Errorf("keep alive: %v, %v", got, err)
		}

		gone := c.Watch(ctx, "a", clientv3.WithFilterPut(), clientv3.WithRev(5))
		select {
		case r := <-gone:
			if len(r.Events) != 1 || r.Events[0].Type != clientv3.EventTypeDelete || r.Events[0].Kv.ModRevision != 5 {
				t.Errorf("the end of the lease: %v", r)
			}
		case <-time.After(time.Minute):
			t.Fatal("the lease does not end")
		}

		expect(t, "left", shown(get(t, c, "a", clientv3.WithFromKey())), "b=2@3/4/2 of 1 at 5")

		if _, err := c.KeepAliveOnce(ctx, l.ID); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			t.Errorf("keep a dead lease alive: %v", err)
		}

		if _, err := c.Revoke(ctx, l.ID); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			t.Errorf("revoke a dead lease: %v", err)
		}

		if got, err := c.TimeToLive(ctx, l.ID); err != nil || got.TTL != -1 {
			t.Errorf("a dead lease's time to live: %v, %v", got, err)
		}

		l, err = c.Grant(ctx, 100)
		if err != nil {
			t.Fatal(err)
		}

		put(t, c, "z", "", clientv3.WithLease(l.ID))
		put(t, c, "y", "", clientv3.WithLease(l.ID))

		if _, err := c.Revoke(ctx, l.ID); err != nil {
			t.Fatal(err)
		}

		expect(t, "one revision for all", shown(get(t, c, "y", clientv3.WithFromKey())), "of 0 at 8")
	})
}

// stream adds metadata to a context, so that watches with the same name share a stream.
func stream(ctx context.Context, name string) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs("stream", name))
}

func next(t *testing.T, w clientv3.WatchChan) clientv3.WatchResponse {
	t.Helper()

	select {
	case r, ok := <-w:
		if !ok {
			t.Fatal("the watch is closed")
		}
		return r
	case <-time.After(time.Minute):
		t.Fatal("the watch says nothing")
		panic("unreachable")
	}
}

func TestWatch_FromThePast(t *testing.T) {
	both(t, func(t *testing.T, c *kv.Client) {
		put(t, c, "a/1", "1")
		put(t, c, "b", "1")
		put(t, c, "a/1", "2")

		w := c.Watch(t.Context(), "a/", clientv3.WithPrefix(), clientv3.WithRev(2), clientv3.WithCreatedNotify(), clientv3.WithPrevKV())
		if r := next(t, w); !r.Created || r.Header.Revision != 4 {
			t.Errorf("created: %+v", r)
		}

		r := next(t, w)
		if len(r.Events) != 2 || r.Header.Revision != 4 || string(r.Events[1].PrevKv.GetValue()) != "1" {
			t.Errorf("what had happened: %+v", r)
		}

		if _, err := c.Txn(t.Context()).Then(clientv3.OpPut("a/2", ""), clientv3.OpPut("c", ""), clientv3.OpDelete("a/1")).Commit(); err != nil {
			t.Fatal(err)
		}

		r = next(t, w)
		if len(r.Events) != 2 || r.Header.Revision != 5 || r.Events[1].Kv.ModRevision != 5 || r.Events[1].Kv.CreateRevision != 0 {
			t.Errorf("one revision: %+v", r)
		}
	})
}

func TestWatch_Compacted(t *testing.T) {
	both(t, func(t *testing.T, c *kv.Client) {
		for range 4 {
			put(t, c, "a", "")
		}

		if _, err := c.Compact(t.Context(), 4); err != nil {
			t.Fatal(err)
		}

		w := c.Watch(t.Context(), "a", clientv3.WithRev(3))
		r := next(t, w)
		if !errors.Is(r.Err(), rpctypes.ErrCompacted) || r.CompactRevision != 4 || !r.Canceled {
			t.Errorf("a watch from a compacted revision: %+v", r)
		}

		if _, open := <-w; open {
			t.Error("it is not closed then")
		}

		if r := next(t, c.Watch(t.Context(), "a", clientv3.WithRev(4))); len(r.Events) != 2 {
			t.Errorf("a watch from the compaction's revision: %+v", r)
		}
	})
}

func TestWatch_Progress(t *testing.T) {
	both(t, func(t *testing.T, c *kv.Client) {
		put(t, c, "a", "")
		one, other := stream(t.Context(), "one"), stream(t.Context(), "other")
		a, b := c.Watch(one, "a", clientv3.WithRev(2)), c.Watch(one, "b", clientv3.WithRev(2))
		elsewhere := c.Watch(other, "b")

		if r := next(t, a); len(r.Events) != 1 {
			t.Fatalf("%+v", r)
		}

		// etcd answers once the watches have caught up.
		deadline := time.Now().Add(time.Minute)
		heard := false
		for !heard && time.Now().Before(deadline) {
			if err := c.RequestProgress(one); err != nil {
				t.Fatal(err)
			}

			select {
			case r := <-b:
				if heard = r.IsProgressNotify() && r.Header.Revision == 2; !heard {
					t.Fatalf("progress: %+v", r)
				}
			case <-time.After(50 * time.Millisecond):
			}
		}

		if r := next(t, a); !heard || !r.IsProgressNotify() {
			t.Errorf("both watches of a stream get progress notifications: %t, %+v", heard, r)
		}

		// A watch in the future suppresses the progress notifications of its stream.
		future := c.Watch(one, "c", clientv3.WithRev(3), clientv3.WithCreatedNotify())
		if r := next(t, future); !r.Created {
			t.Fatalf("%+v", r)
		}

		for len(a) > 0 {
			<-a
		}

		if err := c.RequestProgress(one); err != nil {
			t.Fatal(err)
		}

		put(t, c, "a", "2")

		for r := next(t, a); len(r.Events) == 0; r = next(t, a) {
			if r.Header.Revision > 2 {
				t.Errorf("progress in spite of a watch in the future: %+v", r)
			}
		}

		if len(elsewhere) > 0 {
			t.Errorf("another stream receives %+v", <-elsewhere)
		}
	})
}

func TestWatch_EndsWithItsContextAndItsClient(t *testing.T) {
	both(t, func(t *testing.T, c *kv.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		w := c.Watch(ctx, "a")
		cancel()

		if r, open := <-w; open {
			t.Errorf("a cancelled watch says %+v", r)
		}

		w = c.Watch(t.Context(), "a")
		c.Close()

		for range w { // etcd's client may deliver the reason first
		}

		for range c.Watch(t.Context(), "a") {
		}

		if _, err := c.Get(t.Context(), "a"); err == nil {
			t.Error("a closed client reads")
		}
	})
}
