package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// The dry run of a change returns exactly the ticks that the change causes: the ticks of the written entry, as
// its owner decides them, are those of the previous entry plus the changes that the dry run reported.
//
// Verifies: G43
func TestDryRun_TellsTheTicksThatTheChangeBrings(t *testing.T) {
	w := newWorld(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		w.clock.Set(drawInstant(rt))
		old := drawTicking(rt)
		old.Name = fmt.Sprint("t", n)

		_, err := w.Tasks.Apply(t.Context(), old, client.ApplyOptions{})
		if errors.Is(err, task.ErrInvalid) {
			rt.Skip(err) // it never fires
		}

		must(t, err)
		w.clock.advance(rapid.SampledFrom([]time.Duration{0, time.Millisecond, 90 * time.Second, 7 * time.Hour, 40 * time.Hour}).Draw(rt, "later"))

		before := w.entry(ref("default", old.Name))
		if rapid.Bool().Draw(rt, "ran") && before.MaxRuns > 0 {
			before.Own = &task.Own{Runs: before.MaxRuns - 1}
			w.put(w.store.Keys().Entry(ref("default", old.Name)), before)
		}

		next := drawEdit(rt, old)
		say := w.dump()

		would, err := w.WouldApply(t, next)
		if errors.Is(err, task.ErrInvalid) {
			rt.Skip(err)
		}

		must(t, err)

		if !maps.Equal(say, w.dump()) {
			rt.Fatal("the dry run wrote")
		}

		did, err := w.Tasks.Apply(t.Context(), next, client.ApplyOptions{})
		must(t, err)

		if did.Result != would.Result {
			rt.Fatalf("it said %s, and it is %s", would.Result, did.Result)
		}

		after := w.entry(ref("default", old.Name))

		if would.Result == client.Unchanged {
			if would.Ticks != nil || len(would.Fields) != 0 {
				rt.Fatalf("unchanged, with %+v", would)
			}
			return
		}

		checkTicks(rt, would.Ticks, &before, &after, w.clock.now())
	})
}

// WouldApply returns the result of a dry run with a batch of one line, including all its ticks.
func (w *world) WouldApply(t *testing.T, s task.Spec) (*client.Change, error) {
	for r, err := range w.Tasks.ApplyAll(t.Context(), slices.Values([]task.Spec{s}), client.BatchOptions{DryRun: true, Ticks: 4000}) {
		if err == nil {
			err = r.Err()
		}
		return r.Change, err
	}

	return nil, errors.New("no answer")
}

// instants are the time of a tick and its due time.
type instants struct{ at, due int64 }

// pending returns the ticks of an entry that fall due in (now, until], one by one.
func pending(t *rapid.T, e *task.Entry, now, until time.Time) map[instants]bool {
	list := map[instants]bool{}
	silence, ends := e.Silence()
	if e.Paused && !ends {
		return list
	}

	s, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	if err != nil {
		t.Fatal(err)
	}

	left := int64(1 << 40)
	if e.MaxRuns > 0 {
		if left = e.MaxRuns; e.Own != nil {
			left -= e.Own.Runs
		}
	}

	for at := e.From.Time; left > 0; {
		tick, ok := s.Next(at)
		if !ok || s.Due(tick, e.UID).After(until) {
			break
		}

		if due := s.Due(tick, e.UID); due.After(now) && tick.After(silence.Time) {
			list[instants{tick.UnixMilli(), due.UnixMilli()}] = true
			left--
		}

		at = tick
	}

	return list
}

