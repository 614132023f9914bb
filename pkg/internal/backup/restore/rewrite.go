package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Operation is the operation of the audit record of a restore.
const Operation = "restore-backup"

// opsPerTxn is how many operations one transaction has at most.
const opsPerTxn = 100

// rewriter rewrites the content of a backup in an etcd that nobody else uses.
type rewriter struct {
	*Options
	source  Source
	content *Content
	keys    record.Keys
	client  *kv.Client
	store   *store.Store
}

// Rewrite makes the content of an etcd, which is that of the backup, the content of a new epoch, and returns the new record of the
// cluster. It writes that record last, so an interrupted restore is never taken for a complete one. Prepare calls it with its private
// etcd, whose revision is higher than any of the lost history.
func Rewrite(ctx context.Context, client *kv.Client, s *store.Store, source Source, content *Content, o *Options) (task.Cluster, error) {
	r := &rewriter{Options: o, source: source, content: content, keys: s.Keys(), client: client, store: s}
	if err := r.beginStep("rewrite"); err != nil {
		return task.Cluster{}, err
	}

	for _, step := range []func(context.Context) error{
		r.revokeLeases, r.deleteProcesses, r.deleteTokens, r.deleteOtherKeys, r.freeze, r.recordAccess,
	} {
		if err := step(ctx); err != nil {
			return task.Cluster{}, fmt.Errorf("rewrite the content of the backup: %w", err)
		}
	}

	return r.beginEpoch(ctx)
}

// revokeLeases revokes all leases, which deletes their keys: of nodes, the leader, and of proofs that instances are dead.
func (r *rewriter) revokeLeases(ctx context.Context) error {
	leases, err := r.client.Leases(ctx)
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}

	for _, l := range leases.Leases {
		if _, err := r.client.Revoke(ctx, l.ID); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return fmt.Errorf("revoke lease %x: %w", l.ID, err)
		}
	}

	return nil
}

// deleteProcesses deletes what belongs to processes of the lost history and has no lease, or has lost it. Logins under way and the
// cookies of sessions are sealed with the login key.
func (r *rewriter) deleteProcesses(ctx context.Context) error {
	keys := r.keys
	t := r.client.Txn(ctx).Then(
		clientv3.OpDelete(keys.Nodes(), clientv3.WithPrefix()), clientv3.OpDelete(keys.Leader(), clientv3.WithPrefix()),
		clientv3.OpDelete(keys.Cleared(""), clientv3.WithPrefix()), clientv3.OpDelete(keys.Handovers(), clientv3.WithPrefix()),
		clientv3.OpDelete(keys.NodeRequest(""), clientv3.WithPrefix()), clientv3.OpDelete(keys.LoginKey()),
	)

	_, err := t.Commit()

	return err
}

// deleteTokens deletes sessions and login links, or all tokens.
func (r *rewriter) deleteTokens(ctx context.Context) error {
	prefix := r.keys.Tokens()
	res, err := r.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("read the tokens: %w", err)
	}

	var deletes []clientv3.Op
	for _, e := range res.Kvs {
		// A record that cannot be read allows nothing, and the node's log names it.
		t, err := record.Decode[record.Token](e.Value)
		if r.NoTokens || err == nil && t.Kind != task.TokenKindToken {
			deletes = append(deletes, clientv3.OpDelete(string(e.Key)))
		}
	}

	return r.commitAll(ctx, deletes)
}

// deleteOtherKeys deletes keys outside of the prefix and those of unknown kinds. Prepare has refused them unless the options accept that.
func (r *rewriter) deleteOtherKeys(ctx context.Context) error {
	root := r.keys.Root()
	deletes := []clientv3.Op{
		clientv3.OpDelete("\x00", clientv3.WithRange(root)), clientv3.OpDelete(clientv3.GetPrefixRangeEnd(root), clientv3.WithFromKey()),
	}

	for _, kind := range r.content.kinds {
		parents := []string{root + kind}
		if of, inShard := strings.CutPrefix(kind, "shards/"); inShard {
			parents = nil
			for shard := range r.content.Cluster.Shards {
				parents = append(parents, r.keys.Shard(shard)+of)
			}
		}

		for _, parent := range parents {
			deletes = append(deletes, clientv3.OpDelete(parent), clientv3.OpDelete(parent+"/", clientv3.WithPrefix()))
		}
	}

	return r.commitAll(ctx, deletes)
}

