package scheduler

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/carillonhq/carillon/pkg/scheduler/state"
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

func (w *worker) giveTask(user string, rev int64) *state.Task {
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
		for range state.MaxLimitIDs - 1 {
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
	if size := unsafe.Sizeof(state.Task{}); size > 128 {
		t.Errorf("a task takes %d bytes", size)
	}
}

// triggerWith queues a manual run that gives something in addition to its task, and returns its id.
func (w *world) triggerWith(name string, m task.ManualInput) string {
	w.Helper()
	st, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)
	now := task.At(w.clock())
	run := task.Run{
		ID: task.ManualRunID(now.Time, st.Task.UID), Namespace: "default", Task: name, UID: st.Task.UID, ScheduledTime: now, CreatedAt: now, Attempt: 1,
		State: task.Queued, Reason: task.ReasonManual, Trigger: task.TriggerManual,
		Requests: task.Requests{Args: m.Args, EnvNames: task.EnvNamesOf(m.Env), TargetNode: m.TargetNode},
	}
	_, err = w.store.Enqueue(w.ctx, st, task.Waiting{Run: run, Env: m.Env})
	w.ok(err)

	return run.ID
}

// accepting returns the option that makes a task accept input of manual runs, and run a process.
func accepting(a task.Accept) option {
	return func(t *task.Task) {
		t.Accept, t.Action = a, task.Action{Process: &task.Process{Command: []string{"report"}}}
	}
}

func TestAccept_AnAttemptHasTheArgumentsOfItsRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("@manual"), accepting(task.Accept{Args: 2, Env: []string{"DAY"}}), retries(2, 0, task.Failed))
	h.see()
	w.triggerWith("a", task.ManualInput{Args: []string{"--day", "$(x) \"1\""}, Env: map[string]string{"DAY": "1"}})

	// The next attempt, and the run that repeats the dead one, have the same arguments.
	for at := 1.0; at < 3; at++ {
		h.decide(at)
		all := w.active("a")
		if len(all) != 1 || !slices.Equal(all[0].Args, []string{"--day", "$(x) \"1\""}) || all[0].Env["DAY"] != "1" {
			t.Fatalf("active are %+v", all)
		}
		w.finish("a", task.Failed)
	}

	dead, err := w.store.DeadRuns(w.ctx, ref("a"))
	w.ok(err)
	if len(dead) != 1 || len(dead[0].Args) != 2 || dead[0].Env["DAY"] != "1" {
		t.Errorf("dead runs are %+v", dead)
	}
}

// Verifies: G29
func TestAccept_ARunThatItsTaskNoLongerAcceptsFails(t *testing.T) {
	t.Parallel()

	all := task.Accept{Args: 1, Env: []string{"DAY"}, Target: true}
	for name, c := range map[string]struct {
		input task.ManualInput
		now   task.Accept
		fails string // what the message contains; "": the run starts
	}{
		"arguments":         {task.ManualInput{Args: []string{"x"}}, task.Accept{Env: all.Env, Target: true}, "accepts no arguments"},
		"a variable":        {task.ManualInput{Env: map[string]string{"DAY": "1"}}, task.Accept{Args: 1, Env: []string{"MODE"}}, `but not "DAY"`},
		"a node":            {task.ManualInput{TargetNode: "n1"}, task.Accept{Args: 1}, "does not let a manual run name its node"},
		"nothing was given": {task.ManualInput{}, task.Accept{}, ""},
		"unchanged":         {task.ManualInput{Args: []string{"x"}, TargetNode: "n1"}, all, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			w.create("a", cronned("@manual"), accepting(all))
			w.triggerWith("a", c.input)
			w.update("a", false, accepting(c.now))
			h.decide(1)

			if c.fails == "" {
				w.want("a", "+0 dispatched manual")
				return
			}

			w.want("a", "+0 failed manual not_accepted")
			runs, err := w.store.Runs(w.ctx, ref("a"))
			w.ok(err)
			if !strings.Contains(runs[0].Message, c.fails) {
				t.Errorf("the message is %q", runs[0].Message)
			}
		})
	}
}

func TestAccept_PartsHaveTheArgumentsOfTheirRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", cronned("@manual"), accepting(task.Accept{Args: 1}), func(t *task.Task) { t.Target.Parts = 2 })
	h.see()
	w.triggerWith("a", task.ManualInput{Args: []string{"x"}})
	h.decide(1)
	h.decide(1.1)

	if got := w.part("a", 0).Args; !slices.Equal(got, []string{"x"}) {
		t.Errorf("the first part has the arguments %q", got)
	}

	// The task accepts no arguments any more, so the other part does not start.
	w.update("a", false, accepting(task.Accept{}))
	w.finish("a", task.Succeeded)
	h.decide(2)
	h.decide(3)
	if all := w.active("a"); len(all) > 1 {
		t.Errorf("active are %+v", all)
	}
}

func TestAccept_ARunWaitsForTheNodeThatItsRequestNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	w.join("n2", "role=db")
	h := w.work("n1")
	sticky := strategy(task.StrategySticky)
	w.create("a", cronned("@manual"), accepting(task.Accept{Target: true}), on("role = db"), sticky)
	h.see()

	w.triggerWith("a", task.ManualInput{TargetNode: "n1"}) // the task's own target is n2
	h.decide(1)
	if got := w.ranOn("a"); got != "n1" {
		t.Errorf("ran on %q", got)
	}

	w.finish("a", task.Succeeded)
	if own := w.own("a"); own.Node != "" {
		t.Errorf("a sticky task now stays on %q", own.Node)
	}

	w.triggerWith("a", task.ManualInput{TargetNode: "n3"})
	h.decide(2)
	w.want("a", "+0 succeeded manual", "+1 queued manual no_matching_node")
	w.join("n3")
	h.fleet()
	h.decide(3)
	if got := w.ranOn("a"); got != "n1 n3" {
		t.Errorf("ran on %q", got)
	}
}

// The namespace may begin to record reads of output after a task was written.
//
// Verifies: G34
func TestOutputOf_IsNotMailedWhereReadsAreRecorded(t *testing.T) {
	w := bareWorker(t)
	_, e := (&world{}).newTask("a", start, asUser("app"), func(t *task.Task) {
		t.Output = task.Output{Limit: 1 << 20, Mail: []string{"ops@example.com"}, MailWhen: task.MailWhenFailure}
	})
	e.NamespaceRev = 7
	a := w.give("a", e, 5)

	if o := w.planWith(&task.Namespace{Name: "default", RunAs: []string{"app"}, Revision: 7}).outputOf(a); len(o.Mail) != 1 || o.MailWhen == "" {
		t.Errorf("got %+v", o)
	}
	for _, n := range []*task.Namespace{{Name: "default", RunAs: []string{"app"}, AuditReads: true, Revision: 8}, nil} {
		if o := w.planWith(n).outputOf(a); o.Mail != nil || o.MailWhen != "" || o.Limit != 1<<20 {
			t.Errorf("%+v: %+v", n, o)
		}
	}
	if len(a.Policy.Output.Mail) != 1 {
		t.Error("the policy of the task was changed")
	}
}
