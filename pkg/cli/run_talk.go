package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// progressEvery is how often the progress of a run that is waited for is asked for,
	// and progressMost of how many runs.
	progressEvery = 2 * time.Second
	progressMost  = 20
	barLength     = 20
)

// percentWords are "40%" or "33.3%".
func percentWords(p *task.Progress) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", min(max(*p.Percent, 0), 100)), ".0") + "%"
}

// progressCell is a run's progress in a few words.
func (a *app) progressCell(r task.Run) string {
	switch p := r.Progress; {
	case p == nil || p.Percent == nil && p.Silent == "":
		return a.NoValue()
	case p.Silent != "":
		return "unknown"
	case p.Text == "":
		return percentWords(p)
	default:
		return percentWords(p) + " " + output.OneLine(p.Text)
	}
}

// progressLine is a run's progress with a bar; "" if there is none.
func (a *app) progressLine(r task.Run) string {
	p := r.Progress
	switch {
	case p == nil || p.Percent == nil && p.Silent == "":
		return ""
	case p.Silent != "":
		return "unknown: " + output.OneLine(p.Silent)
	}
	full, empty := "█", "░"
	if a.ASCII {
		full, empty = "#", "."
	}
	n := int(min(max(*p.Percent, 0), 100) / 100 * barLength)
	words := a.Paint(output.Cyan, strings.Repeat(full, n)+strings.Repeat(empty, barLength-n)) + " " + a.progressCell(r)
	if old := a.Now().Sub(p.At.Time); old > time.Minute {
		words += " (said " + output.Duration(old) + " ago)"
	}
	return words
}

// describeTalk shows what a run has said of itself.
func (a *app) describeTalk(d *output.Details, r task.Run) {
	if len(r.Results) > 0 {
		g := &output.Table{Headers: []string{"NAME", "VALUE"}}
		for _, name := range slices.Sorted(maps.Keys(r.Results)) {
			g.AddRow(output.OneLine(name), output.Truncate(output.OneLine(r.Results[name]), 200))
		}
		d.Section("Results", a.bare(g))
	}
}

// tellProgress tells how far runs are that are waited for, until ctx ends: a line when
// that has changed.
func (a *app) tellProgress(ctx context.Context, c *client.Client, m *merger, runs []task.Run) {
	if !a.ForPeople() || a.Quiet || len(runs) > progressMost {
		return
	}
	told := make([]string, len(runs))
	over := make([]bool, len(runs))
	for pause(ctx, progressEvery) == nil {
		for i, r := range runs {
			if over[i] {
				continue
			}
			now, err := c.Run(ctx, r.Namespace, r.Task, r.ID)
			if err != nil {
				continue // who follows its output tells
			}
			over[i] = now.State.Final()
			if now.Progress == nil || now.Progress.Percent == nil {
				continue
			}
			if words := a.progressCell(now); words != told[i] {
				told[i] = words
				m.tell("%s: %s", a.named(r.Namespace, r.Task), a.progressLine(now))
			}
		}
	}
}
