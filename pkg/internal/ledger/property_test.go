package ledger

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

// outcome is the outcome of a tick of a history.
type outcome int

const (
	outcomeFolded     outcome = iota // its record was folded
	outcomeUnreadable                // its record was folded, but could not be read
	outcomeKept                      // its record is in the history
	outcomeForgotten                 // its record was deleted without a fold, or it had none
)

// fate is a tick of a history and its record.
type fate struct {
	tick    time.Time
	outcome outcome
	record  task.Run // of a range: that of the range
	late    bool
}

// history is a random history of a task. It knows everything, so that it can judge what a ledger tells.
type history struct {
	ticks    []time.Time // all ticks that the task had, whatever became of them; sorted
	fates    map[int64]*fate
	records  []Record
	ends     []int // indexes of records behind a run and its late result, which no fold separates
	cuts     []int // indexes of records at which the schedule changes
	nexts    []func(time.Time) (time.Time, bool)
	asked    map[string]task.Run // requested runs, by id
	folded   int64               // ticks of readable records
	broken   int64
	requests int64
}

// knobs are how likely the events of a history are.
type knobs struct {
	failures, ranges, holes, broken, kept, requests, late float64
	reorder                                               int // how many records a record may come too late
	versions                                              int
	ticks                                                 int
}

// drawKnobs draws the parameters of a history. Many histories have none of the rarer events.
func drawKnobs(t *rapid.T, ticks int) knobs {
	chance := func(name string, values ...float64) float64 { return rapid.SampledFrom(values).Draw(t, name) }

	return knobs{
		failures: chance("failures", 0, 0.001, 0.01, 0.1, 0.5, 1),
		ranges:   chance("ranges", 0, 0, 0.01, 0.1),
		holes:    chance("holes", 0, 0, 0.002, 0.05),
		broken:   chance("broken", 0, 0, 0.01),
		kept:     chance("kept", 0, 0, 0.05),
		requests: chance("requests", 0, 0, 0.02, 0.3),
		late:     chance("late", 0, 0.5),
		reorder:  rapid.SampledFrom([]int{0, 0, 2, 20, 1000}).Draw(t, "reorder"),
		versions: rapid.IntRange(1, 4).Draw(t, "versions"),
		ticks:    rapid.IntRange(1, ticks).Draw(t, "ticks"),
	}
}

// newHistory creates a history.
func newHistory(k knobs, r *rand.Rand) *history {
	h := &history{fates: map[int64]*fate{}, asked: map[string]task.Run{}}

	var groups [][]Record // records that a fold does not separate: a run and its late result
	at := start.Add(time.Duration(r.Int64N(86_400_000)) * time.Millisecond).Truncate(time.Second)
	for range k.versions {
		at = h.addVersion(k, r, at, &groups)
	}

	// Runs that take long are written late.
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
		if r.IntN(4) == 0 {
			order[i] += r.IntN(k.reorder + 1)
		}
	}

	indexes := make([]int, len(groups))
	for i := range indexes {
		indexes[i] = i
	}
	slices.SortStableFunc(indexes, func(a, b int) int { return cmp.Compare(order[a], order[b]) })

	for _, i := range indexes {
		h.records = append(h.records, groups[i]...)
		h.ends = append(h.ends, len(h.records))
	}

	return h
}

// periods are how often the tasks run.
var periods = []time.Duration{time.Second, 2500 * time.Millisecond, time.Minute, 7 * time.Minute, time.Hour, 24 * time.Hour, 7 * 24 * time.Hour}

