package api_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// putChunks puts two chunks of a task's ledger: a day of successful runs at each full hour, and a day on which one run
// failed, and 40 ticks were missed.
func (w *world) putChunks(name, uid string) (first time.Time) {
	first = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	r := ref("default", name)
	second := first.Add(24 * time.Hour)

	w.put(w.store.Keys().LedgerChunk(r, task.RunID(first, "")), fmt.Sprintf(`{"uid":%q,"from":"2026-11-01T00:00:00Z","ok":[[0,82800,24,48000,5000,12]]}`, uid))
	w.put(w.store.Keys().LedgerChunk(r, task.RunID(second, "")), fmt.Sprintf(
		`{"uid":%q,"from":"2026-11-02T00:00:00Z","ok":[[0,32400,9,9000,1000,3]],"not":[[36000,1,"f","exit 1",2,"","n7"],[39600,40,"m","no_owner",0,"","",180000]]}`, uid))

	return first
}

func TestTaskLedger_TellsWhatHistoryNoLongerHas(t *testing.T) {
	w := newWorld(t)
	made := w.create("dump", "0 * * * *")

	none, err := w.Tasks.Ledger(t.Context(), "default", "dump", client.LedgerOptions{})
	if err != nil || !none.Since.IsZero() || !none.CompleteSince.Equal(made.CreatedAt.Time) || none.Lines == nil || len(none.Lines) != 0 || none.Remembers != task.DefaultLedger || none.Limit != nil {
		t.Errorf("before the first run: %+v, %v", none, err)
	}

	first := w.putChunks("dump", made.UID)
	if l, err := w.Tasks.Ledger(t.Context(), "default", "dump", client.LedgerOptions{}); err != nil || !l.CompleteSince.Equal(made.CreatedAt.Time) {
		t.Errorf("complete since %s, %v", l.CompleteSince, err)
	}

	w.put(w.store.Keys().LedgerChunk(ref("default", "dump"), task.RunID(first.Add(96*time.Hour), "")), `{"uid":`)

	// What the chunk says that cannot be read is not known.
	all, err := w.Tasks.Ledger(t.Context(), "default", "dump", client.LedgerOptions{})
	if err != nil || !all.Since.Equal(first) || !all.CompleteSince.IsZero() || all.Broken != 1 || all.More != 0 || kindsOf(all) != "missed×40 failed succeeded×9 succeeded×24" {
		t.Fatalf("%+v, %v", all, err)
	}
	failed, day := all.Lines[1], all.Lines[3]
	if failed.Reason != "exit 1" || failed.Node != "n7" || failed.Attempt != 2 || !failed.First.Equal(first.Add(34*time.Hour)) {
		t.Errorf("the line of the failed run: %+v", failed)
	}
	if day.MeanMS != 2000 || day.MaxMS != 5000 || day.MaxLatenessMS != 12 || !day.Last.Equal(first.Add(23*time.Hour)) {
		t.Errorf("the line of the first day: %+v", day)
	}

	for _, c := range []struct {
		name string
		o    client.LedgerOptions
		want string
		more int
	}{
		{"since within a range", client.LedgerOptions{Since: first.Add(50 * time.Hour)}, "missed×40", 0},
		{"until, without that tick", client.LedgerOptions{Until: first.Add(34 * time.Hour)}, "succeeded×9 succeeded×24", 0},
		{"failed", client.LedgerOptions{States: []task.State{task.Failed, task.Lost}}, "failed", 0},
		{"succeeded, the newest", client.LedgerOptions{States: []task.State{task.Succeeded}, Limit: 1}, "succeeded×9", 1},
		{"the future", client.LedgerOptions{Since: first.AddDate(1, 0, 0)}, "", 0},
		{"until before since, within a range", client.LedgerOptions{Since: first.Add(60 * time.Hour), Until: first.Add(50 * time.Hour)}, "", 0},
	} {
		got, err := w.Tasks.Ledger(t.Context(), "default", "dump", c.o)
		if err != nil || kindsOf(got) != c.want || got.More != c.more {
			t.Errorf("%s: %s and %d more, want %s and %d; %v", c.name, kindsOf(got), got.More, c.want, c.more, err)
		}
	}

	if _, err := w.Tasks.Ledger(t.Context(), "default", "nothing", client.LedgerOptions{}); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("of a task that does not exist: %v", err)
	}
	if res := w.do(request{method: "GET", path: "/v1/namespaces/default/tasks/dump/ledger?state=fine"}); res.status != 422 || !strings.Contains(res.body, `"state"`) {
		t.Errorf("a state that does not exist: %d %s", res.status, res.body)
	}
}

// kindsOf summarizes the lines of a ledger.
func kindsOf(l client.TaskLedger) string {
	var words []string
	for _, line := range l.Lines {
		word := string(line.State)
		if line.Kind == task.LedgerSucceeded {
			word = string(task.Succeeded)
		}
		if line.Count > 1 {
			word += fmt.Sprintf("×%d", line.Count)
		}
		words = append(words, word)
	}

	return strings.Join(words, " ")
}

// An earlier task of the same name has left chunks.
func TestTaskLedger_IgnoresAnotherTask(t *testing.T) {
	w := newWorld(t)
	w.create("dump", "0 * * * *")
	w.putChunks("dump", "another")

	if l, err := w.Tasks.Ledger(t.Context(), "default", "dump", client.LedgerOptions{}); err != nil || len(l.Lines) != 0 || !l.Since.IsZero() || l.Broken != 0 {
		t.Errorf("%+v, %v", l, err)
	}
}

// What was deleted without being counted, or with an old chunk, leaves a trace in the newest chunk.
func TestTaskLedger_IsCompleteSinceWhatIsGone(t *testing.T) {
	w := newWorld(t)
	made := w.create("dump", "0 * * * *")
	gone := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	key := w.store.Keys().LedgerChunk(ref("default", "dump"), task.RunID(gone, ""))

	for value, want := range map[string]time.Time{
		`"ok":[[0,82800,24,48000,5000,12]]`:                                               made.CreatedAt.Time,
		`"ok":[[-720000,82800,24,48000,5000,12]],"gone":"2026-11-22T00:00:00.000Z"`:       gone.Add(time.Second),
		`"gone":"2026-11-22T00:00:00.000Z","uncounted":true`:                              {},
		`"ok":[[0,82800,24,48000,5000,12]],"gone":"2026-11-22T00:00:00Z","unknown":"two"`: gone.Add(time.Second),
	} {
		w.put(key, fmt.Sprintf(`{"uid":%q,"from":"2026-11-22T00:00:00.000Z",%s}`, made.UID, value))
		if l, err := w.Tasks.Ledger(t.Context(), "default", "dump", client.LedgerOptions{}); err != nil || !l.CompleteSince.Equal(want) {
			t.Errorf("%s: complete since %s, not %s; %v", value, l.CompleteSince, want, err)
		}
	}
}
