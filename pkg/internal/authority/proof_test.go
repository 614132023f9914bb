package authority_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func tokenOf(id string) record.Token {
	return record.Token{Token: task.Token{ID: id, Subject: "service:x"}, Hash: hex.EncodeToString(sum(id))}
}

// Each node proves its copy every two seconds, so a proof must not cost more with more records.
func TestProof_CostsTheSameWithManyRecords(t *testing.T) {
	w := newWorld(t)
	reads := &etcdhook.Reads{}
	counted := kvtest.ClientOf(t, w.memory)
	counted.KV = reads.KV(counted.KV)

	cost := func() etcdhook.ReadCount {
		t.Helper()
		w.must(authority.NewAt(counted, w.store.Keys(), w.listAccess()).ProveNow(t.Context()))

		return reads.Take()
	}

	few := cost()
	for i := range 200 {
		w.must(w.store.CreateToken(t.Context(), tokenOf(fmt.Sprint("many", i))))
	}

	if many := cost(); many != few || many != (etcdhook.ReadCount{Requests: 1, Ranges: 2, Keys: 2}) {
		t.Errorf("etcd reads %+v for a proof with 200 more tokens, and %+v before", many, few)
	}
}

// A copy is not proven while it lacks a change, whichever change it is. The watch of a copy that nobody runs lacks all.
func TestProof_FailsAfterEachChange(t *testing.T) {
	session := func(id, parent string) record.Token {
		s := tokenOf(id)
		s.Kind, s.Parent, s.Until = task.TokenKindSession, parent, task.At(now.Add(time.Hour))

		return s
	}

	type change struct {
		name string
		do   func(w *world) error
	}

	mod := func(w *world, key string) int64 {
		r, err := w.etcd.Get(w.Context(), key)
		w.must(err)
		return r.Kvs[0].ModRevision
	}
	created := func(w *world, id string) int64 {
		r, err := w.etcd.Get(w.Context(), w.store.Keys().Token(id))
		w.must(err)
		return r.Kvs[0].CreateRevision
	}

	w := newWorld(t)
	keys := w.store.Keys()
	at := now
	for _, c := range []change{
		{"a namespace", func(w *world) error {
			_, err := w.store.PutNamespace(w.Context(), 0, store.OpenNamespace("n"), at)
			return err
		}},
		{"a deleted namespace", func(w *world) error {
			return w.store.DeleteNamespace(w.Context(), "n", mod(w, keys.Namespace("n")), store.FreezeRecord{}, at)
		}},
		{"a role", func(w *world) error { _, err := w.store.PutRole(w.Context(), 0, task.Role{Name: "r"}, at); return err }},
		{"a deleted role", func(w *world) error { return w.store.DeleteRole(w.Context(), "r", mod(w, keys.Role("r")), at) }},
		{"a binding", func(w *world) error {
			_, err := w.store.PutBinding(w.Context(), 0, task.Binding{Name: "b"}, at)
			return err
		}},
		{"a deleted binding", func(w *world) error { return w.store.DeleteBinding(w.Context(), "b", mod(w, keys.Binding("b")), at) }},
		{"a limit of nodes", func(w *world) error {
			_, err := w.store.PutNodeLimit(w.Context(), 0, task.NodeLimit{Name: "x"}, at)
			return err
		}},
		{"a deleted limit", func(w *world) error {
			return w.store.DeleteNodeLimit(w.Context(), "x", mod(w, keys.NodeLimit("x")), at)
		}},
		{"a disabled subject", func(w *world) error { return w.store.DisableSubject(w.Context(), "user:x", at) }},
		{"an enabled subject", func(w *world) error {
			return w.store.EnableSubject(w.Context(), "user:x", mod(w, keys.DisabledSubject("user:x")), at)
		}},
		{"a token", func(w *world) error { return w.store.CreateToken(w.Context(), tokenOf("p")) }},
		{"a login link", func(w *world) error {
			link := session("l", "p")
			link.Kind = task.TokenKindLink
			return w.store.CreateSession(w.Context(), store.NewSession{Token: link})
		}},
		{"a used login link", func(w *world) error {
			return w.store.UseLink(w.Context(), "l", created(w, "l"), store.NewSession{Token: session("s1", "p")})
		}},
		{"a session that replaces another", func(w *world) error {
			return w.store.CreateSession(w.Context(), store.NewSession{Token: session("s2", "p"), Remove: []string{"s1"}})
		}},
		{"an expired session", func(w *world) error {
			n, err := w.store.DeleteExpiredTokens(w.Context(), "n", []store.ExpiredToken{{Token: task.Token{ID: "s2"}, Mod: mod(w, keys.Token("s2"))}}, at)
			if n != 1 {
				return fmt.Errorf("%d were deleted", n)
			}
			return err
		}},
		{"a deleted token", func(w *world) error { return w.store.DeleteToken(w.Context(), "p", created(w, "p")) }},
	} {
		at = at.Add(time.Second)
		stale := authority.NewAt(w.etcd, w.store.Keys(), w.listAccess())
		w.must(stale.Proven(t.Context()))
		w.must(c.do(w))

		if err := stale.ProveNow(t.Context()); !errors.Is(err, authority.ErrNotProven) {
			t.Errorf("%s: a copy that lacks it is taken for the current one: %v", c.name, err)
		}
	}
}

