package ledger

import (
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Record is a record that the trimmer deletes from a history.
type Record struct {
	Run    task.Run // if it is Broken, only ID is set
	Late   bool     // a late result, which only marks the run to which it belongs
	Broken bool     // it cannot be read
}

const (
	// Limits of a span. A day of ticks at every second is about as much as a reader wants to count. The second limit is for
	// rare ticks, so that a year of a weekly task needs few spans.
	spanTime     = 24 * 3600 * 1000 // ms
	longSpanTime = 8 * spanTime
	longSpanSize = 32 // ticks

	// maxOwnEntries is how many exceptions of an hour have an entry of their own, until there is a further one.
	maxOwnEntries = 2

	// maxRequested is how many requested runs of a chunk have an entry of their own.
	maxRequested = 8

	// maxWalk is how many ticks Fold follows between a span and a tick to find out that the span continues.
	maxWalk = 64

	// hourTime is an hour in milliseconds.
	hourTime = 3600 * 1000
)

// Fold adds records of the task with this uid to its ledger, in the order in which they were written. newest is the newest
// chunk; nil if there is none that may be changed. next returns the first tick of the present schedule after a time; false
// if there is none, or if it cannot be computed, as with ticks after completion.
//
// It returns the chunks that must be written. If newest is not nil, the first of them replaces it. The others are new.
// Each record is counted once in them. Fold changes neither its arguments nor what they refer to.
//
// It does not matter how records are divided into folds, except for late results. These mark the entry of their run if it is
// in newest or among the records. A run that is only counted in an Hour has no entry to mark.
func Fold(uid string, newest *Chunk, records []Record, next func(after time.Time) (time.Time, bool)) []Chunk {
	return FoldEach(uid, newest, func(yield func(*Record) bool) {
		for i := range records {
			if !yield(&records[i]) {
				return
			}
		}
	}, next)
}

// FoldEach is like Fold for records that are read one after the other. A record may be overwritten when the next one is
// read, so that a fold of many records needs memory for one.
func FoldEach(uid string, newest *Chunk, records iter.Seq[*Record], next func(after time.Time) (time.Time, bool)) []Chunk {
	f := folder{uid: uid, next: next}
	if newest != nil {
		f.chunks = append(f.chunks, newest.clone())
		if newest.UID != uid {
			f.chunks[0] = Chunk{UID: uid} // nothing about another task is of use
		}

		f.measure()
	}

	// A late result may have been written before the final record of its run.
	early := map[string]bool{}
	for r := range records {
		if !r.Late {
			f.add(r)
		}
		if (r.Late || early[r.Run.ID]) && !f.markLate(r.Run.ID) {
			early[r.Run.ID] = true
		}
	}

	return f.chunks
}

// folder is the state of a Fold.
type folder struct {
	uid    string
	next   func(after time.Time) (time.Time, bool)
	chunks []Chunk // all but the last are full
	size   int     // of the last chunk in JSON
	buffer []byte  // the last chunk in JSON when it was measured last
}

// newest returns the chunk to which records are added.
func (f *folder) newest() *Chunk { return &f.chunks[len(f.chunks)-1] }

// add adds a record that is not a late result.
func (f *folder) add(r *Record) {
	tick, readable := timeOf(r)
	c := f.chunkFor(tick)

	// A span that counts one more tick is the usual case. Its change of size is known without the other elements.
	if readable && r.Run.State == task.Succeeded && r.Run.HasTick() {
		if before, s := f.addSuccess(c, c.offset(tick), &r.Run); s != nil {
			f.size += s.size() - before
			return
		}

		f.measure()

		return
	}

	switch e := c.exceptionOf(tick, &r.Run); {
	case !readable || !c.reaches(e.First) || !c.reaches(e.Last):
		c.addUnreadable(tick)
	case !r.Run.HasTick():
		c.addRequested(e)
	default:
		c.addException(e)
	}

	f.measure()
}

// addUnreadable counts a record that cannot be read. The ledger does not have its tick.
func (c *Chunk) addUnreadable(tick time.Time) {
	c.Unreadable++
	if isTickYear(tick.Year()) && tick.After(c.Gone.Time) {
		c.Gone = task.At(tick)
	}
}

// SetGone records in the last of the chunks that ticks up to gone, or up to the latest time in any of the chunks, are gone. A zero
// time means none.
func SetGone(chunks []Chunk, gone time.Time) {
	for i := range chunks {
		if chunks[i].Gone.After(gone) {
			gone = chunks[i].Gone.Time
		}

		chunks[i].Gone, chunks[i].Uncounted = task.Time{}, false
	}

	if !gone.IsZero() {
		chunks[len(chunks)-1].Gone = task.At(gone)
	}
}

// measure computes the size of the newest chunk.
func (f *folder) measure() {
	f.buffer = f.newest().appendJSON(f.buffer[:0])
	f.size = len(f.buffer)
}

// timeOf returns the time of a record's tick or request, which is zero if it is not known. It returns false if the record
// cannot be read, or contains what no version writes.
func timeOf(r *Record) (at time.Time, readable bool) {
	if r.Broken {
		at, _ = task.TimeOfRunID(r.Run.ID)
		return at, false
	}

	at = task.At(r.Run.ScheduledTime.Time).Time
	if !isTickYear(at.Year()) {
		return time.Time{}, false
	}

	if stateLetters[r.Run.State] == "" {
		return at, false
	}

	// A range has at most one tick in a millisecond.
	isRange := r.Run.Count > 1
	if isRange && (r.Run.State == task.Succeeded || r.Run.Count > maxCount || r.Run.Last.Sub(at).Milliseconds() < r.Run.Count-1) {
		return at, false
	}

	return at, true
}

// chunkFor returns the chunk to which a record with this time is added. It begins a new one if there is none, or if the
// newest is full.
func (f *folder) chunkFor(at time.Time) *Chunk {
	if len(f.chunks) == 0 || f.newest().isFull(f.size) {
		f.chunks = append(f.chunks, Chunk{UID: f.uid})
	}

	// A chunk that began with a record without a time has no hour yet, and no offsets either.
	c := f.newest()
	if c.From.IsZero() && !at.IsZero() {
		c.From = task.At(at.UTC().Truncate(time.Hour))
	}

	return c
}

// isFull reports whether a chunk of this size takes no more records.
func (c *Chunk) isFull(size int) bool {
	if size < ChunkSize || size >= 2*ChunkSize {
		return size >= ChunkSize
	}

	first, last := c.bounds()

	return last.Sub(first) >= 24*time.Hour
}

// exceptionOf returns the exception that describes a run which belongs to c.
func (c *Chunk) exceptionOf(at time.Time, r *task.Run) Exception {
	e := Exception{
		First: c.offset(at), Count: 1, State: r.State, Reason: ReasonOf(r), Attempt: max(r.Attempt, 0), Node: shortText(r.Node, task.MaxName),
	}

	if r.Count > 1 {
		e.Count, e.Last = r.Count, c.offset(r.Last.Time)
	}

	// A run's id begins with that of a scheduled run. If it does not, the id is not known later.
	id := task.RunID(at, c.UID)
	e.Suffix = unknownSuffix
	if len(r.ID) >= len(id) && r.ID[:len(id)] == id {
		if suffix := r.ID[len(id):]; shortText(suffix, maxSuffix) == suffix {
			e.Suffix = suffix
		}
	}

	return e
}

const (
	// unknownSuffix replaces the suffix of an id that is not that of a run of the task.
	unknownSuffix = "?"

	maxSuffix = 32 // bytes of Exception.Suffix
	maxReason = 40 // bytes of Exception.Reason
)

// ReasonOf returns why a run ended as it did: with its exit code, signal or status, where that is the reason. It is the reason
// in a task.LedgerLine.
func ReasonOf(r *task.Run) string {
	switch {
	case r.Reason == task.ReasonExit && r.ExitCode != nil:
		return "exit " + strconv.Itoa(*r.ExitCode)
	case r.Reason == task.ReasonSignal && r.Signal != "":
		return shortText("signal "+r.Signal, maxReason)
	case r.Reason == task.ReasonAnswer && r.HTTPStatus > 0:
		return "HTTP " + strconv.Itoa(r.HTTPStatus)
	}

	return shortText(r.Reason, maxReason)
}

// shortText returns a text of at most max bytes that JSON contains as it is. What Carillon writes has no other characters.
func shortText(s string, max int) string {
	if len(s) <= max && isPlain(s) {
		return s
	}

	b := []byte(s)
	b = b[:min(len(b), max)]
	for i, c := range b {
		if !isPlainByte(c) {
			b[i] = '_'
		}
	}

	return string(b)
}

// addSuccess counts a tick that succeeded. If only one span has changed, and still has its place, it returns the span and the
// size that it had before.
func (f *folder) addSuccess(c *Chunk, tick Offset, r *task.Run) (sizeBefore int, changed *Span) {
	if !c.reaches(tick) {
		c.addUnreadable(c.time(tick))
		return 0, nil
	}

	one := Span{First: tick, Last: tick, Count: 1, DurationMS: durationOf(r), MaxLatenessMS: latenessOf(r)}
	one.MaxDurationMS = one.DurationMS

	// Spans are in the order of their ticks. The tick usually follows the last one.
	right := len(c.Spans)
	for right > 0 && c.Spans[right-1].First > tick {
		right--
	}

	left := right - 1
	if left >= 0 && tick <= c.Spans[left].Last {
		sizeBefore = c.Spans[left].size()
		c.Spans[left].merge(one)

		return sizeBefore, &c.Spans[left]
	}

	joinsLeft := left >= 0 && c.Spans[left].fits(one) && f.continues(c, c.Spans[left].Last, tick)
	joinsRight := right < len(c.Spans) && c.Spans[right].fits(one) && f.continues(c, tick, c.Spans[right].First)

	switch {
	case joinsLeft:
		sizeBefore = c.Spans[left].size()
		c.Spans[left].merge(one)
		if !joinsRight || !c.Spans[left].fits(c.Spans[right]) {
			return sizeBefore, &c.Spans[left]
		}

		c.Spans[left].merge(c.Spans[right])
		c.Spans = slices.Delete(c.Spans, right, right+1)
	case joinsRight:
		c.Spans[right].merge(one)
	default:
		c.Spans = slices.Insert(c.Spans, right, one)
	}

	return 0, nil
}

// durationOf returns how long a run took, in milliseconds; 0 if it is not known.
func durationOf(r *task.Run) int64 {
	if r.StartedAt.IsZero() || r.EndedAt.IsZero() {
		return 0
	}

	return min(max(r.EndedAt.Sub(r.StartedAt.Time).Milliseconds(), 0), maxDurationMS)
}

// latenessOf returns how late a run started, in milliseconds; 0 if it is not known.
func latenessOf(r *task.Run) int64 {
	if r.LatenessMS == nil {
		return 0
	}

	return min(max(*r.LatenessMS, 0), maxDurationMS)
}

// fits reports whether s may become one span with t.
func (s *Span) fits(t Span) bool {
	length := max(s.Last, t.Last) - min(s.First, t.First)

	return length < spanTime || length < longSpanTime && s.Count+t.Count <= longSpanSize
}

// merge adds t to s.
func (s *Span) merge(t Span) {
	s.First, s.Last = min(s.First, t.First), max(s.Last, t.Last)
	s.Count += t.Count
	s.DurationMS = min(s.DurationMS+t.DurationMS, maxTotalMS)
	s.MaxDurationMS = max(s.MaxDurationMS, t.MaxDurationMS)
	s.MaxLatenessMS = max(s.MaxLatenessMS, t.MaxLatenessMS)
}

// continues reports whether every tick of the schedule between two ticks is known to the chunk: as an exception, or perhaps
// as one of those that an hour only counts. A span that has only such ticks inside can be counted later, so that all its
// ticks are known. If it is wrong, more ticks than necessary are uncertain, but none is wrong.
func (f *folder) continues(c *Chunk, after, before Offset) bool {
	for range maxWalk {
		at, ok := time.Time{}, false
		if f.next != nil {
			at, ok = f.next(c.time(after))
		}
		if !ok {
			return true // the ticks cannot be computed
		}

		tick := c.offset(at)
		if tick >= before || tick <= after {
			return true
		}

		last, known := c.lastExceptionAt(tick)
		if !known {
			return false
		}

		after = last
	}

	return false
}

// lastExceptionAt returns the last tick of the exception to which a tick belongs, or may belong. It returns false if there
// is none.
func (c *Chunk) lastExceptionAt(tick Offset) (Offset, bool) {
	for i := range slices.Backward(c.Exceptions) {
		if e := &c.Exceptions[i]; e.First <= tick && tick <= e.last() {
			return e.last(), true
		}
	}

	for i := range slices.Backward(c.Hours) {
		h := &c.Hours[i]
		within := tick - h.Start
		if within < 0 || within >= hourTime {
			continue
		}

		if slices.Contains(h.Named, within) || h.hidden() > 0 && h.HiddenFirst <= within && within <= h.HiddenLast {
			return tick, true
		}
	}

	return 0, false
}

// addRequested adds a run that somebody requested, or that another task has started, or a range of ends of that task that started
// none.
func (c *Chunk) addRequested(e Exception) {
	if len(c.Requested) < maxRequested {
		c.Requested = append(c.Requested, e)
		return
	}

	if c.RequestedMore == nil {
		c.RequestedMore = map[string]int64{}
	}
	c.RequestedMore[e.cause()] += e.Count
}

// addException adds a tick that did not succeed, or a range of such ticks.
func (c *Chunk) addException(e Exception) {
	start := hourOf(e.First)
	if hourOf(e.last()) != start {
		c.Exceptions = append(c.Exceptions, e) // it belongs to no single hour
		return
	}

	if i := slices.IndexFunc(c.Hours, func(h Hour) bool { return h.Start == start }); i >= 0 {
		c.Hours[i].add(e)
		return
	}

	inHour := 0
	for i := range c.Exceptions {
		if c.isInHour(&c.Exceptions[i], start) {
			inHour++
		}
	}

	if inHour < maxOwnEntries {
		c.Exceptions = append(c.Exceptions, e)
		return
	}

	// The hour gets a line for all but the first exception that was folded.
	h := Hour{Start: start, Causes: map[string]int64{}, Named: []Offset{}}
	first := true
	c.Exceptions = slices.DeleteFunc(c.Exceptions, func(old Exception) bool {
		if !c.isInHour(&old, start) {
			return false
		}
		if first {
			first = false
			return false
		}

		h.add(old)

		return true
	})

	h.add(e)
	c.Hours = append(c.Hours, h)
}

// hourOf returns the beginning of the hour that contains a time. From is the beginning of an hour in UTC.
func hourOf(o Offset) Offset {
	start := o / hourTime * hourTime
	if start > o {
		start -= hourTime
	}

	return start
}

// isInHour reports whether all ticks of e are in the hour that begins at start.
func (c *Chunk) isInHour(e *Exception, start Offset) bool {
	return e.First >= start && e.last() < start+hourTime
}

// add adds an exception whose ticks are all in the hour. It names the earliest ticks, so that those it only counts are
// close together.
func (h *Hour) add(e Exception) {
	first, last := e.First-h.Start, e.last()-h.Start
	if h.hidden() == 0 {
		h.HiddenFirst, h.HiddenLast = hourTime, -1 // no tick
	}

	h.Count += e.Count
	if h.Causes == nil {
		h.Causes = map[string]int64{}
	}
	h.Causes[e.cause()] += e.Count

	// Of a range, only the first tick can be named.
	if last > first {
		h.hide(first, last)
	}

	i, _ := slices.BinarySearch(h.Named, first)
	h.Named = slices.Insert(h.Named, i, first)
	if len(h.Named) > maxNamed {
		dropped := h.Named[maxNamed]
		h.Named = h.Named[:maxNamed]
		h.hide(dropped, dropped)
	}

	if h.hidden() == 0 {
		h.HiddenFirst, h.HiddenLast = 0, 0
	}
}

// hide extends the part of the hour in which the ticks are that it does not name.
func (h *Hour) hide(first, last Offset) {
	h.HiddenFirst, h.HiddenLast = min(h.HiddenFirst, first), max(h.HiddenLast, last)
}

// markLate marks the entry of a run that has a late result. It returns false if there is no such entry.
func (f *folder) markLate(id string) bool {
	for i := range slices.Backward(f.chunks) {
		c := &f.chunks[i]
		for _, entries := range [][]Exception{c.Exceptions, c.Requested} {
			for j := range entries {
				if e := &entries[j]; e.Count == 1 && c.runID(e) == id {
					e.Late = true
					f.measure()

					return true
				}
			}
		}
	}

	return false
}

// runID returns the id of the run of an entry; "" if it is not known, or if the entry is a range of ticks.
func (c *Chunk) runID(e *Exception) string {
	if e.Count > 1 || e.Suffix == unknownSuffix {
		return ""
	}

	return task.RunID(c.time(e.First), c.UID) + e.Suffix
}

// idTime is the format of the id of a chunk, which is that of the time in the ids of runs.
const idTime = "20060102T150405.000Z"

// ID returns the last part of a new chunk's key: the time of its earliest tick. It sorts after the id of the chunk before
// it, previous, which is "" if there is none.
func (c *Chunk) ID(previous string) string {
	first, _ := c.bounds()
	id := first.UTC().Format(idTime)
	if id > previous {
		return id
	}

	// The tick is older than those of the chunk before. An id that no version has written gets a time behind it.
	prefix, at := previous+"-", first
	if n := len(previous) - len(idTime); n >= 0 {
		if last, err := time.Parse(idTime, previous[n:]); err == nil {
			prefix, at = previous[:n], last.Add(time.Millisecond)
		}
	}

	if id = prefix + at.UTC().Format(idTime); id > previous {
		return id
	}

	// After the year 9999, times do not sort as texts any more.
	return previous + "-" + first.UTC().Format(idTime)
}

// LastTick returns the latest tick that the chunk covers, and From if it covers none. When it is too old, the chunk can
// go.
func (c *Chunk) LastTick() time.Time {
	_, last := c.bounds()

	return last
}

// bounds returns the earliest and the latest time in the chunk. Both are From if there is none.
func (c *Chunk) bounds() (first, last time.Time) {
	var low, high Offset
	known := false
	include := func(from, to Offset) {
		if !known {
			low, high, known = from, to, true
		}
		low, high = min(low, from), max(high, to)
	}

	for i := range c.Spans {
		include(c.Spans[i].First, c.Spans[i].Last)
	}

	for i := range c.Exceptions {
		include(c.Exceptions[i].First, c.Exceptions[i].last())
	}

	for i := range c.Requested {
		include(c.Requested[i].First, c.Requested[i].last())
	}

	for i := range c.Hours {
		h := &c.Hours[i]
		if len(h.Named) > 0 {
			include(h.Start+h.Named[0], h.Start+h.Named[len(h.Named)-1])
		}
		if h.hidden() > 0 {
			include(h.Start+h.HiddenFirst, h.Start+h.HiddenLast)
		}
	}

	return c.time(low), c.time(high)
}
