package store_test

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestPauseActive_AndResumeActive(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.create(ref)
	h := w.dispatch(ref, 1, node)
	key := record.RunKey{Node: node, Ref: ref, Run: h.ID}
	run, err := w.PauseActive(ctx, h, task.NewActor("ann"))
	ok(t, err)

	now := w.held(key)
	if !now.PauseRequested || !now.PausedBy.Is("ann") || !run.PausedBy.Is("ann") || now.Create != h.Create {
		t.Errorf("got %+v", now)
	}

	again, err := w.PauseActive(ctx, now, task.NewActor("bob")) // a pause is requested already
	ok(t, err)

	if same := w.held(key); !again.PausedBy.Is("ann") || same.Mod != now.Mod {
		t.Errorf("asked twice: %+v", same)
	}

	_, err = w.PauseActive(ctx, h, task.NewActor("bob")) // the record has changed since it was read
	is(t, err, task.ErrConflict)

	now.State, now.PausedAt, now.StartedAt = task.Paused, task.At(noon), task.At(noon)
	_, err = w.Rewrite(ctx, w.fences.Node, now)
	ok(t, err)
	_, err = w.ResumeActive(ctx, now, task.NewActor("bob"))
	is(t, err, task.ErrConflict)

	now = w.held(key)
	if now.State != task.Paused || !now.PausedAt.Equal(noon) {
		t.Errorf("got %+v", now)
	}

	run, err = w.ResumeActive(ctx, now, task.NewActor("bob"))
	ok(t, err)

	if now = w.held(key); now.PauseRequested || !now.ResumedBy.Is("bob") || !now.PausedBy.Is("ann") || run.State != task.Paused {
		t.Errorf("resumed: %+v", now) // the attempt is still paused
	}

	_, err = w.ResumeActive(ctx, now, task.NewActor("cleo"))
	ok(t, err)

	if same := w.held(key); same.Mod != now.Mod {
		t.Errorf("resumed twice: %+v", same)
	}

	_, err = w.CancelActive(ctx, now, task.NewActor("ann"))
	ok(t, err)
}
