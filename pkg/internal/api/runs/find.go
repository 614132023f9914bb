package runs

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const shardsAtOnce = 16 // bounds the memory

// findRuns returns the newest most runs that match, of a namespace or of all namespaces (""). more is true if
// others may follow.
//
// Records move while they are read: from the queue to an inbox and on to the history. So the inboxes are read
// before and after the shards. A run that moves from the queue into an inbox in between is seen in the second
// read, and one that ends is seen in the first read or in the history. If a run was read several times, the
// last read counts.
func (h *Handlers) findRuns(ctx context.Context, ns string, f runFilter, most int) (found []task.Run, more bool, err error) {
	if f.excludesEnded() {
		return h.findCurrent(ctx, ns, f, most)
	}

	before, err := h.activeRuns(ctx, ns)
	if err != nil {
		return nil, false, err
	}

	var ended []task.Run // parts of runs that are still running; the parts of an ended run are in the run's own record
	if f.parts {
		if ended, err = h.Store.EndedParts(ctx, h.allShards(), ns); err != nil {
			return nil, false, err
		}
	}

	switch {
	case f.states == nil && f.node == "" || !f.since.IsZero() || f.after != nil:
		found, f.last, more, err = h.runsByKeys(ctx, ns, f, before, most)
	default:
		found, more, err = h.runsByValues(ctx, ns, f, before, most)
	}

	if err != nil {
		return nil, false, err
	}

	after, err := h.activeRuns(ctx, ns)
	if err != nil {
		return nil, false, err
	}

	found, cut := f.newestRuns(nil, overrideRuns(found, overrideRuns(ended, after)), most)

	return found, more || cut, nil
}

// excludesEnded reports whether only queued and active runs can match.
func (f runFilter) excludesEnded() bool {
	return f.states != nil && !slices.ContainsFunc(f.states, func(s task.State) bool { return s != task.Queued && !s.Active() })
}

// newestRuns combines two lists and returns the newest most runs that match. cut is true if others were dropped.
func (f runFilter) newestRuns(found, others []task.Run, most int) (list []task.Run, cut bool) {
	for _, r := range others {
		if f.matchesRun(r) {
			found = append(found, r)
		}
	}

	slices.SortFunc(found, compareNewest)

	if len(found) > most {
		return found[:most], true
	}

	return found, false
}

// runsByValues reads all records. It is needed if the filter uses fields that are not part of a key.
func (h *Handlers) runsByValues(ctx context.Context, ns string, f runFilter, before []task.Run, most int) (found []task.Run, more bool, err error) {
	for ids := range slices.Chunk(h.allShards(), shardsAtOnce) {
		part, err := h.Store.ShardRuns(ctx, ids, ns)
		if err != nil {
			return nil, false, err
		}

		active := slices.DeleteFunc(slices.Clone(before), func(r task.Run) bool { return !slices.Contains(ids, r.Shard) })
		var cut bool
		found, cut = f.newestRuns(found, overrideRuns(active, f.addParts(part)), most) // a run that was active and now has a record in the shard has ended or waits again
		more = more || cut
	}

	return found, more, nil
}

// allShards returns the numbers of all shards.
func (h *Handlers) allShards() []int {
	ids := make([]int, h.Shards)
	for i := range ids {
		ids[i] = i
	}
	return ids
}

// runsByKeys determines by their keys which records are the newest, and reads only those. A key contains the
// run's time in milliseconds, like the record. If last is not nil, it is the last place that was examined, and
// the page must end there.
func (h *Handlers) runsByKeys(ctx context.Context, ns string, f runFilter, before []task.Run, most int) (found []task.Run, last *task.Run, more bool, err error) {
	until := f.until.Time
	// The next page begins at the last run of this one. Runs of the same millisecond are read again, and matches
	// leaves out those that were on the page.
	if f.after != nil {
		if behind := f.after.ScheduledTime.Add(time.Millisecond); until.IsZero() || behind.Before(until) {
			until = behind
		}
	}

	var places []store.RunPlace
	cut := false
	for ids := range slices.Chunk(h.allShards(), shardsAtOnce) {
		part, err := h.Store.RunPlaces(ctx, ids, ns, f.since.Time, until)
		if err != nil {
			return nil, nil, false, err
		}

		// A key names its task, so runs of other tasks are dropped before they count
		// towards MostScanned, and their records are not read.
		// The same holds for namespaces that the caller may not read.
		if f.tasks != nil || f.within != nil {
			part = slices.DeleteFunc(part, func(p store.RunPlace) bool {
				return !f.includesNamespace(p.Ref.Namespace) || f.tasks != nil && !f.tasks[p.Ref.Namespace+"/"+p.Ref.Name]
			})
		}

		places = append(places, part...)
		// Sorting only when the list has doubled keeps the cost per key constant and bounds the memory.
		if len(places) > 2*h.MostScanned {
			slices.SortFunc(places, newestPlace)
			places, cut = places[:h.MostScanned], true
		}
	}

	slices.SortFunc(places, newestPlace)

	if len(places) > h.MostScanned {
		places, cut = places[:h.MostScanned], true
	}

	read, _, matching, err := h.readUntil(ctx, places, &f, most)
	if err != nil {
		return nil, nil, false, err
	}
	more = matching > most

	if matching == 0 && cut { // none of the newest records matches: read all of them
		found, more, err = h.runsByValues(ctx, ns, f, before, most)
		return found, nil, more, err
	}

	if cut { // an active run from after the last examined place would make the next page skip the runs in between
		f.last = runAt(places[len(places)-1])
	}

	found, tooMany := f.newestRuns(nil, overrideRuns(slices.Clone(before), read), most)

	return found, f.last, more || cut || tooMany, nil
}

// readMore is how many more records than a page has are read at first: one shows that there is a next page, and some may be
// gone.
const readMore = 10

// readUntil reads the records at places in their order, until one more run matches than a page has: that shows that there
// is a next page. matching is the number of those that match. gone are the places without a record.
func (h *Handlers) readUntil(ctx context.Context, places []store.RunPlace, f *runFilter, most int) (read []task.Run, gone []store.RunPlace, matching int, err error) {
	// The first records are usually enough.
	for n := most + readMore; len(places) > 0; n = 200 {
		chunk := places[:min(n, len(places))]
		places = places[len(chunk):]
		runs, err := h.Store.RunsAt(ctx, chunk)
		if err != nil {
			return nil, nil, 0, err
		}

		for i, r := range runs {
			if r == nil { // the run has moved on, or its record was trimmed
				gone = append(gone, chunk[i])
				continue
			}

			for _, one := range f.addParts([]task.Run{*r}) {
				if read = append(read, one); f.matchesRun(one) {
					matching++
				}
			}
		}

		if matching > most {
			break
		}
	}

	return read, gone, matching, nil
}

// newestPlace orders keys as newest orders runs.
func newestPlace(a, b store.RunPlace) int {
	return cmp.Or(strings.Compare(b.Run, a.Run), strings.Compare(a.Ref.Namespace, b.Ref.Namespace), strings.Compare(a.Ref.Name, b.Ref.Name))
}

// runAt returns a run with only the fields that determine its place in a list.
func runAt(p store.RunPlace) *task.Run {
	at, _ := task.TimeOfRunID(p.Run)
	return &task.Run{ScheduledTime: task.At(at), ID: p.Run, Namespace: p.Ref.Namespace, Task: p.Ref.Name}
}

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

// matchesPlace reports whether a run may belong to the page, as far as its key shows.
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
