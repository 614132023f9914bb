package notifier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/leaderterm/leadertest"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// world is a cluster on an etcd in memory, in virtual time. The test writes the alerts, as owners do, and ends the runs of
// receivers. A notifier runs while the world leads.
type world struct {
	*leadertest.World
	writes   *lossy
	notifier *Notifier
	registry *prometheus.Registry
	began    time.Time

	mu      sync.Mutex
	cluster task.Cluster
	freezes task.Freezes
	nodes   []task.Node
	owners  []record.Owner
	refused error

	unknownFreezes bool
	freezesMod     int64 // the mod revision of the record of freezes, as far as the notifier knows
	warnings       []task.Warning
	incomplete     bool
}

const slack = "ops/slack"

// lossy is an etcd that applies writes, and loses some of its answers.
type lossy struct {
	kv.Committer
	lose atomic.Int32 // how many of the next answers
	full atomic.Bool  // it refuses all writes
}

func (l *lossy) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	if l.full.Load() {
		return kv.Result{}, rpctypes.ErrNoSpace
	}

	res, err := l.Committer.Commit(ctx, t)
	if l.lose.Add(-1) >= 0 {
		return kv.Result{}, context.DeadlineExceeded
	}
	return res, err
}

// inWorld runs a story in virtual time.
func inWorld(t *testing.T, story func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{writes: &lossy{}, registry: prometheus.NewRegistry(), began: time.Now()}
		w.World = leadertest.New(t, func(etcd kv.Committer) kv.Committer {
			w.writes.Committer = etcd
			return w.writes
		})
		w.cluster = w.Cluster
		for shard := range leadertest.Shards {
			w.owners = append(w.owners, record.Owner{Shard: shard, Node: "n1"})
		}
		w.nodes = []task.Node{{Name: "n1", NotEvaluated: new(int)}}

		w.notifier = New(Config{
			Store: w.Store, Task: w.Ref, Now: time.Now, Logger: zap.NewNop(), Registerer: w.registry,
			Cluster: func() task.Cluster { return locked(w, func() task.Cluster { return w.cluster }) },
			Freezes: func() (*task.Freezes, int64) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if w.unknownFreezes {
					return nil, 0
				}
				f := w.freezes
				return &f, w.freezesMod
			},
			AuditsReads: func(ns string) bool { return ns == "audited" },
			Fleet: func() ([]task.Node, []record.Owner) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return slices.Clone(w.nodes), slices.Clone(w.owners)
			},
			Warnings: func(context.Context) ([]task.Warning, bool, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return slices.Clone(w.warnings), !w.incomplete, nil
			},
			MayWrite: func() error { return locked(w, func() error { return w.refused }) },
		})

		w.lead()
		story(w)
	})
}

// valueOf returns the value of a counter or a gauge.
func valueOf(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var value dto.Metric
	if err := m.Write(&value); err != nil {
		t.Fatal(err)
	}

	return value.GetCounter().GetValue() + value.GetGauge().GetValue()
}

func locked[T any](w *world, f func() T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f()
}

// set changes what the notifier is told.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// lead ends the present term, and begins another one.
func (w *world) lead() {
	w.Helper()
	w.Lead(w.notifier.Run)
}

// addTask creates a task, and deletes one with this name first.
func (w *world) addTask(name string, change func(t *task.Task)) task.Task {
	w.Helper()
	w.deleteTask(name)

	return w.AddTask(name, task.ManualSchedule, change)
}

func (w *world) deleteTask(name string) {
	w.Helper()
	st, err := w.Store.Revisions(w.Context(), w.RefOf(name))
	if errors.Is(err, task.ErrNotFound) {
		return
	}
	w.Must(err)
	_, err = w.Store.DeleteTaskLeavingTombstone(w.Context(), st, record.Tombstone{})
	w.Must(err)
}

// addReceiver creates a receiver for namespace shop.
func (w *world) addReceiver(name string) {
	w.Helper()
	w.addTask(name, func(t *task.Task) {
		t.Receiver = &task.Receiver{From: []string{"shop"}}
		t.Accept.Env = []string{"ALERT_TEXT", "ALERT_TITLE", "OTHER"}
	})
}

// open opens the alert of a task, or opens it again.
func (w *world) open(name string, receivers ...string) { w.write(name, true, receivers) }

// close closes it.
func (w *world) close(name string) { w.write(name, false, nil) }

func (w *world) write(name string, open bool, receivers []string) {
	w.Helper()
	ref := w.RefOf(name)
	key := w.Keys.Alert(ref, task.AlertFailures)
	a := task.Alert{UID: "u", Since: task.At(time.Now())}

	res, err := w.Etcd.Get(w.Context(), key)
	w.Must(err)
	if len(res.Kvs) > 0 {
		a, _, _, err = record.DecodeAlert(w.Keys, res.Kvs[0])
		w.Must(err)
	}
	if st, err := w.Store.Task(w.Context(), ref); err == nil {
		a.UID, a.Labels = st.Task.UID, st.Task.Labels
	}

	if open {
		a.OpenedAt, a.Closed, a.Notify = task.At(time.Now()), nil, receivers
	} else {
		a.Closed = &task.AlertClose{At: task.At(time.Now()), Why: task.AlertSucceeded}
	}
	w.Put(key, record.EncodeAlert(a))
}

