package scheduler

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// chunks returns the values of the chunks of a task's ledger by id, and the ids in order.
func (w *world) chunks(name string) (ids []string, values [][]byte) {
	w.Helper()
	prefix := w.store.Keys().LedgerOf(ref(name))
	res, err := w.client.Get(w.ctx, prefix, clientPrefix)
	w.ok(err)

	for _, e := range res.Kvs {
		ids = append(ids, strings.TrimPrefix(string(e.Key), prefix))
		values = append(values, e.Value)
	}

	return ids, values
}

// book returns what the ledger of the present task of that name tells.
func (w *world) book(name string) *ledger.Book {
	w.Helper()
	st, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)
	_, values := w.chunks(name)

	return ledger.NewBook(st.Task.UID, values)
}

// wantLedger checks what the ledger of a task tells, the oldest first: the kind or the state, the ticks in seconds after the
// start, and the count if it is not 1.
func (w *world) wantLedger(name string, lines ...string) {
	w.Helper()
	var got []string
	all := w.book(name).Lines
	slices.SortStableFunc(all, func(a, b task.LedgerLine) int { return a.First.Compare(b.First.Time) })
	for _, l := range all {
		what := string(l.Kind)
		if l.Kind == task.LedgerException {
			what = string(l.State)
		}
		text := fmt.Sprintf("+%g %s", l.First.Sub(start).Seconds(), what)
		if l.Count > 1 {
			text = fmt.Sprintf("+%g..+%g %s %d", l.First.Sub(start).Seconds(), l.Last.Sub(start).Seconds(), what, l.Count)
		}
		if l.Late {
			text += " late"
		}
		got = append(got, text)
	}

	if !slices.Equal(got, lines) {
		w.Errorf("the ledger of %s:\n got  %s\n want %s", name, strings.Join(got, " | "), strings.Join(lines, " | "))
	}
}

// counted returns how many records the ledger counts.
func (w *world) counted(name string) (n int64) {
	w.Helper()
	for _, l := range w.book(name).Lines {
		n += l.Count
	}

	return n
}

// putEnds writes records of past runs of a task without its owner, one every 15 minutes from tick number first on. Every
// tenth has failed.
func (w *world) putEnds(name string, first, count int) {
	w.Helper()
	st, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)

	for i := first; i < first+count; i++ {
		at := sec(float64(900 * i))
		r := task.Run{
			ID: task.RunID(at, st.Task.UID), UID: st.Task.UID, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule,
			State: task.Succeeded, Attempt: 1, StartedAt: task.At(at), EndedAt: task.At(at.Add(time.Second)),
		}
		if i%10 == 0 {
			r.State, r.Reason = task.Failed, task.ReasonExit
		}
		w.put(w.store.Keys().Ended(ref(name), r.ID), record.Encode(r))
	}
}

// runs lets the task's ticks from number first to last run, which are 15 minutes apart. They end with these states, in turn.
func (tw *testWorker) runs(name string, first, last int, states ...task.State) {
	tw.world.Helper()
	for i := first; i <= last; i++ {
		tw.decide(float64(900 * i))
		tw.world.endAs(name, states[(i-first)%len(states)], float64(900*i+1))
	}
	tw.see()
}

// keeps is a history that keeps the given number of records.
func keeps(n int) task.History { return task.History{Keep: n, Record: task.RecordAll} }

