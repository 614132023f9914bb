// Package views converts records to the form in which users see them: a task with its pause, its next tick and
// its latest runs, and nodes with their shards.
//
// What depends only on an entry and a time is a pure function. A Viewer reads the rest for many tasks at once,
// slightly later than the tasks themselves. The package writes nothing.
//
// A view contains only what the caller of the request may read: the runs of a task need read on runs, and the end of
// their output needs output.
package views

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Viewer reads and converts tasks. It is safe for concurrent use.
type Viewer struct {
	Store *store.Store
	Ref   func(namespace, name string) record.Ref // maps a task to its shard
	Now   httpapi.Clock
	// Cluster is the ID of the cluster, which is part of what identifies an alert. Only the views of alerts need it.
	Cluster string

	recent recentReads
}

// Task returns the view of a task that was just read or written.
func (vi *Viewer) Task(ctx context.Context, st store.Stored) (client.Task, error) {
	var entry *task.Entry
	if st.EntryMod != 0 {
		entry = &st.Entry
	}

	views, err := vi.Tasks(ctx, []task.Task{st.Task}, []*task.Entry{entry})
	if err != nil {
		return client.Task{}, err
	}

	return views[0], nil
}

// TaskAfterWrite returns the view of a task that was just read, or written with this result.
func (vi *Viewer) TaskAfterWrite(ctx context.Context, st store.Stored, result string) (client.Task, error) {
	if result != client.Created {
		return vi.Task(ctx, st)
	}

	views, err := vi.NewTasks(ctx, []store.Stored{st})
	if err != nil {
		return client.Task{}, err
	}

	return views[0], nil
}

// Tasks returns the views of tasks. entries contains nil for an entry that cannot be read.
func (vi *Viewer) Tasks(ctx context.Context, tasks []task.Task, entries []*task.Entry) ([]client.Task, error) {
	return vi.viewTasks(ctx, tasks, func() ([]*task.Entry, error) { return entries, nil }, 0, nil)
}

// ReadTasks returns the views of tasks whose entries are still to be read, each with its last recent runs. failing contains
// the full names of tasks that their owners know to be failing; it only saves reads.
func (vi *Viewer) ReadTasks(ctx context.Context, tasks []task.Task, recent int, failing map[string]bool) ([]client.Task, error) {
	refs := vi.refsOf(tasks)
	return vi.viewTasks(ctx, tasks, func() ([]*task.Entry, error) { return vi.Store.Entries(ctx, refs) }, recent, failing)
}

// refsOf returns the places of tasks.
func (vi *Viewer) refsOf(tasks []task.Task) []record.Ref {
	refs := make([]record.Ref, len(tasks))
	for i, t := range tasks {
		refs[i] = vi.Ref(t.Namespace, t.Name)
	}

	return refs
}

// taskRecords is what is read for the views of tasks, in their order.
type taskRecords struct {
	entries  []*task.Entry
	outcomes []store.Outcome
	active   []record.RunKey // of all these tasks
	freezes  store.FreezeRecord
}

// readRecords reads what the views of tasks are made of, all at the same time, because each part needs an answer of etcd.
func (vi *Viewer) readRecords(ctx context.Context, tasks []task.Task, refs []record.Ref, readEntries func() ([]*task.Entry, error), recent int, failing map[string]bool) (r taskRecords, err error) {
	reads := make([]store.OutcomeRead, len(refs))
	for i, oldest := range vi.recent.oldestOf(refs, recent) {
		reads[i] = store.OutcomeRead{Ref: refs[i], UID: tasks[i].UID, Oldest: oldest, KnownFailing: failing[tasks[i].Namespace+"/"+tasks[i].Name]}
	}

	g, ctx := callgroup.WithContext(ctx)
	g.Go(func() (err error) { r.entries, err = readEntries(); return err })
	g.Go(func() (err error) { r.outcomes, err = vi.Store.Outcomes(ctx, reads, recent); return err })
	g.Go(func() (err error) { r.active, err = vi.Store.ActiveKeysOf(ctx, refs); return err })
	g.Go(func() (err error) { r.freezes, err = vi.Store.Freezes(ctx); return err })

	if err = g.Wait(); err == nil {
		vi.recent.keep(refs, recent, r.outcomes)
	}

	return r, err
}

