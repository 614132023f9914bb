package kv

import (
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
