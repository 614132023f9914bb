package chaos_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// row is what a run has shown about one kind of fault. Times are in ms.
type row struct {
	Fault     string `json:"fault"`
	Group     string `json:"group"`
	What      string `json:"what"`
	Off       string `json:"off,omitempty"` // why it was not injected
	Injected  int    `json:"injected"`      // that count
	Uncounted int    `json:"uncounted"`     // not enough ticks, or not possible at that time
	Silence   times  `json:"silence_ms"`    // the longest silence of any ticker, beyond its period of a second
	Recovered times  `json:"recovered_ms"`  // from the end of the fault until the cluster was settled
	silences  []time.Duration
	recovered []time.Duration
}

// times are statistics over several injections, in ms.
type times struct {
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
	Max int64 `json:"max"`
}

func timesOf(all []time.Duration) times {
	if len(all) == 0 {
		return times{}
	}

	s := slices.Sorted(slices.Values(all))
	at := func(percent int) int64 { return s[(len(s)-1)*percent/100].Milliseconds() }
	return times{at(50), at(99), at(100)}
}

// summary is the result of a whole run, for programs.
type summary struct {
	Seed       uint64             `json:"seed"`
	Length     string             `json:"length"`
	Faults     int                `json:"faults"`
	Kinds      int                `json:"kinds"`
	Violations []string           `json:"violations"`
	Silence    times              `json:"silence_ms"` // over all faults
	Acks       int                `json:"acknowledged_changes"`
	Calls      int                `json:"linearizable_calls"`
	Unclear    int                `json:"histories_too_long_for_porcupine"`
	Probes     int                `json:"probe_lines"`
	Rows       []row              `json:"rows"`
	Counters   map[string]float64 `json:"counters"`
	Unreached  []string           `json:"unreached"`
	Check      check.Summary      `json:"check"`
}

// measure finds the longest silence of a ticker during each fault: from one decision of a task with a tick every
// second to its next one, minus that second.
func (w *world) measure(done []*injection, events []check.Event) {
	last := map[record.Ref]time.Time{}
	for _, e := range events {
		k, ok := w.keys.ParseRun(e.Key)
		if !ok || e.Deleted || e.CreateRevision != e.ModRevision || k.Ref.Namespace != loadSpace || !strings.HasPrefix(k.Ref.Name, ticker) {
			continue
		}

		a, err := record.DecodeAssigned(k, e.CreateRevision, e.Value)
		if err != nil {
			continue
		}

		at, before := a.CreatedAt.Time, last[k.Ref]
		last[k.Ref] = at

		if before.IsZero() {
			continue
		}

		for _, in := range done {
			// It begins in the second before the fault at the earliest. A silence that begins while the cluster
			// recovers also belongs to the fault.
			if before.After(in.began.Add(-time.Second)) && before.Before(in.healed.Add(in.recovered)) {
				in.silence = max(in.silence, at.Sub(before)-time.Second)
			}
		}
	}
}

func (w *world) summarize(done []*injection, off map[string]string, v verdict, length time.Duration) summary {
	w.measure(done, v.events)
	s := summary{Seed: w.seed, Length: length.Round(time.Second).String(), Violations: w.failures, Acks: v.acks, Calls: v.calls, Unclear: v.unclear,
		Counters: w.finalCounts, Check: v.report.Summary}
	if b, err := os.ReadFile(w.probes); err == nil {
		s.Probes = strings.Count(string(b), "\n")
	}

	var silences []time.Duration
	for _, f := range allFaults() {
		r := row{Fault: f.name, Group: f.group, What: f.what, Off: off[f.name]}
		for _, in := range done {
			switch {
			case in.fault != f:
			case !in.counted:
				r.Uncounted++
			default:
				r.Injected++
				r.silences, r.recovered = append(r.silences, in.silence), append(r.recovered, in.recovered)
			}
		}

		r.Silence, r.Recovered = timesOf(r.silences), timesOf(r.recovered)
		silences = append(silences, r.silences...)
		s.Faults += r.Injected
		s.Kinds += min(r.Injected, 1)
		s.Rows = append(s.Rows, r)
	}

	s.Silence = timesOf(silences)
	for _, series := range slices.Sorted(maps.Keys(s.Counters)) {
		if s.Counters[series] == 0 {
			s.Unreached = append(s.Unreached, series)
		}
	}

	return s
}

// String formats the run for people, in Markdown.
func (s summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %s: %d faults of %d kinds, %d ticks, %d runs by hand, %d probe lines, %d acknowledged changes, %d calls judged by porcupine (%d histories too long for it): %d violations\n\n",
		s.Seed, s.Length, s.Faults, s.Kinds, s.Check.Ticks, s.Check.Manual, s.Probes, s.Acks, s.Calls, s.Unclear, len(s.Violations))
	b.WriteString("| fault | injected | longest silence of a task, p50 | p99 | max | recovered after, p50 | max |\n|---|---|---|---|---|---|---|\n")

	for _, r := range s.Rows {
		if r.Injected > 0 {
			fmt.Fprintf(&b, "| %s | %d | %d ms | %d ms | %d ms | %d ms | %d ms |\n", r.Fault, r.Injected, r.Silence.P50, r.Silence.P99, r.Silence.Max, r.Recovered.P50, r.Recovered.Max)
		}
	}

	fmt.Fprintf(&b, "| all | %d | %d ms | %d ms | %d ms | | |\n\n", s.Faults, s.Silence.P50, s.Silence.P99, s.Silence.Max)

	for _, r := range s.Rows {
		if r.Injected == 0 && r.Off != "" {
			fmt.Fprintf(&b, "off: %s: %s\n", r.Fault, r.Off)
		}

		if r.Uncounted > 0 {
			fmt.Fprintf(&b, "not counted: %s, %d times\n", r.Fault, r.Uncounted)
		}
	}

	b.WriteString("\ncounters:\n")

	for _, series := range slices.Sorted(maps.Keys(s.Counters)) {
		fmt.Fprintf(&b, "  %-70s %.0f\n", series, s.Counters[series])
	}

	for _, series := range s.Unreached {
		fmt.Fprintf(&b, "never reached: %s\n", series)
	}

	return b.String()
}

// save writes the run for programs.
func (s summary) save(path string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
