package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Operation is the operation of the audit record of a restore.
const Operation = "restore-backup"

// opsPerTxn is how many operations one transaction has at most.
const opsPerTxn = 100

// rewrite makes the content of the backup that of a new epoch, and returns the new record of the cluster. It writes that record last, so
// an interrupted restore is never taken for a complete one.
func (p *preparation) rewrite(ctx context.Context) (task.Cluster, error) {
	if err := p.beginStep("rewrite"); err != nil {
		return task.Cluster{}, err
	}

	for _, step := range []func(context.Context) error{
		p.revokeLeases, p.deleteProcesses, p.deleteTokens, p.deleteOtherKeys, p.freeze, p.recordAccess,
	} {
		if err := step(ctx); err != nil {
			return task.Cluster{}, fmt.Errorf("rewrite the content of the backup: %w", err)
		}
	}

	return p.beginEpoch(ctx)
}

// revokeLeases revokes all leases, which deletes their keys: of nodes, the leader, and of proofs that instances are dead.
func (p *preparation) revokeLeases(ctx context.Context) error {
	leases, err := p.client.Leases(ctx)
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}

	for _, l := range leases.Leases {
		if _, err := p.client.Revoke(ctx, l.ID); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return fmt.Errorf("revoke lease %x: %w", l.ID, err)
		}
	}

	return nil
}

// deleteProcesses deletes what belongs to processes of the lost history and has no lease, or has lost it. Logins under way and the
// cookies of sessions are sealed with the login key.
func (p *preparation) deleteProcesses(ctx context.Context) error {
	keys := p.keys
	t := p.client.Txn(ctx).Then(
		clientv3.OpDelete(keys.Nodes(), clientv3.WithPrefix()), clientv3.OpDelete(keys.Leader(), clientv3.WithPrefix()),
		clientv3.OpDelete(keys.Cleared(""), clientv3.WithPrefix()), clientv3.OpDelete(keys.Handovers(), clientv3.WithPrefix()),
		clientv3.OpDelete(keys.NodeRequest(""), clientv3.WithPrefix()), clientv3.OpDelete(keys.LoginKey()),
	)

	_, err := t.Commit()

	return err
}

// deleteTokens deletes sessions and login links, or all tokens.
func (p *preparation) deleteTokens(ctx context.Context) error {
	prefix := p.keys.Tokens()
	res, err := p.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("read the tokens: %w", err)
	}

	var deletes []clientv3.Op
	for _, e := range res.Kvs {
		// A record that cannot be read allows nothing, and the node's log names it.
		t, err := record.Decode[record.Token](e.Value)
		if p.NoTokens || err == nil && t.Kind != task.TokenKindToken {
			deletes = append(deletes, clientv3.OpDelete(string(e.Key)))
		}
	}

	return p.commitAll(ctx, deletes)
}

// deleteOtherKeys deletes keys outside of the prefix and those of unknown kinds. Prepare has refused them unless the options accept that.
func (p *preparation) deleteOtherKeys(ctx context.Context) error {
	root := p.keys.Root()
	deletes := []clientv3.Op{
		clientv3.OpDelete("\x00", clientv3.WithRange(root)), clientv3.OpDelete(clientv3.GetPrefixRangeEnd(root), clientv3.WithFromKey()),
	}

	for _, kind := range p.content.kinds {
		parents := []string{root + kind}
		if of, inShard := strings.CutPrefix(kind, "shards/"); inShard {
			parents = nil
			for shard := range p.content.Cluster.Shards {
				parents = append(parents, p.keys.Shard(shard)+of)
			}
		}

		for _, parent := range parents {
			deletes = append(deletes, clientv3.OpDelete(parent), clientv3.OpDelete(parent+"/", clientv3.WithPrefix()))
		}
	}

	return p.commitAll(ctx, deletes)
}

// commitAll commits operations, several in one transaction.
func (p *preparation) commitAll(ctx context.Context, ops []clientv3.Op) error {
	for some := range slices.Chunk(ops, opsPerTxn) {
		if _, err := p.client.Txn(ctx).Then(some...).Commit(); err != nil {
			return err
		}
	}

	return nil
}

// freeze freezes the cluster, if the options say so.
func (p *preparation) freeze(ctx context.Context) error {
	if p.Freeze == "" {
		return nil
	}

	old, err := p.store.Freezes(ctx)
	if err != nil {
		return err
	}
	if old.Freezes.Of("") != nil {
		return nil // it is frozen already
	}

	f := old.Freezes
	f.Holding = append(slices.Clone(f.Holding), task.Freeze{Since: task.At(p.Now), By: p.By, Reason: p.Freeze})
	_, err = p.store.SetFreezes(ctx, old, f)

	return err
}

// recordAccess writes the audit record of the restore. It also writes the keys that show that access records have changed: the content
// has gone back, so what nodes know of it is wrong.
func (p *preparation) recordAccess(ctx context.Context) error {
	audit := task.AuditRecord{
		ID: record.NewAuditID(p.Now), Time: task.At(p.Now), Node: p.Node, Operation: Operation,
		Reason: fmt.Sprintf("restored a backup of %s with the SHA-256 %s; ticks until %s may be lost", formatTime(p.source.Time), p.source.SHA256, formatTime(p.Until)),
	}
	fence := record.Fence{Writes: []record.FenceWrite{{At: task.At(p.Now)}}}
	if p.By != nil {
		audit.Subject, fence.Writes[0].By = p.By.Subject, p.By.Subject
	}

	_, err := p.client.Txn(ctx).Then(
		clientv3.OpPut(p.keys.Fence(), record.Encode(fence)),
		clientv3.OpPut(p.keys.TokenChanges(), "{}"),
		clientv3.OpPut(p.keys.AuditRecord(audit.ID), record.EncodeAudit(&audit)),
	).Commit()

	return err
}

// beginEpoch begins the new epoch.
func (p *preparation) beginEpoch(ctx context.Context) (task.Cluster, error) {
	present, err := p.store.Present(ctx)
	if err != nil {
		return task.Cluster{}, err
	}

	c, err := p.store.BeginEpoch(ctx, present, task.Restored{
		At: task.At(p.Now), By: p.By, SHA256: p.source.SHA256, BackupTime: task.At(p.source.Time), BackupRevision: p.content.Revision,
		Until: task.At(p.Until), Nodes: p.content.addresses(),
	})
	if err != nil {
		return c, err
	}

	if c.Epoch <= p.Seen.Epoch {
		return c, fmt.Errorf("the node of this host has seen epoch %d of the cluster, but the restore would begin epoch %d: the clock of this host is behind; set it first",
			p.Seen.Epoch, c.Epoch)
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
