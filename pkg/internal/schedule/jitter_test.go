package schedule_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

func jittered(t fataler, jitter time.Duration, exprs ...string) *schedule.Schedule {
	return mustParse(t, task.Timing{Schedule: exprs, Jitter: task.Duration(jitter)}, anchor)
}

// Clusters have stored these values: a new version of the program must not change when a tick is due.
func TestDue_IsTheSameForEver(t *testing.T) {
	for _, c := range []struct {
		uid, tick, due string
		jitter         time.Duration
	}{
		{"k3f9", "2026-03-01 10:00", "2026-03-01 10:00:01.593", 30 * time.Second},
		{"k3f9", "2026-03-01 11:00", "2026-03-01 11:00:01.444", 30 * time.Second},
		{"x", "2026-03-01 10:00", "2026-03-01 10:00:01.323", 30 * time.Second},
		{"k3f9", "2026-03-01 10:00", "2026-03-01 10:21:31.593", 24 * time.Hour}, // limited to the hour until the next tick
		{"k3f9", "2026-03-01 10:00", "2026-03-01 10:00", 0},
	} {
		if due := jittered(t, c.jitter, "@hourly").Due(instantOf(t, c.tick), c.uid); !due.Equal(instantOf(t, c.due)) {
			t.Errorf("%+v: %v", c, due.Format("2006-01-02 15:04:05.000"))
		}
	}
}

func TestDue_KeepsTheOrderOfTicks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		jitter := time.Duration(rapid.Int64Range(0, 86_400_000).Draw(t, "jitter")) * time.Millisecond
		if rapid.Bool().Draw(t, "short") {
			jitter /= 10_000
			jitter = jitter.Truncate(time.Millisecond)
		}

		uid := rapid.StringMatching(`[a-z0-9]{0,80}`).Draw(t, "uid")
		zone := zoneGen.Draw(t, "zone")
		exprs := anyGen().Draw(t, "exprs")
		s := mustParse(t, task.Timing{Schedule: exprs, Timezone: zone, Jitter: task.Duration(jitter)}, anchor)

		tick, ok := s.Next(nearChange(t, zone))
		for range 20 {
			if !ok {
				return
			}

			due, before := s.Due(tick, uid), s.DueBefore(tick)
			if due.Before(tick) || jitter > 0 && !due.Before(before) || before.Sub(tick) > jitter {
				t.Fatalf("%v is due at %v, before %v, jitter %v", tick, due, before, jitter)
			}

			next, more := s.Next(tick)
			if more && before.After(next) {
				t.Fatalf("%v is due before %v only, and %v is a tick", tick, before, next)
			}

			// The last due tick is this one from its due time until the due time of the next.
			for _, look := range []time.Time{due, due.Add(jitter / 3), before} {
				if more && !look.Before(s.Due(next, uid)) {
					continue
				}

				if last, ok := s.LastDue(look, uid); !ok || !last.Equal(tick) {
					t.Fatalf("the last that is due at %v is %v, %v, not %v, due at %v", look, last, ok, tick, due)
				}
			}

			if last, ok := s.LastDue(due.Add(-time.Millisecond), uid); ok && !last.Before(tick) {
				t.Fatalf("before %v is due, at %v, %v is", tick, due, last)
			}

			tick, ok = next, more
		}
	})
}

func TestDue_SpreadsTasks(t *testing.T) {
	s := jittered(t, time.Minute, "@hourly")
	var perSecond [60]int
	for i := range 6000 {
		uid := string([]byte{byte('a' + i%26), byte('a' + i/26%26), byte('a' + i/676)})
		perSecond[s.Due(anchor, uid).Sub(anchor)/time.Second]++
	}

	for second, n := range perSecond {
		if n < 50 || n > 150 {
			t.Errorf("%d of 6000 tasks are due in second %d of 60", n, second)
		}
	}
}

func TestDue_AllocatesNothing(t *testing.T) {
	s := jittered(t, time.Minute, "30 2 * * *")
	tick, _ := s.Next(anchor)
	if n := testing.AllocsPerRun(100, func() { s.Due(tick, "k3f9abcdefgh"); s.LastDue(tick, "k3f9abcdefgh") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAfterCompletion_HasOneTickForEachAnchor(t *testing.T) {
	s := parse(t, "Europe/Berlin", noDST, "@every 1h after completion")
	if period, ok := s.AfterCompletion(); !ok || period != time.Hour || s.Manual() {
		t.Fatalf("%v, %v", period, ok)
	}

	tick := anchor.Add(time.Hour)
	if next, ok := s.Next(time.Time{}); !ok || !next.Equal(tick) {
		t.Errorf("the tick is %v, %v", next, ok)
	}

	if next, ok := s.Next(tick); ok {
		t.Errorf("another: %v", next)
	}

	sameMissed(t, s, anchor, anchor.Add(48*time.Hour), []time.Time{tick})
	again := s.Anchored(tick.Add(7 * time.Minute))
	if next, _ := again.Next(tick); !next.Equal(tick.Add(67 * time.Minute)) {
		t.Errorf("after a run that ended at %v: %v", tick.Add(7*time.Minute), next)
	}

	if _, ok := parse(t, "", noDST, "@every 1h").AfterCompletion(); ok {
		t.Error("a plain @every counts from the end of a run")
	}

	for _, exprs := range [][]string{{"@every 1h after completion", "@daily"}, {"@daily", "@every 1h after completion"}, {"@every 1h after completion", "@every 2h after completion"}} {
		err := schedule.Check(task.Timing{Schedule: exprs})
		if e, ok := err.(*task.Error); !ok || e.Code != task.CodeBadSchedule {
			t.Errorf("%q: %v", exprs, err)
		}
	}
}
