package alert

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// active is what the queue and the inboxes of a test have.
type active struct {
	runs       []ActiveRun
	incomplete bool
}

// waiting adds a run that waits in the queue. Retries have a time at which their first attempt has started.
func (a *active) waiting(due, started string) *active {
	r := task.Run{ID: task.RunID(berlin(due), testUID), ScheduledTime: task.At(berlin(due)), State: task.Queued, Trigger: task.TriggerSchedule}
	if started != "" {
		r.Attempts = []task.Attempt{{Attempt: 1, State: task.Failed, StartedAt: task.At(berlin(started))}}
	}
	a.runs = append(a.runs, ActiveRun{Run: &r, Create: 50, Mod: 60})

	return a
}

// running adds an attempt on a node; started is "" if it has not started.
func (a *active) running(due, started string) *active {
	r := task.Run{ID: task.RunID(berlin(due), testUID), ScheduledTime: task.At(berlin(due)), State: task.Dispatched, Trigger: task.TriggerSchedule}
	if started != "" {
		r.State, r.StartedAt = task.Running, task.At(berlin(started))
	}
	a.runs = append(a.runs, ActiveRun{Run: &r, Node: "n1", Create: 50, Mod: 60})

	return a
}

// judgeLimit evaluates an expectation about waiting and active runs.
func (f *facts) judgeLimit(t *testing.T, kind task.AlertKind, a *active, current *task.Alert, now string) (Verdict, *Change) {
	t.Helper()

	e := f.evidence()
	for range 50 {
		v, needs := Evaluate(e, kind, current, berlin(now))
		if !needs.Any() {
			return v, Decide(e, kind, current, v, berlin(now))
		}

		if needs.Active {
			e.Active = &ActiveFacts{Runs: a.runs, IsComplete: !a.incomplete, IsCurrent: !a.incomplete}
		}
		for _, i := range needs.Records {
			e.Records[i].IsRead, e.Records[i].Run = true, &f.ends[e.Records[i].Mod-1]
		}
		if needs.Spec {
			e.Spec = &f.spec
		}
		if needs.Ledger {
			e.Ledger = &f.ledger
		}
	}

	t.Fatal("the evaluation does not end")

	return Verdict{}, nil
}

// started is tick for a run that has started.
func (f *facts) started(tick string, s task.State, ended string) *facts {
	f.tick(tick, s, ended)
	f.ends[len(f.ends)-1].StartedAt = f.ends[len(f.ends)-1].ScheduledTime

	return f
}

// missed adds a tick that was missed.
func (f *facts) missed(tick string) *facts {
	f.skipped(tick, tick, task.ReasonDeadline)
	f.ends[len(f.ends)-1].State = task.Missed

	return f
}

// limitCase is a case of a table. now is 01:20, if nothing else is said.
type limitCase struct {
	facts  *facts
	active *active
	open   bool
	now    string
	want   State
	why    task.AlertReason // of the closing
	opens  bool
	next   string // when it is judged again; "": not checked
}

func checkLimits(t *testing.T, kind task.AlertKind, cases map[string]limitCase) {
	t.Helper()

	for name, c := range cases {
		var current *task.Alert
		if c.open {
			current = &task.Alert{UID: testUID, Run: task.RunID(berlin("2026-11-24 01:00:00"), testUID), Since: task.At(berlin("2026-11-24 01:15:00")), Notify: []string{}}
		}
		now := c.now
		if now == "" {
			now = "2026-11-24 01:20:00"
		}
		if c.active == nil {
			c.active = &active{}
		}

		v, change := c.facts.judgeLimit(t, kind, c.active, current, now)
		if v.State != c.want {
			t.Errorf("%s: %d, want %d", name, v.State, c.want)
		}
		if opens := change != nil && change.Opens; opens != c.opens {
			t.Errorf("%s: opens: %t", name, opens)
		}

		why := task.AlertReason("")
		if change != nil && change.Alert.Closed != nil {
			why = change.Alert.Closed.Why
		}
		if why != c.why {
			t.Errorf("%s: closed as %q, want %q", name, why, c.why)
		}
		if c.next != "" && !v.Next.Equal(berlin(c.next)) {
			t.Errorf("%s: judged again at %s, want %s", name, v.Next.In(berlin(now).Location()).Format(time.DateTime), c.next)
		}
	}
}

