package alert

import (
	"cmp"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/task"
)

const testUID = "k3f9aaaa"

// berlin returns a time in Berlin on a day of November 2026, or of another month.
func berlin(text string) time.Time {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}

	t, err := time.ParseInLocation("2006-01-02 15:04:05", text, berlin)
	if err != nil {
		panic(err)
	}

	return t
}

// facts are the records of a task from which a test makes evidence.
type facts struct {
	entry   task.Entry
	ends    []task.Run // in the order in which they were written
	dead    []string   // the runs among them that are dead
	spec    SpecFacts
	ledger  LedgerFacts
	freezes *task.Freezes
	opened  time.Time
	gap     *task.Gap
	idle    bool
}

// watched returns the facts of a task with a schedule in Berlin that was created long ago.
func watched(schedule string, a task.Alerts) *facts {
	created := task.At(berlin("2026-10-01 00:00:00"))
	return &facts{
		entry: task.Entry{UID: testUID, Schedule: task.Schedules{schedule}, Timezone: "Europe/Berlin", From: created, Anchor: created, Alerts: &a},
		spec:  SpecFacts{UpdatedAt: created.Time, UpdatedBy: task.NewActor("ann")},
	}
}

// tick adds the run of a tick that ended in a state. It returns f.
func (f *facts) tick(tick string, s task.State, ended string) *facts {
	r := task.Run{ID: task.RunID(berlin(tick), testUID), State: s, Trigger: task.TriggerSchedule, ScheduledTime: task.At(berlin(tick)), EndedAt: task.At(berlin(ended))}
	f.ends = append(f.ends, r)
	if (&task.Run{State: s}).IsFailure() {
		f.dead = append(f.dead, r.ID)
	}

	return f
}

// skipped adds ticks that did not run.
func (f *facts) skipped(first, last, reason string) *facts {
	r := task.Run{ID: task.RunID(berlin(first), testUID), State: task.Skipped, Reason: reason, Trigger: task.TriggerSchedule, ScheduledTime: task.At(berlin(first))}
	if last != first {
		r.Last, r.Count = task.At(berlin(last)), 2
	}
	f.ends = append(f.ends, r)

	return f
}

// manual adds a run that somebody asked for.
func (f *facts) manual(asked string, s task.State, ended string) *facts {
	r := task.Run{ID: task.RunID(berlin(asked), testUID) + "-abcd", State: s, Trigger: task.TriggerManual, ScheduledTime: task.At(berlin(asked)), EndedAt: task.At(berlin(ended))}
	f.ends = append(f.ends, r)

	return f
}

// change changes the entry.
func (f *facts) change(change func(e *task.Entry)) *facts {
	change(&f.entry)
	return f
}

// evidence returns the evidence as it is before anything else is read. The n-th end was written in revision n+1.
func (f *facts) evidence() *Evidence {
	e := &Evidence{Namespace: "shop", Task: "sync", Revision: 100, Entry: &f.entry, Freezes: f.freezes, Opened: f.opened, Gap: f.gap, Idle: f.idle}
	if e.Opened.IsZero() {
		e.Opened = berlin("2026-10-01 00:00:00")
	}

	for i, r := range f.ends {
		e.Records = append(e.Records, Record{ID: r.ID, Create: int64(i + 1), Mod: int64(i + 1)})
		if slices.Contains(f.dead, r.ID) {
			e.Dead = append(e.Dead, Dead{Run: r.ID, Create: int64(i + 1), Mod: int64(i + 1)})
		}
	}
	slices.SortFunc(e.Records, func(a, b Record) int { return cmp.Compare(b.Mod, a.Mod) })

	return e
}

// judge evaluates an expectation, and reads what that needs. It also returns how many records were read.
func (f *facts) judge(t *testing.T, kind task.AlertKind, current *task.Alert, now string) (v Verdict, c *Change, read int) {
	t.Helper()

	e := f.evidence()
	for range 50 {
		v, needs := Evaluate(e, kind, current, berlin(now))
		if !needs.Any() {
			return v, Decide(e, kind, current, v, berlin(now)), read
		}

		for _, i := range needs.Records {
			r := &e.Records[i]
			if r.IsRead {
				t.Fatalf("record %d is read again", i)
			}
			r.IsRead, r.Run = true, &f.ends[r.Mod-1]
			read++
		}
		if needs.Spec {
			e.Spec = &f.spec
		}
		if needs.Ledger {
			e.Ledger = &f.ledger
		}
		if needs.Deleted {
			e.Deleted = &DeletedFacts{By: task.NewActor("ann")}
		}
	}

	t.Fatal("the evaluation does not end")

	return v, c, read
}

// failures returns the expectation that fewer than n runs in a row fail.
func failures(n int) task.Alerts {
	return task.Alerts{Notify: []string{"slack", "ops/pager"}, Failures: &n}
}

