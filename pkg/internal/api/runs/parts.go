package runs

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// inFull is a run with how each of its parts stands, if it has any.
func (h *Handlers) inFull(ctx context.Context, ref record.Ref, r task.Run) (task.Run, error) {
	if r.Fan == nil || r.State != task.Running {
		return r, nil
	}

	known, err := h.Store.PartsOf(ctx, ref, r.ID)
	if err != nil {
		return r, err
	}

	f := *r.Fan
	f.Parts, f.Ended, f.Succeeded = nil, 0, 0
	for _, i := range f.Numbers() {
		p := task.Part{Index: i, State: task.Dispatched} // on its way from one record to another
		if part, ok := known[i]; ok {
			p = part.AsPart()
			if p.State == task.Queued && len(part.Attempts) > 0 {
				p.Node = part.Attempts[len(part.Attempts)-1].Node
			}
		} else if slices.Contains(f.Left, i) {
			p.State, p.Reason = task.Queued, ""
		}

		if p.Node == "" && i < len(f.Nodes) {
			p.Node = f.Nodes[i]
		}

		if p.State.Final() {
			f.Ended++
			if p.State == task.Succeeded {
				f.Succeeded++
			}
		}

		f.Parts = append(f.Parts, p)
	}

	r.Fan = &f

	return r, nil
}

// runOfPart finds a part of a run of a task by its id.
func (h *Handlers) runOfPart(ctx context.Context, ref record.Ref, id string) (task.Run, error) {
	parent, index, _ := task.ParentOf(id)
	known, err := h.Store.PartsOf(ctx, ref, parent)
	if err != nil {
		return task.Run{}, err
	}
	if r, ok := known[index]; ok {
		return r, nil
	}

	run, err := h.Find(ctx, ref, parent)
	if err != nil {
		return task.Run{}, err
	}

	if run.ID == parent && run.Fan != nil {
		for _, p := range run.Fan.Parts {
			if p.Index == index {
				return run.OfPart(p), nil
			}
		}
	}

	return task.Run{}, fmt.Errorf("part %s of task %s: %w", id, ref, task.ErrNotFound)
}

// spread adds the parts of those runs that have ended, if they are asked for: only
// their runs have them on record.
func (f runFilter) spread(runs []task.Run) []task.Run {
	if !f.parts {
		return runs
	}

	for _, r := range runs { // as they are now: what is added has none
		if r.Fan != nil {
			for _, p := range r.Fan.Parts {
				runs = append(runs, r.OfPart(p))
			}
		}
	}

	return runs
}

// withoutParts leaves out the parts of runs, unless the beginning of an id that is
// looked for says that one of them is meant.
func withoutParts(runs []task.Run, id string) []task.Run {
	return slices.DeleteFunc(runs, func(r task.Run) bool {
		parent, _, is := task.ParentOf(r.ID)
		return is && !(strings.HasPrefix(r.ID, id) && len(id) > len(parent))
	})
}
