package why_test

import (
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/why"
	"github.com/carillonhq/carillon/pkg/task"
)

// berlin is a task whose clocks changed on 29 March and change on 25 October 2026.
func berlin(schedule, gap, fold string) *world {
	w := nightly()
	w.Task.Schedule, w.Task.Timezone, w.Task.DST = task.Schedules{schedule}, "Europe/Berlin", task.DST{Gap: gap, Fold: fold}
	long := task.At(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	w.Task.CreatedAt, w.Task.UpdatedAt = long, long
	e := task.NewEntry(*w.Task, long, long)
	w.Entry = &e
	w.Now = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	w.Watermark = &why.Watermark{Time: w.Now, All: true}
	w.Owner = &why.Owner{Node: "n1", Since: long.Time}

	return w
}

func (w *world) ranAt(instants ...string) *world {
	for _, text := range instants {
		tick, err := time.Parse(time.RFC3339, text)
		if err != nil {
			panic(err)
		}

		w.run("00:00:00", task.Succeeded, func(r *task.Run) {
			r.ID, r.ScheduledTime = task.RunID(tick, w.Task.UID), task.At(tick)
			r.DispatchedAt, r.StartedAt, r.EndedAt = r.ScheduledTime, r.ScheduledTime, task.At(tick.Add(time.Second))
		})
	}

	return w
}

func TestFor_ClockChanges(t *testing.T) {
	for _, c := range []struct {
		name    string
		world   *world
		ask     string
		verdict task.Verdict
		note    string
		also    int
		says    []string
	}{
		{"gap, run after", berlin("30 2 * * *", "run-after", "first").ranAt("2026-03-29T01:00:00Z"), "2026-03-29 02:30", task.VerdictSucceeded, "gap", 0,
			[]string{"02:30 does not exist on Sun 29 Mar 2026: the clocks go from 02:00 CET to 03:00 CEST; ticks in this gap run once, at its end (dst.gap: run-after).",
				"The tick of Sun 29 Mar 2026 03:00 CEST (01:00 UTC) ran on n1 and succeeded"}},
		{"gap, skip", berlin("30 2 * * *", "skip", "first"), "2026-03-29 02:30", task.VerdictInGap, "gap", 0,
			[]string{"ticks in this gap are skipped (dst.gap: skip)"}},
		{"gap without ticks", berlin("30 5 * * *", "run-after", "first"), "2026-03-29 02:30", task.VerdictNoTick, "gap", 0,
			[]string{"02:30 does not exist", "There was no tick on Sun 29 Mar 2026 03:00 CEST"}},
		{"gap of a schedule in real time", berlin("30 * * * *", "run-after", "first"), "2026-03-29 02:30", task.VerdictNoTick, "gap", 0, nil},
		{"gap to come", berlin("30 2 * * *", "run-after", "first"), "2027-03-28 02:30", task.VerdictWillRun, "gap", 0,
			[]string{"the clocks go from 02:00 CET to 03:00 CEST", "It will run: the tick of Sun 28 Mar 2027 03:00 CEST (01:00 UTC)"}},
		{"fold, first", berlin("30 2 * * *", "run-after", "first").ranAt("2026-10-25T00:30:00Z"), "2026-10-25 02:30", task.VerdictSucceeded, "fold", 0,
			[]string{"02:30 exists twice on Sun 25 Oct 2026, at 02:30 CEST and at 02:30 CET, and only the first is a tick (dst.fold: first).",
				"The tick of Sun 25 Oct 2026 02:30 CEST (00:30 UTC) ran on n1"}},
		{"fold, both", berlin("30 2 * * *", "run-after", "both").ranAt("2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"), "2026-10-25 02:30", task.VerdictSucceeded, "fold", 1,
			[]string{"and both are ticks."}},
		{"fold without ticks", berlin("30 5 * * *", "run-after", "both"), "2026-10-25 02:30", task.VerdictNoTick, "fold", 0, []string{"exists twice", "There was no tick"}},
		{"the second pass alone", berlin("30 2 * * *", "run-after", "first").ranAt("2026-10-25T00:30:00Z"), "2026-10-25T02:30:00+01:00", task.VerdictNoTick, "", 0,
			[]string{"There was no tick on Sun 25 Oct 2026 02:30 CET (01:30 UTC)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := c.world.askIn(t, c.ask, "Europe/Berlin")
			if a.Verdict != c.verdict || a.Asked.Note != c.note || len(a.Also) != c.also {
				t.Errorf("%s, note %q, %d more answers; want %s, %q, %d", a.Verdict, a.Asked.Note, len(a.Also), c.verdict, c.note, c.also)
			}

			for _, part := range c.says {
				if !strings.Contains(a.Sentence, part) {
					t.Errorf("the sentence\n  %s\nhas not\n  %s", a.Sentence, part)
				}
			}
		})
	}
}

// A local time matches the instants at which its zone's clocks show it, for all transitions of all unusual
// zones.
func TestReadMoment_IsWhatTheClocksShow(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "Australia/Lord_Howe", "Europe/Dublin", "Pacific/Apia", "America/Sao_Paulo", "Africa/Casablanca", "Asia/Kolkata", "UTC"} {
		place, err := schedule.Location(zone)
		if err != nil {
			t.Fatal(err)
		}

		for at := time.Date(2011, 1, 1, 0, 15, 0, 0, time.UTC); at.Year() < 2012; at = at.Add(45 * time.Minute) {
			m, err := why.ReadMoment(at.In(place).Format("2006-01-02T15:04"), schedule.TimeBase{Zone: place})
			if err != nil {
				t.Fatal(err)
			}

			found := false
			for _, i := range m.Instants {
				found = found || i.Equal(at)
				if i.In(place).Format("2006-01-02T15:04") != m.Text {
					t.Errorf("%s: %s is not %s", zone, i, m.Text)
				}
			}

			if !found || len(m.Instants) > 2 {
				t.Errorf("%s: %s is %v, and not %s", zone, m.Text, m.Instants, at)
			}
		}
	}

	for _, c := range []struct {
		zone, text, gap string
	}{
		{"Europe/Berlin", "2026-03-29 02:30", "2026-03-29T01:00:00Z"},
		{"Australia/Lord_Howe", "2011-10-02T02:15", "2011-10-01T15:30:00Z"},
		{"Pacific/Apia", "2011-12-30T12:00", "2011-12-30T10:00:00Z"},
		{"America/Sao_Paulo", "2011-10-16T00:30:00", "2011-10-16T03:00:00Z"},
	} {
		place, err := schedule.Location(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		m, err := why.ReadMoment(c.text, schedule.TimeBase{Zone: place})
		if err != nil || len(m.Instants) != 0 || m.Change.At.Format(time.RFC3339) != c.gap {
			t.Errorf("%s in %s: %+v, %v", c.text, c.zone, m, err)
		}
	}
}

func TestReadMoment_Precision(t *testing.T) {
	m, err := why.ReadMoment("2026-03-29T02:30:00.250+02:00", schedule.TimeBase{})
	if err != nil || len(m.Instants) != 1 || m.Instants[0].Format(time.RFC3339Nano) != "2026-03-29T00:30:00.25Z" || m.Grain != time.Millisecond {
		t.Errorf("%+v, %v", m, err)
	}
}
