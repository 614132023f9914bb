package store_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// alertOf returns the alert of a kind of a task; nil: there is none.
func (w *world) alertOf(r record.Ref, kind task.AlertKind) *task.Alert {
	w.Helper()
	all, err := w.AlertsOfShards(w.Context(), []int{r.Shard})
	ok(w.T, err)

	for _, a := range all[r.Shard] {
		if a.Namespace == r.Namespace && a.Task == r.Name && a.Kind == kind {
			return &a
		}
	}

	return nil
}

// putDead puts a run among the dead ones, and returns its id and its revision.
func (w *world) putDead(r record.Ref, n int) store.AlertDead {
	w.Helper()
	run := tickRun(r, n)
	run.State = task.Failed

	return store.AlertDead{Run: run.ID, Mod: w.put(w.keys.DeadRun(r, run.ID), string(record.EncodeWaiting(task.Waiting{Run: run})))}
}

// evidence reads a task, and returns an opening of its alert that follows from that.
func (w *world) evidence(r record.Ref) *store.AlertWrite {
	w.Helper()
	read, err := w.ReadToEvaluate(w.Context(), []record.Ref{r}, false)
	ok(w.T, err)

	a := task.Alert{Namespace: r.Namespace, Task: r.Name, Kind: task.AlertFailures, UID: spec(r).UID, OpenedAt: task.At(noon)}
	if now := w.alertOf(r, task.AlertFailures); now != nil {
		a.Mod = now.Mod
	}

	return &store.AlertWrite{Shard: r.Shard, Alert: a, Revision: read.Revision, Freezes: read.Freezes.Mod, EntryMod: read.Tasks[0].EntryMod}
}

// A verdict is written only if what it was read from is unchanged.
//
// Verifies: G57
func TestPutAlert_ComparesWhatItWasDecidedFrom(t *testing.T) {
	other := record.Ref{Namespace: ref.Namespace, Name: "a-1", Shard: ref.Shard}

	for name, c := range map[string]struct {
		change  func(w *world, dead store.AlertDead)
		without bool // the write needs no dead run
		want    error
	}{
		"nothing":                  {func(*world, store.AlertDead) {}, false, nil},
		"a freeze":                 {func(w *world, _ store.AlertDead) { w.put(w.keys.Freezes(), `{"holding":[]}`) }, false, task.ErrConflict},
		"the entry":                {func(w *world, _ store.AlertDead) { w.put(w.keys.Entry(ref), "{}") }, false, task.ErrConflict},
		"the task is gone":         {func(w *world, _ store.AlertDead) { w.del(w.keys.Entry(ref)) }, false, task.ErrConflict},
		"a run has ended":          {func(w *world, _ store.AlertDead) { w.putEnded(ref, 5, task.Succeeded) }, false, task.ErrConflict},
		"a record is extended":     {func(w *world, _ store.AlertDead) { w.putEnded(ref, 1, task.Skipped) }, false, task.ErrConflict},
		"another run is dead":      {func(w *world, _ store.AlertDead) { w.putDead(ref, 5) }, false, task.ErrConflict},
		"the dead run is marked":   {func(w *world, d store.AlertDead) { w.put(w.keys.DeadRun(ref, d.Run), "{}") }, true, task.ErrConflict},
		"the dead run is gone":     {func(w *world, d store.AlertDead) { w.del(w.keys.DeadRun(ref, d.Run)) }, false, task.ErrConflict},
		"gone, and not needed":     {func(w *world, d store.AlertDead) { w.del(w.keys.DeadRun(ref, d.Run)) }, true, nil},
		"a record is trimmed":      {func(w *world, _ store.AlertDead) { w.del(w.keys.Ended(ref, tickRun(ref, 1).ID)) }, false, nil},
		"another task has changed": {func(w *world, _ store.AlertDead) { w.putEnded(other, 5, task.Failed); w.putDead(other, 5) }, false, nil},
		"the alert":                {func(w *world, _ store.AlertDead) { w.put(w.keys.Alert(ref, task.AlertFailures), "{}") }, false, task.ErrConflict},
		"the owner":                {func(w *world, _ store.AlertDead) { w.own(ref.Shard, node) }, false, task.ErrFenced},
		"the node":                 {func(w *world, _ store.AlertDead) { w.del(w.keys.Node(node)) }, false, task.ErrFenced},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(ref)
			w.putEnded(ref, 1, task.Failed)
			dead := w.putDead(ref, 1)

			write := w.evidence(ref)
			if !c.without {
				write.Dead = &dead
			}

			c.change(w, dead)
			before := w.alertOf(ref, task.AlertFailures)

			mod, err := w.PutAlert(t.Context(), w.fences, write)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("%v, want %v", err, c.want)
			}

			after := w.alertOf(ref, task.AlertFailures)
			if c.want != nil {
				if !reflect.DeepEqual(before, after) {
					t.Errorf("the alert is %+v, was %+v", after, before)
				}
				return
			}

			write.Alert.Mod, write.Alert.ID = mod, mod
			if after == nil || !reflect.DeepEqual(*after, write.Alert) {
				t.Errorf("the alert is %+v, want %+v", after, write.Alert)
			}
		})
	}
}