// wait passes virtual time.
func (w *world) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// sent reads what was sent to a receiver.
func (w *world) sent(name string) (s task.AlertsSent) {
	w.Helper()
	res, err := w.Etcd.Get(w.Context(), w.Keys.SentTo(w.RefOf(name)))
	w.Must(err)
	if len(res.Kvs) > 0 {
		s, _ = record.DecodeSent(w.Keys, res.Kvs[0])
	}

	return s
}

// queued reads the run of the message that waits in the queue of a receiver. There is at most one.
func (w *world) queued(name string) *task.Waiting {
	w.Helper()
	prefix := w.Keys.QueueOf(w.RefOf(name))
	res, err := w.Etcd.Get(w.Context(), prefix, clientv3.WithPrefix())
	w.Must(err)
	if len(res.Kvs) > 1 {
		w.Fatalf("%d messages to %s at a time", len(res.Kvs), name)
	}
	if len(res.Kvs) == 0 {
		return nil
	}

	k, _ := w.Keys.ParseShard(string(res.Kvs[0].Key))
	run, err := record.DecodeWaiting(k, res.Kvs[0].Value)
	w.Must(err)

	return &run
}

// expectMessage fails unless the message that waits for a receiver opens and closes these alerts, and returns its run.
func (w *world) expectMessage(name string, opened, closed []string) *task.Waiting {
	w.Helper()
	run, m := w.queued(name), w.sent(name).Sending
	if run == nil || m == nil {
		w.Fatalf("after %s: no message to %s: run %v, record %v", time.Since(w.began), name, run, m)
	}
	if !slices.Equal(m.Runs, []string{run.ID}) {
		w.Errorf("the record has the runs %v, the queue has %s", m.Runs, run.ID)
	}
	if o, c := w.keysOf(opened), w.keysOf(closed); !slices.Equal(m.Opened, o) || !slices.Equal(m.Closed, c) {
		w.Errorf("after %s: the message opens %v and closes %v; want %v and %v", time.Since(w.began), m.Opened, m.Closed, o, c)
	}

	return run
}

func (w *world) expectNone(name string) {
	w.Helper()
	if run := w.queued(name); run != nil {
		w.Errorf("after %s: a message waits for %s: %+v", time.Since(w.began), name, w.sent(name).Sending)
	}
}

// keysOf returns the keys of alerts that have records.
func (w *world) keysOf(names []string) task.AlertKeys {
	w.Helper()
	var keys task.AlertKeys
	for _, name := range names {
		res, err := w.Etcd.Get(w.Context(), w.Keys.Alert(w.RefOf(name), task.AlertFailures))
		w.Must(err)
		if len(res.Kvs) != 1 {
			w.Fatalf("no alert of %s", name)
		}
		a, _, _, err := record.DecodeAlert(w.Keys, res.Kvs[0])
		w.Must(err)
		keys = append(keys, alert.KeyOf(w.cluster.ID, &a))
	}
	slices.Sort(keys)

	return keys
}

// end ends the run of the message that waits for a receiver, and lets the notifier notice.
func (w *world) end(name string, state task.State) {
	w.Helper()
	run := w.queued(name)
	if run == nil {
		w.Fatalf("no message waits for %s", name)
	}

	ref := w.RefOf(name)
	end := run.Run
	end.State, end.EndedAt = state, task.At(time.Now())
	_, err := w.Etcd.Delete(w.Context(), w.Keys.Queued(ref, run.ID))
	w.Must(err)
	w.Put(w.Keys.Ended(ref, run.ID), string(record.EncodeEnded(end)))
	w.wait(2 * passEvery)
}

// clusterAlert returns the text of an alert about the cluster; "" if it is not open.
func (w *world) clusterAlert(code string) string {
	w.Helper()
	all, err := w.Store.ClusterAlerts(w.Context())
	w.Must(err)
	for _, a := range all {
		if a.Code == code && a.IsOpen() {
			return a.Text
		}
	}

	return ""
}

