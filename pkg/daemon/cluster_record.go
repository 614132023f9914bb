package daemon

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/etcdhistory"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// clusterRecord follows the cluster's record and applies the record format in it to the node's writes.
//
// The node decides under the record with which it has joined, or a later one: a mirror that lags behind, or that has
// not noticed yet that etcd was restored, does not bring back an older record.
type clusterRecord struct {
	store    *store.Store
	client   *kv.Client
	atStart  task.Cluster             // the record at the start of the node
	check    func(task.Cluster) error // compares a record with the history of the node; see etcdhistory.Monitor
	announce wake.Signal              // sent when the node begins to write another format
	log      *zap.Logger

	mu     sync.Mutex
	latest store.ClusterRecord // the record of the last join or a later one; Mod is 0 before the first
}

// currentRecord returns the latest record that the node has received.
func (r *clusterRecord) currentRecord() task.Cluster {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.latest.Mod == 0 {
		return r.atStart
	}

	return r.latest.Cluster
}

// joinedWith sets the record that a join has compared. It is called before the session of that join is visible to the
// workers. It also replaces a record with a higher mod revision, which is from before a restore of etcd.
func (r *clusterRecord) joinedWith(c store.ClusterRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest = c
}

// run follows the record until ctx ends, or until it requires a format that the node does
// not understand.
func (r *clusterRecord) run(ctx context.Context) error {
	key := r.store.Keys().Cluster()
	mirror := kv.NewMirror(r.client, kv.FollowConfig{Key: key, Relist: time.Minute, Name: "cluster", Logger: r.log.Named("kv")})
	changed := wake.NewSignal()
	defer mirror.Subscribe(changed)()

	mirroring, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mirror.Run(mirroring) }()
	defer func() { stop(); <-ended }()

	for {
		if e := mirror.Snapshot().Get(key); e != nil {
			if err := r.applyRecord(store.DecodeCluster(e)); err != nil {
				return err
			}
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			ended <- err // the deferred function receives it
			return err
		case <-changed:
		}
	}
}

// applyRecord makes the node write in the format that a record requires. A record that cannot be decoded, and one that
// is older than the latest, are ignored. An error means that the node must stop because it does not understand the
// format, or start over because the cluster has a new epoch.
func (r *clusterRecord) applyRecord(c store.ClusterRecord, err error) error {
	if err != nil {
		r.log.Error("cannot decode the cluster record; keeping the previous one", zap.Error(err))
		return nil
	}

	switch err := r.check(c.Cluster); {
	case errors.Is(err, etcdhistory.ErrNewHistory):
		return err
	case err != nil:
		return nil // another cluster; the node is ineligible now
	}

	before := r.store.Format()

	if err := r.store.Obey(c); err != nil {
		return err
	}

	r.mu.Lock()
	if c.Mod > r.latest.Mod {
		r.latest = c
	}
	r.mu.Unlock()

	if now := r.store.Format(); now != before {
		r.log.Info("changed the record format for writes", zap.Int("format", now), zap.Int("before", before))
		r.announce.Send()
	}

	return nil
}
