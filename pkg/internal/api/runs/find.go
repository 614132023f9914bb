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

const shardsAtOnce = 16 // bounds what is held at once

// findRuns are the newest runs that match, of a namespace or of all ("");
// more: there may be others. Records move while they are read: queue to inbox to
// history. The inboxes are therefore read before and after the shards, so that
// what moved is not missed; of several records of a run the one read last counts.
func (h *Handlers) findRuns(ctx context.Context, ns string, f runFilter, most int) (found []task.Run, more bool, err error) {
	before, err := h.activeRuns(ctx, ns)
	if err != nil {
		return nil, false, err
	}

	var ended []task.Run // of runs that have not: their records go when those of their runs tell of them
	if f.parts {
		if ended, err = h.Store.EndedParts(ctx, h.shards(), ns); err != nil {
			return nil, false, err
		}
	}

	switch {
	case f.activeOnly():
		queued, err := h.Store.QueuedRuns(ctx, h.shards(), ns) // where runs with parts are
		if err != nil {
			return nil, false, err
		}

		found, more = f.newest(nil, override(queued, before), most)
		return found, more, nil
	case f.unended():
		queued, failed := h.Store.QueuedRuns(ctx, h.shards(), ns)
		found, more = f.newest(nil, override(before, queued), most)
		err = failed
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

	found, cut := f.newest(nil, override(found, override(ended, after)), most)

	return found, more || cut, nil
}

// unended reports whether only runs that wait or are active can match.
func (f runFilter) unended() bool {
	return f.states != nil && !slices.ContainsFunc(f.states, func(s task.State) bool { return s != task.Queued && !s.Active() })
}

// newest are the newest of two lists that match; cut: there are more.
func (f runFilter) newest(found, others []task.Run, most int) (list []task.Run, cut bool) {
	for _, r := range others {
		if f.matches(r) {
			found = append(found, r)
		}
	}

	slices.SortFunc(found, newest)

	if len(found) > most {
		return found[:most], true
	}

	return found, false
}

// runsByValues reads all records: what is asked for does not follow from a key.
func (h *Handlers) runsByValues(ctx context.Context, ns string, f runFilter, before []task.Run, most int) (found []task.Run, more bool, err error) {
	for ids := range slices.Chunk(h.shards(), shardsAtOnce) {
		part, err := h.Store.ShardRuns(ctx, ids, ns)
		if err != nil {
			return nil, false, err
		}

		active := slices.DeleteFunc(slices.Clone(before), func(r task.Run) bool { return !slices.Contains(ids, r.Shard) })
		var cut bool
		found, cut = f.newest(found, override(active, f.spread(part)), most) // what was active and is on record has ended, or waits again
		more = more || cut
	}

	return found, more, nil
}

func (h *Handlers) shards() []int {
	ids := make([]int, h.Shards)
	for i := range ids {
		ids[i] = i
	}
	return ids
}

// runsByKeys finds by their keys which records are the newest, and reads those
// alone. A key has the run's time in milliseconds, as the record has. last, if it is
// not nil, is the last place that was looked at: this page ends there.
func (h *Handlers) runsByKeys(ctx context.Context, ns string, f runFilter, before []task.Run, most int) (found []task.Run, last *task.Run, more bool, err error) {
	until := f.until.Time
	if f.after != nil {
		if behind := f.after.ScheduledTime.Add(time.Millisecond); until.IsZero() || behind.Before(until) {
			until = behind
		}
	}

	var places []store.RunPlace
	cut := false
	for ids := range slices.Chunk(h.shards(), shardsAtOnce) {
		part, err := h.Store.RunPlaces(ctx, ids, ns, f.since.Time, until)
		if err != nil {
			return nil, nil, false, err
		}

		// A key names its task, so runs of other tasks are dropped before they count
		// towards MostScanned, and their records are not read.
		if f.tasks != nil {
			part = slices.DeleteFunc(part, func(p store.RunPlace) bool { return !f.tasks[p.Ref.Namespace+"/"+p.Ref.Name] })
		}

		places = append(places, part...)
		if len(places) > 2*h.MostScanned {
			slices.SortFunc(places, newestPlace)
			places, cut = places[:h.MostScanned], true
		}
	}

	slices.SortFunc(places, newestPlace)

	if len(places) > h.MostScanned {
		places, cut = places[:h.MostScanned], true
	}

	var read []task.Run
	left := most
	for chunk := range slices.Chunk(places, 200) {
		runs, err := h.Store.RunsAt(ctx, chunk)
		if err != nil {
			return nil, nil, false, err
		}

		matching := 0
		for _, r := range runs {
			if r == nil { // it has moved on, or was trimmed
				continue
			}

			for _, one := range f.spread([]task.Run{*r}) {
				if read = append(read, one); f.matches(one) {
					matching++
				}
			}
		}

		if left -= matching; left < 0 {
			more = true
			break
		}
	}

	if left == most && cut { // nothing among the newest: look at all
		found, more, err = h.runsByValues(ctx, ns, f, before, most)
		return found, nil, more, err
	}

	if cut { // an active run from behind it would have the next page jump over what is between
		f.last = runAt(places[len(places)-1])
	}

	found, tooMany := f.newest(nil, override(slices.Clone(before), read), most)

	return found, f.last, more || cut || tooMany, nil
}

func newestPlace(a, b store.RunPlace) int {
	return cmp.Or(strings.Compare(b.Run, a.Run), strings.Compare(a.Ref.Namespace, b.Ref.Namespace), strings.Compare(a.Ref.Name, b.Ref.Name))
}

// runAt is a run as far as the order of lists goes.
func runAt(p store.RunPlace) *task.Run {
	at, _ := task.TimeOfRunID(p.Run)
	return &task.Run{ScheduledTime: task.At(at), ID: p.Run, Namespace: p.Ref.Namespace, Task: p.Ref.Name}
}
