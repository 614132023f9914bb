package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// conflicts is how often a change that certainly did not happen is decided anew.
const conflicts = 6

// retryConflict calls f until it returns anything but task.ErrConflict. Such an
// error is definite: f wrote nothing, and what it knew is out of date.
func retryConflict(ctx context.Context, f func() error) error {
	for i := 1; ; i++ {
		err := f()
		if i == conflicts || !errors.Is(err, task.ErrConflict) {
			return err
		}
		t := time.NewTimer(rand.N(time.Duration(i) * 10 * time.Millisecond))
		select {
		case <-ctx.Done():
			t.Stop()
			return err
		case <-t.C:
		}
	}
}

// matches is task.ErrStale if the request asked for another revision.
func (c *call) matches(ref store.Ref, revision int64) error {
	if c.match != 0 && c.match != revision {
		return fmt.Errorf("task %s is at revision %d: %w, %d", ref, revision, task.ErrStale, c.match)
	}
	return nil
}

// change makes of a task what edit makes of its spec, if that is anything else.
// If the task changes in between, edit sees what it has become; with If-Match
// that is task.ErrStale.
func (s *server) change(c *call, ref store.Ref, edit func(task.Spec) (task.Spec, error)) (st store.Stored, result string, err error) {
	err = retryConflict(c.ctx(), func() error {
		old, err := s.Store.Task(c.ctx(), ref)
		broken := entryBroken(old, err) // the write mends it
		if err != nil && !broken {
			return err
		}
		if err := c.matches(ref, old.Task.Revision); err != nil {
			return err
		}
		spec, err := edit(old.Task.Spec)
		if err != nil {
			return err
		}
		mend := broken || old.EntryMod == 0
		if !mend && same(spec, old.Task.Spec) {
			st, result = old, client.Unchanged
			return nil
		}
		st, err = s.next(c, old, spec, mend)
		if err != nil {
			return err
		}
		rev, err := s.Store.UpdateTask(c.ctx(), old, st.Task, st.Entry)
		st.Task.Revision, st.EntryMod, result = rev, rev, client.Configured
		return about(ref.String(), err)
	})
	return st, result, err
}

// entryBroken reports whether err says that a task's entry cannot be read, while
// its spec can.
func entryBroken(st store.Stored, err error) bool {
	return errors.Is(err, task.ErrInvalid) && st.EntryMod != 0
}

// next is what old becomes with another spec. Where its ticks begin anew, none
// up to now are left to be decided; else from and anchor stay, or ticks would be
// lost or decided twice.
func (s *server) next(c *call, old store.Stored, spec task.Spec, mend bool) (store.Stored, error) {
	now := s.now()
	t := old.Task
	t.Spec, t.Generation, t.UpdatedAt, t.UpdatedBy = spec, old.Task.Generation+1, now, c.who()
	from, anchor := old.Entry.From, old.Entry.Anchor
	moved := !task.SameTicks(old.Task.Spec, spec)
	if moved || mend {
		anchor = now
	}
	if moved || mend || old.Task.Paused && !spec.Paused {
		if err := s.trustClock(); err != nil {
			return store.Stored{}, err
		}
		if from.Before(now.Time) {
			from = now
		}
	}
	return store.Stored{Ref: old.Ref, Task: t, Entry: task.NewEntry(t, from, anchor)}, nil
}

// applyTask serves PUT.
func (s *server) applyTask(c *call) (answer, error) {
	ref, err := c.ref()
	if err != nil {
		return answer{}, err
	}
	spec, err := c.readSpec(ref.Namespace, ref.Name)
	if err != nil {
		return answer{}, err
	}
	st, result, err := s.apply(c, ref, spec)
	if err != nil {
		return answer{}, err
	}
	return c.answerTask(http.StatusOK, st, result)
}

// apply makes a task what spec says, whether it is there or not.
func (s *server) apply(c *call, ref store.Ref, spec task.Spec) (st store.Stored, result string, err error) {
	err = retryConflict(c.ctx(), func() error {
		if !c.fresh {
			st, result, err = s.change(c, ref, func(task.Spec) (task.Spec, error) { return spec, nil })
			if !errors.Is(err, task.ErrNotFound) {
				return err
			}
			if c.match != 0 {
				return fmt.Errorf("task %s is not there: %w, %d", ref, task.ErrStale, c.match)
			}
		}
		st, err = s.create(c, spec)
		result = client.Created
		if errors.Is(err, task.ErrExists) && !c.fresh {
			return fmt.Errorf("%w: it was created meanwhile", task.ErrConflict)
		}
		return err
	})
	return st, result, err
}

// patchTask serves PATCH.
func (s *server) patchTask(c *call) (answer, error) {
	ref, err := c.ref()
	if err != nil {
		return answer{}, err
	}
	patch, err := c.readPatch(ref)
	if err != nil {
		return answer{}, err
	}
	st, result, err := s.change(c, ref, func(old task.Spec) (task.Spec, error) { return applyPatch(old, patch) })
	if err != nil {
		return answer{}, err
	}
	return c.answerTask(http.StatusOK, st, result)
}

// readPatch decodes the body as a merge patch of a spec, of which every key must
// be one of a spec's.
func (c *call) readPatch(ref store.Ref) (map[string]any, error) {
	if err := task.DecodeStrict(c.body, &task.Spec{}); err != nil {
		return nil, err
	}
	var patch map[string]any
	if err := task.DecodeStrict(c.body, &patch); err != nil {
		return nil, err
	}
	if patch == nil {
		return nil, task.Invalid(task.CodeBadValue, "", "a patch is a JSON object")
	}
	if _, _, err := c.identity(ref.Namespace, ref.Name); err != nil {
		return nil, err
	}
	delete(patch, "name") // they are the path's, and stay
	delete(patch, "namespace")
	return patch, nil
}

// applyPatch merges a patch into a spec, and validates what comes out.
func applyPatch(old task.Spec, patch map[string]any) (task.Spec, error) {
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
	return spec, check(&spec)
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

// pauseTask serves pause.
func (s *server) pauseTask(c *call) (answer, error) { return s.setPaused(c, true) }

// resumeTask serves resume.
func (s *server) resumeTask(c *call) (answer, error) { return s.setPaused(c, false) }

func (s *server) setPaused(c *call, paused bool) (answer, error) {
	ref, err := c.ref()
	if err != nil {
		return answer{}, err
	}
	st, result, err := s.change(c, ref, func(spec task.Spec) (task.Spec, error) {
		spec.Paused = paused
		return spec, nil
	})
	if err != nil {
		return answer{}, err
	}
	return c.answerTask(http.StatusOK, st, result)
}