// addVersion adds the ticks of a version of the task, which begins at an instant, and returns when it ends. Its local time
// changes in the middle.
func (h *history) addVersion(k knobs, r *rand.Rand, at time.Time, groups *[][]Record) time.Time {
	period := periods[r.IntN(len(periods))]
	n := max(k.ticks/k.versions, 1)
	change := at.Add(time.Duration(r.IntN(n)) * period)
	anchor := at.Add(time.Duration(r.Int64N(int64(period))).Truncate(time.Millisecond))

	// firstAfter returns the first instant after another one that is a multiple of the period from an anchor.
	firstAfter := func(anchor, after time.Time) time.Time {
		steps := after.Sub(anchor) / period
		if after.Before(anchor) {
			steps--
		}

		first := anchor.Add(steps * period)
		for !first.After(after) {
			first = first.Add(period)
		}

		return first
	}

	next := func(after time.Time) (time.Time, bool) {
		if tick := firstAfter(anchor, after); tick.Before(change) {
			return tick, true
		}
		if last := change.Add(-1); after.Before(last) {
			after = last
		}

		return firstAfter(anchor.Add(period/2), after), true
	}

	h.cuts, h.nexts = append(h.cuts, len(*groups)), append(h.nexts, next)
	if r.IntN(6) == 0 {
		h.nexts[len(h.nexts)-1] = func(time.Time) (time.Time, bool) { return time.Time{}, false }
	}

	for range n {
		at, _ = next(at)
		h.ticks = append(h.ticks, at)
	}
	h.decide(k, r, h.ticks[len(h.ticks)-n:], groups)

	return at.Add(time.Duration(r.Int64N(int64(3 * period))).Truncate(time.Millisecond))
}

// failedStates are the states of single ticks that did not succeed.
var failedStates = []task.State{task.Failed, task.Failed, task.TimedOut, task.Cancelled, task.Lost, task.Skipped, task.Missed}

// decide gives each tick an outcome.
func (h *history) decide(k knobs, r *rand.Rand, ticks []time.Time, groups *[][]Record) {
	for i := 0; i < len(ticks); i++ {
		tick := ticks[i]
		f := &fate{tick: tick, record: scheduled(tick.Sub(start), task.Succeeded).Run}
		h.fates[tick.UnixMilli()] = f
		f.record.EndedAt = task.At(f.record.StartedAt.Add(time.Duration(r.Int64N(1e10))))
		if r.IntN(10) == 0 {
			f.record.Trigger = task.TriggerCatchUp
		}

		switch {
		case r.Float64() < k.holes:
			// A hole is seldom alone: etcd was full for some time.
			f.outcome = outcomeForgotten
			for n := r.IntN(5); n > 0 && i+1 < len(ticks); n-- {
				i++
				h.fates[ticks[i].UnixMilli()] = &fate{tick: ticks[i], outcome: outcomeForgotten}
			}

			continue
		case r.Float64() < k.kept:
			f.outcome = outcomeKept
			continue
		case r.Float64() < k.broken:
			f.outcome = outcomeUnreadable
			h.broken++
			*groups = append(*groups, []Record{{Broken: true, Run: task.Run{ID: f.record.ID}}})

			continue
		case r.Float64() < k.ranges:
			i += h.addRange(f, ticks[i:], r)
		case r.Float64() < k.failures:
			f.record = scheduled(tick.Sub(start), failedStates[r.IntN(len(failedStates))]).Run
			if f.record.ExitCode != nil {
				*f.record.ExitCode = r.IntN(4)
			}
		}

		h.folded += max(f.record.Count, 1)
		group := []Record{{Run: f.record}}
		if f.record.State == task.Lost && r.Float64() < k.late {
			f.late = true
			group = append(group, Record{Late: true, Run: scheduled(tick.Sub(start), task.Succeeded).Run})
			if r.IntN(4) == 0 {
				slices.Reverse(group)
			}
		}
		*groups = append(*groups, group)

		if r.Float64() < k.requests {
			h.request(tick.Add(time.Duration(r.Int64N(1e9))).Truncate(time.Millisecond), r, groups)
		}
	}
}

