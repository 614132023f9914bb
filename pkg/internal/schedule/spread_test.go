package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Clusters have stored these values: a new version of the program must not move a task.
func TestSpread_IsTheSameForEver(t *testing.T) {
	for _, c := range []struct{ expr, want string }{
		{"H * * * *", "58 * * * *"}, {"H H * * *", "58 0 * * *"}, {"H H H H H", "58 0 22 9 3"}, {"H H H H H H", "14 58 0 22 9 3"}, {"h h(2-5) * * *", "58 2 * * *"},
		{"H/15 * * * *", "13-59/15 * * * *"}, {"H(0-29)/10 * * * *", "8-29/10 * * * *"}, {"5,H(30-40) * * * MON", "5,35 * * * MON"}, {"0 0 H/10 * *", "0 0 4-28/10 * *"}, {"0 0 * * H(MON-fri)", "0 0 * * 3"},
		{"0 0 * * THU", "0 0 * * THU"}, {"@hourly", "@hourly"}, {"0  0 * * *", "0  0 * * *"}, {"@at x", "@at x"},
	} {
		got, err := schedule.Spread([]string{c.expr}, "default", "backup")
		if err != nil || got[0] != c.want {
			t.Errorf("%q: %q, %v; want %q", c.expr, got, err, c.want)
		}
	}
}

// A number depends only on namespace, name and field: not on the place in a list, nor on the other fields.
func TestSpread_FollowsFromTheName(t *testing.T) {
	list, err := schedule.Spread([]string{"@daily", "H 2 * * *", "H 14 * * 1"}, "team", "report")
	if err != nil {
		t.Fatal(err)
	}

	minute := fmt.Sprint(minuteOf(t, list[1]))
	if list[0] != "@daily" || list[1] != minute+" 2 * * *" || list[2] != minute+" 14 * * 1" {
		t.Errorf("%q", list)
	}

	for _, exprs := range [][]string{nil, {}, {"@daily"}} {
		if list, err := schedule.Spread(exprs, "", ""); err != nil || len(list) != len(exprs) {
			t.Errorf("%q: %q, %v", exprs, list, err)
		}
	}
}

func minuteOf(t *testing.T, expr string) int {
	next, ok := parse(t, "", noDST, expr).Next(anchor)
	if !ok {
		t.Fatal(expr)
	}
	return next.Minute()
}

func TestSpread_ReachesAllValuesAndNoOthers(t *testing.T) {
	for _, c := range []struct {
		expr string
		part func(time.Time) int
		low  int
		high int
	}{
		{"H 0 0 1 1 *", time.Time.Second, 0, 59},
		{"H 0 1 1 *", time.Time.Minute, 0, 59},
		{"0 H 1 1 *", time.Time.Hour, 0, 23},
		{"0 H(2-5) 1 1 *", time.Time.Hour, 2, 5},
		{"0 0 H 2 *", time.Time.Day, 1, 28},
		{"0 0 1 H *", func(t time.Time) int { return int(t.Month()) }, 1, 12},
		{"0 0 * * H", func(t time.Time) int { return int(t.Weekday()) }, 0, 6},
		{"0 0 * * H(mon-WED)", func(t time.Time) int { return int(t.Weekday()) }, 1, 3},
	} {
		hits := map[int]int{}
		const tasks = 1500
		for i := range tasks {
			list, err := schedule.Spread([]string{c.expr}, "default", fmt.Sprintf("task-%d", i))
			if err != nil {
				t.Fatal(err)
			}

			next, _ := parse(t, "", noDST, list...).Next(anchor)
			hits[c.part(next)]++
		}

		even := tasks / (c.high - c.low + 1)

		for value := c.low; value <= c.high; value++ {
			if n := hits[value]; n < even/3 || n > even*2 {
				t.Errorf("%q: %d tasks of %d have %d", c.expr, n, tasks, value)
			}
			delete(hits, value)
		}

		if len(hits) > 0 {
			t.Errorf("%q: others: %v", c.expr, hits)
		}
	}
}

