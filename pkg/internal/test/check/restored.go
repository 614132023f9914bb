package check

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// restoreJudge judges what is decided after a restore (G68). The history is that of the backup, continued by what was written after the
// restore: a recording of the former history up to the revision of the backup, and another one from the restore on (see JoinRestored).
// CheckLost compares it with what was lost.
type restoreJudge struct{ judge }

// isExcuse reports whether an outcome says that the run of a tick was not due, or that it may have run in a lost history.
func (r *runHistory) isExcuse() bool {
	return r != nil && (r.state == task.Skipped && (r.reason == task.ReasonFrozen || r.reason == task.ReasonShadow) || r.reason == task.ReasonRestored)
}

// checkTicks judges the decision of ticks: those that a lost history may have decided are missed, and no others are missed for that.
func (j *restoreJudge) checkTicks(ch *runChange, r *runHistory, rec *task.Run, ticks []int64, key string) {
	gap, isLost := j.cluster.gap, rec.State == task.Missed && rec.Reason == task.ReasonRestored
	if gap == nil && !isLost {
		return
	}

	timing := r.incarnation.epoch.ticks
	if timing == nil {
		return
	}

	for _, at := range ticks {
		switch covers := gap.Covers(timeOfMS(timing.DueAt(at))); {
		case covers && !isLost:
			j.breachTask("G68", ch.ref, at, key, "the tick is %s (%s), but a history that is lost may have decided it up to %s", rec.State, rec.Reason, formatTime(gap.Until.Time))
			return
		case !covers && isLost:
			j.breachTask("G68", ch.ref, at, key, "the tick is missed because of a restore, but no lost history can have decided it")
			return
		}
	}
}

// checkNodes judges the sessions that begin: no node joins that knows an older epoch of the cluster, because what it remembers is of
// another history.
func (j *restoreJudge) checkNodes(d *delta) {
	for name, n := range d.nodes {
		if n != nil && n.create == j.cluster.revision && n.epoch > 0 && n.epoch < j.cluster.epoch {
			j.addViolation("G68", j.keys.Node(name), "node %s joins in epoch %d of the cluster with what it knows of epoch %d", name, j.cluster.epoch, n.epoch)
		}
	}
}

// checkTTL judges the deletion of a task by its ttl: what a lost history may have done stays on record for a week after the restore.
func (j *restoreJudge) checkTTL(t *taskHistory, deleted task.Time) {
	gap := j.cluster.gap
	if gap == nil || deleted.Sub(gap.Restored.At.Time) >= keptRestored {
		return
	}

	for id, r := range t.runs {
		// Parts are on record as long as their run.
		if r.incarnation == t.entry.incarnation && r.ended && !r.isPart() && !r.trimmed && r.reason == task.ReasonRestored {
			j.breachTask("G68", t.ref, r.tick, "", "the task is deleted by its ttl, %s after the restore, although run %s may have run in the lost history",
				deleted.Sub(gap.Restored.At.Time), id)
		}
	}
}

// keptRestored is for how long after a restore the ttl deletes no task of which a run or a tick was lost.
const keptRestored = 7 * 24 * time.Hour

// checkDispatch judges a new attempt of a run that was in the backup: it follows from an end that is on record, or the task says that
// lost runs are retried. A run with parts gives out no part any more.
func (j *restoreJudge) checkDispatch(ch *runChange, r *runHistory, put inboxPut) {
	gap := j.cluster.gap
	if gap == nil {
		return
	}

	if parent := j.parentOf(ch, r); parent != nil {
		if parent.begun <= gap.Revision {
			j.breachTask("G68", ch.ref, r.tick, put.key, "part %s is given out after the restore, but its run had begun in the backup", ch.id)
		}
		return
	}

	e := j.cluster.taskOf(ch.ref).entry
	isRetried := e != nil && slices.Contains(e.Retry.On, task.Lost) && (r.trigger == task.TriggerManual || put.Attempt > 1)
	if isRetried || r.decidedRev > gap.Revision || r.queuedRev > gap.Revision {
		return
	}

	j.breachTask("G68", ch.ref, r.tick, put.key, "run %s was in the backup, and is started after the restore", ch.id)
}

