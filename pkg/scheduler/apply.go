package scheduler

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// apply takes what has happened in the shard. Of each record the higher mod
// revision wins, so that what a commit has put in place already, or read, is
// not undone by an event that was on its way.
func (s *shardState) apply(b store.ShardBatch, now time.Time) {
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
	t := s.taskOf(ev)
	if ev.Mod != 0 && ev.Mod < t.mod {
		return
	}
	if ev.Deleted {
		t.bad = false
		t.mod, t.create = max(t.mod, ev.Mod), 0
		s.noEntry(t)
		s.look(t)
		return
	}
	again := t.create != ev.Create
	if again {
		t.past = nil
	}
	t.present, t.mod, t.create = true, ev.Mod, ev.Create
	err := s.read(t, ev.Value)
	if err != nil {
		s.notify(notice{kind: entryUnreadable, task: t.fullName(), err: err})
	} else if again {
		// As if some records had been added already: on average, a history is
		// trimmed as often in a shard that changes hands after every few runs.
		t.added = uint16(s.random.IntN(retention.TrimAfter(t.how.History.Keep)))
		t.dead = uint8(s.random.IntN(retention.TrimAfter(store.KeepDead)))
	}
	t.bad = err != nil
	s.count(t)
	s.reschedule(t)
	if t.activity != nil || t.depends() {
		s.look(t)
	}
}

// noEntry takes a task's entry away.
func (s *shardState) noEntry(t *taskState) {
	s.endSpan(t)
	t.present, t.when, t.how, t.past = false, nil, nil, nil
	t.text, t.uid = t.text[:t.name], 0
	s.count(t)
	delete(s.failing, t)
	s.due.set(t, 0)
	delete(s.uncovered, t)
	delete(s.unread, t)
	delete(s.rests, t)
}

// mostEntry is how large an entry may be, in bytes: the API writes little more
// than its action. A commit has room for some of them, with a run of each; one
// that fits into none would hold up its shard.
const mostEntry = 2 * task.MaxAction