// Verifies: G59, G60
func TestNotifier_SendsWhatOpensAndCloses(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.open("shop/sync", slack)
		w.wait(5 * time.Second)
		w.expectNone(slack) // an alert must be open for 10 s

		w.wait(11 * time.Second)
		run := w.expectMessage(slack, []string{"shop/sync"}, nil)
		if !run.CreatedBy.Is("carillon") || run.Trigger != task.TriggerManual || run.State != task.Queued || !slices.Equal(run.EnvNames, []string{"ALERT_TEXT", "ALERT_TITLE", "OTHER"}) {
			w.Errorf("the run is %+v", run.Run)
		}
		if text, other := run.Env["ALERT_TEXT"], run.Env["OTHER"]; !strings.Contains(text, "shop/sync") || other != "" {
			w.Errorf("its variables are %q", run.Env)
		}

		// While the run has not ended, nothing is sent.
		w.open("shop/web", slack)
		w.wait(10 * time.Minute)
		w.expectMessage(slack, []string{"shop/sync"}, nil)

		w.end(slack, task.Succeeded)
		w.expectMessage(slack, []string{"shop/web"}, nil)
		w.end(slack, task.Succeeded)

		w.close("shop/sync")
		w.wait(4 * time.Minute)
		w.expectNone(slack) // a closing is held for 5 min
		w.wait(7 * time.Minute)
		w.expectMessage(slack, nil, []string{"shop/sync"})
		w.end(slack, task.Succeeded)

		if s := w.sent(slack); !slices.Equal(s.Delivered, w.keysOf([]string{"shop/web"})) || s.Sending != nil || len(s.Past) != 3 || s.LastDelivered.IsZero() {
			w.Errorf("at the end: %+v", s)
		}
		if n := valueOf(w.T, w.notifier.messages.WithLabelValues(outcomeDelivered)); n != 3 {
			w.Errorf("%v messages were delivered", n)
		}
		if n := valueOf(w.T, w.notifier.open.WithLabelValues("failures")); n != 1 {
			w.Errorf("%v alerts are open", n)
		}
	})
}

// An incident service knows an alert by its key. When another task of the name takes the record of the alert, the service is told that
// the former one is closed.
func TestNotifier_ResolvesTheAlertOfAFormerTask(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addTask(slack, func(t *task.Task) {
			t.Receiver = &task.Receiver{From: []string{"shop"}}
			t.Accept.Env = []string{"ALERT_KEY", "ALERT_ACTION", "ALERT_TITLE"}
		})
		w.addTask("shop/sync", func(*task.Task) {})
		w.open("shop/sync", slack)
		w.wait(16 * time.Second)
		first := w.expectMessage(slack, []string{"shop/sync"}, nil)
		former := w.keysOf([]string{"shop/sync"})
		w.end(slack, task.Succeeded)

		// The evaluator closes the alert, and opens that of the new task in the same record.
		key := w.Keys.Alert(w.RefOf("shop/sync"), task.AlertFailures)
		res, err := w.Etcd.Get(w.Context(), key)
		w.Must(err)
		a, _, _, err := record.DecodeAlert(w.Keys, res.Kvs[0])
		w.Must(err)
		now := task.At(time.Now())
		a.Former = []task.FormerAlert{{UID: a.UID, Since: a.Since, Closed: task.AlertClose{At: now, Why: task.AlertDeleted, By: task.NewActor("ann")}}}
		a.UID, a.OpenedAt = w.addTask("shop/sync", func(*task.Task) {}).UID, now
		w.Put(key, record.EncodeAlert(a))

		w.wait(2 * time.Minute)
		second := w.expectMessage(slack, []string{"shop/sync"}, nil)
		w.end(slack, task.Succeeded)
		w.wait(6 * time.Minute)
		m := w.sent(slack).Sending
		third := w.queued(slack)
		if third == nil || len(m.Opened) > 0 || !slices.Equal(m.Closed, former) {
			w.Fatalf("the message is %+v", m)
		}

		if third.Env["ALERT_ACTION"] != "resolve" || third.Env["ALERT_KEY"] != first.Env["ALERT_KEY"] || second.Env["ALERT_KEY"] == first.Env["ALERT_KEY"] {
			w.Errorf("the messages are %q, %q, %q", first.Env, second.Env, third.Env)
		}
		if !strings.Contains(third.Env["ALERT_TITLE"], "CLOSED shop/sync") {
			w.Errorf("its title is %q", third.Env["ALERT_TITLE"])
		}

		w.end(slack, task.Succeeded)
		w.wait(time.Hour)
		w.expectNone(slack)
	})
}

func TestNotifier_SendsNothingBeforeFreezesAreKnown(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.set(func() { w.unknownFreezes = true })
		w.open("shop/sync", slack)
		w.wait(time.Minute)
		w.expectNone(slack)

		w.set(func() { w.unknownFreezes = false })
		w.wait(6 * time.Second)
		w.expectMessage(slack, []string{"shop/sync"}, nil)
	})
}