// One revision deletes the records from the history and writes the chunk.
//
// Verifies: G31
func TestFold_MovesRecordsInOneTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("15m"), keep(4))
	h.runs("a", 1, 10, task.Succeeded, task.Succeeded, task.Failed)
	before := w.mark()
	h.trimTo("a", keeps(4))

	w.want("a", "+6300 succeeded", "+7200 succeeded", "+8100 failed", "+9000 succeeded")
	// Two of the six failed.
	w.wantLedger("a", "+900..+4500 succeeded 4", "+2700 failed", "+5400 failed")
	if w.mark() != before {
		t.Error("it moved the watermark: a commit in flight would be lost")
	}

	res, err := w.client.Get(w.ctx, w.store.Keys().LedgerOf(ref("a")), clientPrefix)
	w.ok(err)
	rev := res.Kvs[0].ModRevision
	history, err := w.client.Get(w.ctx, w.store.Keys().HistoryOf(ref("a")), clientPrefix, clientv3.WithRev(rev-1))
	w.ok(err)
	if len(history.Kvs) != 10 {
		t.Errorf("before the revision of the chunk, %d records are left", len(history.Kvs))
	}

	h.trimTo("a", keeps(2))
	w.wantLedger("a", "+900..+7200 succeeded 6", "+2700 failed", "+5400 failed")
	if ids, _ := w.chunks("a"); !slices.Equal(ids, []string{"20260102T121500.000Z"}) {
		t.Errorf("the chunks are %v", ids)
	}
}

// Only the owner folds, at whichever moment it loses the shard.
//
// Verifies: G31
func TestFold_IsFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1", "n2").judged()
	h := w.work("n1")
	w.create("a", every("15m"))
	h.runs("a", 1, 6, task.Succeeded)

	var next *testWorker
	h.gate.play(before(func() { next = w.work("n2") }))
	if err := h.e.trims.Trim(w.ctx, h.trimJob("a", keeps(2))); !errors.Is(err, task.ErrFenced) {
		t.Errorf("between the read and the write: %v", err)
	}
	w.wantLedger("a")

	// The former owner reads, the new one folds, and the former one's transaction arrives.
	next.trimTo("a", keeps(3))
	if err := h.e.trims.Trim(w.ctx, h.trimJob("a", keeps(2))); !errors.Is(err, task.ErrFenced) {
		t.Errorf("after another owner's fold: %v", err)
	}
	w.wantLedger("a", "+900..+2700 succeeded 3")
	if len(w.story("a")) != 3 {
		t.Errorf("in the history: %v", w.story("a"))
	}
}

// A transaction whose answer was lost arrives after the next fold, or once more.
//
// Verifies: G31
func TestFold_ALateCopyChangesNothing(t *testing.T) {
	t.Parallel()

	for name, begun := range map[string]int{"of the first chunk": 0, "of a later fold": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1").judged()
			h := w.work("n1")
			w.create("a", every("15m"))
			h.runs("a", 1, begun, task.Succeeded)
			h.trimTo("a", keeps(1))
			h.runs("a", begun+1, 10, task.Succeeded)

			trim := func(keep int) {
				t.Helper()
				h.gate.play(h.gate.delayed)
				if err := h.e.trims.Trim(w.ctx, h.trimJob("a", keeps(keep))); !errors.Is(err, task.ErrUnknown) {
					t.Errorf("a trim without an answer: %v", err)
				}
			}

			trim(4)
			trim(3)
			trim(2)
			h.trimTo("a", keeps(1))
			h.gate.deliverTwice()

			w.wantLedger("a", "+900..+8100 succeeded 9")
			w.want("a", "+9000 succeeded")
		})
	}
}

// deliverTwice delivers the commits in flight, each twice.
func (c *commitGate) deliverTwice() {
	c.held = append(c.held, c.held...)
	c.deliver()
}

// Two trims of the same task read the same records. One of them has to read again.
//
// Verifies: G31
func TestFold_TwoAtOnceCountEachRecordOnce(t *testing.T) {
	t.Parallel()

	for _, begun := range []int{0, 30} {
		w := newWorld(t, "n1")
		h := w.work("n1")
		w.create("a", every("15m"))
		w.putEnds("a", 1, begun+1)
		h.trimTo("a", keeps(1))
		w.putEnds("a", begun+2, 59-begun)
		h.see()

		var trims sync.WaitGroup
		for i := range 8 {
			trims.Go(func() {
				if err := h.e.trims.Trim(w.ctx, h.trimJob("a", keeps(5+i%3))); err != nil && !errors.Is(err, task.ErrConflict) {
					t.Error(err)
				}
			})
		}
		trims.Wait()
		h.trimTo("a", keeps(5))

		if n, left := w.counted("a"), len(w.story("a")); n != 55 || left != 5 {
			t.Errorf("after %d runs were folded: the ledger counts %d, the history has %d", begun, n, left)
		}
	}
}

