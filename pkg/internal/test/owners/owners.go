// Package owners answers queries for all shards of a test cluster without schedulers. It reads the records of the
// cluster for each query, so its answers are always current.
package owners

import (
	"cmp"
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
	all, err := o.buildIndexes(ctx, q.Board != nil)
	if err != nil {
		return readmodel.NodeAnswer{}, err
	}

	for shard, x := range all {
		if slices.Contains(without, shard) {
			continue
		}

		size := x.Size()
		scan.Add(readmodel.ShardAnswer{Shard: shard, Owner: 1, Rows: size.Rows, Unread: size.Unread}, x)
	}

	return scan.Answer(), nil
}

// buildIndexes returns the index of each shard as its owner would have it. detailed says whether the details of runs and
// failures are needed, which are in more records.
func (o Owner) buildIndexes(ctx context.Context, detailed bool) ([]*readmodel.Index, error) {
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

	details := map[record.Ref]*readmodel.Runs{}
	if detailed {
		if details, err = o.runs(ctx); err != nil {
			return nil, err
		}
	}

	list := make([]*readmodel.Index, o.Shards)
	for shard := range list {
		list[shard] = &readmodel.Index{}
	}

	for i, ref := range refs {
		r, d := readmodel.Row{Name: ref.String(), Flags: readmodel.Unreadable | readmodel.History}, readmodel.Details{}
		var alerts *task.Alerts
		if e := entries[i]; e != nil {
			r, d.PausedUntil = row(ref, e, outcomes[i], o.Now())
			alerts = e.Alerts
		}

		runs := map[string]bool{} // the parts of a run count as one run
		for _, run := range append(active[ref], outcomes[i].UnderWay...) {
			runs[run] = task.RunBelongs(run, reads[i].UID)
		}
		maps.DeleteFunc(runs, func(_ string, isOwn bool) bool { return !isOwn })
		r.Active = readmodel.Count(len(runs))
		d.Runs = details[ref]
		delete(details, ref)

		if detailed && r.Flags.Has(readmodel.Failing) {
			if d.Failure, err = o.failure(ctx, ref); err != nil {
				return nil, err
			}
		}

		list[ref.Shard].Put(readmodel.NoSlot, r, d, alerts)
	}

	// What is left belongs to tasks without an entry.
	for ref, r := range details {
		list[ref.Shard].Put(readmodel.NoSlot, readmodel.Row{Name: ref.String(), Flags: readmodel.Gone}, readmodel.Details{Runs: r}, nil)
	}

	return list, nil
}

// runs returns the attempts and the waiting runs of all tasks. An owner that has just loaded its shards does not know when
// attempts were dispatched.
func (o Owner) runs(ctx context.Context) (map[record.Ref]*readmodel.Runs, error) {
	all := map[record.Ref]*readmodel.Runs{}
	of := func(ref record.Ref) *readmodel.Runs {
		if all[ref] == nil {
			all[ref] = readmodel.NewRuns(0)
		}
		return all[ref]
	}

	nodes, err := o.Store.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the nodes: %w", err)
	}
	attempts, _, err := o.Store.ScanActive(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the active runs: %w", err)
	}

	for _, k := range attempts {
		tick, _ := task.TimeOfRunID(k.Run)
		present := slices.ContainsFunc(nodes, func(n task.Node) bool { return n.Name == k.Node })
		of(k.Ref).AddAttempt(&readmodel.Attempt{Run: k.Run, Node: k.Node, Since: tick.UnixMilli()}, !present)
	}

	for shard := range o.Shards {
		queue, err := o.Store.Queue(ctx, shard)
		if err != nil {
			return nil, fmt.Errorf("read the queue of shard %d: %w", shard, err)
		}

		for _, ev := range queue {
			q, err := record.DecodeWaiting(ev.ShardKey, ev.Value)
			if ev.Kind != record.KindQueued || err != nil || q.UnderWay() {
				continue
			}

			w := readmodel.WaitingRun{Run: q.ID, Reason: q.Reason, NotBefore: q.NotBefore, Unsent: q.Unsent}
			if task.IsPart(ev.Run) {
				of(ev.Ref).AddWaitingPart(w)
			} else {
				of(ev.Ref).AddWaiting(w)
			}
		}
	}

	return all, nil
}

// failure returns how the newest dead run of a task has failed.
func (o Owner) failure(ctx context.Context, ref record.Ref) (*readmodel.Failure, error) {
	dead, err := o.Store.DeadRuns(ctx, ref)
	if err != nil || len(dead) == 0 {
		return nil, err
	}

	d := slices.MaxFunc(dead, func(a, b record.Dead) int { return cmp.Compare(a.Mod, b.Mod) })

	return &readmodel.Failure{Run: d.ID, State: d.State, Reason: d.Reason, ExitCode: d.ExitCode, Node: d.Node, Ended: d.EndedAt.UnixMilli()}, nil
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
		if parent, _, ok := task.ParentOf(run); ok {
			run = parent
		}
		active[k.Ref] = append(active[k.Ref], run)
	}

	return active, nil
}

// row returns the row of a task, and when its pause ends.
func row(ref record.Ref, e *task.Entry, o store.Outcome, now time.Time) (r readmodel.Row, pausedUntil int64) {
	r = readmodel.Row{Name: ref.String(), Labels: e.Labels, Flags: readmodel.History}
	if o.Waits {
		r.Waiting = 1
	}
	r.Schedule, _ = schedule.Parse(e.Timing(), time.Time{}) // nil if it cannot be parsed

	if next, ok, _ := views.NextTick(e, now); ok {
		anchored := r.Schedule.Anchored(e.Anchor.Time)
		r.Next, r.Delay = next.UnixMilli(), readmodel.Milliseconds(anchored.Due(next.Time, e.UID).Sub(next.Time))
	}

	if p, paused := views.PauseInForce(e, now); paused {
		r.Flags |= readmodel.Paused
		if p != nil && !p.Until.IsZero() {
			pausedUntil = p.Until.UnixMilli()
		}
	}

	if e.Action.Workflow != nil {
		r.Flags |= readmodel.Workflow
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
			r.SetLast(outcome)
			r.LastEnd = run.LastSeen().UnixMilli()
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
				r.LastSuccess = readmodel.Seconds(run.LastSeen().UnixMilli())
			}
		case counting && run.State != task.Cancelled:
			r.Failures++
		}
	}

	return r, pausedUntil
}