// viewTasks returns the views of tasks.
func (vi *Viewer) viewTasks(ctx context.Context, tasks []task.Task, readEntries func() ([]*task.Entry, error), recent int, failing map[string]bool) ([]client.Task, error) {
	refs := vi.refsOf(tasks)
	at := make(map[record.Ref]int, len(tasks))
	for i, ref := range refs {
		at[ref] = i
	}

	read, err := vi.readRecords(ctx, tasks, refs, readEntries, recent, failing)
	if err != nil {
		return nil, err
	}

	now, rights := vi.Now.Stamp(), httpapi.RightsOf(ctx)
	views := make([]client.Task, len(tasks))
	for i, t := range tasks {
		views[i] = client.Task{Task: FillLists(t)}
		if rights.CanReadRuns(t.Namespace) {
			addPast(&views[i], read.outcomes[i].Runs, recent)
		}

		if e := read.entries[i]; e != nil {
			fromEntry(&views[i], e, now)
		}
	}

	if err := vi.addActive(ctx, views, &read, at); err != nil {
		return nil, err
	}

	for i := range views {
		v, outcome := &views[i], &read.outcomes[i]
		v.State = stateOf(v, read.entries[i] != nil, read.freezes.Of(v.Namespace) != nil, outcome.Failing, outcome.Waits)
		if v.LastRun != nil {
			v.LastRun = new(ReadableRun(rights, *v.LastRun))
		}
	}

	return views, nil
}

// addPast adds the runs of a task that have ended to its view.
func addPast(v *client.Task, past []task.Run, recent int) {
	if len(past) > 0 {
		v.LastRun = new(RunInBrief(past[0]))
	}

	for _, r := range past[:min(recent, len(past))] {
		v.Recent = append(v.Recent, client.PastRun{ID: r.ID, State: r.State, Reason: r.Reason, Count: r.Count})
	}
}

// NewTasks returns the views of tasks that this request has just created. They have no runs yet, so only the
// freezes must be read.
func (vi *Viewer) NewTasks(ctx context.Context, created []store.Stored) ([]client.Task, error) {
	freezes, err := vi.Store.Freezes(ctx)
	if err != nil {
		return nil, err
	}

	views := make([]client.Task, len(created))
	for i := range created {
		views[i] = vi.NewTask(&created[i], &freezes.Freezes)
	}

	return views, nil
}

// NewTask is like NewTasks for one task, if the freezes have been read.
func (vi *Viewer) NewTask(created *store.Stored, freezes *task.Freezes) client.Task {
	v := client.Task{Task: FillLists(created.Task)}
	fromEntry(&v, &created.Entry, vi.Now.Stamp())
	v.State = stateOf(&v, true, freezes.Of(v.Namespace) != nil, false, false)

	return v
}

// stateOf returns the state of a task in one word. If several apply, the order of the cases puts first what a
// user should know first.
func stateOf(v *client.Task, readable, frozen, failing, waiting bool) string {
	switch {
	case !readable:
		return client.TaskUnreadable
	case failing:
		return client.TaskFailing
	case frozen:
		return client.TaskFrozen
	case v.Paused:
		return client.TaskPaused
	case v.Active > 0:
		return client.TaskRunning
	case waiting:
		return client.TaskWaiting
	case v.NoNext != "":
		return client.TaskEnded
	}

	return client.TaskOK
}

// fromEntry adds to a view what the entry determines: the pause, the counts and the next tick.
func fromEntry(v *client.Task, e *task.Entry, now task.Time) {
	v.Spec = ShownAs(v.Spec, e, now.Time)
	v.Pause, _ = PauseInForce(e, now.Time)
	if !v.Paused {
		v.Pause = nil
	}

	if e.Own != nil {
		v.Counted, v.Failures = e.Own.Runs, e.Own.Failures
	}

	next, ok, why := NextTick(e, now.Time)
	if v.NoNext = why; ok {
		v.Next, v.LeftMS = next, next.Sub(now.Time).Milliseconds()
	}
}

