package record_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestParseShard_ReturnsThePartsOfLinks(t *testing.T) {
	keys, err := record.NewKeys("/c")
	if err != nil {
		t.Fatal(err)
	}

	ref := record.Ref{Namespace: "default", Name: "etl", Shard: 7}
	for key, want := range map[string]record.ShardKey{
		keys.Sent(ref):                       {Kind: record.KindSent, Ref: ref},
		keys.Subscriber(ref, "report"):       {Kind: record.KindSubscriber, Ref: ref, Peer: "report"},
		keys.Trigger(ref, "import", "r1-ab"): {Kind: record.KindTrigger, Ref: ref, Peer: "import", Run: "r1-ab"},
	} {
		if got, ok := keys.ParseShard(key); !ok || got != want {
			t.Errorf("%s is parsed as %+v, %v; want %+v", key, got, ok, want)
		}
	}

	for _, key := range []string{
		keys.Sent(ref) + "/x", keys.Subscribers(ref), keys.Subscriber(ref, "a/b"), keys.Triggers(ref), keys.Triggers(ref) + "a",
		keys.Triggers(ref) + "~r", keys.Triggers(ref) + "a~", keys.Trigger(ref, "a", "b/c"),
	} {
		if got, ok := keys.ParseShard(key); ok {
			t.Errorf("%s is parsed as %+v", key, got)
		}
	}

	// Owners load and watch the whole shard up to its watermark.
	all := []string{keys.Parts(ref), keys.Sent(ref), keys.Subscribers(ref), keys.Triggers(ref), keys.Watermark(7)}
	if !slices.IsSorted(all) {
		t.Errorf("%v are not sorted", all)
	}
}

func TestCursor_OrdersEnds(t *testing.T) {
	ordered := []record.Cursor{{Create: 4}, {Create: 5, Run: "a"}, {Create: 5, Run: "b"}, {Create: 5}, {Create: 6, Run: "a"}}
	for i, c := range ordered {
		for k, d := range ordered {
			if got := c.Compare(d); (got < 0) != (i < k) || (got > 0) != (i > k) {
				t.Errorf("%v compared with %v: %d", c, d, got)
			}
		}
	}
}

func TestLinkRecords_RefuseDamage(t *testing.T) {
	for _, text := range []string{``, `{}`, `null`, `[]`, `{"create":0}`, `{"create":-1}`, `{"create":"5"}`} {
		if c, err := record.DecodeCursor([]byte(text)); !errors.Is(err, task.ErrInvalid) {
			t.Errorf("cursor %q: %+v, %v", text, c, err)
		}
	}

	keys, _ := record.NewKeys("/c")
	ref := record.Ref{Namespace: "default", Name: "report", Shard: 7}
	key := keys.Trigger(ref, "etl", "r1")
	k, _ := keys.ParseShard(key)
	for _, text := range []string{``, `{}`, `null`, `{"uid":"u"}`, `{"at":"2026-01-01T00:00:00Z"}`} {
		p, err := record.DecodePending(k, &mvccpb.KeyValue{Key: []byte(key), Value: []byte(text), CreateRevision: 3, ModRevision: 4})
		if !errors.Is(err, task.ErrInvalid) || p.Key(keys) != key || p.Cause.Task != "etl" || p.Mod != 4 {
			t.Errorf("trigger %q: %+v, %v", text, p, err)
		}
	}

	key = keys.Subscriber(ref, "mail")
	for _, text := range []string{``, `{}`, `{"uid":"u"}`, `{"uid":"u","generation":0}`} {
		if d, ok, err := record.DecodeDependent(keys, &mvccpb.KeyValue{Key: []byte(key), Value: []byte(text)}); !ok || d.Name != "mail" || !errors.Is(err, task.ErrInvalid) {
			t.Errorf("subscriber %q: %+v, %v, %v", text, d, ok, err)
		}
	}
}

func TestCodec_KeepsCauses(t *testing.T) {
	run := task.Run{UID: "u", State: task.Succeeded, Trigger: task.TriggerAfter, ScheduledTime: task.At(time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC))}
	run.Causes = []task.Cause{{Task: "etl", Run: "r1", State: task.Failed, Results: map[string]string{"rows": "4"}}}
	run.Period = task.At(time.Date(2026, 11, 19, 0, 0, 0, 0, time.UTC))

	got, err := record.DecodeRunValue(record.EncodeEnded(run))
	if err != nil || !reflect.DeepEqual(got, run) {
		t.Errorf("decoded %+v, %v; want %+v", got, err, run)
	}
	if run.Ticks() != 0 {
		t.Errorf("a triggered run decides %d ticks", run.Ticks())
	}
}
