package readmodel

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// benchTasks is the number of tasks of benchIndex.
const benchTasks = 1_000_000

// benchIndex returns an index of a million tasks. One of a hundred tasks is failing, and one of a thousand has an attempt.
func benchIndex() *Index {
	const tasks = benchTasks
	var x Index
	labels := make([]map[string]string, 1000)
	for i := range labels {
		labels[i] = map[string]string{"team": fmt.Sprintf("team-%d", i%40), "env": []string{"prod", "test"}[i%2], "tier": fmt.Sprint(i % 25)}
	}

	for i := range tasks {
		h := int64(i) * 2654435761 % tasks // in no order
		r := Row{Name: fmt.Sprintf("bench/report-%07d", h), Labels: labels[i%len(labels)], Next: 1e12 + h, LastEnd: 1e12 - h, Duration: int32(h), Lateness: int32(h % 1000), Flags: History | Outcome(1).flags()}
		var d Details
		if i%100 == 0 {
			r.Failures, r.Flags = uint16(h%50), History|Failing|Outcome(2).flags()
			d.Failure = &Failure{Run: "20261120T120000.000Z-abcd", State: task.Failed, Ended: r.LastEnd}
		}
		if i%1000 == 7 {
			r.Active, d.Runs = 1, NewRuns(0)
			d.Runs.AddAttempt(&Attempt{Run: "20261120T120000.000Z-abcd", Node: "n1", Since: 1e12 - h, Known: true}, false)
		}
		x.Put(NoSlot, r, d, nil)
	}

	return &x
}

// BenchmarkIndex_Scan scans a million tasks, as one shard, for a page of 50.
func BenchmarkIndex_Scan(b *testing.B) {
	x := benchIndex()
	globs := compileGlobs([]string{"*-00*7?"})
	label := func(r *Row, _ int64) bool { return r.Labels["team"] == "team-7" }
	glob := func(r *Row, _ int64) bool { return globs[0].Match(r.Name[6:]) }
	substring := func(r *Row, _ int64) bool { return strings.Contains(r.Name, "77") }

	for _, c := range []struct {
		name string
		q    Query
	}{
		{"counts", Query{}},
		{"by name", Query{Limit: 50, Order: ByName}},
		{"by next", Query{Limit: 50, Order: ByNext}},
		{"by last", Query{Limit: 50, Order: ByLast}},
		{"by lateness", Query{Limit: 50, Order: ByLateness}},
		{"by duration", Query{Limit: 50, Order: ByDuration}},
		{"by failures", Query{Limit: 50, Order: ByFailures}},
		{"label", Query{Limit: 50, Order: ByNext, Filter: Filter{Conditions: []Condition{label}}}},
		{"substring", Query{Limit: 50, Order: ByNext, Filter: Filter{Conditions: []Condition{substring}}}},
		{"glob", Query{Limit: 50, Order: ByNext, Filter: Filter{Conditions: []Condition{glob}}}},
		{"namespace", Query{Limit: 50, Order: ByNext, Filter: Filter{Namespace: "bench"}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.q.Now = 1e12
			b.ReportAllocs()

			for b.Loop() {
				x.Scan(&c.q, 0, NewFirst(&c.q))
			}
		})
	}
}

// BenchmarkIndex_Board scans a million tasks, as one shard, for a board with lists of 100 items.
func BenchmarkIndex_Board(b *testing.B) {
	x := benchIndex()

	for _, c := range []struct {
		name string
		now  int64
	}{
		{"due in ten minutes", 1e12},
		{"overdue", 1e12 + benchTasks},
	} {
		b.Run(c.name, func(b *testing.B) {
			q := &Query{Now: c.now, Board: &BoardRange{Span: 10 * time.Minute, Limit: 100}}
			b.ReportAllocs()

			for b.Loop() {
				s := newBoardScan(q)
				s.scan(x)
				if s.board().Counts.Tasks != benchTasks {
					b.Fatal("tasks are missing")
				}
			}
		})
	}
}
