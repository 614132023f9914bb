package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// deaf applies the first write and loses its answer. If late is set, it applies the write only when the second one
// arrives.
type deaf struct {
	kv.Committer
	late  bool
	first *kv.Txn
	calls int
}

func (d *deaf) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	d.calls++
	if d.calls == 1 {
		if d.late {
			d.first = &t
		} else if _, err := d.Committer.Commit(ctx, t); err != nil {
			return kv.Result{}, err
		}
		return kv.Result{}, errors.New("the answer was lost")
	}
	if d.first != nil {
		if _, err := d.Committer.Commit(ctx, *d.first); err != nil {
			return kv.Result{}, err
		}
		d.first = nil
	}
	return d.Committer.Commit(ctx, t)
}

// The first write has no effect, and another node creates the token before this one tries again. The token that
// this node has stored is then not valid.
func TestAdminToken_KeepsNoTokenThatTheClusterDoesNotKnow(t *testing.T) {
	etcd := kvtest.Start(t)
	keys, err := record.NewKeys("/carillon")
	if err != nil {
		t.Fatal(err)
	}
	node := func(writes kv.Committer) *adminToken {
		return &adminToken{path: filepath.Join(t.TempDir(), "token"), log: zap.NewNop(), env: Environment{Now: time.Now}, store: store.New(etcd, writes, keys)}
	}
	late := node(&deaf{Committer: kv.Direct(etcd), late: true})
	if late.ensureToken(t.Context()) == nil {
		t.Fatal("a lost write is taken for a good one")
	}
	first := node(kv.Direct(etcd))
	if err := errors.Join(first.ensureToken(t.Context()), late.ensureToken(t.Context()), first.ensureToken(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(first.path); err != nil {
		t.Errorf("the token of the first: %v", err)
	}
	if _, err := os.Stat(late.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the other's token is still there: %v", err)
	}
}

func TestAdminToken_LeavesNobodyLockedOut(t *testing.T) {
	for name, late := range map[string]bool{"the answer was lost": false, "the write came late": true} {
		t.Run(name, func(t *testing.T) {
			etcd := kvtest.Start(t)
			keys, err := record.NewKeys("/carillon")
			if err != nil {
				t.Fatal(err)
			}
			token := &adminToken{
				path: filepath.Join(t.TempDir(), "token"), log: zap.NewNop(), env: Environment{Now: time.Now},
				store: store.New(etcd, &deaf{Committer: kv.Direct(etcd), late: late}, keys),
			}
			if token.ensureToken(t.Context()) == nil {
				t.Fatal("a lost answer is taken for a good one")
			}
			if err := token.ensureToken(t.Context()); err != nil { // as on a retry or after a restart
				t.Fatal(err)
			}
			secret, err := os.ReadFile(token.path)
			if err != nil {
				t.Fatal(err)
			}
			id, record, ok := api.TokenOf(strings.TrimSpace(string(secret)))
			there, err := token.store.Token(t.Context(), id)
			if !ok || err != nil || there.Hash != record.Hash {
				t.Errorf("the secret on disk is not that of the token in etcd: %v, %v", ok, err)
			}
		})
	}
}
