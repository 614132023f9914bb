package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/output"
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

// partWords is how the parts of a run stand, in a few words.
func partWords(r task.Run) string {
	f := r.Fan
	if !r.State.Final() {
		return f.String()
	}
	return fmt.Sprintf("%d of %d parts", f.Succeeded+f.Kept, f.Count)
}

// describeParts adds a table of a run's parts.
func (a *app) describeParts(d *output.Details, r task.Run, at func(task.Time) string) {
	f := r.Fan
	if f == nil {
		return
	}
	have := "have"
	if f.Need == 1 {
		have = "has"
	}
	need := fmt.Sprintf("%d succeeded, %d %s to", f.Succeeded+f.Kept, f.Need, have)
	if f.Kept > 0 {
		need += fmt.Sprintf(", %d had before", f.Kept)
	}
	d.Field("Parts", "%d: %d ended, %s", f.Count, f.Ended, need)
	if f.Cancel != "" && !r.State.Final() {
		d.Field("Ending", "%s", strings.ReplaceAll(f.Cancel, "_", " "))
	}
	if len(f.Parts) == 0 {
		return
	}
	g := &output.Table{Headers: []string{"PART", "RESULT", "NODE", "STARTED", "TOOK", "MESSAGE"}}
	for _, p := range f.Parts {
		part := r.OfPart(p)
		g.AddRow(fmt.Sprintf("%d", p.Index), a.result(part), cmp.Or(p.Node, a.NoValue()), cmp.Or(at(p.StartedAt), a.NoValue()), a.tookWords(part), output.Truncate(output.OneLine(p.Message), 80))
	}
	d.Section("Parts", a.bare(g))
}

// withParts has the parts of runs in the place of those that have some: only they
// write anything.
func (a *app) withParts(ctx context.Context, c *client.Client, runs []task.Run) (list []task.Run, any bool, err error) {
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
	parts, _, err := t.m.withParts(ctx, t.c, []task.Run{t.run})
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
