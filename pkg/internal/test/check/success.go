package check

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// alertLimit is how long an expectation may be not met without an alert, and met although an alert is open (G58).
	alertLimit = time.Minute
	// alertReads is how many tasks are read in a second. Those that are read first delay an alert.
	alertReads = 1000
	// catchUpTime is how long after the opening of a shard a time is judged that passed before the opening.
	catchUpTime = 15 * time.Minute
	// sweepEvery is how often all expectations are judged during a calm period.
	sweepEvery = 5 * time.Second
)

// successJudge judges, while tasks run, that an expectation about successes which is not met for a minute has an alert, and that none has
// which is met for a minute (G58). Rule G57 judges only the alerts that open or close, and says nothing about one that does not.
//
//	every 5 s of a calm period ──▶ is it met, by the complete history? ──for a minute──▶ is there an open alert?
//
// It judges the calm periods of Options.Calm, in which every alert must come in time. The minute begins again when something changes on
// which a verdict depends, because the owner may then have to read the task again: an edit, a freeze, a rule, a new owner, or a success.
//
// Where the product may say that it does not know, or decides by times that the history shows only roughly, the judge finds the
// expectation neither met nor not met. It does not judge the expectations of tasks whose schedule ends.
type successJudge struct {
	judge
	alerts *alertJudge

	now    int64                // when the last revision was written, by the observer's clock, in ms; 0: not known
	swept  int64                // when all expectations were judged last
	opened map[int]int64        // when the owners of shards have opened them
	edited map[record.Ref]int64 // when persons have last changed tasks, by name
	states map[expectation]*expectationState
}

// expectation is one of a task.
type expectation struct {
	ref  record.Ref
	kind task.AlertKind
}

// expectationState says since when an expectation has been met, or has been not met, without a change.
type expectationState struct {
	met        metState
	since      int64
	isReported bool
}

// metState is whether an expectation is met.
type metState uint8

const (
	unclear metState = iota
	met
	notMet
)

func newSuccessJudge(base judge, alerts *alertJudge) *successJudge {
	return &successJudge{judge: base, alerts: alerts, opened: map[int]int64{}, edited: map[record.Ref]int64{}, states: map[expectation]*expectationState{}}
}

// advance judges the time up to a revision, with the records as they are before it.
func (j *successJudge) advance(at time.Time) {
	if len(j.opts.Calm) == 0 || at.IsZero() {
		return
	}

	before := j.now
	j.now = max(at.UnixMilli(), before)

	for _, p := range j.opts.Calm {
		if from, to := p.From.UnixMilli(), p.To.UnixMilli(); from <= before && before < to {
			if now := min(j.now, to); now-j.swept >= sweepEvery.Milliseconds() {
				j.swept = now
				j.sweep(now)
			}

			return
		}
	}

	clear(j.states)
}

// noteChanges notes what a revision changes, before the revision is applied. events are those of the revision.
func (j *successJudge) noteChanges(d *delta, events []Event) {
	if j.now == 0 {
		return
	}

	for ref := range d.specs {
		j.edited[ref] = j.now
	}

	// The first commit after a change of the owner or of its session opens a shard. So does one that writes nothing but an unchanged
	// watermark: the owner opens the shard again, after an error.
	for id, m := range d.watermarks {
		s := j.cluster.shardOf(id)
		if m.deleted || m.unreadable {
			continue
		}
		if !s.opened || len(events) == 1 && isOpening(s.watermark, m.watermark) {
			j.opened[id] = j.now
			clear(j.states)
		}
	}

	isListed := events[0].Listed
	if isListed || d.freezes != nil || len(d.rules)+len(d.owners) > 0 {
		clear(j.states)
	}

	for ref, ch := range d.entries {
		t := j.cluster.taskOf(ref)
		if _, isEdit := d.specs[withoutShard(ref)]; isEdit || ch.deleted || ch.unreadable || t.entry == nil || t.entry.Paused != ch.entry.Paused {
			j.forget(ref)
		}
	}

	for k, ch := range d.runs {
		if ch.ended != nil && ch.ended.State == task.Succeeded {
			j.forgetNotMet(k.ref)
		}
	}

	for _, ch := range d.alerts {
		if ch.alert != nil && ch.alert.Kind == task.AlertMore {
			clear(j.states) // what was counted may get a record of its own
		} else {
			j.forget(ch.ref)
		}
	}
}

