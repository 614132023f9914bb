package check

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/task"
)

// past gives the first ticks an outcome: 1 to 3 and 6 succeed, 4 fails, 5 is skipped, 7 and 8 are missed.
func (h hand) past() {
	for tick := 1.0; tick <= 6; tick++ {
		h.until(tick)
		if tick == 5 {
			h.sealed(h.not(tick, task.Skipped, task.ReasonOverlap))
			continue
		}

		h.sealed(h.fires(tick))
		h.done(map[bool]task.State{true: task.Failed, false: task.Succeeded}[tick == 4])
	}

	// The record of the last success need not stay when the dead run from before it is gone.
	h.txn(op{h.keys.DeadRun(h.ref, task.RunID(time.UnixMilli(h.at(4)), h.simTask.entry.UID)), nil})

	h.until(8)
	h.sealed(h.none(7, 8, 2, task.ReasonQueueFull, 8))
}

// trim deletes the records of ticks from the history.
func (h hand) trim(ticks ...float64) (ops []op) {
	for _, tick := range ticks {
		ops = append(ops, op{h.keys.Ended(h.ref, task.RunID(time.UnixMilli(h.at(tick)), h.simTask.entry.UID)), nil})
	}

	return ops
}

// chunk writes the chunk of the ledger with a number. Offsets are in seconds since the beginning of the history.
func (h hand) chunk(number int, c ledger.Chunk) op {
	c.UID, c.From = h.simTask.entry.UID, task.At(time.UnixMilli(simStart))
	return op{h.keys.LedgerChunk(h.ref, fmt.Sprintf("20261120T12000%d.000Z", number)), c}
}

// spans returns spans without durations: first, last and count of each, in seconds.
func spans(numbers ...int64) (all []ledger.Span) {
	for s := range slices.Chunk(numbers, 3) {
		all = append(all, ledger.Span{First: ledger.Offset(s[0] * 1000), Last: ledger.Offset(s[1] * 1000), Count: s[2]})
	}

	return all
}

// exception returns an exception of a tick, in seconds.
func exception(tick int64, state task.State) ledger.Exception {
	return ledger.Exception{First: ledger.Offset(tick * 1000), Count: 1, State: state}
}

// missedRange is the range that past has recorded.
var missedRange = ledger.Exception{First: 7000, Last: 8000, Count: 2, State: task.Skipped}

// onceTried is a task whose runs have one attempt.
func onceTried(e *task.Entry) { e.Retry.Attempts = 1 }

// lateResult has the active run lost, and writes the result that comes late. It returns the key of that result.
func (h hand) lateResult() string {
	r := h.active.Run
	r.Token = h.active.create
	h.lose(h.simTask)

	r.State, r.Reason, r.EndedAt = task.Failed, task.ReasonExit, h.time()
	key := h.keys.Late(h.ref, r.ID, r.Token)
	r.ID = ""
	h.txn(op{key, r})

	return key
}

// folded deletes the first four ticks and folds them.
func (h hand) folded() {
	h.past()
	h.txn(append(h.trim(1, 2, 3, 4), h.chunk(1, ledger.Chunk{Spans: spans(1, 3, 3), Exceptions: []ledger.Exception{exception(4, task.Failed)}}))...)
}

// inHour is a chunk whose exceptions are in the line of an hour.
func inHour(named []ledger.Offset, causes map[string]int64) ledger.Chunk {
	var sum int64
	for _, n := range causes {
		sum += n
	}

	return ledger.Chunk{Spans: spans(1, 3, 3), Hours: []ledger.Hour{{Start: 0, Count: sum, Causes: causes, Named: named}}}
}

// hiding returns c with the period in which its first hour has ticks that it does not name.
func hiding(first, last ledger.Offset, c ledger.Chunk) ledger.Chunk {
	c.Hours[0].HiddenFirst, c.Hours[0].HiddenLast = first, last
	return c
}

