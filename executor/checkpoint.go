package executor

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// checkpointEvery is the minimum time between two writes of an attempt's checkpoint to its
// record.
const checkpointEvery = 2 * time.Second

// reportedCheckpoint is the checkpoint that an attempt has reported to the loop.
type reportedCheckpoint struct {
	checkpoint *string   // nil before the first report
	wrote      time.Time // when it was last put into a record to be written; it limits how often that is
}

// hasNews reports whether the checkpoint differs from the recorded one and has to be written now.
func (s *reportedCheckpoint) hasNews(recorded string, now time.Time) bool {
	return s.checkpoint != nil && *s.checkpoint != recorded && now.Sub(s.wrote) >= checkpointEvery
}

// copyTo copies the checkpoint into a record that is about to be written.
// The attempt may still report while the record is being written, so the loop compares with the record again later.
func (s *reportedCheckpoint) copyTo(r *task.Run) {
	if s.checkpoint != nil {
		r.Checkpoint, s.wrote = *s.checkpoint, time.Now()
	}
}

// AttemptStatus returns what a run's attempt on this node has reported; false if none runs here.
func (e *Executor) AttemptStatus(namespace, name, run string) (task.AttemptStatus, bool) {
	return e.runner.StatusOf(namespace, name, run)
}

// AttemptStatuses returns the attempts on this node that have reported anything or are paused.
func (e *Executor) AttemptStatuses() []task.AttemptStatus {
	list := e.runner.Statuses()
	reported := list[:0]
	for _, v := range list {
		if v.Paused || v.Progress != nil || len(v.Results) > 0 || v.Checkpoint != "" || v.BadLines > 0 {
			reported = append(reported, v)
		}
	}

	return reported
}
