package view

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// zoneOf returns the time zone for a run.
func (z Zones) zoneOf(r task.Run) string {
	if zone, ok := z[""]; ok {
		return zone
	}
	return z[r.Namespace+"/"+r.Task]
}

// barLength is the width of a progress bar in characters.
const barLength = 20

// RunDuration returns how long an attempt ran, or has been running. It is negative if the attempt has not
// started.
func RunDuration(r task.Run, now time.Time) time.Duration { return wording.RunDuration(r, now) }

// Zones contains the time zones of tasks by "namespace/name". "" is the zone for all tasks.
type Zones map[string]string

// ZonesOf returns the zones for a list of runs of several tasks. With --time task, it reads all tasks to get
// the zone of each; otherwise it returns the user's zone.
func ZonesOf(f *factory.Factory, cmd *cobra.Command, c *client.Client, namespace string) (Zones, error) {
	if !f.ForPeople() || f.TimeMode != output.TimeTask {
		return Zones{"": output.ReaderZone}, nil
	}

	z := Zones{}
	for t, err := range c.Tasks.All(cmd.Context(), client.TaskListOptions{Namespace: namespace}) {
		if err != nil {
			return nil, err
		}
		z[t.Namespace+"/"+t.Name] = t.Timezone
	}

	return z, nil
}

// messageColumn is the header of the last column of wide tables of runs.
const messageColumn = "MESSAGE"

// RunTable returns a table of runs. many adds the names of the tasks, wide adds columns.
func RunTable(f *factory.Factory, runs []task.Run, many, wide bool, z Zones) *output.Table {
	g := &output.Table{}
	if f.AllNamespaces && many {
		g.Headers = append(g.Headers, "NAMESPACE")
	}

	if many {
		g.Headers = append(g.Headers, "TASK")
	}

	g.Headers = append(g.Headers, "RUN", "TICK", "RESULT", "NODE", "LATE", "TOOK")
	if wide {
		g.Headers = append(g.Headers, "PROGRESS", "TRIGGER", "ATTEMPT", "OWNER", "SHARD", "TOKEN", messageColumn)
	}

	for _, r := range runs {
		var row []string
		if f.AllNamespaces && many {
			row = append(row, r.Namespace)
		}

		if many {
			row = append(row, r.Task)
		}

		row = append(row, r.ID, tickText(f, r, z.zoneOf(r)), RunResult(f, r), cmp.Or(output.OneLine(r.Node), f.NoValue()), Lateness(f, r), TookText(f, r))
		if wide {
			row = append(row, ProgressText(f, r), r.Trigger, fmt.Sprint(r.Attempt), cmp.Or(r.Owner, f.NoValue()), fmt.Sprint(r.Shard), fmt.Sprint(r.Token), output.OneLine(r.Message))
		}

		g.AddRow(row...)
	}

	return g
}

// tickText formats the tick of a run, and states whether the run was triggered manually.
func tickText(f *factory.Factory, r task.Run, timezone string) string {
	words := tickTime(f, r.ScheduledTime, timezone)

	if r.Trigger == task.TriggerManual {
		return words + " (manual)"
	}

	if r.Count > 1 && !r.Last.IsZero() {
		words += f.Plain(" … ") + tickTime(f, r.Last, timezone)
	}

	return words
}

// tickTime is like FutureTime, for the past: only for the last few days is the weekday sufficient.
func tickTime(f *factory.Factory, t task.Time, timezone string) string {
	if d := f.Now().Sub(t.Time); f.TimeMode == output.TimeRelative && d >= 0 && d < 6*24*time.Hour {
		local := t.In(f.Zone(timezone))
		return local.Format("Mon ") + output.ClockTime(local)
	}
	return f.FutureTime(t, timezone)
}

// Lateness formats how long after its due time a run started.
func Lateness(f *factory.Factory, r task.Run) string {
	if r.LatenessMS == nil {
		return f.NoValue()
	}
	return task.Duration(time.Duration(*r.LatenessMS) * time.Millisecond).Approximate()
}

// TookText formats how long a run took, or has taken so far.
func TookText(f *factory.Factory, r task.Run) string {
	if d := RunDuration(r, f.Now()); d >= 0 {
		return task.Duration(d).Approximate()
	}
	return f.NoValue()
}

// RunResult describes the state of a run in a few words, with its symbol.
func RunResult(f *factory.Factory, r task.Run) string {
	return f.StateText(r.State, PlainRunResult(f, r))
}

// PlainRunResult is like RunResult, without the symbol.
func PlainRunResult(f *factory.Factory, r task.Run) string {
	return f.Plain(wording.RunResult(r, f.Now()))
}

// EndText describes how long an ended run took, and where it ran.
func EndText(f *factory.Factory, r task.Run) string {
	var words string
	if d := RunDuration(r, f.Now()); d >= 0 {
		words = " after " + task.Duration(d).Approximate()
	}

	if r.Node != "" {
		words += " on " + r.Node
	}

	return f.Plain("·") + " " + selection.Name(f, r.Namespace, r.Task) + words
}

// percentWords formats a percentage, such as "40%" or "33.3%".
func percentWords(p *task.Progress) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", min(max(*p.Percent, 0), 100)), ".0") + "%"
}

// ProgressText describes the progress of a run in a few words.
func ProgressText(f *factory.Factory, r task.Run) string {
	switch p := r.Progress; {
	case p == nil || p.Percent == nil && p.Silent == "":
		return f.NoValue()
	case p.Silent != "":
		return "unknown"
	case p.Text == "":
		return percentWords(p)
	default:
		return percentWords(p) + " " + output.OneLine(p.Text)
	}
}

// ProgressBar returns the progress of a run with a bar, or "" if it has not reported any.
func ProgressBar(f *factory.Factory, r task.Run) string {
	p := r.Progress
	switch {
	case p == nil || p.Percent == nil && p.Silent == "":
		return ""
	case p.Silent != "":
		return "unknown: " + output.OneLine(p.Silent)
	}

	full, empty := "█", "░"
	if f.ASCII {
		full, empty = "#", "."
	}

	n := int(min(max(*p.Percent, 0), 100) / 100 * barLength)
	words := f.Paint(output.Cyan, strings.Repeat(full, n)+strings.Repeat(empty, barLength-n)) + " " + ProgressText(f, r)
	if old := f.Now().Sub(p.At.Time); old > time.Minute {
		words += " (said " + task.Duration(old).Approximate() + " ago)"
	}

	return words
}
