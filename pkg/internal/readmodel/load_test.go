package readmodel

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// dayQuery asks for the 24 hours from nowMS.
func dayQuery(makers ...int) *Query {
	return &Query{Load: &LoadRange{From: nowMS - nowMS%minuteMS, Minutes: MaxLoadMinutes, Makers: makers}, Now: nowMS}
}

// parseTiming parses a timing with an anchor.
func parseTiming(t interface{ Fatal(...any) }, timing task.Timing, anchor int64) *schedule.Schedule {
	s, err := schedule.Parse(timing, time.UnixMilli(anchor))
	if err != nil {
		t.Fatal(err)
	}

	return s
}

// rowOf returns the row of a task that is due according to s from now on.
func rowOf(name string, s *schedule.Schedule, now int64) Row {
	shared := s.Anchored(time.Time{})
	r := Row{Name: name, Schedule: &shared, Flags: History}
	if next, ok := s.Next(time.UnixMilli(now - 1)); ok {
		r.Next = next.UnixMilli()
	}

	return r
}

// loadOf returns the load of rows.
func loadOf(q *Query, rows ...Row) Load {
	var x Index
	for _, r := range rows {
		x.Put(NoSlot, r, Details{}, nil)
	}

	s := NewLoadScan(q)
	s.Scan(&x)

	return s.Load()
}

// sumOf returns the sum of all runs.
func sumOf(l Load) (sum float64) {
	for _, runs := range l.Runs {
		sum += runs
	}
	return sum
}

// loadTimings are schedules whose ticks are known exactly for all tasks.
var loadTimings = rapid.Custom(func(t *rapid.T) task.Timing {
	n := rapid.IntRange(0, 59).Draw(t, "n")
	exprs := rapid.SampledFrom([]task.Schedules{
		{"* * * * *"}, {fmt.Sprintf("%d * * * *", n)}, {fmt.Sprintf("%d %d * * *", n, n%24)}, {"*/7 * * * *"}, {"0 3 * * MON-FRI"}, {"*/20 * * * * *"},
		{"0 0 * * *", fmt.Sprintf("%d 12 * * *", n)}, {fmt.Sprintf("@every %ds", n+1)}, {fmt.Sprintf("@every %dm", n+1)}, {fmt.Sprintf("@every %dms", 1000+n)},
		{"@every 90s"}, {"@every 36h"}, {"@at " + time.UnixMilli(nowMS+int64(n)*12_345_678).UTC().Format(time.RFC3339)}, {"@manual"},
	}).Draw(t, "exprs")

	return task.Timing{Schedule: exprs, Timezone: rapid.SampledFrom([]string{"", "Europe/Berlin", "Asia/Kathmandu"}).Draw(t, "zone")}
})

func TestLoad_AgreesWithEachTickOfEachTask(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		q := dayQuery()
		want := make([]float64, q.Load.Minutes)
		tasks := 0
		var rows []Row

		for i := range rapid.IntRange(1, 20).Draw(t, "tasks") {
			s := parseTiming(t, loadTimings.Draw(t, "timing"), nowMS-rapid.Int64Range(0, 100*hourMS).Draw(t, "anchor"))
			r := rowOf(fmt.Sprintf("ns/%d", i), s, nowMS)
			rows = append(rows, r)
			if r.Next == 0 || r.Next >= q.Load.until() {
				continue
			}

			tasks++
			for tick, ok := time.UnixMilli(r.Next), true; ok && tick.UnixMilli() < q.Load.until(); tick, ok = s.Next(tick) {
				want[(tick.UnixMilli()-q.Load.From)/minuteMS]++
			}
		}

		got := loadOf(q, rows...)
		if got.Tasks != tasks || got.Jittered != 0 || got.Inexact != 0 || !slices.Equal(got.Runs, want) {
			t.Fatalf("%d of %d tasks, %v runs, want %v", got.Tasks, tasks, sumOf(got), sumOf(Load{Runs: want}))
		}
	})
}