func TestReadToEvaluate_ReadsTasksAtOneRevision(t *testing.T) {
	w := newWorld(t)
	w.create(ref)
	gone := record.Ref{Namespace: "default", Name: "gone", Shard: 5}
	broken := record.Ref{Namespace: "default", Name: "a.b", Shard: ref.Shard}
	w.put(w.keys.Entry(broken), `{"uid":7}`)

	w.putEnded(ref, 1, task.Failed)
	w.put(w.keys.Late(ref, tickRun(ref, 1).ID, 7), "{}")
	dead := w.putDead(ref, 1)
	w.put(w.keys.Queued(ref, waiting(ref, 4).ID), string(record.EncodeWaiting(waiting(ref, 4))))
	w.put(w.keys.Alert(gone, task.AlertSuccessBy), record.EncodeAlert(task.Alert{UID: "old", Notify: []string{"ops/slack"}}))
	w.put(w.keys.Alert(gone, task.AlertFailures), "unreadable")
	freezes := w.put(w.keys.Freezes(), `{"holding":[{"namespace":"default","since":"2026-11-20T12:00:00.000Z"}]}`)

	r, err := w.ReadToEvaluate(t.Context(), []record.Ref{ref, gone, broken}, false)
	ok(t, err)
	if r.Revision < freezes || r.Freezes.Mod != freezes || r.Freezes.Of("default") == nil || len(r.Tasks) != 3 {
		t.Fatalf("%+v", r)
	}

	_, mark := w.mark()
	a := r.Tasks[0]
	if a.Entry == nil || a.Entry.UID != spec(ref).UID || a.EntryMod != w.stored(ref).EntryMod || a.Unreadable || !a.HasQueued || a.Watermark != mark ||
		len(a.History) != 1 || a.History[0].Run != tickRun(ref, 1).ID || len(a.Dead) != 1 || a.Dead[0].Run != dead.Run || a.Dead[0].Mod != dead.Mod || len(a.Alerts) != 0 {
		t.Errorf("%+v", a)
	}

	g := r.Tasks[1]
	if g.Entry != nil || g.EntryMod != 0 || g.Unreadable || g.HasQueued || len(g.History)+len(g.Dead) != 0 || len(g.Alerts) != 2 || g.Alerts[1].Kind != task.AlertSuccessBy || g.Alerts[1].UID != "old" ||
		g.Alerts[0].Kind != task.AlertFailures || g.Alerts[0].Task != "gone" || g.Alerts[0].Mod == 0 {
		t.Errorf("%+v", g)
	}
	if b := r.Tasks[2]; b.Entry != nil || !b.Unreadable || b.EntryMod == 0 {
		t.Errorf("%+v", b)
	}

	// What else an evaluation needs is read at that revision.
	st := w.stored(ref)
	ok(t, second(w.DeleteTaskLeavingTombstone(t.Context(), st, record.Tombstone{UID: st.Task.UID, DeletedBy: task.NewActor("ann")})))
	facts := store.AlertFacts{WantSpec: true, WantLedger: true, WantTombstone: true}
	ok(t, w.AlertFactsAt(t.Context(), ref, r.Revision, &facts))
	if !facts.UpdatedAt.Equal(st.Task.UpdatedAt.Time) || !facts.UpdatedBy.Equal(st.Task.UpdatedBy) || facts.DeletedBy != nil || len(facts.Ledger) != 0 {
		t.Errorf("before the deletion: %+v", facts)
	}

	w.put(w.keys.LedgerChunk(ref, "1"), "one")
	now := store.AlertFacts{WantLedger: true, WantTombstone: true}
	ok(t, w.AlertFactsAt(t.Context(), ref, w.put(w.keys.Root()+"now", ""), &now))
	if !now.DeletedBy.Is("ann") || len(now.Ledger) != 1 || string(now.Ledger[0]) != "one" {
		t.Errorf("after it: %+v", now)
	}
}

