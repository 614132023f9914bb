package record_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func drawName(t *rapid.T, label string) string {
	return rapid.StringMatching(`[a-z0-9]([a-z0-9_-]{0,3}[.]?[a-z0-9_-]{0,2}[a-z0-9])?`).Draw(t, label)
}

func drawRef(t *rapid.T) record.Ref {
	return record.Ref{Namespace: drawName(t, "namespace"), Name: drawName(t, "name"), Shard: rapid.IntRange(0, 20_000).Draw(t, "shard")}
}

func testKeys(t interface{ Fatal(...any) }, prefix string) record.Keys {
	k, err := record.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKeys_AreTakenApartAsTheyWereBuilt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := testKeys(t, rapid.SampledFrom([]string{"/carillon", "/a/shards/b", "/runs"}).Draw(t, "prefix"))
		r, id, node := drawRef(t), task.RunID(noon, drawName(t, "uid")), drawName(t, "node")
		if err := task.CheckName("name", r.Name); err != nil {
			t.Skip(err)
		}

		shardKeys := map[string]record.ShardKey{
			k.Entry(r):           {Kind: record.KindEntry, Ref: r},
			k.Queued(r, id):      {Kind: record.KindQueued, Ref: r, Run: id},
			k.Ended(r, id):       {Kind: record.KindEnded, Ref: r, Run: id},
			k.Late(r, id, 4711):  {Kind: record.KindEnded, Ref: r, Run: id, Late: true},
			k.Watermark(r.Shard): {Kind: record.KindWatermark, Ref: record.Ref{Shard: r.Shard}},
		}
		for key, want := range shardKeys {
			if got, ok := k.ParseShard(key); !ok || got != want {
				t.Fatalf("%s is %+v, %v; want %+v", key, got, ok, want)
			}

			if _, ok := k.ParseRun(key); ok {
				t.Fatalf("%s is a run", key)
			}
		}

		run := k.Run(node, r, id)
		if got, ok := k.ParseRun(run); !ok || got != (record.RunKey{Node: node, Ref: r, Run: id}) {
			t.Fatalf("%s is %+v, %v", run, got, ok)
		}

		if _, ok := k.ParseShard(run); ok {
			t.Fatalf("%s is a shard's", run)
		}

		if shard, ok := k.ParseHandover(k.Handover(r.Shard)); !ok || shard != r.Shard {
			t.Fatalf("handover %d: %d, %v", r.Shard, shard, ok)
		}

		if shard, ok := k.ParseOwner(k.Owner(r.Shard)); !ok || shard != r.Shard {
			t.Fatalf("%s is %d, %v", k.Owner(r.Shard), shard, ok)
		}

		if ns, name, ok := k.ParseSpec(k.Spec(r)); !ok || ns != r.Namespace || name != r.Name {
			t.Fatalf("%s is %s, %s, %v", k.Spec(r), ns, name, ok)
		}
	})
}

// No prefix may include the keys of a name that begins with the same letters, such as "test" and "test-1".
func TestKeys_PrefixesReachNoNeighbour(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := testKeys(t, "/carillon")
		a, b := drawRef(t), drawRef(t)
		if rapid.Bool().Draw(t, "related") {
			b = a
			b.Name += rapid.SampledFrom([]string{"-1", ".b", "0", "_"}).Draw(t, "tail")
			if rapid.Bool().Draw(t, "other namespace") {
				b.Namespace, b.Name = b.Namespace+"-1", a.Name
			}
		}

		id, node := task.RunID(noon, "k3f9"), drawName(t, "node")
		for _, c := range []struct {
			prefix, key string
			inside      bool
		}{
			{k.SpecsOf(a.Namespace), k.Spec(b), a.Namespace == b.Namespace},
			{k.Entries(a.Shard), k.Entry(b), a.Shard == b.Shard},
			{k.Entries(a.Shard), k.Queued(b, id), false},
			{k.QueueOf(a), k.Queued(b, id), a == b},
			{k.HistoryOf(a), k.Ended(b, id), a == b},
			{k.HistoryOf(a), k.Late(b, id, 1), a == b},
			{k.HistoryOf(a), k.Queued(a, id), false},
			{k.Inbox(node), k.Run(node, a, id), true},
			{k.Inbox(node), k.Run(node+"-1", a, id), false},
			{k.InboxOf(node, a), k.Run(node, b, id), a == b},
			{k.Shard(a.Shard), k.Watermark(b.Shard), a.Shard == b.Shard},
		} {
			if !strings.HasSuffix(c.prefix, "/") {
				t.Fatalf("%s does not end in /", c.prefix)
			}

			if strings.HasPrefix(c.key, c.prefix) != c.inside {
				t.Fatalf("%s is below %s: %v", c.key, c.prefix, !c.inside)
			}
		}

		for _, p := range []string{k.Root(), k.Nodes(), k.Leader(), k.Tokens(), k.Owners(), k.Specs(), k.Shards(), k.Runs(), k.Queue(1), k.History(1)} {
			if !strings.HasPrefix(p, k.Root()) || !strings.HasSuffix(p, "/") {
				t.Fatalf("prefix %s", p)
			}
		}

		for _, key := range []string{k.Cluster(), k.Node(node), k.Token("x"), k.Owner(1), k.Spec(a), k.Cleared("i")} {
			if !strings.HasPrefix(key, k.Root()) || strings.HasSuffix(key, "/") {
				t.Fatalf("key %s", key)
			}
		}
	})
}