// addActive adds the number of active runs to views, and shows the newest active run if it is newer than the last one that
// has ended. A run is active if it or one of its parts is in an inbox, or if its parts have begun. Runs of a deleted task of
// the same name do not count. at maps tasks to their positions in views.
func (vi *Viewer) addActive(ctx context.Context, views []client.Task, read *taskRecords, at map[record.Ref]int) error {
	newest := map[int]record.RunKey{}

	parents := map[record.RunKey]bool{} // the parts of a run count as one run
	addParent := func(i int, parent record.RunKey) {
		if !parents[parent] {
			parents[parent] = true
			views[i].Active++
		}
	}

	for ref, i := range at {
		for _, run := range read.outcomes[i].UnderWay {
			addParent(i, record.RunKey{Ref: ref, Run: run})
		}
	}

	for _, k := range read.active {
		i := at[k.Ref]
		if !task.RunBelongs(k.Run, views[i].UID) {
			continue
		}

		if parent, _, ok := task.ParentOf(k.Run); ok {
			addParent(i, record.RunKey{Ref: k.Ref, Run: parent})
			continue
		}

		views[i].Active++
		if k.Run > newest[i].Run {
			newest[i] = k
		}
	}

	rights := httpapi.RightsOf(ctx)
	var of []int
	var wanted []record.RunKey
	for i, k := range newest {
		if !rights.CanReadRuns(k.Ref.Namespace) {
			continue
		}
		if views[i].LastRun == nil || k.Run > views[i].LastRun.ID {
			of, wanted = append(of, i), append(wanted, k)
		}
	}

	held, err := vi.Store.Attempts(ctx, wanted)
	if err != nil {
		return err
	}

	for n, h := range held {
		if h != nil {
			views[of[n]].LastRun = &h.Run
		}
	}

	return nil
}

// NextTick returns the next tick of an entry after now. ok is false if there is none; why then contains the
// reason if there will never be another one.
func NextTick(e *task.Entry, now time.Time) (next task.Time, ok bool, why string) {
	if !e.Ticks() {
		return next, false, ""
	}
	if RunsLeft(e, 1) == 0 {
		return next, false, fmt.Sprintf("max_runs: all %d have run", e.MaxRuns)
	}

	sched, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	if err != nil || sched.Manual() {
		return next, false, "" // the owner reports entries that it cannot parse
	}

	if e.From.After(now) {
		now = e.From.Time // ticks up to From are decided
	}

	if until, ends := e.Silence(); ends && until.After(now) {
		now = until.Time
	}

	tick, ok := sched.Next(now)
	switch {
	case ok:
	case !e.End.IsZero() && now.After(e.End.Time):
		why = "ended " + e.End.Format(time.RFC3339)
	default:
		why = "its last tick has passed"
	}

	return task.At(tick), ok, why
}

// FillLists replaces lists that are nil by empty ones, because the API returns [] and not null.
func FillLists(t task.Task) task.Task {
	if t.Schedule == nil {
		t.Schedule = task.Schedules{}
	}

	if t.Retry.On == nil {
		t.Retry.On = []task.State{}
	}

	return t
}

// RunsLeft returns how many ticks of an entry may still become runs, or otherwise if there is no limit.
func RunsLeft(e *task.Entry, otherwise int64) int64 {
	if e.MaxRuns == 0 {
		return otherwise
	}

	ran := int64(0)
	if e.Own != nil {
		ran = e.Own.Runs
	}

	return max(e.MaxRuns-ran, 0)
}

// RunInBrief returns a run as lists show it, without its individual parts and steps.
func RunInBrief(r task.Run) task.Run {
	if r.Fan != nil {
		f := *r.Fan
		f.Parts, f.Nodes, f.Left, f.Only, f.Checkpoints = nil, nil, nil, nil, nil
		if f.Flow != nil {
			flow := *f.Flow
			flow.Steps = []task.FlowStep{}
			f.Flow = &flow
		}
		r.Fan = &f
	}

	return r
}

