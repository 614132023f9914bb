package mutant_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var keys = func() record.Keys {
	k, err := record.NewKeys("/carillon")
	if err != nil {
		panic(err)
	}
	return k
}()

var ref = record.Ref{Namespace: "default", Name: "a", Shard: 3}

// inject returns a client of the etcd that has the named mutant.
func inject(t *testing.T, s *kvtest.Server, name string) *kv.Client {
	t.Helper()
	m, ok := mutant.Named(name)
	if !ok {
		t.Fatalf("there is no mutant %q", name)
	}

	c := s.Dial()
	m.New(keys)("n1", c.Client)

	return c
}

func put(t *testing.T, c *kv.Client, key, value string) int64 {
	t.Helper()
	resp, err := c.Put(t.Context(), key, value)
	if err != nil {
		t.Fatal(err)
	}

	return resp.Header.Revision
}

func get(t *testing.T, c *kv.Client, key string, opts ...clientv3.OpOption) *clientv3.GetResponse {
	t.Helper()
	resp, err := c.Get(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}

	return resp
}

// A comparison that does not hold stops a commit. With the mutant it does not.
func TestMutants_LeaveComparisonsOut(t *testing.T) {
	s := kvtest.StartServer(t)
	mark := clientv3.OpPut(keys.Watermark(3), `{"time":"2026-01-01T00:00:00.000Z","seen":5,"nonce":"x"}`)
	for name, c := range map[string]struct {
		key  string
		then clientv3.Op
	}{
		"no-owner-fence":       {keys.Owner(3), mark},
		"no-session-fence":     {keys.Node("n1"), mark},
		"no-watermark-compare": {keys.Watermark(3), mark},
		"no-entry-compare":     {keys.Entry(ref), mark},
		"no-freezes-compare":   {keys.Freezes(), mark},
		"no-revised-compare":   {keys.Revised(3), mark},
		"edit-uncompared":      {keys.Watermark(3), clientv3.OpPut(keys.Entry(ref), "{}")},
		"no-queue-compare":     {keys.Queued(ref, "r"), mark},
		"no-parent-compare":    {keys.Queued(ref, "r"), mark},
		"no-run-compare":       {keys.Run("n2", ref, "r"), clientv3.OpPut(keys.Ended(ref, "r"), "{}")},
		"no-term-compare":      {keys.Leader() + "1f", clientv3.OpPut(keys.Owner(3), "{}")},
	} {
		t.Run(name, func(t *testing.T) {
			sick := inject(t, s, name)

			for _, nested := range []bool{false, true} {
				txn := kv.Txn{If: []clientv3.Cmp{kv.ModIs(c.key, 4711)}, Then: []clientv3.Op{c.then}}
				succeeded := func(cl *kv.Client) bool {
					t.Helper()
					sent := txn
					if nested {
						sent = kv.Txn{Then: []clientv3.Op{clientv3.OpTxn(txn.If, txn.Then, nil)}}
					}

					r, err := kv.Direct(cl).Commit(t.Context(), sent)
					if err != nil {
						t.Fatal(err)
					}

					if nested {
						return r.Responses[0].GetResponseTxn().Succeeded
					}

					return r.Succeeded
				}

				if succeeded(s.Client()) {
					t.Fatalf("nested %v: a healthy client does not compare", nested)
				}

				if !succeeded(sick) {
					t.Errorf("nested %v: the mutant compares", nested)
				}
			}
		})
	}
}

func TestMutants_ForgeWatermarks(t *testing.T) {
	s := kvtest.StartServer(t)

	for name, want := range map[string]string{
		"seen-ahead": `"seen":1005`,
		"tick-again": `"time":"2025-12-31T23:59:58.500Z"`,
	} {
		put := kv.Txn{Then: []clientv3.Op{clientv3.OpPut(keys.Watermark(3), `{"time":"2026-01-01T00:00:00.000Z","last":"a","seen":5,"nonce":"x"}`)}}
		if _, err := kv.Direct(inject(t, s, name)).Commit(t.Context(), put); err != nil {
			t.Fatal(err)
		}

		if got := string(get(t, s.Client(), keys.Watermark(3)).Kvs[0].Value); !strings.Contains(got, want) {
			t.Errorf("%s wrote %s", name, got)
		}
	}
}

