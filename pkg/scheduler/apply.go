package scheduler

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// applyRecords takes what has happened in the shard. Of each record the higher mod
// revision wins, so that what a commit has put in place already, or read, is
// not undone by an event that was on its way.
func (s *shardState) applyRecords(b store.ShardBatch, now time.Time) {
	s.mustBeSettled()

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
		}
	}

	if b.More {
		return
	}

	s.applied = max(s.applied, b.Revision)
	for key, rev := range s.gone {
		if rev <= s.applied {
			delete(s.gone, key)
		}
	}
}

func (s *shardState) applyEntry(ev *store.ShardEvent) {
	t := s.TaskOf(ev)
	if ev.Mod != 0 && ev.Mod < t.Mod {
		return
	}

	if ev.Deleted {
		t.Bad = false
		t.Mod, t.Create = max(t.Mod, ev.Mod), 0
		s.noEntry(t)
		s.addLook(t)

		return
	}

	again := t.Create != ev.Create
	if again {
		t.Past = nil
	}

	t.Present, t.Mod, t.Create = true, ev.Mod, ev.Create
	err := s.readEntry(t, ev.Value)
	if err != nil {
		s.addNotice(notice{kind: entryUnreadable, task: t.FullName(), err: err})
	} else if again {
		// As if some records had been added already: on average, a history is
		// trimmed as often in a shard that changes hands after every few runs.
		t.Added = uint16(s.random.IntN(retention.TrimAfter(t.Policy.History.Keep)))
		t.Dead = uint8(s.random.IntN(retention.TrimAfter(store.KeepDead)))
	}

	t.Bad = err != nil
	s.census.Count(t)
	s.rescheduleTask(t)

	if t.Activity != nil || t.DependsOnPast() {
		s.addLook(t)
	}
}

// noEntry takes a task's entry away.
func (s *shardState) noEntry(t *taskstate.Task) {
	s.endSpan(t)
	t.Present, t.Timing, t.Policy, t.Past = false, nil, nil, nil
	t.Text, t.UIDLen = t.Text[:t.NameLen], 0
	s.census.Count(t)
	s.failures.Forget(t)
	s.due.Set(t, 0)
	delete(s.uncovered, t)
	delete(s.unread, t)
	delete(s.rests, t)
}

// mostEntry is how large an entry may be, in bytes: the API writes little more
// than its action. A commit has room for some of them, with a run of each; one
// that fits into none would hold up its shard.
const mostEntry = 2 * task.MaxAction

// readEntry takes what an entry says.
func (s *shardState) readEntry(t *taskstate.Task, value []byte) (err error) {
	if len(value) > mostEntry {
		return fmt.Errorf("%w: an entry of %d bytes; at most %d are read", task.ErrInvalid, len(value), mostEntry)
	}

	p := &s.parts
	if err := p.Split(value); err != nil {
		return err
	}

	namespace, name, _ := strings.Cut(t.FullName(), "/")
	if err := errors.Join(task.CheckName("namespace", namespace), task.CheckName("name", name)); err != nil {
		return err
	}
	if len(p.UID) > math.MaxUint8 || p.Generation != int64(int32(p.Generation)) {
		return fmt.Errorf("%w: uid or generation", task.ErrInvalid)
	}

	action, err := record.DecodeAction(p.Action)
	if err != nil {
		return err
	}
	if t.Policy, err = s.definitions.parsePolicy(p.Policy); err != nil {
		return err
	}
	if t.Timing, err = s.definitions.parseTiming(p.Timing); err != nil {
		return err
	}

	var own *task.Own
	if len(p.Own) > 0 {
		o, err := record.DecodeOwn(p.Own)
		if err != nil {
			return err
		}
		own = &o
	}

	t.SetOwn(own)
	text := make([]byte, 0, int(t.NameLen)+len(p.UID)+len(p.Action))
	text = append(append(append(text, t.FullName()...), p.UID...), p.Action...)
	t.Text, t.UIDLen, t.Secret = string(text), uint8(len(p.UID)), action.NeedsKey()
	s.Tasks[t.FullName()] = t // so that the key is no second copy of the name
	t.From, t.Anchor, t.Paused, t.Generation = p.From.UnixMilli(), p.Anchor.UnixMilli(), p.Paused, int32(p.Generation)

	return nil
}

func (s *shardState) applyQueued(ev *store.ShardEvent, now time.Time) {
	t := s.TaskOf(ev)
	if rev, ok := s.gone[t.FullName()+"/"+ev.Run]; ok && (ev.Mod == 0 || ev.Mod <= rev) {
		s.dropTask(t) // it may have been forgotten already
		return
	}

	i := slices.IndexFunc(t.Queue(), func(q *taskstate.Waiting) bool { return q.ID == ev.Run })
	if i >= 0 && ev.Mod != 0 && ev.Mod < t.Queue()[i].Mod {
		return
	}

	if t.Activity != nil {
		t.Activity.Unreadable = slices.DeleteFunc(t.Activity.Unreadable, func(run string) bool { return run == ev.Run })
	}

	if ev.Deleted {
		if i >= 0 {
			s.applyDequeued(t, i)
		}
		s.addLook(t)
		return
	}

	s.applyAttemptEnd(t, ev.Run, ev.Mod) // a retry waits, or the attempt was handed back
	decoded, err := record.DecodeWaiting(ev.ShardKey, ev.Value)
	if err != nil {
		s.ensureActivity(t).Unreadable = append(s.ensureActivity(t).Unreadable, ev.Run)
		s.addNotice(notice{kind: queuedUnreadable, task: t.FullName(), run: ev.Run, err: err})

		if i >= 0 {
			s.applyDequeued(t, i)
			s.addLook(t)
		}

		return
	}

	q := &taskstate.Waiting{Waiting: decoded, Mod: ev.Mod, Seen: now.UnixMilli()}
	if i >= 0 && t.Queue()[i].Mod == q.Mod {
		q.Seen = t.Queue()[i].Seen // it is told twice
	}

	if i >= 0 {
		q.Parental = t.Queue()[i].Parental
		t.Queue()[i] = q
	} else {
		s.applyEnqueued(t, q)
	}

	s.addLook(t)
}