// ReadableRun returns what the caller may read of a run: the end of its output only with the right to read output.
func ReadableRun(rights *httpapi.Rights, r task.Run) task.Run {
	if !rights.CanReadOutput(r.Namespace) {
		r.OutputTail = ""
	}

	return r
}

// Dependents returns the dependents in the links of a source.
func Dependents(links []store.Link) []client.Dependent {
	var list []client.Dependent
	for _, l := range links {
		list = append(list, client.Dependent{Task: l.Dependent, When: cmp.Or(l.When, task.WhenSucceeded)})
	}

	return list
}

// WaitingTriggers returns the triggers of a task that have no outcome yet, as users see them.
func WaitingTriggers(waiting []store.SourceTriggers) []client.WaitingTriggers {
	var list []client.WaitingTriggers
	for _, t := range waiting {
		list = append(list, client.WaitingTriggers(t))
	}

	return list
}

// PresentNodes returns the present nodes, with the number of shards that each owns, and the owners of all
// shards.
func PresentNodes(ctx context.Context, st *store.Store) ([]task.Node, []record.Owner, error) {
	nodes, owners, err := st.Fleet(ctx)
	if err != nil {
		return nil, nil, err
	}

	owned := map[string]int{}
	for _, o := range owners {
		owned[o.Node]++
	}

	for i := range nodes {
		n := &nodes[i]
		n.Shards = owned[n.Name]
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}

		if n.Roles == nil {
			n.Roles = []string{}
		}
	}

	return nodes, owners, nil
}

// PauseInForce returns the pause of an entry that is in force at a time. paused is false if there is none. The
// pause may be nil although paused is true, if earlier versions of Carillon recorded no details.
func PauseInForce(e *task.Entry, now time.Time) (*task.Pause, bool) {
	if !e.Paused {
		return nil, false
	}
	p := e.Pause()
	return p, p == nil || !p.Over(now)
}

// Settled returns a spec without a pause that has ended.
func Settled(s task.Spec, now time.Time) task.Spec {
	if s.Paused && !s.PausedUntil.IsZero() && now.After(s.PausedUntil.Time) {
		return Unpaused(s)
	}
	return s
}

// Unpaused returns a spec without a pause.
func Unpaused(s task.Spec) task.Spec {
	s.Paused, s.PausedUntil, s.PauseReason = false, task.Time{}, ""
	return s
}

// ShownAs returns a spec as users see it: with the pause in force, which the owner may have set, and without
// one that has ended.
func ShownAs(s task.Spec, e *task.Entry, now time.Time) task.Spec {
	p, paused := PauseInForce(e, now)
	switch {
	case !paused:
		return Unpaused(s)
	case p != nil:
		s.PausedUntil, s.PauseReason = p.Until, p.Reason
	}

	s.Paused = true
	return s
}

// maxRecentReads is how many tasks a recentReads remembers. What it remembers of a task takes some 200 bytes.
const maxRecentReads = 4096

// recentReads remembers where the recent runs of tasks began when they were last read, so that pages that are read again and
// again read only the end of each history. It may be out of date: see store.Runs.OutcomesAfter. The zero value is empty.
type recentReads struct {
	mu     sync.Mutex
	oldest map[recentRead]string
}

// recentRead is a reading of the newest runs of a task.
type recentRead struct {
	ref record.Ref
	n   int
}

// oldestOf returns for each task the oldest record of the last reading of its n newest runs; "" if it is not known.
func (r *recentReads) oldestOf(refs []record.Ref, n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()

	list := make([]string, len(refs))
	for i, ref := range refs {
		list[i] = r.oldest[recentRead{ref, n}]
	}

	return list
}

// keep remembers a reading of the n newest runs of tasks.
func (r *recentReads) keep(refs []record.Ref, n int, outcomes []store.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.oldest == nil || len(r.oldest)+len(refs) > maxRecentReads {
		r.oldest = map[recentRead]string{}
	}
	for i, ref := range refs {
		if outcomes[i].Oldest != "" {
			r.oldest[recentRead{ref, n}] = outcomes[i].Oldest
		}
	}
}
