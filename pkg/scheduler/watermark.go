package scheduler

import (
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// loadWatermark computes the next ticks of all tasks from the watermark in a page of a load. The watermark
// is in the last page. A damaged one is ignored here, because the opening of the shard reports it.
func (s *shardState) loadWatermark(b store.ShardBatch) {
	for i := len(b.Events) - 1; i >= 0; i-- {
		if b.Events[i].Kind != record.KindWatermark {
			continue
		}

		if mark, err := record.DecodeWatermark(b.Events[i].Value); err == nil {
			s.setWatermark(mark)
		}

		return
	}
}

// setWatermark sets a watermark that this worker has not written by a plan, and computes the next ticks of
// the tasks that it affects.
func (s *shardState) setWatermark(mark record.Watermark) {
	before := s.Watermark
	s.Watermark = mark

	// It is the first one, or it is lower than the one before: any task may be affected.
	if !s.watermarkKnown || mark.Time.Before(before.Time.Time) || mark.Seen < before.Seen {
		s.watermarkKnown = true
		for t := range s.Tasks.All() {
			s.rescheduleTask(t)
		}
		return
	}

	// Only tasks with a tick up to the new watermark are affected. For all others, the next tick stays the
	// same, whether or not the watermark covers the task.
	for _, t := range s.due.UpTo(mark.Time.UnixMilli()) {
		s.rescheduleTask(t)
	}
}
