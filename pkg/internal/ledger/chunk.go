package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// ChunkSize is how many bytes a chunk of a day or more has before the next one begins. A chunk of a shorter time may have
	// twice as many. Tasks that run often are folded many runs at a time, so that writing a larger chunk costs little, and
	// the same hour is in fewer chunks.
	ChunkSize = 512

	// MaxChunks is how many chunks a task keeps: some 96 KiB. Beyond that the oldest are deleted. It suffices for thirty days of
	// a task that ticks every second and fails in a tenth of its runs, and for task.MaxLedger if most days need no more than ChunkSize.
	MaxChunks = 96

	// maxChunkBytes is the largest chunk that is read. What Fold writes is much smaller. All chunks of a task are read for each
	// question, so a larger one that a person or another program has written would make every answer slow.
	maxChunkBytes = 16 * 1024
)

// Chunk is one record of a task's ledger. All offsets count from From, in milliseconds; in JSON they are seconds.
type Chunk struct {
	UID           string           `json:"uid"`
	From          task.Time        `json:"from"` // the hour of the record with which the chunk began
	Spans         []Span           `json:"ok,omitempty"`
	Exceptions    []Exception      `json:"not,omitempty"`
	Hours         []Hour           `json:"hours,omitempty"`
	Requested     []Exception      `json:"manual,omitempty"`
	RequestedMore map[string]int64 `json:"manual_more,omitempty"` // further requested runs, by cause: see Exception.cause
	Unreadable    int64            `json:"unreadable,omitempty"`  // records that could not be read when they were deleted

	// Ticks up to Gone may be neither in the ledger nor in the history: older chunks were deleted, or records without being
	// counted. The newest chunk has it for the whole ledger. Zero: nothing is gone.
	Gone task.Time `json:"gone,omitzero"`
	// Uncounted means that records are deleted without being counted, because the task has no ledger. The next fold clears it
	// and sets Gone.
	Uncounted bool `json:"uncounted,omitempty"`
}

// NewUncounted returns a chunk without ticks for a task that has no ledger from a time on.
func NewUncounted(uid string, now time.Time) Chunk {
	return Chunk{UID: uid, From: task.At(now.UTC().Truncate(time.Hour)), Uncounted: true}
}

// IsEmpty reports whether the chunk covers no ticks or runs.
func (c *Chunk) IsEmpty() bool {
	return len(c.Spans)+len(c.Exceptions)+len(c.Hours)+len(c.Requested)+len(c.RequestedMore) == 0 && c.Unreadable == 0
}

// Decode reads a chunk. whole is false if it contains fields or elements that this version does not know. Such a chunk is
// read as far as it is known, and never changed.
func Decode(value []byte) (c Chunk, whole bool, err error) {
	if len(value) > maxChunkBytes {
		return Chunk{}, false, fmt.Errorf("%w: unreadable chunk of a ledger: %d bytes are more than %d", task.ErrInvalid, len(value), maxChunkBytes)
	}

	if c, whole = decodeOwn(value); whole {
		return c, true, nil
	}

	c = Chunk{}
	err = json.Unmarshal(value, &c)
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return Chunk{}, false, fmt.Errorf("%w: unreadable chunk of a ledger: %v", task.ErrInvalid, err)
	}

	return c, string(c.appendJSON(nil)) == string(value), nil
}

// check checks what does not depend on a single element of a chunk that was read.
func (c *Chunk) check() error {
	hasTimes := len(c.Spans)+len(c.Exceptions)+len(c.Hours)+len(c.Requested) > 0
	switch {
	case c.From.IsZero() && hasTimes:
		return errors.New("from: must be a time")
	case !c.From.IsZero() && (!isTickYear(c.From.UTC().Year()) || !c.From.Truncate(time.Hour).Equal(c.From.Time)):
		return errors.New("from: must be the beginning of an hour in which a task can have ticks")
	case c.Unreadable < 0 || c.Unreadable > maxCount:
		return errors.New("unreadable: is out of range")
	}

	for _, n := range c.RequestedMore {
		if n < 1 || n > maxCount {
			return errors.New("manual_more: a number of runs is out of range")
		}
	}

	return nil
}

// isTickYear reports whether a ledger can contain ticks of a year. With all offsets, times stay those that RFC 3339 can write.
func isTickYear(year int) bool { return 1970 <= year && year < 2200 }

// Offset is a time in milliseconds since Chunk.From. It may be negative: a run that took long ends after those of later
// ticks.
type Offset int64

// Span is a number of successful ticks. In JSON it is an array of its fields, in this order.
type Span struct {
	First, Last   Offset
	Count         int64
	DurationMS    int64 // the sum of the durations
	MaxDurationMS int64
	MaxLatenessMS int64
}