func TestEvaluate_Failures(t *testing.T) {
	t.Parallel()

	const hourly = "0 * * * *"
	few := func() *facts { return watched(hourly, failures(2)) }
	none := task.Alert{}
	open := task.Alert{UID: testUID, Base: 1, Notify: []string{"ops/pager", "shop/slack"}, OpenedAt: task.At(berlin("2026-11-24 02:00:05"))}

	for name, c := range map[string]struct {
		facts *facts
		alert task.Alert // the zero value: there is none
		want  State
		opens bool
		why   task.AlertReason // of the closing
	}{
		"no runs":    {few(), none, Met, false, ""},
		"one failed": {few().tick("2026-11-24 01:00:00", task.Failed, "2026-11-24 01:00:03"), none, Undecided, false, ""},
		"two failed": {few().tick("2026-11-24 01:00:00", task.Failed, "2026-11-24 01:00:03").tick("2026-11-24 02:00:00", task.TimedOut, "2026-11-24 02:00:03"), none, NotMet, true, ""},
		"a cancelled run does not count": {few().tick("2026-11-24 01:00:00", task.Failed, "2026-11-24 01:00:03").tick("2026-11-24 02:00:00", task.Cancelled, "2026-11-24 02:00:03").
			tick("2026-11-24 03:00:00", task.Lost, "2026-11-24 03:00:03"), none, NotMet, true, ""},
		"a success is between": {few().tick("2026-11-24 01:00:00", task.Failed, "2026-11-24 01:00:03").tick("2026-11-24 02:00:00", task.Succeeded, "2026-11-24 02:00:03").
			tick("2026-11-24 03:00:00", task.Failed, "2026-11-24 03:00:03"), none, Undecided, false, ""},
		"the last success ended before an older tick": {few().tick("2026-11-24 02:00:00", task.Succeeded, "2026-11-24 02:00:03").
			tick("2026-11-24 01:00:00", task.Failed, "2026-11-24 03:30:03").tick("2026-11-24 03:00:00", task.Failed, "2026-11-24 03:40:03"), none, NotMet, true, ""},
		"off":                  {watched(hourly, failures(0)).tick("2026-11-24 01:00:00", task.Failed, "2026-11-24 01:00:03"), none, NotExpected, false, ""},
		"open, and fewer fail": {few().tick("2026-11-24 01:00:00", task.Succeeded, "2026-11-24 01:00:03").tick("2026-11-24 02:00:00", task.Failed, "2026-11-24 02:00:03"), open, NotMet, false, ""},
		"open, and one succeeds": {few().tick("2026-11-24 01:00:00", task.Succeeded, "2026-11-24 01:00:03").tick("2026-11-24 02:00:00", task.Failed, "2026-11-24 02:00:03").
			tick("2026-11-24 03:00:00", task.Succeeded, "2026-11-24 03:00:03"), open, Met, false, task.AlertSucceeded},
		"open, and off now": {watched(hourly, failures(0)), open, NotExpected, false, task.AlertNotWatched},
	} {
		var current *task.Alert
		if c.alert.UID != "" {
			current = &c.alert
		}

		v, change, _ := c.facts.judge(t, task.AlertFailures, current, "2026-11-24 04:00:00")
		why := task.AlertReason("")
		if change != nil && change.Alert.Closed != nil {
			why = change.Alert.Closed.Why
		}
		if v.State != c.want || (change != nil && change.Opens) != c.opens || why != c.why {
			t.Errorf("%s: %+v, change %+v", name, v, change)
		}
	}
}

