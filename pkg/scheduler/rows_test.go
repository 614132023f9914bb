package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// rowFaults compares the rows that the worker has written, as its state has changed, with rows that are computed from
// the whole state. It returns the differences. It leaves out what follows from ends of runs.
func (w *worker) rowFaults() (faults []string) {
	want := map[string]readmodel.Row{}
	var size readmodel.Size
	paused := 0

	for t := range w.state.records.Tasks.All() {
		name := t.FullName()
		if !t.Present {
			if hasRuns := t.Activity != nil && len(t.Active())+len(t.Queue()) > 0; (t.Row != readmodel.NoSlot) != hasRuns {
				faults = append(faults, fmt.Sprintf("%s has no entry; its row is in slot %d, it has runs: %t", name, t.Row, hasRuns))
			}
			continue
		}

		want[name] = rowOfState(t)
		size.Rows++
		if t.Bad {
			size.Unreadable++
		}
		if want[name].Flags.Has(readmodel.Paused) {
			paused++
		}
	}

	// At this time, no pause that has an end is over.
	w.state.rows.Index.EachRow(0, func(r *readmodel.Row) {
		is := want[r.Name]
		delete(want, r.Name)
		is.SetLast(r.Last())
		is.LastEnd, is.LastSuccess, is.Duration, is.Lateness, is.Failures = r.LastEnd, r.LastSuccess, r.Duration, r.Lateness, r.Failures
		is.Flags |= r.Flags & (readmodel.Failing | readmodel.History)
		if !r.Flags.Has(readmodel.History) {
			size.Unread++
		}
		if r.Flags.Has(readmodel.Failing) {
			size.Failing++
		}

		if got := fmt.Sprintf("%+v", *r); got != fmt.Sprintf("%+v", is) {
			faults = append(faults, fmt.Sprintf("the row is\n%s, want\n%+v", got, is))
		}
	})

	for name := range want {
		faults = append(faults, fmt.Sprintf("%s has no row", name))
	}

	if got := w.state.rows.Index.Size(); got != size {
		faults = append(faults, fmt.Sprintf("the size is %+v, want %+v", got, size))
	}

	q := &readmodel.Query{}
	if got := w.state.rows.Index.Scan(q, 0, readmodel.NewFirst(q)); got.Paused != paused {
		faults = append(faults, fmt.Sprintf("%d tasks are paused, want %d", got.Paused, paused))
	}

	if got, want := w.runsOnBoard(), w.runsOfState(); !slices.Equal(got, want) {
		extra := slices.DeleteFunc(slices.Clone(got), func(text string) bool { return slices.Contains(want, text) })
		lacks := slices.DeleteFunc(want, func(text string) bool { return slices.Contains(got, text) })
		faults = append(faults, fmt.Sprintf("the board has %q, and lacks %q", extra, lacks))
	}

	return faults
}

// runsOnBoard describes the runs that boards show of the shard.
func (w *worker) runsOnBoard() (list []string) {
	scan := readmodel.NewScan(&readmodel.Query{Board: &readmodel.BoardRange{Limit: 100_000}}, "n1")
	scan.Add(readmodel.ShardAnswer{}, w.state.rows.Index)
	b := scan.Answer().Board

	for _, r := range b.Lists.Active {
		list = append(list, fmt.Sprintf("%s/%s %s on %s, since %s, ending %t", r.Namespace, r.Task, r.Run, r.Node, r.Since, r.Ending))
	}
	for _, r := range b.Lists.Away {
		list = append(list, fmt.Sprintf("%s/%s %s away on %s, since %s, ending %t", r.Namespace, r.Task, r.Run, r.Node, r.Since, r.Ending))
	}
	for _, q := range b.Lists.Waits {
		list = append(list, fmt.Sprintf("%s/%s %s waits: %s", q.Namespace, q.Task, q.Run, q.Reason))
	}
	slices.Sort(list)

	return append(list, fmt.Sprintf("%d attempts, %d away, waiting %v", b.Counts.ActiveCount, b.Counts.AwayCount, b.Counts.Waiting))
}