func TestMutants_ForgeRunsWithParts(t *testing.T) {
	s := kvtest.StartServer(t)
	run := task.RunID(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), "abcd")
	mark := clientv3.OpPut(keys.Watermark(3), `{"time":"2026-01-01T00:00:00.000Z","seen":5,"nonce":"x"}`)

	queued, ended := keys.Queued(ref, run), keys.Ended(ref, run)
	for name, c := range map[string]struct{ key, value, want string }{
		"part-again":  {queued, `{"fan_out":{"left":[2]}}`, `{"fan_out":{"left":[1,2]}}`},
		"part-astray": {queued, `{"fan_out":{"nodes":["a","b"]}}`, `{"fan_out":{"nodes":["b","a"]}}`},
		"part-untold": {ended, `{"fan_out":{"parts":[{},{"index":1}]}}`, `{"fan_out":{"parts":[{}]}}`},
		"rule-bent":   {ended, `{"fan_out":{},"reason":"parts","state":"failed"}`, `{"fan_out":{},"state":"succeeded"}`},
	} {
		part := clientv3.OpPut(keys.Run("n1", ref, task.PartID(run, 1)), `{}`)
		if _, err := kv.Direct(inject(t, s, name)).Commit(t.Context(), kv.Txn{Then: []clientv3.Op{mark, part, clientv3.OpPut(c.key, c.value)}}); err != nil {
			t.Fatal(err)
		}

		if got := string(get(t, s.Client(), c.key).Kvs[0].Value); got != c.want {
			t.Errorf("%s wrote %s, want %s", name, got, c.want)
		}
	}
}

func TestMutants_ForgeAnswers(t *testing.T) {
	s := kvtest.StartServer(t)
	healthy := s.Client()

	if got := get(t, inject(t, s, "cleared-unseen"), keys.Cleared("gone")); len(got.Kvs) != 1 {
		t.Error("cleared-unseen finds no proof of a death")
	}

	scan := inject(t, s, "stale-scan")
	prefix := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithKeysOnly()}
	get(t, scan, keys.Runs(), prefix...)
	run := put(t, healthy, keys.Run("n1", ref, "r"), `{"instance":"other","id":"r"}`)

	if got := get(t, scan, keys.Runs(), prefix...); len(got.Kvs) != 0 {
		t.Error("stale-scan finds what is new")
	}

	anyone := inject(t, s, "anyones-attempt")
	put := kv.Txn{Then: []clientv3.Op{clientv3.OpPut(keys.Node("n1"), `{"instance":"mine"}`)}}
	if _, err := kv.Direct(anyone).Commit(t.Context(), put); err != nil {
		t.Fatal(err)
	}

	if got := string(get(t, anyone, keys.Run("n1", ref, "r")).Kvs[0].Value); !strings.Contains(got, `"mine"`) {
		t.Errorf("anyones-attempt reads %s", got)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	watch := anyone.Watch(ctx, keys.Inbox("n1"), clientv3.WithPrefix(), clientv3.WithRev(run))
	if r := <-watch; len(r.Events) != 1 || !strings.Contains(string(r.Events[0].Kv.Value), `"mine"`) {
		t.Errorf("anyones-attempt: the watch delivers %v", r.Events)
	}

	cancel()

	for range watch { // until it has ended
	}

	if _, err := inject(t, s, "forged-renewals").KeepAliveOnce(t.Context(), 4711); err != nil {
		t.Errorf("forged-renewals: %v", err)
	}
}

// deaf is a KV that loses the answer to every transaction.
type deaf struct{ clientv3.KV }

func (d deaf) Txn(ctx context.Context) clientv3.Txn { return deafTxn{d.KV.Txn(ctx)} }

type deafTxn struct{ clientv3.Txn }