// noteList notes that the shards of the first list may have been opened just before it.
func (j *successJudge) noteList() {
	for id := range j.cluster.shards {
		j.opened[id] = j.now
	}
}

// forget lets the time of all expectations of a task begin again.
func (j *successJudge) forget(ref record.Ref) {
	for _, kind := range successKinds {
		delete(j.states, expectation{ref, kind})
	}
}

// forgetNotMet lets the time of the expectations begin again that are not met.
func (j *successJudge) forgetNotMet(ref record.Ref) {
	for _, kind := range successKinds {
		if s := j.states[expectation{ref, kind}]; s != nil && s.met == notMet {
			delete(j.states, expectation{ref, kind})
		}
	}
}

// successKinds are the kinds of expectations that are judged.
var successKinds = []task.AlertKind{task.AlertSuccessWithin, task.AlertSuccessBy}

// sweep judges the expectations of all tasks at an instant, in ms.
func (j *successJudge) sweep(now int64) {
	watched := 0
	for _, t := range j.cluster.tasks {
		if t.entry != nil && j.alerts.alertsOf(t) != nil {
			watched++
		}
	}

	limit := (alertLimit + j.alerts.tolerance()).Milliseconds() + int64(watched)*1000/alertReads
	isCounted := j.alerts.countedShards()

	for _, ref := range slices.SortedFunc(maps.Keys(j.cluster.tasks), compareRefs) {
		t := j.cluster.tasks[ref]
		if t.entry == nil || t.entry.create <= j.cluster.began {
			continue
		}

		for _, kind := range successKinds {
			x := expectation{ref, kind}
			is := j.verdict(t, kind, now)
			s := j.states[x]
			if s == nil || s.met != is {
				s = &expectationState{met: is, since: now}
				j.states[x] = s
			}

			if now-s.since <= limit || s.isReported || isCounted[record.Ref{Namespace: ref.Namespace, Shard: ref.Shard}] {
				continue
			}

			switch isOpen := j.alerts.hasOpenAlert(t, kind); {
			case is == notMet && !isOpen:
				j.breachTask("G58", ref, 0, j.keys.Alert(ref, kind), "%s is not met since %s, but at %s there is no open alert",
					kind, formatTime(timeOfMS(s.since)), formatTime(timeOfMS(now)))
				s.isReported = true
			case is == met && isOpen:
				j.breachTask("G58", ref, 0, j.keys.Alert(ref, kind), "%s is met since %s, or not expected any more, but at %s the alert is open",
					kind, formatTime(timeOfMS(s.since)), formatTime(timeOfMS(now)))
				s.isReported = true
			}
		}
	}
}

// verdict returns whether an expectation of a task is met at an instant, as far as all nodes must agree.
func (j *successJudge) verdict(t *taskHistory, kind task.AlertKind, now int64) metState {
	e, s := &t.entry.Entry, j.cluster.shardOf(t.ref.Shard)
	if _, isPresent := j.cluster.nodes[s.owner.Node]; !isPresent || !s.opened {
		return unclear
	}

	expected := j.alerts.alertsOf(t)
	pause := e.Pause()
	tolerance := j.alerts.tolerance().Milliseconds()

	switch {
	case !expected.Expects(kind), e.Shadow:
		return met
	case e.Paused && (pause == nil || !pause.By.Is(task.PausedByFailures) && (pause.Until.IsZero() || unixMS(pause.Until) > now+tolerance)):
		return met
	case e.Paused && (kind == task.AlertSuccessBy || !pause.By.Is(task.PausedByFailures)):
		return unclear
	case j.cluster.freezes.unreadable || j.cluster.freezes.Of(t.ref.Namespace) != nil:
		return unclear
	case e.MaxRuns > 0 || !e.End.IsZero():
		return unclear // the schedule may have ended
	case e.Alerts == nil && (e.History.Record == task.RecordFailures || e.History.Ledger != nil && *e.History.Ledger == 0):
		return unclear // a rule may not expect it of this task
	}

	d, err := newDeadlines(e, expected.SuccessBy)
	if err != nil {
		return unclear
	}
	if _, hasMore := d.ticks.NextTick(now); !hasMore && !d.anyRun {
		return unclear
	}

	x := successTimes{
		t: t, now: now, tolerance: tolerance, grace: max(j.graceUntil(t), unixMS(e.Start)), edited: j.edited[withoutShard(t.ref)],
		opened: j.opened[t.ref.Shard],
	}

	if kind == task.AlertSuccessWithin {
		return x.within(expected.SuccessWithin.Std().Milliseconds())
	}

	return x.by(&d)
}