// second returns the error of a call with another result.
func second[T any](_ T, err error) error { return err }

func TestDeleteAlerts_DeletesOnlyWhatIsUnchanged(t *testing.T) {
	w := newWorld(t)
	for n := range 60 {
		r := record.Ref{Namespace: "default", Name: string(rune('a'+n/26)) + string(rune('a'+n%26)), Shard: ref.Shard}
		w.put(w.keys.Alert(r, task.AlertFailures), "{}")
	}
	more := task.Alert{Namespace: "default", Kind: task.AlertMore, Receiver: "ops/slack", More: map[task.AlertKind]int{task.AlertFailures: 3}}
	mod, err := w.PutMoreAlerts(t.Context(), w.fences, ref.Shard, more)
	ok(t, err)
	is(t, second(w.PutMoreAlerts(t.Context(), w.fences, ref.Shard, more)), task.ErrConflict)

	all, err := w.AlertsOfShards(t.Context(), []int{1, ref.Shard})
	ok(t, err)
	list := all[ref.Shard]
	at := slices.IndexFunc(list, func(a task.Alert) bool { return a.Kind == task.AlertMore })
	if len(all[1]) != 0 || len(list) != 61 || at < 0 || list[at].Mod != mod || list[at].More[task.AlertFailures] != 3 || list[at].Receiver != "ops/slack" {
		t.Fatalf("%d alerts, %+v", len(list), list[max(at, 0)])
	}

	changed := slices.Clone(list)
	changed[7].Mod--
	is(t, w.DeleteAlerts(t.Context(), w.fences, ref.Shard, changed[:10]), task.ErrConflict)
	former := w.fences
	w.fences.Owner = w.own(ref.Shard, node)
	is(t, w.DeleteAlerts(t.Context(), former, ref.Shard, list), task.ErrFenced)
	if n := len(w.below(w.keys.AlertsIn(ref.Shard))); n != 61 {
		t.Errorf("%d alerts are left, want all", n)
	}

	ok(t, w.DeleteAlerts(t.Context(), w.fences, ref.Shard, list))
	if left := w.below(w.keys.AlertsIn(ref.Shard)); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}

