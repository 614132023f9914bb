package retention

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// brokenStore fails to trim dead runs.
type brokenStore struct {
	HistoryTrimmer
	err error
}

func (s *brokenStore) TrimDead(context.Context, store.Fences, record.Ref) error { return s.err }

// A trim that keeps failing would let a history grow without anybody noticing it.
func TestTrimmer_WarnsOnceAnHour(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		s := &brokenStore{err: errors.New("broken")}
		trimmer := NewTrimmer(s, func() task.Cluster { return task.Cluster{} }, time.Now, zap.New(core))
		go trimmer.Run(t.Context()) //nolint:errcheck // it ends with the test

		fail := func(name string, wantWarnings int) {
			t.Helper()
			trimmer.Ask(Trim{Ref: record.Ref{Namespace: "default", Name: name}, Dead: true})
			synctest.Wait()
			if n := len(logs.TakeAll()); n != wantWarnings {
				t.Errorf("%d warnings of %s after %s, want %d", n, name, time.Now(), wantWarnings)
			}
		}

		fail("a", 1)
		fail("a", 0)
		fail("b", 1)
		time.Sleep(59 * time.Minute)
		fail("a", 0)
		time.Sleep(time.Minute)
		fail("a", 1)

		// A new owner trims. That is no failure.
		s.err = task.ErrFenced
		fail("c", 0)
	})
}

func TestWarnings_AreBounded(t *testing.T) {
	t.Parallel()

	var w warnings
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	for i := range 2 * maxWarned {
		if got, want := w.noteFailure(fmt.Sprint(i), now), i < maxWarned; got != want {
			t.Fatalf("task %d: %t, want %t", i, got, want)
		}
	}

	if !w.noteFailure("later", now.Add(warnEvery)) || len(w.last) != 1 {
		t.Errorf("after an hour, %d tasks are remembered", len(w.last))
	}
}
