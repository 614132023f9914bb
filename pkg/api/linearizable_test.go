package api_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// op is a call on one task: to read it, to make it say something, to make it say
// something else if it is at a revision, to delete it.
type op struct {
	kind     string // get, put, cas, delete
	value    string
	revision int64
}

// result is what a call returned: a task, or why there is none. With unknown it
// may have taken place or not.
type result struct {
	state
	err string // "", absent, stale, unknown
}

// state is a task: absent (the zero value), or what it says, and how often it
// was changed. The revision is -1 where nobody was told it.
type state struct {
	value      string
	generation int64
	revision   int64
}

// model is a task as a caller may think of it: one register; each write that
// changes it adds one to its generation and makes its revision grow.
var model = porcupine.NondeterministicModel{
	Init: func() []any { return []any{state{}} },
	Step: func(s, in, out any) []any {
		st, o, r := s.(state), in.(op), out.(result)
		if r.err == "unknown" {
			return []any{st, unknownAfter(st, o)}
		}
		if next, ok := step(st, o, r); ok {
			return []any{next}
		}
		return nil
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v → %+v", in, out) },
}

// unknownAfter is what a task is if a call of unknown outcome took place after all.
func unknownAfter(st state, o op) state {
	switch {
	case o.kind == "delete":
		return state{}
	case o.kind == "cas" && (st == state{} || !st.at(o.revision)), st.value == o.value:
		return st
	}
	return state{value: o.value, generation: st.generation + 1, revision: -1}
}

// at reports whether a task may be at a revision.
func (s state) at(revision int64) bool { return s.revision == revision || s.revision == -1 }

// step is what a task becomes by a call that returned r; false if it cannot
// have returned that.
func step(st state, o op, r result) (state, bool) {
	absent := st == state{}
	read := st.value == r.value && st.generation == r.generation && st.at(r.revision)
	wrote := r.value == o.value && r.generation == st.generation+1 && r.revision > st.revision
	switch {
	case r.err == "absent":
		return st, absent && o.kind != "put"
	case r.err == "stale":
		return st, !absent && st.revision != o.revision
	case o.kind == "delete":
		return state{}, !absent
	case o.kind == "get":
		return r.state, !absent && read
	case o.kind == "cas" && (absent || !st.at(o.revision)):
		return st, false
	case !absent && st.value == o.value: // nothing to do
		return r.state, read
	}
	return r.state, wrote
}

// perform makes a call and says what came of it; false if it certainly did
// nothing and says nothing either (too many conflicts).
func perform(t *testing.T, c *client.Client, o op) (result, bool) {
	var got client.Task
	var err error
	patch := fmt.Appendf(nil, `{"description": %q}`, o.value)
	switch o.kind {
	case "get":
		got, err = c.Get(t.Context(), "default", "x")
	case "put":
		s := spec("x", "@daily")
		s.Description = o.value
		got, err = c.Apply(t.Context(), s, client.ApplyOptions{})
	case "cas":
		got, err = c.Patch(t.Context(), "default", "x", patch, o.revision)
	default:
		err = c.Delete(t.Context(), "default", "x", 0)
	}
	switch {
	case err == nil:
		return result{state: state{got.Description, got.Generation, got.Revision}}, true
	case errors.Is(err, task.ErrNotFound):
		return result{err: "absent"}, true
	case errors.Is(err, task.ErrStale):
		return result{err: "stale"}, true
	case errors.Is(err, task.ErrUnknown):
		return result{err: "unknown"}, true
	case errors.Is(err, task.ErrConflict):
		return result{}, false
	}
	t.Errorf("%+v: %v", o, err)
	return result{}, false
}

// Through two nodes, with answers of etcd that get lost after the write and
// requests that get lost before it.
func TestTask_IsLinearizable(t *testing.T) {
	w := newWorld(t)
	var lose sync.Mutex
	rnd := rand.New(rand.NewPCG(1, 2))
	chance := func(n int) bool {
		lose.Lock()
		defer lose.Unlock()
		return rnd.IntN(n) == 0
	}
	w.writes.set(nil, func(res kv.Result, err error) (kv.Result, error) {
		if chance(15) {
			return kv.Result{}, errLost
		}
		return res, err
	})
	nodes := []*client.Client{w.Client, w.client(w.serve("node-b"))}
	const callers, calls = 6, 30
	began := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for id := range callers {
		wg.Go(func() {
			var seen int64 = 1
			for i := range calls {
				o := op{kind: []string{"get", "get", "put", "cas", "cas", "delete"}[(i*7+id*5)%6], value: fmt.Sprintf("%d-%d", id, i)}
				if o.kind == "cas" {
					o.revision = seen
				}
				call := time.Since(began)
				r, ok := perform(t, nodes[(id+i)%2], o)
				if !ok {
					continue
				}
				if r.revision > 0 {
					seen = r.revision
				}
				returned := time.Since(began)
				if r.err == "unknown" {
					returned = time.Hour // it may take place until then
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: id, Input: o, Output: r, Call: call.Nanoseconds(), Return: returned.Nanoseconds()})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(history) < callers*calls/2 {
		t.Fatalf("%d of %d calls said something", len(history), callers*calls)
	}
	m := model.ToModel()
	if !linearizable(m, history) {
		t.Error("the history is not linearizable")
	}
	// A checker is worth its mutants: a read of what was never written is found.
	for i := range history {
		if r := history[i].Output.(result); history[i].Input.(op).kind == "get" && r.err == "" {
			r.value = "never"
			history[i].Output = r
			if linearizable(m, history) {
				t.Error("a read of what was never written is taken for linearizable")
			}
			return
		}
	}
}

func linearizable(m porcupine.Model, history []porcupine.Operation) bool {
	// One caller's calls follow each other; of unknown ones, which last, each is a caller's own.
	for i := range history {
		if history[i].Output.(result).err == "unknown" {
			history[i].ClientId = 1000 + i
		}
	}
	return porcupine.CheckOperationsTimeout(m, history, 20*time.Second) == porcupine.Ok
}
