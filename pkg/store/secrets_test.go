package store_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestSecret_IsWrittenOverWhatWasRead(t *testing.T) {
	s, ctx := newEmpty(t).Store, t.Context()
	rec := func(name string, generation int64, change string) record.Secret {
		r := record.Secret{Secret: task.Secret{Namespace: "default", Name: name, Generation: generation, Change: change, Keys: []string{"a"}, KeyID: "k"}}
		if change != task.SecretDeleted {
			r.Sealed = []byte("sealed")
		}
		return r
	}

	if r, err := s.Secret(ctx, "default", "db"); !errors.Is(err, task.ErrNotFound) || r.Revision != 0 {
		t.Errorf("before: %+v, %v", r, err)
	}

	rev, err := s.PutSecret(ctx, 0, rec("db", 1, task.SecretSet))
	if err != nil {
		t.Fatal(err)
	}

	if _, err := s.PutSecret(ctx, 0, rec("db", 1, task.SecretSet)); !errors.Is(err, task.ErrConflict) {
		t.Errorf("over the existing secret: %v", err)
	}

	if r, err := s.Secret(ctx, "default", "db"); err != nil || r.Revision != rev || r.Namespace != "default" || string(r.Sealed) != "sealed" {
		t.Errorf("%+v, %v", r, err)
	}

	gone, err := s.PutSecret(ctx, rev, rec("db", 2, task.SecretDeleted))
	if err != nil {
		t.Fatal(err)
	}

	if _, err := s.PutSecret(ctx, rev, rec("db", 2, task.SecretSet)); !errors.Is(err, task.ErrConflict) {
		t.Errorf("over an older one: %v", err)
	}

	if r, err := s.Secret(ctx, "default", "db"); !errors.Is(err, task.ErrNotFound) || r.Generation != 2 || r.Revision != gone {
		t.Errorf("deleted: %+v, %v", r, err)
	}

	for i := range 5 {
		if _, err := s.PutSecret(ctx, 0, rec(fmt.Sprint("s", i), 1, task.SecretSet)); err != nil {
			t.Fatal(err)
		}
	}

	other := rec("x", 1, task.SecretSet)
	other.Namespace = "default-2"
	if _, err := s.PutSecret(ctx, 0, other); err != nil {
		t.Fatal(err)
	}

	for ns, want := range map[string]int{"": 6, "default": 5, "default-2": 1, "none": 0} {
		var all []task.Secret
		for next, pages := "", 0; pages == 0 || next != ""; pages++ {
			var part []task.Secret
			if part, next, err = s.Secrets(ctx, ns, next, 2); err != nil || pages > 5 {
				t.Fatal(pages, err)
			}
			all = append(all, part...)
		}

		if len(all) != want {
			t.Errorf("%d secrets of %q: %+v", len(all), ns, all)
		}
	}
}

// The record of a deleted secret is deleted after a while, without another event.
func TestSweepSecrets_RemovesWhatWasDeletedLongAgo(t *testing.T) {
	w, ctx := newEmpty(t), t.Context()
	put := func(name, change string, at time.Time) int64 {
		r := record.Secret{Secret: task.Secret{Namespace: "default", Name: name, Generation: 1, Change: change, UpdatedAt: task.At(at)}}
		if change != task.SecretDeleted {
			r.Sealed = []byte("sealed")
		}

		rev, err := w.PutSecret(ctx, 0, r)
		ok(t, err)

		return rev
	}

	put("gone", task.SecretDeleted, noon)
	put("going", task.SecretDeleted, noon.Add(2*time.Hour))
	put("there", task.SecretSet, noon)
	w.put(w.keys.Secret("default", "unreadable"), "[")
	n, next, err := w.SweepSecrets(ctx, task.At(noon.Add(time.Hour)), "", 100)
	left := w.below(w.keys.Secrets())
	if n != 1 || next != "" || err != nil || len(left) != 3 || slices.Contains(left, w.keys.Secret("default", "gone")) {
		t.Errorf("removed %d, and %v are left, %v", n, left, err)
	}
}
