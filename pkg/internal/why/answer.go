package why

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Question is what a user asks about: a time (At), a range (From and To, both inclusive), or, if all are nil,
// the latest tick and the next one.
type Question struct {
	At, From, To *Moment
	Timezone     string // the time zone of the answer, as a name of the tz database
}

// For answers a question from the facts. It never fails. If the records do not contain the answer, the result
// states what is not on record any more.
func For(f Facts, q Question) task.Answer {
	zone, err := schedule.Location(q.Timezone)
	if err != nil {
		zone, q.Timezone = time.UTC, "UTC"
	}

	// Parts are left out, because the record of their run covers them. So are runs of a deleted task of that name, until they
	// are deleted, too.
	isLeftOut := func(r task.Run) bool { return task.IsPart(r.ID) || !f.isOwn(&r) }
	f.Runs = slices.DeleteFunc(slices.Clone(f.Runs), isLeftOut)
	f.wholeSpans = map[interval]bool{}
	w := answerer{wording: wording{Facts: &f, speaker: speaker{zone}}, all: versionsInForce(&f)}
	var a task.Answer

	switch {
	case q.At != nil && q.At.Grain == oneDay:
		a = w.answerRange(q.At, q.At)
		a.Asked.At = q.At.Text
	case q.At != nil:
		a = w.answerMoment(*q.At)
		a.Asked.At = q.At.Text
	case q.From != nil && q.To != nil:
		a = w.answerRange(q.From, q.To)
		a.Asked.From, a.Asked.To = q.From.Text, q.To.Text
	default:
		a = w.answerLatest()
	}

	w.addSubject(&a, q)

	return a
}

// answerer computes the answer to one question.
type answerer struct {
	wording
	all []version // the versions on record, the oldest first
}

// addSubject fills in the fields that every answer and every additional answer share.
func (an *answerer) addSubject(a *task.Answer, q Question) {
	a.Namespace, a.Task, a.Asked.Timezone = an.Namespace, an.Name, q.Timezone
	a.Now, a.Revision = task.At(an.Now), an.Revision
	if a.Unknown == nil {
		a.Unknown = []string{}
	}

	if a.Lines == nil {
		a.Lines = []task.EvidenceLine{}
	}

	for i := range a.Also {
		an.addSubject(&a.Also[i], q)
	}
}

// answerMoment answers a question about a time. A local time may exist once, twice, or not at all.
func (an *answerer) answerMoment(m Moment) task.Answer {
	switch len(m.Instants) {
	case 0:
		return an.answerSkippedTime(m)
	case 1:
		a := an.answerInstant(m.Instants[0], m.Grain)
		a.Asked.Times = []task.Time{task.At(m.Instants[0])}
		return a
	}

	return an.answerRepeatedTime(m)
}

// answerRepeatedTime answers a question about a local time that exists twice, because the clocks are set back.
// The answer covers the tick of the two, or both if both are ticks.
func (an *answerer) answerRepeatedTime(m Moment) task.Answer {
	first, second := an.answerInstant(m.Instants[0], m.Grain), an.answerInstant(m.Instants[1], m.Grain)
	twice := an.clockWords(m) + " exists twice on " + m.Instants[0].In(an.zone).Format("Mon 2 Jan 2006") +
		", at " + an.formatClock(m.Instants[0]) + " and at " + an.formatClock(m.Instants[1])
	a := first
	policy := ""

	switch {
	case first.Tick != nil && second.Tick != nil:
		twice += ", and both are ticks"
		a.Also = []task.Answer{second}
	case second.Tick != nil:
		a = second
		twice += ", and only the second is a tick"
	case first.Tick != nil:
		twice += ", and only the first is a tick"
		if v := a.Version; v != nil && v.DST.Fold != task.FoldBoth {
			policy = " (dst.fold: first)"
		}
	}

	a.Sentence = makeSentence("%s", twice+policy) + " " + a.Sentence
	a.Asked.Note = schedule.NoteFold
	a.Asked.Times = []task.Time{task.At(m.Instants[0]), task.At(m.Instants[1])}

	return a
}

// answerSkippedTime answers a question about a local time that does not exist, because the clocks are set
// forward. The schedule's dst.gap determines whether its ticks run at the end of the gap.
func (an *answerer) answerSkippedTime(m Moment) task.Answer {
	end := m.Change.At
	before := end.Add(-tickPrecision).In(an.zone)
	gone := fmt.Sprintf("%s does not exist on %s: the clocks go from %s to %s", an.clockWords(m), clockDate(m.Change.From),
		clockTime(m.Change.From)+before.Format(" MST"), an.formatClock(end))
	v := inForce(an.all, end)
	var a task.Answer

	switch {
	case v != nil && v.tickNote(end) == schedule.NoteGap:
		a = an.tickAnswer(an.judgeTick(an.all, end))
		a.Sentence = makeSentence("%s; ticks in this gap run once, at its end (dst.gap: run-after)", gone) + " " + a.Sentence
	case v != nil && v.gapSkips(end):
		a = an.noTick(end, tickPrecision)
		a.Verdict = task.VerdictInGap
		a.Sentence = makeSentence("%s; ticks in this gap are skipped (dst.gap: skip)", gone)
	default:
		a = an.noTick(end, tickPrecision)
		a.Sentence = makeSentence("%s", gone) + " " + a.Sentence
	}

	a.Asked.Note = schedule.NoteGap

	return a
}

