package store_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestLoginKey_IsOneForAllNodes(t *testing.T) {
	w := newWorld(t)

	var asked sync.WaitGroup
	var keys [4][record.LoginKeyBytes]byte
	for i := range keys {
		asked.Go(func() {
			var err error
			if keys[i], err = w.LoginKey(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	asked.Wait()

	for _, key := range keys {
		if key != keys[0] || key == [record.LoginKeyBytes]byte{} {
			t.Errorf("the nodes have the keys %x", keys)
			break
		}
	}
}

func TestLoginKey_RefusesARecordThatIsNone(t *testing.T) {
	for _, value := range []string{`{"key":"AAAA"}`, `{`, `{}`} {
		w := newWorld(t)
		if _, err := w.etcd.Put(t.Context(), w.Keys().LoginKey(), value); err != nil {
			t.Fatal(err)
		}
		if _, err := w.LoginKey(t.Context()); !errors.Is(err, task.ErrInvalid) {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// Only tokens that ended before the instant are deleted, each with an audit record of the node, and the fence stays.
func TestDeleteExpiredTokens_LeavesOthersAndTheFence(t *testing.T) {
	w := newWorld(t)
	put := func(id string, until time.Time) {
		tok := record.Token{Token: task.Token{ID: id, Subject: "user:ann"}}
		if !until.IsZero() {
			tok.Until = task.At(until)
		}
		if err := w.Store.CreateToken(t.Context(), tok); err != nil {
			t.Fatal(err)
		}
	}

	for i := range 120 {
		put(fmt.Sprintf("old%03d", i), noon.Add(-time.Hour))
	}
	put("endless", time.Time{})
	put("young", noon.Add(-time.Minute))
	put("zzz", noon.Add(-time.Hour))

	// Sessions have an instant of their own.
	for id, until := range map[string]time.Time{"session-old": noon.Add(-20 * time.Minute), "session-young": noon.Add(-5 * time.Minute)} {
		session := record.Token{Token: task.Token{ID: id, Kind: task.TokenKindSession, Subject: "user:ann", Until: task.At(until)}}
		if err := w.Store.CreateSession(t.Context(), store.NewSession{Token: session}); err != nil {
			t.Fatal(err)
		}
	}

	fence, err := w.etcd.Get(t.Context(), w.keys.Fence())
	if err != nil {
		t.Fatal(err)
	}

	var found []store.ExpiredToken
	for after := ""; ; {
		list, next, err := w.Store.ExpiredTokens(t.Context(), noon.Add(-30*time.Minute), noon.Add(-10*time.Minute), after, 50)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, list...)
		if after = next; after == "" {
			break
		}
	}
	if len(found) != 122 || found[120].ID != "session-old" {
		t.Fatalf("found %d expired tokens, want 122, and a session", len(found))
	}

	// The last one is written after it was read: the tokens of its transaction stay.
	key := w.keys.Token("zzz")
	if _, err := w.etcd.Put(t.Context(), key, record.Encode(record.Token{Token: task.Token{ID: "zzz"}})); err != nil {
		t.Fatal(err)
	}

	deleted, err := w.Store.DeleteExpiredTokens(t.Context(), "n1", found, noon)
	if err != nil || deleted != 100 {
		t.Errorf("deleted %d, %v; want 100", deleted, err)
	}

	records, _, err := w.Store.AuditRecords(t.Context(), "", 100)
	if err != nil {
		t.Fatal(err)
	}

	objects := 0
	for _, r := range records {
		if r.Operation != store.OperationSweepTokens {
			continue
		}
		if r.Subject != "node:n1" || slices.ContainsFunc(r.Objects, func(o task.AuditObject) bool { return o.Kind != "token" || o.Change != "delete" }) {
			t.Errorf("audit record %+v", r)
		}
		objects += len(r.Objects)
	}
	if objects != 100 {
		t.Errorf("audit records list %d tokens, want 100", objects)
	}

	after, err := w.etcd.Get(t.Context(), w.keys.Fence())
	if err != nil || after.Kvs[0].ModRevision != fence.Kvs[0].ModRevision {
		t.Errorf("the fence was written: %v", err)
	}
}