// The seconds of a minute are those of each tick of each task, and add up to its runs.
func TestLoad_SecondsAgreeWithEachTick(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		q := dayQuery(rapid.SliceOfNDistinct(rapid.IntRange(0, MaxLoadMinutes-1), 1, 3, rapid.ID[int]).Draw(t, "minutes")...)
		want := newSeconds(len(q.Load.Makers))
		var parts [2][]Row

		for i := range rapid.IntRange(1, 20).Draw(t, "tasks") {
			s := parseTiming(t, loadTimings.Draw(t, "timing"), nowMS-rapid.Int64Range(0, 100*hourMS).Draw(t, "anchor"))
			r := rowOf(fmt.Sprintf("ns/%d", i), s, nowMS)
			parts[i%2] = append(parts[i%2], r)

			for at, minute := range q.Load.Makers {
				from := q.Load.From + int64(minute)*minuteMS
				for tick, ok := s.Next(time.UnixMilli(max(from, r.Next) - 1)); r.Next != 0 && ok && tick.UnixMilli() < from+minuteMS; tick, ok = s.Next(tick) {
					want[at][(tick.UnixMilli()-from)/1000]++
				}
			}
		}

		a, b := loadOf(q, parts[0]...), loadOf(q, parts[1]...)
		got := mergeLoads(q.Load, []*Load{&a, &b})
		for at, minute := range q.Load.Makers {
			if !slices.Equal(got.Seconds[at], want[at]) || sumOf(Load{Runs: got.Seconds[at]}) != got.Runs[minute] {
				t.Fatalf("minute %d with %v runs: %v, want %v", minute, got.Runs[minute], got.Seconds[at], want[at])
			}
		}
	})
}

// With jitter, runs are spread over the seconds of their window.
func TestLoad_SecondsOfJitter(t *testing.T) {
	t.Parallel()

	hourly := parseTiming(t, task.Timing{Schedule: task.Schedules{"0 * * * *"}, Jitter: task.Duration(90 * time.Second)}, nowMS)
	r := rowOf("ns/a", hourly, nowMS)
	first := int((r.Next - dayQuery().Load.From) / minuteMS)

	l := loadOf(dayQuery(first+60, first+61, first+62), r)
	for at, want := range []float64{60.0 / 90, 30.0 / 90, 0} {
		if got := sumOf(Load{Runs: l.Seconds[at]}); math.Abs(got-want) > 1e-4 || math.Abs(got-l.Runs[first+60+at]) > 1e-4 {
			t.Errorf("minute %d: %v runs in its seconds, %v in all, want %v", at, got, l.Runs[first+60+at], want)
		}
	}
	if l.Seconds[1][29] == 0 || l.Seconds[1][30] != 0 {
		t.Errorf("the second minute: %v", l.Seconds[1])
	}
}

func TestLoad_SpreadsJitterOverItsWindow(t *testing.T) {
	t.Parallel()

	q := dayQuery()
	hourly := parseTiming(t, task.Timing{Schedule: task.Schedules{"0 * * * *"}, Jitter: task.Duration(20 * time.Minute)}, nowMS)
	var rows []Row
	for i := range 1000 {
		rows = append(rows, rowOf("ns/"+strconv.Itoa(i), hourly, nowMS))
	}

	l := loadOf(q, rows...)
	if l.Tasks != 1000 || l.Jittered != 1000 || l.Inexact != 0 {
		t.Errorf("%d tasks, %d with jitter, %d inexact", l.Tasks, l.Jittered, l.Inexact)
	}

	first := int((rows[0].Next - q.Load.From) / minuteMS)
	for minute := first; minute < first+60; minute++ {
		want := 0.0
		if minute < first+20 {
			want = 50
		}
		if l.Runs[minute] != want {
			t.Errorf("%v runs in minute %d of the hour, want %v", l.Runs[minute], minute-first, want)
		}
	}
}

// Of a tick with jitter that is not decided yet, only the rest of the window is left.
func TestLoad_UndecidedTickWithJitterFallsDueLaterThanNow(t *testing.T) {
	t.Parallel()

	q := dayQuery()
	q.Now = q.Load.From + 30_000
	s := parseTiming(t, task.Timing{Schedule: task.Schedules{"@every 24h"}, Jitter: task.Duration(10 * time.Minute)}, q.Load.From-24*hourMS-5*minuteMS)
	l := loadOf(q, rowOf("ns/a", s, q.Load.From-5*minuteMS))

	// Due from now, 30 s into the first minute, to five minutes later.
	for minute, want := range []float64{30.0 / 300 * 1.0, 60.0 / 300, 60.0 / 300, 60.0 / 300, 60.0 / 300, 0} {
		if minute == 0 {
			want = 30.0 / 270
		} else if want > 0 {
			want = 60.0 / 270
		}
		if got := l.Runs[minute]; math.Abs(got-want) > 1e-5 {
			t.Errorf("%v runs in minute %d, want %v", got, minute, want)
		}
	}
}

