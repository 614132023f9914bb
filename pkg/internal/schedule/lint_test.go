package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestLint_FindsWhatIsOdd(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	at := func(s string) task.Time { v, _ := time.Parse(time.RFC3339, s); return task.At(v) }
	berlin := func(expr string) task.Timing { return task.Timing{Schedule: []string{expr}, Timezone: "Europe/Berlin"} }
	for _, c := range []struct {
		timing task.Timing
		want   []string // code: words
	}{
		{berlin("0 4 * * *"), nil},
		{berlin("*/15 * * * *"), nil},
		{berlin("0 * * * *"), nil},
		{berlin("@daily"), nil},
		{berlin("0 0 30 2 *"), []string{"never_fires: never fires"}},
		{berlin("*/75 * * * *"), []string{`bad_schedule: did you mean "@every 75m"?`}},
		{berlin("*/7 * * * *"), []string{`uneven_step: minute */7 restarts each hour: the interval from 56 to 0 is 4 minutes, not 7 | "@every 7m" has equal intervals`}},
		{berlin("0/7 * * * *"), []string{`uneven_step: minute 0/7 restarts each hour: the interval from 56 to 0 is 4 minutes, not 7 | "@every 7m"`}},
		{berlin("5/10 * * * *"), nil},
		{berlin("30/20 * * * *"), []string{"uneven_step: minute 30/20 restarts each hour: the interval from 50 to 30 is 40 minutes, not 20"}},
		{berlin("0 5 2/5 * *"), []string{"uneven_step: day of month 2/5 restarts each month: the 27th is followed by the 2nd"}},
		{berlin("0 0 12 ? * 2-6"), []string{"weekday: day of week 2-6: 1 is Monday, as in cron and Spring; in Quartz, 1 is Sunday | use names such as MON-FRI"}},
		{berlin("0 0 12 ? * MON#3"), nil},
		{berlin("0 0 12 15 * ?"), nil},
		{berlin("H/7 * * * *"), []string{"uneven_step: minute H/7"}},
		{berlin("0 */5 * * *"), []string{`uneven_step: hour */5 restarts each day: the interval from 20 to 0 is 4 hours, not 5`}},
		{berlin("0 5 */2 * *"), []string{"uneven_step: day of month */2 restarts each month"}},
		{berlin("0 5 1 */5 *"), []string{"uneven_step: month */5 restarts each year: the interval from 11 to 1 is 2 months, not 5"}},
		{berlin("0 5 13 * 5"), []string{"two_days: ticks match the day of month 13 or the day of week 5, not necessarily both"}},
		{berlin("0 5 */2 * 5"), []string{"uneven_step", "two_days: must both match"}},
		{berlin("* * * * * *"), []string{"every_second: 86400 times a day"}},
		{berlin("* * 9 * * *"), []string{"every_second: 3600 times a day"}},
		{berlin("* 9 * * *"), []string{`every_minute: "* 9 * * *" ticks every minute of the hours that match: 60 times a day | for one tick, write "0 9 * * *"`}},
		{berlin("0 * 9-17 * * MON-FRI"), []string{`every_minute: 540 times a day | for one tick, write "0 9-17 * * MON-FRI"`}},
		{berlin("* */15 * * * *"), []string{`every_second: 5760 times a day | for one tick, write "0 */15 * * * *"`}},
		{berlin("* * * * MON"), nil},
		{berlin("@every 500ms"), []string{"every_second: 172800 times a day"}},
		{berlin("30 2 * * *"), []string{"clock_change: 02:30:00 on 28 March 2027 does not exist in Europe/Berlin: the tick is at 03:00:00 instead"}},
		{berlin("*/20 2 * * *"), []string{"clock_change: 02:00:00 on 28 March 2027 does not exist in Europe/Berlin: it and the next 2 become one tick, at 03:00:00"}},
		{berlin("0 */2 * * *"), []string{"clock_change: 02:00:00 on 28 March 2027 does not exist in Europe/Berlin: there is no tick", "clock_change: 02:00:00 on 31 October 2027 exists twice"}},
		{task.Timing{Schedule: []string{"30 2 * * *"}, Timezone: "Europe/Berlin", DST: task.DST{Gap: task.GapSkip, Fold: task.FoldBoth}},
			[]string{"clock_change: there is no tick", "clock_change: 02:30:00 on 31 October 2027 exists twice in Europe/Berlin: there are two ticks"}},
		{task.Timing{Schedule: []string{"30 2 * * *"}, Timezone: "Europe/Berlin", End: at("2027-01-01T00:00:00Z")}, nil},
		{task.Timing{Schedule: []string{"30 2 * * *"}}, nil},
		{task.Timing{Schedule: []string{"@at 2026-01-01T00:00:00Z"}}, []string{"ended: no ticks are left after 2026-11-21T12:00:00Z"}},
		{task.Timing{Schedule: []string{"@daily"}, End: at("2026-01-01T00:00:00Z")}, []string{"ended: 2026-01-01T00:00:00Z is in the past: no ticks are left"}},
		{task.Timing{Schedule: []string{"@in 10m"}}, nil},
		{task.Timing{Schedule: []string{"@manual"}}, nil},
		{task.Timing{Schedule: []string{"@every 1h after completion"}}, nil},
		{task.Timing{Schedule: []string{"0 4 * * *", "0 5 13 * 5"}}, []string{"two_days"}},
		{task.Timing{Schedule: []string{"@daily"}, Timezone: "berlin"}, []string{"bad_timezone"}},
	} {
		var got []string
		for _, f := range schedule.Lint(c.timing, now) {
			got = append(got, fmt.Sprintf("%s: %s | %s", f.Code, f.Message, f.Hint))
		}

		ok := len(got) == len(c.want)
		for i := range min(len(got), len(c.want)) {
			code, words, _ := strings.Cut(c.want[i], ": ")
			ok = ok && strings.HasPrefix(got[i], code+":") && strings.Contains(got[i], words)
		}

		if !ok {
			t.Errorf("%v:\n got %q\nwant %q", c.timing.Schedule, got, c.want)
		}
	}
}

func TestCrowds_FindsTheSecondsThatManyShare(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var list []*schedule.Schedule
	add := func(n int, expr string, jitter task.Duration) {
		for range n {
			s, err := schedule.Parse(task.Timing{Schedule: []string{expr}, Jitter: jitter}, now)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, s)
		}
	}

	add(5, "0 3 * * *", 0)
	add(4, "0 * * * *", 0)
	add(3, "17 3 * * *", 0)
	add(9, "30 4 * * *", task.Duration(time.Minute))
	list = append(list, nil)

	crowds := schedule.Crowds(list, now, 4)
	if len(crowds) != 2 || len(crowds[0].Members) != 9 || crowds[0].At.Hour() != 3 || !slices.Equal(crowds[1].Members, []int{5, 6, 7, 8}) {
		t.Errorf("%+v", crowds)
	}

	if got := schedule.Crowds(list, now, 10); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}
