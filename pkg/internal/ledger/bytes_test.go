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
	bytes, chunks, biggest int
	oldest                 time.Duration // what the newest MaxChunks chunks cover
}

// foldTask folds the runs of a task for some time, some of which fail, and returns what its ledger has at the end.
func foldTask(period, long time.Duration, failures float64) usage {
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
	total := int(long / period)

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

	u := usage{chunks: len(chunks)}
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

	const day, month = 24 * time.Hour, 30 * 24 * time.Hour
	tasks := []struct {
		name   string
		period time.Duration
		short  time.Duration // of the short form
		most   [4]float64    // bytes in thirty days by share of failures: about a tenth more than measured
	}{
		{"every second", time.Second, 6 * time.Hour, [4]float64{1500, 60_000, 105_000, 105_000}},
		{"every minute", time.Minute, 3 * day, [4]float64{1500, 3500, 20_000, 72_000}},
		{"every hour", time.Hour, month, [4]float64{1000, 1000, 1400, 4000}},
		{"every day", day, month, [4]float64{300, 300, 300, 400}},
	}
	shares := []float64{0, 0.001, 0.01, 0.1}

	full := os.Getenv(fullTableVar) != ""
	var table strings.Builder
	table.WriteString("| | no failures | 0.1 % | 1 % | 10 % | keys a month |\n|---|---|---|---|---|---|\n")

	for _, task := range tasks {
		fmt.Fprintf(&table, "| %s |", task.name)

		fewest, most := 1<<30, 0
		for i, share := range shares {
			long := task.short
			if full {
				long = month
			}

			u := foldTask(task.period, long, share)
			if float64(u.bytes) > task.most[i] || u.biggest > maxChunkSize {
				t.Errorf("%s, %g %% of failures: %d bytes, the largest chunk has %d", task.name, 100*share, u.bytes, u.biggest)
			}

			perDay := float64(day) / float64(long)
			fmt.Fprintf(&table, " %.0f B a day, %.1f kB in 30 days |", float64(u.bytes)*perDay, float64(u.bytes+u.chunks*bytesPerKey)*30*perDay/1000)
			fewest, most = min(fewest, u.chunks), max(most, u.chunks)
			if u.oldest < long-task.period {
				t.Errorf("%s, %g %% of failures: %d chunks, of which the newest %d cover %.1f days", task.name, 100*share, u.chunks, MaxChunks, u.oldest.Hours()/24)
			}
		}

		fmt.Fprintf(&table, " %d–%d |\n", fewest, most)
	}

	t.Logf("\n%s", table.String())
}
