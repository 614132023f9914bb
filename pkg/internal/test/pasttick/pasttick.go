// Package pasttick compares what Carillon answers about past ticks with what the history of etcd has shown. An answer may say
// that a record is gone, but nothing else than what happened (G31).
//
// The judge knows the revision at which each tick was decided, and at which each version and each pause was written. So it
// needs no tolerance for slow writes: an answer may deny a tick because of a change only if the tick was decided before the
// change was written, and only if that write did not compare the watermark.
//
// The package is only for tests.
package pasttick

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Past is what a history has shown about the ticks of the tasks that exist at its end.
type Past struct {
	// Ticks are those of all records that the history has ever had, by task and in order. Of a record of several ticks, it
	// contains the first and the last one.
	Ticks map[record.Ref][]Tick
	// Counts is how many ticks ended in each state, by task.
	Counts map[record.Ref]map[task.State]int64
}

// Tick is a tick with an outcome that the history has shown.
type Tick struct {
	At    task.Time
	State task.State

	kept    bool  // its record is in the history of the task at the end
	decided int64 // the revision of the first record that names the tick
	changes *changes
}

// changes are the revisions at which a task was changed; 0 for a write that compared the watermark. No tick after the time
// stamp of such a write was decided before it.
type changes struct {
	versions map[int64]int64     // by generation
	pauses   map[task.Time]int64 // by their beginning
}

// Read reads a history. uncompared reports whether the write of a revision did not compare the watermark; nil if that is not
// known.
func Read(keys record.Keys, events []check.Event, uncompared func(rev int64) bool) Past {
	r := reader{
		keys: keys, uncompared: uncompared,
		uids: map[record.Ref]string{}, changes: map[string]*changes{}, decided: map[named]int64{}, ended: map[string]*endedRecord{},
	}
	for _, e := range events {
		r.readEvent(e)
	}

	return r.past()
}

// reader collects what a history shows, event by event.
type reader struct {
	keys       record.Keys
	uncompared func(rev int64) bool

	uids    map[record.Ref]string // of the tasks that exist
	changes map[string]*changes   // by uid
	decided map[named]int64
	// ended are the records of the histories as they were last written, by key. Those of ticks that did not run are
	// rewritten when they grow.
	ended map[string]*endedRecord
}

// named is a tick of the task with that uid.
type named struct {
	uid string
	at  task.Time
}

type endedRecord struct {
	ref     record.Ref
	run     task.Run
	deleted bool
}

func (r *reader) readEvent(e check.Event) {
	if k, ok := r.keys.ParseRun(e.Key); ok && !e.Deleted {
		if a, err := record.DecodeAssigned(k, e.CreateRevision, e.Value); err == nil {
			r.noteDecided(&a.Run, e.Revision)
		}
		return
	}

	k, ok := r.keys.ParseShard(e.Key)
	switch {
	case !ok:
	case k.Kind == record.KindEntry && e.Deleted:
		delete(r.uids, k.Ref)
	case k.Kind == record.KindEntry:
		if entry, err := record.DecodeEntry(e.Value); err == nil {
			r.uids[k.Ref] = entry.UID
			r.noteChanges(&entry, e.Revision)
		}
	case k.Kind == record.KindQueued && !e.Deleted:
		if q, err := record.DecodeWaiting(k, e.Value); err == nil {
			r.noteDecided(&q.Run, e.Revision)
		}
	case k.Kind == record.KindEnded && !k.Late && e.Deleted:
		if old := r.ended[e.Key]; old != nil {
			old.deleted = true
		}
	case k.Kind == record.KindEnded && !k.Late:
		if run, err := record.DecodeEnded(k, e.Value); err == nil {
			r.noteDecided(&run, e.Revision)
			r.ended[e.Key] = &endedRecord{ref: k.Ref, run: run}
		}
	}
}

// noteDecided notes the first record that names a tick.
func (r *reader) noteDecided(run *task.Run, rev int64) {
	if !isOfTick(run) {
		return
	}

	for _, at := range []task.Time{run.ScheduledTime, run.Last} {
		tick := named{run.UID, at}
		if _, known := r.decided[tick]; !known && !at.IsZero() {
			r.decided[tick] = rev
		}
	}
}

// isOfTick reports whether a run has a tick, and was not requested.
func isOfTick(r *task.Run) bool {
	return r.Trigger == task.TriggerSchedule || r.Trigger == task.TriggerCatchUp
}

// noteChanges notes the version and the pauses that an entry has for the first time.
func (r *reader) noteChanges(e *task.Entry, rev int64) {
	c := r.changes[e.UID]
	if c == nil {
		c = &changes{versions: map[int64]int64{}, pauses: map[task.Time]int64{}}
		r.changes[e.UID] = c
	}

	if r.uncompared != nil && !r.uncompared(rev) {
		rev = 0
	}

	if _, known := c.versions[e.Generation]; !known {
		c.versions[e.Generation] = rev
	}

	if e.Own == nil {
		return
	}

	for _, p := range e.Own.Pauses {
		if _, known := c.pauses[p.Since]; !known {
			c.pauses[p.Since] = rev
		}
	}
}

// past returns what has been read about the tasks that exist.
func (r *reader) past() Past {
	p := Past{Ticks: map[record.Ref][]Tick{}, Counts: map[record.Ref]map[task.State]int64{}}
	for ref := range r.uids {
		p.Counts[ref] = map[task.State]int64{}
	}

	for _, e := range r.ended {
		if e.run.UID != r.uids[e.ref] || !isOfTick(&e.run) {
			continue
		}

		p.Counts[e.ref][e.run.State] += max(e.run.Count, 1)

		at := []task.Time{e.run.ScheduledTime}
		if e.run.Count > 1 {
			at = append(at, e.run.Last)
		}

		for _, at := range at {
			p.Ticks[e.ref] = append(p.Ticks[e.ref], Tick{
				At: at, State: e.run.State, kept: !e.deleted, decided: r.decided[named{e.run.UID, at}], changes: r.changes[e.run.UID],
			})
		}
	}

	for _, all := range p.Ticks {
		slices.SortFunc(all, func(a, b Tick) int { return a.At.Compare(b.At.Time) })
	}

	return p
}