// runsOfState is runsOnBoard from the whole state. Boards list the first hundred runs of each kind of a task.
func (w *worker) runsOfState() (list []string) {
	const most = 100
	attempts, away, waiting := 0, 0, map[string]int{}

	for t := range w.state.records.Tasks.All() {
		var active, gone, waits []string // each begins with what it is sorted by

		for _, a := range t.Active() {
			since := task.Time{}
			if !a.Found {
				since = task.At(state.Instant(a.Since))
			}

			text := func(where string) string {
				return fmt.Sprintf("%020d %s\n%s %s %s %s, since %s, ending %t", a.Since, a.Run, t.FullName(), a.Run, where, a.Node, since, a.Watch != nil && a.Watch.Asked)
			}

			attempts++
			if a.Watch != nil && !a.Watch.Since.IsZero() {
				gone = append(gone, text("away on"))
				away++
			} else {
				active = append(active, text("on"))
			}
		}

		held := t.Policy != nil && len(t.Active()) > 0 && !t.Policy.Rule.Free(t.Doing(0))
		for _, q := range t.Queue() {
			if q.UnderWay() || t.Orphan(q.ID) {
				continue
			}

			reason := q.Reason
			if held && !task.IsPart(q.ID) && reason == task.ReasonNoNode {
				reason = task.ReasonOverlap
			}
			waits = append(waits, fmt.Sprintf("%d %s\n%s %s waits: %s", task.WaitUrgency(reason, q.Unsent), q.ID, t.FullName(), q.ID, reason))
			if !task.IsPart(q.ID) {
				waiting[reason]++
			}
		}

		for _, runs := range [][]string{active, gone, waits} {
			slices.Sort(runs)
			for _, text := range runs[:min(len(runs), most)] {
				_, text, _ = strings.Cut(text, "\n")
				list = append(list, text)
			}
		}
	}
	slices.Sort(list)

	return append(list, fmt.Sprintf("%d attempts, %d away, waiting %v", attempts, away, waiting))
}

// rowOfState returns the row of a task without what follows from ends of runs. It counts runs by their ids.
func rowOfState(t *state.Task) readmodel.Row {
	r := readmodel.Row{Name: t.FullName(), Next: t.Next}
	if t.Next != 0 {
		r.Delay = readmodel.Milliseconds(time.Duration(t.Due(t.Next)-t.Next) * time.Millisecond)
	}

	if t.Policy != nil && t.Policy.Labels != nil {
		r.Labels = t.Policy.Labels.All
	}

	if t.Bad {
		r.Flags = readmodel.Unreadable
	} else {
		r.Schedule = t.Timing.Schedule
		if t.Paused {
			r.Flags = readmodel.Paused
		}
		if t.IsWorkflow() {
			r.Flags |= readmodel.Workflow
		}
	}

	if t.Policy != nil && t.Policy.Metrics != nil {
		if r.Flags |= readmodel.MetricsOff; *t.Policy.Metrics {
			r.Flags ^= readmodel.MetricsOff | readmodel.MetricsOn
		}
	}

	// A run is active if it or one of its parts is in an inbox, or if its parts have begun. Otherwise it waits.
	active, waiting := map[string]bool{}, map[string]bool{}
	unreadable := map[string]bool{}

	if t.Activity != nil {
		for _, run := range t.Activity.Unreadable {
			unreadable[run] = true
		}
	}

	for _, a := range t.Active() {
		parent, _, isPart := task.ParentOf(a.Run)
		switch {
		case t.Orphan(a.Run):
		case !isPart:
			active[a.Run] = true
		case unreadable[parent]:
			active[parent] = true
		}
	}

	for _, q := range t.Queue() {
		switch {
		case t.Orphan(q.ID) || task.IsPart(q.ID):
		case q.UnderWay():
			active[q.ID] = true
		default:
			waiting[q.ID] = true
		}
	}

	r.Active, r.Waiting = readmodel.Count(len(active)), readmodel.Count(len(waiting))

	return r
}

// rowsMatch reports differences between the rows and the state.
func (tw *testWorker) rowsMatch() {
	tw.world.Helper()

	for _, fault := range tw.rowFaults() {
		tw.world.Error(fault)
	}
}

// endsMatch reports differences between the rows and the history.
func (tw *testWorker) endsMatch() {
	tw.world.Helper()

	for _, fault := range tw.endFaults() {
		tw.world.Error(fault)
	}
}