// clockDate and clockTime return the parts of a local time that has no instant, and so is only available as
// text.
func clockDate(shown string) string {
	date, _, _ := strings.Cut(shown, " ")
	t, err := time.Parse("2006-01-02", date)
	if err != nil {
		return date
	}

	return t.Format("Mon 2 Jan 2006")
}

func clockTime(shown string) string {
	_, clock, _ := strings.Cut(shown, " ")
	return strings.TrimSuffix(clock, ":00")
}

// clockWords returns the time of day as the user wrote it.
func (an *answerer) clockWords(m Moment) string {
	if _, t, ok := cutTime(m.Text); ok {
		return t
	}
	return m.Text
}

// answerInstant answers a question about an instant, or about the only tick within the precision with which the
// user wrote it. If there is no tick, a manual run in that interval is the answer.
func (an *answerer) answerInstant(at time.Time, grain time.Duration) task.Answer {
	if tick, ok := an.tickIn(at, grain); ok {
		return an.tickAnswer(an.judgeTick(an.all, tick))
	}
	if r := an.findRequestedRun(at, at.Add(grain)); r != nil {
		return an.runAnswer(r)
	}
	if lines := an.requestedLines(at, at.Add(grain)); len(lines) > 0 {
		return an.lineAnswer(lines[0])
	}
	if waiting := an.waitingTriggers(at, at.Add(grain)); len(waiting) > 0 {
		return an.triggerAnswer(waiting[0])
	}

	v := inForce(an.all, at)
	if v == nil || v.vague || v.schedule == nil {
		return an.answerNoVersion(at, v)
	}

	a := an.noTick(at, grain)
	an.addSourceEvidence(&a, v, at.Add(grain))

	return a
}

// tickIn returns the tick at an instant, or the only tick within grain after it. It uses both the schedule and
// the records, because the schedule of that time may not be on record. Two different ticks in the interval are
// ambiguous, so ok is false.
func (an *answerer) tickIn(at time.Time, grain time.Duration) (time.Time, bool) {
	v := inForce(an.all, at)
	if v != nil && !v.vague && v.isTick(at) {
		return at, true
	}

	// Otherwise, there must be exactly one tick in the interval, in the records, the ledger and the schedule together.
	var found []time.Time
	for _, tick := range an.recordedTicks(at, at.Add(grain)) {
		if tick.Equal(at) {
			return at, true
		}
		found = append(found, tick)
	}

	for _, tick := range an.ledgerTicks(at, at.Add(grain)) {
		if tick.Equal(at) {
			return at, true
		}
		found = append(found, tick)
	}

	if v != nil && !v.vague {
		if next, ok := v.nextTick(at); ok && next.Before(at.Add(grain)) && (v.until.IsZero() || next.Before(v.until)) {
			if later, more := v.nextTick(next); !more || !later.Before(at.Add(grain)) {
				if len(found) == 0 || len(found) == 1 && found[0].Equal(next) {
					return next, true
				}
			}

			return time.Time{}, false
		}
	}

	if len(found) == 1 {
		return found[0], true
	}

	return time.Time{}, false
}

// recordedTicks returns the ticks that records name from from (inclusive) to to (exclusive): that of a run, and the ends of a
// range.
func (an *answerer) recordedTicks(from, to time.Time) []time.Time {
	var ticks []time.Time
	for _, r := range an.Runs {
		if r.Ticks() == 0 {
			continue
		}

		for _, tick := range []task.Time{r.ScheduledTime, r.Last} {
			if !tick.Before(from) && tick.Before(to) {
				ticks = append(ticks, tick.Time)
			}
		}
	}

	return ticks
}

// tickAnswer converts a finding to an answer, with its evidence.
func (an *answerer) tickAnswer(g finding) task.Answer {
	a := task.Answer{Verdict: g.verdict, Reason: g.reason, Sentence: an.sentenceFor(g), Tick: an.shownTick(g), Pause: g.pause, Freeze: g.freeze, Unknown: g.unknown}
	// These verdicts mean that the instant is not a tick.
	if g.verdict == task.VerdictPaused || g.verdict == task.VerdictNoTask || g.verdict == task.VerdictEnded && g.detail == "" {
		a.Tick = nil
	}

	if g.version != nil {
		a.Version = g.version.inForce()
	}

	if g.verdict == task.VerdictNoTask {
		a.Deleted = an.Deleted
	}

	if a.Ledger = g.line; g.run != nil && g.line == nil {
		r := *g.run
		a.Run = &r
		for _, l := range an.Late {
			if l.ID == r.ID {
				a.Late = append(a.Late, l)
			}
		}

		a.Active = an.activeRuns(g.due, r.ID)
	}

	// The owner of the shard is of interest at the due time, or now for a future tick.
	switch {
	case g.verdict == task.VerdictNoTask:
	case g.due.After(an.Now):
		a.Owner = an.ownerAt(an.Now)
	default:
		a.Owner = an.ownerAt(g.due)
	}

	an.addEvidence(&a, g)

	return a
}

