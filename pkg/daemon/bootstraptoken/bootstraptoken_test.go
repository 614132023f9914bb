package bootstraptoken

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// deaf applies the first write of the cluster's record and loses its answer; if late, it applies it only when the next
// one comes. With the answer it loses the process that waits for it.
type deaf struct {
	kv.Committer
	late  bool
	crash context.CancelFunc
	lost  bool
	first *kv.Txn
}

func (d *deaf) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	makesRecord := slices.ContainsFunc(t.Then, func(op clientv3.Op) bool { return op.IsPut() && strings.HasSuffix(string(op.KeyBytes()), "/cluster") })
	if makesRecord && !d.lost {
		d.lost = true
		d.crash()
		if d.late {
			d.first = &t
		} else if _, err := d.Committer.Commit(ctx, t); err != nil {
			return kv.Result{}, err
		}

		return kv.Result{}, errors.New("the answer was lost")
	}

	if makesRecord && d.first != nil {
		if _, err := d.Committer.Commit(ctx, *d.first); err != nil {
			return kv.Result{}, err
		}
		d.first = nil
	}

	return d.Committer.Commit(ctx, t)
}

// bootstrapper does what a node does with its data directory and etcd at its start, as package daemon.
type bootstrapper struct {
	*File
	t   *testing.T
	ctx context.Context // ends with the process
}

func newBootstrapper(t *testing.T, etcd *kv.Client, writes kv.Committer) *bootstrapper {
	t.Helper()
	keys, err := record.NewKeys("/carillon")
	if err != nil {
		t.Fatal(err)
	}

	return &bootstrapper{NewFile(t.TempDir(), store.New(etcd, writes, keys), zap.NewNop()), t, t.Context()}
}

// newDeafBootstrapper returns one whose process ends when it creates the cluster. restart begins the next process.
func newDeafBootstrapper(t *testing.T, etcd *kv.Client, late bool) (b *bootstrapper, restart func()) {
	t.Helper()
	ctx, crash := context.WithCancel(t.Context())
	b = newBootstrapper(t, etcd, &deaf{Committer: kv.Direct(etcd), late: late, crash: crash})
	b.ctx = ctx

	return b, func() { b.ctx = t.Context() }
}

func (b *bootstrapper) start() error {
	b.t.Helper()
	there, err := b.store.Present(b.ctx)
	if err != nil {
		return err
	}

	return b.create(there.Found)
}

// create is the rest of start, for a node that found a cluster or did not.
func (b *bootstrapper) create(found bool) error {
	_, _, err := b.CreateCluster(b.ctx, found, 4, false, time.Now())
	return err
}

// works reports whether the secret on disk is that of a token of the cluster.
func (b *bootstrapper) works() bool {
	b.t.Helper()
	_, id, hash, err := b.readFile()
	b.must(err)

	known, err := b.store.Token(b.t.Context(), id)

	return id != "" && err == nil && known.Hash == hash
}

func (b *bootstrapper) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// Verifies: G33
func TestAdminToken_IsCreatedWithTheCluster(t *testing.T) {
	etcd := kvtest.Memory(t)
	n := newBootstrapper(t, etcd, kv.Direct(etcd))
	n.must(n.start())

	keys := n.store.Keys()
	revisions := map[int64]bool{}
	for _, key := range []string{keys.Cluster(), keys.Fence(), keys.Binding("bootstrap"), keys.Namespace("default")} {
		res, err := etcd.Get(t.Context(), key)
		n.must(err)
		if len(res.Kvs) == 0 {
			t.Fatalf("%s does not exist", key)
		}
		revisions[res.Kvs[0].CreateRevision] = true
	}

	tokens, err := etcd.Get(t.Context(), keys.Tokens(), clientv3.WithPrefix())
	n.must(err)
	if len(tokens.Kvs) != 1 || !n.works() {
		t.Fatalf("%d tokens; the one on disk works: %v", len(tokens.Kvs), n.works())
	}
	if revisions[tokens.Kvs[0].CreateRevision] = true; len(revisions) != 1 {
		t.Errorf("created by several transactions: %v", revisions)
	}
	if info, err := os.Stat(n.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the token: %v, %v", info, err)
	}
}