// Verifies: G31
func TestCheck_Folds(t *testing.T) {
	failed, skipped := exception(4, task.Failed), exception(5, task.Skipped)
	fold := func(c ledger.Chunk) func(h hand) {
		return func(h hand) { h.past(); h.txn(append(h.trim(1, 2, 3, 4, 5), h.chunk(1, c))...) }
	}
	foldAll := func(c ledger.Chunk) func(h hand) {
		return func(h hand) { h.past(); h.txn(append(h.trim(1, 2, 3, 4, 5, 6, 7), h.chunk(1, c))...) }
	}
	second := func(c ledger.Chunk) func(h hand) {
		return func(h hand) { h.folded(); h.txn(append(h.trim(5, 6, 7), h.chunk(1, c))...) }
	}

	turns(t, []turn{
		{"folded", "", onceTried, fold(ledger.Chunk{Spans: spans(1, 3, 3), Exceptions: []ledger.Exception{failed, skipped}})},
		{"all folded, a span over exceptions", "", onceTried, foldAll(ledger.Chunk{Spans: spans(1, 6, 4), Exceptions: []ledger.Exception{failed, skipped, missedRange}})},
		{"a second fold", "", onceTried, second(ledger.Chunk{Spans: spans(1, 6, 4), Exceptions: []ledger.Exception{failed, skipped, missedRange}})},
		{"a second chunk", "", onceTried, func(h hand) {
			h.folded()
			h.txn(append(h.trim(5, 6), h.chunk(2, ledger.Chunk{Spans: spans(6, 6, 1), Exceptions: []ledger.Exception{skipped}}))...)
		}},
		{"in an hour", "", onceTried, fold(inHour([]ledger.Offset{4000, 5000}, map[string]int64{"f:exit 1": 1, "s:overlap": 1}))},
		{"an exception that moves to an hour", "", onceTried, func(h hand) {
			h.folded()
			h.txn(append(h.trim(5), h.chunk(1, inHour([]ledger.Offset{4000, 5000}, map[string]int64{"f:exit 1": 1, "s": 1})))...)
		}},

		{"deleted without a fold", "G31", onceTried, func(h hand) { h.past(); h.txn(h.trim(1)...) }},
		{"folded a revision later", "G31", onceTried, func(h hand) {
			h.past()
			h.txn(h.trim(1)...)
			h.txn(h.chunk(1, ledger.Chunk{Spans: spans(1, 1, 1)}))
		}},
		{"folded, and still in the history", "G31", onceTried, func(h hand) { h.past(); h.txn(h.chunk(1, ledger.Chunk{Spans: spans(1, 1, 1)})) }},
		{"a success is not counted", "G31", onceTried, fold(ledger.Chunk{Spans: spans(1, 3, 2), Exceptions: []ledger.Exception{failed, skipped}})},
		{"a failure counts as a success", "G31", onceTried, fold(ledger.Chunk{Spans: spans(1, 4, 4), Exceptions: []ledger.Exception{skipped}})},
		{"an exception is dropped", "G31", onceTried, fold(ledger.Chunk{Spans: spans(1, 3, 3), Exceptions: []ledger.Exception{failed}})},
		{"an exception has another state", "G31", onceTried, fold(ledger.Chunk{Spans: spans(1, 3, 3), Exceptions: []ledger.Exception{exception(4, task.TimedOut), skipped}})},
		{"an exception has another tick", "G31", onceTried, fold(ledger.Chunk{Spans: spans(1, 3, 3), Exceptions: []ledger.Exception{failed, exception(6, task.Skipped)}})},
		{"a range is short", "G31", onceTried, foldAll(ledger.Chunk{Spans: spans(1, 6, 4), Exceptions: []ledger.Exception{failed, skipped, exception(7, task.Skipped)}})},
		{"an hour counts too few", "G31", onceTried, fold(inHour([]ledger.Offset{4000}, map[string]int64{"f:exit 1": 1}))},
		{"an hour does not name a tick", "G31", onceTried, fold(inHour([]ledger.Offset{4000}, map[string]int64{"f:exit 1": 1, "s": 1}))},
		{"an hour hides a tick", "", onceTried, fold(hiding(4000, 4000, inHour([]ledger.Offset{5000}, map[string]int64{"f:exit 1": 1, "s": 1})))},
		{"an hour hides another tick", "G31", onceTried, fold(hiding(3000, 3000, inHour([]ledger.Offset{5000}, map[string]int64{"f:exit 1": 1, "s": 1})))},
		{"an hour loses a tick", "G31", onceTried, func(h hand) {
			h.past()
			h.txn(append(h.trim(1, 2, 3, 4), h.chunk(1, inHour([]ledger.Offset{4000}, map[string]int64{"f:exit 1": 1})))...)
			h.txn(append(h.trim(5), h.chunk(1, inHour([]ledger.Offset{3000, 5000}, map[string]int64{"f:exit 1": 1, "s": 1})))...)
		}},
		{"an hour names another tick", "G31", onceTried, fold(inHour([]ledger.Offset{4000, 6000}, map[string]int64{"f:exit 1": 1, "s": 1}))},
		{"a span leaves out a tick", "G31", onceTried, fold(ledger.Chunk{Spans: spans(1, 2, 3), Exceptions: []ledger.Exception{failed, skipped}})},
		{"a span ends with a tick that is still in the history", "G31", onceTried, fold(ledger.Chunk{Spans: spans(1, 6, 3), Exceptions: []ledger.Exception{failed, skipped}})},
		{"a chunk is overwritten", "G31", onceTried, second(ledger.Chunk{Spans: spans(6, 6, 1), Exceptions: []ledger.Exception{skipped, missedRange}})},
		{"a folded exception is lost", "G31", onceTried, second(ledger.Chunk{Spans: spans(1, 6, 4), Exceptions: []ledger.Exception{exception(3, task.Failed), skipped, missedRange}})},

		{"without an owner", "G1", onceTried, func(h hand) {
			h.past()
			h.txn(op{h.keys.Owner(0), nil})
			h.txn(append(h.trim(1), h.chunk(1, ledger.Chunk{Spans: spans(1, 1, 1)}))...)
		}},
		{"while the owner's node is gone", "G2", onceTried, func(h hand) {
			h.past()
			h.txn(op{h.keys.Node("a"), nil})
			h.txn(append(h.trim(1), h.chunk(1, ledger.Chunk{Spans: spans(1, 1, 1)}))...)
		}},
	})
}

