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
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
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

// timeFormat is the form of times in questions. They are in UTC.
const timeFormat = "2006-01-02T15:04:05.000Z"

// Question returns the question to the API about the tick.
func (t Tick) Question() client.WhyQuestion {
	return client.WhyQuestion{At: t.At.UTC().Format(timeFormat), Timezone: "UTC"}
}

// RangeQuestion returns the question to the API about all ticks of a task between two times.
func RangeQuestion(from, to time.Time) client.WhyQuestion {
	return client.WhyQuestion{From: from.UTC().Format(timeFormat), To: to.UTC().Format(timeFormat), Timezone: "UTC"}
}

// Contradiction returns what is wrong with an answer about the tick, or "" if it is correct.
func (t Tick) Contradiction(a task.Answer) string {
	switch {
	case string(a.Verdict) == string(t.State), t.wasDecidedBeforeChange(a):
		return ""
	// The task was deleted after the events, with its history and its ledger.
	case a.Verdict == task.VerdictNoTask && a.Deleted != nil && !a.Deleted.At.Before(t.At.Time):
		return ""
	case a.Verdict != task.VerdictForgotten && a.Verdict != task.VerdictUnreadable:
		return fmt.Sprintf("its outcome was %s", t.State)
	case len(a.Unknown) == 0:
		return "the answer does not say what is not on record"
	case t.State == task.Succeeded && strings.Contains(a.Sentence, "did not succeed;"):
		return "it succeeded"
	}

	return ""
}

// wasDecidedBeforeChange reports whether the answer denies the tick because of a pause or a version whose write did not compare the
// watermark and came after the decision of the tick.
func (t Tick) wasDecidedBeforeChange(a task.Answer) bool {
	if a.Run != nil || a.Verdict == task.VerdictSucceeded || t.changes == nil {
		return false
	}

	precedes := func(since task.Time, rev int64) bool {
		return !t.At.Before(since.Time) && t.decided != 0 && t.decided < rev
	}

	return a.Pause != nil && precedes(a.Pause.Since, t.changes.pauses[a.Pause.Since]) ||
		a.Version != nil && precedes(a.Version.Since, t.changes.versions[a.Version.Generation])
}

// RangeContradictions returns what is wrong with an answer about a range that contains all ticks of a task. The answer must not count
// more ticks of a state than the history contains. Unless it says that something is unknown, or that the task was deleted with its
// history, it must not count fewer either.
func (p Past) RangeContradictions(ref record.Ref, a task.Answer) (wrong []string) {
	deleted := a.Verdict == task.VerdictNoTask && a.Deleted != nil
	complete := a.Counts[task.VerdictForgotten]+a.Counts[task.VerdictUnreadable] == 0 && len(a.Unknown) == 0 && !deleted
	for _, s := range task.States() {
		if !s.Final() {
			continue
		}

		has, said := p.Counts[ref][s], a.Counts[task.Verdict(s)]
		if said > has || complete && said < has {
			wrong = append(wrong, fmt.Sprintf("%d %s ticks, and the history has shown %d", said, s, has))
		}
	}

	return wrong
}

// LedgerContradiction checks the time from which a ledger claims to be complete. It reports later ticks that are neither in the ledger
// nor in the history, or returns "" if there are none.
func (p Past) LedgerContradiction(ref record.Ref, l client.TaskLedger) string {
	if l.CompleteSince.IsZero() || l.More > 0 {
		return ""
	}

	tells := func(at task.Time) bool {
		return slices.ContainsFunc(l.Lines, func(line task.LedgerLine) bool {
			return !at.Before(line.First.Time) && !at.After(line.Last.Time)
		})
	}

	var gone []Tick
	for _, t := range p.Ticks[ref] {
		if !t.At.Before(l.CompleteSince.Time) && !t.kept && !tells(t.At) {
			gone = append(gone, t)
		}
	}

	if len(gone) == 0 {
		return ""
	}

	return fmt.Sprintf("complete since %s, and %d later ticks are neither in the ledger nor in the history; the first is that of %s", l.CompleteSince, len(gone), gone[0].At)
}