func TestLoad_CountsOnlyWhatIsToCome(t *testing.T) {
	t.Parallel()

	q := dayQuery()
	hourly := parseTiming(t, task.Timing{Schedule: task.Schedules{"@every 1h"}}, nowMS)
	after := parseTiming(t, task.Timing{Schedule: task.Schedules{"@every 1h after completion"}}, nowMS)
	mixed := parseTiming(t, task.Timing{Schedule: task.Schedules{"@every 6h", "0 12 * * *"}}, nowMS)
	daily := parseTiming(t, task.Timing{Schedule: task.Schedules{"@every 24h"}}, nowMS-23*hourMS)

	overdue := rowOf("ns/overdue", daily, nowMS)
	overdue.Next -= 24 * hourMS // the tick before is still undecided, and late

	paused := rowOf("ns/paused", hourly, nowMS)
	paused.Next = 0

	l := loadOf(q,
		rowOf("ns/hourly", hourly, nowMS), rowOf("ns/after", after, nowMS), rowOf("ns/mixed", mixed, nowMS), overdue, paused,
		Row{Name: "ns/unreadable", Flags: Unreadable},
	)

	// 24 hourly ticks, or 23 if the last one is in the minute that ends the day; one of mixed by its cron expression and
	// four of its @every; one of overdue.
	if sum := sumOf(l); sum < 28 || sum > 30 {
		t.Errorf("%v runs", sum)
	}
	if l.Tasks != 3 || l.AfterCompletion != 1 || l.Inexact != 1 || l.Jittered != 0 {
		t.Errorf("%+v", Load{Tasks: l.Tasks, AfterCompletion: l.AfterCompletion, Inexact: l.Inexact, Jittered: l.Jittered})
	}
}

func TestLoad_FiltersRowsBeforeItCounts(t *testing.T) {
	t.Parallel()

	q := dayQuery(0)
	q.Filter.Within = []string{"mine"}
	s := parseTiming(t, task.Timing{Schedule: task.Schedules{"* * * * *"}}, nowMS)

	l := loadOf(q, rowOf("mine/a", s, q.Load.From), rowOf("theirs/b", s, q.Load.From))
	want := []Maker{{MakerKey: MakerKey{Schedule: "* * * * *", Timezone: "UTC"}, Tasks: 1, Runs: 1, Names: []string{"mine/a"}}}
	if l.Tasks != 1 || sumOf(l) != MaxLoadMinutes || !reflect.DeepEqual(l.Makers, [][]Maker{want}) {
		t.Errorf("%d tasks, %v runs, makers %+v", l.Tasks, sumOf(l), l.Makers)
	}
}

// What makes runs of a minute has names, also if it is not known when exactly the runs are due.
func TestLoad_MakersHaveNames(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		q := dayQuery(rapid.SliceOfNDistinct(rapid.IntRange(0, MaxLoadMinutes-1), 1, 6, rapid.ID[int]).Draw(t, "minutes")...)
		var rows []Row
		for i := range rapid.IntRange(1, 20).Draw(t, "tasks") {
			timing := loadTimings.Draw(t, "timing")
			timing.Jitter = task.Duration(rapid.SampledFrom([]time.Duration{0, 30 * time.Second, 10 * time.Minute, 3 * time.Hour}).Draw(t, "jitter"))
			if rapid.IntRange(0, 3).Draw(t, "mixed") == 0 {
				timing.Schedule = append(slices.Clone(timing.Schedule), "@every 7m")
			}

			s, err := schedule.Parse(timing, time.UnixMilli(nowMS-rapid.Int64Range(0, 100*hourMS).Draw(t, "anchor")))
			if err != nil {
				continue
			}
			rows = append(rows, rowOf(fmt.Sprintf("ns/%d", i), s, nowMS))
		}

		l := loadOf(q, rows...)
		for i, makers := range l.Makers {
			for _, m := range makers {
				if len(m.Names) == 0 {
					t.Fatalf("%v runs of %v in minute %d have no name", m.Runs, m.MakerKey, q.Load.Makers[i])
				}
			}
		}
	})
}

