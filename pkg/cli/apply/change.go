package apply

import (
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
)

// firstTicks is how many ticks of a new task are printed; all of its ticks are new.
const firstTicks = 3

// ChangeText returns the result of a dry run as text. timezone is the task's time zone after the change.
func ChangeText(f *factory.Factory, c *client.Change, timezone string) []string {
	var lines []string
	before := timezone
	for _, change := range c.Fields {
		lines = append(lines, view.FieldChange(f, change)...)
		if was, ok := change.From.(string); ok && change.Field == "timezone" {
			before = was
		}
	}

	if c.Ticks != nil {
		lines = append(lines, tickLines(f, c, before, timezone)...)
	}

	return lines
}

// tickLines returns one line for each tick that is added, removed or moved.
func tickLines(f *factory.Factory, c *client.Change, before, after string) []string {
	t := c.Ticks
	until := f.DateTime(t.Until, after)

	switch {
	case t.Come+t.Go+t.Move > 0:
	case c.Result == client.Created:
		return []string{"  no ticks up to " + until}
	default:
		return []string{"  ticks: unchanged up to " + until}
	}

	var counts []string
	for _, part := range []struct {
		n    int
		what string
	}{{t.Come, "added"}, {t.Go, "removed"}, {t.Move, "moved"}} {
		if part.n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}

	lines := []string{fmt.Sprintf("  ticks up to %s: %s", until, strings.Join(counts, ", "))}
	list := t.Ticks
	if c.Result == client.Created {
		list = list[:min(len(list), firstTicks)]
	}

	for _, m := range list {
		switch {
		case m.Was == nil:
			lines = append(lines, f.Paint(output.Green, "  + "+tickTimeWords(f, m.Is, after)))
		case m.Is == nil:
			lines = append(lines, f.Paint(output.Red, "  - "+tickTimeWords(f, m.Was, before)))
		default:
			lines = append(lines, f.Paint(output.Yellow, "  ~ "+tickTimeWords(f, m.Was, before)+" → "+tickTimeWords(f, m.Is, after)))
		}
	}

	if more := t.Come + t.Go + t.Move - len(list); more > 0 {
		lines = append(lines, fmt.Sprintf("  … and %d more", more))
	}

	return lines
}

// tickTimeWords returns the text about the time of a tick.
func tickTimeWords(f *factory.Factory, t *client.TickTime, timezone string) string {
	words := f.DateTime(t.Time, timezone)

	switch {
	case !t.DueAt.IsZero():
		words += ", due " + output.ClockTime(t.DueAt.In(f.Zone(timezone)))
	case !t.DueBefore.IsZero():
		words += ", due before " + output.ClockTime(t.DueBefore.In(f.Zone(timezone)))
	}

	return words
}