// Exception is a tick that did not succeed, a range of skipped or missed ticks, or a requested run. In JSON it is an array
// of its fields, in this order; the last two are omitted if they are empty.
type Exception struct {
	First   Offset
	Count   int64 // more than 1: a range of ticks
	State   task.State
	Reason  string // a reason; "exit 1", "signal KILL" or "HTTP 503" if that is known
	Attempt int
	Suffix  string // of the run's id, after that of a scheduled run of the same time; or unknownSuffix
	Node    string
	Last    Offset // of a range; otherwise 0
	Late    bool   // a late result came
}

// Hour counts the ticks of an hour that did not succeed and are not among the exceptions.
//
// In JSON it is an array of its fields, in this order. Start is a number of hours. Each of the offsets counts from the one
// before it, so that they are short. The last two are omitted if all ticks are named.
type Hour struct {
	Start  Offset
	Count  int64
	Causes map[string]int64 // by state and reason: see Exception.cause
	Named  []Offset         // the earliest of these ticks, and of ranges the first ones, since Start; sorted, at most maxNamed

	// The other ticks lie between these two, inclusive. They also count since Start.
	HiddenFirst, HiddenLast Offset
}

// hidden returns how many ticks the hour counts and does not name.
func (h *Hour) hidden() int64 { return h.Count - int64(len(h.Named)) }

// maxNamed is how many ticks an Hour names.
const maxNamed = 12

// stateLetters are the states of exceptions as chunks contain them.
var stateLetters = map[task.State]string{
	task.Succeeded: "o", task.Failed: "f", task.TimedOut: "t", task.Cancelled: "c", task.Lost: "l", task.Skipped: "s", task.Missed: "m",
}

// statesByLetter is the inverse of stateLetters.
var statesByLetter = func() map[string]task.State {
	m := map[string]task.State{}
	for state, letter := range stateLetters {
		m[letter] = state
	}

	return m
}()

// last returns the last tick of an exception, which is also the first one if it is not a range.
func (e *Exception) last() Offset {
	if e.Count > 1 {
		return e.Last
	}

	return e.First
}

// clone returns a copy that shares nothing with c.
func (c *Chunk) clone() Chunk {
	d := *c
	d.Spans, d.Exceptions, d.Requested, d.Hours = slices.Clone(c.Spans), slices.Clone(c.Exceptions), slices.Clone(c.Requested), slices.Clone(c.Hours)
	d.RequestedMore = maps.Clone(c.RequestedMore)
	for i := range d.Hours {
		d.Hours[i].Causes, d.Hours[i].Named = maps.Clone(d.Hours[i].Causes), slices.Clone(d.Hours[i].Named)
	}

	return d
}

// time returns the time of an offset.
func (c *Chunk) time(o Offset) time.Time { return c.From.Add(time.Duration(o) * time.Millisecond) }

// offset returns the offset of a time, in whole milliseconds.
func (c *Chunk) offset(t time.Time) Offset { return Offset(t.Sub(c.From.Time).Milliseconds()) }

// usualReasons are the reasons that chunks omit, because runs that end in the state have hardly any other.
var usualReasons = map[task.State]string{task.TimedOut: task.ReasonTimeout, task.Lost: task.ReasonNodeLost}

// writtenReason returns the reason as chunks contain it.
func (e *Exception) writtenReason() string {
	if e.Reason == usualReasons[e.State] {
		return ""
	}

	return e.Reason
}

// cause returns the state and the reason as a chunk counts them: "f:exit 1", or "t".
func (e *Exception) cause() string {
	letter := stateLetters[e.State]
	if reason := e.writtenReason(); reason != "" {
		return letter + ":" + reason
	}

	return letter
}

// causeText returns a cause for people: "failed: exit 1", or "timed_out".
func causeText(cause string) string {
	letter, reason, more := strings.Cut(cause, ":")
	state := string(statesByLetter[letter])
	if state == "" {
		state = letter
	}

	if more {
		return state + ": " + reason
	}

	return state
}

const (
	// maxOffset is the largest absolute Offset that is read: a hundred years.
	maxOffset = 100 * 366 * 24 * 3600 * 1000

	// Largest numbers: the ticks of an element, the duration of a run, and the sum of all durations of a span. They are
	// beyond what can occur, and sums of them do not overflow.
	maxCount      = 1_000_000_000
	maxDurationMS = 10_000_000_000
	maxTotalMS    = 1_000_000_000_000_000_000
)

// reaches reports whether the chunk can contain a time.
func (c *Chunk) reaches(o Offset) bool { return -maxOffset <= o && o <= maxOffset }

// UnmarshalJSON reads seconds.
func (o *Offset) UnmarshalJSON(b []byte) error {
	seconds, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return fmt.Errorf("offset %s: must be a number of seconds", task.Quote(string(b)))
	}
	if seconds*1000 > maxOffset || seconds*1000 < -maxOffset {
		return fmt.Errorf("offset %s: is more than a hundred years", task.Quote(string(b)))
	}

	if seconds < 0 {
		*o = Offset(seconds*1000 - 0.5)
	} else {
		*o = Offset(seconds*1000 + 0.5)
	}

	return nil
}

