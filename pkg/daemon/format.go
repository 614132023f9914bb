package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// settledAfter is how long every node has to run a version that understands a newer
	// format before the leader puts that in force: until then, the way back to the
	// former version is a restart.
	settledAfter = 10 * time.Minute
	// formatEvery is how often the leader looks whether the format is to change,
	// loweringEvery how often while it goes back to an older one.
	formatEvery   = 5 * time.Second
	loweringEvery = time.Second
	// lastWrites is how long after their node heard of an older format the last writes
	// of the newer one have arrived, or never will: a call has a deadline of 5 s.
	lastWrites = 12 * time.Second
)

// formatKeeper is the leader's part in the format of records: it raises it once all
// nodes have long understood a newer one, and ends a downgrade.
type formatKeeper struct {
	node  string
	store *store.Store
	env   Environment
	log   *zap.Logger
}

// run looks after the format until ctx ends. What it knows of a downgrade under way ends
// with it: another leader may have changed the format since.
func (k *formatKeeper) run(ctx context.Context) error {
	var down lowering

	for {
		if err := k.runStep(ctx, &down); err != nil && ctx.Err() == nil && !errors.Is(err, task.ErrConflict) {
			k.log.Warn("could not check the record format", zap.Error(err))
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

// runStep looks at the nodes' formats once.
func (k *formatKeeper) runStep(ctx context.Context, down *lowering) error {
	f, err := k.store.Formats(ctx)
	if err != nil {
		return err
	}

	c := f.Cluster

	if c.Written() < c.InForce() {
		return k.lowerFormat(ctx, f, down)
	}

	*down = lowering{}
	to := newestFormat(f, k.env.Now(), k.store.Understands())
	if to == c.InForce() {
		return nil
	}

	f.Cluster.Cluster = c.MarkChanged(k.node, task.At(k.env.Now()), "")
	if err := k.store.SetFormat(ctx, f, to, c.FormatWanted); err != nil {
		return err
	}

	k.log.Info("raised the record format", zap.Int("format", to), zap.Int("before", c.InForce()))

	return nil
}

// newestFormat is the format that may be in force: the newest that all nodes have
// understood for long enough, that this one knows and that is wanted; never an
// older one than there is.
func newestFormat(f store.Formats, now time.Time, known int) int {
	is := f.Cluster.InForce()
	to, _ := f.Possible()
	if to = min(to, known); f.Cluster.FormatWanted > 0 {
		to = min(to, f.Cluster.FormatWanted)
	}

	young := slices.ContainsFunc(f.Nodes, func(n task.Node) bool { return now.Sub(n.StartedAt.Time) < settledAfter })
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

// lowerFormat puts the older format that is wanted in force once no node writes the newer
// one any more, and what was under way then has arrived.
func (k *formatKeeper) lowerFormat(ctx context.Context, f store.Formats, down *lowering) error {
	why := f.WaitsFor()
	if why != "" && why != down.told {
		down.told = why
		k.log.Info("lowering the record format", zap.Int("to", f.Cluster.FormatWanted), zap.String("waits_for", why))
	}

	if !down.mayLower(why, time.Now()) { // of a stretch of time, not of the wall
		return nil
	}

	f.Cluster.Cluster = f.Cluster.MarkChanged(k.node, task.At(k.env.Now()), "")
	if err := k.store.SetFormat(ctx, f, f.Cluster.FormatWanted, f.Cluster.FormatWanted); err != nil {
		return err
	}

	*down = lowering{}
	k.log.Info("lowered the record format", zap.Int("format", f.Cluster.FormatWanted), zap.Int("before", f.Cluster.InForce()))

	return nil
}

// mayLower reports whether the older format may be put in force: nothing has been in its
// way for as long as the last writes of the newer one take to arrive. why is what is
// in its way now.
func (d *lowering) mayLower(why string, now time.Time) bool {
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
