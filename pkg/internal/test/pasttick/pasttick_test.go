package pasttick

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const uid = "abcdabcdabcdabcd"

var (
	ref   = record.Ref{Namespace: "default", Name: "a", Shard: 3}
	begin = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
)

// at returns the time of a second of the story.
func at(second float64) task.Time {
	return task.At(begin.Add(time.Duration(second * float64(time.Second))))
}

// story is a history that a test writes, one revision for each record.
type story struct {
	keys   record.Keys
	events []check.Event
}

func newStory(t *testing.T) *story {
	t.Helper()
	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}

	return &story{keys: keys}
}

// put writes a record, and returns the revision.
func (s *story) put(key, value string) int64 {
	rev := int64(len(s.events) + 1)
	s.events = append(s.events, check.Event{Revision: rev, Key: key, Value: []byte(value), ModRevision: rev, CreateRevision: rev})

	return rev
}

func (s *story) deleteKey(key string) {
	rev := int64(len(s.events) + 1)
	s.events = append(s.events, check.Event{Revision: rev, Key: key, Deleted: true, ModRevision: rev})
}

// version writes a version of the entry, with a pause if paused is not zero.
func (s *story) version(generation int64, paused task.Time) int64 {
	e := task.Entry{UID: uid, Generation: generation}
	if !paused.IsZero() {
		e.Paused, e.Own = true, &task.Own{Pauses: []task.Pause{{Since: paused}}}
	}

	return s.put(s.keys.Entry(ref), record.Encode(&e))
}

// ended writes the record of count ticks, one a second, and returns its key.
func (s *story) ended(uid string, second float64, state task.State, count int64) string {
	r := task.Run{ID: task.RunID(at(second).Time, uid), UID: uid, ScheduledTime: at(second), State: state, Trigger: task.TriggerSchedule}
	if count > 1 {
		r.Count, r.Last = count, at(second+float64(count-1))
	}

	key := s.keys.Ended(ref, r.ID)
	s.put(key, string(record.EncodeEnded(r)))

	return key
}

// An answer may deny a tick because of a pause or a version only if the tick was decided before that was written. How late the
// write was does not matter.
func TestContradiction_ExcusesOnlyTicksDecidedBeforeTheChange(t *testing.T) {
	paused := func(uncompared bool, decideFirst bool, tick float64) string {
		s := newStory(t)
		s.version(1, task.Time{})
		var pause int64
		if decideFirst {
			s.ended(uid, tick, task.Succeeded, 1)
			pause = s.version(2, at(1))
		} else {
			pause = s.version(2, at(1))
			s.ended(uid, tick, task.Succeeded, 1)
		}

		past := Read(s.keys, s.events, func(rev int64) bool { return uncompared && rev == pause })

		return past.Ticks[ref][0].Contradiction(task.Answer{Verdict: task.VerdictPaused, Pause: &task.Pause{Since: at(1)}})
	}

	for name, c := range map[string]struct {
		uncompared, decideFirst bool
		tick                    float64
		excused                 bool
	}{
		"decided before the pause was written":         {true, true, 2, true},
		"decided an hour later, before it was written": {true, true, 3600, true},
		"decided after the pause":                      {true, false, 1.001, false},
		"the tick was before the pause":                {true, true, 0.5, false},
		"the pause compared the watermark":             {false, true, 2, false},
	} {
		if what := paused(c.uncompared, c.decideFirst, c.tick); (what == "") != c.excused {
			t.Errorf("%s: %q", name, what)
		}
	}

	// The same for versions, and without knowing what was compared.
	s := newStory(t)
	s.version(1, task.Time{})
	s.ended(uid, 2, task.Failed, 1)
	s.version(2, task.Time{})
	s.ended(uid, 3, task.Failed, 1)
	ticks := Read(s.keys, s.events, nil).Ticks[ref]
	a := task.Answer{Verdict: task.VerdictNoTick, Version: &task.VersionInForce{Generation: 2, Since: at(1)}}
	if before, after := ticks[0].Contradiction(a), ticks[1].Contradiction(a); before != "" || after == "" {
		t.Errorf("decided before the version: %q, after it: %q", before, after)
	}
}

