package scheduler

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/carillonhq/carillon/pkg/scheduler/nslimits"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// asUser returns the option that makes a task run as an OS user, as it was allowed by a revision of the record.
func asUser(user string) option {
	return func(t *task.Task) {
		t.Action = task.Action{Process: &task.Process{Command: []string{"backup"}, User: user}}
	}
}

// planWith returns a plan by which the namespace default has a record.
func (w *worker) planWith(n *task.Namespace) *plan {
	return &plan{s: &w.state, settings: settings{namespaces: oneNamespace{n}}}
}

func (w *worker) giveTask(user string, rev int64) *taskstate.Task {
	_, e := (&world{}).newTask("a", start, asUser(user))
	e.NamespaceRev = rev

	return w.give("a", e, 5)
}

// The record of a namespace is asked in full only if it is not the one that allowed the task, and once for each
// version.
func TestMayRun_ChecksEachVersionOnce(t *testing.T) {
	w := bareWorker(t)
	a := w.giveTask("app", 7)

	allow := &task.Namespace{Name: "default", RunAs: []string{"app"}, Revision: 7}
	if !w.planWith(allow).namespaceOf(a).allows(a) || a.Checked != 0 {
		t.Errorf("as it was written: %d", a.Checked)
	}

	// What the record of revision 7 says is not asked, since the API has.
	if !w.planWith(&task.Namespace{Name: "default", Revision: 7}).namespaceOf(a).allows(a) {
		t.Error("the API has allowed it by this record")
	}

	forbid := &task.Namespace{Name: "default", RunAs: []string{"web"}, Revision: 8}
	if w.planWith(forbid).namespaceOf(a).allows(a) {
		t.Error("allowed by revision 8")
	}

	forbid.RunAs = []string{"app"} // never happens: a revision has one content
	if w.planWith(forbid).namespaceOf(a).allows(a) {
		t.Error("revision 8 was asked again")
	}

	again := &task.Namespace{Name: "default", RunAs: []string{"*"}, Revision: 9}
	if !w.planWith(again).namespaceOf(a).allows(a) {
		t.Error("forbidden by revision 9")
	}

	// An edit makes the result void.
	if a = w.giveTask("root", 0); w.planWith(forbid).namespaceOf(a).allows(a) || !w.planWith(again).namespaceOf(a).allows(a) {
		t.Error("the result for the former version is used")
	}

	p := w.planWith(forbid)
	if got := p.namespaceOf(a).refusal(a); got != "namespace default no longer allows the user root" {
		t.Error(got)
	}

	if p = w.planWith(nil); p.namespaceOf(a).allows(a) || p.namespaceOf(a).refusal(a) != "there is no namespace default any more" {
		t.Error(p.namespaceOf(a).refusal(a))
	}

	if p = w.planWith(&task.Namespace{Name: "default", RunAs: []string{"*"}, Nodes: "a b c", Revision: 10}); p.namespaceOf(a).allows(a) {
		t.Error("allowed although the selector cannot be read")
	}
}

// A result is never taken for that of another version, however many there are in between.
func TestMayRun_NeverConfusesVersions(t *testing.T) {
	w := bareWorker(t)
	a := w.giveTask("app", 0)
	revision := int64(0)

	for i := range 4 {
		revision++
		n := &task.Namespace{Name: "default", Revision: revision, RunAs: []string{[]string{"app", "web"}[i%2]}}
		if got := w.planWith(n).namespaceOf(a).allows(a); got != (i%2 == 0) {
			t.Fatalf("version %d: %v", revision, got)
		}

		// Versions by which the task is not checked, until the next one has the same id.
		for range nslimits.MaxIDs - 1 {
			revision++
			w.state.limitsOf("default", &task.Namespace{Name: "default", Revision: revision})
		}
	}
}

// The owner keeps what it cannot know better of an entry when it writes it.
func TestEntry_KeepsTheRevisionOfTheNamespace(t *testing.T) {
	w := bareWorker(t)
	a := w.giveTask("app", 7)

	if value := string(record.EncodeParts(a.Entry())); !strings.Contains(value, `"namespace_rev":7`) {
		t.Error(value)
	}
}

func TestEntry_KeepsTheLabels(t *testing.T) {
	w := bareWorker(t)
	_, e := (&world{}).newTask("a", start, func(t *task.Task) { t.Labels = map[string]string{"team": "data", "tier": "1"} })
	a := w.give("a", e, 5)

	if value := string(record.EncodeParts(a.Entry())); !strings.Contains(value, `"labels":{"team":"data","tier":"1"}`) {
		t.Error(value)
	}

	_, e = (&world{}).newTask("a", start)
	if a = w.give("a", e, 6); strings.Contains(string(record.EncodeParts(a.Entry())), "labels") {
		t.Error("labels that were removed are still there")
	}
}

// A shard may have a million tasks.
func TestTask_IsNoLargerThanItsSizeClass(t *testing.T) {
	if size := unsafe.Sizeof(taskstate.Task{}); size > 128 {
		t.Errorf("a task takes %d bytes", size)
	}
}
