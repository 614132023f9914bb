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
	// settledAfter is how long every node must have run a version that understands a newer
	// format before the leader puts it in force. Until then, nodes can go back to the
	// former version by a restart, without a downgrade of the format.
	settledAfter = 10 * time.Minute
	// formatEvery is the interval at which the leader checks whether the format should change, and
	// loweringEvery the same during a downgrade.
	formatEvery   = 5 * time.Second
	loweringEvery = time.Second
	// lastWrites is the time after which writes in the newer format have arrived or failed, counted from when their
	// node switched to the older one. A call has a deadline of 5 s.
	lastWrites = 12 * time.Second
)

// formatKeeper changes the record format while the node leads. It raises the format when all
// nodes have understood a newer one for settledAfter, and it completes downgrades.
type formatKeeper struct {
	node  string
	store *store.Store
	env   Environment
	log   *zap.Logger
}

// run checks the format until ctx ends. Its knowledge of a downgrade lasts for one term, because another leader may
// change the format in between.
func (k *formatKeeper) run(ctx context.Context) error {
	var down formatDowngrade

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

// runStep reads the cluster's record and the nodes' formats once, and changes the format if that is possible. A
// conflict means that the record or the nodes have changed since; the next step reads them again.
func (k *formatKeeper) runStep(ctx context.Context, down *formatDowngrade) error {
	f, err := k.store.Formats(ctx)
	if err != nil {
		return err
	}

	c := f.Cluster

	if c.Written() < c.InForce() {
		return k.lowerFormat(ctx, f, down)
	}

	*down = formatDowngrade{}
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

// newestFormat returns the newest format that all nodes have understood for settledAfter, that this version knows
// (known), and that is not newer than the wanted format. It never returns an
// older format than the one in force.
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

// formatDowngrade is the leader's knowledge of a downgrade in progress.
type formatDowngrade struct {
	underWay bool
	told     string    // what the log last named as the reason to wait
	clean    time.Time // since when nothing prevents the downgrade; zero: something does
}

// lowerFormat puts the wanted, older format in force when no node writes the newer
// one any more and all its writes have arrived.
func (k *formatKeeper) lowerFormat(ctx context.Context, f store.Formats, down *formatDowngrade) error {
	why := f.WaitsFor()
	if why != "" && why != down.told {
		down.told = why
		k.log.Info("lowering the record format", zap.Int("to", f.Cluster.FormatWanted), zap.String("waits_for", why))
	}

	if !down.mayLower(why, time.Now()) { // monotonic time, not env.Now
		return nil
	}

	f.Cluster.Cluster = f.Cluster.MarkChanged(k.node, task.At(k.env.Now()), "")
	if err := k.store.SetFormat(ctx, f, f.Cluster.FormatWanted, f.Cluster.FormatWanted); err != nil {
		return err
	}

	*down = formatDowngrade{}
	k.log.Info("lowered the record format", zap.Int("format", f.Cluster.FormatWanted), zap.Int("before", f.Cluster.InForce()))

	return nil
}

// mayLower reports whether the older format may be put in force, which is so when nothing has prevented it for
// lastWrites. why is what prevents it now, or "".
func (d *formatDowngrade) mayLower(why string, now time.Time) bool {
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
