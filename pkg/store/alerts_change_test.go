package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// putAlert writes an alert, like the owner of its shard.
func (w *world) putAlert(r record.Ref, kind task.AlertKind) {
	w.Helper()
	w.put(w.keys.Alert(r, kind), record.EncodeAlert(task.Alert{UID: "u", Since: task.At(noon)}))
}

// alertNames returns the names of alerts, in order.
func alertNames(list []task.Alert) []string {
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].FullName()
	}

	return names
}

// listAlerts reads all pages of a list.
func (w *world) listAlerts(limit int, cluster bool, namespaces []string) []task.Alert {
	w.Helper()
	return w.listAllAlerts(store.AlertPage{Shards: 8, Namespaces: namespaces, Cluster: cluster, Limit: limit})
}

// listAllAlerts reads a page of a list, and all that follow it.
func (w *world) listAllAlerts(p store.AlertPage) (list []task.Alert) {
	w.Helper()
	limit := p.Limit
	for range 1000 {
		page, next, err := w.ListAlerts(w.Context(), p)
		ok(w.T, err)
		if len(page) > limit || next != "" && len(page) != limit {
			w.Fatalf("a page of %d has %d alerts, and is followed by %q", limit, len(page), next)
		}

		list = append(list, page...)
		if p.After = next; next == "" {
			return list
		}
	}

	w.Fatal("the list does not end")

	return nil
}

// A list has each alert of its namespaces once, whatever the size of its pages, and nothing of others. Alerts of one shard are more than a range
// is read at a time.
func TestListAlerts_HasEachAlertOnce(t *testing.T) {
	w := newWorld(t)
	var all []string

	for i, ns := range []string{"a", "a-b", "b", "c"} {
		for n := range 70 {
			r := record.Ref{Namespace: ns, Name: fmt.Sprintf("t%02d", n), Shard: 3}
			if n >= 60 {
				r.Shard = (n + i) % 8
			}

			w.putAlert(r, task.AlertFailures)
			all = append(all, r.String()+":failures")
		}
	}
	w.putAlert(record.Ref{Namespace: "a", Name: "t00", Shard: 3}, task.AlertSuccessBy)
	w.put(w.keys.AlertsMore(3, "a", "ops/slack"), `{"more":{"failures":9}}`)
	w.put(w.keys.ClusterAlert("not_evaluated"), `{"text":"3 tasks"}`)
	w.put(w.keys.SentTo(ref), `{}`)
	w.put(w.keys.Silence("a", "s1"), `{}`)
	all = append(all, "a/t00:success_by", "a/~more:ops/slack")

	of := func(namespaces ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(name string) bool {
			ns, _, _ := strings.Cut(name, "/")
			return !slices.Contains(namespaces, ns)
		})
	}

	for _, limit := range []int{1, 7, 50, 51, 1000} {
		for _, c := range []struct {
			namespaces []string
			want       []string
		}{
			{nil, all}, {[]string{"a"}, of("a")}, {[]string{"a", "a-b"}, of("a", "a-b")}, {[]string{"b", "none"}, of("b")}, {[]string{}, nil},
		} {
			for _, cluster := range []bool{false, true} {
				got, want := alertNames(w.listAlerts(limit, cluster, c.namespaces)), slices.Clone(c.want)
				if cluster {
					want = append(want, "cluster:not_evaluated")
				}

				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("%v in pages of %d, of the cluster: %t: %d alerts, want %d", c.namespaces, limit, cluster, len(got), len(want))
				}
			}
		}
	}
}

// A caller with many namespaces reads few keys, and not a range of each shard and namespace.
func TestListAlerts_ReadsManyRangesInFewRequests(t *testing.T) {
	w := newWorld(t)
	var want []string
	for i, ns := range []string{"a", "b", "n07"} {
		for n := range 30 {
			r := record.Ref{Namespace: ns, Name: fmt.Sprintf("t%02d", n), Shard: n*100 + i}
			w.putAlert(r, task.AlertFailures)
			if ns != "b" {
				want = append(want, r.String()+":failures")
			}
		}
	}
	w.put(w.keys.AlertsMore(3, "a", "ops/slack"), `{"more":{"failures":9}}`)
	w.put(w.keys.AlertsMore(3, "b", "ops/slack"), `{"more":{"failures":9}}`)
	w.put(w.keys.ClusterAlert("not_evaluated"), `{"text":"3 tasks"}`)
	want = append(want, "a/~more:ops/slack")

	namespaces := []string{"a"}
	for i := range 49 {
		namespaces = append(namespaces, fmt.Sprintf("n%02d", i))
	}
	c, err := kv.Dial(t.Context(), kv.Config{Endpoints: shared.Endpoints()})
	ok(t, err)
	t.Cleanup(func() { _ = c.Close() })
	counting := &countingKV{KV: c.KV}
	c.KV = counting
	w.Store = store.New(c, kv.Direct(c), w.keys)

	for _, cluster := range []bool{false, true} {
		if cluster {
			want = append(want, "cluster:not_evaluated")
		}
		slices.Sort(want)
		for _, limit := range []int{7, 1000} {
			counting.requests = 0
			got := alertNames(w.listAllAlerts(store.AlertPage{Shards: 4096, Namespaces: namespaces, Cluster: cluster, Limit: limit}))
			slices.Sort(got)
			if pages := len(want)/limit + 1; !slices.Equal(got, want) || counting.requests > pages {
				t.Errorf("in pages of %d, of the cluster: %t: %d alerts, want %d; %d requests, want at most %d", limit, cluster, len(got), len(want), counting.requests, pages)
			}
		}
	}
}