// If keep is lowered, the rest is folded in many transactions. An owner that dies in between loses nothing, and its
// successor continues.
//
// Verifies: G31
func TestFold_InManyStepsThatTwoOwnersShare(t *testing.T) {
	t.Parallel()

	for deaths := range 8 {
		for _, die := range []string{"before", "after"} {
			w := newWorld(t, "n1", "n2")
			h := w.work("n1")
			w.create("a", every("15m"))
			w.putEnds("a", 1, 500)
			h.see()

			h.gate.play(slices.Repeat([]trick{pass}, deaths)...)
			if die == "after" {
				h.gate.play(h.diesAfter)
			} else {
				h.gate.play(h.dies)
			}
			if err := h.e.trims.Trim(h.ctx, h.trimJob("a", keeps(20))); err == nil && deaths < 5 {
				t.Errorf("it survived %d folds", deaths)
			}

			history, err := w.store.History(w.ctx, ref("a"), false)
			w.ok(err)
			if n := w.counted("a") + int64(len(history)); n != 500 {
				t.Errorf("after %d folds, %d of 500 records are left", deaths, n)
			}

			w.work("n2").trimTo("a", keeps(20))
			if n, left := w.counted("a"), len(w.story("a")); n != 480 || left != 20 {
				t.Errorf("after %d folds and a failover: the ledger counts %d, the history has %d", deaths, n, left)
			}
		}
	}
}

// A fold that needs many chunks, and deletes as many old ones, is split: etcd allows 128 operations.
//
// Verifies: G31
func TestFold_SplitsWhatNeedsManyChunks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("24h"))
	st, err := w.store.Task(w.ctx, ref("a"))
	w.ok(err)

	for i := range ledger.MaxChunks {
		from := start.Add(time.Duration(i-ledger.MaxChunks) * time.Hour)
		w.putChunk("a", from, st.Task.UID)
	}

	const records = store.MaxFold + 1
	for i := range records {
		at := start.AddDate(0, 0, i)
		r := task.Run{
			ID: task.RunID(at, st.Task.UID) + "-" + strings.Repeat("x", 30), UID: st.Task.UID, ScheduledTime: task.At(at), Trigger: task.TriggerSchedule,
			State: task.Failed, Reason: strings.Repeat("r", 40), Attempt: 3, Node: strings.Repeat("n", 63), EndedAt: task.At(at),
		}
		w.put(w.store.Keys().Ended(ref("a"), r.ID), record.Encode(r))
	}
	h.see()

	folds := 0
	fold := before(func() { folds++ })
	h.gate.play(fold, fold, fold)
	h.trimTo("a", keeps(1))

	// Each of the chunks from before counts two ticks.
	ids, _ := w.chunks("a")
	begun := len(ids) - slices.IndexFunc(ids, func(id string) bool { return id >= "20260102T12" })
	if n := w.counted("a"); folds != 2 || len(ids) != ledger.MaxChunks || n != int64(records-1+2*(len(ids)-begun)) {
		t.Errorf("%d folds, %d chunks, %d of them new, count %d ticks", folds, len(ids), begun, n)
	}
}

// putChunk writes a chunk with two successes, 15 minutes apart.
func (w *world) putChunk(name string, from time.Time, uid string) {
	w.Helper()
	hour := from.Truncate(time.Hour)
	first := ledger.Offset(from.Sub(hour).Milliseconds())
	c := ledger.Chunk{UID: uid, From: task.At(hour), Spans: []ledger.Span{{First: first, Last: first + 900_000, Count: 2}}}
	w.put(w.store.Keys().LedgerChunk(ref(name), from.Format("20060102T150405.000Z")), record.Encode(c))
}