func TestDecide_OpensWithWhatPeopleNeedToKnow(t *testing.T) {
	t.Parallel()

	f := watched("0 * * * *", failures(2)).change(func(e *task.Entry) { e.Labels = map[string]string{"owner": "data"} }).
		tick("2026-11-24 00:00:00", task.Succeeded, "2026-11-24 00:04:00").
		tick("2026-11-24 01:00:00", task.Failed, "2026-11-24 01:00:03").tick("2026-11-24 02:00:00", task.Failed, "2026-11-24 02:00:03")

	_, c, read := f.judge(t, task.AlertFailures, nil, "2026-11-24 02:00:08")
	want := task.Alert{
		Namespace: "shop", Task: "sync", Kind: task.AlertFailures, UID: testUID, Run: f.ends[2].ID, Failures: 2, Base: 1, Openings: 1,
		Since: task.At(berlin("2026-11-24 01:00:03")), OpenedAt: task.At(berlin("2026-11-24 02:00:08")),
		Notify: []string{"ops/pager", "shop/slack"}, Labels: map[string]string{"owner": "data"},
	}
	if c == nil || !reflect.DeepEqual(c.Alert, want) || c.Dead == nil || c.Dead.Run != f.ends[2].ID || read != 3 {
		t.Errorf("%+v, read %d; want %+v", c, read, want)
	}

	// It opens again as the same alert, and remembers the last openings.
	former := want
	former.ID, former.Mod, former.OpenedAt, former.Openings = 7, 9, task.At(berlin("2026-11-24 01:30:00")), 4
	former.Opened = []task.Time{task.At(berlin("2026-11-24 01:10:00")), task.At(berlin("2026-11-24 01:20:00"))}
	former.Acknowledged, former.Closed = &task.AlertMark{By: task.NewActor("ann")}, &task.AlertClose{Why: task.AlertSucceeded}
	_, c, _ = f.judge(t, task.AlertFailures, &former, "2026-11-24 02:00:08")
	if a := c.Alert; a.ID != 7 || a.Mod != 9 || a.Openings != 5 || a.Acknowledged != nil || a.Closed != nil ||
		!slices.Equal(a.Opened, []task.Time{task.At(berlin("2026-11-24 01:20:00")), task.At(berlin("2026-11-24 01:30:00"))}) {
		t.Errorf("it opens again as %+v", a)
	}

	// That of a former task of the name counts nothing.
	former.UID, former.Closed = "other", &task.AlertClose{At: task.At(berlin("2026-11-24 02:00:05")), Why: task.AlertDeleted, By: task.NewActor("ann")}
	former.Former = []task.FormerAlert{
		{UID: "long ago", Closed: task.AlertClose{At: task.At(berlin("2026-11-24 00:00:00"))}},
		{UID: "dropped", Closed: task.AlertClose{At: task.At(berlin("2026-11-24 00:30:00"))}},
		{UID: "kept", Closed: task.AlertClose{At: task.At(berlin("2026-11-24 00:40:00"))}},
	}
	if _, c, _ = f.judge(t, task.AlertFailures, &former, "2026-11-24 02:00:08"); c.Alert.Openings != 1 || c.Alert.Mod != 9 {
		t.Errorf("after a former task: %+v", c.Alert)
	}

	// It is remembered with its key, until its receivers have been told.
	wantFormer := []task.FormerAlert{former.Former[2], {UID: "other", Since: former.Since, Closed: *former.Closed}}
	if !reflect.DeepEqual(c.Alert.Former, wantFormer) {
		t.Errorf("it remembers %+v, want %+v", c.Alert.Former, wantFormer)
	}
	if list := FormerOf(&c.Alert); len(list) != 2 || KeyOf("c", &list[1]) != KeyOf("c", &former) || list[1].IsOpen() {
		t.Errorf("the former alerts are %+v", list)
	}

	// Receivers and labels follow the task while the alert is open. The time and the numbers stay.
	current := want
	current.Mod, current.Notify, current.Acknowledged = 9, []string{"shop/slack"}, &task.AlertMark{By: task.NewActor("ann")}
	_, c, _ = f.judge(t, task.AlertFailures, &current, "2026-11-24 03:00:00")
	rewritten := current
	rewritten.Notify = want.Notify
	if c == nil || !reflect.DeepEqual(c.Alert, rewritten) || c.Opens {
		t.Errorf("rewritten: %+v", c)
	}
	if _, c, _ = f.judge(t, task.AlertFailures, &rewritten, "2026-11-24 03:00:00"); c != nil {
		t.Errorf("rewritten again: %+v", c)
	}
}

func TestDecide_ClosesWithTheReason(t *testing.T) {
	t.Parallel()

	failed := func() *facts {
		return watched("0 * * * *", failures(1)).tick("2026-11-24 00:00:00", task.Succeeded, "2026-11-24 00:04:00").
			tick("2026-11-24 01:00:00", task.Failed, "2026-11-24 01:00:03").tick("2026-11-24 02:00:00", task.Failed, "2026-11-24 02:00:03")
	}
	open := task.Alert{UID: testUID, Base: 1, Mod: 9, Notify: []string{"ops/pager", "shop/slack"}}

	// The dead runs are gone: dismissed, or one of them was started again and is under way.
	f := failed()
	f.dead = nil
	if _, c, _ := f.judge(t, task.AlertFailures, &open, "2026-11-24 03:00:00"); c != nil {
		t.Errorf("while a run may be active: %+v", c)
	}
	f.idle = true
	if _, c, _ := f.judge(t, task.AlertFailures, &open, "2026-11-24 03:00:00"); c == nil || c.Alert.Closed.Why != task.AlertDismissed {
		t.Errorf("when nothing is active: %+v", c)
	}

	// A success says how many runs had failed before.
	f.tick("2026-11-24 03:00:00", task.Succeeded, "2026-11-24 03:10:00").tick("2026-11-24 04:00:00", task.Cancelled, "2026-11-24 04:10:00")
	_, c, _ := f.judge(t, task.AlertFailures, &open, "2026-11-24 05:00:00")
	if want := (task.AlertClose{At: task.At(berlin("2026-11-24 05:00:00")), Why: task.AlertSucceeded, Run: f.ends[3].ID, Failures: 2}); c == nil || !reflect.DeepEqual(*c.Alert.Closed, want) {
		t.Errorf("after a success: %+v", c)
	}

	// Deleted, and created again.
	e := &Evidence{Namespace: "shop", Task: "sync", Deleted: &DeletedFacts{By: task.NewActor("ann")}}
	v, _ := Evaluate(e, task.AlertFailures, &open, berlin("2026-11-24 03:00:00"))
	if c := Decide(e, task.AlertFailures, &open, v, berlin("2026-11-24 03:00:00")); c == nil || c.Alert.Closed.Why != task.AlertDeleted || !c.Alert.Closed.By.Is("ann") {
		t.Errorf("of a deleted task: %+v", c)
	}
	former := open
	former.UID = "other"
	if _, c, _ := failed().judge(t, task.AlertFailures, &former, "2026-11-24 03:00:00"); c == nil || c.Alert.Closed == nil || c.Alert.Closed.Why != task.AlertDeleted {
		t.Errorf("of a former task: %+v", c)
	}

	// A record of the alert that cannot be read stays as it is.
	unreadable := task.Alert{Namespace: "shop", Task: "sync", Kind: task.AlertFailures, Mod: 9}
	if v, c, _ := failed().judge(t, task.AlertFailures, &unreadable, "2026-11-24 03:00:00"); v.State != Unknown || c != nil {
		t.Errorf("of an unreadable alert: %+v, %+v", v, c)
	}

	// An entry that cannot be read says nothing.
	e = &Evidence{Unreadable: true}
	v, _ = Evaluate(e, task.AlertFailures, &open, berlin("2026-11-24 03:00:00"))
	if c := Decide(e, task.AlertFailures, &open, v, berlin("2026-11-24 03:00:00")); v.State != Unknown || c != nil {
		t.Errorf("of an unreadable task: %+v, %+v", v, c)
	}
}