func TestEvaluate_MaxLateness(t *testing.T) {
	t.Parallel()

	late := func() *facts {
		return watched("0 * * * *", task.Alerts{Failures: new(0), MaxLateness: task.Duration(15 * time.Minute)})
	}
	earlier := func() *facts { return late().started("2026-11-24 00:00:00", task.Succeeded, "2026-11-24 00:01:00") }
	frozen := func() *facts {
		f := earlier()
		f.freezes = &task.Freezes{Past: []task.Freeze{{Since: task.At(berlin("2026-11-24 00:50:00")), Ended: task.At(berlin("2026-11-24 01:02:00"))}}}
		return f
	}

	behind := func() *active {
		a := new(active).waiting("2026-11-24 01:00:00", "")
		a.incomplete = true
		return a
	}

	checkLimits(t, task.AlertMaxLateness, map[string]limitCase{
		"started, and active":          {facts: earlier(), active: new(active).running("2026-11-24 01:00:00", "2026-11-24 01:00:01"), want: Met, next: "2026-11-24 02:15:15"},
		"started, and ended":           {facts: earlier().started("2026-11-24 01:00:00", task.Failed, "2026-11-24 01:00:05"), want: Met, next: "2026-11-24 02:15:15"},
		"started, and waits for retry": {facts: earlier(), active: new(active).waiting("2026-11-24 01:00:00", "2026-11-24 01:00:01"), want: Met},
		"could not start":              {facts: earlier().tick("2026-11-24 01:00:00", task.Failed, "2026-11-24 01:00:05"), want: Met},
		"waits in the queue":           {facts: earlier(), active: new(active).waiting("2026-11-24 01:00:00", ""), want: NotMet, opens: true},
		"waits for a slot of its node": {facts: earlier(), active: new(active).running("2026-11-24 01:00:00", ""), want: NotMet, opens: true},
		"waits, judged in a moment":    {facts: earlier(), active: new(active).waiting("2026-11-24 01:00:00", ""), now: "2026-11-24 01:15:14", want: Met, next: "2026-11-24 01:15:15"},
		"waits, judged now":            {facts: earlier(), active: new(active).waiting("2026-11-24 01:00:00", ""), now: "2026-11-24 01:15:15", want: NotMet, opens: true},
		"waits, later runs unknown":    {facts: earlier(), active: behind(), want: Undecided, next: "2026-11-24 01:20:15"},
		"is not decided":               {facts: earlier(), want: NotMet, opens: true},
		"is not known":                 {facts: earlier(), active: &active{incomplete: true}, want: Undecided, next: "2026-11-24 01:20:15"},
		"was missed":                   {facts: earlier().missed("2026-11-24 01:00:00"), want: NotMet, opens: true},
		"held up by a freeze":          {facts: frozen(), active: new(active).waiting("2026-11-24 01:00:00", ""), want: Undecided},
		"was skipped":                  {facts: earlier().skipped("2026-11-24 01:00:00", "2026-11-24 01:00:00", task.ReasonOverlap), want: Undecided},
		"was cancelled in the queue":   {facts: earlier().tick("2026-11-24 01:00:00", task.Cancelled, "2026-11-24 01:00:05"), want: Undecided},
		"fell into a freeze":           {facts: frozen(), want: Undecided},
		"is older than the task":       {facts: editedAt(late(), "2026-11-24 01:10:00"), want: Undecided},
		"of a shadow":                  {facts: late().change(func(e *task.Entry) { e.Shadow = true }), open: true, want: NotExpected, why: task.AlertShadow},
		"of a paused task": {facts: late().change(func(e *task.Entry) { e.Paused = true }), open: true, want: NotExpected,
			why: task.AlertPaused},
		"of a task without ticks":         {facts: late().change(func(e *task.Entry) { e.Schedule = task.Schedules{"@manual"} }), want: NotExpected},
		"open, and starts late":           {facts: earlier(), active: new(active).running("2026-11-24 01:00:00", "2026-11-24 01:19:00"), open: true, want: Met, why: task.AlertStarted},
		"open, and waits":                 {facts: earlier(), active: new(active).waiting("2026-11-24 01:00:00", ""), open: true, want: NotMet, next: "2026-11-24 01:21:00"},
		"open, and a later tick starts":   {facts: earlier().missed("2026-11-24 01:00:00"), active: new(active).running("2026-11-24 02:00:00", "2026-11-24 02:00:01"), open: true, now: "2026-11-24 02:01:00", want: Met, why: task.AlertStarted},
		"missed while nobody owned it":    {facts: ownedAt(earlier(), "2026-11-24 01:18:00"), want: Undecided, next: "2026-11-24 01:33:00"},
		"lost by a restore":               {facts: restored(earlier().lost("2026-11-24 01:00:00", "2026-11-24 01:00:00"), "2026-11-24 01:02:00"), want: Undecided},
		"missed after a restore":          {facts: restored(earlier().missed("2026-11-24 01:00:00"), "2026-11-24 00:50:00"), want: NotMet, opens: true},
		"missed, and it was the last one": {facts: earlier().missed("2026-11-24 01:00:00").change(func(e *task.Entry) { e.End = task.At(berlin("2026-11-24 01:10:00")) }), open: true, want: NotExpected, why: task.AlertEnded},
	})
}

