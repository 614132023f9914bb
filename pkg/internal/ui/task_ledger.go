package ui

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// ledgerList is the part of the list of runs that comes from the ledger of the task: what became of ticks whose records are
// no longer kept.
type ledgerList struct {
	Rows      []ledgerRow
	Older     string        // the end of the lines that follow on the next page; "" if there are none
	Complete  task.Time     // each tick since then is in the history or in the ledger; zero if that is not known
	Remembers task.Duration // for how long the ledger remembers ticks
	Limited   bool          // because etcd is filling up
	Broken    int           // records of the ledger that cannot be read
}

// ledgerRow is a line of a ledger as the page shows it.
type ledgerRow struct {
	task.LedgerLine
	Look  string // whose looks it has
	Words string
	Note  string
}

// Single reports whether the line is about one tick, so that "why" can explain it.
func (r ledgerRow) Single() bool { return r.Kind == task.LedgerException && r.Count == 1 }

// Requested reports whether the line is about runs that somebody requested.
func (r ledgerRow) Requested() bool {
	return r.Kind == task.LedgerRequested || r.Kind == task.LedgerRequestedMore
}

// Hour reports whether the line is about an hour.
func (r ledgerRow) Hour() bool { return r.Kind == task.LedgerHour }

// NamesAll reports whether a line about an hour names all of its ticks.
func (r ledgerRow) NamesAll() bool { return int64(len(r.Named)) == r.Count }

// Spans reports whether the line is about successful ticks.
func (r ledgerRow) Spans() bool { return r.Kind == task.LedgerSucceeded }

// ledgerPage is what the parameter for the page of a list begins with when the page begins in the ledger.
const ledgerPage = "ledger-"

// loadLedgerList reads the lines of a page that begins before until; zero means the newest.
func loadLedgerList(ctx context.Context, r *Request, ns, name string, states []task.State, until time.Time) (*ledgerList, error) {
	read, err := r.API.Tasks.Ledger(ctx, ns, name, client.LedgerOptions{States: states})
	if err != nil {
		return nil, err
	}

	p := &ledgerList{Complete: read.CompleteSince, Remembers: read.Remembers, Limited: read.Limit != nil, Broken: read.Broken}
	lines := read.Lines // the latest end first, so that a span of successes comes before the ticks within it that failed
	if !until.IsZero() {
		lines = slices.DeleteFunc(lines, func(l task.LedgerLine) bool { return !l.Last.Before(until) })
	}

	// Lines with the same end stay on one page, because the next page begins before that end.
	n := min(len(lines), runsPerPage)
	for n < len(lines) && lines[n].Last.Equal(lines[n-1].Last.Time) {
		n++
	}
	if n < len(lines) {
		p.Older = ledgerPage + lines[n-1].Last.UTC().Format(time.RFC3339Nano)
	}

	for _, l := range lines[:n] {
		p.Rows = append(p.Rows, ledgerRowOf(l))
	}

	return p, nil
}

// ledgerRowOf returns a line as the page shows it. What counts together has its causes below.
func ledgerRowOf(l task.LedgerLine) ledgerRow {
	row := ledgerRow{LedgerLine: l, Look: cmp.Or(string(wording.LedgerState(l)), "unreadable"), Words: wording.LedgerText(l)}

	if l.Kind == task.LedgerHour || l.Kind == task.LedgerRequestedMore {
		row.Words, row.Note, _ = strings.Cut(row.Words, ": ")
	}

	return row
}

// stateOfCause returns the state in a cause: "failed: exit 1" or "timed_out".
func stateOfCause(cause string) task.State {
	state, _, _ := strings.Cut(cause, ":")
	return task.State(state)
}
