package background

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// fakeStore holds the histories and dead runs of the tasks of a shard.
type fakePasts struct {
	dead      []store.ShardEvent
	histories map[string][]store.ShardEvent // by namespace/name
	byKey     map[string]store.ShardEvent
	failing   int // how many more calls fail
	read      int // how many records were read
}

const listedAt = 99

func newFakePasts() *fakePasts {
	return &fakePasts{histories: map[string][]store.ShardEvent{}, byKey: map[string]store.ShardEvent{}}
}

// add adds a run of a task that ended at revision mod, and with dead also a dead run of it.
func (f *fakePasts) add(name, uid string, mod int64, state task.State, dead bool) {
	ref := record.Ref{Namespace: "default", Name: name}
	at := task.At(time.UnixMilli(1_700_000_000_000 + mod*1000))
	run := task.Run{ID: task.RunID(at.Time, uid), State: state, StartedAt: at, EndedAt: at}
	ev := store.ShardEvent{
		ShardKey: record.ShardKey{Kind: record.KindEnded, Ref: ref, Run: run.ID}, Task: ref.String(), Mod: mod, Create: mod,
		Key: fmt.Sprint("history/", name, "/", mod), Value: record.EncodeEnded(run),
	}
	f.histories[ev.Task] = append(f.histories[ev.Task], ev)
	f.byKey[ev.Key] = ev

	if dead {
		ev.Kind, ev.Key, ev.Value = record.KindDead, fmt.Sprint("dead/", name, "/", mod), record.EncodeWaiting(task.Waiting{Run: run})
		f.byKey[ev.Key] = ev
		ev.Value = nil
		f.dead = append(f.dead, ev)
	}
}

// writeAgain writes the record of a run that ended at revision create again, as it is.
func (f *fakePasts) writeAgain(name string, create, mod int64) {
	history := f.histories["default/"+name]
	i := slices.IndexFunc(history, func(ev store.ShardEvent) bool { return ev.Create == create })
	history[i].Mod = mod
	f.byKey[history[i].Key] = history[i]
}

// dismiss dismisses a dead run after it was listed.
func (f *fakePasts) dismiss(name string, mod int64) {
	key := fmt.Sprint("dead/", name, "/", mod)
	f.byKey[key] = store.ShardEvent{Key: key, Deleted: true}
}

func (f *fakePasts) fails() error {
	if f.failing == 0 {
		return nil
	}
	f.failing--

	return errors.New("unavailable")
}

// DeadKeys returns pages of two keys.
func (f *fakePasts) DeadKeys(_ context.Context, _ int, after string) (events []store.ShardEvent, next string, rev int64, err error) {
	from := 0
	_, _ = fmt.Sscan(after, &from)
	to := min(from+2, len(f.dead))
	if to < len(f.dead) {
		next = fmt.Sprint(to)
	}

	return f.dead[from:to], next, listedAt, f.fails()
}

func (f *fakePasts) HistoriesOf(_ context.Context, refs []record.Ref) (keys [][]store.ShardEvent, rev int64, err error) {
	if len(refs) > store.HistoriesAtOnce {
		return nil, 0, fmt.Errorf("%d histories at once", len(refs))
	}

	for _, ref := range refs {
		list := slices.Clone(f.histories[ref.String()])
		for i := range list {
			list[i].Value = nil
		}
		keys = append(keys, list)
	}

	return keys, listedAt, f.fails()
}

func (f *fakePasts) RecordsAt(_ context.Context, keys []string, rev int64) (events []store.ShardEvent, err error) {
	if rev != listedAt {
		return nil, fmt.Errorf("read at revision %d", rev)
	}

	for _, key := range keys {
		events = append(events, f.byKey[key])
	}
	f.read += len(keys)

	return events, f.fails()
}

// receiver is a worker that asks for the past of tasks.
type receiver struct {
	wanted []WantedPast
	gone   atomic.Bool
	found  map[string]string
	parts  []int
	ended  bool
	last   atomic.Bool // the same as ended, for a test that does not wait for the reader
}

