package store

import (
	"context"
	"fmt"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Present is the present record of the cluster.
type Present struct {
	Cluster task.Cluster
	Found   bool // the record exists
	// Mod is the mod revision of the record, and Revision that of the whole store. The latter
	// never decreases, unless etcd is restored from an older snapshot.
	Mod, Revision int64

	raw []byte // the value
}

// Present reads the record of the cluster and the revision of the store.
func (s Cluster) Present(ctx context.Context) (p Present, err error) {
	res, err := s.readKey(ctx, s.keys.Cluster())
	if err != nil {
		return p, fmt.Errorf("read the cluster's record: %w", err)
	}

	p.Revision = res.Header.Revision

	if len(res.Kvs) == 0 {
		return p, nil
	}

	p.Found, p.Mod = true, res.Kvs[0].ModRevision
	p.raw = res.Kvs[0].Value
	p.Cluster, err = record.Decode[task.Cluster](p.raw)

	return p, err
}

// Record returns the record for ChangeCluster and Register. If there is none, its mod revision is 0.
func (p Present) Record() ClusterRecord {
	return ClusterRecord{Cluster: p.Cluster, Mod: p.Mod, raw: p.raw}
}

// BumpEpoch increases the epoch of the cluster, which accepts the present content of etcd after
// a restore: all nodes of a lower epoch start over with it. It returns task.ErrConflict if the
// record has changed since p was read. After task.ErrUnknown, the epoch in the record shows
// whether the write was applied.
func (s Cluster) BumpEpoch(ctx context.Context, p Present) (task.Cluster, error) {
	c := p.Cluster
	c.Epoch++
	if err := s.ChangeCluster(ctx, p.Record(), c); err != nil {
		return p.Cluster, fmt.Errorf("bump the cluster's epoch to %d: %w", c.Epoch, err)
	}

	return c, nil
}
