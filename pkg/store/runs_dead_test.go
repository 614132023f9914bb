package store_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func (w *world) deadRuns(r record.Ref) []record.Dead {
	w.Helper()
	list, err := w.DeadRuns(w.Context(), r)
	ok(w.T, err)

	return list
}

func TestFinish_PutsWhatHasNoAttemptLeftAmongTheDead(t *testing.T) {
	for _, state := range []task.State{task.Failed, task.TimedOut, task.Lost, task.Succeeded, task.Cancelled, task.Missed} {
		t.Run(string(state), func(t *testing.T) {
			w, h := newInbox(t)
			h.Env = map[string]string{"A": "b"}
			end := endOf(h, state)
			end.OutputTail = strings.Repeat("x", 2000) + "the end"
			ok(t, w.Finish(t.Context(), h, end, nil))

			list := w.deadRuns(ref)
			if dies := state == task.Failed || state == task.TimedOut || state == task.Lost; len(list) > 0 != dies {
				t.Fatalf("dead are %+v", list)
			}

			if len(list) == 0 {
				return
			}

			d := list[0]
			mod, _, _ := w.at(w.keys.Ended(ref, h.ID))
			if d.ID != h.ID || d.State != state || d.Token != h.Create || d.Env["A"] != "b" || d.Mod != mod ||
				len(d.OutputTail) > 300 || !strings.HasSuffix(d.OutputTail, "the end") {
				t.Errorf("the dead run is %+v", d)
			}

			if got := w.history(ref, h.ID); got == nil || len(got.OutputTail) != 2007 {
				t.Errorf("the record of history is %+v", got)
			}
		})
	}
}

func TestFinish_NeitherARetryNorACancelledRunIsDead(t *testing.T) {
	w, h := newInbox(t)
	end := endOf(h, task.Failed)
	ok(t, w.Finish(t.Context(), h, end, nextOf(h, end)))
	h = w.dispatch(ref, 2, "n2")
	_, err := w.CancelActive(t.Context(), h, task.NewActor("me"))
	ok(t, err)
	h = w.held(record.RunKey{Node: "n2", Ref: ref, Run: h.ID})
	ok(t, w.Finish(t.Context(), h, endOf(h, task.Failed), nil))
	h = w.dispatch(ref, 3, "n2")
	w.lose(h, nextOf(h, endOf(h, task.Lost)))

	if list := w.deadRuns(ref); len(list) != 0 {
		t.Errorf("dead are %+v", list)
	}
}

func TestPutDeadLetter_BesideTheRecordOfALoss(t *testing.T) {
	w, h := newInbox(t)
	w.del(w.keys.Node("n2"))
	c := w.begin()
	c.EndLost(h, endOf(h, task.Lost), nil)
	c.PutDeadLetter(h, endOf(h, task.Lost))

	rev := w.commit(c)
	if list := w.deadRuns(ref); len(list) != 1 || list[0].Mod != rev || list[0].State != task.Lost {
		t.Errorf("dead are %+v", list)
	}
}

func TestRevive_QueuesARunInPlaceOfTheDeadOne(t *testing.T) {
	w, h := newInbox(t)
	ok(t, w.Finish(t.Context(), h, endOf(h, task.Failed), nil))
	d, st := w.deadRuns(ref)[0], w.stored(ref)
	again := waiting(ref, 9)
	again.RetryOf = d.ID
	stale := d
	stale.Mod--
	is(t, w.Revive(t.Context(), st, stale, again), task.ErrConflict)
	changed := st
	changed.EntryMod--
	is(t, w.Revive(t.Context(), changed, d, again), task.ErrConflict)

	if w.queued(ref, again.ID) != nil || len(w.deadRuns(ref)) != 1 {
		t.Fatal("it wrote all the same")
	}

	ok(t, w.Revive(t.Context(), st, d, again))

	if q := w.queued(ref, again.ID); q == nil || q.RetryOf != h.ID || len(w.deadRuns(ref)) != 0 {
		t.Errorf("waits %+v; dead are %+v", q, w.deadRuns(ref))
	}

	is(t, w.Revive(t.Context(), st, d, waiting(ref, 10)), task.ErrConflict) // a dead run can be revived only once
}

