package scheduler

import (
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// loadWatermark finds the next ticks of all tasks, by the watermark as it was loaded. It
// is the last of what is loaded. One that is damaged is found when the shard is opened.
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

// setWatermark takes a watermark that another has written, and finds the next ticks of
// the tasks for which it matters.
func (s *shardState) setWatermark(mark record.Watermark) {
	before := s.Watermark
	s.Watermark = mark
	if !s.watermarkKnown || mark.Time.Before(before.Time.Time) || mark.Seen < before.Seen {
		s.watermarkKnown = true
		for _, t := range s.Tasks {
			s.rescheduleTask(t)
		}
		return
	}

	// A tick after the watermark is the next one still, whether the watermark
	// covers its task now or did before.
	for _, t := range s.due.UpTo(mark.Time.UnixMilli()) {
		s.rescheduleTask(t)
	}
}
