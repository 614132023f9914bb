// Package owners answers queries for all shards of a test cluster without schedulers. It reads the records of the
// cluster for each query, so its answers are always current.
package owners

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Owner owns all shards of a cluster.
type Owner struct {
	Node   string
	Store  *store.Store
	Shards int
	Ref    func(namespace, name string) record.Ref // maps a task to its shard
	Now    func() time.Time
}

// Ask answers a query.
func (o Owner) Ask(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
	scan := readmodel.NewScan(q, o.Node)
	all, err := o.buildIndexes(ctx)
	if err != nil {
		return readmodel.NodeAnswer{}, err
	}

	for shard, x := range all {
		if slices.Contains(without, shard) {
			continue
		}

		known, rows := x.Collected()
		scan.Add(readmodel.ShardAnswer{Shard: shard, Owner: 1, Rows: rows, Unread: rows - known}, x)
	}

	return scan.Answer(), nil
}

// buildIndexes returns the index of each shard as its owner would have it.
func (o Owner) buildIndexes(ctx context.Context) ([]*readmodel.Index, error) {
	var refs []record.Ref
	for after := ""; ; {
		specs, next, err := o.Store.Briefs(ctx, store.BriefPage{After: after, Limit: 1000})
		if err != nil {
			return nil, fmt.Errorf("read the tasks: %w", err)
		}

		for _, b := range specs {
			refs = append(refs, o.Ref(b.Namespace, b.Name))
		}

		if after = next; after == "" {
			break
		}
	}

	entries, err := o.Store.Entries(ctx, refs)
	if err != nil {
		return nil, fmt.Errorf("read the entries: %w", err)
	}

	reads := make([]store.OutcomeRead, len(refs))
	for i, ref := range refs {
		reads[i].Ref = ref
		if entries[i] != nil {
			reads[i].UID = entries[i].UID
		}
	}

	outcomes, err := o.Store.Outcomes(ctx, reads, 1000)
	if err != nil {
		return nil, fmt.Errorf("read the outcomes: %w", err)
	}

	active, err := o.activeRuns(ctx)
	if err != nil {
		return nil, err
	}

	list := make([]*readmodel.Index, o.Shards)
	for shard := range list {
		list[shard] = &readmodel.Index{}
	}

	for i, ref := range refs {
		r, pausedUntil := readmodel.Row{Name: ref.Namespace + "/" + ref.Name, Flags: readmodel.Unreadable | readmodel.History}, int64(0)
		if e := entries[i]; e != nil {
			r, pausedUntil = row(ref, e, outcomes[i], o.Now())
		}

		runs := map[string]bool{} // the parts of a run count as one run
		for _, run := range append(active[ref], outcomes[i].UnderWay...) {
			runs[run] = task.RunBelongs(run, reads[i].UID)
		}
		maps.DeleteFunc(runs, func(_ string, isOwn bool) bool { return !isOwn })
		r.Active = readmodel.Count(len(runs))
		list[ref.Shard].Put(readmodel.NoSlot, r, pausedUntil)
	}

	return list, nil
}

// activeRuns returns the runs of all tasks that are in an inbox. Of a part, it returns the run that it belongs to.
func (o Owner) activeRuns(ctx context.Context) (map[record.Ref][]string, error) {
	keys, _, err := o.Store.ScanActive(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the active runs: %w", err)
	}

	active := map[record.Ref][]string{}
	for _, k := range keys {
		run := k.Run
		if parent, _, is := task.ParentOf(run); is {
			run = parent
		}
		active[k.Ref] = append(active[k.Ref], run)
	}

	return active, nil
}

// row returns the row of a task, and when its pause ends.
func row(ref record.Ref, e *task.Entry, o store.Outcome, now time.Time) (r readmodel.Row, pausedUntil int64) {
	r = readmodel.Row{Name: ref.Namespace + "/" + ref.Name, Labels: e.Labels, Flags: readmodel.History}
	if o.Waits {
		r.Waiting = 1
	}
	if next, ok, _ := views.NextTick(e, now); ok {
		r.Next = next.UnixMilli()
	}
	r.Schedule, _ = schedule.Parse(e.Timing(), time.Time{}) // nil if it cannot be parsed

	if p, paused := views.PauseInForce(e, now); paused {
		r.Flags |= readmodel.Paused
		if p != nil && !p.Until.IsZero() {
			pausedUntil = p.Until.UnixMilli()
		}
	}

	if o.Failing {
		r.Flags |= readmodel.Failing
	}

	counting := true
	for _, run := range o.Runs { // the newest first
		outcome := readmodel.OutcomeOf(run.State)
		if outcome == 0 {
			continue
		}

		if r.LastEnd == 0 {
			r.LastEnd, r.Last = run.LastSeen().UnixMilli(), outcome
			if !run.StartedAt.IsZero() {
				r.Duration = readmodel.Milliseconds(run.LastSeen().Sub(run.StartedAt.Time))
			}
			if run.LatenessMS != nil {
				r.Lateness = readmodel.Milliseconds(time.Duration(*run.LatenessMS) * time.Millisecond)
			}
		}

		switch {
		case run.State == task.Succeeded:
			counting = false
			if r.LastSuccess == 0 {
				r.LastSuccess = run.LastSeen().UnixMilli()
			}
		case counting && run.State != task.Cancelled:
			r.Failures++
		}
	}

	return r, pausedUntil
}