// commitAll commits operations, several in one transaction.
func (r *rewriter) commitAll(ctx context.Context, ops []clientv3.Op) error {
	for some := range slices.Chunk(ops, opsPerTxn) {
		if _, err := r.client.Txn(ctx).Then(some...).Commit(); err != nil {
			return err
		}
	}

	return nil
}

// freeze freezes the cluster, if the options say so.
func (r *rewriter) freeze(ctx context.Context) error {
	if r.Freeze == "" {
		return nil
	}

	old, err := r.store.Freezes(ctx)
	if err != nil {
		return err
	}
	if old.Freezes.Of("") != nil {
		return nil // it is frozen already
	}

	f := old.Freezes
	f.Holding = append(slices.Clone(f.Holding), task.Freeze{Since: task.At(r.Now), By: r.By, Reason: r.Freeze})
	_, err = r.store.SetFreezes(ctx, old, f)

	return err
}

// recordAccess writes the audit record of the restore. It also writes the keys that show that access records have changed: the content
// has gone back, so what nodes know of it is wrong.
func (r *rewriter) recordAccess(ctx context.Context) error {
	audit := task.AuditRecord{
		ID: record.NewAuditID(r.Now), Time: task.At(r.Now), Node: r.Node, Operation: Operation,
		Reason: fmt.Sprintf("restored a backup of %s with the SHA-256 %s; ticks until %s may be lost", formatTime(r.source.Time), r.source.SHA256, formatTime(r.Until)),
	}
	fence := record.Fence{Writes: []record.FenceWrite{{At: task.At(r.Now)}}}
	if r.By != nil {
		audit.Subject, fence.Writes[0].By = r.By.Subject, r.By.Subject
	}

	_, err := r.client.Txn(ctx).Then(
		clientv3.OpPut(r.keys.Fence(), record.Encode(fence)),
		clientv3.OpPut(r.keys.TokenChanges(), "{}"),
		clientv3.OpPut(r.keys.AuditRecord(audit.ID), record.EncodeAudit(&audit)),
	).Commit()

	return err
}

// beginEpoch begins the new epoch.
func (r *rewriter) beginEpoch(ctx context.Context) (task.Cluster, error) {
	present, err := r.store.Present(ctx)
	if err != nil {
		return task.Cluster{}, err
	}

	c, err := r.store.BeginEpoch(ctx, present, task.Restored{
		At: task.At(r.Now), By: r.By, SHA256: r.source.SHA256, BackupTime: task.At(r.source.Time), BackupRevision: r.content.Revision,
		Until: task.At(r.Until), Nodes: r.content.addresses(),
	})
	if err != nil {
		return c, err
	}

	if c.Epoch <= r.Seen.Epoch {
		return c, fmt.Errorf("the node of this host has seen epoch %d of the cluster, but the restore would begin epoch %d: the clock of this host is behind; set it first",
			r.Seen.Epoch, c.Epoch)
	}

	return c, nil
}

// compact removes all former revisions, and returns the revision of etcd.
func (p *preparation) compact(ctx context.Context) (int64, error) {
	present, err := p.store.Present(ctx)
	if err != nil {
		return 0, err
	}

	// Wait until the revisions are removed from the database.
	if _, err := p.client.Compact(ctx, present.Revision, clientv3.WithCompactPhysical()); err != nil {
		return 0, fmt.Errorf("compact the private etcd: %w", err)
	}

	return present.Revision, nil
}
