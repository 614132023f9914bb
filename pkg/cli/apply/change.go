package apply

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
)

const (
	// shortValue is the maximum length of two values on one line.
	shortValue = 100
	// firstTicks is how many ticks of a new task are printed; all of its ticks are new.
	firstTicks = 3
)

// ChangeText returns the result of a dry run as text. timezone is the task's time zone after the change.
func ChangeText(f *factory.Factory, c *client.Change, timezone string) []string {
	var lines []string
	before := timezone
	for _, change := range c.Fields {
		lines = append(lines, fieldLines(f, change)...)
		if was, ok := change.From.(string); ok && change.Field == "timezone" {
			before = was
		}
	}

	if c.Ticks != nil {
		lines = append(lines, tickLines(f, c, before, timezone)...)
	}

	return lines
}

// fieldLines returns the text about a changed field. Short values are on one line. For long values, it returns
// the lines of both, without common lines at the beginning and the end.
func fieldLines(f *factory.Factory, change client.FieldChange) []string {
	from, to := valueLines(change.From), valueLines(change.To)
	if len(from) <= 1 && len(to) <= 1 {
		if line := "  " + change.Field + ": " + cmp.Or(slices.Concat(from, []string{"none"})...) + " → " + cmp.Or(slices.Concat(to, []string{"none"})...); len(line) <= shortValue {
			return []string{line}
		}
	}

	for len(from) > 1 && len(to) > 1 && from[0] == to[0] {
		from, to = from[1:], to[1:]
	}

	for len(from) > 1 && len(to) > 1 && from[len(from)-1] == to[len(to)-1] {
		from, to = from[:len(from)-1], to[:len(to)-1]
	}

	lines := []string{"  " + change.Field + ":"}
	for _, l := range from {
		lines = append(lines, f.Paint(output.Red, "  - "+l))
	}

	for _, l := range to {
		lines = append(lines, f.Paint(output.Green, "  + "+l))
	}

	return lines
}

// valueLines returns a value in lines: a string unchanged, any other value as JSON. It returns nil for nil.
func valueLines(v any) []string {
	if v == nil {
		return nil
	}

	text, ok := v.(string)
	if !ok || text == "" {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(v) // cannot fail: the value was decoded from JSON
		text = b.String()
	}

	return strings.Split(output.Sanitize(strings.TrimSuffix(text, "\n")), "\n")
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
