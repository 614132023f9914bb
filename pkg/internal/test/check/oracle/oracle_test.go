package oracle

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

func at(t testing.TB, text string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}

	return v
}

func TestTiming_ListsTicks(t *testing.T) {
	anchor := at(t, "2026-11-20T12:00:00.250Z")

	for _, c := range []struct {
		schedule []string
		zone     string
		after    string
		want     []string
	}{
		{[]string{"* * * * * *"}, "UTC", "2026-11-20T12:00:00.999Z", []string{"2026-11-20T12:00:01Z", "2026-11-20T12:00:02Z"}},
		{[]string{"*/20 * * * * *"}, "", "2026-11-20T12:00:40Z", []string{"2026-11-20T12:01:00Z", "2026-11-20T12:01:20Z"}},
		{[]string{"*/5 * * * *"}, "UTC", "2026-11-20T23:55:00Z", []string{"2026-11-21T00:00:00Z", "2026-11-21T00:05:00Z"}},
		{[]string{"30 2 29 2 *"}, "UTC", "2026-01-01T00:00:00Z", []string{"2028-02-29T02:30:00Z", "2032-02-29T02:30:00Z"}},
		{[]string{"0 0 13 * 5"}, "UTC", "2026-11-11T00:00:00Z", []string{"2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z"}},
		{[]string{"0 0 */2 * 7"}, "UTC", "2026-11-01T00:00:00Z", []string{"2026-11-15T00:00:00Z", "2026-11-29T00:00:00Z"}},
		{[]string{"@every 700ms"}, "UTC", "2026-11-20T12:00:00.95Z", []string{"2026-11-20T12:00:01.65Z", "2026-11-20T12:00:02.35Z"}},
		{[]string{"@every 10s", "@at 2026-11-20T12:00:03Z"}, "UTC", "2026-11-20T11:00:00Z", []string{"2026-11-20T12:00:03Z", "2026-11-20T12:00:10.25Z"}},
		{[]string{"@hourly"}, "UTC", "2026-11-20T12:30:00Z", []string{"2026-11-20T13:00:00Z", "2026-11-20T14:00:00Z"}},
		{[]string{"30 2 * * *"}, "Europe/Berlin", "2026-11-20T12:00:00Z", []string{"2026-11-21T01:30:00Z", "2026-11-22T01:30:00Z"}},
		{[]string{"0 9 * * mon"}, "UTC", "2026-11-20T12:00:00Z", []string{"2026-11-23T09:00:00Z", "2026-11-30T09:00:00Z"}},
		{[]string{"@manual"}, "UTC", "2026-11-20T12:00:00Z", nil},
		{[]string{"@at 2026-11-20T12:00:00Z"}, "UTC", "2026-11-20T12:00:00Z", nil},
	} {
		timing, err := NewTiming(task.Entry{Schedule: c.schedule, Timezone: c.zone, Anchor: task.At(anchor)})
		if err != nil {
			t.Errorf("%v: %v", c.schedule, err)
			continue
		}

		var got []time.Time
		timing.ListTicks(at(t, c.after).UnixMilli(), 1<<60, func(ms int64) bool {
			got = append(got, timeOfMS(ms))
			return len(got) < 2
		})

		for i, want := range c.want {
			if len(got) <= i || !got[i].Equal(at(t, want)) {
				t.Errorf("%v after %s: %v, want %v", c.schedule, c.after, got, c.want)
				break
			}
		}

		if len(got) > len(c.want) {
			t.Errorf("%v after %s: %v, want none", c.schedule, c.after, got)
		}
	}
}

