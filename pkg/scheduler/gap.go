package scheduler

import (
	"fmt"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/task"
)

// After a restore, etcd does not know what the cluster has decided since the backup was made. The owner must not decide it a second
// time, so it treats everything that the lost history may have decided as lost (task.Gap):
//
//   - Ticks that are due up to the end of the gap are missed (DecideLate, decideTick).
//   - Triggers of the backup are missed (takeTriggers).
//   - Runs of the backup that wait are missed if nothing of them has begun, and otherwise lost (endRestored).
//   - Runs of the backup that have parts give out no part any more, and are lost (decideRun, decideFlow).
//   - Attempts in inboxes are lost as those of any node that is gone: when its processes are proved dead, or after lost_after.
//
// A record is one of the backup if its create revision is. Its mod revision would not do, because users may change the record before
// its owner has seen it. All of this follows from records and from the restore, so it does not matter which owner decides it, and when.
// In a cluster that was never restored, or only moved, the gap is nil.

// isLost reports whether a lost history may have decided the next tick of t.
func (s *shardState) isLost(t *state.Task) bool {
	return s.fences.Gap != nil && s.fences.Gap.Covers(state.Instant(t.DueAt()))
}

// lostUntil returns up to when ticks are lost; zero: none are.
func (s *shardState) lostUntil() time.Time {
	if s.fences.Gap == nil {
		return time.Time{}
	}
	return s.fences.Gap.Until.Time
}

// isRestored reports whether a record with a create revision was in the backup of a restore that has lost something.
func (s *shardState) isRestored(create int64) bool { return s.fences.Gap.HasRecord(create) }

// describeMissed returns the evidence why ticks or triggers of t were missed, for people.
func (p *plan) describeMissed(t *state.Task, reason string) string {
	if reason == task.ReasonRestored {
		return p.s.fences.Gap.String()
	}
	return p.s.opening.DescribeMissed(reason, p.s.ports.node, &p.s.records, t, p.now)
}

// missLost records that a tick may have run in a lost history.
func (p *plan) missLost(t *state.Task, tick int64) {
	at := state.Instant(tick)
	p.missTicks(t, tickpolicy.MissedTicks{First: at, Last: at, Count: 1, Reason: task.ReasonRestored})
}

// endRestored decides a waiting run of the backup, which may have gone on in the lost history:
//
//   - A run that has not begun, and that nobody has requested, is missed.
//   - Any other run goes on if its task retries lost runs and it has no parts. A run with parts could not be told from one that had begun.
//   - Otherwise the run is lost, and somebody has to decide whether it runs again.
//
// ended reports whether the plan ends the run. ok is false if the commit has no room.
func (p *plan) endRestored(t *state.Task, q *state.Waiting) (ended, ok bool) {
	switch isRequested := q.Trigger == task.TriggerManual && !q.IsBootRun(); {
	case !isRequested && !q.DispatchedBefore():
		return true, p.endQueued(t, q, task.Missed, task.ReasonRestored)
	case slices.Contains(t.Policy.Retry.On, task.Lost) && q.Fan == nil && !t.Policy.Target.FansOut() && !t.IsWorkflow():
		return false, true
	}

	return true, p.endQueued(t, q, task.Lost, task.ReasonRestored)
}

// lostMessage returns what the record of a lost attempt says, for people: that it was in the backup, and message.
func (s *shardState) lostMessage(create int64, message string) string {
	switch {
	case !s.isRestored(create):
		return message
	case message == "":
		return s.fences.Gap.String()
	}

	return fmt.Sprintf("%s; %s", s.fences.Gap, message)
}
