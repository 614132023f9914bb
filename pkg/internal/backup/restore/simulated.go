package restore

import (
	"context"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// RewriteForSimulation makes the content of an etcd that of a restored cluster, with the transactions of Prepare, and returns the new record
// of the cluster. The etcd contains a backup, under a revision that is higher than any of the lost history, and nobody else uses it. The
// simulation of restores has such an etcd in memory.
func RewriteForSimulation(ctx context.Context, client *kv.Client, s *store.Store, source Source, o *Options) (task.Cluster, error) {
	present, err := s.Present(ctx)
	if err != nil {
		return task.Cluster{}, err
	}

	content := &Content{Revision: present.Revision, Cluster: present.Cluster}
	p := &preparation{Options: o, source: source, content: content, keys: s.Keys(), client: client, store: s}

	return p.rewrite(ctx)
}
