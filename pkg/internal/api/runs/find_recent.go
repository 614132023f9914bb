package runs

import (
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// mayUseMemory reports whether what the owners remember may contain the page.
func (f *runFilter) mayUseMemory() bool {
	return f.eventual && !f.parts && f.tasks == nil && !f.excludesEnded()
}

// findRecent is findRuns from the newest runs that the owners of the shards remember. So it costs little, however long the
// histories are. It returns false if it cannot fill the page: the owners remember a few hundred runs of each shard, and
// none from before they have loaded it. Runs that were queued or have ended in the last moments may be missing.
func (h *Handlers) findRecent(c *httpapi.Call, ns string, f runFilter, most int) (found []task.Run, more, ok bool, err error) {
	ctx := c.Context()

	// Some records may be gone, and others may not match.
	limit := 2*most + 100
	if f.states != nil {
		limit = 20 * most
	}
	q := ask.Question{Namespace: ns, Within: f.within, Runs: &readmodel.RunsRange{Before: f.idsBefore(), Limit: min(limit, ask.MaxRecentRuns)}}

	var active []task.Run
	var recent readmodel.RecentRuns
	g := callgroup.New()
	g.Go(func() (err error) { active, err = h.activeRuns(ctx, ns); return err })
	g.Go(func() error { recent, ok = h.Asker.RecentRuns(c, q); return nil })
	if err := g.Wait(); err != nil || !ok {
		return nil, false, false, err
	}

	read, gone, _, err := h.readUntil(ctx, h.placesOf(recent.Runs), &f, most)
	if err != nil {
		return nil, false, false, err
	}

	all := overrideRuns(slices.Clone(active), read) // a run that was active and now has a record in the shard has ended or waits again

	// A run whose record has left the queue is active. If the inboxes were read before, it would be on no page.
	if !containsAll(active, gone) {
		now, err := h.activeRuns(ctx, ns)
		if err != nil {
			return nil, false, false, err
		}
		all = overrideRuns(all, now)
	}

	complete := recent.After == "" || !f.since.IsZero() && recent.After < idAt(f.since.Time)
	if !complete {
		all = slices.DeleteFunc(all, func(r task.Run) bool { return r.ID <= recent.After })
	}
	found, more = f.newestRuns(nil, all, most)

	// If the page is full, and another run follows, no run that the owners do not remember belongs to it.
	return found, more, complete || more, nil
}

// containsAll reports whether a list contains the runs at all places.
func containsAll(list []task.Run, places []store.RunPlace) bool {
	missing := make(map[string]bool, len(places))
	for _, p := range places {
		missing[p.Run] = true
	}

	for _, r := range list {
		delete(missing, r.ID)
	}

	return len(missing) == 0
}

// idsBefore returns the id before which the runs of the page are; "" if there is no limit. The next page begins at the
// last run of this one: runs of the same millisecond are read again, and matchesRun leaves out those that were on it.
func (f *runFilter) idsBefore() string {
	until := f.until.Time
	if f.after != nil {
		if behind := f.after.ScheduledTime.Add(time.Millisecond); until.IsZero() || behind.Before(until) {
			until = behind
		}
	}

	if until.IsZero() {
		return ""
	}
	return idAt(until)
}

// idAt returns a text that is not greater than the id of any run with that time, and greater than the ids of all earlier
// ones.
func idAt(t time.Time) string { return strings.TrimSuffix(task.RunID(t, ""), "-") }

// placesOf returns the places of runs that owners remember, the newest first.
func (h *Handlers) placesOf(runs []readmodel.RunPlace) []store.RunPlace {
	places := make([]store.RunPlace, len(runs))
	for i, r := range runs {
		namespace, name, _ := strings.Cut(r.Task, "/")
		places[i] = store.RunPlace{Ref: h.Ref(namespace, name), Run: r.Run}
	}

	slices.SortFunc(places, newestPlace)

	return places
}