// endFaults compares what the rows say about ends of runs with the history in etcd, as of what the worker has applied.
// It returns the differences. Records may have been trimmed, and ends before the shard was loaded are not known.
func (tw *testWorker) endFaults() (faults []string) {
	ctx := context.WithoutCancel(tw.world.ctx)
	read := func(dir string) map[string][]end {
		byTask := map[string][]end{}
		res, err := tw.world.client.Get(ctx, tw.state.records.Keys.Shard(0)+dir, clientPrefix, clientv3.WithRev(tw.state.applied))
		if err != nil {
			return nil // compacted, or the test has cut etcd off
		}

		for _, e := range res.Kvs {
			k, ok := tw.state.records.Keys.ParseShard(string(e.Key))
			if !ok || k.Late {
				continue
			}

			e := end{run: k.Run, create: e.CreateRevision, mod: e.ModRevision, value: e.Value}
			byTask[k.Ref.String()] = append(byTask[k.Ref.String()], e)
		}

		return byTask
	}

	if tw.state.rows.Index == nil {
		return nil // the worker has loaded nothing
	}
	tw.state.rows.Flush(tw.state.applied)
	history, dead := read("history/"), read("dead/")
	if history == nil || dead == nil {
		return nil
	}

	for t := range tw.state.records.Tasks.All() {
		name := t.FullName()
		if !t.Present || t.Bad {
			continue
		}

		own := func(list []end) []end {
			list = slices.DeleteFunc(list, func(e end) bool { return !task.RunBelongs(e.run, t.UID()) })
			slices.SortFunc(list, func(a, b end) int { return cmp.Or(cmp.Compare(a.mod, b.mod), cmp.Compare(a.run, b.run)) })
			return list
		}

		for _, fault := range faultsOfEnds(tw.state.rows.Index.Row(t.Row), own(history[name]), own(dead[name]), t.Policy.History.Keep) {
			faults = append(faults, fmt.Sprintf("%s: %s", name, fault))
		}
	}

	return faults
}

// end is a record of a run that has ended.
type end struct {
	run         string
	create, mod int64
	value       []byte
}

// faultsOfEnds compares a row with the records of its task, ordered by mod revision. keep is how many of them a trim keeps,
// apart from the last success.
func faultsOfEnds(r readmodel.Row, history, dead []end, keep int) (faults []string) {
	var last, success end
	failures, since := 0, 0 // since: records since the success

	for _, e := range history {
		since++
		run, err := record.DecodeRunValue(e.value)
		if err != nil || readmodel.OutcomeOf(run.State) == 0 {
			continue
		}

		last = e

		switch run.State {
		case task.Succeeded:
			success, failures, since = e, 0, 0
		case task.Cancelled:
		default:
			failures++
		}
	}

	if !r.Flags.Has(readmodel.History) {
		return nil
	}

	// A trim keeps the last success and the newest records, which may be of ticks that did not run. An end in between may be gone.
	if trimmed := last.run == success.run && since >= keep; last.run != "" && !trimmed {
		run, _ := record.DecodeRunValue(last.value)
		if r.LastEnd != run.EndedAt.UnixMilli() || r.Last().State() != run.State {
			faults = append(faults, fmt.Sprintf("the last end is %d %s, want %d %s", r.LastEnd, r.Last().State(), run.EndedAt.UnixMilli(), run.State))
		}

		duration := int64(0)
		if !run.StartedAt.IsZero() {
			duration = max(0, run.EndedAt.Sub(run.StartedAt.Time).Milliseconds())
		}
		if int64(r.Duration) != duration || run.LatenessMS != nil && int64(r.Lateness) != *run.LatenessMS {
			faults = append(faults, fmt.Sprintf("it took %d and was %d late, want %d and %v", r.Duration, r.Lateness, duration, run.LatenessMS))
		}
	}

	if success.run != "" {
		run, _ := record.DecodeRunValue(success.value)
		mayBeTrimmed := since >= keep // failures since then
		if want := readmodel.Seconds(run.EndedAt.UnixMilli()); r.LastSuccess != want || int(r.Failures) != failures && (!mayBeTrimmed || int(r.Failures) < failures) {
			faults = append(faults, fmt.Sprintf("the last success was %d and %d runs have failed since, want %d and %d", r.LastSuccess, r.Failures, want, failures))
		}
	} else if r.LastSuccess == 0 && int(r.Failures) < failures { // else the record of the last success was trimmed
		faults = append(faults, fmt.Sprintf("%d runs have failed, want %d", r.Failures, failures))
	}

	isDead := slices.ContainsFunc(dead, func(e end) bool { return e.create > success.create })
	if is := r.Flags.Has(readmodel.Failing); is != isDead {
		faults = append(faults, fmt.Sprintf("failing is %t; there are %d dead runs, and the last success is at %d", is, len(dead), success.mod))
	}

	return faults
}
