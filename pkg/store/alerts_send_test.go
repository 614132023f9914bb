package store_test

import (
	"errors"
	"testing"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// newReceiver creates a receiver, and returns it as it is read.
func (w *world) newReceiver(name string) store.Receiver {
	w.Helper()
	t := task.Task{Spec: task.Defaults(), UID: task.NewUID()}
	t.Namespace, t.Name, t.Schedule, t.Action, t.Receiver = "ops", name, task.Schedules{"@manual"}, task.Action{Noop: &task.Noop{}}, &task.Receiver{}
	r := record.Ref{Namespace: "ops", Name: name, Shard: 3}
	_, err := w.CreateTask(w.Context(), r, t, task.NewEntry(t, t.CreatedAt, t.CreatedAt))
	ok(w.T, err)

	list, err := w.Receivers(w.Context(), []record.Ref{r})
	ok(w.T, err)
	if !list[0].Receives() {
		w.Fatalf("%+v does not receive alerts", list[0])
	}

	return list[0]
}

func message(id string) task.Waiting {
	return task.Waiting{Run: task.Run{ID: id, UID: "u", State: task.Queued, Trigger: task.TriggerManual, Attempt: 1}, Env: map[string]string{"ALERT_TEXT": "text"}}
}

// Verifies: G59
func TestWriteSent_WritesTheRecordAndItsRunOrNothing(t *testing.T) {
	const run = "20261124T010000.000Z-abcd-efgh"

	for _, c := range []struct {
		name    string
		meddle  func(w *world, to *store.Receiver, sent *task.AlertsSent)
		settles bool // without a run
		want    error
	}{
		{"nothing has changed", func(*world, *store.Receiver, *task.AlertsSent) {}, false, nil},
		{"nothing has changed, and there is no run", func(*world, *store.Receiver, *task.AlertsSent) {}, true, nil},
		{"another leader has written", func(w *world, to *store.Receiver, _ *task.AlertsSent) { w.put(w.keys.SentTo(to.Ref), "{}") }, false, task.ErrConflict},
		{"another leader has written, and there is no run", func(w *world, to *store.Receiver, _ *task.AlertsSent) { w.put(w.keys.SentTo(to.Ref), "{}") }, true, task.ErrConflict},
		{"the record is gone", func(_ *world, _ *store.Receiver, sent *task.AlertsSent) { sent.Mod = 7 }, false, task.ErrConflict},
		{"the receiver was edited", func(w *world, to *store.Receiver, _ *task.AlertsSent) { w.put(w.keys.Entry(to.Ref), "{}") }, false, task.ErrConflict},
		{"the receiver was deleted", func(w *world, to *store.Receiver, _ *task.AlertsSent) { w.del(w.keys.Entry(to.Ref)) }, false, task.ErrConflict},
		{"a freeze was added", func(w *world, _ *store.Receiver, _ *task.AlertsSent) { w.put(w.keys.Freezes(), "{}") }, false, task.ErrConflict},
		{"a freeze was added, and there is no run", func(w *world, _ *store.Receiver, _ *task.AlertsSent) { w.put(w.keys.Freezes(), "{}") }, true, nil},
		{"the run exists", func(w *world, to *store.Receiver, _ *task.AlertsSent) { w.put(w.keys.Queued(to.Ref, run), "{}") }, false, task.ErrConflict},
		{"the term is over", func(w *world, _ *store.Receiver, _ *task.AlertsSent) { w.del(w.keys.Leader() + "n1") }, false, task.ErrFenced},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			term, to, sent := w.lead("n1"), w.newReceiver("slack"), task.AlertsSent{UID: "u", Delivered: task.AlertKeys{1, 2}}
			c.meddle(w, &to, &sent)
			before := w.below(w.keys.Root())

			var runs []task.Waiting
			if !c.settles {
				runs = append(runs, message(run))
			}
			rev, err := w.WriteSent(t.Context(), term, to, sent, 0, runs...)
			if !errors.Is(err, c.want) {
				t.Fatalf("%v; want %v", err, c.want)
			}

			if c.want != nil {
				if after := w.below(w.keys.Root()); len(after) != len(before) {
					t.Errorf("wrote something: %d records, before %d", len(after), len(before))
				}
				return
			}

			mod, _, _ := w.at(w.keys.SentTo(to.Ref))
			queued, _, _ := w.at(w.keys.Queued(to.Ref, run))
			if mod != rev || !c.settles && queued != rev {
				t.Errorf("wrote at %d: the record %d, the run %d", rev, mod, queued)
			}
		})
	}
}

func TestDeleteSent_LeavesThatOfAReceiver(t *testing.T) {
	w := newWorld(t)
	term, to := w.lead("n1"), w.newReceiver("slack")
	mod := w.put(w.keys.SentTo(to.Ref), "{}")

	gone := store.Receiver{Ref: to.Ref} // as it was read before the receiver was created
	if err := w.DeleteSent(t.Context(), term, gone, mod); !errors.Is(err, task.ErrConflict) {
		t.Fatalf("deleted what was sent to a receiver: %v", err)
	}

	w.del(w.keys.Entry(to.Ref))
	ok(t, w.DeleteSent(t.Context(), term, gone, mod))
	if mod, _, _ := w.at(w.keys.SentTo(to.Ref)); mod != 0 {
		t.Error("the record exists")
	}
}

