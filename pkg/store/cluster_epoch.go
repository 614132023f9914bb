package store

import (
	"context"
	"fmt"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Present is the cluster's record as it is in etcd now.
type Present struct {
	Cluster task.Cluster
	Found   bool
	// Mod is the record's mod revision, and Revision that of the whole of etcd: it
	// never goes back, unless etcd is restored from an older snapshot.
	Mod, Revision int64

	raw []byte
}

// Present reads the cluster's record, and how far etcd has come.
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

// BumpEpoch says that the history that etcd has now is the one to go on with: all
// nodes of a lower epoch begin anew on it. task.ErrConflict if the record has
// changed since it was read; after an unknown outcome (task.ErrUnknown) its epoch tells.
func (s Cluster) BumpEpoch(ctx context.Context, p Present) (task.Cluster, error) {
	c := p.Cluster
	c.Epoch++
	if err := s.ChangeCluster(ctx, ClusterRecord{Cluster: p.Cluster, Mod: p.Mod, raw: p.raw}, c); err != nil {
		return p.Cluster, fmt.Errorf("bump the cluster's epoch to %d: %w", c.Epoch, err)
	}

	return c, nil
}