// parentOf returns the run to which a part belongs, or nil.
func (j *restoreJudge) parentOf(ch *runChange, r *runHistory) *runHistory {
	if !r.isPart() {
		return nil
	}
	parent, _ := j.cluster.parentOf(ch.ref, ch.id)

	return parent
}

// checkReason judges a final record whose reason is the restore: its run was in the backup, unless it is that of a tick or of a trigger.
func (j *restoreJudge) checkReason(ch *runChange, r *runHistory, from task.State) {
	e := ch.ended
	if e.Reason != task.ReasonRestored || from == "" && e.State == task.Missed {
		return
	}

	if gap := j.cluster.gap; gap == nil || r.decidedRev > gap.Revision && j.parentOf(ch, r) == nil {
		j.breachTask("G68", ch.ref, r.tick, ch.endedKey, "run %s ends as %s because of a restore, but it has begun after that", ch.id, e.State)
	}
}

// isAnyPartLost reports whether a restore has lost how a part of a run ended.
func (c *clusterState) isAnyPartLost(ref record.Ref, run string, f *task.Fan) bool {
	return slices.ContainsFunc(f.Numbers(), func(i int) bool {
		p := c.taskOf(ref).runs[task.PartID(run, i)]
		return p != nil && p.ended && p.reason == task.ReasonRestored
	})
}

// stateOfCut returns the state of a run, or of a part, that was cut short for a reason.
func stateOfCut(reason string) task.State {
	if reason == task.ReasonRestored {
		return task.Lost
	}
	return task.Cancelled
}

// JoinRestored returns the history of a cluster that was restored: that of the backup, which was made at a revision, and what was written
// after the restore. lost is the rest of the former history.
func JoinRestored(former []Event, backup int64, restored []Event) (joined, lost []Event) {
	n, _ := slices.BinarySearchFunc(former, backup+1, func(e Event, revision int64) int { return int(min(max(e.Revision-revision, -1), 1)) })

	return slices.Concat(former[:n], restored), former[n:]
}

// CheckLost compares what was written after a restore with the history that it has lost: revisions, and so tokens, are higher than any of
// the lost history, and no attempt that the lost history has started begins again, unless its task says that lost runs are retried (G68).
func CheckLost(keys record.Keys, lost, restored []Event) (violations []Violation) {
	wrong := func(revision int64, format string, args ...any) {
		violations = append(violations, Violation{Promise: "G68", Revision: revision, Message: fmt.Sprintf(format, args...)})
	}

	if len(lost) > 0 && len(restored) > 0 && restored[0].Revision <= lost[len(lost)-1].Revision {
		wrong(restored[0].Revision, "the revisions after the restore begin below those of the lost history, which ended at %d", lost[len(lost)-1].Revision)
	}

	began := attemptsIn(keys, lost)
	again := attemptsIn(keys, restored)
	for _, id := range slices.Sorted(maps.Keys(again)) {
		for _, a := range again[id] {
			if len(began[id]) == 0 || a.Attempt > 1 || slices.Contains(a.Retry.On, task.Lost) {
				continue
			}
			wrong(a.create, "run %s is started, but the lost history has started it, too, at revision %d", id, began[id][0].create)
		}
	}

	return violations
}

// attemptsIn returns the attempts that a history starts, by their runs.
func attemptsIn(keys record.Keys, events []Event) map[string][]inboxRecord {
	all := map[string][]inboxRecord{}
	for _, ev := range events {
		k, ok := keys.ParseRun(ev.Key)
		if !ok || ev.Deleted || ev.CreateRevision != ev.Revision {
			continue
		}

		a, err := record.DecodeAssigned(k, ev.CreateRevision, ev.Value)
		if err != nil {
			continue
		}
		id := k.Ref.Namespace + "/" + k.Ref.Name + " " + k.Run
		all[id] = append(all[id], inboxRecord{Assigned: a, create: ev.Revision})
	}

	return all
}
