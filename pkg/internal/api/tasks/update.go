package tasks

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// edit describes a change of a task as a function of its current state, so that it can be applied again after a
// conflict.
type edit struct {
	// spec computes the new spec, which must be valid. stored is the spec as the user wrote it. shown also has
	// the pause in force, which the owner may have set.
	spec func(stored, shown task.Spec) (task.Spec, error)
	// resume ends a pause even if only the entry contains it.
	resume bool
	// is states what made the new version: one of the task.Change constants, or "" to derive it from the
	// difference.
	is string
}

// replaceSpec returns the edit that replaces the spec.
func replaceSpec(spec task.Spec) edit {
	return edit{spec: func(_, _ task.Spec) (task.Spec, error) { return spec, nil }}
}

// changeTask applies ed to the stored task and writes the result if it differs. If the task changes between the
// read and the write, ed is applied to the new state; with If-Match, changeTask returns task.ErrStale instead. A
// dry run sets c.change and writes nothing.
func (h *Handlers) changeTask(c *taskWrite, ref record.Ref, ed edit) (st store.Stored, result string, err error) {
	var races tickRaces
	err = httpapi.RetryConflict(c.Context(), func() error {
		old, err := h.Store.Task(c.Context(), ref)
		broken := entryBroken(old, err) // the write replaces an entry that cannot be read (G19)
		if err != nil && !broken {
			return err
		}
		if err := c.CheckIfMatch(ref, old.Task.Revision); err != nil {
			return err
		}

		spec, err := ed.spec(views.Settled(old.Task.Spec, h.Now()), views.ShownAs(old.Task.Spec, &old.Entry, h.Now()))
		if err != nil {
			return err
		}

		// An entry that is missing or unreadable is rewritten, even if the spec is unchanged.
		mend := broken || old.EntryMod == 0
		if !mend && h.nothingNew(old, spec, ed.resume) {
			st, result = old, client.Unchanged
			c.change = h.wouldChange(&old, st, result, c.ticks)
			return nil
		}

		if err := h.authorizeUpdate(c.Rights(), old, spec, ed.resume); err != nil {
			return err
		}

		st, err = h.nextStored(c.Call, old, spec, ed, mend, &races)
		if err != nil {
			return err
		}

		if err := h.checkLinks(c.Context(), &st, nil); err != nil {
			return err
		}

		describeTask(c.Rights(), st)

		if c.dry {
			st, result = asUpdatedTask(old, st), client.Configured
			c.change = h.wouldChange(&old, st, result, c.ticks)
			return nil
		}

		// The write compares the mod revisions of spec and entry in old, and that the watermark is not past
		// MarkBy, and the links.
		old.MarkBy, old.Links = st.MarkBy, st.Links
		rev, err := h.Store.As(c.Rights()).UpdateTask(c.Context(), old, st.Task, st.Entry)
		st.Task.Revision, st.EntryMod, result = rev, rev, client.Configured

		return httpapi.About(ref.String(), err)
	})

	return st, result, err
}

// nothingNew reports whether a write of spec would change nothing. The spec may equal the stored one, or the
// one that is shown, which includes a pause that the owner has set.
func (h *Handlers) nothingNew(old store.Stored, spec task.Spec, resume bool) bool {
	now := h.Now()
	if _, paused := views.PauseInForce(&old.Entry, now); paused && resume {
		return false
	}

	spec = views.Settled(spec, now)
	return sameSpec(spec, views.Settled(old.Task.Spec, now)) || sameSpec(spec, views.ShownAs(old.Task.Spec, &old.Entry, now))
}

// entryBroken reports whether err means that the entry of a task cannot be read although its spec can.
func entryBroken(st store.Stored, err error) bool {
	return errors.Is(err, task.ErrInvalid) && st.EntryMod != 0
}

// nextStored returns the task and the entry that replace old. If the schedule changes, the new schedule begins now,
// and no tick up to now remains to be decided. If it does not, From and Anchor stay as they are; otherwise
// ticks would be lost (G4) or decided twice (G3). The write must fail if the watermark is past the MarkBy of the result.
func (h *Handlers) nextStored(c *httpapi.Call, old store.Stored, spec task.Spec, ed edit, mend bool, races *tickRaces) (store.Stored, error) {
	now, err := h.stampEdit(c, old, spec, races)
	if err != nil {
		return store.Stored{}, err
	}

	spec = views.Settled(spec, now.Time)
	t := old.Task
	t.Spec, t.Generation, t.UpdatedAt, t.UpdatedBy = spec, old.Task.Generation+1, now, c.Actor()
	t.Change = cmp.Or(ed.is, changeOf(old.Task.Spec, spec))
	from, anchor := old.Entry.From, old.Entry.Anchor
	anew := mend || !task.SameTicks(old.Task.Spec, spec)
	if anew {
		anchor = now
	}

	e, err := entryOf(t, from, anchor)
	if err != nil {
		return store.Stored{}, err
	}

	e.NamespaceRev = allowedBy(c.Rights(), &spec)

	// A task whose limit of runs was used up had no ticks. If it may run again, the ticks in between must not
	// run late.
	since := pauseChange{now: now, who: c.Actor(), resume: ed.resume}.pauseAfter(old, spec, &e)
	if anew || usedUp(&old.Entry, old.Task.MaxRuns) && !usedUp(&old.Entry, spec.MaxRuns) {
		since = now
	}

	// since is a time of this node's clock that goes into the entry.
	if !since.IsZero() {
		if err := h.trustClock(); err != nil {
			return store.Stored{}, err
		}
	}

	if e.From.Before(since.Time) {
		e.From = since
	}

	st := store.Stored{Ref: old.Ref, Task: t, Entry: e}
	if mend {
		old.Entry.Links = nil // with a new entry, all links are written again
	}
	h.setLinks(&old, &st)
	if changesTicks(old, spec, e) {
		st.MarkBy = races.markBy(old, e, now)
	}

	return st, nil
}

