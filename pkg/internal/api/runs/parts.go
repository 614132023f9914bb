package runs

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// inFull adds the current state of each part to a running run with parts. The record of an ended run already
// contains it.
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
		p := task.Part{Index: i, State: task.Dispatched} // the default for a part whose record is moving from one place to another
		if part, ok := known[i]; ok {
			p = part.AsPart()
			if p.State == task.Queued {
				p.Node = part.LastNode()
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

// runOfPart returns a part of a run by its id. The record of an ended part may be gone, because the record of
// its run then contains its result.
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

// addParts adds the parts of ended runs to a list, if the filter includes parts. Only the records of their runs
// contain them.
func (f runFilter) addParts(runs []task.Run) []task.Run {
	if !f.parts {
		return runs
	}

	for _, r := range runs { // range evaluates runs once, so it does not visit the parts that are appended
		if r.Fan != nil {
			for _, p := range r.Fan.Parts {
				runs = append(runs, r.OfPart(p))
			}
		}
	}

	return runs
}

// withoutParts removes the parts of runs from a list, unless the prefix id is longer than the id of their run
// and so can only mean a part.
func withoutParts(runs []task.Run, id string) []task.Run {
	return slices.DeleteFunc(runs, func(r task.Run) bool {
		parent, _, is := task.ParentOf(r.ID)
		return is && !(strings.HasPrefix(r.ID, id) && len(id) > len(parent))
	})
}