func TestNotifier_NamesOnlyReceiversThatGetMessages(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, name := range []string{slack, "ops/pager", "ops/paused"} {
			w.addReceiver(name)
		}
		w.Edit("ops/paused", func(t *task.Task) { t.Paused = true })
		w.addTask("ops/other", func(t *task.Task) { t.Receiver = &task.Receiver{From: []string{"web"}} })

		w.open("shop/sync", slack, "ops/none", "ops/other", "ops/pager", "ops/paused")
		w.wait(16 * time.Second)
		run := w.expectMessage(slack, []string{"shop/sync"}, nil)
		if text := run.Env["ALERT_TEXT"]; !strings.HasSuffix(text, "also notified: ops/pager") {
			w.Errorf("the message is %q", text)
		}
	})
}

func TestNotifier_SendsPlainMessagesAfterAFailure(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.open("shop/sync", slack)
		w.wait(20 * time.Second)
		w.end(slack, task.Failed)
		if s := w.sent(slack); s.FailedInARow != 1 || len(s.Delivered) != 0 || len(s.Uncertain) != 1 {
			w.Errorf("after a failure: %+v", s)
		}
		w.expectNone(slack)

		w.wait(time.Minute)
		w.expectMessage(slack, []string{"shop/sync"}, nil)
		if !w.sent(slack).Sending.Plain {
			w.Error("the next message is not plain")
		}
		w.end(slack, task.Succeeded)
		if s := w.sent(slack); s.FailedInARow != 0 || len(s.Delivered) != 1 || len(s.Uncertain) != 0 {
			w.Errorf("after a success: %+v", s)
		}
		if n := valueOf(w.T, w.notifier.messages.WithLabelValues(outcomeFailed)); n != 1 {
			w.Errorf("%v messages failed", n)
		}
	})
}

// Verifies: G59
func TestNotifier_ContinuesInTheNextTerm(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.open("shop/sync", slack)
		w.wait(20 * time.Second)
		first := w.expectMessage(slack, []string{"shop/sync"}, nil).ID

		w.lead()
		w.wait(10 * time.Minute)
		if again := w.expectMessage(slack, []string{"shop/sync"}, nil).ID; again != first {
			w.Error("the next leader has sent the message again")
		}
		w.end(slack, task.Succeeded)

		w.lead()
		w.wait(10 * time.Minute)
		w.expectNone(slack)
		if s := w.sent(slack); len(s.Delivered) != 1 {
			w.Errorf("at the end: %+v", s)
		}
	})
}

// Verifies: G59
func TestNotifier_SendsOnceIfAnAnswerIsLost(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.writes.lose.Store(1)
		w.open("shop/sync", slack)
		w.wait(10 * time.Minute)
		w.expectMessage(slack, []string{"shop/sync"}, nil)

		w.writes.lose.Store(1)
		w.end(slack, task.Succeeded)
		w.wait(10 * time.Minute)
		w.expectNone(slack)
		if s := w.sent(slack); len(s.Delivered) != 1 || len(s.Past) != 1 || w.writes.lose.Load() >= 0 {
			w.Errorf("at the end: %+v", s)
		}
	})
}

// Each shard counts the alerts that have no record in a record of its own. To a receiver, those of a namespace are one alert, which is
// open as long as one of them is.
//
// Verifies: G60
func TestNotifier_SendsCountedAlertsOfAllShardsAsOne(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		opened := task.At(time.Now())
		count := func(shard, n int, closed *task.AlertClose) {
			a := task.Alert{Since: opened, OpenedAt: opened, More: map[task.AlertKind]int{task.AlertFailures: n}, Closed: closed}
			w.Put(w.Keys.AlertsMore(shard, "shop", slack), record.EncodeAlert(a))
		}
		count(0, 30, nil)
		count(1, 12, nil)
		w.wait(20 * time.Second)
		if run := w.queued(slack); run == nil || !strings.Contains(run.Env["ALERT_TITLE"], "MORE shop: 42 alerts without a name") {
			w.Fatalf("the message is %+v", run)
		}
		w.end(slack, task.Succeeded)

		count(1, 12, &task.AlertClose{At: task.At(time.Now()), Why: task.AlertSolved})
		w.wait(time.Hour)
		w.expectNone(slack)

		count(0, 30, &task.AlertClose{At: task.At(time.Now()), Why: task.AlertSolved})
		w.wait(6 * time.Minute)
		if run := w.queued(slack); run == nil || !strings.Contains(run.Env["ALERT_TITLE"], "CLOSED shop") {
			w.Fatalf("the message is %+v", run)
		}
		w.end(slack, task.Succeeded)
		w.wait(time.Hour)
		w.expectNone(slack)
	})
}