// The owner extends a range of skipped ticks between the read of its record and the fold. The extended record is the one
// that was written last, so it stays.
//
// Verifies: G31
func TestFold_DoesNotLoseTicksOfARangeThatGrows(t *testing.T) {
	t.Parallel()

	for _, skips := range []int{1, 3} { // a single tick can grow into a range
		w := newWorld(t, "n1")
		h := w.work("n1")
		w.create("a", every("15m"))
		h.runs("a", 1, 3, task.Succeeded)
		h.decide(4 * 900) // stays active
		for i := range skips {
			h.decide(float64((5 + i) * 900))
		}
		// Another record is newer than the range, so that the range is surplus.
		w.putEnds("a", 100, 1)
		h.see()
		h.gate.play(before(func() { h.decide(float64((5 + skips) * 900)) }))
		h.trimTo("a", keeps(1))

		var skipped int64
		for _, l := range w.book("a").Lines {
			if l.State == task.Skipped {
				skipped += l.Count
			}
		}
		for _, line := range w.story("a") {
			var n int64 = 1
			if strings.Contains(line, " skipped ") {
				_, _ = fmt.Sscanf(line[strings.Index(line, " skipped ")+9:], "%d", &n)
				skipped += n
			}
		}
		if skipped != int64(skips+1) {
			t.Errorf("of %d skipped ticks %d are on record: %v", skips+1, skipped, w.story("a"))
		}
	}
}

// A change of keep takes effect with the next trims.
//
// Verifies: G31
func TestFold_KeepIsRaised(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("15m"))
	h.runs("a", 1, 6, task.Succeeded)
	h.trimTo("a", keeps(2))
	h.runs("a", 7, 9, task.Succeeded)
	h.trimTo("a", keeps(5))
	w.wantLedger("a", "+900..+3600 succeeded 4")
	h.runs("a", 10, 12, task.Succeeded)
	h.trimTo("a", keeps(5))
	w.wantLedger("a", "+900..+6300 succeeded 7")
}

// A task without a ledger has none, and loses the one that it had.
//
// Verifies: G31
func TestFold_WithoutLedger(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("15m"))
	w.putEnds("a", 1, 10)
	h.see()
	h.trimTo("a", keeps(5))
	w.wantLedger("a", "+900..+4500 succeeded 5")

	none := keeps(5)
	none.Ledger = new(task.Duration)
	h.trimTo("a", none) // nothing is surplus
	w.wantLedger("a")
	before, _ := w.chunks("a")

	w.putEnds("a", 11, 3)
	h.see()
	h.trimTo("a", none)
	w.wantLedger("a")
	if after, values := w.chunks("a"); len(after) != 1 || !slices.Equal(after, before) || len(w.story("a")) != 5 {
		t.Errorf("the ledger has %q, the history %v", values, w.story("a"))
	}
}

// wantComplete checks that each tick for which the ledger claims to be complete is in the history or in the ledger. Ticks are
// 15 minutes apart. Those for which hasEnded returns false have no record yet. It returns the number of the first tick from which
// on the ledger is complete; 0 if it is not complete since any.
func (w *world) wantComplete(name string, ticks int, hasEnded func(int) bool) (first int) {
	w.Helper()
	book := w.book(name)
	past, err := w.store.History(w.ctx, ref(name), false)
	w.ok(err)

	for n := ticks; n > 0; n-- {
		tick := sec(float64(900 * n))
		if !book.IsComplete(tick) || !hasEnded(n) {
			continue
		}

		first = n
		inHistory := slices.ContainsFunc(past, func(p store.Past) bool {
			at, _ := task.TimeOfRunID(p.ID)
			return at.Equal(tick)
		})
		if !inHistory && len(book.Find(tick)) == 0 {
			w.Errorf("after %d ticks, the ledger is complete since tick %d, but does not have it", ticks, n)
		}
	}

	if since, ok := book.CompleteSince(start); first > 0 && (!ok || since.After(sec(float64(900*first)))) {
		w.Errorf("complete since %s, %t, but the first tick is %d", since, ok, first)
	}

	return first
}

