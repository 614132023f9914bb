package kv

import (
	"fmt"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestMirror_NeverGoesBack(t *testing.T) {
	kv := func(key string, rev int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), ModRevision: rev}
	}

	put := func(key string, rev int64) *clientv3.Event {
		return &clientv3.Event{Type: clientv3.EventTypePut, Kv: kv(key, rev)}
	}

	del := func(key string, rev int64) *clientv3.Event {
		return &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: kv(key, rev)}
	}

	m := NewMirror(nil, FollowConfig{Key: "k"})
	m.applyBatch(Batch{Reset: true, KVs: []*mvccpb.KeyValue{kv("a", 5), kv("b", 6)}, Revision: 10})

	for name, b := range map[string]Batch{
		"an older list":                      {Reset: true, Revision: 9},
		"an older event":                     {Events: []*clientv3.Event{put("a", 4)}, Revision: 4},
		"an older deletion":                  {Events: []*clientv3.Event{del("a", 9)}, Revision: 9},
		"an older event in a newer response": {Events: []*clientv3.Event{put("c", 9), del("b", 10)}, Revision: 10},
	} {
		m.applyBatch(b)
		if s := m.Snapshot(); s.Revision != 10 || len(s.KVs) != 2 || s.Get("a").ModRevision != 5 || s.Get("b").ModRevision != 6 {
			t.Errorf("after %s: %+v", name, s)
		}
	}

	m.applyBatch(Batch{Events: []*clientv3.Event{del("a", 11), put("c", 12)}, Revision: 12})
	m.applyBatch(Batch{Events: []*clientv3.Event{put("a", 5)}, Revision: 12}) // deleted since then

	if s := m.Snapshot(); s.Get("a") != nil || s.Get("c") == nil || s.Revision != 12 {
		t.Errorf("%+v", s)
	}
}

func TestSnapshot_ChangesSince(t *testing.T) {
	kv := func(key string, rev int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), ModRevision: rev}
	}

	shared := kv("m", 3)
	older := Snapshot{KVs: []*mvccpb.KeyValue{kv("a", 1), kv("b", 2), shared, kv("n", 4), kv("z", 5)}}
	newer := Snapshot{KVs: []*mvccpb.KeyValue{kv("b", 7), kv("c", 8), shared, kv("n", 4), kv("zz", 9)}}

	show := func(changes []Change) (list []string) {
		for _, c := range changes {
			rev := int64(0)
			if c.KV != nil {
				rev = c.KV.ModRevision
			}
			list = append(list, fmt.Sprint(c.Key, " ", rev))
		}
		return list
	}

	for _, c := range []struct {
		what         string
		older, newer Snapshot
		want         []string
	}{
		{"changes", older, newer, []string{"a 0", "b 7", "c 8", "z 0", "zz 9"}},
		{"none", older, older, nil},
		{"everything is new", Snapshot{}, Snapshot{KVs: older.KVs[:2]}, []string{"a 1", "b 2"}},
		{"everything is gone", Snapshot{KVs: older.KVs[:2]}, Snapshot{}, []string{"a 0", "b 0"}},
	} {
		if got := show(c.newer.ChangesSince(c.older)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
