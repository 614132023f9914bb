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

// The days of a month and of a week, day by day against the oracle: through one cycle of the calendar, which is 28
// years, or with -everything up to 2100.
func TestNext_AgreesWithOracleOnEveryDay(t *testing.T) {
	first, last := instantOf(t, "2000-01-01"), instantOf(t, "2028-12-31")
	if *everything {
		first, last = instantOf(t, "1970-01-02"), instantOf(t, "2100-12-31")
	}

	var exprs []string
	for _, days := range []string{"*", "L", "LW", "L,LW", "1,L", "29", "31", "*/2", "13", "31W", "30W,29W", "1W,15W,28W"} {
		for _, weekdays := range []string{"*", "5", "sun#5", "7L", "1L,3#2", "*/7", "6,7", "sat#1,SAT#3"} {
			exprs = append(exprs, fmt.Sprintf("0 0 %s * %s", days, weekdays))
		}
	}

	for n := 1; n <= 31; n++ {
		exprs = append(exprs, fmt.Sprintf("0 0 %dW * *", n))
	}

	for weekday := range 8 {
		for n := 1; n <= 5; n++ {
			exprs = append(exprs, fmt.Sprintf("0 0 * * %d#%d", weekday, n))
		}
		exprs = append(exprs, fmt.Sprintf("0 0 * * %dL", weekday), fmt.Sprintf("0 0 * 2 %dL", weekday))
	}

	every := 3 // compare one in three of the expressions that name a day of the month
	if testing.Short() {
		every = 7
	}

	for i, expr := range exprs {
		if !*everything && strings.ContainsAny(expr, "#LW") && i%every > 0 {
			continue
		}

		rule := newOracleRule(expr)
		var want []time.Time
		for date := first; !date.After(last); date = date.AddDate(0, 0, 1) {
			if rule.on(date) {
				want = append(want, date)
			}
		}

		if len(want) == 0 { // a working day that is a Sunday
			wantError(t, expr, schedule.Check(task.Timing{Schedule: []string{expr}}), task.CodeNeverFires, "schedule", "never fires")
			continue
		}

		s := parse(t, "", noDST, expr)
		if got := walk(t, s, first.Add(-1), last); !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Errorf("%q: %d ticks, want %d", expr, len(got), len(want))
			continue
		}

		if _, _, count, newest := s.Missed(first.Add(-1), last, len(want)); count != int64(len(want)) || !slices.EqualFunc(newest, want, time.Time.Equal) {
			t.Errorf("%q: Missed counts %d and lists %d, want %d", expr, count, len(newest), len(want))
		}
	}
}
