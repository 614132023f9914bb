package audit

import (
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// tickJudge judges whether the due ticks of a shard's tasks are decided (G16).
type tickJudge struct {
	judge

	// For the shard that is being read:
	overdue    int64      // tasks with an undecided tick
	oldest     int64      // the oldest of these ticks, in ms; 0: none
	oldestTask record.Ref // the task of that tick
}

// checkTicks finds a tick that has been due for longer than the task's grace for missed ticks and is not decided.
// created is the create revision of the entry.
func (j *tickJudge) checkTicks(s *shardState, ref record.Ref, e task.Entry, created int64) {
	if s.watermarkMod == 0 {
		return // the missing watermark is a separate finding
	}

	sched, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	if err != nil {
		return
	}

	// after is the time up to which the task's ticks are decided or do not exist.
	after := e.From.Time
	if created <= s.watermark.Seen {
		if last, any := sched.LastDue(decidedUpTo(s.watermark, ref), e.UID); any && last.After(after) {
			after = last
		}
	}

	if until, paused := e.Silence(); paused && until.After(after) {
		after = until.Time
	}

	// The next tick is overdue when its grace and the tolerance for clocks have passed.
	tick, ok := sched.Next(after)
	late := j.reader.at.Add(-max(e.Missed.Grace.Std(), 0) - maxClockSkew)
	if !ok || sched.Due(tick, e.UID).After(late) {
		return
	}

	j.overdue++
	if at := tick.UnixMilli(); j.oldest == 0 || at < j.oldest {
		j.oldest, j.oldestTask = at, ref
	}
}

// finishShard suspects the watermark of a shard that does not move although ticks are due. The task's ticks are
// only evidence: the finding is confirmed if watermark and owner have not changed at the second read.
func (j *tickJudge) finishShard(s *shardState) {
	overdue, oldest, oldestTask := j.overdue, j.oldest, j.oldestTask // tasks with a due tick that is not decided
	j.overdue, j.oldest, j.oldestTask = 0, 0, record.Ref{}
	if overdue == 0 {
		return
	}

	o := j.cluster.owners[s.id]
	watermarkKey, ownerKey := j.keys.Watermark(s.id), j.keys.Owner(s.id)
	f := kindWatermarkStalled.newFinding(fmt.Sprintf("%s of shard %d (owner %q) have undecided ticks: the oldest, of %s, was due %s; the watermark is at %s",
		countOf(overdue, "task"), s.id, o.Node, oldestTask, j.reader.formatAgo(time.UnixMilli(oldest)), watermarkText(s.watermark)),
		watermarkKey, ownerKey, j.keys.Entry(oldestTask))
	f.Count = overdue
	j.addSuspect(f, store.Seen{Key: watermarkKey, Mod: s.watermarkMod}, store.Seen{Key: ownerKey, Mod: o.Fence})
}

// decidedUpTo returns the time up to which a watermark decides the ticks of a covered task. Tasks that sort after
// its last task are decided only up to the millisecond before.
func decidedUpTo(w record.Watermark, ref record.Ref) time.Time {
	if w.Last != "" && ref.String() > w.Last {
		return w.Time.Add(-time.Millisecond)
	}
	return w.Time.Time
}

// countOf formats a number of things.
func countOf(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
