package wording

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// LedgerText describes what a line of a ledger tells of its ticks or runs: "86,312 succeeded", or "exit 1, attempt 2".
func LedgerText(l task.LedgerLine) string {
	switch l.Kind {
	case task.LedgerSucceeded:
		if l.Count == 1 {
			return "succeeded"
		}
		return Grouped(int(l.Count)) + " succeeded"

	case task.LedgerHour:
		return fmt.Sprintf("%s did not succeed: %s", Grouped(int(l.Count)), CausesText(l.Causes))

	case task.LedgerRequestedMore:
		return fmt.Sprintf("%s: %s", Plural(l.Count, "more manual run"), CausesText(l.Causes))

	case task.LedgerUnreadable:
		return Plural(l.Count, "record") + " could not be read"
	}

	run := task.Run{State: l.State, Attempt: l.Attempt, TickRange: task.TickRange{Count: l.Count}}
	run.Reason, run.ExitCode, run.Signal, run.HTTPStatus = task.ParseLedgerReason(l.Reason)
	words := RunResult(run, time.Time{})
	if l.Late {
		words += ", with a late result"
	}

	return words
}

// CausesText lists states and reasons with their counts, the most frequent first: "exit 1 ×300, timed out ×12".
func CausesText(causes map[string]int64) string {
	names := slices.SortedFunc(maps.Keys(causes), func(a, b string) int {
		return cmp.Or(cmp.Compare(causes[b], causes[a]), strings.Compare(a, b))
	})

	parts := make([]string, len(names))
	for i, name := range names {
		state, reason, _ := strings.Cut(name, ": ")
		run := task.Run{State: task.State(state)}
		run.Reason, run.ExitCode, run.Signal, run.HTTPStatus = task.ParseLedgerReason(reason)
		parts[i] = fmt.Sprintf("%s ×%s", RunResult(run, time.Time{}), Grouped(int(causes[name])))
	}

	return strings.Join(parts, ", ")
}

// LedgerState returns the state by which a line is marked: failed if any of its runs did not succeed, and "" if it is not
// known how they ended.
func LedgerState(l task.LedgerLine) task.State {
	switch l.Kind {
	case task.LedgerSucceeded:
		return task.Succeeded
	case task.LedgerException, task.LedgerRequested:
		return l.State
	case task.LedgerUnreadable:
		return ""
	}

	for cause := range l.Causes {
		if cause != string(task.Succeeded) {
			return task.Failed
		}
	}

	return task.Succeeded
}

// LedgerSettingText describes the setting of the cluster for how long ledgers remember ticks.
func LedgerSettingText(d task.Duration) string {
	if d == 0 {
		return "off, unless history.ledger of a task says otherwise"
	}

	return fmt.Sprintf("remember ticks for %s, unless history.ledger of a task says otherwise", d.Approximate())
}
