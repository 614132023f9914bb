package check

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// sentWithin is how long an end may wait for its triggers while nothing happens to its shard (G63).
const sentWithin = 20 * time.Second

// checkCursor judges the write of a cursor: it moves forward, and each end that it passes has a trigger for each subscriber to which the
// end is owed, written in the same revision. A damaged cursor is replaced by one that passes ends without triggers.
func (j *dependentJudge) checkCursor(d *delta, ref record.Ref, ch *cursorChange) {
	s, t := j.sourceOf(ref), j.cluster.taskOf(ref)
	wrong := func(format string, args ...any) { j.breachTask("G63", ref, 0, ch.key, format, args...) }

	if ch.deleted {
		if after := d.entries[ref]; t.entry != nil && (after == nil || !after.deleted) {
			wrong("the cursor is deleted, but its task exists")
		}
		return
	}

	if !ch.readable {
		j.addNote("a cursor was damaged by hand") // owners write none that cannot be read
		return
	}

	// The transaction compares the owner and the cursor, so it need not be a commit.
	j.fences.requireOwner(d, ref.Shard, ch.key, "a cursor is written")

	switch {
	case t.entry == nil:
		wrong("a cursor is written for a task that does not exist")
		return
	case ch.cursor.Create >= ch.mod:
		wrong("the cursor is at revision %d, which did not exist when it was written", ch.cursor.Create)
		return
	case s.isDamaged:
		return // what it passes is lost, and an event says so
	case s.cursorMod != 0 && ch.cursor.Compare(s.cursor) <= 0:
		wrong("the cursor goes from %s back to %s", describeCursor(s.cursor), describeCursor(ch.cursor))
		return
	}

	for _, e := range s.ends {
		if ch.cursor.Compare(e.position()) >= 0 {
			j.checkPassed(d, s, e, ch)
		}
	}
}

// describeCursor formats a cursor for messages.
func describeCursor(c record.Cursor) string { return string(encodeJSON(c)) }

// encodeJSON returns a value as JSON, for messages and comparisons.
func encodeJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte(err.Error())
	}
	return b
}

// checkPassed judges an end that a cursor passes: the revision writes exactly the triggers that are owed.
func (j *dependentJudge) checkPassed(d *delta, s *sourceState, e *sourceEnd, ch *cursorChange) {
	from, until := s.readsFrom(e), ch.mod
	if e.gone != 0 {
		until = min(until, e.gone) // read before the record was deleted
	}

	for _, name := range slices.Sorted(maps.Keys(s.subscribers)) {
		sub, written := s.subscribers[name], j.triggerOf(d, s, e, name)

		if written == nil {
			if e.gone == 0 && sub.owedAlways(e, from, ch.mod) {
				j.breachTask("G63", s.ref, 0, ch.key, "the cursor passes run %s, which ended at revision %d as %s, without a trigger for its dependent %s", e.id, e.create, e.run.State, name)
			}
			continue
		}

		if e.create <= j.cluster.began {
			continue // the history does not show who was subscribed
		}

		link := sub.owedOnce(e, from, until, func(v *subscriberVersion) bool { return v.UID == written.UID && v.Generation == written.Generation })
		if link == nil {
			j.breachTask("G63", s.ref, 0, ch.key, "run %s, which ended at revision %d as %s, has a trigger for %s that is not owed", e.id, e.create, e.run.State, name)
			continue
		}

		j.checkContent(s, e, link, written)
	}
}

// triggerOf returns the trigger for a dependent that a revision writes about an end; nil: there is none.
func (j *dependentJudge) triggerOf(d *delta, s *sourceState, e *sourceEnd, dependent string) *pendingTrigger {
	for ref, all := range d.triggers {
		if ref.Namespace == s.ref.Namespace && ref.Name == dependent {
			return all[triggerRef{s.ref.Name, e.id}].trigger
		}
	}

	return nil
}

