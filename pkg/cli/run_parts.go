package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
func (a *app) describeParts(d *details, r task.Run, at func(task.Time) string) {
	f := r.Fan
	if f == nil {
		return
	}
	need := fmt.Sprintf("%d succeeded, %d have to", f.Succeeded+f.Kept, f.Need)
	if f.Kept > 0 {
		need += fmt.Sprintf(", %d had before", f.Kept)
	}
	d.field("Parts", "%d: %d ended, %s", f.Count, f.Ended, need)
	if f.Cancel != "" && !r.State.Final() {
		d.field("Ending", "%s", strings.ReplaceAll(f.Cancel, "_", " "))
	}
	if len(f.Parts) == 0 {
		return
	}
	g := &grid{heads: []string{"PART", "RESULT", "NODE", "STARTED", "TOOK", "MESSAGE"}}
	for _, p := range f.Parts {
		part := r.OfPart(p)
		g.add(fmt.Sprintf("%d", p.Index), a.result(part), first(p.Node, a.none()), first(at(p.StartedAt), a.none()), a.tookWords(part), cut(oneLine(p.Message), 80))
	}
	d.section("Parts", a.bare(g))
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

// inOnePiece refuses to follow what has parts.
func (a *app) inOnePiece(ctx context.Context, c *client.Client, n logWords) error {
	for _, r := range n.runs {
		if r.Fan != nil {
			return usage("%s has %d parts: follow one of them, such as %s; without -f all are printed", r.ID, r.Fan.Count, task.PartID(r.ID, r.Fan.Numbers()[0]))
		}
	}
	for _, r := range n.tasks {
		t, err := c.Get(ctx, r.namespace, r.name)
		switch {
		case errors.Is(err, task.ErrNotFound):
		case err != nil:
			return err
		case t.Target.FansOut():
			return usage("runs of %s have parts: follow one of them, such as RUN-p0000; without -f all are printed", a.show(r))
		}
	}
	return nil
}