// editedAt sets since when a person expects ticks.
func editedAt(f *facts, at string) *facts {
	f.entry.From, f.spec.UpdatedAt = task.At(berlin(at)), berlin(at)
	return f
}

// ownedAt sets when the shard got its owner.
func ownedAt(f *facts, at string) *facts {
	f.opened = berlin(at)
	return f
}

// restored restores a backup whose records have create revisions up to 80. A lost history may have decided ticks until a time.
func restored(f *facts, until string) *facts {
	f.gap = &task.Gap{Until: task.At(berlin(until)), Revision: 80}
	return f
}

// lost adds ticks that a lost history may have decided.
func (f *facts) lost(first, last string) *facts {
	f.skipped(first, last, task.ReasonRestored)
	f.ends[len(f.ends)-1].State = task.Missed

	return f
}

func TestEvaluate_MaxDuration(t *testing.T) {
	t.Parallel()

	long := func() *facts {
		return watched("0 * * * *", task.Alerts{Failures: new(0), MaxDuration: task.Duration(15 * time.Minute)})
	}
	manual := func() *active {
		a := new(active).running("2026-11-24 01:00:00", "2026-11-24 01:04:00")
		a.runs[0].Run.ID += "-abcd"
		return a
	}
	part := func() *active {
		a := new(active).running("2026-11-24 01:00:00", "2026-11-24 01:04:00")
		a.runs[0].Run.ID = task.PartID(a.runs[0].Run.ID, 3)
		return a
	}
	parent := func() *active {
		a := new(active).waiting("2026-11-24 01:00:00", "")
		a.runs[0].Run.State, a.runs[0].Run.Fan, a.runs[0].Run.DispatchedAt = task.Running, &task.Fan{}, task.At(berlin("2026-11-24 01:00:01"))
		return a
	}

	checkLimits(t, task.AlertMaxDuration, map[string]limitCase{
		"nothing runs":             {facts: long(), want: Met},
		"a short run":              {facts: long(), active: new(active).running("2026-11-24 01:00:00", "2026-11-24 01:06:00"), want: Met, next: "2026-11-24 01:21:00"},
		"a long run":               {facts: long(), active: new(active).running("2026-11-24 01:00:00", "2026-11-24 01:05:00"), want: NotMet, opens: true},
		"a long manual run":        {facts: long(), active: manual(), want: NotMet, opens: true},
		"a run with long attempts": {facts: long(), active: new(active).waiting("2026-11-24 01:00:00", "2026-11-24 01:00:01"), want: NotMet, opens: true},
		"a run that waits":         {facts: long(), active: new(active).waiting("2026-11-24 01:00:00", ""), want: Met, next: "2026-11-24 01:35:00"},
		"a part":                   {facts: long(), active: part(), want: Met},
		"a run in parts":           {facts: long(), active: parent(), want: NotMet, opens: true},
		"lost by a restore":        {facts: restored(long(), "2026-11-24 01:18:00"), active: new(active).running("2026-11-24 01:00:00", "2026-11-24 01:05:00"), want: Met},
		"open, and lost":           {facts: restored(long(), "2026-11-24 01:18:00"), active: new(active).running("2026-11-24 01:00:00", "2026-11-24 01:00:01"), open: true, want: NotMet},
		"of a shadow":              {facts: long().change(func(e *task.Entry) { e.Shadow, e.Paused = true, true }), active: new(active).running("2026-11-24 01:00:00", "2026-11-24 01:05:00"), want: NotMet, opens: true},
		"open, and it runs":        {facts: long(), active: new(active).running("2026-11-24 01:00:00", "2026-11-24 01:00:01"), open: true, want: NotMet},
		"open, and another one":    {facts: long().started("2026-11-24 01:00:00", task.Succeeded, "2026-11-24 01:19:00"), active: new(active).running("2026-11-24 00:30:00", "2026-11-24 01:00:01"), open: true, want: NotMet},
		"open, and it succeeds":    {facts: long().started("2026-11-24 01:00:00", task.Succeeded, "2026-11-24 01:19:00"), open: true, want: Met, why: task.AlertSucceeded},
		"open, and it fails":       {facts: long().started("2026-11-24 01:00:00", task.Failed, "2026-11-24 01:19:00"), active: &active{incomplete: true}, open: true, want: Met, why: task.AlertRunEnded},
		"open, its end is trimmed": {facts: long(), open: true, want: Met, why: task.AlertRunEnded},
		"open, it is not known":    {facts: long(), active: &active{incomplete: true}, open: true, want: Undecided},
		"open, the limit is raised": {facts: long().change(func(e *task.Entry) { e.Alerts.MaxDuration = task.Duration(time.Hour) }),
			active: new(active).running("2026-11-24 01:00:00", "2026-11-24 01:00:01"), open: true, want: Met, why: task.AlertLimitRaised},
		"open, and off": {facts: long().change(func(e *task.Entry) { e.Alerts.MaxDuration = 0 }), open: true, want: NotExpected, why: task.AlertNotWatched},
	})
}