// A ledger is not complete before what was deleted without being counted, and before the last tick of a chunk that was
// deleted, although a run of an older tick that took long is in a later chunk.
//
// Verifies: G31
func TestFold_KnowsSinceWhenTheLedgerIsComplete(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("15m"))

	var c task.Cluster
	trims := background.NewTrimmer(h.e.cfg.Store, func() task.Cluster { return c }, w.clock, h.e.cfg.Logger)
	full := func(func() (kv.Result, error)) (kv.Result, error) { return kv.Result{}, rpctypes.ErrNoSpace }

	const step, late = 20, 30
	for n := 0; n < 1000; n += step {
		for i := n + 1; i <= n+step; i++ {
			if i != late {
				w.putEnds("a", i, 1)
			}
		}
		if n == 300 {
			w.putEnds("a", late, 1)
		}

		w.at(900*float64(n+step) + 10)
		h.see()
		history := keeps(5)
		history.Ledger = new(task.Duration(48 * time.Hour))
		c.LedgerLimit = nil

		switch n {
		case 500, 520:
			history.Ledger = new(task.Duration)
		case 600, 620:
			c.LedgerLimit = new(task.Duration)
		case 700:
			h.gate.play(full)
		}

		w.ok(trims.Trim(w.ctx, h.trimJob("a", history)))
		if n == 700 {
			continue // nothing can be written to a full etcd; the next fold tells of it
		}
		first := w.wantComplete("a", n+step, func(i int) bool { return i != late || n >= 300 })

		switch n {
		case 480: // the oldest chunks are too old, and tick 30 is in one of the others
			if first < 100 || first > 400 {
				t.Errorf("after %d ticks, it is complete since tick %d", n+step, first)
			}
		case 500, 520, 540, 600, 620, 640:
			if first != 0 {
				t.Errorf("after %d ticks, it is complete since tick %d, although records were deleted without being counted", n+step, first)
			}
		case 560, 660, 720:
			if first != n+1 {
				t.Errorf("after %d ticks, it is complete since tick %d", n+step, first)
			}
		}
	}

	if len(w.book("a").Find(sec(900*late))) > 0 {
		t.Error("the ledger still has the late tick, so that no chunk was deleted after it")
	}
}

// The cluster's setting applies to tasks without one. A limit stops folds, and deletes nothing.
//
// Verifies: G31
func TestFold_FollowsTheCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("15m"))
	w.putEnds("a", 1, 20)
	h.see()

	var c task.Cluster
	trims := background.NewTrimmer(h.e.cfg.Store, func() task.Cluster { return c }, w.clock, h.e.cfg.Logger)
	trim := func(keep int, own *task.Duration) {
		t.Helper()
		history := keeps(keep)
		history.Ledger = own
		w.ok(trims.Trim(w.ctx, h.trimJob("a", history)))
	}

	trim(18, nil)
	c.LedgerLimit = new(task.Duration)
	trim(16, nil)
	trim(14, new(task.DefaultLedger))
	w.wantLedger("a", "+900..+1800 succeeded 2")
	c.LedgerLimit = nil
	trim(13, nil)
	w.wantLedger("a", "+900..+1800 succeeded 2", "+6300 succeeded")
	c.Ledger = new(task.Duration)
	trim(12, new(task.DefaultLedger)) // its own setting
	w.wantLedger("a", "+900..+1800 succeeded 2", "+6300..+7200 succeeded 2")
	trim(12, nil)
	w.wantLedger("a")
	if ids, values := w.chunks("a"); len(ids) != 1 {
		t.Errorf("the ledger has %q", values)
	}
}