func TestKeys_WhatIsNoneOfOursIsRefused(t *testing.T) {
	k := testKeys(t, "/carillon")

	for _, key := range []string{
		"", "/", "/carillon/shards", "/carillon/shards/", "/carillon/shards/0003", "/carillon/shards/0003/", "/other/shards/0003/watermark",
		"/carillon/shards/3/watermark", "/carillon/shards/00003/watermark", "/carillon/shards/-001/watermark", "/carillon/shards/+003/watermark",
		"/carillon/shards/0x03/watermark", "/carillon/shards/99999999999999999999/watermark", "/carillon/shards/0003/watermark/", "/carillon/shards/0003/watermark/x",
		"/carillon/shards/0003/tasks/default", "/carillon/shards/0003/tasks/default/", "/carillon/shards/0003/tasks//a", "/carillon/shards/0003/tasks/default/a/b",
		"/carillon/shards/0003/queue/default/a", "/carillon/shards/0003/queue/default/a/", "/carillon/shards/0003/queue/default//x",
		"/carillon/shards/0003/queue/default/a/x/y", "/carillon/shards/0003/history/default/a/~late~7", "/carillon/shards/0003/other/default/a/x",
		"/carillon/shards//tasks/default/a", "/carillon/shards/0003//default/a",
		"/carillon/shards/0003/tasks/default/" + strings.Repeat("a", 129), "/carillon/shards/0003/tasks/" + strings.Repeat("a", 1<<16) + "/a",
	} {
		if got, ok := k.ParseShard(key); ok {
			t.Errorf("%q is %+v", key, got)
		}
	}

	for _, key := range []string{
		"", "/carillon/runs/", "/carillon/runs/n/0003/default/a", "/carillon/runs/n/0003/default/a/", "/carillon/runs//0003/default/a/x",
		"/carillon/runs/n/3/default/a/x", "/carillon/runs/n/-001/default/a/x", "/carillon/runs/n/0003//a/x", "/carillon/runs/n/0003/default/a/x/y", "/other/runs/n/0003/default/a/x",
	} {
		if got, ok := k.ParseRun(key); ok {
			t.Errorf("%q is %+v", key, got)
		}
	}

	for _, key := range []string{"", "/carillon/owners/", "/carillon/owners/3", "/carillon/owners/-001", "/carillon/owners/0003/x", "/other/owners/0003", "0003"} {
		if got, ok := k.ParseOwner(key); ok {
			t.Errorf("%q is of shard %d", key, got)
		}
	}

	for _, key := range []string{"", "/carillon/tasks/", "/carillon/tasks/default", "/carillon/tasks/default/", "/carillon/tasks//a", "/carillon/tasks/default/a/b", "/other/tasks/default/a"} {
		if ns, name, ok := k.ParseSpec(key); ok {
			t.Errorf("%q is %q, %q", key, ns, name)
		}
	}
}

func TestNewKeys_RefusesPrefixesThatWouldMix(t *testing.T) {
	for _, p := range []string{"", "/", "carillon", "/carillon/", "/a//b", "/a b", "/a\x00", "/ä", "/" + strings.Repeat("a", 128)} {
		if k, err := record.NewKeys(p); err == nil {
			t.Errorf("%q gives %s", p, k.Root())
		} else {
			if !errors.Is(err, task.ErrInvalid) {
				t.Errorf("%q: %v", p, err)
			}
		}
	}

	for _, p := range []string{"/c", "/a/b/c", "/" + strings.Repeat("a", 127), record.DefaultPrefix} {
		if k := testKeys(t, p); k.Root() != p+"/" {
			t.Errorf("%q gives %s", p, k.Root())
		}
	}
}

func TestKeyKind(t *testing.T) {
	keys, err := record.NewKeys("/carillon")
	if err != nil {
		t.Fatal(err)
	}

	r := record.Ref{Namespace: "ns", Name: "name", Shard: 42}
	for key, want := range map[string]string{
		keys.Cluster(): "cluster", keys.Spec(r): "tasks", keys.Entry(r): "shards/tasks", keys.Ended(r, "run"): "shards/history",
		keys.Watermark(42): "shards/watermark", keys.Alert(r, "failing"): "alerts/tasks", keys.ClusterAlert("x"): "alerts/cluster",
		keys.Fence(): "access/fence", keys.Token("id"): "access/tokens", keys.BootTask(r): "boots/tasks", keys.Run("n1", r, "run"): "runs",
	} {
		if kind, known := keys.KeyKind(key); kind != want || !known {
			t.Errorf("%s: %s, %v", key, kind, known)
		}
	}

	for _, key := range []string{"novelty", "shards/0042/novelty/x", "access/novelty", "shards/x"} {
		if kind, known := keys.KeyKind(keys.Root() + key); known {
			t.Errorf("%s is known as %s", key, kind)
		}
	}
}