func TestEvaluate_MaxPause(t *testing.T) {
	t.Parallel()

	paused := func(by, since, until, ended string) *facts {
		f := watched("0 * * * *", task.Alerts{Failures: new(0), MaxPause: task.Duration(15 * time.Minute)})
		p := task.Pause{Since: task.At(berlin(since)), By: task.NewActor(by)}
		if until != "" {
			p.Until = task.At(berlin(until))
		}
		if ended != "" {
			p.Ended, p.EndedBy = task.At(berlin(ended)), task.NewActor("bob")
		}
		f.entry.Paused, f.entry.Own = ended == "", &task.Own{Pauses: []task.Pause{p}}

		return f
	}

	checkLimits(t, task.AlertMaxPause, map[string]limitCase{
		"not paused":                {facts: watched("0 * * * *", task.Alerts{MaxPause: task.Duration(time.Hour)}), want: Met},
		"a short pause":             {facts: paused("ann", "2026-11-24 01:06:00", "", ""), want: Met, next: "2026-11-24 01:21:00"},
		"a long pause":              {facts: paused("ann", "2026-11-24 01:05:00", "2026-11-24 03:00:00", ""), want: NotMet, opens: true, next: "2026-11-24 03:00:00"},
		"a long pause of a shadow":  {facts: paused("ann", "2026-11-24 01:05:00", "", "").change(func(e *task.Entry) { e.Shadow = true }), want: NotMet, opens: true},
		"after failures":            {facts: paused(task.PausedByFailures, "2026-11-24 00:05:00", "", ""), want: Met},
		"its end has passed":        {facts: paused("ann", "2026-11-24 00:05:00", "2026-11-24 01:19:00", ""), open: true, want: Met, why: task.AlertResumed},
		"open, and paused":          {facts: paused("ann", "2026-11-24 01:00:00", "", ""), open: true, want: NotMet},
		"open, and resumed":         {facts: paused("ann", "2026-11-24 01:00:00", "", "2026-11-24 01:19:00"), open: true, want: Met, why: task.AlertResumed},
		"open, the limit is raised": {facts: paused("ann", "2026-11-24 01:00:00", "", "").change(func(e *task.Entry) { e.Alerts.MaxPause = task.Duration(time.Hour) }), open: true, want: Met, why: task.AlertLimitRaised},
	})

	f := paused("ann", "2026-11-24 01:00:00", "", "2026-11-24 01:19:00")
	_, c := f.judgeLimit(t, task.AlertMaxPause, &active{}, &task.Alert{UID: testUID}, "2026-11-24 01:20:00")
	if c == nil || c.Alert.Closed == nil || !c.Alert.Closed.By.Is("bob") {
		t.Errorf("the closing does not name who has resumed the task: %+v", c)
	}
}
