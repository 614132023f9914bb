package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Past is what has happened to a task whose future depends on that.
type Past struct {
	Own  task.Own // as in the entry
	Turn string   // the node that had the last run; with the round-robin strategy only

	// The rest comes from the task's history. The watch delivers each new end. Earlier ends, and ends whose
	// record is not known, are read by a HistoryReader.
	//
	// Studied means that Ends holds all ends that Own does not count yet.
	Studied bool
	// upTo is the revision at which the history was read. The watch may deliver ends up to there once more.
	upTo int64
	Ends []End // ordered by Mod
	// Known means that Ended is when the task's last run or tick ended, in Unix milliseconds, or 0 if
	// nothing has ended.
	Known bool
	Ended int64
	// HasRestored means that the outcome of a run or a tick is task.ReasonRestored, among the records that were read or delivered.
	HasRestored bool
	// IsReadForTTL means that the history was read when the task had a ttl: not only its newest records.
	IsReadForTTL bool

	Deletion *background.Deletion // deletion because of the ttl that was requested, or nil
}

// End is how a run ended, or that a tick did not run.
type End struct {
	Create int64 // create revision of the history record, which a rewritten record keeps
	State  task.State
	// IsRestored means that a restore has lost how the run ended. That says nothing about the task.
	IsRestored bool
}

// newEnd returns the end in a history record.
func newEnd(create int64, r *task.Run) End {
	return End{Create: create, State: r.State, IsRestored: r.Reason == task.ReasonRestored}
}

// Failed reports whether a run ended in a way that counts as a failure.
func (e End) Failed() bool {
	return (e.State == task.Failed || e.State == task.TimedOut || e.State == task.Lost) && !e.IsRestored
}

// Own returns the counts, pauses and node that the entry records.
func (t *Task) Own() task.Own {
	if t.Past == nil {
		return task.Own{}
	}
	return t.Past.Own
}

// SetOwn sets what the entry records; nil means nothing.
func (t *Task) SetOwn(own *task.Own) {
	if own == nil && t.Past == nil {
		return
	}

	if own == nil {
		own = &task.Own{}
	}

	t.EnsurePast().Own = *own
}

// EnsurePast returns t's past, and creates it if there is none.
func (t *Task) EnsurePast() *Past {
	if t.Past == nil {
		t.Past = &Past{}
	}
	return t.Past
}

// CountsFailures reports whether consecutive failures pause the task.
func (t *Task) CountsFailures() bool { return t.Policy.PauseAfter > 0 }

// FollowsEnds reports whether the task's schedule counts from the end of its last run.
func (t *Task) FollowsEnds() bool { return t.Timing.Period > 0 }

// DependsOnPast reports whether the task's future depends on how or when its runs ended.
func (t *Task) DependsOnPast() bool {
	return t.Present && !t.Bad && (t.CountsFailures() || t.FollowsEnds() || t.Policy.TTL > 0)
}

// Idle reports whether nothing of the task waits or is active. Runs of a deleted task of the same name do
// not count.
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

// usedAllRuns reports whether the task has used all runs that max_runs allows.
func (t *Task) usedAllRuns() bool { return t.Policy.MaxRuns > 0 && t.Own().Runs >= t.Policy.MaxRuns }

// Silence returns until when a paused task has no ticks, in Unix milliseconds. It returns false if the
// pause has no end.
func (t *Task) Silence() (until int64, ends bool) {
	own := t.Own()
	at, ends := task.Entry{Paused: true, Own: &own}.Silence()
	if !ends {
		return 0, false
	}

	return at.UnixMilli(), true
}

// NoteEnd takes the relevant fields from a history record. now is in Unix milliseconds.
func (t *Task) NoteEnd(ev *store.ShardEvent, now int64) {
	p := t.Past

	// Late results and records of a deleted task do not count. Records up to upTo were read already.
	if p == nil || ev.Late || t.Orphan(ev.Run) || p.Studied && ev.Mod <= p.upTo {
		return
	}

	r, err := record.DecodeEnded(ev.ShardKey, ev.Value)
	if err != nil {
		// The HistoryReader ignores such a record as well.
		return
	}

	p.noteEnded(r.EndedAt.UnixMilli(), now)
	p.HasRestored = p.HasRestored || r.Reason == task.ReasonRestored

	// An owner that has not read the history yet may see only the record of a node that was cut off. An end in the history
	// may be later.
	p.Known = p.Studied

	if p.Studied && t.CountsFailures() {
		p.addEnd(ev, &r)
	}
}