// addRange makes f the first tick of a range, and returns how many others it has.
func (h *history) addRange(f *fate, ticks []time.Time, r *rand.Rand) int {
	n := min(1+r.IntN(12), len(ticks))
	state := []task.State{task.Skipped, task.Missed}[r.IntN(2)]
	f.record = scheduled(f.tick.Sub(start), state).Run
	if n > 1 {
		f.record.Last, f.record.Count = task.At(ticks[n-1]), int64(n)
	}

	for _, tick := range ticks[1:n] {
		h.fates[tick.UnixMilli()] = &fate{tick: tick, record: f.record}
	}

	return n - 1
}

// request adds a requested run.
func (h *history) request(at time.Time, r *rand.Rand, groups *[][]Record) {
	run := scheduled(at.Sub(start), []task.State{task.Succeeded, task.Failed, task.TimedOut}[r.IntN(3)]).requested(fmt.Sprintf("%04d", len(h.asked))).Run
	h.asked[run.ID] = run
	h.requests++
	*groups = append(*groups, []Record{{Run: run}})
}

// nextAt returns the schedule that is in force when a record is folded.
func (h *history) nextAt(record int) (next func(time.Time) (time.Time, bool), until int) {
	for i := range h.cuts {
		if i+1 == len(h.cuts) || record < h.cuts[i+1] {
			next, until = h.nexts[i], len(h.records)
			if i+1 < len(h.cuts) {
				until = h.cuts[i+1]
			}

			break
		}
	}

	return next, until
}

// ledgerOf folds the history. Each fold has at most size records, and reads its newest chunk from JSON.
func (h *history) ledgerOf(t *rapid.T, size func() int) [][]byte {
	var values [][]byte
	id := ""

	for from := 0; from < len(h.records); {
		next, until := h.nextAt(from)
		to := min(until, from+size())
		end, _ := slices.BinarySearch(h.ends, to)
		to = h.ends[end]

		var newest *Chunk
		if n := len(values); n > 0 {
			c, whole, err := Decode(values[n-1])
			if err != nil || !whole {
				t.Fatalf("chunk is not read as it was written (%v): %s", err, values[n-1])
			}

			newest, values = &c, values[:n-1]
		}

		before := mustMarshal(newest)
		chunks := Fold(testUID, newest, h.records[from:to], next)
		if after := mustMarshal(newest); string(after) != string(before) {
			t.Fatalf("Fold has changed its argument\nfrom %s\n  to %s", before, after)
		}

		for i := range chunks {
			if i > 0 || newest == nil {
				previous := id
				if id = chunks[i].ID(previous); id <= previous {
					t.Fatalf("id %q is not behind %q", id, previous)
				}
			}

			values = append(values, mustMarshal(chunks[i]))
		}

		from = to
	}

	return values
}

func mustMarshal(v any) []byte {
	switch c := v.(type) {
	case Chunk:
		return c.appendJSON(nil)
	case *Chunk:
		if c != nil {
			return c.appendJSON(nil)
		}
	}

	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}

	return b
}

// maxChunkSize is more than a chunk can have: the record that fills it adds less than 256 bytes, and late results some more.
const maxChunkSize = 2*ChunkSize + 512

// The long form, of 100,000 histories, takes two minutes of CPU: go test -run AnswersAs -rapid.checks=100000.
//
// Verifies: G31
func TestFold_AnswersAsTheRecordsOrSaysThatItDoesNotKnow(t *testing.T) {
	t.Parallel()

	var total tally
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(drawKnobs(t, 400), rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)))
		size := rapid.IntRange(1, 96).Draw(t, "records in a fold")
		values := h.ledgerOf(t, func() int { return size })

		checkSizes(t, values)
		h.checkCounts(t, values)
		total.add(h.checkAnswers(t, NewBook(testUID, values)))

		whole := h.ledgerOf(t, func() int { return 1 << 20 })
		if !slices.EqualFunc(values, whole, slices.Equal) {
			t.Fatalf("folds of %d records\n%s\nand one fold differ\n%s", size, values, whole)
		}
	})

	total.log(t)
}