func (r *receiver) request() PastRequest {
	r.found = map[string]string{}

	return PastRequest{
		Shard: 1, Current: func() bool { return !r.gone.Load() },
		Wanted: func(context.Context) ([]WantedPast, bool) { return slices.Clone(r.wanted), !r.gone.Load() },
		Deliver: func(_ context.Context, some []Past, more bool) bool {
			for _, p := range some {
				var dead []string
				for _, ev := range p.Dead {
					dead = append(dead, fmt.Sprint(ev.Mod))
					if d, err := record.DecodeWaiting(ev.ShardKey, ev.Value); err == nil {
						dead = append(dead, string(d.State))
					}
				}
				r.found[p.Want.Task] = fmt.Sprintf("%s at %d, success at %d, %d failures, dead %v", p.Last.State, p.Last.Create, p.Success.Create, p.Failures, dead)
				if p.Revision != listedAt {
					r.found[p.Want.Task] = fmt.Sprintf("read at %d", p.Revision)
				}
			}
			r.parts, r.ended = append(r.parts, len(some)), !more
			r.last.Store(!more)

			return !r.gone.Load()
		},
	}
}

func TestReader_FindsTheLastEndAndTheLastSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakePasts()
		s.add("ok", "uid0", 3, task.Failed, true)
		s.add("ok", "uid0", 5, task.Succeeded, false)
		s.add("ok", "uid0", 6, task.Skipped, false)
		s.add("fails", "uid0", 10, task.Failed, true)
		s.add("fails", "uid0", 11, task.Succeeded, false)
		s.add("fails", "uid0", 14, task.TimedOut, true)
		s.add("fails", "uid0", 13, task.Lost, true) // of a later tick, but it ended before
		s.add("fails", "uid0", 15, task.Missed, false)
		s.add("fails", "uid0", 16, task.Cancelled, false)
		s.add("never", "uid0", 20, task.Failed, true)
		s.add("again", "uid1", 30, task.Failed, true) // of a former task of this name
		s.add("again", "uid0", 31, task.Succeeded, false)
		s.add("again", "uid1", 32, task.Failed, true)
		s.add("dismissed", "uid0", 40, task.Failed, true)
		s.add("dismissed", "uid0", 41, task.TimedOut, true)
		s.dismiss("dismissed", 41)
		s.add("forgiven", "uid0", 50, task.Failed, true)
		s.dismiss("forgiven", 50)
		s.add("rewritten", "uid0", 60, task.Succeeded, false)
		s.add("rewritten", "uid0", 61, task.Failed, true)
		s.writeAgain("rewritten", 60, 62)
		for mod := range int64(2 * maxPastRecords) {
			s.add("long", "uid0", 1000+mod, task.Failed, false)
		}

		// A success is found behind any number of ticks that did not run, if it is after a dead run.
		const skipped = 3 * maxPastRecords
		s.add("idle", "uid0", 5000, task.Failed, true)
		s.add("idle", "uid0", 5001, task.Succeeded, false)
		for mod := range int64(skipped) {
			s.add("idle", "uid0", 5002+mod, task.Skipped, false)
		}

		w := &receiver{}
		for _, name := range []string{"ok", "never", "fails", "again", "dismissed", "forgiven", "none", "long", "idle", "rewritten"} {
			w.wanted = append(w.wanted, WantedPast{Task: "default/" + name, UID: "uid0"})
		}

		r := NewPastReader(s, DefaultPastRate, func() bool { return false }, zap.NewNop())
		go r.Run(t.Context())
		r.Request(w.request())
		time.Sleep(time.Minute)
		synctest.Wait()

		for name, want := range map[string]string{
			"ok":        "succeeded at 5, success at 5, 0 failures, dead []",
			"fails":     "cancelled at 16, success at 11, 2 failures, dead [13 lost 14 timed_out]",
			"never":     "failed at 20, success at 0, 1 failures, dead [20 failed]",
			"again":     "succeeded at 31, success at 31, 0 failures, dead []",
			"dismissed": "timed_out at 41, success at 0, 2 failures, dead [40 failed]",
			"forgiven":  "failed at 50, success at 0, 1 failures, dead []",
			"none":      " at 0, success at 0, 0 failures, dead []",
			"long":      fmt.Sprintf("failed at %d, success at 0, %d failures, dead []", 1000+2*maxPastRecords-1, maxPastRecords),
			"idle":      "succeeded at 5001, success at 5001, 0 failures, dead []",
			"rewritten": "failed at 61, success at 60, 1 failures, dead [61 failed]",
		} {
			if got := w.found["default/"+name]; got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}

		if !w.ended || s.read > maxPastRecords+22+skipped+1 {
			t.Errorf("it ended: %t, %d records were read", w.ended, s.read)
		}
	})
}

