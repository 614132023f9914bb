package why

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// maxStretches is the maximum number of lines in an answer about a range. The counts cover the whole range.
const maxStretches = 200

// answerRange answers a question about a range, inclusive at both ends.
func (an *answerer) answerRange(from, to *Moment) task.Answer {
	start, end := from.rangeStart(), to.rangeEnd()
	a := task.Answer{Verdict: task.VerdictRange, Counts: map[task.Verdict]int64{}}
	a.Asked.Times = []task.Time{task.At(start), task.At(end)}
	var last finding
	var ticks int64
	for _, p := range an.splitRange(start, end) {
		ticks += p.count
		if p.counts == nil {
			p.counts = tally{p.verdict: p.count}
		}

		for verdict, n := range p.counts {
			a.Counts[verdict] += n
		}

		for _, u := range p.unknown {
			if !slices.Contains(a.Unknown, u) {
				a.Unknown = append(a.Unknown, u)
			}
		}

		if p.count == 0 {
			continue
		}

		// Consecutive ticks with the same outcome share one line.
		n := len(a.Stretches)
		if n > 0 && len(p.counts) == 1 && last.sameOutcome(p.finding) && !a.Stretches[n-1].Manual {
			s := &a.Stretches[n-1]
			s.Count += p.count
			if p.last.After(s.Last.Time) {
				s.Last = task.At(p.last)
			}

			continue
		}

		s := task.Stretch{Verdict: p.verdict, Reason: p.reason, First: task.At(p.first), Last: task.At(p.last), Count: p.count}
		if last = p.finding; len(p.counts) > 1 {
			last.verdict = "" // nothing else shares its line
			s.Sentence = an.describeMixed(&s, p.counts)
		}

		a.Stretches = append(a.Stretches, s)
	}

	a.Unknown = append(a.Unknown, an.unknownTicks(interval{start, end})...)

	for i := range a.Stretches {
		if s := &a.Stretches[i]; s.Sentence == "" {
			s.Sentence = an.describeStretch(s)
		}
	}

	if m, ok := an.manualRuns(start, end); ok {
		a.Stretches = append(a.Stretches, m)
	}

	between := fmt.Sprintf("from %s to %s", an.formatTime(start), an.formatTime(end))
	if to.Grain == oneDay {
		between = fmt.Sprintf("from %s until %s", an.formatTime(start), an.formatTime(end.Add(tickPrecision)))
	}

	a.Sentence = an.describeRange(&a, start, between, ticks)
	if n := len(a.Stretches); n > maxStretches {
		a.Unknown = append(a.Unknown, formatCount(int64(n-maxStretches), "more group", "more groups")+" of ticks: ask for a shorter range")
		a.Stretches = a.Stretches[:maxStretches]
	}

	return a
}

// unknownTicks returns what is not known about the ticks of a range: if they cannot be computed, those whose records are gone
// are not even counted.
func (an *answerer) unknownTicks(asked interval) []string {
	if an.Task == nil {
		return nil
	}

	past := asked.intersect(interval{an.Task.CreatedAt.Add(tickPrecision), an.Now})
	if past.last.Before(past.first) || isComputable(an.all, an.Task, past) || an.isComplete(past.first) {
		return nil
	}

	return []string{"ticks whose records are gone: the schedule of a part of the range is not on record, or its ticks followed the ends of runs"}
}

// piece is a sequence of consecutive ticks with the same outcome. Its finding is that of one of them.
type piece struct {
	finding
	first, last time.Time
	count       int64 // may be 0 if something of the range is not known

	// If the ledger only counts the outcomes of these ticks: the time in which they are, and the counts.
	within interval
	counts tally
}