func TestEvaluate_SuccessWithin(t *testing.T) {
	t.Parallel()

	const now = "2026-11-24 12:00:00"
	daily := func() *facts { return watched("0 3 * * *", task.Alerts{SuccessWithin: task.Duration(26 * time.Hour)}) }
	pause := func(p task.Pause) func(e *task.Entry) {
		return func(e *task.Entry) { e.Paused, e.Own = true, &task.Own{Pauses: []task.Pause{p}} }
	}
	recently := task.At(berlin("2026-11-24 09:00:00"))

	for name, c := range map[string]struct {
		facts *facts
		want  State
		since string // of NotMet: since when; of others: when it is judged again
		why   task.AlertReason
	}{
		"a success":                   {daily().tick("2026-11-24 03:00:00", task.Succeeded, "2026-11-24 03:10:00"), Met, "2026-11-25 05:10:00", ""},
		"a failure after it":          {daily().tick("2026-11-24 03:00:00", task.Succeeded, "2026-11-24 03:10:00").manual("2026-11-24 04:00:00", task.Failed, "2026-11-24 04:00:01"), Met, "2026-11-25 05:10:00", ""},
		"an old success":              {daily().tick("2026-11-22 03:00:00", task.Succeeded, "2026-11-22 03:10:00"), NotMet, "2026-11-23 05:10:00", ""},
		"the last was recorded late":  {daily().tick("2026-11-24 03:00:00", task.Succeeded, "2026-11-24 03:10:00").tick("2026-11-22 03:00:00", task.Succeeded, "2026-11-22 03:10:00"), Met, "2026-11-25 05:10:00", ""},
		"none":                        {daily(), NotMet, "2026-10-02 02:00:00", ""},
		"one in the ledger":           {func() *facts { f := daily(); f.ledger.LastSuccess = berlin("2026-11-24 03:00:00"); return f }(), Met, "2026-11-25 05:00:00", ""},
		"an old one in the ledger":    {func() *facts { f := daily(); f.ledger.LastSuccess = berlin("2026-11-20 03:00:00"); return f }(), NotMet, "2026-11-21 05:00:00", ""},
		"a person has just edited":    {daily().change(func(e *task.Entry) { e.From = recently }).edited(recently), Undecided, "2026-11-25 11:00:00", ""},
		"its owner decided late":      {daily().change(func(e *task.Entry) { e.From = recently }), NotMet, "2026-10-02 02:00:00", ""},
		"paused":                      {daily().change(pause(task.Pause{By: task.NewActor("ann")})), NotExpected, "", task.AlertPaused},
		"paused until later":          {daily().change(pause(task.Pause{By: task.NewActor("ann"), Until: task.At(berlin("2026-11-24 13:00:00"))})), NotExpected, "2026-11-24 13:00:00", task.AlertPaused},
		"paused until a while ago":    {daily().change(pause(task.Pause{By: task.NewActor("ann"), Until: recently})), Undecided, "2026-11-25 11:00:00", ""},
		"paused after failures":       {daily().change(pause(task.Pause{By: task.NewActor(task.PausedByFailures)})), NotMet, "2026-10-02 02:00:00", ""},
		"a shadow":                    {daily().change(func(e *task.Entry) { e.Shadow = true }), NotExpected, "", task.AlertShadow},
		"its schedule has ended":      {daily().change(func(e *task.Entry) { e.End = recently }), NotExpected, "", task.AlertEnded},
		"its runs are used up":        {daily().change(func(e *task.Entry) { e.MaxRuns, e.Own = 3, &task.Own{Runs: 3} }), NotExpected, "", task.AlertEnded},
		"frozen":                      {daily().frozen(task.Freeze{Namespace: "shop", Since: recently}), Undecided, "2026-11-24 12:01:00", ""},
		"another namespace is frozen": {daily().frozen(task.Freeze{Namespace: "web", Since: recently}), NotMet, "2026-10-02 02:00:00", ""},
		"frozen until a while ago":    {daily().frozen(task.Freeze{Namespace: "shop", Since: recently, Ended: task.At(berlin("2026-11-24 10:00:00"))}), Undecided, "2026-11-25 12:00:00", ""},
		"lost by a restore":           {restored(daily().tick("2026-11-22 03:00:00", task.Succeeded, "2026-11-22 03:10:00"), "2026-11-24 09:00:00"), Undecided, "2026-11-25 11:00:00", ""},
		"lost long ago":               {restored(daily().tick("2026-11-22 03:00:00", task.Succeeded, "2026-11-22 03:10:00"), "2026-11-23 09:00:00"), NotMet, "2026-11-24 11:00:00", ""},
		"just opened":                 {func() *facts { f := daily(); f.opened = berlin("2026-11-24 11:50:00"); return f }(), Undecided, "2026-11-24 12:05:00", ""},
		"opened a while ago":          {func() *facts { f := daily(); f.opened = berlin("2026-11-24 11:45:00"); return f }(), NotMet, "2026-10-02 02:00:00", ""},
		"never asked for":             {watched("@manual", task.Alerts{SuccessWithin: task.Duration(26 * time.Hour)}), NotMet, "2026-10-02 02:00:00", ""},
		"a clock was ahead":           {daily().tick("2026-11-24 03:00:00", task.Succeeded, "2026-12-24 03:10:00"), Met, "2026-11-25 14:00:00", ""},
	} {
		v, _, _ := c.facts.judge(t, task.AlertSuccessWithin, nil, now)
		got := v.Next
		if v.State == NotMet {
			got = v.Since
		}
		if want := (time.Time{}); v.State != c.want || v.Why != c.why || c.since != "" && !got.Equal(berlin(c.since)) || c.since == "" && !got.Equal(want) {
			t.Errorf("%s: state %d, %s, why %q; want %d, %s, %q", name, v.State, got, v.Why, c.want, c.since, c.why)
		}
	}
}