// shownTick converts the tick of a finding to the form of the API.
func (an *answerer) shownTick(g finding) *task.Tick {
	t := &task.Tick{Time: task.At(g.tick), Local: an.formatLocal(g.tick)}
	if !g.due.Equal(g.tick) {
		t.DueAt = task.At(g.due)
	}

	if g.version != nil {
		t.Note = g.version.tickNote(g.tick)
	}

	return t
}

// runAnswer answers a question about a run without a tick: a manual run, or one that another task has started.
func (an *answerer) runAnswer(r *task.Run) task.Answer {
	g := finding{tick: r.ScheduledTime.Time, due: r.ScheduledTime.Time, version: inForce(an.all, r.ScheduledTime.Time)}
	an.applyRecord(&g, r)
	a := an.tickAnswer(g)
	a.Tick = nil

	return a
}

// answerLatest answers a question without a time. It covers the latest tick, or the latest run without one if
// that is newer, the next tick, and triggers that wait.
func (an *answerer) answerLatest() task.Answer {
	var a task.Answer
	last, ticked := an.lastTick()

	var newest *task.Run
	for i := range an.Runs {
		if r := &an.Runs[i]; r.Ticks() == 0 && (newest == nil || r.ScheduledTime.After(newest.ScheduledTime.Time)) {
			newest = r
		}
	}

	switch {
	case newest != nil && (!ticked || newest.ScheduledTime.After(last)):
		a = an.runAnswer(newest)
	case ticked:
		a = an.tickAnswer(an.judgeTick(an.all, last))
	default:
		a = an.noneYet()
	}

	if len(an.Triggers) > 0 {
		a.Also = append(a.Also, an.triggerAnswer(an.Triggers[0]))
	}
	an.addSourceEvidence(&a, inForce(an.all, an.Now), an.Now)

	if next, ok := an.nextTick(); ok {
		a.Also = append(a.Also, an.tickAnswer(an.judgeTick(an.all, next)))
	} else if also := an.noneToCome(); also != nil {
		a.Also = append(a.Also, *also)
	}

	return a
}

// lastTick returns the latest tick that is due, of whichever version was in force. Both the records and the
// schedule are considered, because a tick that is due may not be decided yet.
func (an *answerer) lastTick() (time.Time, bool) {
	var last time.Time
	for _, r := range an.Runs {
		if at := r.ScheduledTime.Time; r.Ticks() > 0 && at.After(last) {
			if last = at; r.Count > 1 {
				last = r.Last.Time
			}
		}
	}

	at := an.Now.Add(tickPrecision)
	if n := len(an.all); n > 0 { // with jitter, the last due tick is not necessarily the last tick before now
		if tick, ok := an.all[n-1].lastDue(an.Now); ok && tick.After(an.all[n-1].startTime()) {
			at = tick.Add(tickPrecision)
		}
	}

	if tick, ok := an.tickBefore(at); ok && tick.After(last) && !an.dueOf(tick).After(an.Now) {
		last = tick
	}

	return last, !last.IsZero()
}

// nextTick returns the first tick after now that does not fall into a pause with an end. ok is false if there
// is none.
func (an *answerer) nextTick() (time.Time, bool) {
	if len(an.all) == 0 {
		return time.Time{}, false
	}

	v, after := &an.all[len(an.all)-1], an.Now
	// With jitter, a tick before now may not be due yet.
	if tick, ok := v.previousTick(an.Now.Add(tickPrecision), v.startTime()); ok && v.dueTime(tick).After(an.Now) {
		after = tick.Add(-tickPrecision)
	}

	if an.Entry != nil {
		if until, ends := an.Entry.Silence(); ends && until.After(after) {
			after = until.Time
		}
	}

	return v.nextTick(after)
}

// Span returns the range of time for which records are needed to answer the question, inclusive at both ends.
func (q Question) Span(now time.Time) (from, to time.Time) {
	switch {
	case q.At != nil:
		from, to = q.At.rangeStart(), q.At.rangeEnd()
		if q.At.Grain < oneDay {
			to = to.Add(q.At.Grain - tickPrecision)
		}

		if len(q.At.Instants) == 0 {
			to = from // records at the end of the gap are enough
		}

		return from, to
	case q.From != nil && q.To != nil:
		return q.From.rangeStart(), q.To.rangeEnd()
	}

	return now, now
}