// The oracle is useful only while it agrees with package schedule without sharing code with it.
func TestTiming_AgreesWithPackageSchedule(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))

	for _, expr := range []string{
		"* * * * * *", "*/7 * * * * *", "5-50/9,3 * * * * *", "*/13 * * * *", "0 */5 * * *", "15 3 1,15 * *", "15 3 1,15 * 2",
		"0 0 * */5 *", "59 23 31 12 *", "0 12 29 2 *", "0 0 * * 0", "0 0 * * 7", "0 0 * * 5-7", "0 0 */3 * */2", "0 0 1-7 * */7",
		"0 6 L * *", "0 6 LW * *", "0 6 15W * *", "0 6 1W,31W * *", "0 6 1,L * *", "0 0 * * 5#3", "0 0 * * 5L", "0 0 * * FRI#5,monL", "0 0 L * fri",
		"0 0 15W * *", "0 0 1 JAN-mar,Dec *", "0 9 * * Mon-FRI", "0 0 LW * 0L", "0 0 13 * 5#2",
		"@every 90s", "@every 1h1m1s", "@yearly", "@monthly", "@weekly", "@daily",
	} {
		anchor := time.UnixMilli(1_790_000_000_123)
		own, err := NewTiming(task.Entry{Schedule: []string{expr}, Timezone: "UTC", Anchor: task.At(anchor)})
		if err != nil || own.UsesSchedule() {
			t.Errorf("%q is not the oracle's own: %v", expr, err)
			continue
		}

		s, err := schedule.Parse(task.Timing{Schedule: task.Schedules{expr}}, anchor)
		if err != nil {
			t.Fatal(err)
		}

		for range 200 {
			from := 1_700_000_000_000 + rng.Int64N(300_000_000_000)
			got, ok := own.NextTick(from)
			want, wantOK := s.Next(time.UnixMilli(from))
			if ok != wantOK || (ok && got != want.UnixMilli()) {
				t.Errorf("%q after %s: the oracle says %s (%t), package schedule %s (%t)", expr, formatTime(timeOfMS(from)), formatTime(timeOfMS(got)), ok, formatTime(want), wantOK)
				break
			}
		}
	}
}

// The same with a start, an end and jitter.
func TestTiming_AgreesWithPackageScheduleOnBoundsAndJitter(t *testing.T) {
	for _, e := range []task.Entry{
		{Schedule: []string{"*/7 * * * * *"}, Jitter: task.Duration(30 * time.Second)},
		{Schedule: []string{"@every 90s", "0 * * * *"}, Jitter: task.Duration(40 * time.Second)},
		{Schedule: []string{"*/5 * * * *"}, Jitter: task.Duration(time.Minute), Start: task.At(timeOfMS(1_700_000_000_123)), End: task.At(timeOfMS(1_700_009_900_000))},
		{Schedule: []string{"0 9 * * *"}, Timezone: "Europe/Berlin", Jitter: task.Duration(time.Hour), End: task.At(timeOfMS(1_707_000_000_000))},
		{Schedule: []string{"@every 10m after completion"}, Anchor: task.At(timeOfMS(1_700_000_000_000)), Jitter: task.Duration(time.Minute)},
		{Schedule: []string{"@every 10m after completion"}, Anchor: task.At(timeOfMS(1_700_000_000_000)), Start: task.At(timeOfMS(1_700_003_000_000))},
	} {
		e.UID = "k3f9aaaabbbbcccc"
		if e.Anchor.IsZero() {
			e.Anchor = task.At(timeOfMS(1_690_000_000_000))
		}

		if e.Timezone == "" {
			e.Timezone = "UTC"
		}

		mine, err := NewTiming(e)
		if err != nil {
			t.Fatal(err)
		}

		s, err := schedule.Parse(e.Timing(), e.Anchor.Time)
		if err != nil {
			t.Fatal(err)
		}

		at := int64(1_699_999_000_000)
		for range 200 {
			got, ok := mine.NextTick(at)
			want, wantOK := s.Next(timeOfMS(at))
			if ok != wantOK || ok && got != want.UnixMilli() {
				t.Fatalf("%v after %s: the oracle says %s (%t), package schedule %s (%t)", e.Schedule, formatTime(timeOfMS(at)), formatTime(timeOfMS(got)), ok, formatTime(want), wantOK)
			}

			if !ok {
				break
			}

			if due, theirs := mine.DueAt(got), s.Due(want, e.UID).UnixMilli(); due != theirs {
				t.Fatalf("%v: tick %s falls due at %s, by package schedule at %s", e.Schedule, formatTime(want), formatTime(timeOfMS(due)), formatTime(timeOfMS(theirs)))
			}

			for _, off := range []int64{-1, 0, 1} {
				now := mine.DueAt(got) + off
				last, ok := s.LastDue(timeOfMS(now), e.UID)
				if passed := mine.DueUpTo(now); ok && last.UnixMilli() > passed || mine.HasTick(passed) && passed != last.UnixMilli() {
					t.Fatalf("%v: at %s all up to %s are due, by package schedule %s (%t)", e.Schedule, formatTime(timeOfMS(now)), formatTime(timeOfMS(passed)), formatTime(last), ok)
				}
			}

			at = got
		}
	}
}

func timeOfMS(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
