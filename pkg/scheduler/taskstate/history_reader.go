package taskstate

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

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
	// newest record is the one with the highest mod revision. It often does not have the highest key: a
	// long run ends after later ticks.
	unreadable bool
}

// NewHistoryReader returns a reader of t's history as of revision rev. keys are its records, the newest
// first, without values.
func NewHistoryReader(t *Task, rev int64, keys []store.ShardEvent) *HistoryReader {
	return &HistoryReader{t: t, rev: rev, keys: keys}
}

// Task returns the task whose history is read.
func (s *HistoryReader) Task() *Task { return s.t }

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
func (s *HistoryReader) Wants(most int) []store.ShardEvent {
	n := 0
	if !s.read {
		n = min(most, len(s.keys))
	} else if s.t.Policy.TTL > 0 {
		n = min(most, len(s.keys), max(0, MaxEndsRead-len(s.ends)))
	} else if t := s.t; t.Present && !t.Bad && t.CountsFailures() {
		if slices.ContainsFunc(s.ends, func(e End) bool { return e.State == task.Succeeded }) || InARow(0, s.ends) >= t.Policy.PauseAfter {
			return nil
		}

		for n < min(most, len(s.keys)) && s.keys[n].Mod > t.Own().Counted {
			n++
		}
	}

	page := s.keys[:n]
	s.keys, s.read = s.keys[n:], true

	return page
}

// Take adds a record that was read. One that cannot be read counts neither as a failure nor as a success.
func (s *HistoryReader) Take(ev store.ShardEvent) {
	newest := s.last == 0 && !s.unreadable

	r, err := record.DecodeEnded(ev.ShardKey, ev.Value)
	if ev.Deleted || err != nil {
		s.unreadable = s.unreadable || newest
		return
	}

	s.ends = append(s.ends, End{ev.Mod, r.State})
	s.last = max(s.last, r.EndedAt.UnixMilli())
}

// Conclude stores the result in the task's Past. now is in Unix milliseconds.
func (s *HistoryReader) Conclude(now int64) {
	if !s.t.Present || s.t.Bad {
		return
	}

	p := s.t.EnsurePast()
	p.Studied, p.upTo = true, s.rev

	last := s.last
	if s.unreadable {
		// The last end is unknown. A task must not be deleted or tick too early, so its ttl and its period
		// begin now.
		last = now
	}

	p.noteEnded(last, now)
	p.Known = true

	if len(s.keys) > 0 && s.keys[0].Mod > s.t.Own().Counted {
		// Uncounted records are left that were not read. The failures before those that were read do not
		// add to them, because a run may have succeeded in between. An artificial success marks that.
		s.ends = append(s.ends, End{s.keys[0].Mod, task.Succeeded})
	}

	slices.Reverse(s.ends)
	p.Ends = s.ends
}