// graceUntil returns the end of the last pause or freeze that a person has ended, in ms.
func (j *successJudge) graceUntil(t *taskHistory) (until int64) {
	for _, p := range ownCounters(t.entry.Entry).Pauses {
		if !p.By.Is(task.PausedByFailures) {
			until = max(until, cmp.Or(unixMS(p.Ended), unixMS(p.Until)))
		}
	}

	for _, z := range j.cluster.freezes.Past {
		if z.Namespace == "" || z.Namespace == t.ref.Namespace {
			until = max(until, unixMS(z.Ended))
		}
	}

	return until
}

// successTimes are the times on which it depends whether an expectation about successes is met, in ms.
type successTimes struct {
	t              *taskHistory
	now, tolerance int64
	grace          int64 // before which no success is expected, because of a pause, a freeze or the start of the task
	edited         int64 // when a person has last changed the task
	opened         int64 // when the owner of the shard has opened it
}

// isJudged reports whether a time is judged at x.now that has passed between two instants. What passed before the opening of the
// shard is judged later.
func (x *successTimes) isJudged(earliest, latest int64) bool {
	if earliest < x.opened+x.tolerance {
		latest = max(latest, x.opened+catchUpTime.Milliseconds())
	}
	return x.now >= latest+x.tolerance
}

// within judges Alerts.SuccessWithin, a number of ms.
func (x *successTimes) within(limit int64) metState {
	earliest, latest := int64(0), int64(0) // between which the owner finds the last success

	switch s := x.t.entry.incarnation.successes; {
	case s.last == nil:
	case s.last.trimmed: // the ledger has the tick of the run, and the mean duration of runs
		latest = s.newestAt + s.longest*11/10
	case x.now-s.lastAt < limit-x.tolerance:
		return met
	default:
		earliest, latest = s.lastAt, s.newestAt
	}

	from := unixMS(x.t.entry.From)
	earliest = max(earliest, x.grace, min(from, x.edited)) + limit
	latest = max(latest, x.grace, x.edited) + limit
	if x.isJudged(earliest, latest) {
		return notMet
	}

	return unclear
}

// by judges Alerts.SuccessBy. The clocks of nodes differ, so the owner may have passed one deadline more, or one less.
func (x *successTimes) by(d *deadlines) metState {
	last, ok := newestTick(d.deadlines, x.now-judgedAfter.Milliseconds()-x.tolerance)
	if !ok {
		return unclear
	}

	is := x.byDeadline(d, last)
	if is == met {
		if next, ok := newestTick(d.deadlines, x.now-judgedAfter.Milliseconds()+x.tolerance); ok && next != last {
			return x.byDeadline(d, next)
		}
	}

	return is
}

// byDeadline judges one deadline.
func (x *successTimes) byDeadline(d *deadlines, deadline int64) metState {
	inc := x.t.entry.incarnation
	tick, ok := d.dueTick(deadline)

	switch outcome := inc.outcomes[tick]; {
	case !ok || !x.t.isCountedWhole():
		return unclear
	case inc.successes.hasSince(tick):
		if newest := inc.successes.newest; newest.trimmed && !newest.folded {
			return unclear // the owner may not know of it
		}
		return met
	case tick <= x.grace+x.tolerance || tick <= x.edited+x.tolerance:
		return unclear // it may not have been due
	case !d.anyRun && (outcome == nil || outcome.isExcuse()):
		return unclear
	}

	if judged := deadline + judgedAfter.Milliseconds(); x.isJudged(judged, judged) {
		return notMet
	}

	return unclear
}

// isCountedWhole reports whether the ledger of a task tells of all runs that have left the history. If it does not, the product may not
// know whether one of them has succeeded.
func (t *taskHistory) isCountedWhole() bool {
	for _, c := range t.chunks {
		if !c.readable || !c.Gone.IsZero() || c.Uncounted || len(c.RequestedMore) > 0 || c.Unreadable > 0 {
			return false
		}
	}

	return true
}
