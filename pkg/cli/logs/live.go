package logs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// MostListed is of how many tasks the latest runs are looked up, a call each.
	MostListed = 200
	// MaxStreams is how many runs are followed at once. Others wait: their output
	// is on their nodes.
	MaxStreams = 200
	// mostPending is how many runs may wait for that.
	mostPending = 2000
	// minKnownRuns is how many runs of a task are known at least: events tell of runs
	// that were looked up a moment before.
	minKnownRuns = 32
)

// followTasks follows the runs that are named to their end, and the tasks for ever.
func followTasks(ctx context.Context, f *factory.Factory, c *client.Client, n Tasks, o reading) error {
	l := &live{Merger: NewMerger(f, n.Refs()), c: c, o: o, tasks: map[selection.Ref]*liveTask{}, slots: make(chan struct{}, MaxStreams)}
	l.timestamps = o.timestamps
	l.parts = len(n.tasks) > 0 || slices.ContainsFunc(n.Runs, func(r task.Run) bool { return r.Fan != nil })
	ctx, l.cancel = context.WithCancelCause(ctx)
	defer l.tails.Wait()
	defer l.cancel(nil)

	for _, r := range n.tasks {
		l.tasks[r] = &liveTask{}
	}

	if len(n.tasks) > 0 {
		return l.followTasks(ctx, n)
	}

	errs := make([]error, len(n.Runs))
	var one sync.Mutex // parts of a run may fail at once

	for i, r := range n.Runs {
		l.startRun(ctx, &liveTask{}, r, func(err error) {
			one.Lock()
			defer one.Unlock()
			errs[i] = err
		})
	}

	l.tails.Wait()

	if err := context.Cause(ctx); err != nil {
		return err
	}

	return batch.ForEach(ctx, f, errs, func(err error) error { return err })
}

// live follows tasks: what events tell of their runs, and of each run its output. All
// but the tails is one goroutine's.
type live struct {
	*Merger
	c       *client.Client
	o       reading
	tasks   map[selection.Ref]*liveTask
	cancel  context.CancelCauseFunc
	tails   sync.WaitGroup
	slots   chan struct{}
	pending atomic.Int32 // tails
	dropped atomic.Bool  // that runs are not shown was told
}

// liveTask is what is known of a task's runs, the oldest first.
type liveTask struct{ runs []*liveRun }

type liveRun struct {
	id   string
	poke chan struct{}
	done chan struct{} // closed when all of it is shown
	over bool          // it has ended, as events tell
}

func (r *liveRun) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// followTasks lasts until ctx ends, or the server refuses.
func (l *live) followTasks(ctx context.Context, n Tasks) error {
	events, begun, ended := make(chan task.Event, 256), make(chan struct{}), make(chan error, 1)
	l.tails.Go(func() { ended <- l.readEvents(ctx, n.tasks, events, begun) })

	select {
	case <-begun: // what begins from now on is told: what began before is looked up
	case err := <-ended:
		return l.endReason(ctx, err)
	}

	if err := l.showBacklog(ctx, n); err != nil {
		return l.endReason(ctx, err)
	}

	for {
		select {
		case e := <-events:
			l.applyEvent(ctx, e)
		case err := <-ended:
			return l.endReason(ctx, err)
		}
	}
}

// endReason is why it ends: a tail's reason, if one ended it.
func (l *live) endReason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// readEvents reads the events of tasks until ctx ends, or the server refuses.
func (l *live) readEvents(ctx context.Context, tasks []selection.Ref, events chan<- task.Event, begun chan<- struct{}) error {
	o := client.EventOptions{Namespace: tasks[0].Namespace, Kinds: []string{task.EventRun}, Begun: func() { close(begun) }}
	if slices.ContainsFunc(tasks, func(r selection.Ref) bool { return r.Namespace != o.Namespace }) {
		o.Namespace = ""
	} else if len(tasks) == 1 {
		o.Task = tasks[0].Name
	}

	away := false
	o.Lost = func(err error) {
		switch {
		case err == nil:
			l.Tell("the server is back")
		case !away:
			l.Tell("waiting for the server: %s", err)
		}

		away = err != nil
	}

	for e, err := range l.c.Events.Follow(ctx, o) {
		if err != nil {
			return err
		}

		select {
		case events <- e:
		case <-ctx.Done():
		}
	}

	return ctx.Err()
}

// showBacklog shows what is there already.
func (l *live) showBacklog(ctx context.Context, n Tasks) error {
	runs, err := l.initialRuns(ctx, n)
	if err == nil {
		runs, _, err = replaceByParts(ctx, l.Merger.Factory, l.c, runs)
	}

	if err != nil {
		return err
	}

	slices.SortStableFunc(runs, func(x, y task.Run) int { return beginOf(x).Compare(beginOf(y)) })

	for _, r := range runs {
		t := l.tasks[selection.Ref{Namespace: r.Namespace, Name: r.Task}]
		if t == nil {
			t = &liveTask{} // one run of a task that is not followed
		}

		if !slices.ContainsFunc(t.runs, func(known *liveRun) bool { return known.id == r.ID }) {
			l.startRun(ctx, t, r, l.printFailure)
		}
	}

	return nil
}

