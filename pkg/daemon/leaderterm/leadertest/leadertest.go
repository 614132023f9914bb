// Package leadertest runs work of a leader on an etcd in memory, in virtual time, for tests only.
package leadertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Shards is the number of shards of the cluster.
const Shards = 4

// World is a cluster in which the work runs while the world leads.
type World struct {
	*testing.T
	Store   *store.Store
	Etcd    *kv.Client
	Keys    record.Keys
	Cluster task.Cluster // when it was created

	terms  int
	cancel context.CancelFunc
	done   chan struct{}
}

// New returns a new cluster. The store writes with what wrap returns. The test must run in virtual time.
func New(t *testing.T, wrap func(kv.Committer) kv.Committer) *World {
	t.Helper()
	keys, err := record.NewKeys("/t")
	w := &World{T: t, Etcd: kvtest.Memory(t), Keys: keys}
	w.Must(err)
	w.Store = store.New(w.Etcd, wrap(kv.Direct(w.Etcd)), keys)
	w.Cluster, _, err = w.Store.Bootstrap(t.Context(), Shards, time.Now(), store.OpenAccess())
	w.Must(err)
	t.Cleanup(w.Stop)

	return w
}

// LeaderKey returns the key whose create revision is the present term.
func (w *World) LeaderKey() string { return fmt.Sprintf("%s%d", w.Keys.Leader(), w.terms) }

// Lead ends the present term, and begins another one, in which run does the work.
func (w *World) Lead(run func(context.Context, kv.Fence) error) {
	w.Helper()
	w.Stop()
	w.terms++

	fence := kv.CreateFence(w.LeaderKey(), w.Put(w.LeaderKey(), "n1"))
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	w.cancel, w.done = cancel, done
	go func() {
		defer close(done)
		if err := run(ctx, fence); !errors.Is(err, context.Canceled) && !errors.Is(err, task.ErrFenced) {
			w.Errorf("the work of the leader ended: %v", err)
		}
	}()
}

// Stop ends the present term, if there is one.
func (w *World) Stop() {
	if w.cancel != nil {
		w.cancel()
		<-w.done
	}
}

// Kill ends the present term as Stop does, but does not wait for the work, which may call it.
func (w *World) Kill() { w.cancel() }

// Must fails if there is an error.
func (w *World) Must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// Put writes a key, and returns the revision.
func (w *World) Put(key, value string) int64 {
	w.Helper()
	res, err := w.Etcd.Put(w.Context(), key, value)
	w.Must(err)

	return res.Header.Revision
}

// Ref returns the reference of a task.
func (w *World) Ref(ns, name string) record.Ref {
	return record.Ref{Namespace: ns, Name: name, Shard: len(ns+name) % Shards}
}

// RefOf is Ref for NAMESPACE/NAME.
func (w *World) RefOf(name string) record.Ref {
	ns, name, _ := strings.Cut(name, "/")
	return w.Ref(ns, name)
}

// AddTask creates a task NAMESPACE/NAME that does nothing.
func (w *World) AddTask(name, expression string, change func(t *task.Task)) task.Task {
	w.Helper()
	ref := w.RefOf(name)
	t := task.Task{Spec: task.Defaults(), UID: task.NewUID(), CreatedAt: task.At(time.Now())}
	t.Namespace, t.Name, t.Schedule, t.Action = ref.Namespace, ref.Name, task.Schedules{expression}, task.Action{Noop: &task.Noop{}}
	if change != nil {
		change(&t)
	}
	_, err := w.Store.CreateTask(w.Context(), ref, t, task.NewEntry(t, t.CreatedAt, t.CreatedAt))
	w.Must(err)

	return t
}

// Edit changes a task. A paused one has a pause in its entry.
func (w *World) Edit(name string, change func(t *task.Task)) {
	w.Helper()
	st, err := w.Store.Task(w.Context(), w.RefOf(name))
	w.Must(err)

	t := st.Task
	change(&t)
	e := task.NewEntry(t, st.Entry.From, st.Entry.Anchor)
	if t.Paused {
		e.Own = &task.Own{Pauses: []task.Pause{{Since: task.At(time.Now()), By: task.NewActor("ann")}}}
	}
	_, err = w.Store.UpdateTask(w.Context(), st, t, e)
	w.Must(err)
}
