package eventlog

import (
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Without the previous value, an update would look like a creation.
func TestOneRevision_DemandsWhatWasThereBefore(t *testing.T) {
	at := func(rev, create int64, kind mvccpb.Event_EventType, before *mvccpb.KeyValue) *clientv3.Event {
		return &clientv3.Event{Type: kind, Kv: &mvccpb.KeyValue{Key: []byte("k"), ModRevision: rev, CreateRevision: create}, PrevKv: before}
	}

	before := &mvccpb.KeyValue{Key: []byte("k"), ModRevision: 3, CreateRevision: 3}
	rev, changes, err := oneRevision([]*clientv3.Event{
		at(7, 7, clientv3.EventTypePut, nil), at(7, 3, clientv3.EventTypePut, before), at(7, 0, clientv3.EventTypeDelete, before), at(8, 8, clientv3.EventTypePut, nil)})
	if err != nil || rev != 7 || len(changes) != 3 || changes[0].Before != nil || changes[1].After == nil || changes[2].After != nil {
		t.Errorf("revision %d, %+v, %v", rev, changes, err)
	}

	for _, e := range []*clientv3.Event{at(7, 3, clientv3.EventTypePut, nil), at(7, 0, clientv3.EventTypeDelete, nil)} {
		if _, _, err := oneRevision([]*clientv3.Event{e}); !errors.Is(err, errElsewhere) {
			t.Errorf("%+v: %v", e, err)
		}
	}
}