func checkTicks(t *rapid.T, c *client.TickChange, before, after *task.Entry, now time.Time) {
	was, is := pending(t, before, now, c.Until.Time), pending(t, after, now, c.Until.Time)
	unchanged := 0
	for k := range was {
		if is[k] {
			unchanged++
		}
	}

	key := func(x *client.TickTime) instants {
		if x.DueAt.IsZero() {
			return instants{x.Time.UnixMilli(), x.Time.UnixMilli()}
		}
		return instants{x.Time.UnixMilli(), x.DueAt.UnixMilli()}
	}

	come, goes, move := 0, 0, 0
	got := maps.Clone(was)

	for _, m := range c.Ticks {
		if m.Was != nil && !m.Was.Time.IsZero() && key(m.Was).due <= c.Until.UnixMilli() {
			if !got[key(m.Was)] || is[key(m.Was)] {
				t.Fatalf("%+v was no tick, or stays", m.Was)
			}
			delete(got, key(m.Was))
		}

		switch {
		case m.Was == nil:
			come++
		case m.Is == nil:
			goes++
		default:
			move++
			if !m.Was.Time.Equal(m.Is.Time.Time) && (before.Timezone == after.Timezone || m.Was.Local[:19] != m.Is.Local[:19]) {
				t.Fatalf("%+v does not move to %+v", m.Was, m.Is)
			}
		}
	}

	for _, m := range c.Ticks {
		if m.Is != nil && key(m.Is).due <= c.Until.UnixMilli() {
			got[key(m.Is)] = true
		}
	}

	if !maps.Equal(got, is) {
		t.Fatalf("until %s the dry run makes %d ticks of %d, the change %d\nbefore %+v\nafter  %+v\n%+v", c.Until, len(got), len(was), len(is), before, after, c.Ticks)
	}

	if c.Come != come || c.Go != goes || c.Move != move {
		t.Errorf("counts %d, %d, %d, lists %d, %d, %d", c.Come, c.Go, c.Move, come, goes, move)
	}

	if far := now.Add(7 * 24 * time.Hour); c.Until.Before(far) && len(was) < 2000 && len(is) < 2000 {
		t.Errorf("until %s only, with %d and %d ticks", c.Until, len(was), len(is))
	}
}

// drawInstant draws a time, often one near a clock change.
func drawInstant(t *rapid.T) time.Time {
	bases := []time.Time{
		time.Date(2027, 3, 27, 20, 0, 0, 0, time.UTC), time.Date(2026, 10, 24, 20, 0, 0, 0, time.UTC),
		time.Date(2027, 4, 3, 12, 0, 0, 0, time.UTC), time.Date(2026, 11, 20, 22, 5, 0, 0, time.UTC),
	}
	return rapid.SampledFrom(bases).Draw(t, "day").Add(time.Duration(rapid.Int64Range(0, 36*3600*1000).Draw(t, "ms")) * time.Millisecond)
}

var drawnSchedules = []task.Schedules{
	{"30 2 * * *"}, {"30 3 * * *"}, {"*/5 * * * *"}, {"0 * * * *"}, {"H H(1-4) * * *"}, {"0 0 1 1 *"}, {"15,45 1-3 * * SUN"}, {"@every 90s"},
	{"@every 7h"}, {"@every 30s", "0 0 L * *"}, {"@at 2027-03-28T01:00:00Z"}, {"@in 3h"}, {"@manual"}, {"@every 1h after completion"}, {"*/20 * * * * *"},
}

// drawTicking draws a spec that has ticks.
func drawTicking(t *rapid.T) task.Spec {
	s := task.Defaults()
	s.Action = task.Action{Noop: &task.Noop{}}
	s.Schedule = rapid.SampledFrom(drawnSchedules).Draw(t, "schedule")
	return drawEdit(t, s)
}

// drawEdit changes some of the fields that determine ticks, or none.
func drawEdit(t *rapid.T, s task.Spec) task.Spec {
	now := time.Date(2027, 3, 28, 0, 0, 0, 0, time.UTC)
	some := func(what string) bool { return rapid.IntRange(0, 3).Draw(t, what) == 0 }
	if some("schedule?") {
		s.Schedule = rapid.SampledFrom(drawnSchedules).Draw(t, "schedule")
	}

	if some("zone?") {
		s.Timezone = rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York", "Asia/Kolkata"}).Draw(t, "zone")
	}

	if some("dst?") {
		s.DST = task.DST{Gap: rapid.SampledFrom([]string{task.GapRunAfter, task.GapSkip}).Draw(t, "gap"), Fold: rapid.SampledFrom([]string{task.FoldFirst, task.FoldBoth}).Draw(t, "fold")}
	}

	if some("jitter?") {
		s.Jitter = task.Duration(rapid.SampledFrom([]time.Duration{0, time.Second, 10 * time.Minute, 20 * time.Hour}).Draw(t, "jitter"))
	}

	if some("start?") {
		s.Start = task.At(now.Add(time.Duration(rapid.IntRange(-48, 48).Draw(t, "start")) * time.Hour))
	}

	if some("end?") {
		s.End = task.At(now.Add(time.Duration(rapid.IntRange(49, 200).Draw(t, "end")) * time.Hour))
	}

	if some("max_runs?") {
		s.MaxRuns = rapid.SampledFrom([]int64{0, 1, 3, 5000}).Draw(t, "max_runs")
	}

	if some("paused?") {
		if s.Paused = rapid.Bool().Draw(t, "paused"); !s.Paused {
			s.PausedUntil = task.Time{}
		} else if rapid.Bool().Draw(t, "until") {
			s.PausedUntil = task.At(now.Add(time.Duration(rapid.IntRange(-200, 48).Draw(t, "until")) * time.Hour))
		}
	}

	if some("timeout?") {
		s.Timeout = task.Duration(time.Minute)
	}

	return s
}

