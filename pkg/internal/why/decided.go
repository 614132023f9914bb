package why

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// explainMissingOutcome explains a tick that was decided but has no outcome on record. The cases are ordered by
// what is certain: records that were not read, what the ledger counts, records that may have been trimmed, a change
// of the task before the tick was decided, and a missing record, which is a violation of G4.
func (f *Facts) explainMissingOutcome(g *finding, all []version) {
	cut := cutOff(all, g.version, g.tick)
	trimmed, reason := f.mayBeTrimmed(all, g)
	switch {
	case f.isUnread(g.tick):
		g.verdict = task.VerdictForgotten
		g.unknown = append(g.unknown, "the outcome was not read, because the task has too many records: ask for that tick alone, or for a shorter range")
	case f.applyCountedTick(g, all):
	case trimmed:
		g.verdict = task.VerdictForgotten
		g.unknown = append(g.unknown, "the outcome: "+reason)
		f.explainNoLine(g)
	case cut != nil:
		g.verdict, g.cut = task.VerdictOvertaken, cut
	case f.pausedSoon(g):
		g.verdict = task.VerdictOvertaken
	default:
		g.verdict = task.VerdictForgotten
		g.unknown = append(g.unknown, "the outcome: there is no record, although no records of that time have been trimmed; carillon audit may show more")
	}
}

// pausedSoon finds a pause that began after the tick was due and before it was decided. Such a tick is dropped.
func (f *Facts) pausedSoon(g *finding) bool {
	if f.Entry == nil || f.Entry.Own == nil {
		return false
	}

	for i := range f.Entry.Own.Pauses {
		if p := &f.Entry.Own.Pauses[i]; !p.Since.Before(g.tick) {
			g.pause = p
			return true
		}
	}

	return false
}

// mayBeTrimmed reports whether the outcome of a tick may have been deleted because newer runs replaced it, and
// describes why.
func (f *Facts) mayBeTrimmed(all []version, g *finding) (bool, string) {
	// The history limits of all versions since the tick apply, because each of them may have trimmed.
	keep := g.version.History.Keep
	for i := range all {
		if v := &all[i]; v.Generation >= g.version.Generation {
			keep = min(keep, v.History.Keep)
		}
	}

	later := f.endedAfter(g.tick)
	switch {
	case later >= int64(keep):
		return true, fmt.Sprintf("Carillon keeps the last %s of the task (history.keep), and %s ended after this tick",
			formatCount(int64(keep), "run", "runs"), formatCount(later, "recorded run", "recorded runs"))
	case !f.isComplete(g.tick):
		return true, "records of the task have been deleted"
	}

	return false, ""
}

// explainFutureTick predicts the outcome of a future tick from the current state.
func (f *Facts) explainFutureTick(g *finding, all []version) {
	g.version = &all[len(all)-1]
	e := f.Entry
	if len(f.BrokenTask) > 0 || e == nil {
		g.verdict, g.detail = task.VerdictUnreadable, strings.Join(f.BrokenTask, " and ")
		return
	}

	// Ticks before this one use up max_runs as well. Their number is computed from the schedule.
	if e.MaxRuns > 0 {
		var had int64
		if e.Own != nil {
			had = e.Own.Runs
		}

		from := f.Now
		if from.Before(e.From.Time) {
			from = e.From.Time
		}

		if until, ends := e.Silence(); ends && from.Before(until.Time) {
			from = until.Time
		}

		_, _, between, _ := g.version.schedule.Missed(from, g.tick.Add(-tickPrecision), 0)
		if had+between >= e.MaxRuns {
			g.verdict = task.VerdictEnded
			g.detail = fmt.Sprintf("max_runs is %d, %s, and %s before it", e.MaxRuns, formatCount(had, "tick has run", "ticks have run"), formatCount(between, "tick comes", "ticks come"))
			return
		}
	}

	if z := f.Freezes.Of(f.Namespace); z != nil {
		g.verdict, g.freeze = task.VerdictFrozen, z
		return
	}

	if e.Shadow {
		g.verdict, g.reason = task.VerdictShadow, task.ReasonShadow
		return
	}

	if f.forbidden() != "" {
		g.verdict, g.reason = task.VerdictForbidden, task.ReasonNamespace
		return
	}

	if n := len(f.eligibleNodes()); !e.Target.Enough(n) {
		g.verdict, g.reason = task.VerdictNoNode, task.ReasonNoNode
		if n > 0 {
			g.reason = task.ReasonCount
		}
		return
	}

	g.verdict = task.VerdictWillRun
	if e.Paused {
		g.pause = f.pauseAt(all, f.Now) // it has an end before the tick; otherwise the tick would not exist
	}
}

// explainUndecided explains why a due tick has not been decided.
func (w wording) explainUndecided(due time.Time) string {
	behind := w.Now.Sub(due)
	watermark := ""
	if mark := w.Watermark; mark != nil && mark.Time.Year() > 1970 {
		watermark = "; the ticks of the shard are decided up to " + w.formatTime(mark.Time)
	}

	o := w.Owner
	switch {
	case o == nil || o.Node == "":
		return fmt.Sprintf("its shard (%d) has no owner%s", w.Shard, watermark)
	case w.nodeNamed(o.Node) == nil:
		return fmt.Sprintf("its shard (%d) has no owner now: it is assigned to %s, which is not present%s", w.Shard, o.Node, watermark)
	}

	n := w.nodeNamed(o.Node)
	switch {
	case !n.Has(task.RoleScheduler):
		return fmt.Sprintf("its shard (%d) is assigned to %s, which does not have the scheduler role%s", w.Shard, n.Name, watermark)
	case n.Ineligible != "":
		return fmt.Sprintf("its shard (%d) is assigned to %s, which schedules nothing now (%s)%s", w.Shard, n.Name, n.Ineligible, watermark)
	// A tick normally is decided within milliseconds, so a few seconds are not a problem yet.
	case behind < 3*time.Second:
		return fmt.Sprintf("it was due %s ago, and %s is deciding it now", formatSpan(behind), n.Name)
	case !w.Covered && w.Entry != nil:
		return fmt.Sprintf("%s, the owner of its shard (%d), has not processed the task since it was created%s", n.Name, w.Shard, watermark)
	}

	return fmt.Sprintf("%s has owned its shard (%d) since %s and has not processed the tick yet%s", n.Name, w.Shard, w.formatTime(o.Since), watermark)
}
