package scheduler

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/absence"
	"github.com/carillonhq/carillon/pkg/store"
)

// maxReadingsPerRound is how many attempts one round reads. Due ticks wait meanwhile.
const maxReadingsPerRound = 600

// neededReadings returns the attempts to read now, among the tasks that are noted for examination. cleared
// holds the instances for which it is known whether they are proved dead. unknown are instances for which
// that must be found out first: the caller does so and calls neededReadings again.
func (s *shardState) neededReadings(now time.Time, cleared map[string]bool) (list []absence.Reading, unknown []string) {
	for _, t := range s.toExamine {
		for _, a := range t.Active() {
			_, present := s.placement.Present(a.Node)
			wasAway := a.IsAway()
			step := absence.Examine(t, a, present, now, s.clearedAfter, cleared)
			if a.IsAway() != wasAway {
				s.rows.Touch(t)
			}

			switch {
			case step.Prove != "":
				if !slices.Contains(unknown, step.Prove) {
					unknown = append(unknown, step.Prove)
				}
			case !step.Again.IsZero():
				s.examineAgainAt(t, step.Again)
			case !step.Read && !step.Cancel:
			case len(list) == maxReadingsPerRound: // the rest follows in the next round
				s.examineAgainAt(t, now)
			default:
				list = append(list, absence.Reading{Task: t, Attempt: a, Cancel: step.Cancel})
			}
		}
	}

	return list, unknown
}

// applyReading applies what was read of an attempt. now is the time of the round, and read the time
// immediately after the reading.
func (s *shardState) applyReading(r absence.Reading, v store.Sighting, now, read time.Time) {
	if r.First() && !v.NodePresent && v.Err != nil {
		s.addNotice(notice{kind: attemptUnreadable, task: r.Task.FullName(), run: r.Attempt.Run, err: v.Err})
	}

	s.rows.Touch(r.Task)
	if r.Apply(v, read) {
		s.examineAgainAt(r.Task, now.Add(s.clearedAfter))
	}
}
