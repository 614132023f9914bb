package check

import (
	"fmt"
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// findings collects what the judges report: violations and notes.
type findings struct {
	revision   int64 // the revision that is judged; violations are reported at it
	violations []Violation
	notes      map[string]int // each note, and how often it was made
}

// newFindings returns an empty collection.
func newFindings() *findings { return &findings{notes: map[string]int{}} }

// addViolation adds a violation at the current revision. promise is the number of a guarantee, such as "G3", or
// "state" or "form".
func (f *findings) addViolation(promise, key, format string, args ...any) {
	f.violations = append(f.violations, Violation{
		Promise: promise, Revision: f.revision, Key: key, Message: fmt.Sprintf(format, args...),
	})
}

// breachTask adds a violation that concerns a task, and a tick (in ms) unless it is 0.
func (f *findings) breachTask(promise string, ref record.Ref, tick int64, key, format string, args ...any) {
	f.addViolation(promise, key, format, args...)
	v := &f.violations[len(f.violations)-1]
	v.Task = ref.String()
	if tick != 0 {
		v.Tick = timeOfMS(tick)
	}
}

// addNote adds an observation that is not a violation: it limits what was judged, or deserves attention.
func (f *findings) addNote(format string, args ...any) { f.notes[fmt.Sprintf(format, args...)]++ }

// buildReport returns all findings, with the violations in the order of their revisions.
func (f *findings) buildReport(stats *stats) Report {
	r := Report{Violations: f.violations, Summary: stats.summarize()}
	for _, n := range slices.Sorted(maps.Keys(f.notes)) {
		if times := f.notes[n]; times > 1 {
			n = fmt.Sprintf("%s (%d times)", n, times)
		}
		r.Notes = append(r.Notes, n)
	}

	slices.SortStableFunc(r.Violations, func(a, b Violation) int { return int(a.Revision - b.Revision) })

	return r
}
