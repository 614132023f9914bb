package check

import (
	"cmp"
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// takenTriggers is what a revision makes of the triggers of a task: the records that it writes, and the triggers that it deletes.
type takenTriggers struct {
	made    []*madeOutcome
	deleted map[triggerRef]*pendingTrigger
}

// madeOutcome is the record of a run that a trigger has started, or of triggers that did not run.
type madeOutcome struct {
	change *runChange
	run    *task.Run
	key    string
	count  int64           // how many triggers it is the outcome of
	grown  bool            // an earlier revision has written the record
	runs   bool            // it is a run
	from   *pendingTrigger // with runs: the trigger that it names; nil: none
}

// takenIn returns the tasks of which a revision takes triggers.
func (j *dependentJudge) takenIn(d *delta) map[record.Ref]*takenTriggers {
	all := map[record.Ref]*takenTriggers{}
	of := func(ref record.Ref) *takenTriggers {
		if all[ref] == nil {
			all[ref] = &takenTriggers{deleted: map[triggerRef]*pendingTrigger{}}
		}
		return all[ref]
	}

	for ref, changes := range d.triggers {
		for k, ch := range changes {
			if t := j.triggers[ref][k]; ch.trigger == nil && t != nil {
				of(ref).deleted[k] = t
			}
		}
	}

	for k, ch := range d.runs {
		if made := j.outcomeOf(k, ch); made != nil {
			of(k.ref).made = append(of(k.ref).made, made)
		}
	}

	return all
}

// outcomeOf returns the outcome of triggers that a change of a run is; nil: it is none.
func (j *dependentJudge) outcomeOf(k runRef, ch *runChange) *madeOutcome {
	rec, key := ch.recordedRun()
	if rec == nil || rec.Trigger != task.TriggerAfter || task.IsPart(k.id) {
		return nil
	}

	m := &madeOutcome{change: ch, run: rec, key: key, count: max(rec.Count, 1), runs: rec.State != task.Skipped && rec.State != task.Missed}
	known := j.cluster.taskOf(k.ref).runs[k.id]

	switch {
	case known == nil:
		return m
	case known.rangeRecord == nil || m.runs:
		return nil
	}

	m.grown, m.count = true, m.count-max(known.rangeRecord.Count, 1)

	return m
}

// checkTaken judges what a revision makes of the triggers of a task (G64).
func (j *dependentJudge) checkTaken(d *delta, ref record.Ref, taken *takenTriggers) {
	t, after := j.cluster.taskOf(ref), d.entries[ref]
	isRemoved := t.entry == nil || after != nil && (after.deleted || !after.unreadable && after.entry.UID != t.entry.UID)

	// The trigger of a task that does not exist any more goes without a record.
	owed := map[triggerRef]*pendingTrigger{}
	for k, p := range taken.deleted {
		if isRemoved || p.readable && p.UID != t.entry.UID {
			continue
		}
		owed[k] = p
	}

	if len(taken.deleted) > 0 && !isRemoved {
		k := slices.MinFunc(slices.Collect(maps.Keys(taken.deleted)), compareTriggers)
		j.fences.requireCommit(d, ref, 0, j.keys.Trigger(ref, k.source, k.run), "the deletion of a trigger")
	}

	named := map[triggerRef]bool{}
	var counted int64
	for _, m := range taken.made {
		counted += m.count
		j.checkNamed(ref, m, owed, named)
	}

	if counted != int64(len(owed)) {
		var keys []string
		for k := range owed {
			if !named[k] {
				keys = append(keys, j.keys.Trigger(ref, k.source, k.run))
			}
		}
		keys = append(keys, "")
		slices.Sort(keys)
		j.breachTask("G64", ref, 0, keys[len(keys)-1], "%s are deleted, but the revision has outcomes for %d", formatCount(int64(len(owed)), "trigger"), counted)
	}

	slices.SortFunc(taken.made, func(a, b *madeOutcome) int { return cmp.Compare(a.change.id, b.change.id) })
	for _, m := range taken.made {
		if m.from != nil {
			j.checkRun(d, t, m, taken)
		}
	}

	j.checkOrder(t, taken)

	for _, m := range taken.made {
		if m.runs {
			j.origins[m.change.runRef] = m.run.Causation
			j.stats.Triggered++
		}
	}
}

// checkNamed checks the triggers that an outcome names: they are deleted in the same revision, by no other outcome.
func (j *dependentJudge) checkNamed(ref record.Ref, m *madeOutcome, owed map[triggerRef]*pendingTrigger, named map[triggerRef]bool) {
	wrong := func(format string, args ...any) { j.breachTask("G64", ref, 0, m.key, format, args...) }

	if m.runs && len(m.run.Causes) != 1 {
		wrong("run %s has %d causes", m.change.id, len(m.run.Causes))
		return
	}

	if m.grown {
		return // it names those of earlier revisions, too
	}

	if int64(len(m.run.Causes)) > m.count {
		wrong("the record %s of %s names %d", m.change.id, formatCount(m.count, "trigger"), len(m.run.Causes))
	}

	for _, c := range m.run.Causes {
		k := triggerRef{c.Task, c.Run}
		p := owed[k]

		switch {
		case p == nil:
			wrong("the record %s names a trigger of run %s of %s, which this revision does not delete", m.change.id, c.Run, c.Task)
			continue
		case named[k]:
			wrong("the trigger of run %s of %s has two outcomes", c.Run, c.Task)
		case p.readable && (c.State != p.Cause.State || m.runs && (!maps.Equal(c.Results, p.Cause.Results) || !m.run.Period.Equal(p.Period.Time))):
			wrong("the record %s does not have the state, the results or the period of its trigger", m.change.id)
		}

		named[k] = true
		if m.runs {
			m.from = p
		}

		j.checkNotRun(ref, m, p)
	}
}

// checkNotRun checks the reason for which a trigger does not run.
func (j *dependentJudge) checkNotRun(ref record.Ref, m *madeOutcome, p *pendingTrigger) {
	if m.runs {
		return
	}

	t := j.cluster.taskOf(ref)
	is := map[string]bool{
		task.ReasonUnlinked: p.readable && !j.isLinked(t, p), task.ReasonBadRecord: !p.readable, task.ReasonPaused: t.entry.Paused, task.ReasonShadow: t.entry.Shadow,
		task.ReasonQueueFull: j.waiting(ref) > t.entry.Queue.Room(), task.ReasonRestored: p.IsLost || j.cluster.gap.HasRecord(p.Create),
	}

	if holds, known := is[m.run.Reason]; known && !holds {
		j.breachTask("G64", ref, 0, m.key, "the trigger of run %s of %s did not run for the reason %s, which does not hold", p.Run, p.Source, m.run.Reason)
	}
}

// isLinked reports whether a trigger has the present link of its task to its source.
func (j *dependentJudge) isLinked(t *taskHistory, p *pendingTrigger) bool {
	return slices.Contains(t.entry.Links, task.Link{Task: p.Source, Generation: p.Generation})
}

// waiting returns how many triggers of a task wait.
func (j *dependentJudge) waiting(ref record.Ref) int { return len(j.triggers[ref]) }

// checkRun judges a run that a trigger starts: its task lets it run, and its turn has come.
func (j *dependentJudge) checkRun(d *delta, t *taskHistory, m *madeOutcome, taken *takenTriggers) {
	wrong := func(promise, format string, args ...any) { j.breachTask(promise, t.ref, 0, m.key, format, args...) }

	j.fences.requireCommit(d, t.ref, 0, m.key, "a run that a trigger starts")
	j.fences.checkNamedOwner(*m.run, t.ref, m.key)

	e := &t.entry.Entry
	switch _, ends := e.Silence(); {
	case !m.from.readable:
		wrong("G64", "run %s is started by a trigger that cannot be read", m.change.id)
	case m.from.IsLost || j.cluster.gap.HasRecord(m.from.Create):
		wrong("G68", "run %s is started by the trigger of run %s of %s, which was in a backup", m.change.id, m.from.Run, m.from.Source)
	case !j.isLinked(t, m.from):
		wrong("G64", "run %s is started by a trigger of generation %d, but the task does not run after %s, or does so since a later one", m.change.id, m.from.Generation, m.from.Source)
	case e.Paused && !ends:
		wrong("G7", "run %s is started by a trigger, but its task is paused", m.change.id)
	case e.Shadow:
		wrong("G24", "run %s is started by a trigger, but its task is a shadow", m.change.id)
	case j.cluster.freezes.Of(t.ref.Namespace) != nil && !j.cluster.freezes.unreadable:
		wrong("G21", "run %s is started by a trigger, but its task is frozen", m.change.id)
	}

	if e.Overlap != task.OverlapQueue && e.Overlap != task.OverlapAllow {
		return
	}

	// The oldest trigger is taken first.
	for k, p := range j.triggers[t.ref] {
		if taken.deleted[k] == nil && p.readable && p.UID == e.UID && j.isLinked(t, p) && p.Create < m.from.Create {
			wrong("G64", "run %s is started by the trigger of run %s of %s, but that of run %s of %s is older", m.change.id, m.from.Run, m.from.Source, p.Run, p.Source)
		}
	}

	if e.Overlap != task.OverlapQueue {
		return
	}

	for _, other := range t.openRuns(t.entry.incarnation) {
		if other.trigger == task.TriggerManual && len(other.tokens) == 0 {
			continue // the commit does not compare what users have requested meanwhile
		}

		if ch := d.runs[runRef{t.ref, other.id}]; !other.isPart() && (ch == nil || ch.ended == nil) {
			wrong("G64", "run %s is started by a trigger while run %s is %s, but overlap is %q", m.change.id, other.id, other.state, e.Overlap)
		}
	}
}

// checkOrder checks that the runs of a task have the order of their triggers: their ids have times that increase, also after those that
// have not ended.
func (j *dependentJudge) checkOrder(t *taskHistory, taken *takenTriggers) {
	times := map[int64]string{}
	for _, m := range taken.made {
		at, ok := task.TimeOfRunID(m.change.id)
		if m.grown || !ok {
			continue
		}

		if other := times[at.UnixMilli()]; other != "" {
			j.breachTask("G64", t.ref, 0, m.key, "%s and %s are decided in the same millisecond", other, m.change.id)
		}
		times[at.UnixMilli()] = m.change.id

		for _, other := range taken.made {
			if m.from != nil && other.from != nil && m.from.Create < other.from.Create && m.change.id > other.change.id {
				j.breachTask("G64", t.ref, 0, m.key, "run %s is before run %s, whose trigger is older", other.change.id, m.change.id)
			}
		}

		for _, other := range t.runs {
			open := other.incarnation.uid == m.run.UID && !other.ended && !other.purged && other.trigger == task.TriggerAfter && !other.isPart()
			if before, ok := task.TimeOfRunID(other.id); m.from != nil && open && ok && !at.After(before) {
				j.breachTask("G64", t.ref, 0, m.key, "run %s is before run %s, whose trigger was decided earlier", m.change.id, other.id)
			}
		}
	}
}

// checkOrigins checks that the records of a run keep what has started it, and that a run that repeats another one has the same causes.
func (j *dependentJudge) checkOrigins(d *delta) {
	for _, ch := range d.sortedRuns() {
		rec, key := ch.recordedRun()
		if rec == nil || task.IsPart(ch.id) {
			continue
		}

		of := ch.runRef
		if rec.RetryOf != "" {
			of.id = rec.RetryOf
		}

		was, known := j.origins[of]
		if known && string(encodeJSON(was)) != string(encodeJSON(rec.Causation)) {
			j.breachTask("G64", ch.ref, 0, key, "run %s has the causes %s; it was started by %s", ch.id, encodeJSON(rec.Causation), encodeJSON(was))
		}
		if known && rec.RetryOf != "" {
			j.origins[ch.runRef] = was
		}
	}
}