// edited sets when a person has changed the task last.
func (f *facts) edited(at task.Time) *facts {
	f.spec.UpdatedAt = at.Time
	return f
}

// frozen adds a freeze.
func (f *facts) frozen(z task.Freeze) *facts {
	f.freezes = &task.Freezes{Holding: []task.Freeze{z}}
	if !z.Ended.IsZero() {
		f.freezes = &task.Freezes{Past: []task.Freeze{z}}
	}

	return f
}

// inLedger sets what the ledger says.
func (f *facts) inLedger(l LedgerFacts) *facts {
	f.ledger = l
	return f
}

func TestEvaluate_SuccessBy(t *testing.T) {
	t.Parallel()

	by := func(schedule string) *facts { return watched(schedule, task.Alerts{SuccessBy: "0 6 * * *"}) }
	nightly := func() *facts { return by("0 3 * * *") }
	const judged, early = "2026-11-24 06:00:15", "2026-11-24 06:00:14"
	const today, yesterday = "2026-11-24 03:00:00", "2026-11-23 03:00:00"

	for name, c := range map[string]struct {
		facts *facts
		now   string
		want  State
	}{
		"succeeded":                          {nightly().tick(today, task.Succeeded, "2026-11-24 05:00:00"), judged, Met},
		"failed":                             {nightly().tick(today, task.Failed, "2026-11-24 05:00:00"), judged, NotMet},
		"failed, and the deadline is near":   {nightly().tick(yesterday, task.Succeeded, "2026-11-23 05:00:00").tick(today, task.Failed, "2026-11-24 05:00:00"), early, Met},
		"runs still":                         {nightly().tick(yesterday, task.Succeeded, "2026-11-23 05:00:00"), judged, NotMet},
		"yesterday's catch-up run succeeded": {nightly().tick(yesterday, task.Succeeded, "2026-11-24 04:00:00").tick(today, task.Failed, "2026-11-24 05:00:00"), judged, NotMet},
		"a person ran it again":              {nightly().tick(today, task.Failed, "2026-11-24 05:00:00").manual("2026-11-24 05:30:00", task.Succeeded, "2026-11-24 05:40:00"), judged, Met},
		"a person ran it before":             {nightly().manual("2026-11-24 02:59:59", task.Succeeded, "2026-11-24 03:10:00").tick(today, task.Failed, "2026-11-24 05:00:00"), judged, NotMet},
		"a moment late":                      {nightly().tick(today, task.Succeeded, "2026-11-24 06:00:10"), judged, Met},
		"missed":                             {nightly().skipped(today, today, task.ReasonOverlap), judged, NotMet},
		"frozen":                             {nightly().skipped(today, today, task.ReasonFrozen), judged, Undecided},
		"frozen since yesterday":             {nightly().skipped(yesterday, today, task.ReasonFrozen), judged, Undecided},
		"frozen until yesterday":             {nightly().skipped("2026-11-22 03:00:00", yesterday, task.ReasonFrozen), judged, NotMet},
		"a shadow until today":               {nightly().skipped(today, today, task.ReasonShadow), judged, Undecided},
		"created after the tick":             {nightly().change(func(e *task.Entry) { e.From = task.At(berlin("2026-11-24 04:00:00")) }).edited(task.At(berlin("2026-11-24 04:00:00"))), judged, Undecided},
		"missed, and its owner moved on":     {nightly().change(func(e *task.Entry) { e.From = task.At(berlin(today)) }), judged, NotMet},
		"resumed after the tick": {nightly().change(func(e *task.Entry) {
			e.Own = &task.Own{Pauses: []task.Pause{{By: task.NewActor("ann"), Until: task.At(berlin("2026-11-24 04:00:00"))}}}
		}), judged, Undecided},
		"resumed, and paused after failures": {nightly().change(func(e *task.Entry) {
			e.Paused = true
			e.Own = &task.Own{Pauses: []task.Pause{{By: task.NewActor("ann"), Until: task.At(berlin("2026-11-24 04:00:00"))}, {By: task.NewActor(task.PausedByFailures)}}}
		}), judged, Undecided},
		"paused":                            {nightly().change(func(e *task.Entry) { e.Paused = true }), judged, NotExpected},
		"no tick on a Tuesday":              {by("0 3 * * 1"), judged, Undecided},
		"several ticks, the last failed":    {by("0 1-4 * * *").tick(today, task.Succeeded, "2026-11-24 03:10:00").tick("2026-11-24 04:00:00", task.Failed, "2026-11-24 04:10:00"), judged, NotMet},
		"several ticks, the last succeeded": {by("0 1-4 * * *").tick(today, task.Failed, "2026-11-24 03:10:00").tick("2026-11-24 04:00:00", task.Succeeded, "2026-11-24 04:10:00"), judged, Met},
		"the tick of the deadline":          {by("0 6 * * *").tick("2026-11-23 06:00:00", task.Succeeded, "2026-11-23 07:00:00").tick("2026-11-24 06:00:00", task.Failed, "2026-11-24 06:00:01"), judged, Met},
		"asked for since the last deadline": {by("@manual").manual("2026-11-23 07:00:00", task.Succeeded, "2026-11-23 07:00:01"), judged, Met},
		"not asked for":                     {by("@manual").manual("2026-11-23 05:00:00", task.Succeeded, "2026-11-23 05:00:01"), judged, NotMet},
		"lost by a restore":                 {restored(nightly().lost(today, today), "2026-11-24 04:00:00"), judged, Undecided},
		"failed, and the rest is lost":      {restored(nightly().tick(today, task.Failed, "2026-11-24 05:00:00"), "2026-11-24 05:30:00"), judged, NotMet},
		"asked for in a lost history":       {restored(by("@manual"), "2026-11-24 05:00:00"), judged, Undecided},
		"lost before the last deadline":     {restored(by("@manual"), "2026-11-23 05:00:00"), judged, NotMet},
		"created since the last deadline":   {by("@manual").change(func(e *task.Entry) { e.From = task.At(berlin("2026-11-23 07:00:00")) }).edited(task.At(berlin("2026-11-23 07:00:00"))), judged, Undecided},
		"after completion":                  {by("@every 1h after completion").tick("2026-11-24 05:00:00", task.Succeeded, "2026-11-24 05:00:01"), judged, Met},
		"one tick, the last one":            {by("@at 2026-11-24T02:00:00Z").tick("2026-11-24 03:00:00", task.Failed, "2026-11-24 03:00:01"), judged, NotMet},
		"its runs are used up": {nightly().tick(yesterday, task.Failed, "2026-11-23 05:00:00").change(func(e *task.Entry) {
			e.MaxRuns, e.Own, e.From = 3, &task.Own{Runs: 3}, task.At(berlin(yesterday))
		}), judged, NotExpected},
		"its last run failed": {nightly().tick(today, task.Failed, "2026-11-24 05:00:00").change(func(e *task.Entry) {
			e.MaxRuns, e.Own, e.From = 3, &task.Own{Runs: 3}, task.At(berlin(today))
		}), judged, NotMet},
		"its last run runs still": {nightly().tick(yesterday, task.Succeeded, "2026-11-23 05:00:00").change(func(e *task.Entry) {
			e.MaxRuns, e.Own, e.From = 3, &task.Own{Runs: 3}, task.At(berlin(today))
		}), judged, NotMet},
		"no tick any more":                   {by("@at 2026-11-23T02:00:00Z"), judged, NotExpected},
		"no owner, a moment after":           {func() *facts { f := nightly(); f.opened = berlin("2026-11-24 06:30:00"); return f }(), "2026-11-24 06:40:00", Undecided},
		"no owner, when it has caught up":    {func() *facts { f := nightly(); f.opened = berlin("2026-11-24 06:30:00"); return f }(), "2026-11-24 06:45:00", NotMet},
		"the owner came before the deadline": {func() *facts { f := nightly(); f.opened = berlin("2026-11-24 05:59:00"); return f }(), judged, NotMet},
		// In Berlin, the clocks go from 02:00 to 03:00 on 28 March 2027. The tick and the deadline fall on the same instant.
		"a gap of the clocks":      {watched("30 2 * * *", task.Alerts{SuccessBy: "45 2 * * *"}), "2027-03-28 03:00:15", Undecided},
		"the day after":            {watched("30 2 * * *", task.Alerts{SuccessBy: "45 2 * * *"}), "2027-03-29 02:45:15", NotMet},
		"a deadline in the fold":   {watched("0 1 * * *", task.Alerts{SuccessBy: "30 2 * * *"}).tick("2027-10-31 01:00:00", task.Succeeded, "2027-10-31 01:10:00"), "2027-10-31 04:00:00", Met},
		"an expression that fails": {watched("0 1 * * *", task.Alerts{SuccessBy: "61 2 * * *"}), judged, Unknown},

		// The success was trimmed from the history.
		"succeeded, in the ledger":         {nightly().tick(today, task.Failed, "2026-11-24 05:00:00").inLedger(LedgerFacts{LastTick: berlin(today)}), judged, Met},
		"the ledger has an older one":      {nightly().tick(today, task.Failed, "2026-11-24 05:00:00").inLedger(LedgerFacts{LastTick: berlin(yesterday)}), judged, NotMet},
		"the ledger begins later":          {nightly().inLedger(LedgerFacts{CompleteSince: berlin("2026-11-24 03:00:01")}), judged, Unknown},
		"the ledger begins with the tick":  {nightly().inLedger(LedgerFacts{CompleteSince: berlin(today)}), judged, NotMet},
		"requests were only counted":       {by("@manual").inLedger(LedgerFacts{MoreUntil: berlin("2026-11-23 07:00:00")}), judged, Unknown},
		"requests were counted before":     {by("@manual").inLedger(LedgerFacts{MoreUntil: berlin("2026-11-23 05:00:00")}), judged, NotMet},
		"no ledger, and all is kept":       {nightly().tick(yesterday, task.Failed, "2026-11-23 05:00:00").tick(today, task.Failed, "2026-11-24 05:00:00").inLedger(LedgerFacts{IsIncomplete: true}), judged, NotMet},
		"no ledger, and little is kept":    {nightly().tick(today, task.Failed, "2026-11-24 05:00:00").inLedger(LedgerFacts{IsIncomplete: true}), judged, Unknown},
		"no ledger, and a long run before": {nightly().tick(yesterday, task.Failed, "2026-11-24 05:00:00").inLedger(LedgerFacts{IsIncomplete: true}), judged, Unknown},
		"no ledger, and only failures are kept": {nightly().tick(yesterday, task.Failed, "2026-11-23 05:00:00").inLedger(LedgerFacts{IsIncomplete: true}).
			change(func(e *task.Entry) { e.History.Record = task.RecordFailures }), judged, Unknown},
		"frozen, in the ledger":        {nightly().inLedger(LedgerFacts{Excused: []task.LedgerLine{{First: task.At(berlin(yesterday)), Last: task.At(berlin(today))}}}), judged, Undecided},
		"frozen before, in the ledger": {nightly().inLedger(LedgerFacts{Excused: []task.LedgerLine{{First: task.At(berlin(yesterday)), Last: task.At(berlin(yesterday))}}}), judged, NotMet},
	} {
		v, change, _ := c.facts.judge(t, task.AlertSuccessBy, nil, c.now)
		if v.State != c.want || (change != nil) != (c.want == NotMet) {
			t.Errorf("%s: %+v, %+v; want %d", name, v, change, c.want)
		}
	}
}