// For every route with a dry run, the dry run returns what the change then does, and writes nothing.
func TestDryRun_OfEachRoute(t *testing.T) {
	w := newWorld(t)
	kept := w.create("kept", "30 2 * * *")
	one := spec("new", "0 3 * * *")
	one.Labels = map[string]string{"team": "data"}
	say := w.dump()

	got, err := w.Tasks.DryRunCreate(t.Context(), "default", one)
	must(t, err)

	if c := got.DryRun; c == nil || c.Result != client.Created || got.UID != "" || got.Revision != 0 || !slices.Equal(fieldsOf(c), []string{
		`action.process.command: none → ["true"]`, "labels.team: none → data", "schedule: none → 0 3 * * *"}) || c.Ticks.Come != 7 || c.Ticks.Go != 0 {
		t.Errorf("create: %+v", c)
	}

	_, err = w.Tasks.DryRunCreate(t.Context(), "default", spec("kept", "@daily"))
	wantError(t, err, task.ErrExists, client.CodeExists)
	_, err = w.Tasks.DryRunCreate(t.Context(), "default", spec("new", "@nope"))
	wantError(t, err, task.ErrInvalid, task.CodeBadSchedule)

	got, err = w.Tasks.DryRunPatch(t.Context(), "default", "kept", []byte(`{"schedule": "30 3 * * *", "timeout": "1m"}`), kept.Revision)
	must(t, err)

	if c := got.DryRun; c.Result != client.Configured || got.Revision != kept.Revision || got.Schedule[0] != "30 3 * * *" ||
		!slices.Equal(fieldsOf(c), []string{"schedule: 30 2 * * * → 30 3 * * *", "timeout: none → 1m"}) || c.Ticks.Come != 7 || c.Ticks.Go != 7 {
		t.Errorf("patch: %+v", c)
	}

	_, err = w.Tasks.DryRunPatch(t.Context(), "default", "kept", []byte(`{}`), kept.Revision+1)
	wantError(t, err, task.ErrStale, client.CodeStale)

	same := kept.Spec
	got, err = w.Tasks.Apply(t.Context(), same, client.ApplyOptions{DryRun: true})
	must(t, err)

	if c := got.DryRun; c.Result != client.Unchanged || len(c.Fields) != 0 || c.Ticks != nil {
		t.Errorf("apply of the same: %+v", c)
	}

	same.Timezone = "Asia/Kolkata"
	got, err = w.Tasks.Apply(t.Context(), same, client.ApplyOptions{DryRun: true, Revision: kept.Revision})
	must(t, err)

	if c := got.DryRun; c.Ticks.Move != 7 || c.Ticks.Come != 0 || c.Ticks.Go != 1 || c.Ticks.Ticks[0].Is != nil || // that time has passed in the other zone
		c.Ticks.Ticks[1].Was.Local != "2026-11-22T02:30:00.000Z" || c.Ticks.Ticks[1].Is.Local != "2026-11-22T02:30:00.000+05:30" {
		b, _ := json.Marshal(c)
		t.Errorf("apply of another zone: %s", b)
	}

	got, err = w.Tasks.DryRunDelete(t.Context(), "default", "kept", 0)
	must(t, err)

	if c := got.DryRun; c.Result != client.Deleted || c.Ticks.Go != 7 || got.Name != "kept" {
		t.Errorf("delete: %+v", c)
	}

	_, err = w.Tasks.DryRunDelete(t.Context(), "default", "nope", 0)
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)

	results := w.batch("?dry_run=true&full=true&ticks=2", line("b", "@hourly"), "{", strings.Replace(string(mustJSON(t, kept.Spec)), "30 2", "30 4", 1), string(mustJSON(t, kept.Spec)))
	wantSaid(t, results, "1 default/b created", "2 / failed bad_json", "3 default/kept configured", "4 default/kept unchanged")

	for i, want := range []string{client.Created, "", client.Configured, client.Unchanged} {
		if c := results[i].Change; want != "" && (c.Result != want || results[i].Task.DryRun.Result != want) || want == "" && c != nil {
			t.Errorf("line %d: %+v", i, c)
		}
	}

	if c := results[0].Change.Ticks; c.Come != 7*24 || len(c.Ticks) != 2 || results[0].Next.IsZero() {
		t.Errorf("%+v", c)
	}

	for _, query := range []string{"?ticks=3", "?dry_run=perhaps", "?dry_run=true&ticks=-1"} {
		if r := w.do(request{method: "DELETE", path: "/v1/namespaces/default/tasks/kept" + query}); r.status != 422 {
			t.Errorf("%s: %d", query, r.status)
		}
	}

	if !maps.Equal(say, w.dump()) {
		t.Error("a dry run wrote")
	}
}

