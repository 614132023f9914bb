package notifier

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// A cluster that cannot write to etcd, or that has no scheduler, cannot open an alert. So leaders write a heartbeat, and one that finds an
// old heartbeat reports the outage afterwards.
const (
	heartbeatEvery = 30 * time.Second
	// outageAfter is from what age of the heartbeat on the cluster has had an outage. A new leader is elected within a lease.
	outageAfter = 2 * time.Minute
	// outageOpen is for how long the alert about an outage is open, so that receivers whose messages fail get it, too.
	outageOpen = time.Hour
)

// writeHeartbeat records that the leader is able to write, if anybody wants to be notified of outages. Before that, it reports the
// outage that an old heartbeat shows: if the leader stops in between, the next one finds the same heartbeat and the alert.
func (p *pass) writeHeartbeat(ctx context.Context) error {
	last, mod := p.known.heartbeat()

	switch {
	case len(p.cluster.AlertReceivers) > 0:
	case mod != 0:
		return p.cfg.Store.DeleteHeartbeat(ctx, p.fence, mod) // else the next receivers would be notified of an outage
	default:
		return nil
	}

	age := p.now.Sub(last)
	if age >= 0 && age < heartbeatEvery {
		return nil
	}

	// A leader without a trusted clock writes nothing, but others fire meanwhile.
	if !last.IsZero() && age >= outageAfter && !p.awake {
		if reported, err := p.reportOutage(ctx, last); err != nil || !reported {
			return err
		}
	}

	if err := p.cfg.Store.PutHeartbeat(ctx, p.fence, task.At(p.now), mod); err != nil {
		return err
	}
	p.beating, p.awake = true, false

	return nil
}

// reportOutage opens the alert about the outage that has ended with this write. It returns false if that follows in another pass: the
// alert about an earlier outage has to be closed first, so that receivers get a message about this one.
func (p *pass) reportOutage(ctx context.Context, began time.Time) (reported bool, err error) {
	a, exists := p.known.clusterAlert(task.WarnOutage)

	switch {
	case exists && a.Since.Equal(began):
		return true, nil
	case exists && a.IsOpen():
		return false, p.closeClusterAlert(ctx, a)
	}

	a.Kind, a.Code = task.AlertCluster, task.WarnOutage
	reopen(&a, began, p.now)
	a.Notify = slices.Clone(p.cluster.AlertReceivers)
	a.Text = fmt.Sprintf("the cluster had no leader from %s to %s (%s), because etcd did not answer or was full, or no scheduler was running: "+
		"ticks of that time may be late or missed", began.UTC().Format(time.RFC3339), p.now.UTC().Format(time.RFC3339),
		task.Duration(p.now.Sub(began)).Approximate())
	if r := p.cluster.LastRestored(); r != nil && r.At.After(began) {
		// The heartbeat is that of the backup, after which leaders went on.
		a.Text = fmt.Sprintf("etcd was restored on %s: what the cluster did after %s is not on record, and ticks until %s may be late, missed or lost",
			r.At.UTC().Format(time.RFC3339), began.UTC().Format(time.RFC3339), p.now.UTC().Format(time.RFC3339))
	}

	return true, p.cfg.Store.PutClusterAlert(ctx, p.fence, a)
}

// closeOutage closes the alert about an outage some time after it was opened, and deletes its record later.
func (p *pass) closeOutage(ctx context.Context) error {
	a, exists := p.known.clusterAlert(task.WarnOutage)

	switch {
	case exists && a.IsOpen() && p.now.Sub(a.OpenedAt.Time) >= outageOpen:
		return p.closeClusterAlert(ctx, a)
	case exists && !a.IsOpen() && p.now.Sub(a.Closed.At.Time) >= keepClosed:
		return p.cfg.Store.DeleteClusterAlert(ctx, p.fence, a)
	}

	return nil
}

func (p *pass) closeClusterAlert(ctx context.Context, a task.Alert) error {
	a.Closed = &task.AlertClose{At: task.At(p.now), Why: task.AlertSolved}
	return p.cfg.Store.PutClusterAlert(ctx, p.fence, a)
}