// A group has a run for each alert, with its key. The message ends when all of them have ended, whatever leader has begun it. A closing has
// the key of its opening, also if the record of the alert is gone by then.
//
// Verifies: G59, G60
func TestNotifier_SendsARunForEachAlertOfAGroup(t *testing.T) {
	const pager = "ops/pager"
	inWorld(t, func(w *world) {
		w.addTask(pager, func(t *task.Task) {
			t.Receiver = &task.Receiver{From: []string{"shop"}, Group: task.GroupTask, Repeat: new(task.Duration)}
			t.Accept.Env = []string{"ALERT_KEY", "ALERT_ACTION", "ALERT_TITLE", "ALERT_TASK", "ALERT_ENDS"}
		})

		// told returns what the runs of the message tell, by key, after it has ended them as outcome says.
		told := func(outcome func(env map[string]string) task.State) map[string]string {
			t.Helper()
			told := map[string]string{}
			for _, id := range w.sent(pager).Sending.Runs {
				res, err := w.Etcd.Get(w.Context(), w.Keys.Queued(w.RefOf(pager), id))
				w.Must(err)
				k, _ := w.Keys.ParseShard(string(res.Kvs[0].Key))
				run, err := record.DecodeWaiting(k, res.Kvs[0].Value)
				w.Must(err)

				told[run.Env["ALERT_KEY"]] = run.Env["ALERT_ACTION"] + " " + run.Env["ALERT_TASK"]
				if title := run.Env["ALERT_TITLE"]; !strings.Contains(title, run.Env["ALERT_TASK"]) {
					t.Errorf("the title of %q is %q", run.Env["ALERT_TASK"], title)
				}

				end := run.Run
				end.State, end.EndedAt = outcome(run.Env), task.At(time.Now())
				_, err = w.Etcd.Delete(w.Context(), w.Keys.Queued(w.RefOf(pager), id))
				w.Must(err)
				w.Put(w.Keys.Ended(w.RefOf(pager), id), string(record.EncodeEnded(end)))
				if len(told) == 1 {
					w.lead()
					w.wait(time.Minute)
				}
			}
			w.wait(2 * passEvery)

			return told
		}
		want := func(what string, got map[string]string, actions map[string]string) {
			t.Helper()
			if !maps.Equal(got, actions) {
				t.Errorf("%s: %q, want %q", what, got, actions)
			}
		}
		keyOf := func(name string) string { return alert.FormatKey(w.keysOf([]string{name})[0]) }

		w.open("shop/a", pager)
		w.open("shop/b", pager)
		w.wait(20 * time.Second)
		a, b := keyOf("shop/a"), keyOf("shop/b")
		first := told(func(env map[string]string) task.State {
			if env["ALERT_TASK"] == "shop/b" {
				return task.Failed
			}
			return task.Succeeded
		})
		want("the first message", first, map[string]string{a: "trigger shop/a", b: "trigger shop/b"})

		// Only what has failed is sent again, with the same key.
		w.wait(2 * time.Minute)
		want("the second message", told(func(map[string]string) task.State { return task.Succeeded }), map[string]string{b: "trigger shop/b"})
		if s := w.sent(pager); !slices.Equal(s.Delivered, w.keysOf([]string{"shop/a", "shop/b"})) || len(s.Uncertain) != 0 {
			t.Errorf("the record is %+v", s)
		}

		// The record of one alert is deleted before its receiver can be told.
		w.Edit(pager, func(t *task.Task) { t.Paused = true })
		w.close("shop/a")
		w.close("shop/b")
		_, err := w.Etcd.Delete(w.Context(), w.Keys.Alert(w.RefOf("shop/b"), task.AlertFailures))
		w.Must(err)
		w.wait(10 * time.Minute)
		w.Edit(pager, func(t *task.Task) { t.Paused = false })
		w.wait(10 * time.Second)
		want("the closings", told(func(map[string]string) task.State { return task.Succeeded }), map[string]string{a: "resolve shop/a", b: "resolve "})

		w.wait(time.Hour)
		if s := w.sent(pager); s.Sending != nil || len(s.Delivered)+len(s.Uncertain) != 0 {
			t.Errorf("at the end: %+v", s)
		}
		if n := valueOf(w.T, w.notifier.messages.WithLabelValues(outcomeDelivered)); n != 4 {
			t.Errorf("%v runs were delivered", n)
		}
	})
}

func TestNotifier_EndsWithItsTerm(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		_, err := w.Etcd.Delete(w.Context(), w.LeaderKey())
		w.Must(err)
		w.open("shop/sync", slack)
		w.wait(time.Minute)
		w.expectNone(slack)
		w.Stop() // returns at once, and reports an error that is not ErrFenced
	})
}

func TestNotifier_WritesNothingWithoutAClock(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.set(func() { w.refused = errors.New("the clock jumped") })
		w.open("shop/sync", slack)
		w.wait(time.Hour)
		w.expectNone(slack)

		w.set(func() { w.refused = nil })
		w.wait(10 * time.Second)
		w.expectMessage(slack, []string{"shop/sync"}, nil)
	})
}