// The dismissal of the last dead run that keeps an alert open closes it in the same revision.
func TestDismiss_ClosesTheAlertOfTheTask(t *testing.T) {
	for name, c := range map[string]struct {
		base   int64 // of the alert: 0, or 1 for a revision between the two dead runs
		uid    string
		others bool
		closes bool
	}{
		"the last dead run":                 {closes: true},
		"another one is left":               {others: true},
		"an older one, before a success":    {base: 1, others: true, closes: true},
		"the alert is that of another task": {uid: "other"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(ref)
			base := int64(0)
			if c.others {
				base = w.putDead(ref, 1).Mod
			}
			dead := w.putDead(ref, 2)

			a := task.Alert{UID: spec(ref).UID, OpenedAt: task.At(noon), Base: c.base * base, Acknowledged: &task.AlertMark{By: task.NewActor("bob")}}
			if c.uid != "" {
				a.UID = c.uid
			}
			w.put(w.keys.Alert(ref, task.AlertFailures), record.EncodeAlert(a))

			list := w.deadRuns(ref)
			d := list[slices.IndexFunc(list, func(d record.Dead) bool { return d.ID == dead.Run })]
			ok(t, w.Dismiss(t.Context(), ref, d, task.NewActor("ann"), noon.Add(time.Minute)))

			got := w.alertOf(ref, task.AlertFailures)
			want := &task.AlertClose{At: task.At(noon.Add(time.Minute)), Why: task.AlertDismissed, By: task.NewActor("ann")}
			if !c.closes {
				want = nil
			}
			if w.exists(w.keys.DeadRun(ref, dead.Run)) || !reflect.DeepEqual(got.Closed, want) || got.Acknowledged == nil {
				t.Errorf("%+v, want closed %+v", got, want)
			}
		})
	}
}

// A run that dies during a dismissal keeps the alert open.
func TestDismiss_ARunThatDiesMeanwhileKeepsTheAlertOpen(t *testing.T) {
	w := newWorld(t)
	w.create(ref)
	dead := w.putDead(ref, 1)
	w.put(w.keys.Alert(ref, task.AlertFailures), record.EncodeAlert(task.Alert{UID: spec(ref).UID, OpenedAt: task.At(noon)}))
	d := w.deadRuns(ref)[0]

	// Another run dies between the reading of the dead runs and the deletion.
	writes := 0
	w.writes.next()
	w.writes.before = func(n int) {
		if writes = n; n == 2 {
			w.putDead(ref, 2)
		}
	}

	ok(t, w.Dismiss(t.Context(), ref, d, task.NewActor("ann"), noon))
	if a := w.alertOf(ref, task.AlertFailures); w.exists(w.keys.DeadRun(ref, dead.Run)) || !a.IsOpen() || writes != 3 {
		t.Errorf("%+v after %d writes", a, writes)
	}
}