// Verifies: G31
func TestCheck_FoldsOfOtherRecords(t *testing.T) {
	requested := func(c func(at int64) ledger.Chunk) func(h hand) {
		return func(h hand) {
			h.until(1)
			h.manual(h.simTask)
			w := h.queue[0]
			h.sealed(op{h.keys.Queued(h.ref, w.ID), nil}, h.dispatch(h.simTask, w.Run, "a"), h.not(1, task.Skipped, task.ReasonOverlap))
			h.done(task.Succeeded)
			h.txn(op{h.keys.Ended(h.ref, w.ID), nil}, h.chunk(1, c(1)))
		}
	}
	late := func(mentioned bool) func(h hand) {
		return func(h hand) {
			h.until(1)
			h.sealed(h.fires(1))
			key := h.lateResult()

			e := exception(1, task.Lost)
			e.Late = mentioned
			h.txn(append(h.trim(1), op{key, nil}, h.chunk(1, ledger.Chunk{Exceptions: []ledger.Exception{e}}))...)
		}
	}
	requestedLate := func(mentioned bool) func(h hand) {
		return func(h hand) {
			h.until(1)
			h.manual(h.simTask)
			w := h.queue[0]
			h.sealed(op{h.keys.Queued(h.ref, w.ID), nil}, h.dispatch(h.simTask, w.Run, "a"), h.not(1, task.Skipped, task.ReasonOverlap))
			key := h.lateResult()

			e := exception(1, task.Lost)
			e.Late = mentioned
			h.txn(op{h.keys.Ended(h.ref, w.ID), nil}, op{key, nil}, h.chunk(1, ledger.Chunk{Requested: []ledger.Exception{e}}))
		}
	}
	unreadable := func(c ledger.Chunk) func(h hand) {
		return func(h hand) {
			h.past()
			key := h.trim(1)[0].key
			h.txn(op{key, json.RawMessage(`"?"`)})
			h.txn(op{key, nil}, h.chunk(1, c))
		}
	}

	one := []ledger.Exception{exception(1, task.Succeeded)}
	turns(t, []turn{
		{"a requested run", "", nil, requested(func(int64) ledger.Chunk { return ledger.Chunk{Requested: one} })},
		{"a requested run is counted", "", nil, requested(func(int64) ledger.Chunk { return ledger.Chunk{RequestedMore: map[string]int64{"o": 1}} })},
		{"a requested run in a span", "G31", nil, requested(func(int64) ledger.Chunk { return ledger.Chunk{Spans: spans(1, 1, 1)} })},
		{"a requested run of another time", "G31", nil, requested(func(int64) ledger.Chunk {
			return ledger.Chunk{Requested: []ledger.Exception{exception(2, task.Succeeded)}}
		})},
		{"a late result", "", onceTried, late(true)},
		{"a late result is not mentioned", "G31", onceTried, late(false)},
		{"a late result of a requested run", "", onceTried, requestedLate(true)},
		{"a late result of a requested run is not mentioned", "G31", onceTried, requestedLate(false)},
		{"an unreadable record counts as a success", "G31", onceTried, unreadable(ledger.Chunk{Spans: spans(1, 1, 1)})},
	})

	// The history of the next case contains an unreadable record on purpose.
	h := newHand(t, onceTried)
	unreadable(ledger.Chunk{Unreadable: 1})(h)
	for _, v := range h.check(h.sim.asked()).Violations {
		if v.Promise != "form" {
			t.Error(v)
		}
	}
}