// TestAdminToken_StaysDeleted restarts nodes after the first token was deleted: the one that had created it, which
// still has the secret on disk, the same once more, and a new one.
//
// Verifies: G33
func TestAdminToken_StaysDeleted(t *testing.T) {
	etcd := kvtest.Memory(t)
	n := newBootstrapper(t, etcd, kv.Direct(etcd))
	n.must(n.start())

	keys := n.store.Keys()
	_, err := etcd.Delete(t.Context(), keys.Tokens(), clientv3.WithPrefix())
	n.must(err)

	for _, who := range []string{"the node that created it", "the same again", "another"} {
		if who == "another" {
			n = newBootstrapper(t, etcd, kv.Direct(etcd))
		}

		n.must(n.start())

		res, err := etcd.Get(t.Context(), keys.Tokens(), clientv3.WithPrefix(), clientv3.WithCountOnly())
		n.must(err)
		if _, err := os.Stat(n.path); res.Count != 0 || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %d tokens, and the file: %v", who, res.Count, err)
		}
	}
}

// TestAdminToken_SurvivesACrashBeforeTheTransaction kills the node when the secret is on disk, and starts it again: the
// same secret is that of the cluster's token.
//
// Verifies: G33
func TestAdminToken_SurvivesACrashBeforeTheTransaction(t *testing.T) {
	etcd := kvtest.Memory(t)
	n := newBootstrapper(t, etcd, kv.Direct(etcd))
	_, err := n.firstAccess(false, time.Now())
	n.must(err)

	before, err := os.ReadFile(n.path)
	n.must(err)
	n.must(n.start())

	after, err := os.ReadFile(n.path)
	n.must(err)
	if string(after) != string(before) || !n.works() {
		t.Errorf("the secret has changed: %v; it works: %v", string(after) != string(before), n.works())
	}
}

// TestAdminToken_IsThatOfOneNode has two nodes find no cluster at the same time.
//
// Verifies: G33
func TestAdminToken_IsThatOfOneNode(t *testing.T) {
	etcd := kvtest.Memory(t)
	nodes := []*bootstrapper{newBootstrapper(t, etcd, kv.Direct(etcd)), newBootstrapper(t, etcd, kv.Direct(etcd))}

	var g errgroup.Group
	for _, n := range nodes {
		g.Go(func() error { return n.create(false) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}

	left := 0
	for _, n := range nodes {
		if _, err := os.Stat(n.path); err != nil {
			continue
		}
		if left++; !n.works() {
			t.Error("a node keeps the secret of an unknown token")
		}
	}
	if left != 1 {
		t.Errorf("%d nodes have a secret, want 1", left)
	}
}

// The first write comes to nothing, and another node is first before it is tried again: the secret that this node has
// kept is nobody's.
//
// Verifies: G33
func TestAdminToken_KeepsNoTokenThatTheClusterDoesNotKnow(t *testing.T) {
	etcd := kvtest.Memory(t)
	late, restart := newDeafBootstrapper(t, etcd, true)
	if late.start() == nil {
		t.Fatal("a lost write is taken for a good one")
	}

	restart()
	first := newBootstrapper(t, etcd, kv.Direct(etcd))
	if err := errors.Join(first.start(), late.start(), first.start()); err != nil {
		t.Fatal(err)
	}
	if !first.works() {
		t.Error("the token of the first does not work")
	}
	if _, err := os.Stat(late.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the other's token is still there: %v", err)
	}
}

// Verifies: G33
func TestAdminToken_LeavesNobodyLockedOut(t *testing.T) {
	for name, late := range map[string]bool{"the answer was lost": false, "the write came late": true} {
		t.Run(name, func(t *testing.T) {
			etcd := kvtest.Memory(t)
			n, restart := newDeafBootstrapper(t, etcd, late)
			if n.start() == nil {
				t.Fatal("a lost answer is taken for a good one")
			}

			restart()
			n.must(n.start())
			if !n.works() {
				t.Error("the secret on disk is not that of the token in etcd")
			}
		})
	}
}