// checkContent checks that a trigger says what its end says.
func (j *dependentJudge) checkContent(s *sourceState, e *sourceEnd, link *subscriberVersion, t *pendingTrigger) {
	results := map[string]string{}
	for _, name := range link.Results {
		if value, has := e.run.Results[name]; has {
			results[name] = value
		}
	}

	key := j.keys.Trigger(t.Ref, t.Source, t.Run)
	switch {
	case t.Cause.State != e.run.State:
		j.breachTask("G63", t.Ref, 0, key, "the trigger says that run %s of %s ended as %s; it ended as %s", e.id, s.ref.Name, t.Cause.State, e.run.State)
	case !maps.Equal(t.Cause.Results, results):
		j.breachTask("G63", t.Ref, 0, key, "the trigger has the results %s of run %s, which are %s", encodeJSON(t.Cause.Results), e.id, encodeJSON(results))
	case !t.Period.Equal(periodOf(e.run).Time):
		j.breachTask("G63", t.Ref, 0, key, "the trigger has the period %s; that of run %s is %s", formatTime(t.Period.Time), e.id, formatTime(periodOf(e.run).Time))
	}
}

// periodOf returns the time for which a run works.
func periodOf(r *task.Run) task.Time {
	if r.Period.IsZero() && isTickTrigger(r.Trigger) {
		return r.ScheduledTime
	}
	return r.Period
}

// checkNewTriggers checks that each new trigger is about an end that the cursor of its source passes in the same revision.
func (j *dependentJudge) checkNewTriggers(d *delta) {
	for _, ref := range slices.SortedFunc(maps.Keys(d.triggers), compareRefs) {
		for _, k := range slices.SortedFunc(maps.Keys(d.triggers[ref]), compareTriggers) {
			ch := d.triggers[ref][k]
			if ch.trigger == nil {
				continue
			}

			if !ch.trigger.readable {
				j.addNote("a trigger was damaged by hand") // owners write none that cannot be read
				continue
			}

			source := record.Ref{Namespace: ref.Namespace, Name: k.source}
			s := j.sources[source]
			e := s.findEnd(k.run)

			switch {
			case ch.trigger.Create != ch.trigger.Mod:
				j.breachTask("G63", ref, 0, ch.key, "the trigger is written again")
			case s == nil || d.cursors[s.ref] == nil || d.cursors[s.ref].deleted:
				j.breachTask("G63", ref, 0, ch.key, "a trigger is written without the cursor of its source")
			case e == nil || d.cursors[s.ref].cursor.Compare(e.position()) < 0:
				j.breachTask("G63", ref, 0, ch.key, "a trigger is written for run %s of %s, which is not an end that the cursor passes", k.run, k.source)
			case s.isDamaged:
				j.breachTask("G63", ref, 0, ch.key, "a trigger is written together with the repair of the cursor")
			}
		}
	}
}

// checkTrims checks that no record of an end is deleted that is owed to a dependent and was not sent.
func (j *dependentJudge) checkTrims(d *delta) {
	for _, ref := range slices.SortedFunc(maps.Keys(d.ledgers), compareRefs) {
		s, t, after := j.sources[withoutShard(ref)], j.cluster.taskOf(ref), d.entries[ref]
		if s == nil || t.entry == nil || after != nil && (after.deleted || after.entry.UID != t.entry.UID) {
			continue
		}

		for _, gone := range d.ledgers[ref].deleted {
			e := s.findEnd(gone.run)
			if e == nil || gone.late || gone.unreadable {
				continue
			}

			for _, name := range slices.Sorted(maps.Keys(s.subscribers)) {
				if s.subscribers[name].owedAlways(e, j.cluster.revision-1, j.cluster.revision) {
					j.breachTask("G63", ref, 0, gone.key, "the record of run %s is deleted, which has no trigger yet for its dependent %s", e.id, name)
				}
			}
		}
	}
}

// checkUnsent reports an end that is not sent, if it has always been owed to a dependent.
func (j *dependentJudge) checkUnsent(s *sourceState, e *sourceEnd, when string) {
	if t := j.cluster.taskOf(s.ref); t.entry == nil || t.entry.UID != e.run.UID || e.gone != 0 || e.isReported {
		return
	}

	for _, name := range slices.Sorted(maps.Keys(s.subscribers)) {
		if s.subscribers[name].owedAlways(e, s.readsFrom(e), j.cluster.revision+1) {
			j.breachTask("G63", s.ref, 0, j.keys.Ended(s.ref, e.id), "run %s ended at revision %d as %s, and has no trigger for its dependent %s %s", e.id, e.create, e.run.State, name, when)
			e.isReported = true
		}
	}
}

