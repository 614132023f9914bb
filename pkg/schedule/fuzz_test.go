package schedule_test

import (
	"errors"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// FuzzParse holds that no text panics, that what is refused is a *task.Error of
// the right field, and that what parses ticks later than asked, and counts so.
func FuzzParse(f *testing.F) {
	for _, expr := range []string{
		"* * * * *", "*/5 * * * *", "0 30 2 * * *", "0 0 29 2 1", "0 0 30 2 *", "@daily", "@every 90s", "@every -1h", "@every 0",
		"@at 2026-12-24T18:00:00Z", "@manual", "TZ=", "TZ=UTC", "CRON_TZ=UTC * * * * *", ",", "1,,2 * * * *", "*-5 * * * *",
		"5-1 * * * *", "*/0 * * * *", "* * * *", "* * * * * * *", "0 0 * * 5-7", "0 0 * jan-DEC mon,7", "0 0 L * *", "0 0 * * 5#2",
		"H * * * *", "? * * * *", "\x00", "٣ * * * *", "0/15 * * * *", "@every 9999999999h", "*/99999999999999999999 * * * *",
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
