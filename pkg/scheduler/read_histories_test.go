package scheduler

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// fakeHistories holds the history of each task: the states of its runs, the oldest first.
type fakeHistories struct {
	t         *testing.T
	histories [][]task.State
	pages     []int // how many records each read asked for
}

const historiesListed = 99 // the revision of the lists

func (f *fakeHistories) HistoriesOf(_ context.Context, refs []record.Ref) (keys [][]store.ShardEvent, rev int64, err error) {
	for i, ref := range refs {
		var own []store.ShardEvent
		for n := range f.histories[i] {
			own = append(own, store.ShardEvent{ShardKey: record.ShardKey{Ref: ref, Run: task.RunID(start, "abcd")}, Key: fmt.Sprintf("%d/%d", i, n), Mod: int64(n + 1), Create: int64(n + 1)})
		}
		keys = append(keys, own)
	}

	return keys, historiesListed, nil
}

func (f *fakeHistories) RecordsAt(_ context.Context, keys []string, rev int64) (events []store.ShardEvent, err error) {
	if rev != historiesListed {
		f.t.Errorf("records are read at revision %d, and were listed at %d", rev, historiesListed)
	}

	f.pages = append(f.pages, len(keys))
	for _, key := range keys {
		var i, n int
		_, _ = fmt.Sscanf(key, "%d/%d", &i, &n)
		events = append(events, store.ShardEvent{Key: key, Mod: int64(n + 1), Create: int64(n + 1), Value: fmt.Appendf(nil, `{"state":%q}`, f.histories[i][n])})
	}

	return events, nil
}

// countsFailures returns a task that is paused after a number of failures in a row.
func countsFailures(pauseAfter int) *state.Task {
	const name, uid = "default/a", "abcd"
	return &state.Task{Text: name + uid, NameLen: uint16(len(name)), UIDLen: uint8(len(uid)), Present: true, Policy: &state.Policy{PolicyFields: &state.PolicyFields{PauseAfter: pauseAfter}}, Timing: &state.Timing{}}
}

func TestReadHistoriesOf_ReadsBackwardAsFarAsNeeded(t *testing.T) {
	const ok, bad = task.Succeeded, task.Failed
	s := &fakeHistories{t: t, histories: [][]task.State{
		{bad, bad, bad, bad, bad, bad, bad, bad, ok}, // the newest succeeded
		{ok, bad, bad, bad, bad, bad, bad, bad, bad}, // all but the oldest failed
		{bad, bad, bad, bad, bad, bad, ok, bad, bad}, // two failed since the last success
		{ok, ok, ok, ok, ok, ok, bad, bad, bad, bad}, // the task does not count failures
	}}
	tasks := []*state.Task{countsFailures(20), countsFailures(20), countsFailures(20), countsFailures(0)}

	readers, err := readHistoriesOf(t.Context(), s, 0, tasks)
	if err != nil {
		t.Fatal(err)
	}

	for i, want := range []int{1, 9, 5, 1} {
		readers[i].Conclude(start.UnixMilli())
		ends := len(tasks[i].Past.Ends)
		if i == 2 || i == 3 || i == 0 {
			ends-- // an artificial success marks that older records were not read
		}

		if ends != want {
			t.Errorf("of task %d, %d ends are known, want %d", i, ends, want)
		}
	}

	// Pages of 1, 4, and 16 records for each task that needs more.
	if want := []int{4, 8, 4}; !slices.Equal(s.pages, want) {
		t.Errorf("pages of %d records, want %d", s.pages, want)
	}
}
