package logs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

const (
	// MostListed is the maximum number of tasks whose latest runs are looked up, with one call for each.
	MostListed = 200
	// MaxStreams is the maximum number of runs that are followed at the same time. Others wait; nothing is lost,
	// because their output is on their nodes. A node lets a subject follow 64 outputs, and this leaves some for others
	// of the same subject.
	MaxStreams = 48
	// maxPending is the maximum number of runs that wait.
	maxPending = 2000
	// minKnownRuns is the minimum number of runs of a task that are remembered. Events may arrive for runs that
	// were already found in a list.
	minKnownRuns = 32
)

// followTasks follows the named runs to their ends, and the named tasks without end.
func followTasks(ctx context.Context, f *factory.Factory, c *client.Client, n Tasks, o logFlags) error {
	l := &taskFollower{Merger: NewMerger(f, n.Refs()), c: c, o: o, tasks: map[selection.Ref]*followedTask{}, slots: make(chan struct{}, MaxStreams)}
	l.timestamps = o.timestamps
	l.parts = len(n.tasks) > 0 || n.step != "" && len(n.Runs) > 1 || slices.ContainsFunc(n.Runs, func(r task.Run) bool { return r.Fan != nil })
	ctx, l.cancel = context.WithCancelCause(ctx)
	defer l.tails.Wait()
	defer l.cancel(nil)

	for _, r := range n.tasks {
		l.tasks[r] = &followedTask{}
	}

	if len(n.tasks) > 0 {
		return l.followTasks(ctx, n)
	}

	errs := make([]error, len(n.Runs))
	var one sync.Mutex // protects errs: parts of a run may fail at the same time

	for i, r := range n.Runs {
		l.startRun(ctx, &followedTask{}, r, func(err error) {
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

// taskFollower follows tasks: events announce their runs, and each run has a follower. One goroutine owns all fields,
// except for those that the followers use.
type taskFollower struct {
	*Merger
	c       *client.Client
	o       logFlags
	tasks   map[selection.Ref]*followedTask
	cancel  context.CancelCauseFunc
	tails   sync.WaitGroup
	slots   chan struct{}
	pending atomic.Int32 // the number of followers, including those that wait
	dropped atomic.Bool  // a message has reported that runs are not shown
}

// followedTask contains the known runs of a task, the oldest first.
type followedTask struct{ runs []*followedRun }

// followedRun is a run that is followed.
type followedRun struct {
	id   string
	poke wake.Signal
	done chan struct{} // closed when all of its output has been printed
	over bool          // an event has reported its end
}

// isDone reports whether all of the run's output has been printed.
func (r *followedRun) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// followTasks follows tasks until ctx ends or the server refuses the request.
func (tf *taskFollower) followTasks(ctx context.Context, n Tasks) error {
	events, begun, ended := make(chan task.Event, 256), make(chan struct{}), make(chan error, 1)
	tf.tails.Go(func() { ended <- tf.readEvents(ctx, n.tasks, events, begun) })

	select {
	case <-begun: // runs that begin from now on are reported by events; earlier ones are looked up
	case err := <-ended:
		return tf.endReason(ctx, err)
	}

	if err := tf.showBacklog(ctx, n); err != nil {
		return tf.endReason(ctx, err)
	}

	for {
		select {
		case e := <-events:
			tf.applyEvent(ctx, e)
		case err := <-ended:
			return tf.endReason(ctx, err)
		}
	}
}

// endReason returns the reason of the end. The error of a follower takes precedence.
func (tf *taskFollower) endReason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// readEvents reads the events of tasks until ctx ends or the server refuses the request.
func (tf *taskFollower) readEvents(ctx context.Context, tasks []selection.Ref, events chan<- task.Event, begun chan<- struct{}) error {
	// One stream covers all tasks. It is limited to their namespace, or to the task if there is only one.
	o := client.EventOptions{Namespace: tasks[0].Namespace, Kinds: []string{task.EventRun}, Begun: func() { close(begun) }}
	if slices.ContainsFunc(tasks, func(r selection.Ref) bool { return r.Namespace != o.Namespace }) {
		o.Namespace = ""
	} else if len(tasks) == 1 {
		o.Task = tasks[0].Name
	}

	// Each outage is reported once.
	away := false
	o.Lost = func(err error) {
		switch {
		case err == nil:
			tf.Tell("the server is back")
		case !away:
			tf.Tell("waiting for the server: %s", err)
		}

		away = err != nil
	}

	for e, err := range tf.c.Events.Follow(ctx, o) {
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

// showBacklog starts followers for the runs that exist already.
func (tf *taskFollower) showBacklog(ctx context.Context, n Tasks) error {
	runs, err := tf.initialRuns(ctx, n)
	if err == nil {
		runs, _, err = replaceByParts(ctx, tf.Merger.Factory, tf.c, runs)
	}

	if err != nil {
		return err
	}

	slices.SortStableFunc(runs, func(x, y task.Run) int { return beginOf(x).Compare(beginOf(y)) })

	for _, r := range runs {
		t := tf.tasks[selection.Ref{Namespace: r.Namespace, Name: r.Task}]
		if t == nil {
			t = &followedTask{} // a single run whose task is not followed
		}

		if !slices.ContainsFunc(t.runs, func(known *followedRun) bool { return known.id == r.ID }) {
			tf.startRun(ctx, t, r, tf.printFailure)
		}
	}

	return nil
}

// initialRuns returns the runs with which to begin.
func (tf *taskFollower) initialRuns(ctx context.Context, n Tasks) ([]task.Run, error) {
	if len(n.tasks) > MostListed {
		tf.Tell("following %d tasks: active runs, and runs that start from now on", len(n.tasks))
		return tf.runningNow(ctx, n)
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
			all[i].runs, all[i].err = runsOf(ctx, tf.Merger.Factory, tf.c, r, &tf.o)
			<-few
		})
	}

	wg.Wait()
	runs, i, failures := slices.Clone(n.Runs), -1, 0
	err := batch.ForEach(ctx, tf.Factory, n.tasks, func(r selection.Ref) error {
		i++
		if len(all[i].runs) == 0 && all[i].err == nil && tf.o.since.IsZero() && len(n.tasks) == 1 {
			tf.Tell("%s has not run yet; waiting for its first run", selection.Show(tf.Merger.Factory, r))
		}

		if runs = append(runs, all[i].runs...); all[i].err != nil {
			failures++
		}

		return all[i].err
	})

	if failures < len(n.tasks) && ctx.Err() == nil && !failure.IsUnreachable(err) {
		return runs, nil // the errors of the others have been printed
	}

	return runs, err
}

// runningNow returns the runs that are active now. For runs with parts it returns only the parts, because one
// call lists them for all tasks.
func (tf *taskFollower) runningNow(ctx context.Context, n Tasks) ([]task.Run, error) {
	runs, err := tf.c.Runs.List(ctx, client.RunListOptions{Namespace: tf.Scope(), States: []task.State{task.Running, task.Paused}, Parts: true})
	if err != nil {
		return nil, err
	}

	runs = slices.DeleteFunc(runs, func(r task.Run) bool {
		return r.Fan != nil || tf.tasks[selection.Ref{Namespace: r.Namespace, Name: r.Task}] == nil
	})

	return append(runs, n.Runs...), nil
}

// applyEvent starts or wakes the follower of the run in an event.
func (tf *taskFollower) applyEvent(ctx context.Context, e task.Event) {
	if e.Kind == task.EventGap {
		tf.Tell("some events were lost; some runs may not be shown")
		return
	}

	t := tf.tasks[selection.Ref{Namespace: e.Namespace, Name: e.Task}]
	if t == nil || e.Run == "" {
		return
	}

	final := task.State(e.State).Final() || e.Action == task.ActionDeleted

	for _, r := range t.runs {
		if r.id == e.Run {
			r.over = r.over || final
			r.poke.Send()

			return
		}
	}

	onNode := e.Node != "" // a run with parts is on no node; its parts have events of their own
	if onNode && (e.Action == task.ActionDispatched || e.Action == task.ActionStarted || e.Action == task.ActionEnded) {
		tf.o.tail = 0 // --tail applies only to output that existed before
		tf.startRun(ctx, t, task.Run{Namespace: e.Namespace, Task: e.Task, ID: e.Run, State: task.State(e.State), Attempt: e.Attempt, Node: e.Node}, tf.printFailure)
	}
}

// startRun starts a follower of a run. It waits until the output of the task's ended runs has been printed.
func (tf *taskFollower) startRun(ctx context.Context, t *followedTask, r task.Run, failed func(error)) {
	if tf.pending.Load() >= maxPending {
		if !tf.dropped.Swap(true) {
			tf.Tell("too many runs at the same time; some are not shown")
		}
		return
	}

	tf.pending.Add(1)
	t.forgetShown()

	var before []*followedRun
	for _, known := range t.runs {
		if known.over {
			before = append(before, known)
		}
	}

	run := &followedRun{id: r.ID, poke: wake.NewSignal(), done: make(chan struct{}), over: r.State.Final()}
	t.runs = append(t.runs, run)

	f := &RunFollower{M: tf.Merger, C: tf.c, Run: r, lines: tf.o.tail, First: tf.o.attempt, only: tf.o.attempt > 0}
	if len(tf.tasks) > 0 {
		f.poke, f.keepTrying = run.poke, true // events also announce parts
	} else {
		f.Part = func(p task.Run) { tf.startRun(ctx, &followedTask{}, p, failed) }
	}

	tf.tails.Go(func() {
		defer tf.pending.Add(-1)
		defer close(run.done)

		for _, b := range before {
			select {
			case <-b.done:
			case <-ctx.Done():
			}
		}

		select {
		case tf.slots <- struct{}{}:
			defer func() { <-tf.slots }()
		case <-ctx.Done():
			return
		}

		f.Out = tf.Output(r)
		_, err := f.Follow(ctx)
		switch {
		case err == nil:
			f.printEnd()
		case ctx.Err() != nil:
		case tf.writeError() != nil:
			tf.cancel(tf.writeError())
		default:
			failed(err)
		}
	})
}

// printFailure prints an error that concerns only one of several runs.
func (tf *taskFollower) printFailure(err error) {
	if errors.Is(err, task.ErrNotFound) {
		return // the run was deleted with its task
	}
	tf.Tell("%s", fmt.Sprint(err))
}

// forgetShown removes runs whose output has been printed, except for the latest ones.
func (t *followedTask) forgetShown() {
	for i := 0; len(t.runs) > minKnownRuns && i < len(t.runs); {
		if t.runs[i].over && t.runs[i].isDone() {
			t.runs = slices.Delete(t.runs, i, i+1)
			continue
		}
		i++
	}
}

const (
	// progressEvery is how often the progress of runs is polled, and progressMost the maximum number of runs for
	// which it is.
	progressEvery = 2 * time.Second
	progressMost  = 20
)

// TellProgress prints the progress of runs until ctx ends: a line whenever it has changed.
func TellProgress(ctx context.Context, f *factory.Factory, c *client.Client, m *Merger, runs []task.Run) {
	if !f.ForPeople() || f.Quiet || len(runs) > progressMost {
		return
	}

	told := make([]string, len(runs))
	over := make([]bool, len(runs))
	for factory.Sleep(ctx, progressEvery) == nil {
		for i, r := range runs {
			if over[i] {
				continue
			}

			now, err := c.Runs.Get(ctx, r.Namespace, r.Task, r.ID)
			if err != nil {
				continue // the follower of the output reports errors
			}

			over[i] = now.State.Final()

			if now.Progress == nil || now.Progress.Percent == nil {
				continue
			}

			if words := view.ProgressText(f, now); words != told[i] {
				told[i] = words
				m.Tell("%s: %s", selection.Name(f, r.Namespace, r.Task), view.ProgressBar(f, now))
			}
		}
	}
}
