package record

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Each object of a transaction is in its audit record once, in the order of its first key, with what its last put and its
// handler say of it.
func TestAuditObjects_AreListedOnce(t *testing.T) {
	keys, err := NewKeys("/x")
	if err != nil {
		t.Fatal(err)
	}

	for _, n := range []int{1, maxUnindexedObjects, maxUnindexedObjects + 1, 100} {
		var objects AuditObjects
		var want []task.AuditObject

		for i := range n {
			ref := Ref{Namespace: "ops", Name: fmt.Sprintf("t%d", i)}
			objects.Add(keys, keys.Spec(ref), []byte("former"), false)
			objects.Add(keys, keys.Entry(ref), []byte("entry"), false)
			want = append(want, task.AuditObject{Kind: "task", Namespace: "ops", Name: ref.Name, Change: "put", UID: ref.Name, Generation: int64(i), Hash: auditHash([]byte(ref.Name))})
		}

		for i, o := range want {
			objects.Add(keys, keys.Spec(Ref{Namespace: "ops", Name: o.Name}), []byte(o.Name), false)
			objects.Add(keys, keys.Spec(Ref{Namespace: "ops", Name: o.Name}), nil, true)
			objects.Complete(task.AuditObject{Kind: "task", Namespace: "ops", Name: o.Name, UID: o.Name, Generation: int64(i)})
		}
		objects.Complete(task.AuditObject{Kind: "task", Namespace: "ops", Name: "none", UID: "u"})

		if got := objects.List(); !reflect.DeepEqual(got, want) {
			t.Errorf("%d objects: %+v, want %+v", n, got, want)
		}
	}
}

// Each object has one main key. Other keys that a write of the object touches add nothing to the audit record.
func TestAuditObjects_FollowFromKeys(t *testing.T) {
	keys, err := NewKeys("/x")
	if err != nil {
		t.Fatal(err)
	}

	ref := Ref{Namespace: "ops", Name: "a", Shard: 3}
	run := task.AuditObject{Kind: "run", Namespace: "ops", Name: "a", Run: "r1"}
	none := task.AuditObject{}

	for key, want := range map[string]task.AuditObject{
		keys.Spec(ref):                   {Kind: "task", Namespace: "ops", Name: "a"},
		keys.Secret("ops", "db"):         {Kind: "secret", Namespace: "ops", Name: "db"},
		keys.Queued(ref, "r1"):           run,
		keys.Ended(ref, "r1"):            run,
		keys.DeadRun(ref, "r1"):          run,
		keys.Late(ref, "r1", 7):          run,
		keys.Run("n1", ref, "r1"):        run,
		keys.DisabledSubject("user:a/b"): {Kind: "subject", Name: "user:a/b"},
		keys.Role("r"):                   {Kind: "role", Name: "r"},
		keys.Binding("b"):                {Kind: "binding", Name: "b"},
		keys.Namespace("ops"):            {Kind: "namespace", Name: "ops"},
		keys.NodeLimit("web-*"):          {Kind: "node-limit", Name: "web-*"},
		keys.Token("t1"):                 {Kind: "token", Name: "t1"},
		keys.NodeRequest("n1"):           {Kind: "node", Name: "n1"},
		keys.Freezes():                   {Kind: "freeze"},
		keys.Cluster():                   {Kind: "cluster"},

		keys.Alert(ref, task.AlertFailures):       {Kind: "alert", Namespace: "ops", Name: "a:failures"},
		keys.ClusterAlert("not_evaluated"):        {Kind: "alert", Name: "cluster:not_evaluated"},
		keys.AlertsMore(3, "ops", "shared/slack"): {Kind: "alert", Namespace: "ops", Name: "~more:shared/slack"},
		keys.Silence("ops", "k3f9"):               {Kind: "silence", Namespace: "ops", Name: "k3f9"},

		keys.Entry(ref):                   none,
		keys.Tombstone(ref):               none,
		keys.Version(ref, 2):              none,
		keys.HistoryOf(ref):               none,
		keys.QueueOf(ref):                 none,
		keys.Watermark(3):                 none,
		keys.Revised(3):                   none,
		keys.Fence():                      none,
		keys.TokenChanges():               none,
		keys.AuditRecord("20261120T1-a"):  none,
		keys.Node("n1"):                   none,
		keys.Owner(3):                     none,
		keys.Roles():                      none,
		keys.NodeRequest(""):              none,
		keys.SentTo(ref):                  none,
		keys.AlertsOf(ref):                none,
		keys.Specs():                      none,
		keys.SpecsOf("ops"):               none,
		keys.Cluster() + "/x":             none,
		"/y" + keys.Spec(ref)[len("/x"):]: none,
	} {
		if got, ok := auditObject(keys, key); ok != (want.Kind != "") || ok && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", key, got, ok, want)
		}
	}
}

// BenchmarkAudit measures the audit record of a transaction that creates tasks: it puts a spec and an entry of each, and deletes a tombstone.
func BenchmarkAudit(b *testing.B) {
	keys, err := NewKeys("/carillon")
	if err != nil {
		b.Fatal(err)
	}

	now := task.At(time.UnixMilli(1_700_000_000_123))
	spec := task.Defaults()
	spec.Schedule, spec.Action = task.Schedules{"@every 24h"}, task.Action{Noop: &task.Noop{}}
	value := []byte(Encode(task.Task{Spec: spec, UID: "vlzil5fydrpbdsib", Generation: 1, CreatedAt: now, UpdatedAt: now, UpdatedBy: task.NewActor("service:bench")}))

	for _, n := range []int{1, 8, 100} {
		type object struct {
			spec, entry, tombstone string
			known                  task.AuditObject
		}

		tasks := make([]object, n)
		for i := range tasks {
			ref := Ref{Namespace: "bench", Name: fmt.Sprintf("k3f9aaaaaaaaaaaa-%07d", i), Shard: 17}
			tasks[i] = object{keys.Spec(ref), keys.Entry(ref), keys.Tombstone(ref),
				task.AuditObject{Kind: "task", Namespace: ref.Namespace, Name: ref.Name, UID: "vlzil5fydrpbdsib", Generation: 1}}
		}

		collect := func() []task.AuditObject {
			var objects AuditObjects
			for i := range tasks {
				objects.Add(keys, tasks[i].spec, value, false)
				objects.Add(keys, tasks[i].entry, value, false)
				objects.Add(keys, tasks[i].tombstone, nil, true)
			}

			for i := range tasks {
				objects.Complete(tasks[i].known)
			}

			return objects.List()
		}

		b.Run(fmt.Sprintf("objects of %d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				collect()
			}
		})

		r := task.AuditRecord{
			ID: NewAuditID(now.Time), Time: now, Node: "n1", Subject: "service:bench", Token: "k3f9aaaaaaaaaaaa", Address: "127.0.0.1:40000", Operation: "create-task",
			Objects: collect(),
		}

		b.Run(fmt.Sprintf("encode %d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				EncodeAudit(&r)
			}
		})
	}
}
