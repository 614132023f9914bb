package ledger

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// bytesPerKey is about what a key of a chunk and its entry in etcd's index have in addition to the value.
const bytesPerKey = 130

// fullTableVar is the environment variable that makes TestFold_BytesPerDay fold thirty days of all tasks.
const fullTableVar = "CARILLON_LEDGER_TABLE"

// usage is how much the ledger of a task needs.
type usage struct {
	days, bytes, chunks, biggest int
	oldest                       time.Duration // what the newest MaxChunks chunks cover
}

// foldDays folds some days of a task, of whose runs a share fails, and returns what its ledger has at the end.
func foldDays(period time.Duration, days int, failures float64) usage {
	r := rand.New(rand.NewPCG(1, 2))
	inFold := 5
	switch {
	case period <= time.Second:
		inFold = 60
	case period <= time.Minute:
		inFold = 10
	}

	var chunks []Chunk
	var records []Record
	next := each(period)
	total := int(time.Duration(days) * 24 * time.Hour / period)

	for i := range total {
		offset := time.Duration(i) * period
		rec := scheduled(offset, task.Succeeded)
		rec.Run.Node = fmt.Sprintf("n%d", 1+r.IntN(7))
		rec.Run.EndedAt = task.At(rec.Run.StartedAt.Add(time.Duration(20+r.IntN(60)) * time.Millisecond))
		if r.Float64() < failures {
			state := task.Failed
			if r.IntN(25) == 0 {
				state = task.TimedOut
			}

			node := rec.Run.Node
			rec = scheduled(offset, state)
			rec.Run.Node = node
		}

		records = append(records, rec)
		if len(records) < inFold && i+1 < total {
			continue
		}

		var newest *Chunk
		if n := len(chunks); n > 0 {
			newest, chunks = &chunks[n-1], chunks[:n-1]
		}
		chunks = append(chunks, Fold(testUID, newest, records, next)...)
		records = records[:0]
	}

	u := usage{days: days, chunks: len(chunks)}
	for i := range chunks {
		n := len(mustMarshal(chunks[i]))
		u.bytes, u.biggest = u.bytes+n, max(u.biggest, n)
	}

	first, _ := chunks[max(0, len(chunks)-MaxChunks)].bounds()
	u.oldest = start.Add(time.Duration(total) * period).Sub(first)

	return u
}

func TestFold_BytesPerDay(t *testing.T) {
	t.Parallel()

	tasks := []struct {
		name   string
		period time.Duration
		short  int        // days of the short form
		most   [4]float64 // bytes a day by share of failures: about a tenth more than measured
	}{
		{"every second", time.Second, 1, [4]float64{60, 2000, 3500, 3500}},
		{"every minute", time.Minute, 3, [4]float64{60, 150, 700, 2500}},
		{"every hour", time.Hour, 30, [4]float64{35, 35, 50, 140}},
		{"every day", 24 * time.Hour, 30, [4]float64{8, 8, 8, 12}},
	}
	shares := []float64{0, 0.001, 0.01, 0.1}

	full := os.Getenv(fullTableVar) != ""
	var table strings.Builder
	table.WriteString("| | no failures | 0.1 % | 1 % | 10 % | keys a month |\n|---|---|---|---|---|---|\n")

	for _, task := range tasks {
		fmt.Fprintf(&table, "| %s |", task.name)

		fewest, most := 1<<30, 0
		for i, share := range shares {
			days := task.short
			if full {
				days = 30
			}

			u := foldDays(task.period, days, share)
			perDay := float64(u.bytes) / float64(u.days)
			if perDay > task.most[i] || u.biggest > maxChunkSize {
				t.Errorf("%s, %g %% of failures: %.0f bytes a day, the largest chunk has %d", task.name, 100*share, perDay, u.biggest)
			}

			fmt.Fprintf(&table, " %.0f B a day, %.1f kB in 30 days |", perDay, float64(u.bytes+u.chunks*bytesPerKey)*30/float64(u.days)/1000)
			fewest, most = min(fewest, u.chunks), max(most, u.chunks)
			if u.oldest < time.Duration(days)*24*time.Hour {
				t.Logf("%s, %g %% of failures: %d chunks, of which the newest %d cover %.1f days", task.name, 100*share, u.chunks, MaxChunks, u.oldest.Hours()/24)
			}
		}

		fmt.Fprintf(&table, " %d–%d |\n", fewest, most)
	}

	t.Logf("\n%s", table.String())
}
