package authority_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// A view that Current returns has every change that had been made before.
func TestKeeper_CurrentHasWhatWasWritten(t *testing.T) {
	w := newWorld(t)
	for i := range 50 {
		at := now.Add(time.Duration(i) * time.Second)
		rev, err := w.store.PutNamespace(t.Context(), w.keeper.View().Mod(w.store.Keys().Namespace("n")), store.OpenNamespace("n"), at)
		if err != nil {
			t.Fatal(err)
		}

		v, err := w.keeper.Current(t.Context())
		if err != nil || v.Fence < rev || v.Namespace("n").Revision != rev {
			t.Fatalf("write %d: the fence is %d, want %d: %v", i, v.Fence, rev, err)
		}

		if err := w.store.DeleteToken(t.Context(), "t1", v.Created("t1")); i == 0 && err != nil {
			t.Fatal(err)
		}
		if v, err = w.keeper.Current(t.Context()); err != nil || v.Created("t1") != 0 {
			t.Fatalf("the deleted token still exists: %v", err)
		}
	}
}

// While etcd does not answer, callers give up together.
func TestKeeper_CurrentEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if _, err := w.keeper.Current(ctx); !errors.Is(err, task.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := w.keeper.Await(ctx, func(*authority.View) bool { return false }); !errors.Is(err, task.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}