// Fold begins a new chunk behind one that it must not change, and deletes one of a deleted task.
//
// Verifies: G31
func TestFold_BehindChunksOfOthers(t *testing.T) {
	t.Parallel()

	for name, value := range map[string]string{
		"garbage":          "{garbage",
		"another version":  `{"uid":"UID","from":"2026-01-02T12:00:00Z","ok":[[0,900,2,0,0,0]],"new":1}`,
		"edited by a hand": `{ "uid": "UID", "from": "2026-01-02T12:00:00Z", "ok": [[0, 900, 2, 0, 0, 0]] }`,
		"a foreign task":   `{"uid":"foreign","from":"2026-01-02T12:00:00Z","ok":[[0,900,2,0,0,0]]}`,
	} {
		for _, id := range []string{"20260102T120000.000Z", "20990102T120000.000Z", "by hand"} {
			t.Run(name+", "+id, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, "n1")
				h := w.work("n1")
				w.create("a", every("15m"))
				w.putEnds("a", 1, 9)
				h.see()
				st, err := w.store.Task(w.ctx, ref("a"))
				w.ok(err)
				value := strings.ReplaceAll(value, "UID", st.Task.UID)
				w.put(w.store.Keys().LedgerChunk(ref("a"), id), value)

				h.trimTo("a", keeps(4))
				h.trimTo("a", keeps(2))
				ids, values := w.chunks("a")
				foreign := name == "a foreign task"
				switch {
				case foreign && len(ids) == 1:
				case !foreign && len(ids) == 2 && ids[0] == id && string(values[0]) == value:
				default:
					t.Errorf("%v: %s", ids, values)
				}

				if b := ledger.NewBook(st.Task.UID, values[len(values)-1:]); len(b.Lines) != 1 || b.Lines[0].Count != 7 {
					t.Errorf("%+v", b)
				}
			})
		}
	}
}

// Two folds begin behind the same chunk, which neither of them changes.
//
// Verifies: G31
func TestFold_ALateCopyBehindAChunkOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("15m"))
	w.putEnds("a", 1, 9)
	h.see()
	w.put(w.store.Keys().LedgerChunk(ref("a"), "20260102T120000.000Z"), "{garbage")

	h.gate.play(h.gate.delayed)
	_ = h.e.trims.Trim(w.ctx, h.trimJob("a", keeps(4)))
	h.trimTo("a", keeps(3))
	h.gate.deliverTwice()
	w.wantLedger("a", "+900..+5400 succeeded 6")
}

// The first fold of a task arrives after its ledger was switched off, and its records were deleted.
//
// Verifies: G31
func TestFold_ALateCopyAfterARemovalWritesNoLedger(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("15m"))
	h.runs("a", 1, 9, task.Succeeded)

	h.gate.play(h.gate.delayed)
	_ = h.e.trims.Trim(w.ctx, h.trimJob("a", keeps(4)))
	h.trimTo("a", task.History{Keep: 2, Record: task.RecordAll, Ledger: new(task.Duration)})
	h.gate.deliverTwice()
	w.wantLedger("a")
}

// A full etcd refuses puts. The records are deleted all the same, and the count shows that some are missing.
//
// Verifies: G31
func TestFold_DeletesWithoutAFoldWhileEtcdIsFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("15m"))
	w.putEnds("a", 1, 9)
	h.see()
	h.trimTo("a", keeps(6))
	full := func(func() (kv.Result, error)) (kv.Result, error) { return kv.Result{}, rpctypes.ErrNoSpace }
	h.gate.play(full)
	h.trimTo("a", keeps(4))
	w.wantLedger("a", "+900..+2700 succeeded 3")
	if len(w.story("a")) != 4 {
		t.Errorf("%v", w.story("a"))
	}

	h.trimTo("a", keeps(2))
	w.wantLedger("a", "+900..+2700 succeeded 3", "+5400..+6300 succeeded 2")
}

// The task is deleted between the read and the write. Nothing of it may be left.
//
// Verifies: G31
func TestFold_NotOfADeletedTask(t *testing.T) {
	t.Parallel()

	for _, again := range []bool{false, true} {
		w := newWorld(t, "n1")
		h := w.work("n1")
		w.create("a", every("15m"))
		w.putEnds("a", 1, 9)
		h.see()
		h.trimTo("a", keeps(7))

		job := h.trimJob("a", keeps(4))
		h.gate.play(before(func() {
			w.remove("a")
			if again {
				w.create("a", every("15m"))
			}
		}))
		w.ok(h.e.trims.Trim(w.ctx, job)) // the second try finds nothing to fold

		if ids, _ := w.chunks("a"); len(ids) > 0 {
			t.Errorf("created again %t: the ledger has %v", again, ids)
		}

		// An active attempt of the deleted task ends later. Its record is not folded either.
		at := sec(900)
		for i := range 6 {
			w.put(w.store.Keys().Ended(ref("a"), task.RunID(at.Add(time.Duration(i)*time.Minute), job.UID)), record.Encode(task.Run{UID: job.UID, State: task.Cancelled}))
		}
		if err := h.e.trims.Trim(w.ctx, job); !errors.Is(err, task.ErrConflict) {
			t.Error(err)
		}
		if ids, _ := w.chunks("a"); len(ids) > 0 {
			t.Errorf("created again %t: the ledger has %v", again, ids)
		}
	}
}