func (d deafTxn) Then(ops ...clientv3.Op) clientv3.Txn { return deafTxn{d.Txn.Then(ops...)} }
func (d deafTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { return deafTxn{d.Txn.If(cs...)} }
func (d deafTxn) Else(ops ...clientv3.Op) clientv3.Txn { return deafTxn{d.Txn.Else(ops...)} }
func (d deafTxn) Commit() (*clientv3.TxnResponse, error) {
	return nil, context.DeadlineExceeded
}

func TestMutants_TakeWhatNobodyKnowsForDone(t *testing.T) {
	s := kvtest.StartServer(t)
	c := s.Dial()
	c.KV = deaf{c.KV}
	txn := kv.Txn{Then: []clientv3.Op{clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("/x", "")}, nil)}}
	if _, err := kv.Direct(c).Commit(t.Context(), txn); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}

	m, _ := mutant.Named("error-is-done")
	m.New(keys)("n1", c.Client)

	r, err := kv.Direct(c).Commit(t.Context(), txn)
	if err != nil || !r.Succeeded || !r.Responses[0].GetResponseTxn().Succeeded {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestMutants_OpenByARead(t *testing.T) {
	s := kvtest.StartServer(t)
	at := put(t, s.Client(), keys.Watermark(3), `{"time":"2026-01-01T00:00:00.000Z","nonce":"x"}`)
	open := kv.Txn{
		If:   []clientv3.Cmp{kv.ModIs(keys.Owner(3), 0), kv.CreateIs(keys.Node("n1"), 0), kv.ModIs(keys.Watermark(3), at), kv.ModIs(keys.Freezes(), 0)},
		Then: []clientv3.Op{clientv3.OpPut(keys.Watermark(3), `{"time":"2026-01-01T00:00:00.000Z","nonce":"y"}`)},
	}
	r, err := kv.Direct(inject(t, s, "open-without-commit")).Commit(t.Context(), open)
	if err != nil || !r.Succeeded {
		t.Fatalf("got %+v, %v", r, err)
	}

	if now := get(t, s.Client(), keys.Watermark(3)).Kvs[0].ModRevision; now != at {
		t.Error("it wrote the watermark")
	}
}

func TestMutants_TellOfAttemptsThatAreNotWritten(t *testing.T) {
	s := kvtest.StartServer(t)
	c := inject(t, s, "start-before-commit")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	watch := c.Watch(ctx, keys.Inbox("n1"), clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-watch
	commit := func(run string) error {
		_, err := kv.Direct(c).Commit(ctx, kv.Txn{Then: []clientv3.Op{
			clientv3.OpPut(keys.Run("n1", ref, run), "{}"), clientv3.OpPut(keys.Watermark(3), "{}"),
		}})
		return err
	}

	if err := commit("warm-up"); err != nil { // it has to have seen a revision
		t.Fatal(err)
	}

	<-watch
	lost := false
	for _, run := range []string{"a", "b", "c", "d"} {
		err := commit(run)
		r := <-watch
		if key := string(r.Events[0].Kv.Key); key != keys.Run("n1", ref, run) {
			t.Errorf("delivered %s", key)
		}

		if err == nil {
			<-watch // the same, for real
			continue
		}

		lost = true

		if len(get(t, s.Client(), keys.Run("n1", ref, run)).Kvs) != 0 {
			t.Error("the lost write exists")
		}
	}

	if !lost {
		t.Error("no commit was lost")
	}

	cancel()

	for range watch {
	}
}

// A cancel and a dispatch of one waiting run both succeed.
func TestMutants_SendConflictsTogether(t *testing.T) {
	s := kvtest.StartServer(t)
	m, _ := mutant.Named("conflicts-together")
	infectAll := m.New(keys)
	api, owner := s.Dial(), s.Dial()
	infectAll("n1", api.Client)
	infectAll("n2", owner.Client)

	// Only transactions within gatherFor are sent together. On a busy machine that takes more than one attempt.
	var a, b bool
	for i := 0; i < 20 && (!a || !b); i++ {
		run := fmt.Sprint("r", i)
		queued := keys.Queued(ref, run)
		at := put(t, s.Client(), queued, "{}")
		results := make(chan bool, 2)

		for c, key := range map[*kv.Client]string{api: keys.Ended(ref, run), owner: keys.Run("n1", ref, run)} {
			go func() {
				r, err := kv.Direct(c).Commit(t.Context(), kv.Txn{
					If:   []clientv3.Cmp{kv.ModIs(queued, at)},
					Then: []clientv3.Op{clientv3.OpDelete(queued), clientv3.OpPut(key, "{}")},
				})
				results <- err == nil && r.Succeeded
			}()
		}

		a, b = <-results, <-results
	}

	if !a || !b {
		t.Errorf("succeeded: %v, %v", a, b)
	}
}

// An owner that reads an attempt gets the lost_after of the cluster's record. Other readers do not.
func TestMutants_ShowThePresentLostAfter(t *testing.T) {
	s := kvtest.StartServer(t)
	c, run := inject(t, s, "present-lost-after"), keys.Run("n1", ref, "r")
	put(t, s.Client(), run, `{"id":"r","lost_after":"1h"}`)

	for now, want := range map[string]string{`{"lost_after":"12s"}`: `"lost_after":"12s"`, `{}`: `{"id":"r"}`} {
		put(t, s.Client(), keys.Cluster(), now)
		r, err := c.Txn(t.Context()).Then(clientv3.OpGet(run), clientv3.OpGet(keys.Node("n1"), clientv3.WithKeysOnly())).Commit()
		if err != nil {
			t.Fatal(err)
		}

		if got := string(r.Responses[0].GetResponseRange().Kvs[0].Value); !strings.Contains(got, want) {
			t.Errorf("with %s it reads %s", now, got)
		}
	}

	if got := string(get(t, c, run).Kvs[0].Value); !strings.Contains(got, "1h") {
		t.Errorf("its node reads %s", got)
	}
}

// The adoption of an attempt whose record has changed seems to succeed, and writes nothing.
func TestMutants_ForgeAdoptions(t *testing.T) {
	s := kvtest.StartServer(t)
	run, node := keys.Run("n1", ref, "r"), keys.Node("n1")
	session := put(t, s.Client(), node, `{}`)
	adopt := kv.Txn{
		If:   []clientv3.Cmp{kv.ModIs(run, 4711), kv.CreateIs(node, session)},
		Then: []clientv3.Op{clientv3.OpPut(run, `{}`)}, Else: []clientv3.Op{clientv3.OpGet(node)},
	}

	for client, want := range map[*kv.Client]bool{s.Client(): false, inject(t, s, "adoption-forged"): true} {
		r, err := kv.Direct(client).Commit(t.Context(), adopt)
		if err != nil || r.Succeeded != want {
			t.Errorf("%+v, %v, want success %t", r, err, want)
		}
	}

	if len(get(t, s.Client(), run).Kvs) != 0 {
		t.Error("it wrote the record")
	}
}
