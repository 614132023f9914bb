package failures

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// fakeOutcomes holds the dead runs and histories of the tasks of a shard.
type fakeOutcomes struct {
	dead      [][]store.ShardEvent          // pages
	histories map[string][]store.ShardEvent // by namespace/name
	failing   int                           // how many more calls fail
}

// listedAt is the revision of the lists.
const listedAt = 99

// add adds a run of a task that ended at revision mod, and with dead also a dead run of it on that page.
func (s *fakeOutcomes) add(name string, mod int64, state task.State, dead bool, page int) {
	ref := record.Ref{Namespace: "default", Name: name}
	run := task.Run{State: state, Node: "n1"}
	ev := store.ShardEvent{ShardKey: record.ShardKey{Ref: ref, Run: fmt.Sprint("run-", mod)}, Task: ref.String(), Mod: mod}

	ev.Key, ev.Value = fmt.Sprint("history/", name, "/", mod), record.EncodeEnded(run)
	s.histories[ref.String()] = append(s.histories[ref.String()], ev)

	if dead {
		for len(s.dead) <= page {
			s.dead = append(s.dead, nil)
		}
		ev.Key, ev.Value = fmt.Sprint("dead/", name, "/", mod), record.EncodeWaiting(task.Waiting{Run: run})
		s.dead[page] = append(s.dead[page], ev)
	}
}

func (s *fakeOutcomes) DeadKeys(_ context.Context, _ int, after string) (events []store.ShardEvent, next string, rev int64, err error) {
	if s.failing > 0 {
		s.failing--
		return nil, "", 0, errors.New("unavailable")
	}

	page := 0
	_, _ = fmt.Sscan(after, &page)
	if page+1 < len(s.dead) {
		next = fmt.Sprint(page + 1)
	}

	return s.dead[page], next, listedAt, nil
}

func (s *fakeOutcomes) HistoriesOf(_ context.Context, refs []record.Ref) (keys [][]store.ShardEvent, rev int64, err error) {
	for _, ref := range refs {
		keys = append(keys, slices.Clone(s.histories[ref.String()]))
	}
	return keys, listedAt, nil
}

func (s *fakeOutcomes) RecordsAt(_ context.Context, keys []string, rev int64) (events []store.ShardEvent, err error) {
	if rev != listedAt {
		return nil, fmt.Errorf("read at revision %d", rev)
	}

	byKey := map[string]store.ShardEvent{}
	for _, list := range append(slices.Collect(maps.Values(s.histories)), s.dead...) {
		for _, ev := range list {
			byKey[ev.Key] = ev
		}
	}

	for _, key := range keys {
		events = append(events, byKey[key])
	}

	return events, nil
}

// outcomes returns two pages of dead runs. Of the tasks on them, "recovered" has succeeded since.
func outcomes() *fakeOutcomes {
	s := &fakeOutcomes{histories: map[string][]store.ShardEvent{}}
	s.add("fails", 3, task.Failed, true, 0)
	s.add("fails", 4, task.Skipped, false, 0)
	s.add("recovered", 5, task.Failed, true, 0)
	s.add("recovered", 6, task.Succeeded, false, 0)
	s.add("twice", 7, task.Failed, true, 1)
	s.add("twice", 8, task.TimedOut, false, 1)

	return s
}

// describe formats what a Reader has found.
func describe(found map[string]*Failure) (list []string) {
	for name, f := range found {
		list = append(list, fmt.Sprintf("%s %s at %d, %d in a row", name, f.State, f.Mod, f.InARow))
	}

	slices.Sort(list)

	return list
}

func TestReader_FindsTasksThatHaveNotSucceededSinceADeadRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewReader(outcomes(), zap.NewNop())
		go r.Run(t.Context())

		found := map[string]*Failure{}
		var more []bool
		refusals := 3 // the worker is busy at first

		r.Request(Request{Shard: 1, Deliver: func(f *Found) bool {
			if refusals > 0 {
				refusals--
				return false
			}

			maps.Copy(found, f.Failing)
			more = append(more, f.More)

			return true
		}})

		time.Sleep(time.Second)
		synctest.Wait()

		want := []string{"default/fails failed at 3, 1 in a row", "default/twice timed_out at 8, 2 in a row"}
		if got := describe(found); !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}

		if !slices.Equal(more, []bool{true, false}) {
			t.Errorf("more parts follow: %v", more)
		}
	})
}

func TestReader_ContinuesAfterAShardThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := outcomes()
		s.failing = 1
		r := NewReader(s, zap.NewNop())
		go r.Run(t.Context())

		var delivered []int
		deliver := func(shard int) func(*Found) bool {
			return func(*Found) bool {
				delivered = append(delivered, shard)
				return shard != 2 // the worker of shard 2 stays busy
			}
		}

		for shard := 1; shard <= 3; shard++ {
			r.Request(Request{Shard: shard, Deliver: deliver(shard)})
		}

		time.Sleep(time.Minute)
		synctest.Wait()

		tries := len(slices.DeleteFunc(slices.Clone(delivered), func(shard int) bool { return shard != 2 }))
		if slices.Contains(delivered, 1) || tries != 20 || !slices.Equal(delivered[tries:], []int{3, 3}) {
			t.Errorf("delivered to %d", delivered)
		}
	})
}