func fieldsOf(c *client.Change) []string {
	var list []string
	for _, f := range c.Fields {
		list = append(list, f.String())
	}
	return list
}

// The due times of a new task with jitter are unknown, because its uid is only created when it is written.
func TestDryRun_OfANewTaskWithJitter(t *testing.T) {
	w := newWorld(t)
	s := spec("new", "@hourly")
	s.Jitter = task.Duration(10 * time.Minute)
	got, err := w.Tasks.DryRunCreate(t.Context(), "default", s)
	must(t, err)

	first := got.DryRun.Ticks.Ticks[0].Is
	if !first.DueAt.IsZero() || !first.DueBefore.Equal(first.Time.Add(10*time.Minute)) {
		t.Errorf("%+v", first)
	}

	real, err := w.Tasks.Create(t.Context(), "default", s)
	must(t, err)
	list, err := w.Ticks.ListByTask(t.Context(), "default", real.Name, 10, time.Time{})
	must(t, err)

	for i, m := range got.DryRun.Ticks.Ticks {
		if !m.Is.Time.Equal(list[i].Time.Time) {
			t.Errorf("%s, and it is %s", m.Is.Time, list[i].Time)
		}
	}
}

// A task was paused after too many failures, and its file does not contain that pause. The dry run of a change
// of the file returns no ticks, as none follow.
func TestDryRun_OfATaskPausedByFailures(t *testing.T) {
	w := newWorld(t)
	s := spec("a", "@hourly")
	s.PauseAfter = 1
	_, err := w.Tasks.Apply(t.Context(), s, client.ApplyOptions{})
	must(t, err)
	e := w.entry(ref("default", "a"))
	e.Paused, e.Own = true, &task.Own{Pauses: []task.Pause{{Since: task.At(w.clock.now()), By: task.NewActor(task.PausedByFailures), Reason: "too often"}}}
	w.put(w.store.Keys().Entry(ref("default", "a")), e)
	s.Timeout = task.Duration(time.Minute)
	got, err := w.Tasks.Apply(t.Context(), s, client.ApplyOptions{DryRun: true})
	must(t, err)

	if c := got.DryRun; !slices.Equal(fieldsOf(c), []string{"timeout: none → 1m"}) || c.Ticks.Come+c.Ticks.Go+c.Ticks.Move != 0 || !got.Paused {
		t.Errorf("%+v", got.DryRun)
	}

	got, err = w.Tasks.DryRunPatch(t.Context(), "default", "a", []byte(`{"paused": false}`), 0)
	must(t, err)

	if c := got.DryRun; !slices.Contains(fieldsOf(c), "paused: true → none") || c.Ticks.Come != 7*24 || got.Paused {
		t.Errorf("%+v", got.DryRun)
	}
}
