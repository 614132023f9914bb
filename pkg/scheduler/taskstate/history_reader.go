package taskstate

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// HistoryReader is how far the history of a task has been read, from its newest record
// backwards.
type HistoryReader struct {
	t    *Task
	rev  int64
	keys []store.ShardEvent // yet to be read, the newest first
	ends []End              // the newest first
	read bool               // of some of them

	// last is the latest end of those that were read, in ms; 0 if there is no record. It
	// may be that of an older record: a node that was cut off records an end late.
	last int64
	// unreadable is whether the newest record cannot be read, so that nobody knows
	// when it ended. The newest is the one with the highest mod revision, which is often
	// not the one with the highest key: a long run ends after later ticks.
	unreadable bool
}

// NewHistoryReader returns the reader of t's history as it was at rev. keys are its records, the newest
// first.
func NewHistoryReader(t *Task, rev int64, keys []store.ShardEvent) *HistoryReader {
	return &HistoryReader{t: t, rev: rev, keys: keys}
}

// Task is the task whose history is read.
func (s *HistoryReader) Task() *Task { return s.t }

// MaxEndsRead bounds how many records are read for the latest end of a task: a history may
// have thousands, and the worker's ticks wait meanwhile. As many ends would have to be
// recorded late to hide a later one.
const MaxEndsRead = 200

// Wants is what is to be read next, so many records at most: the newest, and, if
// it matters how runs end, those that are not counted, back to one that succeeded,
// or as far as is enough to pause the task. Of a task with a ttl it is the newest
// MaxEndsRead: the task is deleted by the latest end, which any of them may have.
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

// Take takes a record that was read. One that cannot be read counts neither as a
// failure nor as a success.
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

// Conclude makes what was read the task's past.
func (s *HistoryReader) Conclude(now int64) {
	if !s.t.Present || s.t.Bad {
		return
	}

	p := s.t.EnsurePast()
	p.Studied, p.upTo = true, s.rev

	last := s.last
	if s.unreadable {
		// A task must not be deleted, nor tick, too early. If its last end is not
		// known, its ttl and its period begin now.
		last = now
	}

	p.setEnded(last, now)

	if len(s.keys) > 0 && s.keys[0].Mod > s.t.Own().Counted {
		// Those read are enough. What had failed before does not add to them: among what was
		// not read something may have succeeded.
		s.ends = append(s.ends, End{s.keys[0].Mod, task.Succeeded})
	}

	slices.Reverse(s.ends)
	p.Ends = s.ends
}