// splitRange splits a range at every time at which the outcome can change: outcomes, changes of the task,
// pauses, the watermark, and now. Between two such times, ticks are counted and not listed, so a long range is
// cheap.
//
// Each tick is counted once: by its own record, in a group with ticks that cannot be computed (groupPieces), or as one of
// the ticks of the schedule. Those of a block of the ledger form one piece, whatever is between
// them: records, or a pause.
func (an *answerer) splitRange(start, end time.Time) []piece {
	asked := interval{start, end}
	cuts, blocks := an.cutTimes(start, end)
	groups := an.groupPieces(asked)
	mixed := map[int]int{} // the indexes of the pieces of blocks

	var list []piece
	for i := 1; i < len(cuts); i++ {
		after, upTo := cuts[i-1], cuts[i] // the ticks after `after`, up to and including upTo
		for len(groups) > 0 && !groups[0].first.After(upTo) {
			list, groups = append(list, groups[0]), groups[1:]
		}

		if r := an.findOutcome(upTo); r != nil && r.Count <= 1 { // a record counts even if the schedule of that time is not known
			list = append(list, piece{finding: an.judgeTick(an.all, upTo), first: upTo, last: upTo, count: 1})
			continue
		}

		v := inForce(an.all, upTo)
		if v == nil || v.vague || v.schedule == nil {
			continue
		}

		first, last, n, _ := v.schedule.Missed(after, upTo, 0)
		if n == 0 {
			continue
		}

		p := piece{finding: an.judgeTick(an.all, first), first: first, last: last, count: n}
		isPast := p.line != nil || p.verdict == task.VerdictForgotten

		block := slices.IndexFunc(blocks, func(b interval) bool { return b.contains(upTo) })
		switch index, exists := mixed[block]; {
		case !v.isCountable() && (isPast || p.run != nil):
			// The one tick of a schedule after completion that can be computed. It has been counted: it is in a record or a line.
		case isPast && block >= 0 && exists:
			list[index].last, list[index].count = p.last, list[index].count+n
		case isPast && block >= 0:
			mixed[block], p.within = len(list), blocks[block].intersect(asked)
			list = append(list, p)
		case an.isInGroup(p, asked): // it has been counted
		default:
			list = append(list, an.upToMaxRuns(p)...)
		}
	}

	for _, index := range mixed {
		an.countMixed(&list[index])
	}

	return list
}

// upToMaxRuns splits future ticks at the one with which max_runs is reached.
func (an *answerer) upToMaxRuns(p piece) []piece {
	const far = 10_000 // the maximum number of ticks that are enumerated here

	if p.verdict == task.VerdictEnded || an.Entry == nil || an.Entry.MaxRuns == 0 || !p.due.After(an.Now) {
		return []piece{p}
	}

	end := an.judgeTick(an.all, p.last)
	if end.verdict != task.VerdictEnded {
		return []piece{p}
	}

	tick, n := p.first, int64(1)
	for ; n < min(p.count, far); n++ {
		next, ok := p.version.nextTick(tick)
		if g := an.judgeTick(an.all, next); !ok || g.verdict == task.VerdictEnded {
			return []piece{{finding: p.finding, first: p.first, last: tick, count: n}, {finding: g, first: next, last: p.last, count: p.count - n}}
		}
		tick = next
	}

	return []piece{p}
}

// cutTimes returns the times at which pieces end, in order. The first one is just before start. blocks contains the
// intervals of which the ledger only counts the outcomes.
func (an *answerer) cutTimes(start, end time.Time) (cuts []time.Time, blocks []interval) {
	cuts = []time.Time{start.Add(-tickPrecision), end}
	add := func(at time.Time) {
		if !at.Before(start) && at.Before(end) {
			cuts = append(cuts, task.At(at).Time)
		}
	}

	an.stateChanges(an.all, add)
	blocks = an.ledgerCuts(start, end, add)

	// A record with Count > 1 covers all ticks from ScheduledTime to Last.
	for _, r := range an.Runs {
		if r.Ticks() == 0 {
			continue
		}

		add(r.ScheduledTime.Add(-tickPrecision))

		if r.Count > 1 {
			add(r.Last.Time)
		} else {
			add(r.ScheduledTime.Time)
		}
	}

	for _, p := range an.Unread {
		add(p.From.Add(-tickPrecision))
		add(p.To)
	}

	// The last pieces separate decided ticks from undecided ones, and these from future ones.
	if m := an.Watermark; m != nil {
		an.cutDue(add, m.Time)
	}

	an.cutDue(add, an.Now)
	slices.SortFunc(cuts, time.Time.Compare)

	return slices.CompactFunc(cuts, time.Time.Equal), blocks
}

// stateChanges calls add for the times at which a version came into force or a pause began or ended.
func (f *Facts) stateChanges(all []version, add func(time.Time)) {
	for i := range all {
		add(all[i].startTime())
		add(all[i].PausedUntil.Time)
	}

	e := f.Entry
	if e == nil {
		return
	}

	add(e.From.Time)

	if e.Own != nil {
		for _, p := range e.Own.Pauses {
			add(p.Since.Time)
			add(p.Until.Time)
			add(p.Ended.Time.Add(-tickPrecision))
		}
	}
}

// cutDue adds cuts around an instant, and around the last tick that is due at it, because with jitter a tick
// before the instant may not be due yet.
func (an *answerer) cutDue(add func(time.Time), at time.Time) {
	add(at)
	add(at.Add(-tickPrecision))

	if v := inForce(an.all, at); v != nil {
		if tick, ok := v.lastDue(at); ok {
			add(tick)
			add(tick.Add(-tickPrecision))
		}
	}
}