func (s *shardState) applyEnqueued(t *taskstate.Task, q *taskstate.Waiting) {
	l := s.ensureActivity(t)
	at, _ := slices.BinarySearchFunc(l.Queue, q, func(a, b *taskstate.Waiting) int { return strings.Compare(a.ID, b.ID) })
	l.Queue = slices.Insert(l.Queue, at, q)
	s.queued++
}

func (s *shardState) applyDequeued(t *taskstate.Task, i int) {
	t.ForgetLastEnd()
	t.Activity.Queue = slices.Delete(t.Activity.Queue, i, i+1)
	s.queued--
}

func (s *shardState) applyEnded(ev *store.ShardEvent, now time.Time) {
	t := s.TaskOf(ev)

	if ev.Deleted {
		delete(s.purges, ev.Key)
		s.dropTask(t)
		return
	}

	if !ev.Late {
		s.applyAttemptEnd(t, ev.Run, ev.Mod)
	}

	if t.Orphan(ev.Run) {
		s.purges[ev.Key] = ev.Mod
		return
	}

	if t.Bad {
		return
	}

	if e, isNew := s.failures.NoteEnd(t, ev); isNew && s.owner {
		s.ends.AddEnded(now, e.Failed())
	}

	mayTrim := t.MayTrim()

	if t.Past != nil && t.DependsOnPast() {
		t.NoteEnd(ev, now.UnixMilli())
		s.addLook(t)
	}

	if ev.Mod == ev.Create && t.Added < math.MaxUint16 { // else it was extended
		t.Added++
	}

	if s.owner && mayTrim && int(t.Added) >= retention.TrimAfter(t.Policy.History.Keep) && s.trims.Ask(s.trimOf(t, ev)) {
		t.Added = 0
	}
}

// trimOf is the trim of t's history after an end.
func (s *shardState) trimOf(t *taskstate.Task, ev *store.ShardEvent) retention.Trim {
	job := retention.Trim{Fences: s.fences, Ref: t.Ref(s.Shard), UID: t.UID(), History: t.Policy.History}
	if t.CountsFailures() {
		job.Before = ev.Mod // this end, and those that follow, are yet to be counted
	}
	return job
}

// applyAttemptEnd takes the attempt of a run off the active ones, if it began before rev.
func (s *shardState) applyAttemptEnd(t *taskstate.Task, run string, rev int64) {
	if s.endedSince != nil {
		s.endedSince[t.FullName()+"/"+run] = rev
	}

	i := slices.IndexFunc(t.Active(), func(a *taskstate.Attempt) bool { return a.Run == run && a.Create < rev })
	if i < 0 {
		return
	}

	s.placement.Release(t.Activity.Active[i].Node)
	t.Activity.Active = slices.Delete(t.Activity.Active, i, i+1)
	t.ForgetLastEnd()
	t.DropIdleActivity()

	if t.Activity != nil || !t.Present || t.DependsOnPast() {
		s.addLook(t) // something may have waited for this end
	}
}

// applyActiveRuns takes the answer to the scan for active attempts: but those that have
// ended meanwhile.
func (s *shardState) applyActiveRuns(keys []store.ActiveKey) {
	s.mustBeSettled()

	for _, k := range keys {
		t := s.TaskNamed(k.Ref.String())
		if s.endedSince[t.FullName()+"/"+k.Run] > k.Create {
			continue
		}

		s.addActiveAttempt(t, &taskstate.Attempt{Run: k.Run, Node: k.Node, Create: k.Create})
		s.placement.Occupy(k.Node)
		s.addLook(t)
	}

	s.endedSince = nil
}

func (s *shardState) addActiveAttempt(t *taskstate.Task, a *taskstate.Attempt) {
	l := s.ensureActivity(t)
	l.Active = append(l.Active, a)
	t.ForgetLastEnd()
}

func (s *shardState) applyRevised(ev *store.ShardEvent) {
	mod := ev.Mod
	if ev.Deleted {
		mod = 0
	}
	s.setRevised(mod, ev.Mod)
}

// readAhead says that revised was read at revision at, when the watch had told of everything up to applied. Of
// tasks that were created between the two the entries were not read: what the watch tells of them may be older than
// the edits that revised stands for.
type readAhead struct{ applied, at int64 }

// seenUpTo is up to which revision the watermark may speak for the tasks that were created: for all of them the
// edits that revised stands for are known.
func (s *shardState) seenUpTo() int64 {
	if s.applied < s.readAhead.at {
		return min(s.applied, s.readAhead.applied)
	}
	return s.applied
}

// setRevised notes what revised was at a revision. What was read may be newer than
// what the watch tells afterwards.
func (s *shardState) setRevised(mod, rev int64) {
	if rev >= s.revisedAt {
		s.revised, s.revisedAt = mod, rev
	}
}
