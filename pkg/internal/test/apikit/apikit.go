// Package apikit makes small clusters for tests of the API and of what uses it: an etcd in memory with the records of a
// cluster, its access records, and a clock that the test sets.
package apikit

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/test/owners"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

// Shards is the number of shards of the clusters.
const Shards = 8

// Began is the time at which the clocks begin.
var Began = time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC)

// Clock is a wall clock that a test sets.
type Clock struct{ ms atomic.Int64 }

// NewClock returns a clock that shows Began.
func NewClock() *Clock {
	c := &Clock{}
	c.ms.Store(Began.UnixMilli())

	return c
}

// Now returns the time that the clock shows.
func (c *Clock) Now() time.Time { return time.UnixMilli(c.ms.Load()).UTC() }

// Set sets the clock.
func (c *Clock) Set(at time.Time) { c.ms.Store(at.UnixMilli()) }

// Advance sets the clock forward.
func (c *Clock) Advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

// Ref maps a task to its shard.
func Ref(ns, name string) record.Ref {
	return record.Ref{Namespace: ns, Name: name, Shard: shard.Of(ns, name, Shards)}
}

// Cluster is a cluster without daemons. user:ann is its administrator, and its namespaces (default, other, ops, prod and
// test) allow everything.
type Cluster struct {
	T      testing.TB
	Etcd   *kv.Client
	Store  *store.Store
	Record task.Cluster
	Clock  *Clock
	Keeper *authority.Keeper // the copy of the access records of all nodes
	Logger *zap.Logger

	accessWrites int
}

var clusters atomic.Int32

// New creates a cluster in an etcd. wrap, if not nil, sees all commits.
func New(t testing.TB, etcd *kv.Client, wrap func(kv.Committer) kv.Committer, logger *zap.Logger) *Cluster {
	t.Helper()
	keys, err := record.NewKeys(fmt.Sprintf("/test-%d", clusters.Add(1)))
	must(t, err)

	if logger == nil {
		logger = zap.NewNop()
	}
	committer := kv.Committer(kv.Direct(etcd))
	if wrap != nil {
		committer = wrap(committer)
	}

	c := &Cluster{T: t, Etcd: etcd, Clock: NewClock(), Logger: logger, Store: store.New(etcd, committer, keys)}
	c.Record, _, err = c.Store.Bootstrap(t.Context(), Shards, c.Clock.Now(), firstAccess())
	must(t, err)
	c.Keeper = c.NewKeeper(etcd)

	return c
}

// firstAccess is what a cluster begins with.
func firstAccess() store.FirstAccess {
	first := store.FirstAccess{Bindings: []task.Binding{{Name: "ann", Role: access.RoleAdmin, RoleUID: access.BuiltInUID, Subjects: []string{"user:ann"}, Cluster: true}}}
	for _, ns := range []string{"default", "other", "ops", "prod", "test"} {
		first.Namespaces = append(first.Namespaces, store.OpenNamespace(ns))
	}

	return first
}

// NewKeeper runs a keeper of the access records until the test ends.
func (c *Cluster) NewKeeper(etcd *kv.Client) *authority.Keeper {
	c.T.Helper()
	keeper := authority.New(etcd, c.Store.Keys(), c.Logger)
	ctx, stop := context.WithCancel(context.WithoutCancel(c.T.Context()))
	done := make(chan struct{})
	go func() { defer close(done); _ = keeper.Run(ctx) }()
	c.T.Cleanup(func() { stop(); <-done })

	_, err := keeper.AwaitLoaded(c.T.Context())
	must(c.T, err)

	return keeper
}

// Token creates a token, and returns its secret once the nodes accept it.
func (c *Cluster) Token(subject string, edits ...func(*task.Token)) string {
	c.T.Helper()
	secret, tok := authority.NewSecret()
	tok.Subject, tok.CreatedAt = subject, task.At(c.Clock.Now())
	for _, edit := range edits {
		edit(&tok.Token)
	}

	must(c.T, c.Store.CreateToken(c.T.Context(), tok))
	_, err := c.Keeper.Await(c.T.Context(), func(v *authority.View) bool { return v.Created(tok.ID) != 0 })
	must(c.T, err)

	return secret
}

// Until edits a token so that it expires.
func Until(at time.Time) func(*task.Token) {
	return func(t *task.Token) { t.Until = task.At(at) }
}

// Bind gives a built-in role to a subject, in namespaces or, without any, in the cluster. It returns the name of the
// binding.
func (c *Cluster) Bind(subject, role string, namespaces ...string) (name string) {
	c.T.Helper()
	name = "b" + task.NewUID()
	c.Access(c.Store.Keys().Binding(name), func(now time.Time) (int64, error) {
		return c.Store.PutBinding(c.T.Context(), 0, task.Binding{
			Name: name, Role: role, RoleUID: access.BuiltInUID, Subjects: []string{subject}, Namespaces: namespaces, Cluster: len(namespaces) == 0,
		}, now)
	})

	return name
}

// Namespace writes the record of a namespace, over the one that the nodes know.
func (c *Cluster) Namespace(n task.Namespace) {
	c.T.Helper()
	key := c.Store.Keys().Namespace(n.Name)
	c.Access(key, func(now time.Time) (int64, error) {
		return c.Store.PutNamespace(c.T.Context(), c.Keeper.View().Mod(key), n, now)
	})
}

// Access writes an access record, and returns once the nodes know it. The times of these writes lie in the past, so that
// they do not count towards how often the API may write such records.
func (c *Cluster) Access(key string, write func(now time.Time) (int64, error)) {
	c.T.Helper()
	c.accessWrites++
	rev, err := write(c.Clock.Now().Add(-time.Hour + time.Duration(c.accessWrites)*time.Second))
	must(c.T, err)

	_, err = c.Keeper.Await(c.T.Context(), func(v *authority.View) bool { return v.Mod(key) == rev })
	must(c.T, err)
}

// Owner answers queries about tasks for all shards, as their owners would.
func (c *Cluster) Owner(node string) owners.Owner {
	return owners.Owner{Node: node, Store: c.Store, Shards: Shards, Ref: Ref, Now: c.Clock.Now}
}

// Key is the key of a node in every cluster.
func Key(node string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(node))
	return ed25519.NewKeyFromSeed(seed[:])
}

// API returns the API of a node that owns all shards. edit, if not nil, changes its configuration.
func (c *Cluster) API(node string, edit func(*api.Config)) http.Handler {
	c.T.Helper()
	owner := c.Owner(node)
	cfg := api.Config{
		Store: c.Store, Access: c.Keeper, Cluster: c.Record, Node: node, Instance: "i-" + node, Key: Key(node), Ref: Ref, Now: c.Clock.Now,
		Version: "1.2.3", Logger: c.Logger, Ask: owner.Ask,
	}
	if edit != nil {
		edit(&cfg)
	}

	h, err := api.New(cfg)
	must(c.T, err)

	return h
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