func TestEvaluate_AnOpenDeadlineIsMetByALaterSuccess(t *testing.T) {
	t.Parallel()

	f := watched("0 3 * * *", task.Alerts{SuccessBy: "0 6 * * *"}).tick("2026-11-24 03:00:00", task.Failed, "2026-11-24 03:10:00")
	_, c, _ := f.judge(t, task.AlertSuccessBy, nil, "2026-11-24 06:00:15")
	if c == nil || !c.Opens || !c.Alert.Deadline.Equal(berlin("2026-11-24 06:00:00")) || !c.Alert.Since.Equal(berlin("2026-11-24 06:00:00")) || c.Alert.Run != f.ends[0].ID {
		t.Fatalf("%+v", c)
	}
	open := c.Alert

	// The next tick is skipped by a freeze, so nothing is due, and the alert stays open.
	f.skipped("2026-11-25 03:00:00", "2026-11-25 03:00:00", task.ReasonFrozen)
	if v, c, _ := f.judge(t, task.AlertSuccessBy, &open, "2026-11-25 07:00:00"); v.State != Undecided || c != nil || !v.Next.Equal(berlin("2026-11-26 06:00:15")) {
		t.Errorf("%+v, %+v", v, c)
	}

	// A person runs it then.
	f.manual("2026-11-25 08:00:00", task.Succeeded, "2026-11-25 08:10:00")
	if _, c, _ := f.judge(t, task.AlertSuccessBy, &open, "2026-11-25 09:00:00"); c == nil || c.Alert.Closed == nil || c.Alert.Closed.Why != task.AlertSucceeded || c.Alert.Closed.Run != f.ends[2].ID {
		t.Errorf("%+v", c)
	}

	// So it does if its record was trimmed.
	f.ends[2].State = task.Failed
	f.ledger.LastTick = berlin("2026-11-25 08:00:00")
	if _, c, _ := f.judge(t, task.AlertSuccessBy, &open, "2026-11-25 09:00:00"); c == nil || c.Alert.Closed == nil || c.Alert.Closed.Why != task.AlertSucceeded {
		t.Errorf("with the success in the ledger: %+v", c)
	}

	// If the next deadline is missed, too, a success of the first tick does not close it.
	f = watched("0 3 * * *", task.Alerts{SuccessBy: "0 6 * * *"}).tick("2026-11-25 03:00:00", task.Failed, "2026-11-25 03:10:00").
		tick("2026-11-24 03:00:00", task.Succeeded, "2026-11-25 03:20:00")
	if v, c, _ := f.judge(t, task.AlertSuccessBy, &open, "2026-11-25 07:00:00"); v.State != NotMet || c != nil {
		t.Errorf("%+v, %+v", v, c)
	}
}