// UnmarshalJSON reads an array of the fields.
func (s *Span) UnmarshalJSON(b []byte) error {
	err := unmarshalArray(b, 6, &s.First, &s.Last, &s.Count, &s.DurationMS, &s.MaxDurationMS, &s.MaxLatenessMS)
	if err == nil {
		err = s.check()
	}
	if err != nil {
		return fmt.Errorf("ok: %s: %w", task.Quote(string(b)), err)
	}

	return nil
}

// check checks a span that was read.
func (s *Span) check() error {
	if s.Count < 1 || s.Count > maxCount || s.Last < s.First {
		return errors.New("a span has at least one tick, and does not end before it begins")
	}
	if s.DurationMS < 0 || s.DurationMS > maxTotalMS {
		return errors.New("the sum of its durations is out of range")
	}
	if s.MaxDurationMS < 0 || s.MaxDurationMS > maxDurationMS || s.MaxLatenessMS < 0 || s.MaxLatenessMS > maxDurationMS {
		return errors.New("its longest duration or its lateness is out of range")
	}

	return nil
}

// UnmarshalJSON reads an array of the fields.
func (e *Exception) UnmarshalJSON(b []byte) error {
	var letter, late string
	err := unmarshalArray(b, 7, &e.First, &e.Count, &letter, &e.Reason, &e.Attempt, &e.Suffix, &e.Node, &e.Last, &late)
	if err == nil {
		e.Late = late == "late"
		err = e.complete(letter)
	}
	if err != nil {
		return fmt.Errorf("not: %s: %w", task.Quote(string(b)), err)
	}

	return nil
}

// complete sets the fields that are not read as they are, and checks the exception.
func (e *Exception) complete(letter string) error {
	e.State = statesByLetter[letter]
	if e.State == "" {
		return errors.New("its state is not known")
	}

	if e.Reason == "" {
		e.Reason = usualReasons[e.State]
	}

	if e.Count < 1 || e.Count > maxCount || e.Count > 1 && e.Last <= e.First {
		return errors.New("a range has at least two ticks, and does not end before it begins")
	}
	if e.Count > 1 && int64(e.Last-e.First) < e.Count-1 {
		return errors.New("a range has at most one tick in a millisecond")
	}
	if e.Attempt < 0 {
		return errors.New("the number of its attempt is negative")
	}

	return nil
}

// UnmarshalJSON reads an array: see Hour.
func (h *Hour) UnmarshalJSON(b []byte) error {
	var start int64
	err := unmarshalArray(b, 4, &start, &h.Count, &h.Causes, &h.Named, &h.HiddenFirst, &h.HiddenLast)
	if err == nil {
		err = h.complete(start)
	}
	if err != nil {
		return fmt.Errorf("hours: %s: %w", task.Quote(string(b)), err)
	}

	return nil
}

// complete sets the offsets from the differences that were read, and checks the hour.
func (h *Hour) complete(start int64) error {
	if h.Count < 1 || h.Count > maxCount || h.hidden() < 0 {
		return errors.New("an hour counts at least one tick, and all that it names")
	}

	causes := int64(0)
	for _, n := range h.Causes {
		if n < 1 || n > h.Count {
			return errors.New("a cause counts at least one tick, and not more than its hour")
		}
		causes += n
	}
	if causes != h.Count {
		return errors.New("each tick that an hour counts has one cause")
	}

	if start > maxOffset/hourTime || start < -maxOffset/hourTime {
		return errors.New("its beginning is out of range")
	}

	h.Start = Offset(start) * hourTime
	last := Offset(0)
	for i := range h.Named {
		h.Named[i] += last
		last = h.Named[i]
		if last < 0 || last >= hourTime || i > 0 && last < h.Named[i-1] {
			return errors.New("the ticks that it names must be in the hour, and sorted")
		}
	}

	if h.hidden() > 0 {
		h.HiddenFirst += last
		h.HiddenLast += h.HiddenFirst
	}
	if h.HiddenFirst < 0 || h.HiddenLast < h.HiddenFirst || h.HiddenLast >= hourTime {
		return errors.New("the ticks that it hides must be in the hour")
	}

	return nil
}

// unmarshalArray reads the elements of a JSON array into fields, of which the first required ones must exist. Further
// elements, of a newer version, are ignored.
func unmarshalArray(b []byte, required int, fields ...any) error {
	var elements []json.RawMessage
	if err := json.Unmarshal(b, &elements); err != nil {
		return err
	}
	if len(elements) < required {
		return fmt.Errorf("%s: must have %d elements", task.Quote(string(b)), required)
	}

	for i := range min(len(elements), len(fields)) {
		if err := json.Unmarshal(elements[i], fields[i]); err != nil {
			return err
		}
	}

	return nil
}
