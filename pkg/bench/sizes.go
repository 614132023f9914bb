package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// sizes are the sizes of the written values, in bytes.
type sizes struct{ run, ended, mark, spec, entry int }

// plainSizes returns equal sizes, as documents and comparisons with other systems use them.
func plainSizes(bytes int) sizes { return sizes{bytes, bytes, bytes, bytes, bytes} }

// sizesOf returns the sizes of the records of a load, as store writes them.
func sizesOf(ctx context.Context, l load) (n sizes, err error) {
	t, e := l.makeTask(0)

	// Make one record of each kind, as in a run of the load.
	now := task.At(time.Now())
	run := task.Run{
		ID: task.RunID(now.Time, t.UID), UID: t.UID, Namespace: t.Namespace, Task: t.Name, ScheduledTime: now, State: task.Dispatched,
		Trigger: task.TriggerSchedule, Node: nodeName, Owner: nodeName, Attempt: 1, CreatedAt: now, DispatchedAt: now,
	}
	held := record.Held{Create: 1e6, Assigned: task.Assigned{
		Run: run, Instance: t.UID, Generation: 1, Action: e.Action, KillGrace: e.KillGrace, Retry: e.Retry,
	}}
	ended := run
	ended.State, ended.StartedAt, ended.EndedAt, ended.LatenessMS = task.Succeeded, now, now, new(int64(1))

	action, err := json.Marshal(e.Action)
	if err != nil {
		return n, err
	}

	keys, err := record.NewKeys("/sizes")
	if err != nil {
		return n, err
	}

	// Let store encode them into a committer that only collects the writes.
	var ops putCollector
	s := store.New(nil, &ops, keys)
	commit := s.NewCommit(0, store.Fences{}, 1, record.Watermark{Time: now, Seen: 1e6})
	commit.Claim(&held.Assigned, string(action), 1)

	if _, err := s.Commit(ctx, commit); err != nil {
		return n, err
	}
	if err := s.Finish(ctx, held, ended, nil); err != nil {
		return n, err
	}
	if _, err := s.CreateTask(ctx, held.Ref(), t, e); err != nil {
		return n, err
	}

	var of []int
	for _, op := range ops {
		if op.IsPut() {
			of = append(of, len(op.ValueBytes()))
		}
	}

	// The order is that of the calls above. A change of store that breaks it is detected here.
	if len(of) != 5 {
		return n, fmt.Errorf("a claim, its watermark, its end, a spec and an entry are %d records", len(of))
	}

	return sizes{run: of[0], mark: of[1], ended: of[2], spec: of[3], entry: of[4]}, nil
}