// The records of several alerts that one request creates have the same create revision. This is why commands name alerts by their
// tasks, and not by this number.
func TestAlerts_OfOneRequestHaveOneRevision(t *testing.T) {
	w := newWorld(t)
	_, err := w.etcd.Txn(t.Context()).Then(clientv3.OpPut(w.keys.Alert(ref, task.AlertFailures), "{}"), clientv3.OpPut(w.keys.Alert(ref, task.AlertSuccessBy), "{}")).Commit()
	ok(t, err)

	list, err := w.AlertsOf(t.Context(), ref)
	if err != nil || len(list) != 2 || list[0].ID != list[1].ID || list[0].FullName() != "default/a:failures" || list[1].FullName() != "default/a:success_by" {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestAcknowledgeAlert_ComparesTheAlert(t *testing.T) {
	w := newWorld(t)
	w.putAlert(ref, task.AlertFailures)
	list, err := w.AlertsOf(t.Context(), ref)
	ok(t, err)

	first, err := w.AcknowledgeAlert(t.Context(), ref, list[0], task.AlertMark{At: task.At(noon), By: task.NewActor("ann")})
	ok(t, err)
	_, err = w.AcknowledgeAlert(t.Context(), ref, list[0], task.AlertMark{At: task.At(noon), By: task.NewActor("bob")})
	is(t, err, task.ErrConflict)

	list, err = w.AlertsOf(t.Context(), ref)
	if err != nil || !list[0].Acknowledged.Equal(&task.AlertMark{At: task.At(noon), By: task.NewActor("ann")}) || list[0].Mod != first.Mod || list[0].UID != "u" || !list[0].Since.Equal(noon) {
		t.Errorf("%+v, %v", list, err)
	}

	_, err = w.ClusterAlert(t.Context(), "not_evaluated")
	is(t, err, task.ErrNotFound)
	w.put(w.keys.ClusterAlert("not_evaluated"), `{"text":"3 tasks"}`)
	a, err := w.ClusterAlert(t.Context(), "not_evaluated")
	ok(t, err)
	_, err = w.AcknowledgeAlert(t.Context(), record.Ref{}, a, task.AlertMark{At: task.At(noon), By: task.NewActor("ann")})
	ok(t, err)
	if a, err = w.ClusterAlert(t.Context(), "not_evaluated"); err != nil || a.Text != "3 tasks" || a.Acknowledged == nil {
		t.Errorf("%+v, %v", a, err)
	}
}

// A silence does not survive its namespace, also if nobody deletes its record.
func TestSilences_BelongToOneNamespace(t *testing.T) {
	w := newWorld(t)
	s := task.AlertSilence{ID: "s1", Namespace: "shop", Glob: "*", Since: task.At(noon), Until: task.At(noon.Add(time.Hour)), By: task.NewActor("ann"), Reason: "a move"}
	_, err := w.CreateSilence(t.Context(), s)
	is(t, err, task.ErrNotFound)

	w.put(w.keys.Namespace("shop"), "{}")
	first, err := w.CreateSilence(t.Context(), s)
	ok(t, err)
	_, err = w.CreateSilence(t.Context(), s)
	is(t, err, task.ErrConflict) // its ID is taken

	list, err := w.Silences(t.Context(), []string{"none", "shop"})
	if err != nil || len(list) != 1 || !reflect.DeepEqual(list[0], first) {
		t.Fatalf("%+v, %v, want %+v", list, err, first)
	}

	// The namespace is created again while a silence is written.
	w.writes.next()
	w.writes.before = func(int) {
		w.del(w.keys.Namespace("shop"))
		w.put(w.keys.Namespace("shop"), "{}")
	}
	s.ID = "s2"
	_, err = w.CreateSilence(t.Context(), s)
	is(t, err, task.ErrConflict)
	w.writes.before = nil

	if list, err = w.Silences(t.Context(), []string{"shop"}); err != nil || len(list) != 0 {
		t.Errorf("of a namespace that was deleted: %+v, %v", list, err)
	}
}

func TestEndSilence_SaysWhoEndedIt(t *testing.T) {
	w := newWorld(t)
	s, err := w.CreateSilence(t.Context(), task.AlertSilence{ID: "s1", Namespace: "default", Glob: "*", Since: task.At(noon), Until: task.At(noon.Add(time.Hour)), By: task.NewActor("ann")})
	ok(t, err)
	ended, err := w.EndSilence(t.Context(), s, task.At(noon.Add(time.Minute)), task.NewActor("bob"))
	ok(t, err)
	_, err = w.EndSilence(t.Context(), s, task.At(noon.Add(time.Minute)), task.NewActor("eve"))
	is(t, err, task.ErrConflict)

	list, err := w.Silences(t.Context(), []string{"default"})
	if err != nil || len(list) != 1 || !reflect.DeepEqual(list[0], ended) || !ended.EndedBy.Is("bob") || !ended.Until.Equal(noon.Add(time.Minute)) {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestSentTo_IsInTheOrderOfTheReceivers(t *testing.T) {
	w := newWorld(t)
	b, err := json.Marshal(task.AlertsSent{UID: "u", Delivered: task.AlertKeys{7}})
	ok(t, err)
	w.put(w.keys.SentTo(ref), string(b))

	list, err := w.SentTo(t.Context(), []record.Ref{{Namespace: "default", Name: "none"}, ref})
	if err != nil || len(list) != 2 || list[0] != nil || list[1] == nil || list[1].UID != "u" || !slices.Equal(list[1].Delivered, task.AlertKeys{7}) {
		t.Errorf("%+v, %v", list, err)
	}
}

// A rule is written in a namespace that exists, in place of the version that was read, and is deleted with its namespace.
func TestAlertRules_AreWrittenOnce(t *testing.T) {
	w := newWorld(t)
	rule := task.AlertRule{Namespace: "shop", Name: "nightly", Selector: "team=data", Alerts: task.Alerts{SuccessWithin: task.Duration(time.Hour)}}
	_, err := w.PutAlertRule(t.Context(), rule)
	is(t, err, task.ErrNotFound)

	w.put(w.keys.Namespace("shop"), "{}")
	first, err := w.PutAlertRule(t.Context(), rule)
	ok(t, err)
	is(t, second(w.PutAlertRule(t.Context(), rule)), task.ErrConflict)

	got, err := w.AlertRule(t.Context(), "shop", "nightly")
	ok(t, err)
	if !reflect.DeepEqual(got, first) || got.Revision == 0 {
		t.Errorf("%+v, want %+v", got, first)
	}

	changed := first
	changed.Selector = ""
	changed, err = w.PutAlertRule(t.Context(), changed)
	ok(t, err)
	is(t, w.DeleteAlertRule(t.Context(), first), task.ErrConflict)
	is(t, second(w.AlertRule(t.Context(), "shop", "other")), task.ErrNotFound)

	list, err := w.AlertRules(t.Context(), []string{"a", "shop"})
	ok(t, err)
	if len(list) != 1 || !reflect.DeepEqual(list[0], changed) {
		t.Errorf("%+v", list)
	}
	ok(t, w.DeleteAlertRule(t.Context(), changed))
	if left := w.below(w.keys.AlertRules()); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}

// An alert of a task without alerts of its own is written only if the same rule applies.
//
// Verifies: G57
func TestPutAlert_ComparesTheRule(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		none   bool // no rule applies
		want   error
	}{
		"nothing":                  {func(*world) {}, false, nil},
		"the rule has changed":     {func(w *world) { w.put(w.keys.AlertRule(ref.Namespace, "m"), "{}") }, false, task.ErrConflict},
		"the rule is gone":         {func(w *world) { w.del(w.keys.AlertRule(ref.Namespace, "m")) }, false, task.ErrConflict},
		"another one comes before": {func(w *world) { w.put(w.keys.AlertRule(ref.Namespace, "a"), "{}") }, false, task.ErrConflict},
		"of another namespace":     {func(w *world) { w.put(w.keys.AlertRule(ref.Namespace+"-1", "a"), "{}") }, false, nil},
		"none":                     {func(w *world) { w.del(w.keys.AlertRule(ref.Namespace, "m")) }, true, nil},
		"none, and one comes":      {func(w *world) { w.put(w.keys.AlertRule(ref.Namespace, "z"), "{}") }, true, task.ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(ref)
			mod := w.put(w.keys.AlertRule(ref.Namespace, "m"), "{}")

			write := w.evidence(ref)
			write.Rules = &store.AlertRules{Revision: mod, Name: "m", Mod: mod}
			if c.none {
				write.Rules.Name, write.Rules.Mod = "", 0
			}

			c.change(w)
			if _, err := w.PutAlert(t.Context(), w.fences, write); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("%v, want %v", err, c.want)
			}
		})
	}
}