// A span must not go on over ticks that do not exist, because of a pause, or whose records were deleted without a fold. The
// task must be older than ledgerLag, because the owner may use its former schedule until then.
//
// Verifies: G31
func TestCheck_FoldsOverHoles(t *testing.T) {
	runs := func(h hand, from, to float64) {
		for tick := from; tick <= to; tick++ {
			h.until(tick)
			h.sealed(h.fires(tick))
			h.done(task.Succeeded)
		}
	}
	old := func(c ledger.Chunk, ticks ...float64) func(h hand) {
		return func(h hand) {
			runs(h, 1, 33)
			h.until(33.5)
			h.pause(h.simTask)
			h.until(35.5)
			h.resume(h.simTask)
			runs(h, 36, 37)
			h.txn(append(h.trim(ticks...), h.chunk(1, c))...)
		}
	}

	turns(t, []turn{
		{"none", "", nil, old(ledger.Chunk{Spans: spans(31, 33, 3)}, 31, 32, 33)},
		{"over a record in the history", "", nil, old(ledger.Chunk{Spans: spans(31, 33, 2)}, 31, 33)},
		{"a span ends at the pause", "", nil, old(ledger.Chunk{Spans: spans(33, 33, 1, 36, 36, 1)}, 33, 36)},
		{"over a pause", "G31", nil, old(ledger.Chunk{Spans: spans(33, 36, 2)}, 33, 36)},
		{"over a record that was folded before", "", nil, func(h hand) {
			old(ledger.Chunk{Spans: spans(32, 32, 1)}, 32)(h)
			h.txn(append(h.trim(31, 33), h.chunk(2, ledger.Chunk{Spans: spans(31, 33, 2)}))...)
		}},
	})

	// Records that a full etcd has deleted are a hole, too.
	h := newHand(t, nil)
	runs(h, 1, 33)
	h.txn(h.trim(32)...)
	h.txn(append(h.trim(31, 33), h.chunk(1, ledger.Chunk{Spans: spans(31, 33, 2)}))...)

	opts := h.sim.asked()
	opts.Full = true
	if r := h.check(opts); len(r.Violations) != 1 || r.Violations[0].Promise != "G31" {
		t.Errorf("over a record that was forgotten: %v", r.Violations)
	}
}

