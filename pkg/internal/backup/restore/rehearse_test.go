package restore

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// fill puts tasks into etcd, with their entries.
func (s *site) fill(tasks int) {
	s.Helper()
	from := task.At(time.Now().Add(-2 * time.Hour))
	var ops []clientv3.Op
	for i := range tasks {
		name := fmt.Sprintf("t%07d", i)
		ref := record.Ref{Namespace: "default", Name: name, Shard: record.ShardOf("default", name, 4)}
		t := task.Task{Spec: task.Defaults(), UID: "k3f9" + strings.Repeat("a", 12), Generation: 1}
		t.Name, t.Namespace, t.Schedule, t.Action.Noop = name, "default", task.Schedules{"*/5 * * * *"}, &task.Noop{}
		ops = append(ops, clientv3.OpPut(s.keys.Spec(ref), record.Encode(t)), clientv3.OpPut(s.keys.Entry(ref), record.Encode(task.NewEntry(t, from, from))))
		if len(ops) < 100 && i < tasks-1 {
			continue
		}

		if _, err := s.client.Txn(s.Context()).Then(ops...).Commit(); err != nil {
			s.Fatal(err)
		}
		ops = ops[:0]
	}
}

// A rehearsal of 10,000 tasks restores and audits them, and leaves nothing behind. CARILLON_REHEARSE_TASKS sets another number.
func TestRehearse(t *testing.T) {
	tasks := 10_000
	if n, err := strconv.Atoi(os.Getenv("CARILLON_REHEARSE_TASKS")); err == nil {
		tasks = n
	}

	s := newSite(t)
	s.fill(tasks)
	s.put(s.keys.Secret("default", "db"), `{"generation":1,"key_id":"k1","sealed":"AAAA"}`)

	o := s.options()
	r, err := Rehearse(t.Context(), s.backup(), &Host{Node: "n1", SecretKeys: []string{"k2"}}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d tasks, %d MiB, %.1f s: %+v", tasks, r.Size>>20, r.Seconds, r.Steps)

	if r.Plan.Tasks != int64(tasks) || r.Plan.Gap.Tasks != int64(tasks) {
		t.Errorf("plan of %d tasks, %+v", r.Plan.Tasks, r.Plan.Gap)
	}
	if r.Keys < int64(2*tasks) {
		t.Errorf("the audit has read %d records", r.Keys)
	}
	for _, f := range r.Findings {
		if f.Kind != "change_without_audit_record" { // the test has written to etcd directly
			t.Errorf("finding %s: %s", f.Kind, f.Message)
		}
	}
	if len(r.NotProved) != 1 || !strings.Contains(r.NotProved[0], "secrets: this host does not have the keys k1") {
		t.Errorf("not proved: %v", r.NotProved)
	}

	left, err := filepath.Glob(filepath.Join(o.Work, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
