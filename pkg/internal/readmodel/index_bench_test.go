package readmodel

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkIndex_Scan scans a million tasks, as one shard, for a page of 50.
func BenchmarkIndex_Scan(b *testing.B) {
	const tasks = 1_000_000
	var x Index
	labels := make([]map[string]string, 1000)
	for i := range labels {
		labels[i] = map[string]string{"team": fmt.Sprintf("team-%d", i%40), "env": []string{"prod", "test"}[i%2], "tier": fmt.Sprint(i % 25)}
	}

	for i := range tasks {
		h := int64(i) * 2654435761 % tasks // in no order
		r := Row{Name: fmt.Sprintf("bench/report-%07d", h), Labels: labels[i%len(labels)], Next: 1e12 + h, LastEnd: 1e12 - h, Duration: int32(h), Lateness: int32(h % 1000), Last: 1, Flags: History}
		if i%100 == 0 {
			r.Failures, r.Last, r.Flags = uint16(h%50), 2, History|Failing
		}
		x.Put(NoSlot, r, 0)
	}

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
