package runs

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
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