func TestFindMessageRuns_TellsWhereTheyAre(t *testing.T) {
	w := newWorld(t)
	r := record.Ref{Namespace: "ops", Name: "slack", Shard: 3}
	w.put(w.keys.Queued(r, "q"), string(record.EncodeWaiting(message("q"))))
	w.put(w.keys.Ended(r, "e"), string(record.EncodeEnded(task.Run{ID: "e", State: task.Failed, Trigger: task.TriggerManual})))

	runs := []store.MessageRun{{Ref: r, ID: "q"}, {Ref: r, ID: "e"}, {Ref: r, ID: "none"}}
	for range 60 { // more than one request reads
		runs = append(runs, store.MessageRun{Ref: r, ID: "none"}, store.MessageRun{Ref: r, ID: "e"})
	}
	ok(t, w.FindMessageRuns(t.Context(), runs))
	for i, run := range runs {
		if (run.Queued != nil) != (run.ID == "q") || (run.Ended != nil) != (run.ID == "e") {
			t.Fatalf("run %d: %+v", i, run)
		}
	}
	if runs[1].Ended.State != task.Failed || runs[0].Queued.Env["ALERT_TEXT"] != "text" {
		t.Errorf("read %+v and %+v", runs[1].Ended, runs[0].Queued)
	}
}

func TestReadSubjects_ReadsTasksWithTheirHistories(t *testing.T) {
	w := newWorld(t)
	to := w.newReceiver("slack") // any task
	for _, id := range []string{"r1", "r2", "r3", "r4"} {
		w.put(w.keys.Ended(to.Ref, id), string(record.EncodeEnded(task.Run{ID: id, State: task.Failed, Trigger: task.TriggerManual})))
	}
	w.put(w.keys.DeadRun(to.Ref, "r4"), string(record.EncodeWaiting(message("r4"))))
	w.put(w.keys.DeadRun(to.Ref, "r0"), string(record.EncodeWaiting(message("r0"))))

	subjects := []store.AlertSubject{{Ref: to.Ref, Run: "r4", Keep: 3}, {Ref: to.Ref, Run: "r0", Keep: 1}, {Ref: record.Ref{Namespace: "ops", Name: "none"}}}
	for range 30 {
		subjects = append(subjects, store.AlertSubject{Ref: to.Ref})
	}
	ok(t, w.ReadSubjects(t.Context(), subjects))

	first, second, none, last := subjects[0], subjects[1], subjects[2], subjects[len(subjects)-1]
	if first.Task == nil || first.Entry == nil || first.Found == nil || first.Found.State != task.Failed || len(first.History) != 3 || first.History[0].ID != "r4" {
		t.Errorf("the first is %+v", first)
	}
	if second.Found == nil || second.Found.ID != "r0" || len(second.History) != 1 {
		t.Errorf("the second is %+v", second)
	}
	if none.Task != nil || none.Found != nil || none.History != nil || last.Task == nil || last.Found != nil {
		t.Errorf("the others are %+v and %+v", none, last)
	}
}

func TestClusterAlerts_AreWrittenByTheLeader(t *testing.T) {
	w := newWorld(t)
	term := w.lead("n1")
	a := task.Alert{Kind: task.AlertCluster, Code: "not_evaluated", Text: "3 tasks"}
	ok(t, w.PutClusterAlert(t.Context(), term, a))
	if err := w.PutClusterAlert(t.Context(), term, a); !errors.Is(err, task.ErrConflict) {
		t.Errorf("wrote over another record: %v", err)
	}

	all, err := w.ClusterAlerts(t.Context())
	ok(t, err)
	if len(all) != 1 || all[0].Code != a.Code || all[0].Text != a.Text || all[0].Mod == 0 {
		t.Fatalf("read %+v", all)
	}
	if err := w.DeleteClusterAlert(t.Context(), term, a); !errors.Is(err, task.ErrConflict) {
		t.Errorf("deleted another record: %v", err)
	}
	ok(t, w.DeleteClusterAlert(t.Context(), term, all[0]))
}

func TestDeleteNamespace_DeletesSilencesTombstonesAndWhatWasSent(t *testing.T) {
	w := newWorld(t)
	_, err := w.PutNamespace(t.Context(), 0, store.OpenNamespace("ops"), noon)
	ok(t, err)
	mod, _, _ := w.at(w.keys.Namespace("ops"))
	sent := func(ns string) string { return w.keys.SentTo(record.Ref{Namespace: ns, Name: "slack"}) }
	gone := func(ns string) string { return w.keys.Tombstone(record.Ref{Namespace: ns, Name: "report"}) }
	for _, ns := range []string{"ops", "ops-2"} {
		for _, key := range []string{w.keys.Silence(ns, "s"), sent(ns), gone(ns)} {
			w.put(key, "{}")
		}
	}

	ok(t, w.DeleteNamespace(t.Context(), "ops", mod, store.FreezeRecord{}, noon))
	for ns, want := range map[string]bool{"ops": false, "ops-2": true} {
		for _, key := range []string{w.keys.Silence(ns, "s"), sent(ns), gone(ns)} {
			if mod, _, _ := w.at(key); (mod != 0) != want {
				t.Errorf("%s exists: %t; want %t", key, mod != 0, want)
			}
		}
	}
}

func TestBeginEpoch_ForgetsWhatWasSent(t *testing.T) {
	w := newWorld(t)
	sent := w.keys.SentTo(record.Ref{Namespace: "ops", Name: "slack"})
	w.put(sent, "{}")

	there, err := w.Present(t.Context())
	ok(t, err)
	_, err = w.BeginEpoch(t.Context(), there, task.Restored{At: task.At(noon)})
	ok(t, err)
	if mod, _, _ := w.at(sent); mod != 0 {
		t.Error("what was sent before the restore is still on record")
	}
}