// Records stay while their ticks are young, beyond the number that is kept.
//
// Verifies: G31
func TestFold_KeepFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("15m"))
	w.putEnds("a", 1, 48) // twelve hours
	h.see()
	history := keeps(5)
	history.KeepFor = task.Duration(8 * time.Hour)

	w.at(49 * 900)
	h.trimTo("a", history)
	w.wantLedger("a", "+900..+15300 succeeded 16", "+9000 failed")

	// A quarter may be added before the next trim, and costs no list.
	w.at(57 * 900)
	h.trimTo("a", history)
	if n := w.counted("a"); n != 17 {
		t.Errorf("%d are folded", n)
	}
	w.at(58 * 900)
	h.trimTo("a", history)
	if n := w.counted("a"); n != 26 {
		t.Errorf("%d are folded", n)
	}

	w.at(400 * 900)
	h.trimTo("a", history)
	if n, left := w.counted("a"), len(w.story("a")); n != 43 || left != 5 {
		t.Errorf("%d are folded, %d are left", n, left)
	}
}

// What record: failures deletes is folded, and late results mark the run to which they belong. A span continues over
// failures that stay in the history.
//
// Verifies: G31
func TestFold_FailuresOnlyAndLateResults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("15m"))
	w.putEnds("a", 1, 31)
	h.see()
	all, err := w.store.History(w.ctx, ref("a"), false)
	w.ok(err)
	lost := record.Encode(task.Run{UID: "x", State: task.Succeeded})
	w.put(w.store.Keys().Late(ref("a"), all[9].ID, 7), lost)
	w.put(w.store.Keys().Late(ref("a"), all[19].ID, 7), lost)
	h.see()

	h.trimTo("a", task.History{Keep: 3, Record: task.RecordFailures})
	w.want("a", "+18000 failed", "+27000 failed", "+27900 succeeded")
	w.wantLedger("a", "+900..+26100 succeeded 27", "+9000 failed late") // without +18000, which is in the history
	if past, err := w.store.History(w.ctx, ref("a"), false); err != nil || len(past) != 4 {
		t.Errorf("%v, %v", past, err) // with the late result of the run that stays
	}
}

// A late result may arrive after the record of its run has gone. It adds nothing to the ledger, and is only deleted.
//
// Verifies: G31
func TestFold_OfLateResultsAlone(t *testing.T) {
	t.Parallel()

	for name, chunk := range map[string]string{"without a ledger": "", "behind a chunk that cannot be read": "{garbage"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "n1")
			h := w.work("n1")
			w.create("a", every("15m"))
			w.putEnds("a", 1, 3)
			h.see()
			all, err := w.store.History(w.ctx, ref("a"), false)
			w.ok(err)
			_, err = w.client.Delete(w.ctx, w.store.Keys().Ended(ref("a"), all[0].ID))
			w.ok(err)
			w.put(w.store.Keys().Late(ref("a"), all[0].ID, 7), record.Encode(task.Run{UID: "x", State: task.Succeeded}))
			if chunk != "" {
				w.put(w.store.Keys().LedgerChunk(ref("a"), "20260102T120000.000Z"), chunk)
			}
			h.see()

			h.trimTo("a", keeps(2))
			w.want("a", "+1800 succeeded", "+2700 succeeded")
			if past, err := w.store.History(w.ctx, ref("a"), false); err != nil || len(past) != 2 {
				t.Errorf("%v, %v", past, err)
			}
			w.wantLedger("a")
		})
	}
}

