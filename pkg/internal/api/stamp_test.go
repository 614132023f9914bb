package api_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// stampedEdits are edits of the task "a" that write the time from which they count. stamp returns this time.
var stampedEdits = map[string]struct {
	prepare, edit func(w *world) error
	stamp         func(c client.Task, e task.Entry) task.Time
}{
	"schedule":   {edit: patchOf(`{"schedule": "*/5 * * * * *"}`), stamp: fromOf},
	"time zone":  {edit: patchOf(`{"timezone": "Asia/Kolkata"}`), stamp: fromOf},
	"start":      {edit: patchOf(`{"start": "2026-01-01T00:00:00Z"}`), stamp: fromOf},
	"end":        {edit: patchOf(`{"end": "2031-01-01T00:00:00Z"}`), stamp: fromOf},
	"no ticks":   {edit: patchOf(`{"schedule": "@manual"}`), stamp: fromOf},
	"new ticks":  {prepare: patchOf(`{"schedule": "@manual"}`), edit: patchOf(`{"schedule": "*/10 * * * * *"}`), stamp: fromOf},
	"jitter":     {edit: patchOf(`{"jitter": "2s"}`), stamp: fromOf},
	"pause":      {edit: pauseOf(client.PauseRequest{}), stamp: pausedSince},
	"pause for":  {edit: pauseOf(client.PauseRequest{For: task.Duration(time.Hour)}), stamp: pausedSince},
	"pause anew": {prepare: pauseOf(client.PauseRequest{}), edit: pauseOf(client.PauseRequest{Reason: "load"}), stamp: pausedSince},
	"resume":     {prepare: pauseOf(client.PauseRequest{}), edit: resume, stamp: fromOf},
	"apply": {edit: func(w *world) error {
		_, err := w.Tasks.Apply(w.t.Context(), spec("a", "*/5 * * * * *"), client.ApplyOptions{})
		return err
	}, stamp: fromOf},
	"rollback": {prepare: patchOf(`{"schedule": "*/5 * * * * *"}`), edit: func(w *world) error {
		_, err := w.Tasks.Rollback(w.t.Context(), "default", "a", client.RollbackRequest{}, 0)
		return err
	}, stamp: fromOf},
	"batch": {edit: func(w *world) error {
		if r := w.batch("", `{"name": "a", "schedule": "*/5 * * * * *", "action": {"noop": {}}}`); r[0].Error != nil {
			return fmt.Errorf("%w: %s", task.ErrConflict, r[0].Error.Code)
		}
		return nil
	}, stamp: fromOf},
}

func patchOf(body string) func(*world) error {
	return func(w *world) error {
		_, err := w.Tasks.Patch(w.t.Context(), "default", "a", []byte(body), 0)
		return err
	}
}

func pauseOf(p client.PauseRequest) func(*world) error {
	return func(w *world) error {
		_, err := w.Tasks.PauseWith(w.t.Context(), "default", "a", p, 0)
		return err
	}
}

func resume(w *world) error {
	_, err := w.Tasks.Resume(w.t.Context(), "default", "a", 0)
	return err
}

func fromOf(_ client.Task, e task.Entry) task.Time { return e.From }

func pausedSince(_ client.Task, e task.Entry) task.Time {
	return e.Own.Pauses[len(e.Own.Pauses)-1].Since
}

// stampedWorld has the task "a" with a tick each ten seconds, one second before its next tick.
func stampedWorld(t *testing.T, prepare func(*world) error) (w *world, tick time.Time) {
	t.Helper()
	w = newWorld(t)
	w.create("a", "*/10 * * * * *")
	tick = w.clock.now().Truncate(10 * time.Second).Add(20 * time.Second)
	w.clock.advance(tick.Add(-time.Second).Sub(w.clock.now()))

	if prepare != nil {
		must(t, prepare(w))
		w.clock.advance(time.Millisecond)
	}

	return w, tick
}

// replaces reports whether a transaction replaces a task, and whether it compares the watermark of its shard.
func (w *world) replaces(txn kv.Txn, name string) (replaces, compares bool) {
	keys, r := w.store.Keys(), ref("default", name)
	for _, c := range txn.If {
		replaces = replaces || string(c.KeyBytes()) == keys.Spec(r) && c.GetCompare().GetModRevision() > 0
		compares = compares || string(c.KeyBytes()) == keys.Watermark(r.Shard)
	}

	return replaces, compares
}

// If the owner decides a tick while an edit is on its way to etcd, the edit counts from a later time.
//
// Verifies: G31
func TestUpdate_CountsFromAfterTheTicksThatAreDecided(t *testing.T) {
	for _, clockIsBehind := range []bool{false, true} {
		for name, c := range stampedEdits {
			// A batch does not read watermarks, so that it counts only on clocks.
			if name == "batch" && clockIsBehind {
				continue
			}

			t.Run(fmt.Sprintf("%s, clock is behind: %t", name, clockIsBehind), func(t *testing.T) {
				w, tick := stampedWorld(t, c.prepare)
				decided := tick.Add(time.Second)
				writes := 0
				w.writes.set(func(txn kv.Txn) {
					if edits, _ := w.replaces(txn, "a"); !edits {
						return
					}
					if writes++; writes > 1 {
						return
					}

					if !clockIsBehind {
						w.clock.advance(decided.Sub(w.clock.now()))
					}
					w.mark("a", decided)
				}, nil)

				must(t, c.edit(w))

				v, e := w.get("a"), w.entry(ref("default", "a"))
				if stamp := c.stamp(v, e); stamp.Before(tick) || v.UpdatedAt.Before(tick) {
					t.Errorf("it counts from %v, as of %v; the tick of %v was decided before", stamp, v.UpdatedAt, tick)
				}
				if writes != 2 {
					t.Errorf("written %d times, want 2", writes)
				}
			})
		}
	}
}