// A full etcd accepts deletions only, so tokens are deleted without a put. No such deletion may go unnoticed, nor the next.
func TestProof_FailsAfterDeletionsInAFullEtcd(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"a", "b"} {
		w.must(w.store.CreateToken(t.Context(), tokenOf(id)))
	}

	full := kvtest.ClientOf(t, w.memory)
	full.KV = etcdhook.KV(full.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		if hasPut(op) {
			return clientv3.OpResponse{}, rpctypes.ErrNoSpace
		}
		return next(ctx, op)
	})

	c := w.ann("t1")
	for _, id := range []string{"a", "b"} {
		v, err := w.keeper.Current(t.Context())
		w.must(err)

		stale := authority.NewAt(w.etcd, w.store.Keys(), w.listAccess())
		w.must(stale.ProveNow(t.Context()))
		w.must(store.New(full, kv.Direct(full), w.store.Keys()).As(c).DeleteToken(t.Context(), id, v.Created(id)))

		if err := stale.ProveNow(t.Context()); !errors.Is(err, authority.ErrNotProven) {
			t.Errorf("a copy with the deleted token %s is taken for the current one: %v", id, err)
		}
	}
	if len(c.late) != 2 || len(c.late[0].Objects) != 1 {
		t.Errorf("late audit records: %+v", c.late)
	}

	// With space again, the next change ends the comparison of all records.
	w.must(w.store.CreateToken(t.Context(), tokenOf("c")))
	v, err := w.keeper.Current(t.Context())
	w.must(err)
	if v.Mod(w.store.Keys().TokenChanges()) == 0 {
		t.Error("the key of changes of tokens was not put again")
	}
}

func hasPut(op clientv3.Op) bool {
	if !op.IsTxn() {
		return op.IsPut()
	}

	_, then, _ := op.Txn()
	for _, o := range then {
		if hasPut(o) {
			return true
		}
	}

	return false
}

// listAccess returns all access records.
func (w *world) listAccess() []*mvccpb.KeyValue {
	r, err := w.etcd.Get(w.Context(), w.store.Keys().Access(), clientv3.WithPrefix())
	w.must(err)

	return r.Kvs
}

// A record that somebody writes by hand, without the keys that Carillon puts, is applied all the same.
func TestKeeper_AppliesRecordsWrittenByHand(t *testing.T) {
	w := newWorld(t)
	_, err := w.etcd.Put(t.Context(), w.store.Keys().Token("byhand"), record.Encode(tokenOf("byhand")))
	w.must(err)
	_, err = w.keeper.Await(t.Context(), func(v *authority.View) bool { return v.Created("byhand") > 0 })
	w.must(err)
	w.must(w.keeper.ProveNow(t.Context()))

	_, err = w.etcd.Delete(t.Context(), w.store.Keys().Token("byhand"))
	w.must(err)
	_, err = w.keeper.Await(t.Context(), func(v *authority.View) bool { return v.Created("byhand") == 0 })
	w.must(err)
	w.must(w.keeper.ProveNow(t.Context()))
}
