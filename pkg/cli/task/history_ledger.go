package task

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// historyItem is an item of the history of a task: a run, or a line of the ledger.
type historyItem struct {
	run  *task.Run
	line *task.LedgerLine
}

// MarshalJSON writes the run or the line. Only lines have a field kind.
func (i historyItem) MarshalJSON() ([]byte, error) {
	if i.run != nil {
		return json.Marshal(i.run)
	}

	return json.Marshal(i.line)
}

// historyItems returns runs and lines as one list.
func historyItems(runs []task.Run, lines []task.LedgerLine) []historyItem {
	var list []historyItem
	for i := range runs {
		list = append(list, historyItem{run: &runs[i]})
	}

	for i := range lines {
		list = append(list, historyItem{line: &lines[i]})
	}

	return list
}

// fewLines is how many lines of a ledger a terminal shows unless --limit asks for more.
const fewLines = 30

// readLedger reads the lines of the ledger that follow the runs of a list.
func readLedger(ctx context.Context, c *client.Client, r selection.Ref, filter client.RunListOptions, runs int) (client.TaskLedger, error) {
	o := client.LedgerOptions{Since: filter.Since, Until: filter.Until, States: filter.States}
	if filter.Limit > 0 {
		// With as many runs as the limit allows, one line tells nevertheless how many there are.
		o.Limit = max(filter.Limit-runs, 1)
	}

	l, err := c.Tasks.Ledger(ctx, r.Namespace, r.Name, o)
	if filter.Limit > 0 && runs >= filter.Limit {
		l.More, l.Lines = l.More+len(l.Lines), nil
	}

	return l, err
}

// shorten removes the lines that a terminal does not show without --limit.
func shorten(l client.TaskLedger) client.TaskLedger {
	if n := len(l.Lines); n > fewLines {
		l.More += n - fewLines
		l.Lines = slices.Clone(l.Lines[:fewLines])
	}

	return l
}

// noteLedger tells people what the lines of the ledger are, and what is missing.
func noteLedger(f *factory.Factory, r selection.Ref, l client.TaskLedger) {
	if !f.ForPeople() {
		return
	}

	if n := len(l.Lines); n > 0 {
		words := "the last line is from the ledger"
		if n > 1 {
			words = fmt.Sprintf("the last %d lines are from the ledger", n)
		}

		switch {
		case !l.CompleteSince.IsZero():
			words += ", which is complete since " + f.DateTime(l.CompleteSince, output.ReaderZone)
		case l.Broken == 0:
			words += ", which is not complete: records are deleted without being counted"
		}
		f.Note("%s", words)
	}

	if l.Broken > 0 {
		f.Note("%s of the ledger cannot be read, so it is not complete", output.Plural(int64(l.Broken), "record"))
	}

	if l.More > 0 {
		f.Note("%s: carillon task history %s --limit 0", output.Plural(int64(l.More), "older line"), selection.Show(f, r))
	}
}
