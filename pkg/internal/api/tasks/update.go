package tasks

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// edit is a change of a task.
type edit struct {
	// spec says what becomes of a spec, which is given as it is stored and as it is
	// shown, paused if the task is. What comes of it is valid.
	spec func(stored, shown task.Spec) (task.Spec, error)
	// resume ends a pause even if the spec does not know of one.
	resume bool
	// is what made the version: one of the Change words; "" if that follows from
	// what is changed.
	is string
}

// as is the edit after which a task has this spec.
func as(spec task.Spec) edit {
	return edit{spec: func(_, _ task.Spec) (task.Spec, error) { return spec, nil }}
}

// change makes of a task what ed makes of it, if that is anything else.
// If the task changes in between, ed sees what it has become; with If-Match
// that is task.ErrStale.
func (h *Handlers) change(c *taskWrite, ref record.Ref, ed edit) (st store.Stored, result string, err error) {
	err = httpapi.RetryConflict(c.Context(), func() error {
		old, err := h.Store.Task(c.Context(), ref)
		broken := entryBroken(old, err) // the write mends it
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

		mend := broken || old.EntryMod == 0
		if !mend && h.nothingNew(old, spec, ed.resume) {
			st, result = old, client.Unchanged
			c.change = h.would(&old, st, result, c.ticks)
			return nil
		}

		st, err = h.next(c.Call, old, spec, ed, mend)
		if err != nil {
			return err
		}

		if c.dry {
			st, result = over(old, st), client.Configured
			c.change = h.would(&old, st, result, c.ticks)
			return nil
		}

		old.MarkBy = st.MarkBy
		rev, err := h.Store.UpdateTask(c.Context(), old, st.Task, st.Entry)
		st.Task.Revision, st.EntryMod, result = rev, rev, client.Configured

		return httpapi.About(ref.String(), err)
	})

	return st, result, err
}

// nothingNew reports whether a task is what spec says: as it is stored, or as it
// is shown.
func (h *Handlers) nothingNew(old store.Stored, spec task.Spec, resume bool) bool {
	now := h.Now()
	if _, paused := views.PauseInForce(&old.Entry, now); paused && resume {
		return false
	}

	spec = views.Settled(spec, now)
	return same(spec, views.Settled(old.Task.Spec, now)) || same(spec, views.ShownAs(old.Task.Spec, &old.Entry, now))
}

// entryBroken reports whether err says that a task's entry cannot be read, while
// its spec can.
func entryBroken(st store.Stored, err error) bool {
	return errors.Is(err, task.ErrInvalid) && st.EntryMod != 0
}

// next is what old becomes with another spec. Where its ticks begin anew, none
// up to now are left to be decided; else from and anchor stay, or ticks would be
// lost or decided twice.
func (h *Handlers) next(c *httpapi.Call, old store.Stored, spec task.Spec, ed edit, mend bool) (store.Stored, error) {
	now := h.Now.Stamp()
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

	since := pausing{now: now, who: c.Actor(), resume: ed.resume}.over(old, spec, &e)
	if anew || usedUp(&old.Entry, old.Task.MaxRuns) && !usedUp(&old.Entry, spec.MaxRuns) {
		since = now
	}

	if !since.IsZero() {
		if err := h.trustClock(); err != nil {
			return store.Stored{}, err
		}
	}

	st := store.Stored{Ref: old.Ref, Task: t}
	if anew && (old.Entry.Jitter > 0 || e.Jitter > 0) {
		if since, err = h.behindMark(c, old, e, since); err != nil {
			return store.Stored{}, err
		}
		st.MarkBy = since
	}

	if e.From.Before(since.Time) {
		e.From = since
	}

	st.Entry = e

	return st, nil
}

// markMoves is how far a watermark may move between reading it and a write.
const markMoves = 100 * time.Millisecond