// Verifies: G60
func TestNotifier_SendsAgainWhatIsLost(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.open("shop/sync", slack)
		w.wait(20 * time.Second)
		run := w.expectMessage(slack, []string{"shop/sync"}, nil)

		// It is active for five minutes: neither queued nor ended.
		ref := w.RefOf(slack)
		_, err := w.Etcd.Delete(w.Context(), w.Keys.Queued(ref, run.ID))
		w.Must(err)
		inbox := w.Keys.Run("n1", ref, run.ID)
		w.Put(inbox, string(record.EncodeAssigned(&task.Assigned{Run: run.Run, Instance: "i"}, `{"noop":{}}`)))
		w.wait(5 * time.Minute)
		if s := w.sent(slack); s.Sending == nil || s.Sending.Runs[0] != run.ID {
			w.Fatalf("while the run is active: %+v", s)
		}

		// The record disappears.
		_, err = w.Etcd.Delete(w.Context(), inbox)
		w.Must(err)
		w.wait(2*time.Minute + 10*time.Second)
		w.expectMessage(slack, []string{"shop/sync"}, nil)
		if s := w.sent(slack); !s.Sending.Plain || s.Past[0].Runs[0] != run.ID || !s.Past[0].Failed {
			w.Errorf("after the run has disappeared: %+v", s)
		}
	})
}

func TestNotifier_HoldsMessagesOfPausedAndFrozenReceivers(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.Edit(slack, func(t *task.Task) { t.Paused = true })
		w.open("shop/sync", slack)
		w.wait(5 * time.Minute)
		w.expectNone(slack)
		if text := w.clusterAlert(task.WarnReceivers); text != "ops/slack is paused by ann while alerts wait" {
			w.Errorf("the cluster says %q", text)
		}

		w.Edit(slack, func(t *task.Task) { t.Paused = false })
		w.set(func() { w.freezes.Holding = []task.Freeze{{Namespace: "ops", By: task.NewActor("bob")}} })
		w.wait(5 * time.Minute)
		w.expectNone(slack)
		if text := w.clusterAlert(task.WarnReceivers); text != "ops/slack is frozen by bob while alerts wait" {
			w.Errorf("the cluster says %q", text)
		}

		w.set(func() { w.freezes.Holding = nil })
		w.wait(10 * time.Second)
		w.expectMessage(slack, []string{"shop/sync"}, nil)
		if text := w.clusterAlert(task.WarnReceivers); text != "" {
			w.Errorf("the cluster says %q", text)
		}
	})
}

// A freeze has begun, but the watch of the leader is late. A message would wait in the queue until the freeze ends.
func TestNotifier_ComparesTheFreezes(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		frozen := w.Put(w.Keys.Freezes(), "frozen")
		w.open("shop/sync", slack)
		w.wait(time.Minute)
		w.expectNone(slack)

		w.set(func() { w.freezes.Holding, w.freezesMod = []task.Freeze{{Namespace: "ops"}}, frozen })
		w.wait(time.Minute)
		w.expectNone(slack)

		ended := w.Put(w.Keys.Freezes(), "ended")
		w.set(func() { w.freezes.Holding, w.freezesMod = nil, ended })
		w.wait(10 * time.Second)
		w.expectMessage(slack, []string{"shop/sync"}, nil)
	})
}

func TestNotifier_SendsOnlyWhatAReceiverAccepts(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.open("web/a", slack)
		w.open("ops/b", slack)
		w.open("shop/sync", slack)
		w.wait(2 * time.Minute)
		w.expectMessage(slack, []string{"ops/b", "shop/sync"}, nil)
		w.end(slack, task.Succeeded)
		if text := w.clusterAlert(task.WarnReceivers); text != "ops/slack does not accept alerts of web" {
			w.Errorf("the cluster says %q", text)
		}

		// What it was told before closes for it.
		w.Edit(slack, func(t *task.Task) { t.Receiver = &task.Receiver{} })
		w.open("ops/b") // it names nobody any more
		w.wait(2 * time.Minute)
		w.expectMessage(slack, nil, []string{"ops/b", "shop/sync"})
	})
}

func TestNotifier_ForgetsReceiversThatAreGone(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.open("shop/sync", slack)
		w.wait(20 * time.Second)
		w.end(slack, task.Succeeded)

		w.deleteTask(slack)
		w.wait(2 * time.Minute)
		if s := w.sent(slack); s.Mod != 0 {
			w.Errorf("what was sent is still on record: %+v", s)
		}
		if text := w.clusterAlert(task.WarnReceivers); text != "ops/slack does not exist, or is not a receiver" {
			w.Errorf("the cluster says %q", text)
		}

		// Another one gets all that is open.
		w.addReceiver(slack)
		w.wait(10 * time.Second)
		w.expectMessage(slack, []string{"shop/sync"}, nil)
		w.end(slack, task.Succeeded)

		w.Edit(slack, func(t *task.Task) { t.Receiver = nil })
		w.wait(10 * time.Second)
		if s := w.sent(slack); s.Mod != 0 {
			w.Errorf("what was sent is still on record: %+v", s)
		}
	})
}