func TestLoad_NamesMakersOfPeaks(t *testing.T) {
	t.Parallel()

	q := dayQuery()
	midnight := parseTiming(t, task.Timing{Schedule: task.Schedules{"0 0 * * *"}}, nowMS)
	hourly := parseTiming(t, task.Timing{Schedule: task.Schedules{"0 * * * *"}}, nowMS)

	var parts [2][]Row
	for i := range 30 {
		parts[i%2] = append(parts[i%2], rowOf(fmt.Sprintf("ns/m%02d", i), midnight, nowMS), rowOf(fmt.Sprintf("ns/h%02d", i%10), hourly, nowMS))
	}

	merged := func() (*Load, Page) {
		var answers []NodeAnswer
		for i, rows := range parts {
			l := loadOf(q, rows...)
			answers = append(answers, NodeAnswer{Node: fmt.Sprint("n", i), Shards: []ShardAnswer{{Shard: i, Owner: 1}}, Load: &l})
		}
		page := Merge(q, 3, answers)

		return page.Load, page
	}
	sum, page := merged()
	if !slices.Equal(page.Missing, []int{2}) || sum.Tasks != 60 {
		t.Errorf("missing %v, %d tasks", page.Missing, sum.Tasks)
	}

	peaks := sum.PeakMinutes(2)
	at := time.UnixMilli(q.Load.From + int64(peaks[0])*minuteMS).UTC()
	if at.Hour() != 0 || at.Minute() != 0 || sum.Runs[peaks[0]] != 60 || sum.Runs[peaks[1]] != 30 {
		t.Fatalf("peaks %v at %s", peaks, at)
	}

	q.Load.Makers = peaks
	sum, _ = merged()
	want := []Maker{
		{MakerKey{"0 * * * *", "UTC", 0}, 30, 30, []string{"ns/h00", "ns/h00", "ns/h00"}},
		{MakerKey{"0 0 * * *", "UTC", 0}, 30, 30, []string{"ns/m00", "ns/m01", "ns/m02"}},
	}
	if !reflect.DeepEqual(sum.Makers[0], want) || len(sum.Makers[1]) != 1 {
		t.Errorf("makers %+v", sum.Makers)
	}
}

func TestMerge_LeavesOutLoadsOfSupersededAnswers(t *testing.T) {
	t.Parallel()

	q := &Query{Load: &LoadRange{Minutes: 1}}
	of := func(node string, runs float64, shards ...ShardAnswer) NodeAnswer {
		return NodeAnswer{Node: node, Shards: shards, Load: &Load{Runs: []float64{runs}, Tasks: 1}}
	}

	page := Merge(q, 2, []NodeAnswer{
		of("old", 5, ShardAnswer{Shard: 0, Owner: 1}, ShardAnswer{Shard: 1, Owner: 1}), of("new", 3, ShardAnswer{Shard: 1, Owner: 2}),
	})
	if page.Load.Runs[0] != 3 || page.Load.Tasks != 1 || !slices.Equal(page.Missing, []int{0}) {
		t.Errorf("%v runs of %d tasks, missing %v", page.Load.Runs, page.Load.Tasks, page.Missing)
	}
}

func TestLoad_PeakMinutes(t *testing.T) {
	t.Parallel()

	for runs, want := range map[string]string{
		"": "[]", "0 0 0": "[]", "1 1 1 1": "[0]", "0 5 5 0 7 5": "[4 1 5]", "1 2 3 4": "[3 2 1]",
	} {
		var l Load
		for _, word := range strings.Fields(runs) {
			n, _ := strconv.Atoi(word)
			l.Runs = append(l.Runs, float64(n))
		}

		if got := fmt.Sprint(l.PeakMinutes(3)); got != want {
			t.Errorf("peaks of %q: %s, want %s", runs, got, want)
		}
	}
}

// BenchmarkLoad_MillionTasks measures a million tasks of 3,000 schedules.
func BenchmarkLoad_MillionTasks(b *testing.B) {
	var x Index
	var schedules []*schedule.Schedule
	for i := range 3000 {
		expr := fmt.Sprintf("%d %d * * *", i%60, i/60%24)
		if i >= 1440 {
			expr = fmt.Sprintf("@every %dm", i%120+1)
		}
		schedules = append(schedules, parseTiming(b, task.Timing{Schedule: task.Schedules{expr}}, nowMS))
	}

	for i := range 1_000_000 {
		s := schedules[i*7919%len(schedules)].Anchored(time.UnixMilli(nowMS - int64(i)*1234))
		x.Put(NoSlot, rowOf("namespace/task-"+strconv.Itoa(i), &s, nowMS), Details{}, nil)
	}

	for _, makers := range [][]int{nil, {0, 60, 120, 180, 240}} {
		b.Run(fmt.Sprint(len(makers), " makers"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s := NewLoadScan(dayQuery(makers...))
				s.Scan(&x)
				if l := s.Load(); l.Tasks < 900_000 {
					b.Fatal(l.Tasks)
				}
			}
		})
	}
}
