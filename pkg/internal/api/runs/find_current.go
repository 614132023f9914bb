package runs

import (
	"context"
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// currentRun is the place of a run that waits or is active.
type currentRun struct {
	store.RunPlace
	node string // whose inbox it is in; "": it is in the queue
}

// findCurrent is findRuns for a list of waiting and active runs. It reads the keys of all of them, which are few compared
// with the tasks, and then the records of one page. It does not ask the owners of the shards, so a run is in the list
// from the moment at which it is queued.
//
// A run may move while this reads: from the queue to an inbox, and back after a failed attempt. So the keys of the inboxes
// are read before and after those of the queues, and a run whose record is not in its inbox is looked up in the queue.
func (h *Handlers) findCurrent(ctx context.Context, ns string, f runFilter, most int) (found []task.Run, more bool, err error) {
	places := map[store.RunPlace]string{} // the node of each run
	if err := h.addActive(ctx, ns, &f, places); err != nil {
		return nil, false, err
	}

	queued, err := h.Store.QueuedPlaces(ctx, h.allShards(), ns)
	if err != nil {
		return nil, false, err
	}

	for _, p := range queued {
		if _, active := places[p]; !active && f.matchesPlace(p) {
			places[p] = ""
		}
	}

	if err := h.addActive(ctx, ns, &f, places); err != nil {
		return nil, false, err
	}

	if f.selector != nil {
		if f.tasks, err = h.labelledTasks(ctx, places, f.selector); err != nil {
			return nil, false, err
		}
	}

	list := make([]currentRun, 0, len(places))
	for p, node := range places {
		if f.tasks == nil || f.tasks[p.Ref.Namespace+"/"+p.Ref.Name] {
			list = append(list, currentRun{p, node})
		}
	}

	slices.SortFunc(list, func(a, b currentRun) int { return newestPlace(a.RunPlace, b.RunPlace) })

	for chunk := range slices.Chunk(list, 200) {
		runs, err := h.readCurrent(ctx, chunk)
		if err != nil {
			return nil, false, err
		}

		// One more match than the page holds shows that there is a next page.
		var cut bool
		if found, cut = f.newestRuns(found, runs, most); cut {
			return found, true, nil
		}
	}

	return found, false, nil
}

// addActive adds the runs in all inboxes that may match.
func (h *Handlers) addActive(ctx context.Context, ns string, f *runFilter, places map[store.RunPlace]string) error {
	keys, _, err := h.Store.ScanActive(ctx)
	for _, k := range keys {
		p := store.RunPlace{Ref: k.Ref, Run: k.Run}
		if (ns == "" || k.Ref.Namespace == ns) && (f.node == "" || f.node == k.Node) && f.matchesPlace(p) {
			places[p] = k.Node
		}
	}

	return err
}

// matchesPlace reports whether a run may belong to the page, as far as its key tells.
func (f *runFilter) matchesPlace(p store.RunPlace) bool {
	r := *runAt(p)
	if !f.includesNamespace(r.Namespace) || !f.parts && task.IsPart(r.ID) {
		return false
	}

	return (f.since.IsZero() || !r.ScheduledTime.Before(f.since.Time)) && (f.until.IsZero() || r.ScheduledTime.Before(f.until.Time)) &&
		(f.after == nil || compareNewest(*f.after, r) < 0)
}

// labelledTasks returns those tasks with runs at some places whose labels match.
func (h *Handlers) labelledTasks(ctx context.Context, places map[store.RunPlace]string, selector task.Selector) (taskSet, error) {
	seen := map[record.Ref]bool{}
	var refs []record.Ref
	for p := range places {
		if !seen[p.Ref] {
			seen[p.Ref] = true
			refs = append(refs, p.Ref)
		}
	}

	selected := taskSet{}
	for chunk := range slices.Chunk(refs, 1000) { // bounds the memory
		specs, err := h.Store.BriefsOf(ctx, chunk)
		if err != nil {
			return nil, err
		}

		for _, b := range specs {
			if selector.Matches(b.Labels()) {
				selected[b.Namespace+"/"+b.Name] = true
			}
		}
	}

	return selected, nil
}

// readCurrent reads the records of runs, in their inboxes or in the queue. It leaves out those that are in neither.
func (h *Handlers) readCurrent(ctx context.Context, list []currentRun) ([]task.Run, error) {
	var active []record.RunKey
	var elsewhere []store.RunPlace
	for _, c := range list {
		if c.node != "" {
			active = append(active, record.RunKey{Node: c.node, Ref: c.Ref, Run: c.Run})
		} else {
			elsewhere = append(elsewhere, c.RunPlace)
		}
	}

	held, err := h.Store.Attempts(ctx, active)
	if err != nil {
		return nil, err
	}

	var runs []task.Run
	for i, a := range held {
		if a != nil {
			runs = append(runs, a.Run)
		} else {
			elsewhere = append(elsewhere, store.RunPlace{Ref: active[i].Ref, Run: active[i].Run})
		}
	}

	waiting, err := h.Store.RunsAt(ctx, elsewhere)
	for _, r := range waiting {
		if r != nil {
			runs = append(runs, *r)
		}
	}

	return runs, err
}
