package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// inFull is a run with how each of its parts stands: lists leave that out.
func inFull(ctx context.Context, c *client.Client, r task.Run) (task.Run, error) {
	if r.Fan == nil || r.Fan.Parts != nil {
		return r, nil
	}
	return c.Run(ctx, r.Namespace, r.Task, r.ID)
}

// describeParts adds a table of a run's parts.
func describeParts(f *factory.Factory, d *output.Details, r task.Run, at func(task.Time) string) {
	fan := r.Fan
	if fan == nil {
		return
	}
	have := "have"
	if fan.Need == 1 {
		have = "has"
	}
	need := fmt.Sprintf("%d succeeded, %d %s to", fan.Succeeded+fan.Kept, fan.Need, have)
	if fan.Kept > 0 {
		need += fmt.Sprintf(", %d had before", fan.Kept)
	}
	d.Field("Parts", "%d: %d ended, %s", fan.Count, fan.Ended, need)
	if fan.Cancel != "" && !r.State.Final() {
		d.Field("Ending", "%s", strings.ReplaceAll(fan.Cancel, "_", " "))
	}
	if len(fan.Parts) == 0 {
		return
	}
	g := &output.Table{Headers: []string{"PART", "RESULT", "NODE", "STARTED", "TOOK", "MESSAGE"}}
	for _, p := range fan.Parts {
		part := r.OfPart(p)
		g.AddRow(fmt.Sprintf("%d", p.Index), view.RunResult(f, part), cmp.Or(p.Node, f.NoValue()), cmp.Or(at(p.StartedAt), f.NoValue()), view.TookText(f, part), output.Truncate(output.OneLine(p.Message), 80))
	}
	d.Section("Parts", f.RenderIndented(g))
}

// withParts has the parts of runs in the place of those that have some: only they
// write anything.
func withParts(ctx context.Context, f *factory.Factory, c *client.Client, runs []task.Run) (list []task.Run, any bool, err error) {
	for _, r := range runs {
		if r.Fan == nil {
			list = append(list, r)
			continue
		}
		any = true
		full, err := inFull(ctx, c, r)
		if err != nil {
			return nil, any, err
		}
		for _, p := range full.Fan.Parts {
			if p.Node != "" && p.Attempt > 0 {
				list = append(list, full.OfPart(p))
			}
		}
	}
	return list, any, nil
}

// begun has the parts of a tail's run followed that have begun, each once.
func (t *tail) begun(ctx context.Context) error {
	if t.part == nil || t.run.Fan == nil {
		return nil
	}
	parts, _, err := withParts(ctx, t.m.Factory, t.c, []task.Run{t.run})
	for _, p := range parts {
		if !t.known[p.ID] {
			if t.known == nil {
				t.known = map[string]bool{}
			}
			t.known[p.ID] = true
			t.m.number()
			t.part(p)
		}
	}
	return err
}
