package api

import (
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxCatchUpRate is how many late runs a cluster may start per second at most.
const maxCatchUpRate = 100_000

// setCluster serves changes of the cluster's settings, which all nodes follow.
func (h *clusterHandlers) setCluster(c *call) (answer, error) {
	var ask client.ClusterSettings
	if err := c.decode(&ask); err != nil {
		return answer{}, err
	}
	if ask.CatchUpRate != nil && (*ask.CatchUpRate < 0 || *ask.CatchUpRate > maxCatchUpRate) {
		return answer{}, task.Invalid(task.CodeOutOfRange, "catch_up_rate", "%d is not between 1 and %d; 0 is the default, %d",
			*ask.CatchUpRate, maxCatchUpRate, task.DefaultCatchUpRate)
	}
	if d := ask.LostAfter; d != nil && *d != 0 && (*d < task.MinLostAfter || *d > task.MaxLostAfter) {
		return answer{}, task.Invalid(task.CodeOutOfRange, "lost_after", "%s is not between %s and %s; 0s is the default, %s",
			*d, task.MinLostAfter, task.MaxLostAfter, task.DefaultLostAfter)
	}

	var now client.ClusterSettings
	err := retryConflict(c.ctx(), func() error {
		old, err := h.Store.Cluster(c.ctx())
		if err != nil {
			return err
		}
		record := old.Cluster
		if ask.CatchUpRate != nil {
			record.CatchUpRate = *ask.CatchUpRate
		}
		if ask.LostAfter != nil {
			record.LostAfter = *ask.LostAfter
		}
		now = client.ClusterSettings{CatchUpRate: new(record.CatchUp()), LostAfter: new(record.EffectiveLostAfter())}
		if record == old.Cluster {
			return nil
		}
		return h.Store.ChangeCluster(c.ctx(), old, record.MarkChanged(c.actor(), h.Now.Stamp(), ""))
	})
	return answer{status: http.StatusOK, body: now}, err
}
