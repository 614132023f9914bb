package api

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// view shows a task as it was just read or written.
func (s *server) view(ctx context.Context, st store.Stored) (client.Task, error) {
	var entry *task.Entry
	if st.EntryMod != 0 {
		entry = &st.Entry
	}
	views, err := s.views(ctx, []task.Task{st.Task}, []*task.Entry{entry})
	if err != nil {
		return client.Task{}, err
	}
	return views[0], nil
}

// views shows tasks: when each is due next, by its entry, and how its runs fare.
func (s *server) views(ctx context.Context, tasks []task.Task, entries []*task.Entry) ([]client.Task, error) {
	refs := make([]store.Ref, len(tasks))
	at := make(map[store.Ref]int, len(tasks))
	for i, t := range tasks {
		refs[i] = s.Ref(t.Namespace, t.Name)
		at[refs[i]] = i
	}
	last, err := s.Store.LastEnded(ctx, refs)
	if err != nil {
		return nil, err
	}
	now := s.now()
	views := make([]client.Task, len(tasks))
	for i, t := range tasks {
		views[i] = client.Task{Task: tidy(t), LastRun: last[i]}
		if next, ok := nextTick(entries[i], now.Time); ok {
			views[i].Next, views[i].LeftMS = next, next.Sub(now.Time).Milliseconds()
		}
	}
	return views, s.addActive(ctx, views, at)
}

// addActive counts the active runs of tasks, and shows the newest where it is
// newer than the last that ended.
func (s *server) addActive(ctx context.Context, views []client.Task, at map[store.Ref]int) error {
	keys, _, err := s.Store.ScanActive(ctx)
	if err != nil {
		return err
	}
	newest := map[int]store.RunKey{}
	for _, k := range keys {
		i, ok := at[k.Ref]
		if !ok {
			continue
		}
		views[i].Active++
		if k.Run > newest[i].Run {
			newest[i] = k.RunKey
		}
	}
	var of []int
	var wanted []store.RunKey
	for i, k := range newest {
		if views[i].LastRun == nil || k.Run > views[i].LastRun.ID {
			of, wanted = append(of, i), append(wanted, k)
		}
	}
	held, err := s.Store.Attempts(ctx, wanted)
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

// nextTick is the next tick of an entry after now; false if it has none.
func nextTick(e *task.Entry, now time.Time) (task.Time, bool) {
	if e == nil || e.Paused {
		return task.Time{}, false
	}
	sched, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	if err != nil {
		return task.Time{}, false // the owner raises the alarm
	}
	if e.From.After(now) {
		now = e.From.Time // ticks up to there are decided
	}
	next, ok := sched.Next(now)
	return task.At(next), ok
}

// tidy gives a task that was read with fields missing its empty lists.
func tidy(t task.Task) task.Task {
	if t.Schedule == nil {
		t.Schedule = task.Schedules{}
	}
	if t.Retry.On == nil {
		t.Retry.On = []task.State{}
	}
	return t
}

// answerTask answers with a task as it was just read or written.
func (c *call) answerTask(status int, st store.Stored, result string) (answer, error) {
	v, err := c.s.view(c.ctx(), st)
	if err != nil && c.route.writes {
		// It is written: what adorns it must not make it look undone.
		v, err = client.Task{Task: tidy(st.Task)}, nil
	}
	v.Result = result
	return answer{status: status, body: v, header: map[string][]string{"Etag": {etag(st.Task.Revision)}}}, err
}
