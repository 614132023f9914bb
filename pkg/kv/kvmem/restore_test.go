package kvmem_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// A store is copied, goes on, and becomes the copy again, at a higher revision.
func TestStore_IsRestoredFromACopy(t *testing.T) {
	s := kvmem.New(kvmem.Config{})
	defer s.Close()
	client, ctx := kvtest.ClientOf(t, s), t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	lease, err := client.Grant(ctx, 600)
	must(err)
	_, err = client.Put(ctx, "kept", "1")
	must(err)
	_, err = client.Put(ctx, "leased", "1", clientv3.WithLease(lease.ID))
	must(err)

	backup := s.Copy()
	_, err = client.Put(ctx, "kept", "2")
	must(err)
	_, err = client.Put(ctx, "lost", "1")
	must(err)

	backup.Bump(1000)
	private := kvtest.ClientOf(t, backup)
	leases, err := private.Leases(ctx)
	if err != nil || len(leases.Leases) != 1 {
		t.Fatalf("the copy has the leases %+v, %v", leases, err)
	}
	_, err = private.Revoke(ctx, leases.Leases[0].ID)
	must(err)

	events := client.Watch(ctx, "", clientv3.WithPrefix())
	s.Become(backup)
	for range events { // the watch ends
	}

	all, err := client.Get(ctx, "", clientv3.WithPrefix())
	must(err)
	if len(all.Kvs) != 1 || string(all.Kvs[0].Value) != "1" || all.Kvs[0].ModRevision >= 1000 || all.Header.Revision != 1001 {
		t.Errorf("restored at revision %d: %v", all.Header.Revision, all.Kvs)
	}
	if list := s.Events(); len(list) != 1 || string(list[0].Kv.Key) != "leased" || list[0].Kv.ModRevision != 1001 {
		t.Errorf("the history after the restore: %v", list)
	}

	// Older revisions are compacted, and new ones follow.
	if r := <-client.Watch(ctx, "kept", clientv3.WithRev(5)); r.CompactRevision != 1000 {
		t.Errorf("a watch from a lost revision: %+v", r)
	}
	put, err := client.Put(ctx, "kept", "3")
	if err != nil || put.Header.Revision != 1002 {
		t.Errorf("%+v, %v", put, err)
	}
}