// initialRuns is the runs to begin with.
func (l *live) initialRuns(ctx context.Context, n Tasks) ([]task.Run, error) {
	if len(n.tasks) > MostListed {
		l.Tell("following %d tasks: what runs now, and what starts from now on", len(n.tasks))
		return l.runningNow(ctx, n)
	}

	type found struct {
		runs []task.Run
		err  error
	}
	all := make([]found, len(n.tasks))
	var wg sync.WaitGroup
	few := make(chan struct{}, 8)

	for i, r := range n.tasks {
		few <- struct{}{}
		wg.Go(func() {
			all[i].runs, all[i].err = runsOf(ctx, l.Merger.Factory, l.c, r, &l.o)
			<-few
		})
	}

	wg.Wait()
	runs, i, failures := slices.Clone(n.Runs), -1, 0
	err := batch.ForEach(ctx, l.Factory, n.tasks, func(r selection.Ref) error {
		i++
		if len(all[i].runs) == 0 && all[i].err == nil && l.o.since.IsZero() && len(n.tasks) == 1 {
			l.Tell("%s has not run yet; waiting for its first run", selection.Show(l.Merger.Factory, r))
		}

		if runs = append(runs, all[i].runs...); all[i].err != nil {
			failures++
		}

		return all[i].err
	})

	if failures < len(n.tasks) && ctx.Err() == nil && !failure.IsUnreachable(err) {
		return runs, nil // what cannot be followed was told
	}

	return runs, err
}

// runningNow is what writes now: of runs with parts these alone, which one call lists
// for all tasks.
func (l *live) runningNow(ctx context.Context, n Tasks) ([]task.Run, error) {
	runs, err := l.c.Runs.List(ctx, client.RunListOptions{Namespace: l.Scope(), States: []task.State{task.Running, task.Paused}, Parts: true})
	if err != nil {
		return nil, err
	}

	runs = slices.DeleteFunc(runs, func(r task.Run) bool {
		return r.Fan != nil || l.tasks[selection.Ref{Namespace: r.Namespace, Name: r.Task}] == nil
	})

	return append(runs, n.Runs...), nil
}

// applyEvent does what an event asks for.
func (l *live) applyEvent(ctx context.Context, e task.Event) {
	if e.Kind == task.EventGap {
		l.Tell("some events were lost: runs may be missing here")
		return
	}

	t := l.tasks[selection.Ref{Namespace: e.Namespace, Name: e.Task}]
	if t == nil || e.Run == "" {
		return
	}

	final := task.State(e.State).Final() || e.Action == task.ActionDeleted

	for _, r := range t.runs {
		if r.id == e.Run {
			r.over = r.over || final
			select {
			case r.poke <- struct{}{}:
			default:
			}

			return
		}
	}

	onNode := e.Node != "" // a run with parts is on none: they are told of as well
	if onNode && (e.Action == task.ActionDispatched || e.Action == task.ActionStarted || e.Action == task.ActionEnded) {
		l.o.tail = 0 // that was for what had been there
		l.startRun(ctx, t, task.Run{Namespace: e.Namespace, Task: e.Task, ID: e.Run, State: task.State(e.State), Attempt: e.Attempt, Node: e.Node}, l.printFailure)
	}
}

// startRun follows a run. What the task's runs wrote that have ended comes first.
func (l *live) startRun(ctx context.Context, t *liveTask, r task.Run, failed func(error)) {
	if l.pending.Load() >= mostPending {
		if !l.dropped.Swap(true) {
			l.Tell("too many runs at once: some are not shown")
		}
		return
	}

	l.pending.Add(1)
	t.forgetShown()

	var before []*liveRun
	for _, known := range t.runs {
		if known.over {
			before = append(before, known)
		}
	}

	run := &liveRun{id: r.ID, poke: make(chan struct{}, 1), done: make(chan struct{}), over: r.State.Final()}
	t.runs = append(t.runs, run)

	f := &RunFollower{M: l.Merger, C: l.c, Run: r, lines: l.o.tail, First: l.o.attempt, only: l.o.attempt > 0}
	if len(l.tasks) > 0 {
		f.poke, f.stubborn = run.poke, true // events tell of parts as well
	} else {
		f.Part = func(p task.Run) { l.startRun(ctx, &liveTask{}, p, failed) }
	}

	l.tails.Go(func() {
		defer l.pending.Add(-1)
		defer close(run.done)

		for _, b := range before {
			select {
			case <-b.done:
			case <-ctx.Done():
			}
		}

		select {
		case l.slots <- struct{}{}:
			defer func() { <-l.slots }()
		case <-ctx.Done():
			return
		}

		f.Out = l.Output(r)
		_, err := f.Follow(ctx)
		switch {
		case err == nil:
			f.printEnd()
		case ctx.Err() != nil:
		case l.writeError() != nil:
			l.cancel(l.writeError())
		default:
			failed(err)
		}
	})
}

// printFailure tells that a run cannot be followed, while others are.
func (l *live) printFailure(err error) {
	if errors.Is(err, task.ErrNotFound) {
		return // it is gone, with its task
	}
	l.Tell("%s", fmt.Sprint(err))
}

// forgetShown drops runs that are shown, but for the latest.
func (t *liveTask) forgetShown() {
	for i := 0; len(t.runs) > minKnownRuns && i < len(t.runs); {
		if t.runs[i].over && t.runs[i].isDone() {
			t.runs = slices.Delete(t.runs, i, i+1)
			continue
		}
		i++
	}
}
