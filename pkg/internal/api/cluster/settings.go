package cluster

import (
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

// MaxCatchUpRate is the maximum rate of late runs, in runs per second for the whole cluster.
const MaxCatchUpRate = 100_000

// setCluster serves changes of the cluster's settings. All nodes watch the cluster's record and apply them.
func (h *Handlers) setCluster(c *httpapi.Call) (httpapi.Answer, error) {
	var ask client.ClusterSettings
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}

	if ask.CatchUpRate != nil && (*ask.CatchUpRate < 0 || *ask.CatchUpRate > MaxCatchUpRate) {
		return httpapi.Answer{}, task.Invalid(task.CodeOutOfRange, "catch_up_rate", "%d is not between 1 and %d; 0 is the default, %d",
			*ask.CatchUpRate, MaxCatchUpRate, task.DefaultCatchUpRate)
	}

	if d := ask.LostAfter; d != nil && *d != 0 && (*d < task.MinLostAfter || *d > task.MaxLostAfter) {
		return httpapi.Answer{}, task.Invalid(task.CodeOutOfRange, "lost_after", "%s is not between %s and %s; 0s is the default, %s",
			*d, task.MinLostAfter, task.MaxLostAfter, task.DefaultLostAfter)
	}

	if d := ask.Ledger; d != nil && (*d < 0 || *d > task.MaxLedger) {
		return httpapi.Answer{}, task.Invalid(task.CodeOutOfRange, "ledger", "%s is not between 0s and %s; the default is %s",
			*d, task.MaxLedger, task.DefaultLedger)
	}

	var now client.ClusterSettings
	err := httpapi.RetryConflict(c.Context(), func() error {
		old, err := h.Store.Cluster(c.Context())
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

		// record is compared below, so its pointer changes only with the value.
		if ask.Ledger != nil && *ask.Ledger != record.LedgerSetting() {
			record.Ledger = ask.Ledger
		}

		// The answer contains the effective values, with the defaults in place of 0.
		now = client.ClusterSettings{CatchUpRate: new(record.CatchUp()), LostAfter: new(record.EffectiveLostAfter()), Ledger: new(record.LedgerSetting())}

		if record == old.Cluster {
			return nil
		}

		return h.Store.As(c.Rights()).ChangeCluster(c.Context(), old, record.MarkChanged(c.Actor(), h.Now.Stamp(), ""))
	})

	return httpapi.Answer{Status: http.StatusOK, Body: now}, err
}
