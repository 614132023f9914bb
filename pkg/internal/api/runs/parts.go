package runs

import (
	"context"
	"errors"
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
		p := partOf(&f, i, known)

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

// partOf returns the state of part i of a run that is under way. known contains the records of parts; it may lack that of
// a part that has not been dispatched, or that is moving from one place to another.
func partOf(f *task.Fan, i int, known map[int]task.Run) task.Part {
	p := task.Part{Index: i, State: task.Dispatched}
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

	return p
}

// runOfPart returns a part of a run by its id. Its cost does not depend on the number of parts that are under way, because
// a client that prints the output of a run reads each of its parts.
func (h *Handlers) runOfPart(ctx context.Context, ref record.Ref, id string) (task.Run, error) {
	r, err := h.Store.RunByID(ctx, ref, id)
	if !errors.Is(err, task.ErrNotFound) {
		return r, err
	}

	// The part has not been dispatched, or its run has ended and contains its result.
	parent, index, _ := task.ParentOf(id)
	run, err := h.Store.RunByID(ctx, ref, parent)
	if err != nil && !errors.Is(err, task.ErrNotFound) {
		return task.Run{}, err
	}

	if err == nil && run.Fan != nil {
		if run.State == task.Running && slices.Contains(run.Fan.Numbers(), index) {
			return run.OfPart(partOf(run.Fan, index, nil)), nil
		}

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
		parent, _, ok := task.ParentOf(r.ID)
		return ok && !(strings.HasPrefix(r.ID, id) && len(id) > len(parent))
	})
}
