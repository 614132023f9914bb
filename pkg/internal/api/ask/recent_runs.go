package ask

import (
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

// maxRecentAge is how old what an owner remembers may be. A watch without events gives a sign of life about every two
// seconds, so an owner that has heard nothing for longer may lack many runs, and a list of runs does not say how old it is.
const maxRecentAge = 30 * time.Second

// RecentRuns returns the newest runs in the queues and the histories of the shards, as the owners remember them. It returns
// false if it does not know them, because an owner does not answer or is far behind. q selects nothing but namespaces. Runs
// that were queued or have ended in the last moments may be missing, except for those that the caller has queued, and some
// may be active or gone.
func (a *Asker) RecentRuns(c *httpapi.Call, q Question) (readmodel.RecentRuns, bool) {
	caller := httpapi.CallerOf(c.Context())
	_, q.MinRevisions = a.cache.lastWrite(caller.Who)
	answers, failures := a.askNodes(c.Context(), caller, &q, a.schedulingNodes(c.Context()), nil)
	list := inOrder(answers)
	if len(failures) > 0 || len(readmodel.Superseded(list)) > 0 {
		return readmodel.RecentRuns{}, false
	}

	known := make([]bool, a.Shards)
	var all readmodel.RecentRuns
	for _, answer := range list {
		for _, s := range answer.Shards {
			if s.Shard >= 0 && s.Shard < len(known) {
				known[s.Shard] = s.AgeMS <= maxRecentAge.Milliseconds()
			}
		}
		if answer.Recent != nil {
			all.Merge(*answer.Recent, q.Runs.Limit)
		} else if len(answer.Shards) > 0 {
			return readmodel.RecentRuns{}, false
		}
	}

	for _, is := range known {
		if !is {
			return readmodel.RecentRuns{}, false
		}
	}

	return all, true
}