// manualRuns returns the manual runs in a range as one line. ok is false if there are none.
func (an *answerer) manualRuns(start, end time.Time) (task.Stretch, bool) {
	m := task.Stretch{Manual: true, Reason: task.TriggerManual}
	triggered := int64(0)
	for _, r := range an.Runs {
		at := r.ScheduledTime
		if r.Ticks() > 0 || r.State == task.Skipped || r.State == task.Missed || at.Before(start) || at.After(end) {
			continue // a trigger that was skipped or missed is no run
		}

		if m.Count == 0 || at.Before(m.First.Time) {
			m.First = at
		}

		if at.After(m.Last.Time) {
			m.Last, m.Verdict = at, ofState[r.State]
		}

		m.Count += max(r.Count, 1)
		if r.Trigger == task.TriggerAfter {
			triggered += max(r.Count, 1)
		}
	}

	triggered += an.addRequestedLines(&m, start, end)

	by := "manually"
	switch {
	case triggered == m.Count:
		by, m.Reason = "by other tasks", task.TriggerAfter
	case triggered > 0:
		by = fmt.Sprintf("manually or by other tasks (%d)", triggered)
	}

	m.Sentence = makeSentence("in addition, %s triggered %s, the last on %s", formatCount(m.Count, "run was", "runs were"), by, an.formatTime(m.Last.Time))

	return m, m.Count > 0
}

// describeStretch returns the sentence about a line of an answer.
func (an *answerer) describeStretch(s *task.Stretch) string {
	text := "the tick of " + an.formatTime(s.First.Time)
	if s.Count > 1 {
		text = fmt.Sprintf("%d ticks from %s to %s", s.Count, an.formatTime(s.First.Time), an.formatTime(s.Last.Time))
	}

	text += " " + verdictWords(s.Verdict, s.Count)
	if means := reasonClause(s.Reason); means != "" && s.Verdict != task.VerdictFailed && s.Verdict != task.VerdictNoNode {
		text += ": " + means
	}

	return makeSentence("%s", text)
}

// verdictWords returns the predicate for n ticks with a verdict.
func verdictWords(v task.Verdict, n int64) string {
	was, is, have := "was", "is", "has"
	if n != 1 {
		was, is, have = "were", "are", "have"
	}

	switch v {
	case task.VerdictSucceeded, task.VerdictFailed:
		return string(v)
	case task.VerdictTimedOut:
		return "timed out"
	case task.VerdictCancelled, task.VerdictLost, task.VerdictSkipped, task.VerdictMissed:
		return was + " " + string(v)
	case task.VerdictRunning, task.VerdictWaiting:
		return is + " " + string(v)
	case task.VerdictPaused:
		return "did not exist because the task was paused"
	case task.VerdictEnded:
		return "did not exist because max_runs was reached"
	case task.VerdictUndecided:
		return have + " not been decided yet"
	case task.VerdictOvertaken:
		return was + " dropped because the task changed"
	case task.VerdictForgotten:
		return was + " decided, but the outcome is no longer on record"
	case task.VerdictUnreadable:
		return have + " a record that cannot be read"
	case task.VerdictWillRun:
		return "will run if nothing changes"
	case task.VerdictFrozen:
		return "will be skipped if the freeze is still in effect"
	case task.VerdictShadow:
		return "will be recorded but start nothing"
	case task.VerdictForbidden:
		return "will fail if nothing changes"
	case task.VerdictNoNode:
		return "will find no matching node, or too few, if nothing changes"
	}

	return is + " " + string(v)
}

// describeRange returns the sentence about a range: the number of ticks for each verdict.
func (an *answerer) describeRange(a *task.Answer, start time.Time, between string, ticks int64) string {
	switch {
	case an.Task == nil:
		g := finding{tick: start, due: start}
		an.applyNoVersion(&g, an.all)
		a.Verdict, a.Deleted = g.verdict, an.Deleted

		return an.sentenceFor(g)
	case ticks == 0:
		note := ""
		if v := inForce(an.all, start); v == nil && an.Task.CreatedAt.After(start) {
			note = "; the task was created on " + an.formatTime(an.Task.CreatedAt.Time)
		} else if v == nil {
			note = " on record: the schedule before " + an.formatTime(an.all[0].startTime()) + " is no longer kept"
		}

		return makeSentence("there is no tick %s%s", between, note)
	}

	return makeSentence("%s %s: %s", formatCount(ticks, "tick", "ticks"), between, countWords(a.Counts))
}

// countWords lists the numbers of ticks for each verdict.
func countWords(counts map[task.Verdict]int64) string {
	var parts []string
	for _, v := range task.Verdicts() {
		if n := counts[v.Verdict]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, verdictWords(v.Verdict, n)))
		}
	}

	return strings.Join(parts, ", ")
}