// Verifies: G31
func TestCheck_Chunks(t *testing.T) {
	short := func(d task.Duration) func(*task.Entry) {
		return func(e *task.Entry) { e.Retry.Attempts, e.History.Ledger = 1, &d }
	}
	next := func(h hand, number int, tick float64) {
		h.until(tick)
		h.sealed(h.fires(tick))
		h.done(task.Succeeded)
		h.txn(append(h.trim(tick), h.chunk(number, ledger.Chunk{Spans: spans(int64(tick), int64(tick), 1)}))...)
	}
	two := func(h hand) { next(h, 1, 1); next(h, 2, 2) }
	later := func(h hand, seconds float64) {
		h.update(h.simTask, true, func() { h.simTask.entry.Paused = true })
		h.until(seconds)
		h.sealed()
	}
	gone := func(h hand, number int) op { return op{h.chunk(number, ledger.Chunk{}).key, nil} }

	// The newest of two chunks says that the oldest one is gone.
	noted := func(h hand) op {
		return h.chunk(2, ledger.Chunk{Spans: spans(2, 2, 1), Gone: task.At(time.UnixMilli(h.at(1)))})
	}
	uncounted := ledger.Chunk{Uncounted: true}

	turns(t, []turn{
		{"two chunks", "", onceTried, two},
		{"the oldest goes for its age", "", short(task.Duration(time.Minute)), func(h hand) { two(h); later(h, 61); h.txn(gone(h, 1), noted(h)) }},
		{"the oldest goes without a trace", "G31", short(task.Duration(time.Minute)), func(h hand) { two(h); later(h, 61); h.txn(gone(h, 1)) }},
		{"the trace of the oldest is lost", "G31", short(task.Duration(time.Minute)), func(h hand) {
			two(h)
			later(h, 61)
			h.txn(gone(h, 1), noted(h))
			h.txn(h.chunk(2, ledger.Chunk{Spans: spans(2, 2, 1)}))
		}},
		{"the oldest goes for its age after an outage, before the watermark moves", "", short(task.Duration(time.Minute)), func(h hand) {
			two(h)
			h.update(h.simTask, true, func() { h.simTask.entry.Paused = true })
			h.update(h.simTask, true, func() { h.simTask.entry.From = task.At(timeOfMS(h.at(61))) })
			h.txn(gone(h, 1), noted(h))
		}},
		{"the oldest goes too early", "G31", short(task.Duration(time.Minute)), func(h hand) { two(h); later(h, 50); h.txn(gone(h, 1), noted(h)) }},
		{"another than the oldest goes", "G31", short(task.Duration(time.Minute)), func(h hand) { two(h); later(h, 99); h.txn(gone(h, 2)) }},
		{"the limit of the cluster", "", onceTried, func(h hand) {
			two(h)
			limit := task.Duration(time.Minute)
			h.txn(op{h.keys.Cluster(), task.Cluster{ID: "c", Shards: 1, LedgerLimit: &limit}})
			later(h, 61)
			h.txn(gone(h, 1), noted(h))
		}},
		{"a limit that is over", "G31", onceTried, func(h hand) {
			two(h)
			limit := task.Duration(time.Minute)
			h.txn(op{h.keys.Cluster(), task.Cluster{ID: "c", Shards: 1, LedgerLimit: &limit}})
			h.txn(op{h.keys.Cluster(), task.Cluster{ID: "c", Shards: 1}})
			later(h, 61)
			h.txn(gone(h, 1), noted(h))
		}},
		{"no ledger", "", short(0), func(h hand) { h.past(); h.txn(h.chunk(1, uncounted)); h.txn(h.trim(1)...) }},
		{"no ledger, without a trace", "G31", short(0), func(h hand) { h.past(); h.txn(h.trim(1)...) }},
		{"no ledger any more", "", onceTried, func(h hand) {
			h.folded()
			h.update(h.simTask, false, func() { h.simTask.entry.History.Ledger = new(task.Duration) })
			h.txn(gone(h, 1), h.chunk(2, uncounted))
			h.txn(h.trim(5)...)
		}},
		{"a ledger again", "G31", short(0), func(h hand) {
			h.past()
			h.txn(h.chunk(1, uncounted))
			h.update(h.simTask, false, func() { h.simTask.entry.History.Ledger = nil })
			later(h, 60)
			h.txn(h.trim(1)...)
		}},
		{"a ledger again, and the owner does not know it yet", "", short(0), func(h hand) {
			h.past()
			h.txn(h.chunk(1, uncounted))
			h.update(h.simTask, false, func() { h.simTask.entry.History.Ledger = nil })
			later(h, 30)
			h.txn(h.trim(1)...)
		}},
		{"an older chunk is rewritten", "G31", onceTried, func(h hand) {
			two(h)
			h.until(3)
			h.sealed(h.fires(3))
			h.done(task.Succeeded)
			h.txn(append(h.trim(3), h.chunk(1, ledger.Chunk{Spans: spans(1, 1, 1, 3, 3, 1)}))...)
		}},
		{"a chunk before the newest one", "G31", onceTried, func(h hand) { next(h, 2, 1); next(h, 1, 2) }},
		{"a chunk of a task that was deleted", "G31", onceTried, func(h hand) {
			h.folded()
			h.remove(h.simTask)
			h.txn(h.chunk(1, ledger.Chunk{Spans: spans(1, 3, 3)}))
		}},
		{"a chunk of an earlier task", "G31", onceTried, func(h hand) {
			h.folded()
			h.remove(h.simTask)
			h.sim.create("one", 0, 1, nil)
			h.txn(h.chunk(1, ledger.Chunk{Spans: spans(1, 3, 3)}))
		}},
		{"the ledger outlives its task", "G31", onceTried, func(h hand) {
			h.folded()
			h.remove(h.simTask)
			h.events = slices.DeleteFunc(h.events, func(ev Event) bool { return ev.Deleted && strings.Contains(ev.Key, "/ledger/") })
		}},
		{"what people write is not judged", "", onceTried, func(h hand) {
			h.folded()
			h.txn(op{h.keys.LedgerChunk(h.ref, "20261120T120003.000Z"), "garbage"})
			h.txn(op{h.keys.LedgerChunk(h.ref, "20261120T120004.000Z"), ledger.Chunk{UID: "foreign"}})
			h.txn(append(h.trim(5), op{h.keys.LedgerChunk(h.ref, "20261120T120004.000Z"), nil},
				h.chunk(5, ledger.Chunk{Exceptions: []ledger.Exception{exception(5, task.Skipped)}}))...)
		}},
		{"what people have written is rewritten", "G31", onceTried, func(h hand) {
			h.past()
			strange := json.RawMessage(fmt.Sprintf(`{"uid":%q,"from":"2026-11-20T12:00:00.000Z","new":1}`, h.simTask.entry.UID))
			h.txn(op{h.chunk(1, ledger.Chunk{}).key, strange})
			h.txn(append(h.trim(1), h.chunk(1, ledger.Chunk{Spans: spans(1, 1, 1)}))...)
		}},
	})
}

// An etcd that is full accepts only deletions.
//
// Verifies: G31
func TestCheck_TrimsOfAFullEtcd(t *testing.T) {
	h := newHand(t, onceTried)
	h.past()
	h.txn(h.trim(1)...)

	opts := h.sim.asked()
	opts.Full = true
	if r := h.check(opts); !r.OK() || r.Summary.Unfolded != 1 {
		t.Error(r)
	}
}
