package taskstate

import (
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Past is what has happened to a task whose future depends on it.
type Past struct {
	Own  task.Own // as it is in the entry
	Turn string   // the node that had the last run; with strategy round-robin only

	// What its history tells. The watch tells of each end; what was before, or what
	// it did not tell, is read by a HistoryReader.
	Studied bool  // Ends are all that Own does not count yet
	upTo    int64 // the revision of the reading: the watch may tell of it again
	Ends    []End // in the order of mod
	Known   bool  // Ended is when the last of what has ended did
	Ended   int64 // ms; 0: nothing has

	Deletion *retention.Deletion // under way, or nil
}

// End is how a run ended, or a tick that did not run.
type End struct {
	Mod   int64 // revision of the record
	State task.State
}

// Failed reports whether a run ended in a way that counts as a failure.
func (e End) Failed() bool {
	return e.State == task.Failed || e.State == task.TimedOut || e.State == task.Lost
}

// Own is what the entry says has happened to the task.
func (t *Task) Own() task.Own {
	if t.Past == nil {
		return task.Own{}
	}
	return t.Past.Own
}

// SetOwn takes what the entry says has happened to the task; nil: nothing.
func (t *Task) SetOwn(own *task.Own) {
	if own == nil && t.Past == nil {
		return
	}

	if own == nil {
		own = &task.Own{}
	}

	t.EnsurePast().Own = *own
}

// EnsurePast is t's past, made if need be.
func (t *Task) EnsurePast() *Past {
	if t.Past == nil {
		t.Past = &Past{}
	}
	return t.Past
}

// CountsFailures reports whether it matters how runs of the task end.
func (t *Task) CountsFailures() bool { return t.Policy.PauseAfter > 0 }

// FollowsEnds reports whether it matters when runs of the task end.
func (t *Task) FollowsEnds() bool { return t.Timing.Period > 0 }

// DependsOnPast reports whether the task's future depends on its past.
func (t *Task) DependsOnPast() bool {
	return t.Present && !t.Bad && (t.CountsFailures() || t.FollowsEnds() || t.Policy.TTL > 0)
}

// Idle reports whether nothing of the task waits or is active. What is left of a
// deleted task of the same name does not count.
func (t *Task) Idle() bool {
	t.DropIdleActivity()
	l := t.Activity
	if l == nil {
		return true
	}

	own := func(run string) bool { return !t.Orphan(run) }

	return !slices.ContainsFunc(l.Active, func(a *Attempt) bool { return own(a.Run) }) &&
		!slices.ContainsFunc(l.Queue, func(q *Waiting) bool { return own(q.ID) }) &&
		!slices.ContainsFunc(l.Unreadable, own) &&
		!slices.ContainsFunc(slices.Collect(maps.Keys(l.Returned)), own)
}

// usedAllRuns reports whether as many ticks became runs as the task may have.
func (t *Task) usedAllRuns() bool { return t.Policy.MaxRuns > 0 && t.Own().Runs >= t.Policy.MaxRuns }

// Silence is until when a paused task has no ticks; false: for good.
func (t *Task) Silence() (until int64, ends bool) {
	own := t.Own()
	at, ends := task.Entry{Paused: true, Own: &own}.Silence()
	if !ends {
		return 0, false
	}

	return at.UnixMilli(), true
}

// NoteEnd takes from a record of history what matters of it.
func (t *Task) NoteEnd(ev *store.ShardEvent, now int64) {
	p := t.Past
	if p == nil || ev.Late || t.Orphan(ev.Run) || p.Studied && ev.Mod <= p.upTo {
		return
	}

	r, err := record.DecodeEnded(ev.ShardKey, ev.Value)
	if err != nil {
		return // the history reader ignores it, too
	}

	p.setEnded(r.EndedAt.UnixMilli(), now)

	if p.Studied && t.CountsFailures() {
		p.Ends = append(p.Ends, End{ev.Mod, r.State})
	}
}

// setEnded notes when something ended, in ms. What ended last may have been told
// before it: a node that was cut off records an end late. Nobody guards the clock of
// the node that says so.
func (p *Past) setEnded(at, now int64) {
	p.Known, p.Ended = true, max(p.Ended, min(at, now+clockSlack.Milliseconds()))
}

// ForgetLastEnd has t's history read when it matters: something has ended, or a tick was
// decided, and the record of that is yet to be told.
func (t *Task) ForgetLastEnd() {
	if t.Past != nil {
		t.Past.Known = false
	}
}

// InARow is how many runs have failed in a row, if failures had before these ends.
func InARow(failures int, ends []End) int {
	for _, e := range ends {
		switch {
		case e.Failed():
			failures++
		case e.State == task.Succeeded:
			failures = 0
		}
	}

	return failures
}

// Uncounted are the ends that Own.Failures does not count yet.
func (p *Past) Uncounted() []End {
	i := slices.IndexFunc(p.Ends, func(e End) bool { return e.Mod > p.Own.Counted })
	if i < 0 {
		return nil
	}
	return p.Ends[i:]
}

// BeingDeleted reports whether t is being deleted since its ttl is over.
func (t *Task) BeingDeleted() bool {
	return t.Past != nil && t.Past.Deletion != nil && !t.Past.Deletion.IsOver()
}

// Over reports whether a task has no tick to come, ever, and since when: the last
// one's, or since the entry says that it begins. Nothing of it is undecided.
func (t *Task) Over(now int64) (since int64, over bool) {
	switch {
	case t.usedAllRuns():
		return t.From, true
	case t.FollowsEnds():
		return t.Timing.End, t.Timing.End != 0 && t.Timing.End < now
	case t.After(max(t.From, now)) != 0:
		return 0, false
	}

	s := t.Schedule()
	last, ok := s.LastDue(Instant(now), t.UID())
	if !ok {
		return t.From, true
	}

	return max(t.From, t.Due(last.UnixMilli())), true
}

// MayTrim reports whether all ends that have been told of are counted. Failures in
// a row must be counted before their records are trimmed: an owner that comes later
// counts from the history.
func (t *Task) MayTrim() bool {
	return !t.CountsFailures() || t.Past != nil && t.Past.Studied && len(t.Past.Uncounted()) == 0
}

// Ran reports whether it is how a run ended that nobody wanted to end: what counts
// for whether a task is failing.
func (e End) Ran() bool { return e.State == task.Succeeded || e.Failed() }