// A tick is decided when it is first named: in the queue, in an inbox, or in the history.
func TestRead_TicksAreDecidedByTheirFirstRecord(t *testing.T) {
	s := newStory(t)
	s.version(1, task.Time{})
	run := task.Run{ID: task.RunID(at(2).Time, uid), UID: uid, ScheduledTime: at(2), State: task.Queued, Trigger: task.TriggerSchedule}
	queued := s.put(s.keys.Queued(ref, run.ID), string(record.EncodeWaiting(task.Waiting{Run: run})))
	s.version(2, at(1))
	s.ended(uid, 2, task.Succeeded, 1)

	// A record that grows decides its last tick later than the first.
	s.ended(uid, 10, task.Skipped, 1)
	grown := int64(len(s.events) + 1)
	s.ended(uid, 10, task.Skipped, 3)

	ticks := Read(s.keys, s.events, nil).Ticks[ref]
	if len(ticks) != 3 || ticks[0].decided != queued || ticks[1].decided != grown-1 || ticks[2].decided != grown || !ticks[2].At.Equal(at(12).Time) {
		t.Errorf("%+v", ticks)
	}
}

// The counts of a range must not exceed those of the history, and must not be lower unless something is unknown.
func TestRangeContradictions_CatchesWrongCounts(t *testing.T) {
	s := newStory(t)
	s.ended("formerformerform", 1, task.Succeeded, 1) // of a former task of that name
	s.version(1, task.Time{})
	key := s.ended(uid, 2, task.Succeeded, 1)
	s.ended(uid, 3, task.Succeeded, 1)
	s.ended(uid, 4, task.Skipped, 5)
	s.deleteKey(key)
	past := Read(s.keys, s.events, nil)

	for name, c := range map[string]struct {
		counts map[task.Verdict]int64
		wrong  int
	}{
		"right":                           {map[task.Verdict]int64{"succeeded": 2, "skipped": 5, "paused": 7}, 0},
		"one too many":                    {map[task.Verdict]int64{"succeeded": 3, "skipped": 5}, 1},
		"a state that no tick had":        {map[task.Verdict]int64{"succeeded": 2, "skipped": 5, "failed": 1}, 1},
		"one too few":                     {map[task.Verdict]int64{"succeeded": 1, "skipped": 5}, 1},
		"one too few, and one forgotten":  {map[task.Verdict]int64{"succeeded": 1, "skipped": 5, "forgotten": 1}, 0},
		"one too many, and one forgotten": {map[task.Verdict]int64{"succeeded": 3, "skipped": 4, "forgotten": 1}, 1},
		"nothing":                         {nil, 2},
	} {
		if wrong := past.RangeContradictions(ref, task.Answer{Verdict: task.VerdictRange, Counts: c.counts}); len(wrong) != c.wrong {
			t.Errorf("%s: %q", name, wrong)
		}
	}

	// The ttl has deleted the task, with its history, between the reading of the history and the question.
	gone := task.Answer{Verdict: task.VerdictNoTask, Deleted: &task.Deletion{}}
	if wrong := past.RangeContradictions(ref, gone); len(wrong) > 0 {
		t.Errorf("deleted: %q", wrong)
	}
}

// Each tick since the time at which a ledger claims to be complete is in it or in the history.
func TestLedgerContradiction_CatchesAWrongTime(t *testing.T) {
	s := newStory(t)
	s.version(1, task.Time{})
	for _, second := range []float64{1, 2, 3} {
		s.deleteKey(s.ended(uid, second, task.Succeeded, 1))
	}
	s.ended(uid, 0, task.Failed, 1) // ended last, so it is kept
	s.ended(uid, 4, task.Succeeded, 1)
	past := Read(s.keys, s.events, nil)

	line := func(first, last float64) task.LedgerLine {
		return task.LedgerLine{Kind: task.LedgerSucceeded, First: at(first), Last: at(last)}
	}

	for name, c := range map[string]struct {
		ledger client.TaskLedger
		wrong  bool
	}{
		"all is in the ledger":               {client.TaskLedger{CompleteSince: at(0), Lines: []task.LedgerLine{line(1, 3)}}, false},
		"one tick is nowhere":                {client.TaskLedger{CompleteSince: at(0), Lines: []task.LedgerLine{line(1, 2)}}, true},
		"the oldest record is not the first": {client.TaskLedger{CompleteSince: at(0)}, true},
		"only later ticks are complete":      {client.TaskLedger{CompleteSince: at(3.001)}, false},
		"a tick at that time":                {client.TaskLedger{CompleteSince: at(3)}, true},
		"it claims nothing":                  {client.TaskLedger{}, false},
		"some lines are left out":            {client.TaskLedger{CompleteSince: at(0), More: 1}, false},
	} {
		if what := past.LedgerContradiction(ref, c.ledger); (what != "") != c.wrong {
			t.Errorf("%s: %q", name, what)
		}
	}
}