// advance looks for ends that were not sent in time, up to a revision. Only ends of calm periods are judged, in shards that had been opened
// before by the owner that they still have.
func (j *dependentJudge) advance(at time.Time) {
	if at.IsZero() {
		return
	}

	j.now = max(at.UnixMilli(), j.now)
	if len(j.opts.Calm) == 0 || j.now-j.swept < sweepEvery.Milliseconds() {
		return
	}
	j.swept = j.now

	for _, name := range slices.SortedFunc(maps.Keys(j.sources), compareRefs) {
		s := j.sources[name]
		shard := j.cluster.shardOf(s.ref.Shard)
		if _, present := j.cluster.nodes[shard.owner.Node]; !present || !shard.opened {
			continue
		}

		for _, e := range s.ends {
			if by := e.at + sentWithin.Milliseconds(); by < j.now && j.opened[s.ref.Shard] < e.at && j.isCalm(e.at, by) {
				j.checkUnsent(s, e, "20 s later")
			}
		}
	}
}

// isCalm reports whether a calm period contains the time from one instant to another, in ms.
func (j *dependentJudge) isCalm(from, to int64) bool {
	return slices.ContainsFunc(j.opts.Calm, func(p Period) bool { return p.From.UnixMilli() <= from && to <= p.To.UnixMilli() })
}

// checkLinks checks that the subscribers of sources change with the tasks that run after them: a revision that writes a spec with a new or
// changed source writes the record of the subscriber, and one that removes a source or the task deletes it.
func (j *dependentJudge) checkLinks(d *delta) {
	for _, ref := range slices.SortedFunc(maps.Keys(d.entries), compareRefs) {
		ch, t := d.entries[ref], j.cluster.taskOf(ref)
		if _, edited := d.specs[withoutShard(ref)]; !edited || ch.unreadable {
			continue
		}

		var before, after []task.Link
		uid := ch.entry.UID
		if t.entry != nil {
			before = t.entry.Links
		}
		if !ch.deleted {
			after = ch.entry.Links
		}
		if ch.deleted && t.entry != nil {
			uid = t.entry.UID
		}

		sources := j.specSources(d, ref)

		for _, link := range after {
			isKept := t.entry != nil && t.entry.UID == uid && slices.Contains(before, link)
			if isKept {
				continue
			}

			written := d.writtenSubscriber(ref, link.Task)
			want := sources[link.Task]
			if written == nil || written.version == nil || written.version.UID != uid || written.version.Generation != link.Generation ||
				written.version.When != want.When || !slices.Equal(written.version.Results, want.Results) {
				j.breachTask("G63", ref, 0, ch.key, "the task runs after %s, but the revision does not write this as a record of a subscriber", link.Task)
			}
		}

		for _, link := range before {
			isKept := slices.ContainsFunc(after, func(l task.Link) bool { return l.Task == link.Task })
			if written := d.writtenSubscriber(ref, link.Task); !isKept && j.hasSubscriber(ref, link.Task) && (written == nil || written.version != nil) {
				j.breachTask("G63", ref, 0, ch.key, "the task does not run after %s any more, but the record of the subscriber stays", link.Task)
			}
		}
	}
}

// specSources returns the sources of a task, by name, as the spec that a revision writes says.
func (j *dependentJudge) specSources(d *delta, ref record.Ref) map[string]task.Source {
	var spec struct{ After task.Sources }
	if s := d.specs[withoutShard(ref)]; s != nil && s.value != nil {
		if err := json.Unmarshal(s.value, &spec); err != nil {
			j.addNote("the sources of %s cannot be read", ref)
		}
	}

	sources := map[string]task.Source{}
	for _, s := range spec.After {
		sources[s.Task] = s
	}

	return sources
}

// writtenSubscriber returns the change of the record that makes a task a dependent of a source; nil: the revision does not change it.
func (d *delta) writtenSubscriber(dependent record.Ref, source string) *subscriberChange {
	for i, ch := range d.subscribers {
		if ch.source.Namespace == dependent.Namespace && ch.source.Name == source && ch.dependent == dependent.Name {
			return &d.subscribers[i]
		}
	}

	return nil
}

// hasSubscriber reports whether the record exists that makes a task a dependent of a source.
func (j *dependentJudge) hasSubscriber(dependent record.Ref, source string) bool {
	s := j.sources[record.Ref{Namespace: dependent.Namespace, Name: source}]
	if s == nil || s.subscribers[dependent.Name] == nil {
		return false
	}

	versions := s.subscribers[dependent.Name].versions

	return len(versions) > 0 && versions[len(versions)-1].until == 0
}