// addEnd adds an end. A record that was written again, for example without its output, is no other end. It counts only if its first version
// was not seen.
func (p *Past) addEnd(ev *store.ShardEvent, r *task.Run) {
	if ev.Create != ev.Mod && (ev.Create <= p.Own.Counted || slices.ContainsFunc(p.Ends, func(e End) bool { return e.Create == ev.Create })) {
		return
	}

	p.Ends = append(p.Ends, newEnd(ev.Create, r))
	if ev.Create != ev.Mod {
		slices.SortStableFunc(p.Ends, func(a, b End) int { return cmp.Compare(a.Create, b.Create) })
	}
}

// noteEnded records when something ended, in Unix milliseconds. The latest end counts, not the last that was
// recorded: a node that was cut off records an end late. An end in the future is limited, because the clock
// of the node may be wrong.
func (p *Past) noteEnded(at, now int64) {
	p.Ended = max(p.Ended, min(at, now+clockSlack.Milliseconds()))
}

// ForgetLastEnd marks the last end as unknown, because something has ended or a tick was decided whose
// record has not arrived. The history is read when it matters.
func (t *Task) ForgetLastEnd() {
	if t.Past != nil {
		t.Past.Known = false
	}
}

// InARow returns the number of consecutive failures after ends, if there were failures before them.
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

// Uncounted returns the ends that Own.Failures does not count yet.
func (p *Past) Uncounted() []End {
	i := slices.IndexFunc(p.Ends, func(e End) bool { return e.Create > p.Own.Counted })
	if i < 0 {
		return nil
	}
	return p.Ends[i:]
}

// BeingDeleted reports whether a deletion of t because of its ttl is under way.
func (t *Task) BeingDeleted() bool {
	return t.Past != nil && t.Past.Deletion != nil && !t.Past.Deletion.IsOver()
}

