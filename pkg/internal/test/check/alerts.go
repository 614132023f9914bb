package check

import (
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// alertJudge judges the alerts of tasks. When an alert opens or closes, the records of that revision say that its expectation is not met, or that
// it is met (G57). When all has been quiet, the tasks that fail are those that have an alert (G58).
//
// The judge computes from the complete history how runs have ended. The product reads what is left of it.
type alertJudge struct {
	judge
	// records are the alerts that exist, by key.
	records map[string]*alertChange
	// rules are the rules that exist, by key.
	rules map[string]*task.AlertRule
	// retryOf holds the create revisions of the dead runs that were started again, by the run that does so.
	retryOf map[runRef]int64
}

func newAlertJudge(base judge) *alertJudge {
	return &alertJudge{base, map[string]*alertChange{}, map[string]*task.AlertRule{}, map[runRef]int64{}}
}

// checkRevision judges the alerts that a revision writes, and applies them.
func (j *alertJudge) checkRevision(d *delta) {
	for _, key := range slices.Sorted(maps.Keys(d.alerts)) {
		j.checkChange(d, j.records[key], d.alerts[key])
	}

	for k, ch := range d.runs {
		run, _ := ch.recordedRun()
		if run == nil || run.RetryOf == "" || j.retryOf[k] != 0 {
			continue
		}
		if dead := j.cluster.taskOf(k.ref).dead[run.RetryOf]; dead != 0 {
			j.retryOf[k] = dead
		}
	}

	j.applyChanges(d)
}

// applyChanges applies the alerts that a revision writes.
func (j *alertJudge) applyChanges(d *delta) {
	for key, ch := range d.alerts {
		if ch.alert == nil {
			delete(j.records, key)
		} else {
			j.records[key] = ch
		}
	}

	for key, rule := range d.rules {
		if rule == nil {
			delete(j.rules, key)
		} else {
			j.rules[key] = rule
		}
	}
}

// alertsOf returns what is expected of a task: by its own block or, without one, by the first rule of its namespace that matches its
// labels; nil: nothing. What a rule says about tasks that could not have such a block is ignored.
func (j *alertJudge) alertsOf(t *taskHistory) *task.Alerts {
	e := &t.entry.Entry
	if e.Alerts != nil {
		return e.Alerts
	}
	if e.Receiver != nil || e.History.Keep > task.MaxAlertKept {
		return nil
	}

	for _, key := range slices.Sorted(maps.Keys(j.rules)) {
		rule := j.rules[key]
		if rule.Namespace != t.ref.Namespace {
			continue
		}

		if s, err := task.ParseSelector(rule.Selector); err == nil && s.Matches(e.Labels) {
			a := rule.Alerts
			if a.FailuresInARow() > e.History.Keep {
				a.Failures = new(0)
			}

			forgetsWithin, forgetsBy := forgetsSuccesses(e)
			if forgetsWithin {
				a.SuccessWithin = 0
			}
			if forgetsBy {
				a.SuccessBy = ""
			}

			return &a
		}
	}

	return nil
}

// forgetsSuccesses reports whether a task keeps too little to tell whether success_within, or success_by, is met. If only failures are
// kept, the ledger tells, and only about ticks. Without a ledger, success_by takes a time for which all runs are kept.
func forgetsSuccesses(e *task.Entry) (within, by bool) {
	h := &e.History
	hasLedger := h.Ledger == nil || *h.Ledger != 0
	within = h.Record == task.RecordFailures && !(hasLedger && e.Schedule.HasTicks())

	return within, within || !hasLedger && h.KeepFor == 0
}

// checkChange judges a change of one alert. before is its former version; nil: it did not exist.
func (j *alertJudge) checkChange(d *delta, before, ch *alertChange) {
	wasOpen := before != nil && before.alert.IsOpen()

	switch {
	case ch.alert == nil && wasOpen && before.alert.Kind != task.AlertCluster:
		j.breachTask("G57", ch.ref, 0, ch.key, "an alert is deleted while it is open")
		return
	case ch.alert == nil, ch.alert.Kind == task.AlertMore, ch.alert.Kind == task.AlertCluster:
		return
	}

	t := j.cluster.taskOf(ch.ref)
	if len(t.incarnations) > 0 && t.incarnations[ch.alert.UID] == nil {
		j.breachTask("G58", ch.ref, 0, ch.key, "the alert is about a task that never existed, with the uid %s", ch.alert.UID)
		return
	}
	if t.entry != nil && t.entry.create <= j.cluster.began {
		return // the history does not show how the earlier runs have ended
	}

	switch isOpen := ch.alert.IsOpen(); {
	case wasOpen && isOpen && before.alert.UID != ch.alert.UID:
		j.breachTask("G57", ch.ref, 0, ch.key, "the open alert of a former task becomes that of another one")
	case !wasOpen && isOpen:
		j.checkOpening(t, ch)
	case wasOpen && !isOpen:
		j.checkClosing(d, t, before.alert, ch)
	}
}

// checkOpening checks that the expectation of an alert that opens is not met.
func (j *alertJudge) checkOpening(t *taskHistory, ch *alertChange) {
	a := ch.alert
	wrong := func(format string, args ...any) {
		j.breachTask("G57", t.ref, 0, ch.key, "the alert "+string(a.Kind)+" opens, but "+format, args...)
	}

	if t.entry == nil || t.entry.UID != a.UID {
		wrong("its task does not exist")
		return
	}

	p := t.pastOf(t.entry.incarnation)

	switch e, expected := &t.entry.Entry, j.alertsOf(t); {
	case !expected.Expects(a.Kind):
		wrong("the task does not expect it")
	case a.Kind == task.AlertFailures && p.dead == 0:
		wrong("no dead run is newer than the last success, at revision %d", p.lastSuccess)
	case a.Kind == task.AlertFailures && max(p.failures, p.dead) < expected.FailuresInARow():
		wrong("%d runs have failed in a row; the task alerts after %d", p.failures, expected.FailuresInARow())
	case a.Kind == task.AlertMaxPause && !e.Paused:
		wrong("the task is not paused")
	case a.Kind == task.AlertMaxLateness && e.Shadow:
		wrong("the task is a shadow")
	case a.Kind == task.AlertMaxDuration && t.hasEnded(a.Run):
		wrong("run %s has ended", a.Run)
	case isAboutSuccess(a.Kind) && e.Shadow:
		wrong("the task is a shadow")
	case isAboutSuccess(a.Kind) && !j.opts.wasWrong(a.OpenedAt.Time) && j.isPausedByPerson(e, a.OpenedAt.Time):
		wrong("a person has paused the task")
	case a.Kind == task.AlertSuccessBy:
		j.checkMissedDeadline(t, a, wrong)
	case a.Kind == task.AlertSuccessWithin && !j.opts.wasWrong(a.OpenedAt.Time):
		if last := j.lastKnownSuccess(t); isWithin(last, expected, a.OpenedAt.Time, -j.tolerance()) {
			wrong("a run succeeded at %s", formatTime(timeOfMS(last)))
		}
	}
}

// checkClosing checks that the expectation of an alert that closes is met, or that nothing is expected any more. former is the alert while
// it was open.
func (j *alertJudge) checkClosing(d *delta, t *taskHistory, former *task.Alert, ch *alertChange) {
	a := ch.alert
	wrong := func(format string, args ...any) {
		j.breachTask("G57", t.ref, 0, ch.key, "the alert "+string(a.Kind)+" closes as "+string(a.Closed.Why)+", but "+format, args...)
	}

	exists := t.entry != nil && t.entry.UID == a.UID
	if !exists {
		if a.Closed.Why != task.AlertDeleted && (a.Closed.Why != task.AlertDismissed || a.Closed.By == nil) {
			wrong("its task does not exist")
		}
		return
	}

	e, p := &t.entry.Entry, t.pastOf(t.entry.incarnation)

	switch why := a.Closed.Why; {
	case why == task.AlertDeleted:
		wrong("its task exists")
	case why == task.AlertNotWatched:
		if j.alertsOf(t).Expects(a.Kind) {
			wrong("the task expects it")
		}
	case why == task.AlertDismissed && a.Kind == task.AlertFailures:
		j.checkDismissed(d, t, p, ch, wrong)
	case why == task.AlertSucceeded && a.Kind == task.AlertFailures:
		if p.dead > 0 {
			wrong("a dead run is newer than the last success, at revision %d", p.lastSuccess)
		} else if p.lastSuccess <= former.Base {
			wrong("no run has succeeded since revision %d", former.Base)
		}
	case why == task.AlertSucceeded && a.Kind == task.AlertSuccessWithin:
		if !j.opts.wasWrong(a.Closed.At.Time) && !isWithin(p.lastSuccessAt, j.alertsOf(t), a.Closed.At.Time, j.tolerance()) {
			wrong("the last run that succeeded ended at %s", formatTime(timeOfMS(p.lastSuccessAt)))
		}
	case why == task.AlertSucceeded && a.Kind == task.AlertSuccessBy:
		if !j.opts.wasWrong(a.Closed.At.Time) && !j.hasMetDeadline(t, former, a) {
			wrong("no run has succeeded that was due by %s, or by a later deadline", formatTime(former.Deadline.Time))
		}
	case a.Kind == task.AlertFailures:
		wrong("this is no reason")
	case a.Kind == task.AlertMaxDuration && (why == task.AlertSucceeded || why == task.AlertRunEnded) && !t.hasEnded(former.Run):
		wrong("run %s has not ended", former.Run)
	case why == task.AlertResumed && e.Paused && !t.isPauseOver(a.Closed.At.Time.Add(j.tolerance())):
		wrong("the task is paused")
	case why == task.AlertPaused && !e.Paused:
		wrong("the task is not paused")
	case why == task.AlertShadow && !e.Shadow:
		wrong("the task is no shadow")
	}
}

// checkDismissed judges an alert that closes because its dead runs are gone. A person who dismisses the last one closes the alert in the
// same revision. A run that was started again decides by its end.
func (j *alertJudge) checkDismissed(d *delta, t *taskHistory, p taskPast, ch *alertChange, wrong func(string, ...any)) {
	byPerson := ch.alert.Closed.By != nil

	left := p.dead
	for k, dead := range d.dead {
		if byPerson && k.ref == t.ref && dead.state == "" && t.dead[k.id] > p.lastSuccess && task.RunBelongs(k.id, ch.alert.UID) {
			left--
		}
	}

	if left > 0 {
		wrong("a dead run is newer than the last success, at revision %d", p.lastSuccess)
		return
	}

	for _, r := range t.openRuns(t.entry.incarnation) {
		if dead := j.retryOf[runRef{t.ref, r.id}]; !byPerson && dead > p.lastSuccess {
			wrong("run %s, which repeats a run that failed, has not ended", r.id)
		}
	}
}

// checkEnd checks that, after a quiet time, the tasks that fail are those that have an alert (G58).
func (j *alertJudge) checkEnd() {
	if j.opts.Evaluated.IsZero() {
		return
	}

	isCounted := j.countedShards()

	for _, ref := range slices.SortedFunc(maps.Keys(j.cluster.tasks), compareRefs) {
		t := j.cluster.tasks[ref]
		if t.entry == nil || t.entry.create <= j.cluster.began {
			continue
		}

		if isCounted[record.Ref{Namespace: ref.Namespace, Shard: ref.Shard}] {
			continue // its alert may be one of those that are only counted
		}

		p, n := t.pastOf(t.entry.incarnation), j.alertsOf(t).FailuresInARow()
		if !j.hasOpenAlert(t, task.AlertFailures) && n > 0 && p.dead > 0 && max(p.kept, p.dead) >= n {
			j.breachTask("G58", ref, 0, j.keys.Alert(ref, task.AlertFailures), "%d runs have failed in a row, but there is no open alert", max(p.kept, p.dead))
		}

		if !j.hasOpenAlert(t, task.AlertMaxPause) && j.isPausedTooLong(t) {
			j.breachTask("G58", ref, 0, j.keys.Alert(ref, task.AlertMaxPause), "the task is paused since %s, but there is no open alert", formatTime(t.entry.Pause().Since.Time))
		}
	}

	for _, key := range slices.Sorted(maps.Keys(j.records)) {
		ch := j.records[key]
		if ch.alert.Kind == task.AlertMore || ch.alert.Kind == task.AlertCluster || !ch.alert.IsOpen() {
			continue
		}

		t := j.cluster.taskOf(ch.ref)
		switch {
		case t.entry == nil || t.entry.UID != ch.alert.UID:
			j.breachTask("G58", ch.ref, 0, key, "an alert is open, but its task does not exist")
		case t.entry.create <= j.cluster.began:
		case !j.alertsOf(t).Expects(ch.alert.Kind):
			j.breachTask("G58", ch.ref, 0, key, "an alert is open that the task does not expect")
		case isAboutSuccess(ch.alert.Kind):
			if p := t.entry.Pause(); t.entry.Paused && p != nil && !p.By.Is(task.PausedByFailures) && p.Until.IsZero() {
				j.breachTask("G58", ch.ref, 0, key, "the alert %s is open, but a person has paused the task", ch.alert.Kind)
			}
		case ch.alert.Kind == task.AlertFailures && t.pastOf(t.entry.incarnation).dead == 0:
			j.breachTask("G58", ch.ref, 0, key, "an alert is open, but no dead run is newer than the last success")
		case ch.alert.Kind == task.AlertMaxPause && !t.entry.Paused:
			j.breachTask("G58", ch.ref, 0, key, "the alert max_pause is open, but the task is not paused")
		case ch.alert.Kind == task.AlertMaxDuration && t.hasEnded(ch.alert.Run):
			j.breachTask("G58", ch.ref, 0, key, "the alert max_duration is open, but run %s has ended", ch.alert.Run)
		}
	}
}

// countedShards returns the namespaces and shards in which some alerts are only counted.
func (j *alertJudge) countedShards() map[record.Ref]bool {
	counted := map[record.Ref]bool{}
	for _, ch := range j.records {
		if ch.alert.Kind == task.AlertMore && ch.alert.IsOpen() {
			counted[record.Ref{Namespace: ch.ref.Namespace, Shard: ch.ref.Shard}] = true
		}
	}

	return counted
}

// hasOpenAlert reports whether a task has an open alert of a kind.
func (j *alertJudge) hasOpenAlert(t *taskHistory, kind task.AlertKind) bool {
	ch := j.records[j.keys.Alert(t.ref, kind)]
	return ch != nil && ch.alert.IsOpen() && ch.alert.UID == t.entry.UID
}

// isPausedTooLong reports whether, at the time of Options.Evaluated, a person had paused a task for longer than it expects. Pauses that end by
// themselves do not count.
func (j *alertJudge) isPausedTooLong(t *taskHistory) bool {
	a, p := j.alertsOf(t), t.entry.Pause()
	if a == nil || a.MaxPause == 0 || !t.entry.Paused || p == nil || p.Since.IsZero() || p.By.Is(task.PausedByFailures) || !p.Until.IsZero() {
		return false
	}

	return j.opts.Evaluated.Sub(p.Since.Time) > a.MaxPause.Std()+j.tolerance()
}

// hasEnded reports whether a run has ended, or does not exist any more.
func (t *taskHistory) hasEnded(run string) bool {
	r := t.runs[run]
	return r == nil || r.ended || r.purged
}

// isPauseOver reports whether no pause by a person is in force.
func (t *taskHistory) isPauseOver(at time.Time) bool {
	p := t.entry.Pause()
	return p == nil || p.By.Is(task.PausedByFailures) || p.Over(at)
}

// isWithin reports whether a success, in ms, was within the time that a task expects before an instant. That time is longer by a
// tolerance.
func isWithin(success int64, a *task.Alerts, at time.Time, tolerance time.Duration) bool {
	return a != nil && success > 0 && at.Sub(timeOfMS(success)) < a.SuccessWithin.Std()+tolerance
}

// lastKnownSuccess returns when the last run succeeded of which the history or the ledger of the task still tells, in ms; 0: none. The
// ledger has no ends of runs. It has the ticks, or when runs were asked for, and the mean of the durations. A run may have waited for
// long, so only its tick is certain. If the clock of the node was wrong on which the last one ended, nothing is known.
func (j *alertJudge) lastKnownSuccess(t *taskHistory) (last int64) {
	inc := t.entry.incarnation
	isWrong := false

	for _, end := range inc.ends {
		switch r := end.run; {
		case end.state != task.Succeeded:
		case !r.trimmed && !r.purged:
			if isWrong = j.opts.wrongClock(end.node, timeOfMS(end.at)); isWrong {
				continue
			}
			last = max(last, end.at)
		default:
			o := trimmedRecord{run: r, id: r.id}.outcome()
			for _, c := range t.chunks {
				// Beyond a number, requested runs are only counted, without their times.
				if c.readable && c.UID == inc.uid && (o.requested && c.names(o) || !o.requested && c.tells(o)) {
					last = max(last, min(o.at, end.at))
				}
			}
		}
	}

	if isWrong {
		return 0
	}

	return last
}

// tolerance is how much the times of two nodes may differ. Rows have whole seconds, and ledgers the mean durations of runs.
func (j *alertJudge) tolerance() time.Duration { return 2*j.opts.Skew + 10*time.Second }

// taskPast is how the runs of a task have ended.
type taskPast struct {
	lastSuccess   int64 // the revision that recorded the last success of a run; 0: none
	lastSuccessAt int64 // the latest end of a run that succeeded, in ms; 0: none
	failures      int   // runs that failed since then, or in the same revision, whose order the history does not show
	kept          int   // those that failed after it and are still in the history
	dead          int   // dead runs that were created after it
}

// pastOf returns how the runs of an incarnation have ended.
func (t *taskHistory) pastOf(inc *incarnation) taskPast {
	p := taskPast{lastSuccess: inc.lastSuccess}

	for _, end := range inc.ends {
		switch {
		case end.state == task.Succeeded:
			p.lastSuccessAt = max(p.lastSuccessAt, end.at)
		case end.isFailure() && end.rev >= inc.lastSuccess:
			p.failures++
		}
	}

	for _, r := range t.runs {
		if r.incarnation == inc && r.ended && !r.trimmed && !r.purged && !r.isPart() && isFailure(r.state) && r.reason != task.ReasonRestored && r.endedRev > inc.lastSuccess {
			p.kept++
		}
	}

	for id, created := range t.dead {
		if r := t.runs[id]; r != nil && (r.state == task.Cancelled || r.reason == task.ReasonRestored) {
			continue // a workflow that was cancelled can be retried, but has not failed; nor has a run that a restore has lost
		}
		if created > inc.lastSuccess && task.RunBelongs(id, inc.uid) {
			p.dead++
		}
	}

	return p
}
