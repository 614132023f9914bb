package api_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// A caller's lists must contain what the caller has written: the owners learn the revisions, by shard. Lists of others
// may be older.
func TestAsk_OwnersLearnWhatTheCallerHasWritten(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	asked := map[string]map[int]int64{} // what the last question of a subject must contain
	questions := 0
	owner := w.owning("node-b", 5, slices.Concat(evenShards, oddShards)...)

	w.owners = map[string]ask{"node-a": nil, "node-b": func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
		mu.Lock()
		defer mu.Unlock()
		if q.Splits == 0 {
			asked[q.Subject] = q.MinRevisions
			questions++
		}

		return owner(ctx, q, without)
	}}
	w.fleet()
	w.bind("user:eve", "editor", "default")
	ann, eve := w.secret, w.token("user:eve")

	want := map[int]int64{}
	wrote := func(t client.Task) {
		shard := ref("default", t.Name).Shard
		want[shard] = max(want[shard], t.Revision)
	}
	lists := func(secret, query string) map[int]int64 {
		w.secret = secret
		if _, res := w.tasksPage(query); res.status != 200 {
			t.Fatal(res.body)
		}

		mu.Lock()
		defer mu.Unlock()

		return asked[map[string]string{ann: "user:ann", eve: "user:eve"}[secret]]
	}

	if got := lists(ann, "sort=next"); len(got) != 0 {
		t.Errorf("before a write: %v", got)
	}

	wrote(w.create("a", "@daily"))
	wrote(w.create("b", "@daily"))
	paused, err := w.Tasks.Pause(t.Context(), "default", "a", 0)
	must(t, err)
	wrote(paused)

	if got := lists(ann, "sort=next"); !maps.Equal(got, want) {
		t.Errorf("after writes: %v, want %v", got, want)
	}
	if got := lists(eve, "sort=next"); len(got) != 0 {
		t.Errorf("somebody else: %v", got)
	}

	// Lists of the same caller share an answer, because it contains all of this.
	lists(ann, "q=selector:team")
	before := questions
	lists(ann, "q=selector:team")
	if questions != before {
		t.Error("an equal list was not shared")
	}

	// A batch writes in parts.
	w.secret = ann
	w.batch("", line("c", "@daily"))
	c, err := w.Tasks.Get(t.Context(), "default", "c")
	must(t, err)
	wrote(c)

	// The caller says what it has written through another node.
	shard := ref("default", "elsewhere").Shard
	want[shard] = max(want[shard], 1<<40)
	if got := lists(ann, fmt.Sprintf("sort=next&min_revision=default/elsewhere@%d", 1<<40)); !maps.Equal(got, want) {
		t.Errorf("after a batch: %v, want %v", got, want)
	}

	for _, text := range []string{"x", "default/a", "default/a@", "default/a@0", "a@5", "default/A@5", "a/b/c@5"} {
		res := w.do(request{method: "GET", path: "/v1/tasks?min_revision=" + text})
		wantStatus(t, text, res, 422, task.CodeBadValue)
	}
}