// read takes what an entry says.
func (s *shardState) read(t *taskState, value []byte) (err error) {
	if len(value) > mostEntry {
		return fmt.Errorf("%w: an entry of %d bytes; at most %d are read", task.ErrInvalid, len(value), mostEntry)
	}
	p := &s.parts
	if err := p.Split(value); err != nil {
		return err
	}
	namespace, name, _ := strings.Cut(t.fullName(), "/")
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
	if t.how, err = s.definitions.policy(p.Policy); err != nil {
		return err
	}
	if t.when, err = s.definitions.timing(p.Timing); err != nil {
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
	t.setOwn(own)
	text := make([]byte, 0, int(t.name)+len(p.UID)+len(p.Action))
	text = append(append(append(text, t.fullName()...), p.UID...), p.Action...)
	t.text, t.uid, t.secret = string(text), uint8(len(p.UID)), action.NeedsKey()
	s.tasks[t.fullName()] = t // so that the key is no second copy of the name
	t.from, t.anchor, t.paused, t.generation = p.From.UnixMilli(), p.Anchor.UnixMilli(), p.Paused, int32(p.Generation)
	return nil
}

func (s *shardState) applyQueued(ev *store.ShardEvent, now time.Time) {
	t := s.taskOf(ev)
	if rev, ok := s.gone[t.fullName()+"/"+ev.Run]; ok && (ev.Mod == 0 || ev.Mod <= rev) {
		s.drop(t) // it may have been forgotten already
		return
	}
	i := slices.IndexFunc(t.queue(), func(q *waiting) bool { return q.ID == ev.Run })
	if i >= 0 && ev.Mod != 0 && ev.Mod < t.queue()[i].mod {
		return
	}
	if t.activity != nil {
		t.activity.unreadable = slices.DeleteFunc(t.activity.unreadable, func(run string) bool { return run == ev.Run })
	}
	if ev.Deleted {
		if i >= 0 {
			s.dequeued(t, i)
		}
		s.look(t)
		return
	}
	s.ended(t, ev.Run, ev.Mod) // a retry waits, or the attempt was handed back
	decoded, err := record.DecodeWaiting(ev.ShardKey, ev.Value)
	if err != nil {
		s.ensureActivity(t).unreadable = append(s.ensureActivity(t).unreadable, ev.Run)
		s.notify(notice{kind: queuedUnreadable, task: t.fullName(), run: ev.Run, err: err})
		if i >= 0 {
			s.dequeued(t, i)
			s.look(t)
		}
		return
	}
	q := &waiting{Waiting: decoded, mod: ev.Mod, seen: now.UnixMilli()}
	if i >= 0 && t.queue()[i].mod == q.mod {
		q.seen = t.queue()[i].seen // it is told twice
	}
	if i >= 0 {
		q.parental = t.queue()[i].parental
		t.queue()[i] = q
	} else {
		s.enqueued(t, q)
	}
	s.look(t)
}

func (s *shardState) enqueued(t *taskState, q *waiting) {
	l := s.ensureActivity(t)
	at, _ := slices.BinarySearchFunc(l.queue, q, func(a, b *waiting) int { return strings.Compare(a.ID, b.ID) })
	l.queue = slices.Insert(l.queue, at, q)
	s.queued++
}

func (s *shardState) dequeued(t *taskState, i int) {
	t.forgetLastEnd()
	t.activity.queue = slices.Delete(t.activity.queue, i, i+1)
	s.queued--
}

func (s *shardState) applyEnded(ev *store.ShardEvent, now time.Time) {
	t := s.taskOf(ev)
	if ev.Deleted {
		delete(s.purges, ev.Key)
		s.drop(t)
		return
	}
	if !ev.Late {
		s.ended(t, ev.Run, ev.Mod)
	}
	if t.orphan(ev.Run) {
		s.purges[ev.Key] = ev.Mod
		return
	}
	if t.bad {
		return
	}
	if e, news := s.noteOutcome(t, ev); news && s.owner {
		s.ends.AddEnded(now, e.failed())
	}
	mayTrim := t.mayTrim()
	if t.past != nil && t.depends() {
		t.noteEnd(ev, now.UnixMilli())
		s.look(t)
	}
	if ev.Mod == ev.Create && t.added < math.MaxUint16 { // else it was extended
		t.added++
	}
	if s.owner && mayTrim && int(t.added) >= retention.TrimAfter(t.how.History.Keep) && s.trims.Ask(s.trimOf(t, ev)) {
		t.added = 0
	}
}

// mayTrim reports whether all ends that have been told of are counted. Failures in
// a row must be counted before their records are trimmed: an owner that comes later
// counts from the history.
func (t *taskState) mayTrim() bool {
	return !t.counts() || t.past != nil && t.past.studied && len(t.past.uncounted()) == 0
}

// trimOf is the trim of t's history after an end.
func (s *shardState) trimOf(t *taskState, ev *store.ShardEvent) retention.Trim {
	job := retention.Trim{Fences: s.fences, Ref: t.ref(s.shard), UID: t.uidText(), History: t.how.History}
	if t.counts() {
		job.Before = ev.Mod // this end, and those that follow, are yet to be counted
	}
	return job
}

// ended takes the attempt of a run off the active ones, if it began before rev.
func (s *shardState) ended(t *taskState, run string, rev int64) {
	if s.endedSince != nil {
		s.endedSince[t.fullName()+"/"+run] = rev
	}
	i := slices.IndexFunc(t.active(), func(a *attempt) bool { return a.run == run && a.create < rev })
	if i < 0 {
		return
	}
	s.placement.Release(t.activity.active[i].node)
	t.activity.active = slices.Delete(t.activity.active, i, i+1)
	t.forgetLastEnd()
	t.dropIdleActivity()
	if t.activity != nil || !t.present || t.depends() {
		s.look(t) // something may have waited for this end
	}
}

// scanned takes the answer to the scan for active attempts: but those that have
// ended meanwhile.
func (s *shardState) scanned(keys []store.ActiveKey) {
	s.mustBeSettled()

	for _, k := range keys {
		t := s.task(k.Ref.String())
		if s.endedSince[t.fullName()+"/"+k.Run] > k.Create {
			continue
		}

		s.activate(t, &attempt{run: k.Run, node: k.Node, create: k.Create})
		s.placement.Occupy(k.Node)
		s.look(t)
	}

	s.endedSince = nil
}

func (s *shardState) activate(t *taskState, a *attempt) {
	l := s.ensureActivity(t)
	l.active = append(l.active, a)
	t.forgetLastEnd()
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
