package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

func BenchmarkNext(b *testing.B) {
	for _, c := range []struct {
		name, zone string
		exprs      []string
	}{
		{"minutely", "Europe/Berlin", []string{"* * * * *"}},
		{"secondly", "Europe/Berlin", []string{"* * * * * *"}},
		{"daily", "Europe/Berlin", []string{"30 2 * * *"}},
		{"sparse", "Europe/Berlin", []string{"0 0 29 2 */7"}},
		{"places", "Europe/Berlin", []string{"30 2 LW * *", "0 9 * * 1#1"}},
		{"every", "UTC", []string{"@every 90s"}},
		{"sixteen", "Europe/Berlin", sixteen()},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := parse(b, c.zone, noDST, c.exprs...)
			b.ReportAllocs()

			now := anchor
			for b.Loop() {
				next, ok := s.Next(now)
				if !ok {
					next = anchor
				}
				now = next
			}
		})
	}
}

// BenchmarkWorst measures the slowest schedule, which was found by trying rare expressions in all zones: a time
// that lies in a gap each year. With gap: skip it never has a tick again. It is repeated as often as a task allows.
// Each search for a tick covers a century.
func BenchmarkWorst(b *testing.B) {
	var exprs []string
	for i := range schedule.MaxExpressions {
		exprs = append(exprs, fmt.Sprintf("%d 2 * 3 0L", i))
	}

	timing := task.Timing{Schedule: exprs, Timezone: "Europe/Zagreb", DST: task.DST{Gap: task.GapSkip}, Jitter: task.Duration(time.Hour)}
	s := mustParse(b, timing, anchor)
	early, late := instantOf(b, "1985-01-01"), instantOf(b, "2100-12-31")
	for _, c := range []struct {
		name string
		call func()
	}{
		{"next", func() { s.Next(early) }},
		{"lastDue", func() { s.LastDue(late, "k3f9") }},
		{"at", func() { s.At(late) }},
		{"missed", func() { s.Missed(early, late, 1) }},
		{"check", func() { _ = schedule.Check(task.Timing{Schedule: append(exprs[1:], "0 0 31W * */7")}) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.call()
			}
		})
	}
}

func BenchmarkDue(b *testing.B) {
	s := mustParse(b, task.Timing{Schedule: []string{"30 2 * * *"}, Timezone: "Europe/Berlin", Jitter: task.Duration(time.Minute)}, anchor)
	tick, _ := s.Next(anchor)
	b.ReportAllocs()

	for b.Loop() {
		s.Due(tick, "k3f9abcdefgh")
	}
}

func sixteen() []string {
	var exprs []string
	for i := range 16 {
		exprs = append(exprs, fmt.Sprintf("%d %d * * *", i, i))
	}
	return exprs
}

func BenchmarkParse(b *testing.B) {
	b.Run("known", func(b *testing.B) {
		exprs := []string{"30 2 * * 1-5"}
		b.ReportAllocs()

		for b.Loop() {
			if _, err := schedule.Parse(task.Timing{Schedule: exprs, Timezone: "Europe/Berlin", DST: task.DST{}}, anchor); err != nil {
				b.Fatal(err)
			}
		}
	})

	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()

		for i := 0; b.Loop(); i++ {
			expr := fmt.Sprintf("%d %d %d %d 1-5", i%60, i/60%24, i/1440%28+1, i/40320%12+1)
			if _, err := schedule.Parse(task.Timing{Schedule: []string{expr}, Timezone: "Europe/Berlin", DST: task.DST{}}, anchor); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkMissed(b *testing.B) {
	for _, c := range []struct {
		name  string
		exprs []string
	}{
		{"seconds", []string{"* * * * * *"}},
		{"daily", []string{"30 2 * * *"}},
		{"union", []string{"* * * * * *", "*/2 * * * *", "0 0 1 * 1"}},
		{"sixteen", sixteen()},
		{"withEvery", []string{"*/2 * * * * *", "@every 90s"}},
		{"withOddEvery", []string{"*/2 * * * * *", "@every 7s"}},
		{"withOddEverys", []string{"*/2 * * * * *", "@every 7s", "@every 11s", "@every 13s"}},
	} {
		b.Run(c.name+"/tenYears", func(b *testing.B) {
			s := parse(b, "Europe/Berlin", noDST, c.exprs...)
			upTo := anchor.Add(10 * 365 * 24 * time.Hour)
			for b.Loop() {
				s.Missed(anchor, upTo, 100)
			}
		})
	}
}
