package evaluator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// newShard returns a shard that was opened at a time.
func newShard(opened time.Time) *shardAlerts {
	s := newShardAlerts(Shard{Index: &readmodel.Index{}, Opened: opened})
	s.load(nil, opened)

	return s
}

// put adds the row of a task.
func (s *shardAlerts) put(r readmodel.Row, a *task.Alerts) int32 {
	return s.Index.Put(readmodel.NoSlot, r, readmodel.Details{}, a)
}

// visited returns the tasks that a visit finds.
func (s *shardAlerts) visited(now time.Time) (names []string) {
	var q queue
	s.visit(now, &q)
	for _, j := range q.inTurn(1000) {
		names = append(names, j.name)
	}

	return names
}

// rowWith returns a row whose past is known.
func rowWith(change func(r *readmodel.Row)) readmodel.Row {
	r := readmodel.Row{Name: "shop/a", Flags: readmodel.History}
	change(&r)

	return r
}

func TestEye_SeesWhatMustBeRead(t *testing.T) {
	t.Parallel()

	const failing, paused = readmodel.History | readmodel.Failing, readmodel.History | readmodel.Paused
	three, within, by := &task.Alerts{Failures: new(3)}, &task.Alerts{Failures: new(0), SuccessWithin: task.Duration(time.Hour)}, &task.Alerts{Failures: new(0), SuccessBy: "0 6 * * *"}
	late, long := &task.Alerts{Failures: new(0), MaxLateness: task.Duration(time.Hour)}, &task.Alerts{Failures: new(0), MaxDuration: task.Duration(time.Hour)}
	pause := &task.Alerts{Failures: new(0), MaxPause: task.Duration(time.Hour)}
	ago := func(d time.Duration) uint32 { return uint32(noon.Add(-d).Unix()) }
	at := func(d time.Duration) uint32 { return uint32(noon.Add(d).Unix()) }

	for name, c := range map[string]struct {
		row     readmodel.Row
		alerts  *task.Alerts
		notMet  readmodel.Flags
		judgeAt uint32
		want    glance
	}{
		"no past":                  {readmodel.Row{}, three, 0, 0, unknown},
		"unreadable":               {rowWith(func(r *readmodel.Row) { r.Flags |= readmodel.Unreadable }), three, 0, 0, unknown},
		"healthy":                  {rowWith(func(*readmodel.Row) {}), three, 0, 0, agrees},
		"few failures":             {rowWith(func(r *readmodel.Row) { r.Flags, r.Failures = failing, 2 }), three, 0, 0, agrees},
		"many failures":            {rowWith(func(r *readmodel.Row) { r.Flags, r.Failures = failing, 3 }), three, 0, 0, differs},
		"many, and dismissed":      {rowWith(func(r *readmodel.Row) { r.Failures = 3 }), three, 0, 0, agrees},
		"open and failing":         {rowWith(func(r *readmodel.Row) { r.Flags, r.Failures = failing, 1 }), three, readmodel.AlertFailures, 0, agrees},
		"open and not failing":     {rowWith(func(*readmodel.Row) {}), three, readmodel.AlertFailures, 0, differs},
		"open and off":             {rowWith(func(r *readmodel.Row) { r.Flags = failing }), within, readmodel.AlertFailures, noJudgement, differs},
		"a recent success":         {rowWith(func(r *readmodel.Row) { r.LastSuccess = ago(59 * time.Minute) }), within, 0, 0, agrees},
		"an old success":           {rowWith(func(r *readmodel.Row) { r.LastSuccess = ago(60 * time.Minute) }), within, 0, 0, differs},
		"no success":               {rowWith(func(*readmodel.Row) {}), within, 0, 0, differs},
		"no success, judged later": {rowWith(func(*readmodel.Row) {}), within, 0, at(time.Second), agrees},
		"no success, judged now":   {rowWith(func(*readmodel.Row) {}), within, 0, at(0), differs},
		"open, an old success":     {rowWith(func(r *readmodel.Row) { r.LastSuccess = ago(2 * time.Hour) }), within, readmodel.AlertSuccessWithin, noJudgement, agrees},
		"open, a recent success":   {rowWith(func(r *readmodel.Row) { r.LastSuccess = ago(time.Minute) }), within, readmodel.AlertSuccessWithin, noJudgement, differs},
		"open and paused":          {rowWith(func(r *readmodel.Row) { r.Flags = paused }), within, readmodel.AlertSuccessWithin, noJudgement, differs},
		"a deadline to come":       {rowWith(func(*readmodel.Row) {}), by, 0, at(time.Hour), agrees},
		"a deadline has passed":    {rowWith(func(*readmodel.Row) {}), by, 0, at(0), differs},
		"a deadline not known":     {rowWith(func(*readmodel.Row) {}), by, 0, 0, differs},
		"missed, nothing since":    {rowWith(func(r *readmodel.Row) { r.LastSuccess = 7 }), by, readmodel.AlertSuccessBy, at(time.Hour), agrees},
		"missed, a success since":  {rowWith(func(r *readmodel.Row) { r.LastSuccess = 8 }), by, readmodel.AlertSuccessBy, at(time.Hour), differs},
		"a tick to come":           {rowWith(func(*readmodel.Row) {}), late, 0, at(time.Second), agrees},
		"a tick may be late":       {rowWith(func(*readmodel.Row) {}), late, 0, at(0), differs},
		"late, judged later":       {rowWith(func(*readmodel.Row) {}), late, readmodel.AlertMaxLateness, at(time.Minute), agrees},
		"late and paused":          {rowWith(func(r *readmodel.Row) { r.Flags = paused }), late, readmodel.AlertMaxLateness, at(time.Minute), differs},
		"late and off":             {rowWith(func(*readmodel.Row) {}), three, readmodel.AlertMaxLateness, noJudgement, differs},
		"nothing runs":             {rowWith(func(*readmodel.Row) {}), long, 0, 0, agrees},
		"only a parent runs":       {rowWith(func(r *readmodel.Row) { r.Active = 1 }), long, 0, 0, differs},
		"long, and runs":           {rowWith(func(r *readmodel.Row) { r.Active = 1 }), long, readmodel.AlertMaxDuration, noJudgement, agrees},
		"long, and nothing runs":   {rowWith(func(*readmodel.Row) {}), long, readmodel.AlertMaxDuration, noJudgement, differs},
		"long and off":             {rowWith(func(r *readmodel.Row) { r.Active = 1 }), three, readmodel.AlertMaxDuration, noJudgement, differs},
		"not paused":               {rowWith(func(*readmodel.Row) {}), pause, 0, 0, agrees},
		"paused, not judged":       {rowWith(func(r *readmodel.Row) { r.Flags = paused }), pause, 0, 0, differs},
		"paused, judged later":     {rowWith(func(r *readmodel.Row) { r.Flags = paused }), pause, 0, at(time.Second), agrees},
		"open and still paused":    {rowWith(func(r *readmodel.Row) { r.Flags = paused }), pause, readmodel.AlertMaxPause, noJudgement, agrees},
		"open and resumed":         {rowWith(func(*readmodel.Row) {}), pause, readmodel.AlertMaxPause, noJudgement, differs},
		"missed and paused":        {rowWith(func(r *readmodel.Row) { r.LastSuccess, r.Flags = 7, paused }), by, readmodel.AlertSuccessBy, at(time.Hour), differs},
	} {
		e := eye{now: noon, opened: noon.Add(-time.Hour), first: map[deadlineKey]uint32{}}
		w := readmodel.WatchedRow{Row: &c.row, Alerts: c.alerts, NotMet: c.notMet, JudgeAt: c.judgeAt}
		if got := e.look(&w, 7); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// After an opening, a deadline is judged when it comes, and earlier ones after the time for catching up.
func TestEye_JudgesDeadlinesAfterAnOpening(t *testing.T) {
	t.Parallel()

	s, err := schedule.Parse(task.Timing{Schedule: task.Schedules{"0 3 * * *"}, Timezone: "Europe/Berlin"}, noon)
	if err != nil {
		t.Fatal(err)
	}

	for deadline, want := range map[string]time.Time{
		"5 13 * * *": noon.Add(5*time.Minute + 15*time.Second), // in Berlin
		"0 13 * * *": noon.Add(15 * time.Second),
		"5 12 * * *": noon.Add(alert.CatchUpTime),
	} {
		r := rowWith(func(r *readmodel.Row) { r.Schedule = s })
		e := eye{now: noon.Add(time.Second), opened: noon, first: map[deadlineKey]uint32{}}
		w := readmodel.WatchedRow{Row: &r, Alerts: &task.Alerts{Failures: new(0), SuccessBy: deadline}}
		if look := e.look(&w, 0); look != agrees || int64(w.JudgeAt) != want.Unix() {
			t.Errorf("%s: %d, judged at %s, want %s", deadline, look, time.Unix(int64(w.JudgeAt), 0).UTC(), want)
		}
	}
}

// Tasks whose runs fail come first, and no namespace waits for another.
func TestQueue_TakesNamespacesInTurn(t *testing.T) {
	t.Parallel()

	var q queue
	for i := range 3 * tasksPerVisit {
		q.add(job{name: fmt.Sprintf("big/t%05d", i), isFailing: true})
	}
	for _, name := range []string{"late/a", "small/a", "late/b", "big/deadline"} {
		q.add(job{name: name, isFailing: name == "small/a"})
	}

	jobs := q.inTurn(tasksPerVisit)
	if len(jobs) != tasksPerVisit || jobs[1].name != "small/a" {
		t.Errorf("%d tasks, the second is %s", len(jobs), jobs[1].name)
	}
	if q.size > tasksPerVisit+4 {
		t.Errorf("the queue has %d tasks", q.size)
	}

	q = queue{}
	for _, name := range []string{"b/1", "a/1", "a/2", "a/3", "b/2", "c/1"} {
		q.add(job{name: name, isFailing: name[0] == 'c'})
	}
	var names []string
	for _, j := range q.inTurn(5) {
		names = append(names, j.name)
	}
	if got := strings.Join(names, " "); got != "c/1 a/1 b/1 a/2 b/2" {
		t.Errorf("the order is %s", got)
	}
}

// A task without verdict counts after five minutes, or after fifteen if its records were read and did not tell.
func TestVisit_CountsTasksWithoutVerdict(t *testing.T) {
	t.Parallel()

	a := &task.Alerts{}
	for minute, want := range map[int]int{4: 0, 5: 1, 14: 1, 15: 2, 200: 2} {
		s := newShard(noon)
		s.put(rowWith(func(r *readmodel.Row) { r.Name = "shop/fine" }), a)
		s.put(readmodel.Row{Name: "shop/unread"}, a)
		s.put(readmodel.Row{Name: "shop/plain"}, nil)
		slot := s.put(rowWith(func(r *readmodel.Row) {
			r.Name, r.Flags, r.Failures = "shop/told", readmodel.History|readmodel.Failing, 1
		}), a)
		s.Index.ChangeWatched(slot, "shop/told", func(w *readmodel.WatchedRow) { w.Unknown = true })

		for i := range minute {
			s.visited(noon.Add(time.Duration(i+1) * time.Minute))
		}
		if s.notEvaluated != want {
			t.Errorf("after %d minutes, %d tasks are not evaluated, want %d", minute, s.notEvaluated, want)
		}
	}
}

// A shard that nobody watches is not visited, and one in which nothing has changed only every fifteen seconds.
func TestVisit_DoesNoMoreThanItMust(t *testing.T) {
	t.Parallel()

	s := newShard(noon)
	s.put(rowWith(func(*readmodel.Row) {}), nil)
	s.visited(noon)
	if s.visits != 0 {
		t.Error("it visits a shard without alerts")
	}

	s.put(rowWith(func(r *readmodel.Row) { r.Name = "shop/b" }), &task.Alerts{})
	now := noon.Add(time.Second)
	for range 12 {
		s.visited(now)
		now = now.Add(visitEvery)
	}
	if s.visits != 4 {
		t.Errorf("%d visits in a minute without changes, want 4", s.visits)
	}

	s.Index.NoteApplied(7)
	s.visited(now)
	if s.visits != 5 {
		t.Error("it does not visit a shard that has changed")
	}
}

// An open alert whose task is not watched is read, and one that is found again gets its flag.
func TestVisit_FindsTheTasksOfAlerts(t *testing.T) {
	t.Parallel()

	s := newShard(noon)
	a := &task.Alerts{Notify: []string{"ops/slack"}}
	slot := s.put(rowWith(func(r *readmodel.Row) {
		r.Name, r.Flags, r.Failures = "shop/fails", readmodel.History|readmodel.Failing, 1
	}), a)
	s.put(rowWith(func(r *readmodel.Row) { r.Name = "shop/unwatched" }), nil)
	s.load([]task.Alert{
		{Namespace: "shop", Task: "fails", Kind: task.AlertFailures, Notify: []string{"ops/slack"}},
		{Namespace: "shop", Task: "unwatched", Kind: task.AlertFailures},
		{Namespace: "shop", Task: "deleted", Kind: task.AlertSuccessBy},
		{Namespace: "shop", Task: "closed", Kind: task.AlertFailures, Closed: &task.AlertClose{}},
	}, noon)

	got := s.visited(noon)
	slices.Sort(got)
	// The first one is read because nothing is known of its last reading.
	if want := []string{"shop/deleted", "shop/fails", "shop/unwatched"}; !slices.Equal(got, want) {
		t.Errorf("it reads %q, want %q", got, want)
	}
	if !s.Index.Row(slot).Flags.Has(readmodel.AlertFailures) {
		t.Error("the row of a task with an open alert has no flag")
	}
}

// A task that was read is not read again before its row changes, or its time has come.
func TestVisit_LetsTasksRest(t *testing.T) {
	t.Parallel()

	s := newShard(noon)
	a := &task.Alerts{}
	row := rowWith(func(r *readmodel.Row) { r.Flags, r.Failures = readmodel.History|readmodel.Failing, 1 })
	slot := s.put(row, a)
	if got := s.visited(noon); len(got) != 1 {
		t.Fatalf("it reads %q", got)
	}

	k := s.taskNamed(row.Name)
	k.alerts, k.ends, k.readAgain = a, endsOf(&row), noon.Add(10*time.Minute)
	if got := s.visited(noon.Add(9 * time.Minute)); len(got) != 0 {
		t.Errorf("it reads %q although nothing has changed", got)
	}
	if got := s.visited(noon.Add(10 * time.Minute)); len(got) != 1 {
		t.Errorf("when it is time, it reads %q", got)
	}

	k = s.taskNamed(row.Name)
	k.alerts, k.ends, k.readAgain = a, endsOf(&row), noon.Add(time.Hour)
	s.Index.Change(slot, func(r *readmodel.Row) { r.Failures++ })
	if got := s.visited(noon.Add(11 * time.Minute)); len(got) != 1 {
		t.Errorf("after another failure, it reads %q", got)
	}
}

// A task that is paused while it is evaluated is judged again: the reading did not know of the pause.
//
// Verifies: G58
func TestEvaluation_KeepsThatATaskWasPausedSince(t *testing.T) {
	t.Parallel()

	s, alerts := newShard(noon.Add(-time.Hour)), &task.Alerts{Failures: new(0), MaxPause: task.Duration(time.Minute)}
	row := rowWith(func(*readmodel.Row) {})
	slot := s.put(row, alerts)

	v := evaluation{job: job{shard: s, name: row.Name, slot: slot, alerts: alerts, ends: endsOf(&row)}, task: s.taskNamed(row.Name)}
	for i := range v.verdicts {
		v.verdicts[i].State = alert.Met
	}

	row.Flags |= readmodel.Paused
	s.Index.Put(slot, row, readmodel.Details{}, alerts)
	v.apply(noon)

	if got := s.visited(noon.Add(time.Minute)); !slices.Equal(got, []string{row.Name}) {
		t.Errorf("the next visit finds %v", got)
	}
}

// A success whose record somebody writes again, as it is, does not become the last one: neither would the failures since the real one
// be counted from it, nor would its end be the last.
//
// Verifies: G57
func TestNewEvaluation_OrdersRunsByTheirEnds(t *testing.T) {
	s := newShard(noon.Add(-time.Hour))
	row := rowWith(func(*readmodel.Row) {})
	s.put(row, &task.Alerts{})

	event := func(run string, create, mod int64) store.ShardEvent {
		return store.ShardEvent{ShardKey: record.ShardKey{Kind: record.KindEnded, Run: run}, Key: "history/" + run, Create: create, Mod: mod}
	}
	rewritten, failed, last := task.RunID(noon, "uid0"), task.RunID(noon.Add(time.Second), "uid0"), task.RunID(noon.Add(2*time.Second), "uid0")

	v := newEvaluation(job{shard: s, name: row.Name}, &store.AlertReading{}, &store.TaskReading{
		Entry:   &task.Entry{UID: "uid0"},
		History: []store.ShardEvent{event(rewritten, 10, 40), event(failed, 20, 20), event(last, 30, 30)},
	})

	var got []string
	for _, r := range v.evidence.Records {
		got = append(got, r.ID)
	}
	if want := []string{last, failed, rewritten}; !slices.Equal(got, want) {
		t.Errorf("the records are %v, want %v", got, want)
	}
}

// Rooms are full from 50 open alerts on, until fewer than 25 are open. Each receiver has a room in each namespace.
func TestRooms_HaveEnoughRoomAgainAtHalf(t *testing.T) {
	t.Parallel()

	s := newShard(noon)
	open := func(n int) {
		clear(s.tasks)
		for i := range n {
			s.taskNamed(fmt.Sprintf("shop/t%02d", i)).records[0] = &task.Alert{Namespace: "shop", Notify: []string{"ops/slack"}}
		}
		s.updateRooms()
	}

	slack, both := []string{"ops/slack"}, []string{"ops/dba", "ops/slack"}
	for _, c := range []struct {
		open int
		room bool
	}{{0, true}, {49, true}, {50, false}, {49, false}, {25, false}, {24, true}, {49, true}} {
		open(c.open)
		if got := s.hasRoom("shop", slack); got != c.room {
			t.Errorf("with %d open: room %t, want %t", c.open, got, c.room)
		}
		if !s.hasRoom("shop", both) || !s.hasRoom("web", slack) || !s.hasRoom("shop", nil) {
			t.Errorf("with %d open, another receiver or namespace has no room", c.open)
		}
	}
}

func TestMoreAlert_CountsWhatHasNoRecord(t *testing.T) {
	t.Parallel()

	r := room{"shop", "ops/slack"}
	three := map[task.AlertKind]int{task.AlertFailures: 3}
	if a := moreAlert(nil, r, nil, noon); a != nil {
		t.Errorf("without alerts: %+v", a)
	}

	first := moreAlert(nil, r, three, noon)
	if first == nil || first.Kind != task.AlertMore || first.Receiver != "ops/slack" || first.Namespace != "shop" || first.More[task.AlertFailures] != 3 || first.Openings != 1 || !first.OpenedAt.Equal(noon) {
		t.Fatalf("%+v", first)
	}
	first.ID, first.Mod = 7, 8
	if a := moreAlert(first, r, three, noon.Add(time.Minute)); a != nil {
		t.Errorf("without a change: %+v", a)
	}

	more := moreAlert(first, r, map[task.AlertKind]int{task.AlertFailures: 4}, noon.Add(time.Minute))
	if more == nil || more.More[task.AlertFailures] != 4 || !more.OpenedAt.Equal(noon) || more.Mod != 8 {
		t.Errorf("with one more: %+v", more)
	}

	closed := moreAlert(more, r, nil, noon.Add(time.Hour))
	if closed == nil || closed.Closed == nil || closed.Closed.Why != task.AlertSolved {
		t.Fatalf("without any: %+v", closed)
	}
	if a := moreAlert(closed, r, nil, noon.Add(time.Hour)); a != nil {
		t.Errorf("closed again: %+v", a)
	}

	again := moreAlert(closed, r, three, noon.Add(2*time.Hour))
	if again == nil || !again.IsOpen() || again.Openings != 2 || again.ID != 7 || again.Mod != 8 || len(again.Opened) != 1 {
		t.Errorf("opened again: %+v", again)
	}
}

// What is counted stays counted as long as an alert with a record would stay open.
func TestDecide_KeepsWhatIsCounted(t *testing.T) {
	t.Parallel()

	const failures, by = 0, 2 // indexes in alert.Kinds
	for name, c := range map[string]struct {
		kind    int
		verdict alert.Verdict
		change  func(v *evaluation)
		want    bool
	}{
		"a deadline is not due":         {kind: by, verdict: alert.Verdict{State: alert.Undecided}, want: true},
		"fewer failures than it takes":  {kind: failures, verdict: alert.Verdict{State: alert.Undecided}, want: true},
		"its records cannot be read":    {kind: failures, verdict: alert.Verdict{State: alert.Unknown}, want: true},
		"a run may be under way":        {kind: failures, verdict: alert.Verdict{State: alert.Met, Base: 5}, change: func(v *evaluation) { v.reading.HasQueued = true }, want: true},
		"dismissed":                     {kind: failures, verdict: alert.Verdict{State: alert.Met, Base: 5}},
		"a success since":               {kind: failures, verdict: alert.Verdict{State: alert.Met, Base: 6}, change: func(v *evaluation) { v.reading.HasQueued = true }},
		"a deadline is met":             {kind: by, verdict: alert.Verdict{State: alert.Met}, change: func(v *evaluation) { v.reading.HasQueued = true }},
		"paused":                        {kind: by, verdict: alert.Verdict{State: alert.NotExpected}},
		"created again":                 {kind: failures, verdict: alert.Verdict{State: alert.Undecided}, change: func(v *evaluation) { v.evidence.Entry.UID = "other" }},
		"it has a record":               {kind: failures, verdict: alert.Verdict{State: alert.Undecided}, change: func(v *evaluation) { v.task.records[failures] = &task.Alert{UID: "k3f9"} }},
		"not met, and there is room":    {kind: failures, verdict: alert.Verdict{State: alert.NotMet, Base: 5}},
		"not met, and there is no room": {kind: failures, verdict: alert.Verdict{State: alert.NotMet, Base: 7}, change: func(v *evaluation) { v.job.shard.full[room{"shop", "ops/slack"}] = true }, want: true},
	} {
		s := newShard(noon)
		a := &task.Alerts{Notify: []string{"ops/slack"}}
		flag := readmodel.AlertFlag(alert.Kinds[c.kind])
		v := &evaluation{
			job: job{shard: s, name: "shop/a", slot: s.put(rowWith(func(*readmodel.Row) {}), a)}, reading: &store.TaskReading{},
			task:     &taskAlerts{name: "shop/a", counted: flag, receivers: a.Notify, uid: "k3f9", base: 5},
			evidence: alert.Evidence{Namespace: "shop", Task: "a", Entry: &task.Entry{UID: "k3f9", Alerts: a}},
		}
		v.verdicts[c.kind] = c.verdict
		if c.change != nil {
			c.change(v)
		}

		v.decide(noon)
		if got := v.task.counted.Has(flag); got != c.want {
			t.Errorf("%s: counted %t, want %t", name, got, c.want)
		}
		if waits := v.outcome().waits; waits != (c.want && c.verdict.State == alert.Met) {
			t.Errorf("%s: it waits for the end of a run: %t", name, waits)
		}
		if v.task.counted != 0 && v.task.base != max(5, c.verdict.Base) {
			t.Errorf("%s: the base is %d", name, v.task.base)
		}
	}
}

// A new owner has counted nothing yet. So it does not say that what the former one counted is solved, before it has judged all tasks.
func TestCountMore_KeepsWhatTheFormerOwnerCounted(t *testing.T) {
	t.Parallel()

	s := newShardAlerts(Shard{Index: &readmodel.Index{}, Opened: noon})
	r, a := room{"shop", "ops/slack"}, &task.Alerts{Notify: []string{"ops/slack"}}
	slot := s.put(readmodel.Row{Name: "shop/a"}, a)
	more := task.Alert{Namespace: "shop", Kind: task.AlertMore, Receiver: "ops/slack", More: map[task.AlertKind]int{task.AlertFailures: 3}}
	s.load([]task.Alert{more}, noon)

	visit := func(what string, after time.Duration, want int) {
		t.Helper()
		s.visited(noon.Add(after))
		if got := s.countMore()[r][task.AlertFailures]; got != want {
			t.Errorf("%s: %d are counted, want %d", what, got, want)
		}
	}

	visit("the past of a task is not known", 0, 3)
	s.taskNamed("shop/b").counted, s.taskNamed("shop/b").receivers = readmodel.AlertFailures, a.Notify
	visit("one is counted", time.Minute, 3)

	s.Index.Change(slot, func(r *readmodel.Row) { r.Flags |= readmodel.History })
	visit("it catches up", alert.CatchUpTime-time.Second, 3)
	s.Index.Change(slot, func(r *readmodel.Row) { r.Flags, r.Failures = r.Flags|readmodel.Failing, 1 })
	s.Index.NoteApplied(1)
	visit("a task is to be read", alert.CatchUpTime, 3)

	// It was read, and its row says something else than its records.
	k := s.taskNamed("shop/a")
	row := s.Index.Row(slot)
	k.alerts, k.ends, k.readAgain, k.isJudged = a, endsOf(&row), noon.Add(time.Hour), true
	visit("all tasks are judged", alert.CatchUpTime+time.Minute, 1)

	// Its own numbers may become smaller at once.
	more.More = map[task.AlertKind]int{task.AlertFailures: 7}
	s.load([]task.Alert{more}, noon.Add(refreshEvery))
	visit("its own record is read again", refreshEvery+time.Hour, 1)
}

// A former owner's count does not stay for a task that can never be judged.
func TestCountMore_DoesNotWaitForever(t *testing.T) {
	t.Parallel()

	s := newShardAlerts(Shard{Index: &readmodel.Index{}, Opened: noon})
	s.put(readmodel.Row{Name: "shop/unread"}, &task.Alerts{})
	s.load([]task.Alert{{Namespace: "shop", Kind: task.AlertMore, Receiver: "ops/slack", More: map[task.AlertKind]int{task.AlertFailures: 3}}}, noon)

	for i := range maxUnknownMinutes + 1 {
		s.visited(noon.Add(time.Duration(i) * time.Minute))
	}
	if counts := s.countMore(); len(counts) != 0 || s.notEvaluated != 1 {
		t.Errorf("%v are counted, and %d tasks are not evaluated", counts, s.notEvaluated)
	}
}

// Closed alerts are deleted after two hours, and the oldest of a room with many before that.
func TestClosedLongAgo(t *testing.T) {
	t.Parallel()

	s := newShard(noon)
	for i := range 60 {
		s.taskNamed(fmt.Sprintf("shop/t%02d", i)).records[0] = &task.Alert{Namespace: "shop", Task: fmt.Sprintf("t%02d", i), Notify: []string{"ops/slack"}, Closed: &task.AlertClose{At: task.At(noon.Add(-time.Duration(i) * time.Minute))}}
	}
	s.taskNamed("shop/open").records[0] = &task.Alert{Namespace: "shop", Task: "open"}
	s.taskNamed("web/old").records[1] = &task.Alert{Namespace: "web", Task: "old", Closed: &task.AlertClose{At: task.At(noon.Add(-2 * time.Hour))}}

	var got []string
	for _, a := range s.closedLongAgo(noon) {
		got = append(got, a.Task)
	}
	slices.Sort(got)
	if want := []string{"old", "t50", "t51", "t52", "t53", "t54", "t55", "t56", "t57", "t58", "t59"}; !slices.Equal(got, want) {
		t.Errorf("%q are deleted, want %q", got, want)
	}
}

// BenchmarkVisit measures a visit of a shard with a million tasks with alerts, in which nothing has to change.
func BenchmarkVisit(b *testing.B) {
	const tasks = 1_000_000
	s := newShard(noon)
	a := &task.Alerts{Notify: []string{"ops/slack"}, SuccessWithin: task.Duration(26 * time.Hour)}
	for i := range tasks {
		s.put(rowWith(func(r *readmodel.Row) { r.Name, r.LastSuccess = fmt.Sprintf("shop/t%07d", i), uint32(noon.Unix()) }), a)
	}

	now := noon
	for b.Loop() {
		now = now.Add(visitIdleEvery)
		if got := s.visited(now); len(got) != 0 {
			b.Fatalf("%d tasks differ", len(got))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/tasks, "ns/task")
}
