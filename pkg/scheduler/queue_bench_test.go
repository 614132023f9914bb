package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// BenchmarkLongQueue measures what an event costs the owner of a task of which many manual runs wait for the active
// one.
func BenchmarkLongQueue(b *testing.B) {
	for _, n := range []int{10, 100, task.MaxManualWaiting} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newWorld(b, "n1")
			h := w.work("n1")
			w.create("a", cronned("@manual"))
			w.trigger("a")
			h.see()
			h.blind(1)

			uid := h.state.TaskNamed("default/a").UID()
			var events []store.ShardEvent
			for i := range n {
				at := start.Add(time.Duration(i) * time.Millisecond)
				run := task.Run{
					ID: task.ManualRunID(at, uid), UID: uid, Namespace: "default", Task: "a", Attempt: 1, ScheduledTime: task.At(at),
					Trigger: task.TriggerManual, State: task.Queued, Reason: task.ReasonManual,
				}
				events = append(events, store.ShardEvent{
					ShardKey: record.ShardKey{Kind: record.KindQueued, Ref: ref("a"), Run: run.ID}, Key: w.store.Keys().Queued(ref("a"), run.ID),
					Task: "default/a", Mod: int64(1000 + i), Create: int64(1000 + i), Value: record.EncodeWaiting(task.Waiting{Run: run}),
				})
			}

			h.state.applyRecords(store.ShardBatch{Events: events, Revision: 1}, start)
			for b.Loop() {
				h.state.applyRecords(store.ShardBatch{Events: events[n-1:], Revision: 1}, start)
				h.state.applyAbandoned(h.planRound(sec(2)))
			}
		})
	}
}
