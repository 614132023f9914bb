package scheduler

import (
	"errors"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/scheduler/tickpolicy"
	"github.com/carillonhq/carillon/pkg/scheduler/triggers"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The owner of a source writes a trigger for each of its dependents when a run of the source has ended (background.Sender). The
// owner of the dependent gives each trigger exactly one outcome: the commit that contains the outcome deletes the trigger, and
// compares its mod revision and the entry of the dependent. Until then, the trigger waits. See "Dependents" in
// docs/architecture.md.

// applyTrigger applies the current version of a trigger, or its deletion.
func (s *shardState) applyTrigger(ev *store.ShardEvent) {
	// This owner has deleted the record at a later revision. Ignore the older event.
	if rev, ok := s.gone[ev.Key]; ok && (ev.Mod == 0 || ev.Mod <= rev) {
		return
	}

	t := s.records.TaskOf(ev)
	if added := s.records.Links.ApplyTrigger(ev); added != nil && added.Err != nil {
		s.addNotice(notice{kind: triggerUnreadable, task: t.FullName(), run: ev.Peer + "~" + ev.Run, err: added.Err})
	}

	s.agenda.examineNext(t)
}

// hasTriggers reports whether triggers of t wait.
func (s *shardState) hasTriggers(t *state.Task) bool {
	return s.records.Links.Waiting() > 0 && len(s.records.Links.Triggers(t.FullName())) > 0
}

// requestSend asks the node's sender to look at the history of a source, because a run of it has ended.
func (s *shardState) requestSend(t *state.Task) {
	if s.owner && s.records.Links.IsSource(t.FullName()) {
		s.ports.sends.Ask(s.sendOf(t.FullName()))
	}
}

// sendOf returns the request to send the triggers of a source, namespace/name.
func (s *shardState) sendOf(source string) background.Send {
	namespace, name, _ := strings.Cut(source, "/")

	return background.Send{
		Fences: s.fences, Source: record.Ref{Namespace: namespace, Name: name, Shard: s.records.Shard}, SentTo: s.records.Links.SentTo(source),
	}
}

// takeTriggers gives triggers of a task their outcomes, as far as there is room. Those that must wait stay.
func (p *plan) takeTriggers(t *state.Task) {
	s := p.s
	if p.full || !s.hasTriggers(t) {
		return
	}

	switch {
	case !t.Present && t.Create != 0:
		// A conflict has shown that the entry was deleted or created again. The watch has still to deliver what is true now.
		return
	case t.BeingDeleted():
		return
	case p.changeFor(t) != nil:
		// What this plan has decided for the task is not counted yet.
		p.examineAfterCommit(t)
		return
	}

	waiting := s.records.Links.Triggers(t.FullName())
	d := p.dependentOf(t)
	list := make([]triggers.Trigger, len(waiting))
	for i, w := range waiting {
		list[i] = triggers.Trigger{
			Unreadable: w.Err != nil, UID: w.UID, Source: w.Source, Generation: w.Generation, At: w.At.Time, IsLost: s.isRestored(w.Create) || w.IsLost,
		}
	}

	take := taking{plan: p, t: t, at: s.lastTriggered(t)}
	more := false
	for i, fate := range triggers.Decide(&d, list) {
		if fate.Outcome == triggers.Wait {
			p.awaitTrigger(t, waiting[i])
			more = more || take.started
			continue
		}

		if !take.decide(waiting[i], fate) {
			break // the commit is full, so the task is examined again
		}
	}

	take.writeGroup()

	// With overlap allow, another run may start in the next commit.
	if more {
		p.examineAfterCommit(t)
	}
}

// dependentOf describes a task for the decision about its triggers.
func (p *plan) dependentOf(t *state.Task) triggers.Dependent {
	d := triggers.Dependent{Exists: t.Present, Bad: t.Bad, Now: p.now}
	if !t.Present || t.Bad {
		return d
	}

	now := p.now.UnixMilli()
	doing, rule := t.Doing(now), t.Policy.Rule
	until, ends := t.Silence()

	d.UID, d.Generation = t.UID(), t.Policy.LinkGeneration
	d.Deadline, d.Shadow, d.Frozen = t.Policy.Deadline, t.Policy.Shadow, p.isFrozen(t)
	d.Paused = t.Paused && (!ends || now <= until)
	d.Overlap, d.Limit, d.DropOldest = t.Policy.Overlap, rule.Room(), rule.Oldest
	d.CatchingUp = rule.JoinsLate() && (doing.Late > 0 || doing.Catching)
	d.Idle = rule.Free(doing) && doing.All == 0
	d.MayStart = rule.Free(doing) && doing.All < tickpolicy.MaxWaiting

	return d
}

// awaitTrigger makes the worker examine a task again for a trigger that waits: when its start deadline passes, or when an attempt
// no longer counts as a sign that the target is down. All other changes are events.
func (p *plan) awaitTrigger(t *state.Task, w *state.Trigger) {
	if t.Bad {
		return
	}

	if t.Policy.Deadline > 0 {
		p.s.agenda.examineAgainAt(t, w.At.Add(t.Policy.Deadline).Truncate(deadlineStep).Add(deadlineStep))
	}

	p.examineAfterProbe(t)
}

// lastTriggered returns the time in the id of the last outcome of a trigger of t, in Unix milliseconds; 0 if it is not known. A
// new owner knows the runs that wait or are active.
func (s *shardState) lastTriggered(t *state.Task) int64 {
	last := s.triggered[t].last

	for _, q := range t.Queue() {
		if q.Trigger == task.TriggerAfter {
			last = max(last, q.ScheduledTime.UnixMilli())
		}
	}

	for _, a := range t.Active() {
		if at, ok := task.TimeOfRunID(a.Run); ok && task.TriggerOfRunID(a.Run) == task.TriggerAfter {
			last = max(last, at.UnixMilli())
		}
	}

	return last
}

// triggeredTask is what a worker remembers about the last outcomes of a task's triggers.
type triggeredTask struct {
	last int64 // the time of the last outcome, in Unix milliseconds
	// skipped is the record of the last triggers if they were skipped, and mod its mod revision. The next trigger that is skipped
	// for the same reason extends it. nil: there is no such record.
	skipped *task.Run
	mod     int64
}

// taking is what a plan decides about the triggers of one task.
type taking struct {
	plan    *plan
	t       *state.Task
	at      int64     // the time of the last outcome, in Unix milliseconds
	started bool      // a run was started
	group   *task.Run // the record of the last triggers that were skipped or missed, which is not written yet
	extends int64     // the mod revision of the record that group extends; 0: it is a new one
	closed  bool      // the record that an earlier commit has written cannot be extended any more
}

// decide gives a trigger its outcome. It returns false if the commit has no room.
func (ta *taking) decide(w *state.Trigger, fate triggers.Fate) bool {
	p, t := ta.plan, ta.t

	// Most outcomes write one record. A run may begin with a dead letter, and write the entry.
	records, size := 2, 2*roomForRecord
	if fate.Outcome == triggers.Start || fate.Outcome == triggers.Queue {
		plans, planSize := p.roomToBegin(t)
		records, size = 4+t.EntryRecords()+plans, (3+t.EntryRecords())*roomForTask(t)+planSize
	}

	isFirst := p.changeFor(t) == nil
	if !p.reserveRoom(t, records, size) {
		return false
	}

	// The outcome depends on the entry, which must be unchanged (G7), or must still be missing.
	if isFirst {
		mod := t.Mod
		if !t.Present {
			mod = 0
		}
		p.commit.GuardEntry(t.FullName(), mod)
	}

	// Each outcome has its own millisecond: runs are ordered by their ids, a range of skipped triggers has at most one in a
	// millisecond, and a time names either a tick or the run of a trigger.
	if fate.Outcome != triggers.Delete {
		ta.at = max(p.now.UnixMilli(), ta.at+1)
		for t.Present && !t.Bad && t.After(ta.at-1) == ta.at {
			ta.at++
		}
	}

	switch fate.Outcome {
	case triggers.Skip:
		ta.addToGroup(w, task.Skipped, fate.Reason)
	case triggers.Miss:
		ta.addToGroup(w, task.Missed, fate.Reason)
	case triggers.Start:
		ta.endGroup()
		ta.started = true
		p.startTriggered(t, ta.newRun(w))
	case triggers.Queue:
		ta.endGroup()
		p.enqueueTriggered(t, ta.newRun(w), fate.Reason)
	}

	p.addEffect(triggerTaken{t, w, ta.at, fate})
	p.counts.triggers[fate.Outcome]++

	return true
}

// newRun returns the run that a trigger starts, without a state.
func (ta *taking) newRun(w *state.Trigger) task.Run {
	t, at, uid := ta.t, state.Instant(ta.at), ta.uidFor(w)

	r := ta.plan.newRun(t, ta.at, task.TriggeredRunID(at, uid, w.Cause), task.TriggerAfter)
	r.UID, r.Causes, r.Period, r.DueAt = uid, []task.Cause{w.Cause}, w.Period, task.Time{} // it is no tick, so jitter does not apply
	if !t.Bad && t.Policy.Deadline > 0 && !w.At.IsZero() {
		r.StartBefore = task.At(w.At.Add(t.Policy.Deadline))
	}

	return r
}

// uidFor returns the uid of the task to which the outcome of a trigger belongs. Without a readable entry, only the trigger has it.
func (ta *taking) uidFor(w *state.Trigger) string {
	if ta.t.Bad {
		return w.UID
	}

	return ta.t.UID()
}

// addToGroup records that a trigger starts nothing. Consecutive triggers with the same outcome share a record, which names the
// first of them and counts the others. The record of skipped triggers may be one that an earlier commit has written.
func (ta *taking) addToGroup(w *state.Trigger, outcome task.State, reason string) {
	p := ta.plan
	last := p.s.triggered[ta.t]

	fits := func(r *task.Run) bool {
		return r != nil && r.State == outcome && r.Reason == reason && r.UID == ta.uidFor(w) && r.ScheduledTime.UnixMilli() < ta.at
	}

	switch {
	case ta.group != nil && fits(ta.group):
	case ta.group == nil && !ta.closed && fits(last.skipped):
		r := *last.skipped
		ta.group, ta.extends = &r, last.mod
	default:
		ta.endGroup()

		r := ta.newRun(w)
		r.State, r.Reason, r.Attempt, r.StartBefore = outcome, reason, 0, task.Time{}
		r.EndedAt, r.Causes[0].Results = task.At(p.now), nil
		if outcome == task.Missed {
			r.Message = p.describeMissed(ta.t, reason)
		}
		ta.group = &r

		return
	}

	g := ta.group
	g.Count = max(g.Count, 1) + 1
	g.Last = task.At(state.Instant(ta.at))
	g.EndedAt = g.Last // it never goes back, also if the clock does
}

// endGroup writes the record of the group, because the next trigger has another outcome.
func (ta *taking) endGroup() {
	ta.writeGroup()
	ta.closed = true
}

// writeGroup writes the record of the triggers that were skipped or missed.
func (ta *taking) writeGroup() {
	if ta.group != nil {
		ta.plan.addEffect(triggersDropped{ta.t, ta.group, ta.extends})
	}

	ta.group, ta.extends = nil, 0
}

// startTriggered starts the run of a trigger, as fireTick starts that of a tick. If no node accepts the run, or if it cannot have
// its parts now, it waits in the queue. The caller has made room in the commit.
func (p *plan) startTriggered(t *state.Task, run task.Run) {
	if n := p.namespaceOf(t); !n.allows(t) {
		run.Attempt, run.StartBefore = 0, task.Time{}
		p.failRun(t, run, nil, task.ReasonNamespace, n.refusal(t))
		return
	}

	if t.Policy.Target.FansOut() || t.IsWorkflow() {
		f, reason, err := p.planParent(t)
		if failed := (*flowError)(nil); errors.As(err, &failed) {
			run.Attempt, run.StartBefore = 0, task.Time{}
			p.failRun(t, run, nil, failed.reason, failed.message)
			return
		}
		if reason == "" {
			p.fanOut(t, run, f)
		} else {
			p.enqueueTriggered(t, run, reason)
		}

		return
	}

	n, ok := p.pickNode(t, p.wantOf(t))
	if !ok {
		p.enqueueTriggered(t, run, task.ReasonNoNode)
		return
	}

	p.attempt.Run, p.attempt.Env = run, nil
	p.dispatchRun(t, n, false)
}

// enqueueTriggered puts the run of a trigger into the queue. reason says why it waits.
func (p *plan) enqueueTriggered(t *state.Task, run task.Run, reason string) {
	run.State, run.Reason = task.Queued, reason
	p.addEffect(runEnqueued{t, &state.Waiting{Waiting: task.Waiting{Run: run}}})
	p.examineAfterCommit(t)
}

// triggerTaken deletes a trigger, because the same commit contains its outcome.
type triggerTaken struct {
	task    *state.Task
	trigger *state.Trigger
	at      int64 // the time of the outcome, in Unix milliseconds
	fate    triggers.Fate
}

func (e triggerTaken) writeTo(c *store.Commit) { c.TakeTrigger(e.trigger.Key, e.trigger.Mod) }

func (e triggerTaken) applyTo(s *shardState, rev int64, _ time.Time) {
	// An older event of the record may still be on its way. It must not bring the trigger back.
	s.gone[e.trigger.Key] = rev
	s.records.Links.RemoveTrigger(e.task.FullName(), e.trigger)

	if e.fate.Outcome == triggers.Delete {
		s.agenda.examineNext(e.task) // the next plan forgets a task that has nothing left
		return
	}

	last := triggeredTask{last: e.at}
	if e.fate.Outcome == triggers.Skip {
		known := s.triggered[e.task]
		last.skipped, last.mod = known.skipped, known.mod
	}
	s.noteTriggered(e.task, last)
}

// noteTriggered remembers the last outcome of a task's triggers.
func (s *shardState) noteTriggered(t *state.Task, last triggeredTask) {
	if s.triggered == nil {
		s.triggered = map[*state.Task]triggeredTask{}
	}
	s.triggered[t] = last
}

// triggersDropped records triggers that start nothing. If extends is not 0, it is the mod revision of the existing record of the
// triggers before them, which the new record replaces.
type triggersDropped struct {
	task    *state.Task
	record  *task.Run
	extends int64
}

func (e triggersDropped) writeTo(c *store.Commit) {
	ref := e.task.Ref(c.Shard)

	if e.extends != 0 {
		c.Extend(ref, *e.record, e.extends)
	} else {
		c.Record(ref, *e.record)
	}
}

func (e triggersDropped) applyTo(s *shardState, rev int64, _ time.Time) {
	last := s.triggered[e.task]
	if last.skipped, last.mod = nil, 0; e.record.State == task.Skipped {
		last.skipped, last.mod = e.record, rev
	}
	s.noteTriggered(e.task, last)
}

// endTriggerSpan makes the next trigger of t that is skipped begin a new record.
func (s *shardState) endTriggerSpan(t *state.Task) {
	if last, ok := s.triggered[t]; ok {
		last.skipped, last.mod = nil, 0
		s.triggered[t] = last
	}
}
