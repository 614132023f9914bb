package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/version"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	nodeName   = "bench"  // the node that runs in this process
	holderName = "holder" // a node without a process, see registerHolder

	settleFor = time.Minute     // limits how long due ticks and runs may take to end
	loadFor   = 5 * time.Minute // limits how long all shards may take to be loaded, and to reach their owners
)

// cluster is a cluster of Carillon that belongs to one benchmark.
type cluster struct {
	*bench
	store  *store.Store // each write in its own request
	shards int
	from   int64  // the revision of etcd at which reading back begins
	inbox  string // the node that gets the runs
}

// createCluster creates a cluster with namespaces, and without nodes.
func (b *bench) createCluster(ctx context.Context, namespaces ...string) (*cluster, error) {
	c := &cluster{bench: b, store: store.New(b.client, kv.Direct(b.client), b.keys), inbox: nodeName}
	first := store.OpenAccess()
	for _, ns := range namespaces {
		first.Namespaces = append(first.Namespaces, store.OpenNamespace(ns))
	}

	made, _, err := c.store.Bootstrap(ctx, b.Shards, time.Now(), first)
	if err != nil {
		return nil, err
	}

	c.shards = made.Shards
	c.from, err = b.currentRevision(ctx)

	return c, err
}

// registerHolder registers a node that has no process, in a state. The runs in its inbox stay there. The function that
// registerHolder returns ends its session.
func (c *cluster) registerHolder(ctx context.Context, state string) (holder task.Node, leave func() error, err error) {
	session, err := kv.OpenSession(context.WithoutCancel(ctx), c.client, kv.SessionConfig{TTL: time.Minute, Logger: c.log})
	if err != nil {
		return holder, nil, err
	}

	leave = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		defer cancel()

		return session.Close(ctx)
	}

	// It announces no clock, so that others do not compare theirs with one that stands still.
	holder = task.Node{
		Name: holderName, Instance: task.NewUID(), State: state, Version: version.Get(), Labels: map[string]string{"node": holderName},
		Roles: []string{task.RoleExecutor}, Slots: 1, Weight: 1, StartedAt: task.At(time.Now()),
	}

	there, err := c.store.Present(ctx)
	if err == nil {
		_, _, err = c.store.Register(ctx, holder, session.Lease(), there.Record())
	}
	if err != nil {
		return holder, nil, errors.Join(err, leave())
	}

	return holder, leave, nil
}

// createTokens creates n tokens, each of another subject that may do everything. It returns their secrets.
func (c *cluster) createTokens(ctx context.Context, n int) (secrets []string, err error) {
	now := time.Now()
	binding := task.Binding{Name: "bench", Role: access.RoleAdmin, RoleUID: access.BuiltInUID, Cluster: true}

	for i := range n {
		subject := fmt.Sprintf("%s:bench-%d", access.KindService, i)
		binding.Subjects = append(binding.Subjects, subject)

		secret, token := authority.NewSecret()
		token.Subject, token.CreatedAt = subject, task.At(now)
		if err := c.store.CreateToken(ctx, token); err != nil {
			return nil, err
		}

		secrets = append(secrets, secret)
	}

	_, err = c.store.PutBinding(ctx, 0, binding, now)

	return secrets, err
}

// taskRef returns a task's name with its shard.
func (c *cluster) taskRef(namespace, name string) record.Ref {
	return refOf(namespace, name, c.shards)
}

// countTasks counts the specs and the entries in etcd.
func (c *cluster) countTasks(ctx context.Context) (n [2]int64, err error) {
	if n[0], err = c.store.CountSpecs(ctx); err != nil {
		return n, err
	}

	all := make([]int, c.shards)
	for id := range all {
		all[id] = id
	}

	shards, err := c.store.CountEntries(ctx, all)
	for _, tasks := range shards {
		n[1] += int64(tasks)
	}

	return n, err
}

// awaitBalanced waits until the nodes, and no others, own their shares of the shards.
func (c *cluster) awaitBalanced(ctx context.Context, nodes ...string) error {
	return awaitCondition(ctx, loadFor, fmt.Sprintf("the shards settle on %v", nodes), func() (bool, error) {
		l, err := c.store.Lineup(ctx)
		if ctx.Err() != nil {
			err = nil // the cause says more
		}

		return err == nil && isBalanced(l, c.shards, nodes), err
	})
}

// isBalanced reports whether the given nodes, and no others, own fair shares of all shards.
func isBalanced(l store.Lineup, shards int, nodes []string) bool {
	owned := map[string]int{}
	for _, o := range l.Owners {
		owned[o.Node]++
	}

	fair := len(l.Handovers) == 0 && len(l.Owners) == shards && len(owned) == len(nodes)
	for _, n := range nodes {
		fair = fair && owned[n] >= shards/len(nodes)
	}

	return fair
}

// awaitCondition polls until a condition holds, for a time at most.
func awaitCondition(ctx context.Context, limit time.Duration, condition string, holds func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not in %s: %s", limit, condition))
	defer cancel()

	for {
		ok, err := holds()
		if ok || err != nil {
			return err
		}
		if !clock.Sleep(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}