// Waiting and active runs are read at the revision of the evidence. An opening that names one fails if it has changed since, and a closing
// because no run takes too long fails if one came back to the queue.
//
// Verifies: G57
func TestPutAlert_ComparesActiveRuns(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world, queued, inbox string)
		active func(queued, inbox store.ActiveRecord) *store.AlertActive
		closes bool
		want   error
	}{
		"nothing": {func(*world, string, string) {}, func(q, _ store.ActiveRecord) *store.AlertActive {
			return &store.AlertActive{Run: q.Run.ID, Create: q.Create, Mod: q.Mod}
		}, false, nil},
		"the waiting run is gone": {func(w *world, queued, _ string) { w.del(queued) }, func(q, _ store.ActiveRecord) *store.AlertActive {
			return &store.AlertActive{Run: q.Run.ID, Create: q.Create}
		}, false, task.ErrConflict},
		"the attempt is rewritten": {func(w *world, _, inbox string) { w.put(inbox, "{}") }, func(_, a store.ActiveRecord) *store.AlertActive {
			return &store.AlertActive{Run: a.Run.ID, Node: a.Node, Create: a.Create}
		}, false, nil},
		"the attempt has started": {func(w *world, _, inbox string) { w.put(inbox, "{}") }, func(_, a store.ActiveRecord) *store.AlertActive {
			return &store.AlertActive{Run: a.Run.ID, Node: a.Node, Create: a.Create, Mod: a.Mod}
		}, false, task.ErrConflict},
		"the attempt has ended": {func(w *world, _, inbox string) { w.del(inbox) }, func(_, a store.ActiveRecord) *store.AlertActive {
			return &store.AlertActive{Run: a.Run.ID, Node: a.Node, Create: a.Create}
		}, false, task.ErrConflict},
		"closes":                        {func(*world, string, string) {}, nil, true, nil},
		"closes, but a run waits again": {func(w *world, queued, _ string) { w.put(queued, "{}") }, nil, true, task.ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(ref)
			waiting, running := tickRun(ref, 1), tickRun(ref, 2)
			queued, inbox := w.keys.Queued(ref, waiting.ID), w.keys.Run("n7", ref, running.ID)
			w.put(queued, string(record.EncodeWaiting(task.Waiting{Run: waiting})))
			running.Node = "n7"
			w.put(inbox, string(record.EncodeAssigned(&task.Assigned{Run: running}, `{"noop":{}}`)))

			write := w.evidence(ref)
			write.Alert.Kind = task.AlertMaxDuration
			w.put(w.keys.Queued(ref, "later"), "{}")
			found, isWhole, err := w.ActiveRunsAt(t.Context(), ref, write.Revision, []store.InboxRun{{Run: running.ID, Node: "n7"}, {Run: running.ID, Node: "n8"}})
			ok(t, err)
			w.del(w.keys.Queued(ref, "later"))
			if len(found) != 2 || !isWhole || found[0].Run.ID != waiting.ID || found[0].Node != "" || found[1].Run.ID != running.ID || found[1].Node != "n7" {
				t.Fatalf("%+v, whole %t", found, isWhole)
			}

			if c.active != nil {
				write.Active = c.active(found[0], found[1])
			}
			if c.closes {
				write.Alert.Closed = &task.AlertClose{At: task.At(noon), Why: task.AlertRunEnded}
			}

			c.change(w, queued, inbox)
			if _, err := w.PutAlert(t.Context(), w.fences, write); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("%v, want %v", err, c.want)
			}
		})
	}
}

// A cancelled run of a workflow is dead, so that it can be retried, but it is no failure: it opens no alert, and keeps none open.
func TestReadToEvaluate_LeavesOutCancelledRunsOfWorkflows(t *testing.T) {
	w := newWorld(t)
	w.create(ref)
	st := w.stored(ref)
	st.Entry.Action = task.Action{Workflow: &task.Workflow{}}
	w.put(w.keys.Entry(ref), record.Encode(st.Entry))

	failed := w.putDead(ref, 1)
	cancelled := tickRun(ref, 2)
	cancelled.State, cancelled.EndedAt = task.Cancelled, task.At(noon)
	w.put(w.keys.DeadRun(ref, cancelled.ID), string(record.EncodeWaiting(task.Waiting{Run: cancelled})))

	check := func() {
		t.Helper()
		read, err := w.ReadToEvaluate(t.Context(), []record.Ref{ref}, false)
		ok(t, err)
		if dead := read.Tasks[0].Dead; len(dead) != 1 || dead[0].Run != failed.Run {
			t.Errorf("dead are %+v", dead)
		}
	}
	check()

	// The task is no workflow any more.
	st.Entry.Action, st.Entry.Generation = task.Action{Noop: &task.Noop{}}, 2
	w.put(w.keys.Entry(ref), record.Encode(st.Entry))
	check()

	w.put(w.keys.Alert(ref, task.AlertFailures), record.EncodeAlert(task.Alert{UID: spec(ref).UID, OpenedAt: task.At(noon)}))
	list := w.deadRuns(ref)
	d := list[slices.IndexFunc(list, func(d record.Dead) bool { return d.ID == failed.Run })]
	ok(t, w.Dismiss(t.Context(), ref, d, task.NewActor("ann"), noon))
	if a := w.alertOf(ref, task.AlertFailures); a.Closed == nil {
		t.Error("the alert stays open")
	}
}
