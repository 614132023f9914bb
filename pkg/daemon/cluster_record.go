package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

// clusterRecord follows the cluster's record and applies the record format in it to the node's writes.
type clusterRecord struct {
	store    *store.Store
	client   *kv.Client
	atStart  task.Cluster                 // the record at the start of the node
	followed atomic.Pointer[task.Cluster] // the latest record; nil: not received yet
	announce wake.Signal                  // sent when the node begins to write another format
	log      *zap.Logger
}

// currentRecord returns the latest record that the node has received.
func (r *clusterRecord) currentRecord() task.Cluster {
	if c := r.followed.Load(); c != nil {
		return *c
	}
	return r.atStart
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

// applyRecord makes the node write in the format that a record requires. A record that cannot be decoded is ignored. An
// error means that the node does not understand the format and must stop.
func (r *clusterRecord) applyRecord(c store.ClusterRecord, err error) error {
	if err != nil {
		r.log.Error("cannot decode the cluster record; keeping the previous one", zap.Error(err))
		return nil
	}

	before := r.store.Format()

	if err := r.store.Obey(c); err != nil {
		return err
	}

	r.followed.Store(&c.Cluster)

	if now := r.store.Format(); now != before {
		r.log.Info("changed the record format for writes", zap.Int("format", now), zap.Int("before", before))
		r.announce.Send()
	}

	return nil
}
