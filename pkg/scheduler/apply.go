package scheduler

import (
	"math"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// applyRecords applies events of the shard, or a page of its load. Of two versions of a record, the one
// with the higher mod revision wins. So an event that was still on its way does not undo what a commit or a
// read has put into memory already. No plan may be outstanding.
func (s *shardState) applyRecords(b store.ShardBatch, now time.Time) {
	s.mustBeSettled()

	if b.Reset {
		s.rows.NoteLoad(b.Revision, now)
	}

	for i := range b.Events {
		ev := &b.Events[i]
		switch ev.Kind {
		case record.KindEntry:
			s.applyEntry(ev)
		case record.KindQueued:
			s.applyQueued(ev, now)
		case record.KindEnded:
			s.applyEnded(ev, now)
		case record.KindDead:
			s.applyDead(ev)
		case record.KindPart:
			s.applyPart(ev)
		case record.KindRevised:
			s.applyRevised(ev)
		case record.KindTrigger:
			s.applyTrigger(ev)
		case record.KindSubscriber:
			s.records.Links.ApplySubscriber(ev)
		case record.KindSent:
			s.records.Links.ApplyCursor(ev)
		}

		if len(s.aside.retryAt) > 0 {
			s.retrySetAside(s.records.Tasks.Get(ev.Task))
		}
	}

	if b.More {
		s.rows.Flush(s.applied)
		return
	}

	// The batch is complete up to its revision. Deletions by this owner's commits up to there have been
	// reported, so no older event of these records can follow.
	s.applied = max(s.applied, b.Revision)
	for key, rev := range s.gone {
		if rev <= s.applied {
			delete(s.gone, key)
		}
	}

	s.rows.Flush(s.applied)
}

// applyEntry applies the current version of a task's entry, or its deletion.
func (s *shardState) applyEntry(ev *store.ShardEvent) {
	t := s.records.TaskOf(ev)
	if ev.Mod != 0 && ev.Mod < t.Mod {
		return
	}

	if ev.Deleted {
		t.Bad = false
		t.Mod, t.Create = max(t.Mod, ev.Mod), 0
		s.noEntry(t)
		s.agenda.examineNext(t)

		return
	}

	// If the create revision differs, this is another task, or the first version that this owner sees. What
	// is known of the past belongs to a former task of that name.
	again := t.Create != ev.Create
	if again {
		t.Past = nil
	}
	if again || !t.Present {
		s.rows.Forget(t)
	}

	if ev.Mod > t.Mod {
		s.rows.NoteEntry(t)
	} else {
		s.rows.Touch(t) // this owner has written it
	}

	wasPaused, generation := t.Paused, t.Generation
	t.Present, t.Mod, t.Create = true, ev.Mod, ev.Create
	err := s.records.ReadEntry(t, ev.Value, s.ports.definitions)

	// Each pause has records of its own, so that a resume can count what it has dropped.
	if t.Paused != wasPaused || t.Generation != generation {
		s.endTriggerSpan(t)
	}

	if err != nil {
		s.addNotice(notice{kind: entryUnreadable, task: t.FullName(), err: err})
	} else if again {
		// Start the counters at a random value, as if some records had been added since the last trim.
		// Otherwise the histories of a shard that often changes its owner would be trimmed too rarely.
		t.Added = uint16(s.ports.random.IntN(trimAfter(t)))
		t.Dead = uint8(s.ports.random.IntN(background.TrimAfter(store.KeepDead, 0)))
	}

	t.Bad = err != nil
	s.rescheduleTask(t)

	// Waiting runs may start, or must end, under the new version.
	if t.Activity != nil || t.DependsOnPast() || s.hasTriggers(t) {
		s.agenda.examineNext(t)
	}
}

// noEntry removes a task's entry. Waiting and active runs of the task stay, until they have ended.
func (s *shardState) noEntry(t *state.Task) {
	s.endSpan(t)
	s.endTriggerSpan(t)
	s.rows.Touch(t)
	t.Present, t.Timing, t.Policy, t.Past = false, nil, nil, nil
	t.Text, t.UIDLen = t.Text[:t.NameLen], 0
	s.due.Set(t, 0)
	delete(s.uncovered, t)
	delete(s.unread, t)
}

// applyQueued applies the current version of a queue record, or its deletion.
func (s *shardState) applyQueued(ev *store.ShardEvent, now time.Time) {
	t := s.records.TaskOf(ev)

	// This owner has deleted the record at a later revision. Ignore the older event.
	if rev, ok := s.gone[t.FullName()+"/"+ev.Run]; ok && (ev.Mod == 0 || ev.Mod <= rev) {
		s.dropTask(t) // TaskOf may have added it again
		return
	}

	i, waits := t.FindWaiting(ev.Run)
	if !waits {
		i = -1
	}

	if i >= 0 && ev.Mod != 0 && ev.Mod < t.Queue()[i].Mod {
		return
	}

	s.rows.Touch(t)
	s.rows.NoteRun(t, ev)

	// Whatever is known now replaces the fact that the record could not be read.
	if t.Activity != nil {
		t.Activity.Unreadable = slices.DeleteFunc(t.Activity.Unreadable, func(run string) bool { return run == ev.Run })
	}

	if ev.Deleted {
		if i >= 0 {
			s.applyDequeued(t, i)
		}
		s.agenda.examineNext(t)
		return
	}

	// A queue record of a run means that an attempt of it has ended: a retry waits, or the node handed it
	// back.
	s.applyAttemptEnd(t, ev.Run, ev.Mod)

	// A record that cannot be read keeps its place: the run counts as existing, and only waits (G19).
	decoded, err := record.DecodeWaiting(ev.ShardKey, ev.Value)
	if err != nil {
		s.ensureActivity(t).Unreadable = append(s.ensureActivity(t).Unreadable, ev.Run)
		s.addNotice(notice{kind: queuedUnreadable, task: t.FullName(), run: ev.Run, err: err})

		if i >= 0 {
			s.applyDequeued(t, i)
			s.agenda.examineNext(t)
		}

		return
	}

	// Seen is when this owner first received the record. It limits how long a retry waits (see NotBefore).
	q := &state.Waiting{Waiting: decoded, Mod: ev.Mod, Create: ev.Create, Seen: now.UnixMilli()}
	if i >= 0 && t.Queue()[i].Mod == q.Mod {
		q.Seen = t.Queue()[i].Seen // the same version, delivered twice
	}

	// What the owner keeps about the parts of a run survives a new version of its record.
	if i >= 0 {
		q.Parts = t.Queue()[i].Parts
		t.Queue()[i] = q
	} else {
		s.applyEnqueued(t, q)
	}

	s.agenda.examineNext(t)
}

// applyEnqueued inserts a run into the task's queue, which is ordered by run id.
func (s *shardState) applyEnqueued(t *state.Task, q *state.Waiting) {
	l := s.ensureActivity(t)
	at, _ := t.FindWaiting(q.ID)
	l.Queue = slices.Insert(l.Queue, at, q)
	s.queued++
	s.rows.Touch(t)
}

// applyDequeued removes the run at index i of the task's queue. How the task's last run ended is unknown
// until the history record of the run arrives.
func (s *shardState) applyDequeued(t *state.Task, i int) {
	t.ForgetLastEnd()
	t.Activity.Queue = slices.Delete(t.Activity.Queue, i, i+1)
	s.queued--
	s.rows.Touch(t)
}

// applyEnded applies a history record: a run ended, or ticks did not run.
func (s *shardState) applyEnded(ev *store.ShardEvent, now time.Time) {
	t := s.records.TaskOf(ev)
	s.rows.NoteRun(t, ev)

	if ev.Deleted {
		delete(s.purges, ev.Key)
		s.dropTask(t)
		return
	}

	// A late result belongs to an attempt that was declared lost before. It changes nothing else (G12).
	if !ev.Late {
		s.applyAttemptEnd(t, ev.Run, ev.Mod)
	}

	// The record belongs to a task that no longer exists, so it is deleted.
	if t.Orphan(ev.Run) {
		s.purges[ev.Key] = ev.Mod
		return
	}

	// During a preload, the current owner counts the end. Ends that are applied already were counted before.
	outcome := s.rows.NoteEnd(t, ev)
	if e := (state.End{State: outcome.State()}); e.Ran() && s.owner && ev.Mod > s.applied {
		s.ports.ends.AddEnded(now, e.Failed())
	}

	// Dependents are started only by new ends of runs. The regular look at all sources covers what cannot be decoded here.
	if outcome != 0 && ev.Mod == ev.Create {
		s.requestSend(t)
	}

	if t.Bad {
		return
	}

	// Determine this before the end is added: a history is trimmed only if all earlier ends are counted.
	mayTrim := t.MayTrim()

	if t.Past != nil && t.DependsOnPast() {
		t.NoteEnd(ev, now.UnixMilli())
		s.agenda.examineNext(t)
	}

	// A new record. One whose mod revision is higher was extended, and does not lengthen the history.
	if ev.Mod == ev.Create && t.Added < math.MaxUint16 {
		t.Added++
	}

	// If the trimmer is busy, the task's next end asks again.
	if s.owner && mayTrim && int(t.Added) >= trimAfter(t) && s.ports.trims.Ask(s.trimOf(t, ev)) {
		t.Added = 0
	}
}

// trimAfter returns after how many new records t's history is trimmed.
func trimAfter(t *state.Task) int {
	return background.TrimAfter(t.Policy.History.Keep, int(t.Timing.Often))
}

// trimOf returns the request to trim t's history after the end ev.
func (s *shardState) trimOf(t *state.Task, ev *store.ShardEvent) background.Trim {
	job := background.Trim{
		Fences: s.fences, Ref: t.Ref(s.records.Shard), UID: t.UID(), Created: t.Create, History: t.Policy.History, Schedule: t.Schedule(), Added: int(t.Added),
		IsWorkflow: t.IsWorkflow(),
	}
	if t.CountsFailures() {
		// This end and those after it are not counted yet. Keep them.
		job.Before = ev.Mod
	}
	return job
}

// applyDead applies the record of a dead run. No decision depends on dead runs. Their list is cut to its
// length, and those of a deleted task are deleted.
func (s *shardState) applyDead(ev *store.ShardEvent) {
	t := s.records.TaskOf(ev)
	switch {
	case ev.Deleted:
		delete(s.purges, ev.Key)
		s.rows.NoteDead(t, ev)
		s.dropTask(t)
	case t.Orphan(ev.Run):
		s.purges[ev.Key] = ev.Mod
	default:
		s.rows.NoteDead(t, ev)
		s.trimDead(t)
	}
}

// trimDead requests that the list of t's dead runs is cut to its length, if many have been added.
func (s *shardState) trimDead(t *state.Task) {
	if t.Bad || !s.owner {
		return
	}

	keep := store.KeepDead
	if t.IsWorkflow() {
		keep = store.KeepDeadFlows
	}

	if t.Dead++; int(t.Dead) < background.TrimAfter(keep, 0) {
		return
	}

	if s.ports.trims.Ask(background.Trim{Fences: s.fences, Ref: t.Ref(s.records.Shard), Dead: true, IsWorkflow: t.IsWorkflow()}) {
		t.Dead = 0
	} else {
		t.Dead-- // the task's next dead run asks again
	}
}

// applyAttemptEnd removes the attempt of a run from the active ones, if it began before revision rev. A
// later attempt of the same run stays.
func (s *shardState) applyAttemptEnd(t *state.Task, run string, rev int64) {
	// The scan is still to come, and may contain this attempt although it has ended.
	if s.endedSince != nil {
		s.endedSince[t.FullName()+"/"+run] = rev
	}

	i := slices.IndexFunc(t.Active(), func(a *state.Attempt) bool { return a.Run == run && a.Create < rev })
	if i < 0 {
		return
	}

	a := t.Activity.Active[i]
	s.ports.placement.Release(a.Node, a.Pool)
	t.Activity.Active = slices.Delete(t.Activity.Active, i, i+1)
	t.ForgetLastEnd()
	s.rows.Touch(t)
	t.DropIdleActivity()

	// A waiting run or a trigger may have waited for this end. If the task is gone, it may be forgotten.
	if t.Activity != nil || !t.Present || t.DependsOnPast() || s.hasTriggers(t) {
		s.agenda.examineNext(t)
	}
}

// applyActiveRuns applies the result of the scan for active attempts, without those that have ended
// meanwhile.
func (s *shardState) applyActiveRuns(keys []store.ActiveKey) {
	s.mustBeSettled()

	for _, k := range keys {
		t := s.records.TaskNamed(k.Ref.String())

		// An end at a higher revision than the attempt's create revision means that it has ended.
		if s.endedSince[t.FullName()+"/"+k.Run] > k.Create {
			continue
		}

		s.addFoundAttempt(t, state.Attempt{Run: k.Run, Node: k.Node, Create: k.Create})
		s.agenda.examineNext(t)
	}

	// From now on, the watch reports every end after its attempt is known.
	s.endedSince = nil
	s.rows.Flush(s.applied)
	s.rows.Index.NoteCommitted(s.records.WatermarkRev)
}

// addFoundAttempt adds an attempt that was found in an inbox to the active ones, and counts a slot of its node.
func (s *shardState) addFoundAttempt(t *state.Task, a state.Attempt) {
	a.Pool, a.Found = t.PoolOf(a.Run), true
	if tick, ok := task.TimeOfRunID(a.Run); ok {
		a.Since = tick.UnixMilli()
	}

	s.addActiveAttempt(t, &a)
	s.ports.placement.Occupy(a.Node, a.Pool)
}

// addActiveAttempt adds an attempt to the active ones. It counts no slot of the node.
func (s *shardState) addActiveAttempt(t *state.Task, a *state.Attempt) {
	l := s.ensureActivity(t)
	l.Active = append(l.Active, a)
	t.ForgetLastEnd()
	s.rows.Touch(t)
}

// applyRevised applies an event of the shard's revised key.
func (s *shardState) applyRevised(ev *store.ShardEvent) {
	mod := ev.Mod
	if ev.Deleted {
		mod = 0
	}
	s.setRevised(mod, ev.Mod)
}

// readAhead records that the edited entries were read at revision at, when the watch had delivered
// everything up to applied. Entries of tasks that were created between the two were not read: the watch
// will deliver them, possibly in a version that is older than the edit that revised indicates.
type readAhead struct{ applied, at int64 }

// seenUpTo returns up to which create revision the watermark may cover tasks. For all of these tasks, the
// edits that revised indicates are known. A task that is created later must not be covered yet, or its
// edited ticks could be lost (G4).
func (s *shardState) seenUpTo() int64 {
	if s.applied < s.readAhead.at {
		return min(s.applied, s.readAhead.applied)
	}
	return s.applied
}

// setRevised records the mod revision of the revised key as of revision rev. A read may be newer than what
// the watch delivers afterwards, so older information is ignored.
func (s *shardState) setRevised(mod, rev int64) {
	if rev >= s.revisedAt {
		s.revised, s.revisedAt = mod, rev
	}
}
