package schedule_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// FuzzParse checks that no text causes a panic, that every rejection is a *task.Error of the right field, and that
// ticks are later than requested and counted correctly.
func FuzzParse(f *testing.F) {
	for _, expr := range []string{
		"* * * * *", "*/5 * * * *", "0 30 2 * * *", "0 0 29 2 1", "0 0 30 2 *", "@daily", "@every 90s", "@every -1h", "@every 0",
		"@at 2026-12-24T18:00:00Z", "@manual", "@reboot", "TZ=", "TZ=UTC", "CRON_TZ=UTC * * * * *", ",", "1,,2 * * * *", "*-5 * * * *",
		"0 0 LW,15W * *", "0 0 L-3 * *", "0 0 31W 2 *", "0 0 * * 5L,MON#5", "0 0 * * L", "0 0 * * 1#6", "@every 1h after completion", "@in 10m",
		"H(2-5) * * * *", "H/15 H H H H H", "5-1 * * * *", "*/0 * * * *", "* * * *", "* * * * * * *", "0 0 * * 5-7", "0 0 * jan-DEC mon,7", "0 0 L * *", "0 0 * * 5#2",
		"H * * * *", "? * * * *", "0 0 ? * 1/2", "0 0 1/2 * ?", "0 0 ?,1 * *", "0 0 * * 7/2", "\x00", "٣ * * * *", "0/15 * * * *", "@every 9999999999h", "*/99999999999999999999 * * * *",
	} {
		f.Add(expr, "Europe/Berlin", int64(1_774_746_000))
	}

	f.Add("@daily", "", int64(0))
	f.Add("@daily", "../x", int64(-1<<62))
	f.Add("@daily", "Local", int64(1<<62))
	f.Fuzz(func(t *testing.T, expr, zone string, seconds int64) {
		s, err := schedule.Parse(task.Timing{Schedule: []string{expr}, Timezone: zone, DST: task.DST{}}, time.Unix(1_700_000_000, 0))
		if err != nil {
			var e *task.Error
			if !errors.As(err, &e) || e.Field != "schedule" && e.Field != "timezone" || e.Code == "" || len(e.Message) > 300 {
				t.Fatalf("%q, %q: %#v", expr, zone, err)
			}
			return
		}

		now := time.Unix(seconds, 0)
		start := now

		for range 3 {
			next, ok := s.Next(now)
			if !ok {
				break
			}

			if !next.After(now) {
				t.Fatalf("%q, %q: Next(%v) = %v", expr, zone, now, next)
			}

			now = next
		}

		if now.After(start) {
			if _, last, count, _ := s.Missed(start, now, 1); count < 1 || count > 3 || !last.Equal(now) {
				t.Fatalf("%q, %q: Missed(%v, %v) = %v, %d", expr, zone, start, now, last, count)
			}
		}
	})
}

// FuzzSpread checks that a task may have an expression exactly if the result of Spread is a valid schedule,
// for every task name.
func FuzzSpread(f *testing.F) {
	for _, expr := range []string{"H * * * *", "H H(2-5) * * *", "H/15 * * * *", "H(0-9)/3,H,H/2 H/23 H/31 H/12 H/7", "h,H(5-5) * * * thu", "H, * * * *",
		"0 0 H(1-28) 2 H(mon-SAT)/2", "H(-) * * * *", "H()/ * * * *", "@hourly", "@in 10m", "H\x00 * * * *", "H H 30 2 *", "0 0 30 H *", "0 0 31 H/2 *", "0 0 LW,H * H#2"} {
		f.Add(expr, "default", "backup")
	}

	f.Fuzz(func(t *testing.T, expr, namespace, name string) {
		now := time.Unix(1_700_000_000, 0)
		check := schedule.Check(task.Timing{Schedule: []string{expr}})

		list, err := schedule.Spread([]string{expr}, namespace, name)
		if err == nil {
			list, err = schedule.Resolve(list, "Europe/Berlin", now)
		}

		if err == nil {
			_, err = schedule.Parse(task.Timing{Schedule: list}, now)
		}

		var e *task.Error
		switch {
		case (check == nil) != (err == nil):
			t.Fatalf("%q became %q: %v, but Check says %v", expr, list, err, check)
		case err != nil && (!errors.As(err, &e) || e.Field != "schedule" || e.Code == "" || len(e.Message) > 300):
			t.Fatalf("%q: %#v", expr, err)
		}
	})
}

// FuzzReadMoment checks that every text is rejected or is a time, and that a clock shows it at its instants.
func FuzzReadMoment(f *testing.F) {
	for _, text := range []string{
		"2026-03-29 02:30", "2026-10-25T02:30:00.250", "2026-10-25", "2026-10-25T02:30:00+01:00", "", "2026-02-30", "9999-99-99 99:99", "2d12h", "3h 18m ago", "in 5m", "now", "18:00", "yesterday 6:00",
		"Mon 18:00 CET", "Thu 24 Dec 2026 18:00", "24 Dec", "Sun 2026-10-25 02:30:00 CEST", "02:30 -03",
	} {
		f.Add(text, "Europe/Berlin", int64(1793000000000), int8(1))
		f.Add(text, "Pacific/Apia", int64(1325203200000), int8(2))
	}

	f.Fuzz(func(t *testing.T, text, zone string, now int64, direction int8) {
		location, err := schedule.Location(zone)
		if err != nil {
			location = time.UTC
		}
		base := schedule.TimeBase{Now: time.UnixMilli(now % 4_000_000_000_000), Zone: location, Direction: schedule.Direction(direction % 3)}

		m, err := schedule.ReadMoment(text, base)
		var e *task.Error
		switch {
		case err != nil && (!errors.As(err, &e) || e.Code != task.CodeBadTime || len(e.Message) > 400):
			t.Fatalf("%q, %q: %#v", text, zone, err)
		case err != nil:
			return
		case len(m.Instants) == 0 && (m.Change == nil || !isGap(m.Change)), len(m.Instants) == 2 && (m.Change == nil || isGap(m.Change)), len(m.Instants) > 2:
			t.Fatalf("%q, %q: %+v", text, zone, m)
		}

		for _, at := range m.Instants {
			if shown := at.In(location).Format("2006-01-02 15:04:05"); shown != m.Local[:len(shown)] && m.Grain < 24*time.Hour {
				t.Fatalf("%q, %q: %v is %s, not %s", text, zone, at, shown, m.Local)
			}
		}

		// The text of a moment means the same without now, so that it can be stored and linked.
		again, err := schedule.ReadMoment(m.Text, schedule.TimeBase{Zone: location})
		if err != nil || again.Local != m.Local || !slices.Equal(again.Instants, m.Instants) && len(again.Instants) == len(m.Instants) {
			t.Fatalf("%q, %q: %+v, and its text %+v, %v", text, zone, m, again, err)
		}
	})
}