// usedUp reports whether a task has used all its runs (max_runs). Such a task has no ticks, and ticks during
// that time never run later.
func usedUp(e *task.Entry, maxRuns int64) bool {
	return maxRuns > 0 && e.Own != nil && e.Own.Runs >= maxRuns
}

// changeOf returns the kind of change between two specs: an update, or only a pause or a resume.
func changeOf(old, spec task.Spec) string {
	switch {
	case !sameSpec(views.Unpaused(old), views.Unpaused(spec)) || sameSpec(old, spec):
		return task.ChangeUpdated
	case spec.Paused:
		return task.ChangePaused
	}

	return task.ChangeResumed
}

// applyTask serves PUT: it creates or updates a task.
func (h *Handlers) applyTask(request *httpapi.Call, q dryRunQuery) (httpapi.Answer, error) {
	c := newTaskWrite(request, q)
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	spec, err := h.readSpec(request, ref.Namespace, ref.Name)
	if err != nil {
		return httpapi.Answer{}, err
	}

	st, result, err := h.applySpec(c, ref, spec)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return h.answerTask(c, http.StatusOK, st, result)
}

// applySpec makes a task match spec, whether the task exists or not. If the task appears or disappears between the
// two attempts, applySpec starts again.
func (h *Handlers) applySpec(c *taskWrite, ref record.Ref, spec task.Spec) (st store.Stored, result string, err error) {
	err = httpapi.RetryConflict(c.Context(), func() error {
		if !c.IfNoneMatch {
			st, result, err = h.changeTask(c, ref, replaceSpec(spec))
			if !errors.Is(err, task.ErrNotFound) {
				return err
			}
			if c.IfMatch != 0 {
				return fmt.Errorf("task %s does not exist: %w, %d", ref, task.ErrStale, c.IfMatch)
			}
		}

		st, err = h.writeNewTask(c, spec)
		result = client.Created
		if errors.Is(err, task.ErrExists) && !c.IfNoneMatch {
			return fmt.Errorf("%w: another request created it at the same time", task.ErrConflict)
		}

		return err
	})

	return st, result, err
}

// patchTask serves PATCH. A patch that sets paused to false or null also ends a pause that only the entry
// contains.
func (h *Handlers) patchTask(request *httpapi.Call, q dryRunQuery) (httpapi.Answer, error) {
	c := newTaskWrite(request, q)
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	patch, err := readPatch(request, ref)
	if err != nil {
		return httpapi.Answer{}, err
	}

	ed := edit{spec: func(old, _ task.Spec) (task.Spec, error) { return h.applyPatch(old, patch) }}
	if paused, said := patch["paused"]; said {
		ed.resume = paused != true
	}

	return h.editAndAnswer(c, ed)
}

// readPatch decodes the body as a merge patch of a spec. It rejects keys that a spec does not have.
func readPatch(c *httpapi.Call, ref record.Ref) (map[string]any, error) {
	if err := task.DecodeStrict(c.Body, &task.Spec{}); err != nil {
		return nil, err
	}

	patch, err := manifest.DecodePatch(c.Body)
	if err != nil {
		return nil, task.Invalid(task.CodeBadJSON, "", "%s", err)
	}
	if patch == nil {
		return nil, task.Invalid(task.CodeBadValue, "", "a patch must be a JSON object")
	}
	if _, _, err := bodyIdentity(c, ref.Namespace, ref.Name); err != nil {
		return nil, err
	}

	delete(patch, "name") // both are equal to the path's and cannot change
	delete(patch, "namespace")

	return patch, nil
}

// applyPatch merges a patch into a spec and validates the result.
func (h *Handlers) applyPatch(old task.Spec, patch map[string]any) (task.Spec, error) {
	spec, err := manifest.ApplyPatch(old, patch)
	if err != nil {
		return old, err
	}

	return spec, h.checkSpec(&spec)
}
