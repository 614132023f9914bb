package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

const (
	// settled is how long every node has to run a version that understands a newer
	// format before the leader puts that in force: until then, the way back to the
	// former version is a restart.
	settled = 10 * time.Minute
	// formatEvery is how often the leader looks whether the format is to change,
	// loweringEvery how often while it goes back to an older one.
	formatEvery   = 5 * time.Second
	loweringEvery = time.Second
	// lastWrites is how long after their node heard of an older format the last writes
	// of the newer one have arrived, or never will: a call has a deadline of 5 s.
	lastWrites = 12 * time.Second
)

// followCluster writes by what the cluster's record says, as it changes.
func (n *Node) followCluster(ctx context.Context) error {
	key := n.store.Keys().Cluster()
	record := kv.NewMirror(n.client, kv.FollowConfig{Key: key, Relist: time.Minute, Name: "cluster", Logger: n.log.Named("kv")})
	changed := wake.NewSignal()
	defer record.Subscribe(changed)()

	running := make(chan error, 1)
	fctx, end := context.WithCancel(ctx)
	defer func() { end(); <-running }()
	go func() { running <- record.Run(fctx) }()
	for {
		if e := record.Snapshot().Get(key); e != nil {
			if err := n.obeyCluster(store.DecodeCluster(e)); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-running:
			running <- err
			return err
		case <-changed:
		}
	}
}

func (n *Node) obeyCluster(c store.ClusterRecord, err error) error {
	if err != nil {
		n.log.Error("the cluster's record cannot be read: the node goes by what it was", zap.Error(err))
		return nil
	}
	before := n.store.Format()
	if err := n.store.Obey(c); err != nil {
		return err
	}
	n.record.Store(&c.Cluster)
	if now := n.store.Format(); now != before {
		n.log.Info("writes another format of records", zap.Int("format", now), zap.Int("before", before))
		n.announce.Send()
	}
	return nil
}

// clusterNow is what the cluster's record says, as it is known.
func (n *Node) clusterNow() task.Cluster {
	if c := n.record.Load(); c != nil {
		return *c
	}
	return n.cluster
}

// lostAfter is how long the attempts that the node gets now are waited for when it is silent.
func (n *Node) lostAfter() time.Duration {
	return n.clusterNow().LostAfterWithLease(n.cfg.LeaseTTL).Std()
}

// keepFormat is the leader's part in the format of records: it raises it once all
// nodes have long understood a newer one, and ends a downgrade.
func (n *Node) keepFormat(ctx context.Context) error {
	var down lowering
	for {
		if err := n.stepFormat(ctx, &down); err != nil && ctx.Err() == nil && !errors.Is(err, task.ErrConflict) {
			n.log.Warn("the format of records could not be looked after", zap.Error(err))
		}
		every := formatEvery
		if down.underWay {
			every = loweringEvery
		}
		if !clock.Sleep(ctx, every) {
			return ctx.Err()
		}
	}
}

func (n *Node) stepFormat(ctx context.Context, down *lowering) error {
	f, err := n.store.Formats(ctx)
	if err != nil {
		return err
	}
	c := f.Cluster
	if c.Written() < c.InForce() {
		return n.lower(ctx, f, down)
	}
	*down = lowering{}
	to := raised(f, n.outside.Now(), n.store.Understands())
	if to == c.InForce() {
		return nil
	}
	f.Cluster.Cluster = c.MarkChanged(n.cfg.Name, task.At(n.outside.Now()), "")
	if err := n.store.SetFormat(ctx, f, to, c.FormatWanted); err != nil {
		return err
	}
	n.log.Info("raised the format of records", zap.Int("format", to), zap.Int("before", c.InForce()))
	return nil
}

// raised is the format that may be in force: the newest that all nodes have
// understood for long enough, that this one knows and that is wanted; never an
// older one than there is.
func raised(f store.Formats, now time.Time, known int) int {
	is := f.Cluster.InForce()
	to, _ := f.Possible()
	if to = min(to, known); f.Cluster.FormatWanted > 0 {
		to = min(to, f.Cluster.FormatWanted)
	}
	young := slices.ContainsFunc(f.Nodes, func(n task.Node) bool { return now.Sub(n.StartedAt.Time) < settled })
	if to <= is || young {
		return is
	}
	return to
}

// lowering is a downgrade under way, as the leader sees it.
type lowering struct {
	underWay bool
	told     string
	clean    time.Time // since when nothing is in its way; zero: something was
}

// lower puts the older format that is wanted in force once no node writes the newer
// one any more, and what was under way then has arrived.
func (n *Node) lower(ctx context.Context, f store.Formats, down *lowering) error {
	why := f.WaitsFor()
	if why != "" && why != down.told {
		down.told = why
		n.log.Info("lowering the format of records", zap.Int("to", f.Cluster.FormatWanted), zap.String("waits_for", why))
	}
	if !down.step(why, time.Now()) { // of a stretch of time, not of the wall
		return nil
	}

	f.Cluster.Cluster = f.Cluster.MarkChanged(n.cfg.Name, task.At(n.outside.Now()), "")
	if err := n.store.SetFormat(ctx, f, f.Cluster.FormatWanted, f.Cluster.FormatWanted); err != nil {
		return err
	}
	*down = lowering{}
	n.log.Info("lowered the format of records", zap.Int("format", f.Cluster.FormatWanted), zap.Int("before", f.Cluster.InForce()))
	return nil
}

// step reports whether the older format may be put in force: nothing has been in its
// way for as long as the last writes of the newer one take to arrive. why is what is
// in its way now.
func (d *lowering) step(why string, now time.Time) bool {
	d.underWay = true
	if why != "" {
		d.clean = time.Time{}
		return false
	}
	if d.clean.IsZero() {
		d.clean = now
	}
	return now.Sub(d.clean) >= lastWrites
}