// behindMark returns from when e takes the place of the old entry, if one of them has
// jitter. The watermark must not be past that instant when the entry is written, or
// nothing is written (MarkBy). Without jitter it does not matter where the watermark
// is. With it, the same tick is due at another instant than before: a tick that the
// watermark has passed would be due once more, or one that was not due yet would be
// passed.
//
// The store's key revised does not help here: it stops commits that come after the
// edit, and these are commits that came before it.
//
// The watermark may move until the entry is written, so the instant is a little later
// than both now and the watermark. No tick of either schedule is in that time: it
// would belong to neither.
func (h *Handlers) behindMark(c *httpapi.Call, old store.Stored, e task.Entry, since task.Time) (task.Time, error) {
	mark, err := h.Store.Mark(c.Context(), old.Ref.Shard)
	if err != nil {
		return since, err
	}

	if mark.After(since.Time) {
		since = mark
	}

	from := since.Add(markMoves)
	for _, timed := range []task.Entry{old.Entry, e} {
		sched, err := schedule.Parse(timed.Timing(), timed.Anchor.Time)
		if err != nil {
			continue // the old entry could not be read: it has no ticks
		}

		if tick, ok := sched.Next(since.Time); ok && !tick.After(from) {
			from = tick.Add(-time.Millisecond)
		}
	}

	return task.At(from), nil
}

// usedUp reports whether as many ticks became runs as may: then there are none. Those
// that would have come meanwhile never will.
func usedUp(e *task.Entry, maxRuns int64) bool {
	return maxRuns > 0 && e.Own != nil && e.Own.Runs >= maxRuns
}

// changeOf says what kind of a change makes one spec of another.
func changeOf(old, spec task.Spec) string {
	switch {
	case !same(views.Unpaused(old), views.Unpaused(spec)) || same(old, spec):
		return task.ChangeUpdated
	case spec.Paused:
		return task.ChangePaused
	}

	return task.ChangeResumed
}

// applyTask serves PUT.
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

	st, result, err := h.apply(c, ref, spec)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return h.answerTask(c, http.StatusOK, st, result)
}

// apply makes a task what spec says, whether it is there or not.
func (h *Handlers) apply(c *taskWrite, ref record.Ref, spec task.Spec) (st store.Stored, result string, err error) {
	err = httpapi.RetryConflict(c.Context(), func() error {
		if !c.IfNoneMatch {
			st, result, err = h.change(c, ref, as(spec))
			if !errors.Is(err, task.ErrNotFound) {
				return err
			}
			if c.IfMatch != 0 {
				return fmt.Errorf("task %s is not there: %w, %d", ref, task.ErrStale, c.IfMatch)
			}
		}

		st, err = h.create(c, spec)
		result = client.Created
		if errors.Is(err, task.ErrExists) && !c.IfNoneMatch {
			return fmt.Errorf("%w: it was created meanwhile", task.ErrConflict)
		}

		return err
	})

	return st, result, err
}

// patchTask serves PATCH.
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

	return h.edited(c, ed)
}

// readPatch decodes the body as a merge patch of a spec, of which every key must
// be one of a spec's.
func readPatch(c *httpapi.Call, ref record.Ref) (map[string]any, error) {
	if err := task.DecodeStrict(c.Body, &task.Spec{}); err != nil {
		return nil, err
	}

	var patch map[string]any
	if err := task.DecodeStrict(c.Body, &patch); err != nil {
		return nil, err
	}
	if patch == nil {
		return nil, task.Invalid(task.CodeBadValue, "", "a patch is a JSON object")
	}
	if _, _, err := identity(c, ref.Namespace, ref.Name); err != nil {
		return nil, err
	}

	delete(patch, "name") // they are the path's, and stay
	delete(patch, "namespace")

	return patch, nil
}

// applyPatch merges a patch into a spec, and validates what comes out.
func (h *Handlers) applyPatch(old task.Spec, patch map[string]any) (task.Spec, error) {
	b, err := json.Marshal(old)
	if err != nil {
		return old, fmt.Errorf("write the spec: %w", err)
	}

	var doc map[string]any
	if err := json.Unmarshal(b, &doc); err != nil {
		return old, fmt.Errorf("read the spec: %w", err)
	}
	if b, err = json.Marshal(merge(doc, patch)); err != nil {
		return old, fmt.Errorf("write the patched spec: %w", err)
	}

	spec, err := task.DecodeSpec(b)
	if err != nil {
		return old, err
	}

	return spec, h.check(&spec)
}

// merge is RFC 7396: null removes, objects are merged, all else replaces.
func merge(doc, patch map[string]any) map[string]any {
	if doc == nil {
		doc = map[string]any{}
	}

	for key, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(doc, key)
		case map[string]any:
			inner, _ := doc[key].(map[string]any)
			doc[key] = merge(inner, v)
		default:
			doc[key] = v
		}
	}

	return doc
}