// checkSizes checks that each chunk has the size that Fold has computed, that it is not too large, and that all but the last
// are full.
func checkSizes(t *rapid.T, values [][]byte) {
	for i, value := range values {
		c, whole, err := Decode(value)
		if err != nil || !whole {
			t.Fatalf("chunk is not read as it was written (%v): %s", err, value)
		}

		if !whole || string(c.appendJSON(nil)) != string(value) {
			t.Fatalf("chunk %d is not written as it was: %s", i, value)
		}
		if len(value) > maxChunkSize || len(value) < ChunkSize && i+1 < len(values) {
			t.Fatalf("chunk %d of %d has %d bytes: %s", i, len(values), len(value), value)
		}
	}
}

// checkCounts checks that the chunks count each record once.
func (h *history) checkCounts(t *rapid.T, values [][]byte) {
	var ticks, requested, unreadable int64
	for _, value := range values {
		c, _, _ := Decode(value)
		unreadable += c.Unreadable
		requested += int64(len(c.Requested))
		for _, n := range c.RequestedMore {
			requested += n
		}

		for _, s := range c.Spans {
			ticks += s.Count
		}

		for _, e := range c.Exceptions {
			ticks += e.Count
		}

		for _, hour := range c.Hours {
			ticks += hour.Count

			var sum int64
			for n := range maps.Values(hour.Causes) {
				sum += n
			}
			if sum != hour.Count {
				t.Fatalf("an hour counts %d ticks, and %d by cause: %s", hour.Count, sum, value)
			}
		}
	}

	if ticks != h.folded || requested != h.requests || unreadable != h.broken {
		t.Fatalf("%d ticks, %d requested runs, %d unreadable records, not %d, %d, %d\n%s", ticks, requested, unreadable, h.folded, h.requests, h.broken, values)
	}
}

// tally counts answers about ticks.
type tally struct{ exact, named, unknown int }

func (ta *tally) add(b tally) {
	ta.exact, ta.named, ta.unknown = ta.exact+b.exact, ta.named+b.named, ta.unknown+b.unknown
}

// log prints how good the answers were.
func (ta *tally) log(t *testing.T) {
	t.Logf("%d ticks: %d exact answers, %d that they did not succeed, %d not known", ta.exact+ta.named+ta.unknown, ta.exact, ta.named, ta.unknown)
}

// checkAnswers asks for every tick of the history, and compares the answer with its record.
func (h *history) checkAnswers(t *rapid.T, book *Book) tally {
	if book.Broken != 0 {
		t.Fatalf("%d broken chunks", book.Broken)
	}

	var got tally
	complete := map[time.Time]bool{}
	for _, l := range book.Lines {
		switch l.Kind {
		case task.LedgerSucceeded:
			complete[l.First.Time] = h.isComplete(book, l)
		case task.LedgerRequested:
			if run, ok := h.asked[l.Run]; !ok || run.State != l.State || !run.ScheduledTime.Equal(l.First.Time) {
				t.Fatalf("no such run was requested: %+v", l)
			}
		}
	}

	for _, f := range h.fates {
		lines := book.Find(f.tick)
		switch {
		case len(lines) == 0:
			if f.outcome == outcomeFolded {
				t.Fatalf("nothing about %v, which %s", f.tick, f.record.State)
			}
		case lines[0].Kind == task.LedgerException:
			h.checkException(t, f, lines)
			got.exact++
		case isNamed(lines[0], f.tick):
			if f.outcome != outcomeFolded || f.record.State == task.Succeeded {
				t.Fatalf("%v is named in an hour, but was %v %q", f.tick, f.outcome, f.record.State)
			}
			got.named++
		case len(lines) == 1 && lines[0].Kind == task.LedgerSucceeded && complete[lines[0].First.Time]:
			if f.outcome == outcomeFolded && f.record.State != task.Succeeded || f.outcome == outcomeForgotten || f.outcome == outcomeUnreadable {
				t.Fatalf("%v has succeeded according to %+v, but was %v %q", f.tick, lines[0], f.outcome, f.record.State)
			}
			got.exact++
		case len(lines) > 1 && lines[1].Kind == task.LedgerSucceeded && lines[0].Kind == task.LedgerSucceeded:
			t.Fatalf("%v is in two spans: %+v", f.tick, lines)
		default:
			got.unknown++
		}
	}

	return got
}

