package tasks

import (
	"context"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// If the number of runs is limited, all ticks before the page are counted, here those of seventy years. Other
// requests wait meanwhile.
func TestLookAhead_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	first := tickHeap{most: 1, after: &tickPlace{at: now.AddDate(70, 0, 0).UnixMilli()}}
	e := &task.Entry{Schedule: task.Schedules{"@every 100ms"}, Timezone: "UTC", DST: task.Defaults().DST, Anchor: task.At(now), From: task.At(now), MaxRuns: 1_000_000_000}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		lookAhead(ctx, &first, record.Ref{Namespace: "default", Name: "a"}, e, now, time.Time{}, true)
	}()

	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("lookAhead continues")
	}

	if len(first.kept) > 0 {
		t.Errorf("%v", first.kept)
	}
}
