package schedule

import "github.com/carillonhq/carillon/pkg/task"

// policy determines what cron expressions do where the clock changes.
type policy struct {
	skipGap  bool // the ticks of a gap do not exist; otherwise one tick at its end stands for them
	foldBoth bool // ticks exist in both passes of a fold; otherwise only in the first
}

// newPolicy returns the policy of a task, or an error for unknown values. Empty values stand for the defaults.
func newPolicy(dst task.DST) (policy, error) {
	var p policy

	switch dst.Gap {
	case "", task.GapRunAfter:
	case task.GapSkip:
		p.skipGap = true
	default:
		return p, task.NoneOf(task.CodeBadValue, "dst.gap", dst.Gap, task.GapRunAfter, task.GapSkip)
	}

	switch dst.Fold {
	case "", task.FoldFirst:
	case task.FoldBoth:
		p.foldBoth = true
	default:
		return p, task.NoneOf(task.CodeBadValue, "dst.fold", dst.Fold, task.FoldFirst, task.FoldBoth)
	}

	return p, nil
}

// runsAfterGap reports whether the rule has a tick at the start of a period that stands for ticks in the gap
// before it.
func (r *rule) runsAfterGap(st *offsetPeriod, p policy) bool {
	return st.startsWithGap() && !r.realTime && !p.skipGap &&
		r.nextLocal(st.start+st.before, st.start+st.offset) != noInstant
}

// localStart returns the local time from which the rule's ticks in a period count. After a fold, local times that
// the period before has already shown are left out, unless the policy includes both passes.
func (r *rule) localStart(st *offsetPeriod, p policy) int64 {
	if st.startsWithFold() && !r.realTime && !p.foldBoth {
		return st.start + st.before
	}
	return st.start + st.offset
}

// nextTick returns the rule's first tick not before from, an instant of 1970 to 2100 in seconds, or noInstant.
func (r *rule) nextTick(z *zone, p policy, from int64) int64 {
	for i := z.periodAt(from); i < len(z.periods); i++ {
		st := &z.periods[i]

		// The tick that stands for a gap is at the very start of the period, so it comes before all others there.
		if from <= st.start && r.runsAfterGap(st, p) {
			return st.start
		}

		start := max(from+st.offset, r.localStart(st, p))
		if local := r.nextLocal(start, st.end+st.offset); local != noInstant {
			return local - st.offset
		}
	}

	return noInstant
}

// previousTick returns the rule's last tick not after to, an instant of 1970 to 2100 in seconds, or noInstant.
func (r *rule) previousTick(z *zone, p policy, to int64) int64 {
	for i := z.periodAt(to); i >= 0; i-- {
		st := &z.periods[i]
		end := min(to, st.end-1) + st.offset
		if local := r.previousLocal(end, r.localStart(st, p)); local != noInstant {
			return local - st.offset
		}
		if r.runsAfterGap(st, p) {
			return st.start
		}
	}

	return noInstant
}