func TestNotifier_TellsANewReceiverAll(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.open("shop/sync", slack)
		w.wait(20 * time.Second)
		old := w.expectMessage(slack, []string{"shop/sync"}, nil).ID

		w.addReceiver(slack) // deleted with its queue, and created again between two passes
		w.wait(10 * time.Second)
		if run := w.expectMessage(slack, []string{"shop/sync"}, nil); run.ID == old {
			w.Error("the message is that of the receiver before")
		}
	})
}

func TestNotifier_Silences(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		created := w.Put(w.Keys.Namespace("shop"), record.Encode(store.OpenNamespace("shop")))
		for id, silence := range map[string]task.AlertSilence{
			"a":    {Glob: "sy*", Until: task.At(time.Now().Add(time.Hour)), By: task.NewActor("ann"), NamespaceRev: created},
			"void": {Glob: "*", Until: task.At(time.Now().Add(time.Hour)), By: task.NewActor("bob"), NamespaceRev: created - 1}, // of a namespace that was deleted
		} {
			w.Put(w.Keys.Silence("shop", id), record.EncodeSilence(silence))
		}
		exists := func(id string) bool {
			res, err := w.Etcd.Get(w.Context(), w.Keys.Silence("shop", id))
			w.Must(err)
			return len(res.Kvs) == 1
		}

		w.open("shop/sync", slack)
		w.open("shop/web", slack)
		w.wait(20 * time.Second)
		if run := w.expectMessage(slack, []string{"shop/web"}, nil); !strings.Contains(run.Env["ALERT_TEXT"], "1 silenced by ann until") {
			w.Errorf("the text is %q", run.Env["ALERT_TEXT"])
		}
		w.end(slack, task.Succeeded)
		if !exists("a") || exists("void") {
			w.Errorf("the silence exists: %t; the void one: %t", exists("a"), exists("void"))
		}

		w.wait(time.Hour)
		w.expectMessage(slack, []string{"shop/sync"}, nil)
		if exists("a") {
			w.Error("the silence that has ended still exists")
		}
	})
}

func TestNotifier_SaysWhatIsKnownOfATask(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		at := func(d time.Duration) task.Time { return task.At(w.began.Add(d)) }
		sync := w.addTask("shop/sync", func(t *task.Task) {
			t.Schedule, t.Description, t.Labels = task.Schedules{"0 * * * *"}, "Runbook: https://wiki/sync", map[string]string{"owner": "team-data"}
		})

		ref := w.RefOf("shop/sync")
		success := task.Run{ID: task.RunID(at(-2*time.Hour).Time, sync.UID), UID: sync.UID, State: task.Succeeded, Trigger: task.TriggerSchedule, ScheduledTime: at(-2 * time.Hour), EndedAt: at(-119 * time.Minute)}
		failed := success
		failed.ID, failed.State, failed.ScheduledTime, failed.EndedAt = task.RunID(at(-time.Hour).Time, sync.UID), task.Failed, at(-time.Hour), at(-59*time.Minute)
		failed.OutputTail, failed.Node = "pg_dump: error: no connection", "n7"
		for _, run := range []task.Run{success, failed} {
			w.Put(w.Keys.Ended(ref, run.ID), string(record.EncodeEnded(run)))
		}
		w.Put(w.Keys.Alert(ref, task.AlertFailures), record.EncodeAlert(task.Alert{UID: sync.UID, OpenedAt: at(0), Since: at(-59 * time.Minute), Run: failed.ID, Notify: []string{slack}, Labels: sync.Labels}))

		w.wait(20 * time.Second)
		text := w.expectMessage(slack, []string{"shop/sync"}, nil).Env["ALERT_TEXT"]
		for _, want := range []string{"shop/sync", "n7", failed.ID, "Runbook: https://wiki/sync", "team-data", success.EndedAt.UTC().Format("15:04"), "next: "} {
			if !strings.Contains(text, want) {
				w.Errorf("the text has no %q:\n%s", want, text)
			}
		}
		if strings.Contains(text, "pg_dump") {
			w.Errorf("the text has output of another namespace:\n%s", text)
		}
	})
}

func TestNotifier_SaysIfAMessageIsNotDelivered(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.open("shop/sync", slack)
		w.wait(20 * time.Second)
		began := w.sent(slack).Sending.At.UTC().Format(time.RFC3339)
		w.wait(7 * time.Minute)
		if text := w.clusterAlert(task.WarnReceivers); text != "ops/slack has a message that waits for a node since "+began {
			w.Errorf("the cluster says %q", text)
		}

		for range 6 {
			if w.queued(slack) != nil {
				w.end(slack, task.Failed)
			}
			w.wait(5 * time.Minute)
		}
		for w.queued(slack) == nil {
			w.wait(time.Minute)
		}
		if text := w.clusterAlert(task.WarnReceivers); text != "ops/slack gets no messages since "+began {
			w.Errorf("the cluster says %q", text)
		}
		w.end(slack, task.Succeeded)
		if text := w.clusterAlert(task.WarnReceivers); text != "" {
			w.Errorf("the cluster says %q", text)
		}
	})
}