// isNamed reports whether an hour names a tick.
func isNamed(l task.LedgerLine, tick time.Time) bool {
	return slices.ContainsFunc(l.Named, func(at task.Time) bool { return at.Equal(tick) })
}

// isComplete reports whether a span counts all ticks that nothing else tells of. The hidden ticks of an hour, or a range, may
// extend beyond the span. Then there must be no other ticks as far as these extend.
func (h *history) isComplete(book *Book, span task.LedgerLine) bool {
	first, last := span.First.Time, span.Last.Time

	for {
		counted, from, to := countLines(book, first, last)
		if from.Equal(first) && to.Equal(last) {
			return counted == h.countTicks(first, last)
		}

		first, last = from, to
	}
}

// countLines returns how many ticks the lines count that lie between two instants, inclusive, and from where to where the
// lines extend that lie partly between them. Spans do not overlap, so a further one lies beyond.
func countLines(book *Book, first, last time.Time) (count int64, from, to time.Time) {
	from, to = first, last
	add := func(n int64, since, until task.Time) {
		if n > 0 && !since.After(last) && !until.Before(first) {
			count += n
			from, to = earliest(from, since.Time), latest(to, until.Time)
		}
	}

	for _, l := range book.Between(first, last.Add(1)) {
		switch l.Kind {
		case task.LedgerSucceeded, task.LedgerException:
			add(l.Count, l.First, l.Last)
		case task.LedgerHour:
			for _, tick := range l.Named {
				add(1, tick, tick)
			}
			add(l.Count-int64(len(l.Named)), l.HiddenFirst, l.HiddenLast)
		}
	}

	return count, from, to
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}

	return b
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}

	return b
}

// countTicks returns how many ticks the task had between two instants, inclusive, that are not in its history.
func (h *history) countTicks(first, last time.Time) (n int64) {
	i, _ := slices.BinarySearchFunc(h.ticks, first, time.Time.Compare)
	for _, tick := range h.ticks[i:] {
		if tick.After(last) {
			break
		}
		if h.fates[tick.UnixMilli()].outcome != outcomeKept {
			n++
		}
	}

	return n
}

// Verifies: G31
func TestFold_KnowsAllTicksThatItDoesNotHideIfNoneIsMissing(t *testing.T) {
	t.Parallel()

	var total tally
	rapid.Check(t, func(t *rapid.T) {
		k := drawKnobs(t, 800)
		k.holes, k.broken, k.kept, k.versions = 0, 0, 0, 1
		k.reorder = min(k.reorder, 20)
		h := newHistory(k, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)))
		book := NewBook(testUID, h.ledgerOf(t, func() int { return 60 }))
		total.add(h.checkAnswers(t, book))

		for _, l := range book.Lines {
			if l.Kind == task.LedgerSucceeded && !h.isComplete(book, l) {
				t.Fatalf("whether the ticks of a span succeeded is not known: %+v", l)
			}
		}
	})

	total.log(t)
}

// checkException compares the exception of a tick with its record.
func (h *history) checkException(t *rapid.T, f *fate, lines []task.LedgerLine) {
	l, r := lines[0], f.record
	want := task.LedgerLine{
		Kind: task.LedgerException, First: r.ScheduledTime, Last: r.ScheduledTime, Count: max(r.Count, 1), State: r.State, Reason: ReasonOf(&r),
		Attempt: r.Attempt, Node: r.Node, Run: r.ID, Late: f.late,
	}
	if r.Count > 1 {
		want.Last, want.Run = r.Last, ""
	}

	if f.outcome != outcomeFolded || len(lines) != 1 || string(mustMarshal(l)) != string(mustMarshal(want)) {
		t.Fatalf("%v was %v\n%+v\n%+v", f.tick, f.outcome, lines, want)
	}
}
