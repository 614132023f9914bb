package audit

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
)

// leaderJudge judges the election.
type leaderJudge struct {
	judge
	leases *leaseJudge
}

// checkLeader checks that there is a leader, and that every candidate's key has a lease of a node that is present.
func (j *leaderJudge) checkLeader(ctx context.Context) error {
	candidates := 0
	err := j.reader.eachRecord(ctx, j.keys.Leader(), func(ctx context.Context, e *mvccpb.KeyValue) error {
		candidates++

		for _, n := range j.cluster.nodes {
			if namesLease(n.Node, e.Lease) {
				return nil
			}
		}

		j.leases.suspectLease(ctx, e, fmt.Sprintf("a candidate for leader, %q, is attached to lease %x, which is in no node record", e.Value, e.Lease))

		return nil
	})

	if err != nil {
		return err
	}

	if candidates == 0 {
		f := kindNoLeader.newFinding("no leader", j.keys.Leader())
		f.Count = 0
		j.suspectWith(f, stillNoLeader{j.reader.store})
	}

	return nil
}

// stillNoLeader confirms that there is still no leader.
type stillNoLeader struct{ store *store.Store }

func (r stillNoLeader) stillHolds(ctx context.Context) (bool, error) {
	leader, err := r.store.CurrentLeader(ctx)
	return leader == "", err
}