func TestSpread_RefusesWhatCheckRefuses(t *testing.T) {
	for _, expr := range []string{"H(9-2) * * * *", "H * * *", "H 25 * * *", "H(0-99) * * * *", "H H 30 2 *"} {
		exprs := []string{"@daily", expr}
		_, err := schedule.Spread(exprs, "default", "backup")
		want := schedule.Check(task.Timing{Schedule: exprs})
		if err == nil || want == nil || err.Error() != want.Error() {
			t.Errorf("%q: Spread says %v, Check says %v", expr, err, want)
		}
	}

	_, err := schedule.Parse(task.Timing{Schedule: []string{"H * * * *"}}, anchor)
	wantError(t, "H", err, task.CodeBadSchedule, "schedule", "H requires the name of the task, which determines the value")
}

// A schedule that Check accepts with H is accepted by Parse with a number in its place, for every task.
func TestSpread_GivesWhatParses(t *testing.T) {
	for _, expr := range []string{"H H H H H H", "H/59 H/23 H/31 H/12 H/7", "H(5-5) H(22-23)/23 H(28-28) H(12-12) H(6-6)/7", "0,H,H(3-9),H/20,50-59/3 H * * *",
		"0 0 29 H *", "0 0 30 H(3-12) *", "0 0 31 1,H *", "0 0 31 H/2 *", "0 0 L H *", "0 0 30,H H *", "0 0 30 H 1",
		"H(0-59)/1,H(0-59)/1,H(0-59)/1,H(0-59)/1,H(0-59)/1,H(0-59)/1,H(0-59)/1,H(0-59)/1,H(0-59)/1,H(0-59)/1,H/2,H/2,H,H,H,H,H * * * *"} {
		if err := schedule.Check(task.Timing{Schedule: []string{expr}}); err != nil {
			t.Fatal(err)
		}

		for i := range 200 {
			list, err := schedule.Spread([]string{expr}, "default", fmt.Sprint(i))
			if err != nil {
				t.Fatal(err)
			}

			if _, err := schedule.Parse(task.Timing{Schedule: list}, anchor); err != nil {
				t.Fatalf("%q became %q: %v", expr, list, err)
			}
		}
	}
}

func TestResolve_GivesAnInstant(t *testing.T) {
	now := instantOf(t, "2026-03-01 10:00:00.123").Add(456)
	exprs := []string{"@daily", "@in 10m", " @in  1.5s"}
	if err := schedule.Check(task.Timing{Schedule: exprs}); err != nil {
		t.Fatal(err)
	}

	_, err := schedule.Parse(task.Timing{Schedule: exprs[1:2]}, now)
	wantError(t, "@in", err, task.CodeBadSchedule, "schedule", "@in is allowed only when a task is written")

	list, err := schedule.Resolve(exprs, "", now)
	if err != nil || list[0] != "@daily" || list[1] != "@at 2026-03-01T10:10:00.123Z" || list[2] != "@at 2026-03-01T10:00:01.623Z" || exprs[1] != "@in 10m" {
		t.Errorf("%q, %v, of %q", list, err, exprs)
	}

	if next, ok := parse(t, "", noDST, list[1]).Next(now); !ok || next.Sub(now.Truncate(time.Millisecond)) != 10*time.Minute {
		t.Errorf("%v", next)
	}

	_, err = schedule.Resolve([]string{"@in 10m", "@in x"}, "", now)
	wantError(t, "@in x", err, task.CodeBadDuration, "schedule[1]", `"x" is not a duration`)
	_, err = schedule.Resolve([]string{"@in 1h"}, "", instantOf(t, "2100-12-31 23:30"))
	wantError(t, "@in 1h", err, task.CodeBadTime, "schedule", "outside the years 2000 to 2100")
}
