package alert

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Evidence is what the records of one task say at one revision. It is read step by step: an evaluation that needs more of
// it says so (Needs), and is repeated when that was read at the same revision.
type Evidence struct {
	Namespace, Task string
	Revision        int64

	Entry      *task.Entry // nil: the task does not exist
	Unreadable bool        // the entry exists, but cannot be read
	Freezes    *task.Freezes
	Rule       *Rule // that applies to the task; nil: none, or the task has alerts of its own

	// Records are the keys of the task's history, the ones that were created last first, without late results and without
	// records of a former task of the name. Their values are read as far as they are needed.
	Records []Record
	// Dead are the task's dead runs, in any order, without those of a former task of the name.
	Dead []Dead

	// Idle is set if no run of the task was active or waiting at the revision. If it is not set, nothing is known.
	Idle bool
	// Opened is when the shard got its owner.
	Opened time.Time
	// Gap is what restores have lost; nil: nothing.
	Gap *task.Gap

	Active  *ActiveFacts  // nil: not read
	Spec    *SpecFacts    // nil: not read
	Ledger  *LedgerFacts  // nil: not read
	Deleted *DeletedFacts // nil: not read
}

// Record is a record in the history of a task: how a run ended, or ticks that did not run.
type Record struct {
	ID          string
	Create, Mod int64
	IsRead      bool
	Run         *task.Run // nil: the record is not read, or cannot be read
}

// Dead is a dead run of a task. A dismissal rewrites the record before it deletes it, so only the create revision tells
// when the run ended.
type Dead struct {
	Run         string
	Create, Mod int64
}

// SpecFacts is what an evaluation needs of a spec. The zero value means that the task has none.
type SpecFacts struct {
	UpdatedAt time.Time
	UpdatedBy *task.Actor
}

// LedgerFacts is what an evaluation needs of a ledger.
type LedgerFacts struct {
	LastSuccess time.Time // when the last run in it that succeeded ended, about; zero: none is on record
	LastTick    time.Time // the newest tick whose run succeeded, or when a run that succeeded was asked for

	// CompleteSince is the tick from which on each run that has ended is in the history or in the ledger. If IsIncomplete is set,
	// there is no such tick. Runs asked for up to MoreUntil may have succeeded without an entry of their own.
	CompleteSince time.Time
	IsIncomplete  bool
	MoreUntil     time.Time

	Excused []task.LedgerLine // ticks that were skipped by a freeze or by a shadow
}

// DeletedFacts is what an evaluation needs of the tombstone of a deleted task.
type DeletedFacts struct{ By *task.Actor }

// Needs says what must be read before an evaluation can continue.
type Needs struct {
	Records                       []int // indexes in Evidence.Records
	Active, Spec, Ledger, Deleted bool
}

// Any reports whether something is needed.
func (n *Needs) Any() bool { return len(n.Records) > 0 || n.Active || n.Spec || n.Ledger || n.Deleted }

// Add adds other needs. An index may be in the result twice.
func (n *Needs) Add(m Needs) {
	n.Records = append(n.Records, m.Records...)
	n.Active, n.Spec = n.Active || m.Active, n.Spec || m.Spec
	n.Ledger, n.Deleted = n.Ledger || m.Ledger, n.Deleted || m.Deleted
}

// NewLedgerFacts reads the ledger of the task with a uid from the values of its chunks, in the order of their keys. A span
// of ticks has only the mean of their durations, so the end of its last run is the tick and a little more than that.
func NewLedgerFacts(uid string, chunks [][]byte) *LedgerFacts {
	f, book := &LedgerFacts{}, ledger.NewBook(uid, chunks)

	since, ok := book.CompleteSince(time.Time{})
	f.CompleteSince, f.IsIncomplete = since, !ok

	for _, l := range book.Lines {
		at := l.Last.Time
		switch {
		case l.Kind == task.LedgerException && isExcuse(l.State, l.Reason):
			f.Excused = append(f.Excused, l)
			continue
		case l.Kind == task.LedgerRequestedMore && l.Causes[string(task.Succeeded)] > 0:
			f.MoreUntil = later(f.MoreUntil, at)
			continue
		}

		tick := at
		switch {
		case l.Kind == task.LedgerSucceeded:
			at = at.Add(time.Duration(l.MeanMS) * time.Millisecond * 11 / 10)
		case l.Kind == task.LedgerRequested && l.State == task.Succeeded:
		default:
			continue
		}

		f.LastSuccess, f.LastTick = later(f.LastSuccess, at), later(f.LastTick, tick)
	}

	return f
}

const (
	// firstPage is how many records an evaluation reads at first. The last run of most tasks tells enough.
	firstPage = 1
	// maxPage is how many it reads at once, at most.
	maxPage = 64
	// MaxRecords is how many records of a task are read, at most. No task with alerts keeps more.
	MaxRecords = 1000
)

// unread returns the first records that are not read, from an index on: as many as have been read, at least firstPage, at
// most maxPage. So the pages begin small and grow. The result is empty if MaxRecords were read.
func (e *Evidence) unread(from int) (page []int) {
	size := min(max(firstPage, 3*from), maxPage)
	for i := from; i < min(len(e.Records), MaxRecords) && len(page) < size; i++ {
		if !e.Records[i].IsRead {
			page = append(page, i)
		}
	}

	return page
}