// An evaluation of a task with a long history reads little of it.
func TestEvaluate_ReadsAsMuchAsItNeeds(t *testing.T) {
	t.Parallel()

	f := watched("* * * * *", failures(3))
	f.entry.Alerts.SuccessWithin, f.entry.Alerts.SuccessBy = task.Duration(time.Hour), "0 6 * * *"
	tick := berlin("2026-11-24 01:00:00")
	for i := range 500 {
		s := task.Succeeded
		if i == 490 {
			s = task.Failed
		}
		text := tick.Add(time.Duration(i) * time.Minute).Format("2006-01-02 15:04:05")
		f.tick(text, s, text)
	}

	for kind, most := range map[task.AlertKind]int{task.AlertFailures: 1, task.AlertSuccessWithin: 1, task.AlertSuccessBy: maxPage} {
		if _, _, read := f.judge(t, kind, nil, "2026-11-24 09:20:00"); read > most {
			t.Errorf("%s: read %d records, want at most %d", kind, read, most)
		}
	}
}

func TestNewLedgerFacts_FindsTheLastSuccess(t *testing.T) {
	t.Parallel()

	tick := berlin("2026-11-24 01:00:00")
	record := func(after time.Duration, s task.State, manual bool) ledger.Record {
		r := task.Run{ID: task.RunID(tick.Add(after), testUID), UID: testUID, State: s, Trigger: task.TriggerSchedule, ScheduledTime: task.At(tick.Add(after))}
		if manual {
			r.ID, r.Trigger = r.ID+"-abcd", task.TriggerManual
		}
		r.StartedAt, r.EndedAt = r.ScheduledTime, task.At(r.ScheduledTime.Add(10*time.Minute))

		return ledger.Record{Run: r}
	}
	next := func(t time.Time) (time.Time, bool) { return t.Add(time.Hour), true }
	chunks := func(records ...ledger.Record) (values [][]byte) {
		for _, c := range ledger.Fold(testUID, nil, records, next) {
			value, err := c.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, value)
		}

		return values
	}

	for name, c := range map[string]struct {
		chunks [][]byte
		want   time.Time
	}{
		"nothing":  {nil, time.Time{}},
		"a span":   {chunks(record(0, task.Succeeded, false), record(time.Hour, task.Succeeded, false), record(2*time.Hour, task.Failed, false)), tick.Add(time.Hour + 11*time.Minute)},
		"a manual": {chunks(record(0, task.Succeeded, false), record(3*time.Hour, task.Succeeded, true), record(4*time.Hour, task.Failed, true)), tick.Add(3 * time.Hour)},
		"failures": {chunks(record(0, task.Failed, false)), time.Time{}},
	} {
		if got := NewLedgerFacts(testUID, c.chunks).LastSuccess; !got.Equal(c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}

	frozen := record(2*time.Hour, task.Skipped, false)
	frozen.Run.Reason = task.ReasonFrozen
	f := NewLedgerFacts(testUID, chunks(record(0, task.Succeeded, false), record(time.Hour, task.Succeeded, false), frozen, record(3*time.Hour, task.Failed, false)))
	if !f.LastTick.Equal(tick.Add(time.Hour)) || f.IsIncomplete || !f.CompleteSince.IsZero() || len(f.Excused) != 1 || !f.Excused[0].First.Equal(tick.Add(2*time.Hour)) {
		t.Errorf("of ticks: %+v", f)
	}
	if f := NewLedgerFacts(testUID, chunks(record(0, task.Succeeded, false), record(3*time.Hour, task.Succeeded, true))); !f.LastTick.Equal(tick.Add(3 * time.Hour)) {
		t.Errorf("of a request: %+v", f)
	}

	// Many requests are only counted.
	var requests []ledger.Record
	for i := range 2000 {
		requests = append(requests, record(time.Duration(i)*time.Minute, task.Succeeded, true))
	}
	if f := NewLedgerFacts(testUID, chunks(requests...)); f.MoreUntil.IsZero() {
		t.Errorf("of many requests: %+v", f)
	}

	uncounted := ledger.NewUncounted(testUID, tick)
	value, err := uncounted.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if f := NewLedgerFacts(testUID, [][]byte{value}); !f.IsIncomplete {
		t.Errorf("of a task without ledger: %+v", f)
	}
}
