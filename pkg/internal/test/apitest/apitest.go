// Package apitest is a model of what callers of the API can observe of one task. Tests compare it with what they
// did observe.
package apitest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Op is a call on one task: read it, set its value, set its value if it is at a revision, or delete it.
type Op struct {
	Kind     string // get, put, cas, delete
	Value    string
	Revision int64
}

// Result is the result of a call: a task, or why there is none. After "unknown" the call may have taken effect or
// not.
type Result struct {
	State
	Err string // "", absent, stale, unknown
}

// State is a task: absent (the zero value), or its value, and how often it was changed. The revision is -1 where no
// caller received it.
type State struct {
	Value      string
	Generation int64
	Revision   int64
}

// Model is a task as a caller sees it: one register. Each write that changes it increments its generation and
// increases its revision.
var Model = porcupine.NondeterministicModel{
	Init: func() []any { return []any{State{}} },
	Step: func(s, in, out any) []any {
		st, o, r := s.(State), in.(Op), out.(Result)
		if r.Err == "unknown" {
			return []any{st, unknownAfter(st, o)}
		}
		if next, ok := nextState(st, o, r); ok {
			return []any{next}
		}

		return nil
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v → %+v", in, out) },
}

// unknownAfter returns the state of a task if a call of unknown outcome did take effect.
func unknownAfter(st State, o Op) State {
	switch {
	case o.Kind == "delete":
		return State{}
	case o.Kind == "cas" && (st == State{} || !st.mayBeAt(o.Revision)), st.Value == o.Value:
		return st
	}

	return State{Value: o.Value, Generation: st.Generation + 1, Revision: -1}
}

// mayBeAt reports whether a task may be at a revision.
func (s State) mayBeAt(revision int64) bool { return s.Revision == revision || s.Revision == -1 }

// nextState returns the state of a task after a call that returned r, or false if the call cannot have returned
// that.
func nextState(st State, o Op, r Result) (State, bool) {
	absent := st == State{}
	read := st.Value == r.Value && st.Generation == r.Generation && st.mayBeAt(r.Revision)
	wrote := r.Value == o.Value && r.Generation == st.Generation+1 && r.Revision > st.Revision

	switch {
	case r.Err == "absent":
		return st, absent && o.Kind != "put"
	case r.Err == "stale":
		return st, !absent && st.Revision != o.Revision
	case o.Kind == "delete":
		return State{}, !absent
	case o.Kind == "get":
		return r.State, !absent && read
	case o.Kind == "cas" && (absent || !st.mayBeAt(o.Revision)):
		return st, false
	case !absent && st.Value == o.Value: // nothing to do
		return r.State, read
	}

	return r.State, wrote
}

// Perform makes a call on a task, whose description is its value. ok is false if the call certainly had no effect
// and shows nothing about the task: too many conflicts, or no server to answer it. An error is a result that no
// call may have.
func Perform(ctx context.Context, c *client.Client, namespace, name string, o Op) (r Result, ok bool, err error) {
	var got client.Task

	switch o.Kind {
	case "get":
		got, err = c.Tasks.Get(ctx, namespace, name)
	case "put":
		s := task.Defaults()
		s.Namespace, s.Name, s.Schedule, s.Action.Noop = namespace, name, task.Schedules{"@daily"}, &task.Noop{}
		s.Description = o.Value
		got, err = c.Tasks.Apply(ctx, s, client.ApplyOptions{})
	case "cas":
		got, err = c.Tasks.Patch(ctx, namespace, name, fmt.Appendf(nil, `{"description": %q}`, o.Value), o.Revision)
	default:
		err = c.Tasks.Delete(ctx, namespace, name, 0)
	}

	switch {
	case err == nil:
		return Result{State: State{got.Description, got.Generation, got.Revision}}, true, nil
	case errors.Is(err, task.ErrNotFound):
		return Result{Err: "absent"}, true, nil
	case errors.Is(err, task.ErrStale):
		return Result{Err: "stale"}, true, nil
	case errors.Is(err, task.ErrUnknown):
		return Result{Err: "unknown"}, true, nil
	case errors.Is(err, task.ErrConflict), errors.Is(err, task.ErrUnavailable):
		return Result{}, false, nil
	}

	return Result{}, false, err
}

// Check reports whether the calls on one task can have been made one after another. porcupine.Unknown means that it
// takes longer than that to determine.
func Check(history []porcupine.Operation, most time.Duration) porcupine.CheckResult {
	// Calls of one caller follow each other. Calls of unknown outcome, which may take effect later, each count as a
	// caller of their own.
	for i := range history {
		if history[i].Output.(Result).Err == "unknown" {
			history[i].ClientId = 1000 + i
		}
	}

	return porcupine.CheckOperationsTimeout(Model.ToModel(), history, most)
}