// Ticks of other tasks move the watermark, too. They do not disturb an edit.
func TestUpdate_IsNotDisturbedByTicksOfOtherTasks(t *testing.T) {
	for name, c := range stampedEdits {
		t.Run(name, func(t *testing.T) {
			w, tick := stampedWorld(t, c.prepare)
			now, writes := w.clock.now(), 0
			w.writes.set(func(txn kv.Txn) {
				if edits, _ := w.replaces(txn, "a"); edits {
					writes++
				}
				w.mark("a", tick.Add(-time.Millisecond))
			}, nil)

			must(t, c.edit(w))

			if v, e := w.get("a"), w.entry(ref("default", "a")); writes != 1 || !c.stamp(v, e).Equal(task.At(now).Time) {
				t.Errorf("written %d times, counts from %v; now is %v", writes, c.stamp(v, e), now)
			}
		})
	}
}

// A task whose ticks are faster than etcd can still be changed. Only with jitter, where the comparison keeps ticks from
// being decided twice, the edit fails.
func TestUpdate_OfATaskWithTicksFasterThanEtcd(t *testing.T) {
	for name, c := range stampedEdits {
		t.Run(name, func(t *testing.T) {
			w, _ := stampedWorld(t, c.prepare)
			var compared []bool
			w.writes.set(func(txn kv.Txn) {
				if edits, compares := w.replaces(txn, "a"); edits {
					compared = append(compared, compares)
				}
				w.clock.advance(11 * time.Second)
				w.mark("a", w.clock.now())
			}, nil)

			want := []bool{true, true, false}
			if name == "batch" { // as a group first, and then as single tasks
				want = []bool{true, true, true, true, false}
			}

			switch err := c.edit(w); {
			case name == "jitter":
				wantError(t, err, task.ErrConflict, client.CodeConflict)
			case err != nil || !slices.Equal(compared, want):
				t.Errorf("writes with a comparison: %v, want %v: %v", compared, want, err)
			}
		})
	}
}

// In a group of edits, one task may lose against its ticks until it is written without a comparison. The edits of the other
// tasks keep theirs.
func TestBatch_EditThatLosesAgainstTicksOfItsTask(t *testing.T) {
	w, _ := stampedWorld(t, nil)
	w.create("b", "@every 100h")
	compared := map[string][]bool{} // by task, in the order of its writes
	w.writes.set(func(txn kv.Txn) {
		w.clock.advance(11 * time.Second)
		for _, name := range []string{"a", "b"} {
			if edits, compares := w.replaces(txn, name); edits {
				compared[name] = append(compared[name], compares)
			}
		}
		w.mark("a", w.clock.now())
	}, nil)

	for _, r := range w.batch("", `{"name": "a", "schedule": "*/5 * * * * *", "action": {"noop": {}}}`, `{"name": "b", "schedule": "@every 200h", "action": {"noop": {}}}`) {
		if r.Result != client.Configured {
			t.Errorf("%+v", r)
		}
	}

	if slices.Contains(compared["b"], false) || !slices.Equal(compared["a"], []bool{true, true, true, true, false}) {
		t.Errorf("writes with a comparison: %v; want those of a alone to do without it, at last", compared)
	}
}

// A task can be paused although nobody can own its shard, because the watermark is damaged.
func TestUpdate_InAShardWithoutAWatermark(t *testing.T) {
	w, _ := stampedWorld(t, nil)
	_, err := w.etcd.Delete(t.Context(), w.store.Keys().Watermark(ref("default", "a").Shard))
	must(t, err)

	must(t, pauseOf(client.PauseRequest{})(w))
	must(t, resume(w))
	must(t, patchOf(`{"schedule": "*/5 * * * * *"}`)(w))

	if _, err := w.store.Mark(t.Context(), ref("default", "a").Shard); err == nil {
		t.Error("there is a watermark")
	}
}

// A watermark that is far ahead was written by a clock that is wrong. It does not become the time of an edit.
func TestUpdate_DoesNotCountFromAWatermarkFarAhead(t *testing.T) {
	w, _ := stampedWorld(t, nil)
	now := w.clock.now()
	w.mark("a", now.Add(time.Hour))

	must(t, pauseOf(client.PauseRequest{})(w))

	if since := pausedSince(client.Task{}, w.entry(ref("default", "a"))); !since.Equal(task.At(now).Time) {
		t.Errorf("paused since %v, now is %v", since, now)
	}
}