// Over reports whether a task will never have another tick, and since when: since its last tick was due, or
// since the entry's from if it had none. All its ticks must be decided. Times are Unix milliseconds.
func (t *Task) Over(now int64) (since int64, over bool) {
	switch {
	case t.usedAllRuns():
		return t.From, true
	case t.FollowsEnds():
		// Another run may end at any time until the schedule's own end.
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

// MayTrim reports whether all known ends are counted. Consecutive failures must be counted before their
// records are trimmed, because a later owner counts from the history (G24).
func (t *Task) MayTrim() bool {
	return !t.CountsFailures() || t.Past != nil && t.Past.Studied && len(t.Past.Uncounted()) == 0
}

// Ran reports whether e is the end of a run by itself: success or failure.
func (e End) Ran() bool { return e.State == task.Succeeded || e.Failed() }

// PausedByFailures adds a pause to the task's latest pauses. It keeps the last task.KeepPauses of them. A pause
// with an end that has not been reached ends when the new one begins.
func PausedByFailures(pauses []task.Pause, failures int, now time.Time) []task.Pause {
	if n := len(pauses); n > 0 && !pauses[n-1].Over(now) {
		pauses[n-1].Ended, pauses[n-1].EndedBy = task.At(now), task.NewActor(task.PausedByFailures)
	}

	reason := "a run failed"
	if failures != 1 {
		reason = fmt.Sprintf("%d runs in a row failed", failures)
	}
	pauses = append(pauses, task.Pause{Since: task.At(now), By: task.NewActor(task.PausedByFailures), Reason: reason})

	return pauses[max(0, len(pauses)-task.KeepPauses):]
}

// HistoryReader reads the history of a task from the newest record backward, as far as decisions need it.
// Use it in a loop: read the records that Wants returns, pass each to Take, and call Conclude when Wants
// returns none.
type HistoryReader struct {
	t    *Task
	rev  int64              // the revision at which everything is read
	keys []store.ShardEvent // records that have not been read, the newest first
	ends []End              // of the records that were read, the newest first
	read bool               // Wants was called before

	// last is the latest end of the records that were read, in Unix milliseconds, or 0 if there is none. It
	// may be that of an older record: a node that was cut off records an end late.
	last int64
	// unreadable means that the newest record cannot be read, so the time of the last end is unknown. The
	// newest record is the one with the highest create revision. It often does not have the highest key: a
	// long run ends after later ticks.
	unreadable bool
	// hasRestored means that one of the records has the reason task.ReasonRestored.
	hasRestored bool
	// isForTTL means that the task has a ttl.
	isForTTL bool
}

// NewHistoryReader returns a reader of t's history as of revision rev. keys are its records, the newest
// first, without values.
func NewHistoryReader(t *Task, rev int64, keys []store.ShardEvent) *HistoryReader {
	return &HistoryReader{t: t, rev: rev, keys: keys, isForTTL: t.Policy != nil && t.Policy.TTL > 0}
}

// Task returns the task whose history is read.
func (h *HistoryReader) Task() *Task { return h.t }

// MaxEndsRead limits how many records are read to find the latest end of a task. A history may have
// thousands, and the worker's ticks wait meanwhile. To hide a later end, as many ends would have to be
// recorded late.
const MaxEndsRead = 200

// Wants returns the records to read next, at most the given number. The first call returns the newest ones.
// After that it depends on the task:
//
//   - With a ttl, up to MaxEndsRead records, because any of them may contain the latest end, on which the
//     deletion depends.
//   - If consecutive failures pause the task, the records that are not counted, back to a success, or until
//     there are enough failures to pause the task.
//   - Otherwise none.
func (h *HistoryReader) Wants(most int) []store.ShardEvent {
	n := 0
	if !h.read {
		n = min(most, len(h.keys))
	} else if h.t.Policy.TTL > 0 {
		n = min(most, len(h.keys), max(0, MaxEndsRead-len(h.ends)))
	} else if t := h.t; t.Present && !t.Bad && t.CountsFailures() {
		if slices.ContainsFunc(h.ends, func(e End) bool { return e.State == task.Succeeded }) || InARow(0, h.ends) >= t.Policy.PauseAfter {
			return nil
		}

		for n < min(most, len(h.keys)) && h.keys[n].Create > t.Own().Counted {
			n++
		}
	}

	page := h.keys[:n]
	h.keys, h.read = h.keys[n:], true

	return page
}

// Take adds a record that was read. One that cannot be read counts neither as a failure nor as a success.
func (h *HistoryReader) Take(ev store.ShardEvent) {
	newest := h.last == 0 && !h.unreadable

	r, err := record.DecodeEnded(ev.ShardKey, ev.Value)
	if ev.Deleted || err != nil {
		h.unreadable = h.unreadable || newest
		return
	}

	h.ends = append(h.ends, newEnd(ev.Create, &r))
	h.hasRestored = h.hasRestored || r.Reason == task.ReasonRestored
	h.last = max(h.last, r.EndedAt.UnixMilli())
}

// Conclude stores the result in the task's Past. now is in Unix milliseconds.
func (h *HistoryReader) Conclude(now int64) {
	if !h.t.Present || h.t.Bad {
		return
	}

	p := h.t.EnsurePast()
	p.Studied, p.upTo = true, h.rev

	last := h.last
	if h.unreadable {
		// The last end is unknown. A task must not be deleted or tick too early, so its ttl and its period
		// begin now.
		last = now
	}

	p.noteEnded(last, now)
	p.Known, p.HasRestored, p.IsReadForTTL = true, p.HasRestored || h.hasRestored, h.isForTTL

	if len(h.keys) > 0 && h.keys[0].Create > h.t.Own().Counted {
		// Uncounted records are left that were not read. The failures before those that were read do not
		// add to them, because a run may have succeeded in between. An artificial success marks that.
		h.ends = append(h.ends, End{Create: h.keys[0].Create, State: task.Succeeded})
	}

	slices.Reverse(h.ends)
	p.Ends = h.ends
}