func TestDismiss_TakesADeadRunAway(t *testing.T) {
	w, h := newInbox(t)
	ok(t, w.Finish(t.Context(), h, endOf(h, task.Failed), nil))
	d := w.deadRuns(ref)[0]
	before := *w.history(ref, h.ID)
	ok(t, w.Dismiss(t.Context(), ref, d, task.NewActor("ann"), noon))

	if got := w.history(ref, h.ID); len(w.deadRuns(ref)) != 0 || got == nil || !reflect.DeepEqual(*got, before) {
		t.Errorf("dead are %+v; the record of history is %+v, was %+v", w.deadRuns(ref), got, before)
	}

	is(t, w.Dismiss(t.Context(), ref, d, task.NewActor("bob"), noon), task.ErrConflict)
}

// The user who requested a run, and the names of its variables, remain in its record wherever that goes (G26).
//
// Verifies: G26
func TestRuns_KeepWhoAskedForThem(t *testing.T) {
	w, h := newInbox(t)
	h.CreatedBy, h.EnvNames = task.NewActor("ann"), []string{"A", "B"}
	said := func(where string, r *task.Run) {
		t.Helper()
		if r == nil || !r.CreatedBy.Is("ann") || !slices.Equal(r.EnvNames, []string{"A", "B"}) {
			t.Errorf("%s: %+v", where, r)
		}
	}

	again := nextOf(h, endOf(h, task.Failed))
	said("the next attempt", &again.Run)
	end := endOf(h, task.Failed)
	ok(t, w.Finish(t.Context(), h, end, nil))
	said("history", w.history(ref, h.ID))
	said("the dead run", &w.deadRuns(ref)[0].Run)
	part := end.OfPart(task.Part{Index: 1, State: task.Failed})
	said("a part", &part)

	w, h = newInbox(t)
	h.CreatedBy, h.EnvNames = task.NewActor("ann"), []string{"A", "B"}
	ok(t, w.HandBack(t.Context(), h))
	said("what is handed back", &w.queued(ref, h.ID).Run)
}

func TestDead_ListsAndTrims(t *testing.T) {
	w := newWorld(t)
	others := record.Ref{Namespace: "ops", Name: "b", Shard: 4}
	value := `{"uid":"u","scheduled_time":"2026-01-02T12:00:00.000Z","state":"failed","trigger":"schedule"}`

	for i := range store.KeepDead + 120 {
		w.put(w.keys.DeadRun(ref, fmt.Sprintf("r%03d", i)), value)
	}

	w.put(w.keys.DeadRun(others, "r1"), value)
	w.put(w.keys.DeadRun(record.Ref{Namespace: "default", Name: "ab", Shard: ref.Shard}, "r1"), value) // a task whose name begins with the same letters
	ok(t, w.TrimDead(t.Context(), w.fences, ref, store.KeepDead))

	list := w.deadRuns(ref)
	if len(list) != store.KeepDead || list[0].ID != fmt.Sprintf("r%03d", store.KeepDead+119) || list[len(list)-1].ID != "r120" {
		t.Errorf("%d are left, from %s to %s", len(list), list[0].ID, list[len(list)-1].ID)
	}

	shards := []int{0, 1, 2, 3, 4, 5, 6, 7}
	w.put(w.keys.DeadRun(ref, "r000"), value) // its tick is the oldest, and its record is the newest
	ok(t, w.TrimDead(t.Context(), w.fences, ref, store.KeepDead))

	if list := w.deadRuns(ref); len(list) != store.KeepDead || list[len(list)-1].ID != "r000" || list[len(list)-2].ID != "r121" {
		t.Errorf("%d are left, from %s to %s", len(list), list[0].ID, list[len(list)-1].ID)
	}

	all, err := w.ShardDead(t.Context(), shards, "")
	ok(t, err)
	ops, err := w.ShardDead(t.Context(), shards, "ops")
	ok(t, err)

	if len(all) != store.KeepDead+2 || len(ops) != 1 || ops[0].Task != "b" || ops[0].Namespace != "ops" {
		t.Errorf("%d in all, in ops %+v", len(all), ops)
	}

	keys, _, err := w.HistoryKeys(t.Context(), others.Shard, "", nil)
	ok(t, err)

	if !slices.ContainsFunc(keys, func(ev store.ShardEvent) bool { return ev.Kind == record.KindDead && ev.Run == "r1" }) {
		t.Errorf("a search for orphans finds %+v", keys)
	}

	fences := w.fences
	w.own(ref.Shard, "n2")
	w.put(w.keys.DeadRun(ref, "r999"), value)
	is(t, w.TrimDead(t.Context(), fences, ref, store.KeepDead), task.ErrFenced)
}