// lastSuccess returns the success that was recorded last; nil: none is on record.
func (e *Evidence) lastSuccess() (success *Record, needs Needs) {
	for i := range e.Records {
		r := &e.Records[i]
		if !r.IsRead {
			return nil, Needs{Records: e.unread(i)}
		}
		if r.Run != nil && r.Run.State == task.Succeeded {
			return r, Needs{}
		}
	}

	return nil, Needs{}
}

// newestFailure returns the id of the failed run that was recorded last, among the records that were read.
func (e *Evidence) newestFailure() string {
	for i := range e.Records {
		if r := e.Records[i].Run; r != nil && r.IsFailure() {
			return r.ID
		}
	}

	return ""
}

// pauseOf returns the pause in which nothing is expected of the task: one by a person. Pauses after failures change nothing. ok
// is false if there is none.
func (e *Evidence) pauseOf(now time.Time) (p task.Pause, ok bool) {
	if !e.Entry.Paused {
		return p, false
	}

	current := e.Entry.Pause()
	switch {
	case current == nil:
		return p, true
	case current.By.Is(task.PausedByFailures), current.Over(now):
		return p, false
	}

	return *current, true
}

// graceUntil returns the time from which a success can be expected: the end of the last pause by a person, of the last freeze
// of the namespace, and of what a restore has lost, of which nobody knows what ran in it.
func (e *Evidence) graceUntil(now time.Time) (since time.Time) {
	if own := e.Entry.Own; own != nil {
		for _, p := range slices.Backward(own.Pauses) {
			if p.By.Is(task.PausedByFailures) || !p.Over(now) {
				continue
			}

			since = p.Until.Time
			if !p.Ended.IsZero() {
				since = p.Ended.Time
			}

			break
		}
	}

	if z := e.Freezes.HeldUp(e.Namespace, since, now); z != nil {
		since = z.Ended.Time
	}
	if g := e.Gap; g != nil {
		since = later(since, g.Until.Time)
	}

	return since
}

// expectedFrom returns the time at which a person has last given the task ticks, if that is later than at. The entry's from
// does not tell it alone: its owner moves it past ticks that it has decided late. It is never later than the last change of
// the spec, if a person has set it.
func (e *Evidence) expectedFrom(at time.Time) (from time.Time, needs Needs) {
	from = e.Entry.From.Time
	switch {
	case !from.After(at):
		return from, Needs{}
	case e.Spec == nil:
		return from, Needs{Spec: true}
	case !e.Spec.UpdatedAt.IsZero() && e.Spec.UpdatedAt.Before(from):
		from = e.Spec.UpdatedAt
	}

	return from, Needs{}
}

// schedule returns the schedule of the task with its anchor.
func (e *Evidence) schedule() (*schedule.Schedule, error) {
	return schedule.Parse(e.Entry.Timing(), e.Entry.Anchor.Time)
}

// hasEnded reports whether the task has no further ticks, whoever paused it.
func (e *Evidence) hasEnded(s *schedule.Schedule, now time.Time) bool {
	if e.hasUsedRuns() {
		return true
	}
	if s.Manual() {
		return false
	}
	if _, after := s.AfterCompletion(); after {
		return !e.Entry.End.IsZero() && e.Entry.End.Before(now)
	}

	_, more := s.Next(now)

	return !more
}

// alerts returns what is expected of the task, by its own block or by a rule; nil: nothing.
func (e *Evidence) alerts() *task.Alerts {
	if e.Entry.Alerts == nil && e.Rule != nil {
		return &e.Rule.Alerts
	}
	return e.Entry.Alerts
}

// expects reports whether the task has an expectation of a kind.
func (e *Evidence) expects(kind task.AlertKind) bool {
	return e.alerts().Expects(kind) && (e.Entry.Alerts != nil || e.Rule.fits(e.Entry, kind))
}

// rule returns the name of the rule that expects something of the task; "": none.
func (e *Evidence) rule() string {
	if e.Entry.Alerts == nil && e.Rule != nil {
		return e.Rule.Name
	}
	return ""
}

// hasUsedRuns reports whether the task has had as many runs as it may have. It has no ticks after its entry's from then, which is not before
// the tick of the last run.
func (e *Evidence) hasUsedRuns() bool {
	own := e.Entry.Own
	return e.Entry.MaxRuns > 0 && own != nil && own.Runs >= e.Entry.MaxRuns
}

// labels returns the labels of a task for an alert.
func (e *Evidence) labels() map[string]string {
	if len(e.Entry.Labels) == 0 {
		return nil
	}
	return e.Entry.Labels
}

// receivers returns the receivers of the task's alerts, sorted, each once.
func (e *Evidence) receivers() []string {
	list := slices.DeleteFunc(e.alerts().Receivers(e.Namespace), func(name string) bool { return name == e.Namespace+"/"+e.Task })
	slices.Sort(list)

	return slices.Compact(list)
}