// A Reader keeps to its rate, waits while the node is overdue, and tries again when etcd is unavailable.
func TestReader_DisturbsNobodyAndGivesUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tasks = 10_000
		s := newFakePasts()
		w := &receiver{}
		for i := range tasks {
			name := fmt.Sprintf("t%05d", i)
			s.add(name, "uid0", int64(i+1), task.Succeeded, false)
			w.wanted = append(w.wanted, WantedPast{Task: "default/" + name, UID: "uid0"})
		}

		var overdue atomic.Bool
		overdue.Store(true)
		s.failing = 3
		began := time.Now()
		r := NewPastReader(s, DefaultPastRate, overdue.Load, zap.NewNop())
		go r.Run(t.Context())
		r.Request(w.request())

		time.Sleep(10 * time.Second)
		synctest.Wait()

		if len(w.parts) > 0 || s.failing < 3 {
			t.Fatal("it reads although the node is overdue")
		}

		overdue.Store(false)
		for !w.last.Load() {
			time.Sleep(10 * time.Millisecond)
		}

		if took := time.Since(began) - 10*time.Second; len(w.found) != tasks || took < tasks/DefaultPastRate*time.Second || took > tasks/DefaultPastRate*time.Second+5*time.Second {
			t.Errorf("%d tasks in %s", len(w.found), took)
		}
	})
}

// A worker that has opened the shard again makes a request of its own.
func TestReader_EndsWhenNobodyWantsTheResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakePasts()
		w, next := &receiver{}, &receiver{}
		for i := range 100 {
			w.wanted = append(w.wanted, WantedPast{Task: fmt.Sprintf("default/t%05d", i), UID: "uid0"})
		}

		r := NewPastReader(s, DefaultPastRate, func() bool { w.gone.Store(len(w.parts) == 2); return false }, zap.NewNop())
		go r.Run(t.Context())
		r.Request(w.request())
		r.Request(next.request())
		time.Sleep(time.Minute)
		synctest.Wait()

		if len(w.parts) > 3 || w.ended || !next.ended {
			t.Errorf("%d parts; it ended: %t, the next one: %t", len(w.parts), w.ended, next.ended)
		}
	})
}

// Tasks with alerts are read before the others of their shard.
func TestReader_ReadsWatchedTasksFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &receiver{}
		for i := range 100 {
			w.wanted = append(w.wanted, WantedPast{Task: fmt.Sprintf("default/t%05d", i), UID: "uid0", IsWatched: i%3 == 2})
		}

		request := w.request()
		var order []bool
		request.Deliver = func(_ context.Context, some []Past, _ bool) bool {
			for _, p := range some {
				order = append(order, p.Want.IsWatched)
			}
			return true
		}

		r := NewPastReader(newFakePasts(), DefaultPastRate, func() bool { return false }, zap.NewNop())
		go r.Run(t.Context())
		r.Request(request)
		time.Sleep(time.Minute)
		synctest.Wait()

		want := append(slices.Repeat([]bool{true}, 33), slices.Repeat([]bool{false}, 67)...)
		if !slices.Equal(order, want) {
			t.Errorf("watched tasks are read as %v", order)
		}
	})
}

// A dead run of a workflow that was cancelled is no failure, however many there are.
func TestReader_LeavesOutCancelledDeadRunsOfWorkflows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakePasts()
		s.add("flow", "uid0", 3, task.Failed, true)
		for mod := range int64(2 * MaxPastDead) {
			s.add("flow", "uid0", 10+mod, task.Cancelled, true)
		}

		w := &receiver{wanted: []WantedPast{{Task: "default/flow", UID: "uid0", ReadsDead: true}}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := NewPastReader(s, DefaultPastRate, func() bool { return false }, zap.NewNop())
		go func() { _ = r.Run(ctx) }()
		r.Request(w.request())
		synctest.Wait()

		if got, want := w.found["default/flow"], "cancelled at 25, success at 0, 1 failures, dead [3 failed]"; got != want {
			t.Errorf("%s; want %s", got, want)
		}
	})
}