func TestNotifier_ReportsTasksThatAreNotEvaluated(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.set(func() {
			w.cluster.AlertReceivers = []string{slack}
			w.nodes[0].NotEvaluated = new(3)
		})
		w.wait(4 * time.Minute)
		if text := w.clusterAlert(task.WarnNotEvaluated); text != "" {
			w.Errorf("after four minutes: %q", text)
		}
		w.wait(2 * time.Minute)
		if text := w.clusterAlert(task.WarnNotEvaluated); text != "the alerts of 3 tasks are not evaluated" {
			w.Errorf("after six minutes: %q", text)
		}
		w.wait(20 * time.Second)
		if run := w.queued(slack); run == nil || !strings.Contains(run.Env["ALERT_TEXT"], "the alerts of 3 tasks are not evaluated") {
			w.Errorf("the message is %+v", run)
		}
		w.end(slack, task.Succeeded)

		// It closes, and its record is deleted later.
		w.set(func() { w.nodes[0].NotEvaluated = new(int) })
		w.wait(10 * time.Second)
		if text := w.clusterAlert(task.WarnNotEvaluated); text != "" {
			w.Errorf("when all are evaluated: %q", text)
		}
		w.wait(10 * time.Minute)
		w.end(slack, task.Succeeded)
		w.wait(2 * time.Hour)
		if all, err := w.Store.ClusterAlerts(w.Context()); err != nil || len(all) != 0 {
			w.Errorf("two hours later: %v, %v", all, err)
		}
	})
}

// Six thousand tasks fail within a minute, and one in another namespace with another receiver.
//
// Verifies: G59, G60
func TestNotifier_StaysCalmInAStorm(t *testing.T) {
	inWorld(t, func(w *world) {
		const mail = "web/mail"
		w.addReceiver(slack)
		w.addReceiver(mail)

		messages := 0
		for second := range 6 * 60 {
			if second < 50 {
				for i := range 120 {
					name := fmt.Sprintf("task%05d", second*120+i)
					w.Put(w.Keys.Alert(w.Ref("shop", name), task.AlertFailures), record.EncodeAlert(task.Alert{UID: "u", OpenedAt: task.At(time.Now()), Notify: []string{slack}}))
				}
			}
			if second == 30 {
				w.open("web/lone", mail)
			}
			if second == 50 {
				w.expectMessage(mail, []string{"web/lone"}, nil)
			}

			w.wait(time.Second)
			if w.queued(slack) != nil {
				messages++
				w.end(slack, task.Succeeded)
			}
		}
		s := w.sent(slack)
		if messages > 3 || len(s.Delivered) != 5000 || s.Horizon == 0 {
			w.Errorf("%d messages, %d delivered, horizon %d", messages, len(s.Delivered), s.Horizon)
		}

		// A new one among so many is named.
		w.wait(10 * time.Minute)
		w.open("shop/new", slack)
		w.wait(20 * time.Second)
		if run := w.expectMessage(slack, []string{"shop/new"}, nil); !strings.Contains(run.Env["ALERT_TEXT"], "shop/new") || !strings.Contains(run.Env["ALERT_TEXT"], "6000 more open") {
			w.Errorf("the text is %q", run.Env["ALERT_TEXT"])
		}
	})
}

func TestNotEvaluated_CountsTasksShardsAndNodes(t *testing.T) {
	owners := []record.Owner{{Shard: 0, Node: "a"}, {Shard: 1, Node: "b"}, {Shard: 2, Node: "gone"}}
	for _, c := range []struct {
		name   string
		nodes  []task.Node
		unused bool
		want   string
	}{
		{"all evaluate", []task.Node{{Name: "a", NotEvaluated: new(int)}, {Name: "b", NotEvaluated: new(int)}, {Name: "gone", NotEvaluated: new(int)}}, false, ""},
		{"tasks", []task.Node{{Name: "a", NotEvaluated: new(2)}, {Name: "b", NotEvaluated: new(3)}, {Name: "gone", NotEvaluated: new(int)}}, true, "the alerts of 5 tasks are not evaluated"},
		{"shards and an older version", []task.Node{{Name: "a", NotEvaluated: new(int)}, {Name: "b"}}, false, "1 of 3 shards have no owner; nodes of an older version evaluate no alerts: b"},
		{"nobody uses alerts", []task.Node{{Name: "a"}, {Name: "b"}}, true, ""},
	} {
		if got := notEvaluated(c.nodes, owners, 3, !c.unused); got != c.want {
			t.Errorf("%s: %q; want %q", c.name, got, c.want)
		}
	}
}
