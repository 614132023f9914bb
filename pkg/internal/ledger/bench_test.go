package ledger

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// BenchmarkFold measures a fold of 10 or 60 records of a task, per record: with the schedule, and in "trim" also with
// reading and writing the newest chunk in JSON.
func BenchmarkFold(b *testing.B) {
	cases := []struct {
		name     string
		cron     string
		period   time.Duration
		inFold   int
		failures float64
	}{
		{"minute", "* * * * *", time.Minute, 10, 0},
		{"minute, 1 % failed", "* * * * *", time.Minute, 10, 0.01},
		{"second", "* * * * * *", time.Second, 60, 0},
		{"second, 1 % failed", "* * * * * *", time.Second, 60, 0.01},
		{"second, 10 % failed", "* * * * * *", time.Second, 60, 0.1},
	}

	for _, c := range cases {
		s, err := schedule.Parse(task.Timing{Schedule: []string{c.cron}, Timezone: "Europe/Berlin"}, start)
		if err != nil {
			b.Fatal(err)
		}

		r := rand.New(rand.NewPCG(1, 2))
		records := make([]Record, 86_400)
		for i := range records {
			records[i] = scheduled(time.Duration(i)*c.period, task.Succeeded)
			if r.Float64() < c.failures {
				records[i] = scheduled(time.Duration(i)*c.period, task.Failed)
			}
		}
		folds := slices.Collect(slices.Chunk(records, c.inFold))

		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var newest *Chunk
			for i := 0; i < b.N; i += c.inFold {
				chunks := Fold(testUID, newest, folds[i/c.inFold%len(folds)], s.Next)
				newest = &chunks[len(chunks)-1]
			}
		})

		b.Run(c.name+", trim", func(b *testing.B) {
			b.ReportAllocs()
			var value []byte
			for i := 0; i < b.N; i += c.inFold {
				var newest *Chunk
				if value != nil {
					d, whole, err := Decode(value)
					if err != nil || !whole {
						b.Fatal(err)
					}
					newest = &d
				}

				for _, chunk := range Fold(testUID, newest, folds[i/c.inFold%len(folds)], s.Next) {
					value = mustMarshal(chunk)
				}
			}
		})
	}
}

// BenchmarkBook measures reading a whole ledger of thirty days, and asking it.
func BenchmarkBook(b *testing.B) {
	var values [][]byte
	for range MaxChunks {
		records := seconds(0, 1000, nil)
		for i := 1000; i < 1200; i += 7 {
			records = append(records, scheduled(time.Duration(i)*time.Second, task.Failed))
		}
		values = append(values, mustMarshal(Fold(testUID, nil, records, each(time.Second))[0]))
	}

	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			NewBook(testUID, values)
		}
	})
}
