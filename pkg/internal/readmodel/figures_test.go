package readmodel

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawFigureRow draws a row of one of a few namespaces, and its details.
func drawFigureRow(t *rapid.T, number int) (Row, Details) {
	r := Row{Name: fmt.Sprintf("ns%d/t%d", rapid.IntRange(0, 4).Draw(t, "namespace"), number), LastEnd: int64(number)}
	for _, flag := range []Flags{Paused, Unreadable, Failing, History, Gone} {
		if rapid.IntRange(0, 2).Draw(t, "flag") == 0 {
			r.Flags |= flag
		}
	}
	r.Flags |= rapid.SampledFrom([]Flags{0, 0, MetricsOn, MetricsOff}).Draw(t, "metrics")

	var d Details
	if r.Flags.Has(Failing) {
		d.DeadRuns = rapid.IntRange(1, 3).Draw(t, "dead runs")
	}
	if r.Flags.Has(Paused) {
		d.PausedUntil = rapid.SampledFrom([]int64{0, 5, 15}).Draw(t, "paused until")
	}

	return r, d
}

// Each task counts once, in one state and one namespace, so that the figures of nodes can be added. The tasks that have metrics of their
// own are those that say so, or whose namespace does.
func TestFigures_CountEachTaskOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limits := FigureLimits{Namespaces: rapid.IntRange(1, 6).Draw(t, "namespaces"), Tasks: rapid.IntRange(0, 20).Draw(t, "tasks")}
		const now = 10
		byDefault := map[string]bool{"ns1": true}
		shards := [2]Index{}
		want, tasks, own := map[string]NamespaceFigures{}, 0, map[string]bool{}

		for i := range rapid.IntRange(0, 40).Draw(t, "rows") {
			r, d := drawFigureRow(t, i)
			shards[i%2].Put(NoSlot, r, d, nil)
			if r.Flags.Has(Gone) {
				continue
			}

			namespace, _ := r.splitName()
			n := want[namespace]
			switch isPaused := r.Flags.Has(Paused) && (d.PausedUntil == 0 || d.PausedUntil > now); {
			case r.Flags.Has(Unreadable):
				n.Tasks[FigureUnreadable]++
			case r.Flags.Has(Failing):
				n.Tasks[FigureFailing]++
			case isPaused:
				n.Tasks[FigurePaused]++
			default:
				n.Tasks[FigureOK]++
			}
			n.DeadRuns += d.DeadRuns
			want[namespace], tasks = n, tasks+1

			if r.Flags.Has(MetricsOn) || byDefault[namespace] && !r.Flags.Has(MetricsOff) {
				own[r.Name] = r.Flags.Has(History)
			}
		}

		f := NewFigures(limits)
		for i := range shards {
			f.Add(&shards[i], now, func(namespace string) bool { return byDefault[namespace] })
		}

		counted, rest := 0, NamespaceFigures{}
		list := f.Namespaces()
		for i, n := range list {
			for _, of := range n.Tasks {
				counted += of
			}

			if i == limits.Namespaces {
				rest = n
				continue
			}
			if is := want[n.Name]; n.Tasks != is.Tasks || n.DeadRuns != is.DeadRuns {
				t.Fatalf("%+v, want %+v", n, is)
			}
			delete(want, n.Name)
		}

		if counted != tasks || len(list) > limits.Namespaces+1 {
			t.Fatalf("%d of %d tasks are counted in %d namespaces", counted, tasks, len(list))
		}
		for _, n := range want {
			rest.DeadRuns -= n.DeadRuns
		}
		if rest.DeadRuns != 0 || len(want) > 0 != (rest.Name == OtherNamespaces) {
			t.Fatalf("the rest is off by %+v; it stands for %v", rest, want)
		}

		// The first ones have metrics, whatever the order of the rows is. One that is not known yet is not replaced by another one.
		var first []string
		for i, name := range slices.Sorted(maps.Keys(own)) {
			if i < limits.Tasks && own[name] {
				first = append(first, name)
			}
		}
		var reported []string
		for _, of := range f.Tasks() {
			reported = append(reported, of.Namespace+"/"+of.Task)
		}
		if !slices.Equal(reported, first) || f.Omitted() != max(0, len(own)-limits.Tasks) {
			t.Fatalf("%v have metrics, and %d are omitted; want %v, of %d", reported, f.Omitted(), first, len(own))
		}
	})
}

// BenchmarkFigures measures a scrape of a million tasks, as one shard.
func BenchmarkFigures(b *testing.B) {
	x := benchIndex()
	b.ReportAllocs()

	for b.Loop() {
		f := NewFigures(FigureLimits{Namespaces: 1000, Tasks: 10_000})
		f.Add(x, 1e12, func(string) bool { return false })
	}
}