// Old chunks go when a new one begins, and the oldest if there are too many.
//
// Verifies: G31
func TestFold_DropsOldChunks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("15m"))
	st, err := w.store.Task(w.ctx, ref("a"))
	w.ok(err)

	// One chunk for each half hour before the start, each of two ticks.
	const before = ledger.MaxChunks + 3 // one more is begun
	for i := range before {
		from := start.Add(time.Duration(i-before) * 30 * time.Minute)
		uid := st.Task.UID
		if i == 4 {
			uid = "foreign"
		}
		w.putChunk("a", from, uid)
	}

	// The newest is garbage, so that a fold begins a new one.
	begin := func(i int) {
		t.Helper()
		ids, _ := w.chunks("a")
		w.put(w.store.Keys().LedgerChunk(ref("a"), ids[len(ids)-1]), "{garbage")
		w.putEnds("a", i, 2)
		h.see()
		h.trimTo("a", keeps(1))
	}

	begin(1)
	ids, _ := w.chunks("a")
	if want := start.Add(-(before - 5) * 30 * time.Minute).Format("20060102T150405.000Z"); len(ids) != ledger.MaxChunks-1 || ids[0] != want {
		t.Errorf("%d chunks from %s, want %s", len(ids), ids[0], want)
	}

	// Of those that are too old, some go with each new chunk. One that cannot be read goes with the next one.
	for _, i := range []int{0, 3} {
		w.put(w.store.Keys().LedgerChunk(ref("a"), ids[i]), "{garbage")
	}
	history := keeps(1)
	history.Ledger = new(task.Duration((before - 8) * 30 * time.Minute))
	job := h.trimJob("a", history)
	w.put(w.store.Keys().LedgerChunk(ref("a"), ids[len(ids)-1]), "{garbage")
	w.putEnds("a", 3, 1)
	h.see()
	w.ok(h.e.trims.Trim(w.ctx, job))
	after, _ := w.chunks("a")
	if len(after) != len(ids)-3+1 || after[0] != ids[3] {
		t.Errorf("%d chunks from %s, there were %d from %s", len(after), after[0], len(ids), ids[0])
	}
}

// Records that cannot be read are counted.
//
// Verifies: G31
func TestFold_CountsRecordsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1")
	h := w.work("n1")
	w.create("a", every("15m"))
	w.putEnds("a", 1, 6)
	past, err := w.store.History(w.ctx, ref("a"), false)
	w.ok(err)
	w.put(w.store.Keys().Ended(ref("a"), past[1].ID), "{garbage")
	w.putEnds("a", 7, 2)
	h.see()
	h.trimTo("a", keeps(1))
	if n := w.counted("a"); n != 7 {
		t.Errorf("%d are counted", n)
	}
	if !slices.ContainsFunc(w.book("a").Lines, func(l task.LedgerLine) bool { return l.Kind == task.LedgerUnreadable && l.Count == 1 }) {
		t.Errorf("%+v", w.book("a").Lines)
	}
}

// The ledger is deleted with its task, and another task of that name begins its own.
//
// Verifies: G31
func TestFold_EndsWithItsTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "n1").judged()
	h := w.work("n1")
	w.create("a", every("15m"))
	h.runs("a", 1, 4, task.Succeeded)
	h.trimTo("a", keeps(1))
	w.remove("a")
	if ids, _ := w.chunks("a"); len(ids) > 0 {
		t.Errorf("the ledger has %v", ids)
	}

	w.create("a", every("15m"))
	h.runs("a", 5, 8, task.Failed)
	h.trimTo("a", keeps(1))
	w.wantLedger("a", "+3600..+7199.999 hour 2", "+4500 failed")

	account, err := w.store.Account(w.ctx, ref("a"), start, start.Add(time.Hour))
	w.ok(err)
	if _, values := w.chunks("a"); !slices.EqualFunc(account.Ledger, values, bytes.Equal) {
		t.Errorf("the account has %s", account.Ledger)
	}
}
