package record

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-faster/jx"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Held is an attempt in an inbox, with the revisions that a write compares.
type Held struct {
	task.Assigned
	Mod    int64 // mod revision
	Create int64 // create revision, which is the fencing token (G11)
}

// Ref returns the task of the attempt.
func (h Held) Ref() Ref { return Ref{Namespace: h.Namespace, Name: h.Task, Shard: h.Shard} }

// DecodeHeld decodes an inbox record.
func DecodeHeld(keys Keys, e *mvccpb.KeyValue) (h Held, err error) {
	err = DecodeHeldInto(keys, string(e.Key), e, &h)
	return h, err
}

// DecodeHeldInto is like DecodeHeld for a caller that has the key as a string, and memory for
// the result.
func DecodeHeldInto(keys Keys, key string, e *mvccpb.KeyValue, h *Held) error {
	k, ok := keys.ParseRun(key)
	if !ok {
		return fmt.Errorf("%w: %q is not the key of a run", task.ErrInvalid, key)
	}

	h.Mod, h.Create = e.ModRevision, e.CreateRevision
	return decodeHeld(k, e.CreateRevision, e.Value, &h.Assigned)
}

// DecodeAllHeld decodes inbox records. It omits those that cannot be read.
func DecodeAllHeld(keys Keys, all []*mvccpb.KeyValue) []Held {
	var list []Held
	for _, e := range all {
		if h, err := DecodeHeld(keys, e); err == nil {
			list = append(list, h)
		}
	}

	return list
}

// DecodeRun decodes a record of the queue, the history or the ended parts. It returns false for
// late results and unreadable records.
func DecodeRun(keys Keys, e *mvccpb.KeyValue) (task.Run, bool) {
	k, ok := keys.ParseShard(string(e.Key))
	if !ok || k.Late {
		return task.Run{}, false
	}

	switch k.Kind {
	case KindQueued:
		w, err := DecodeWaiting(k, e.Value)
		return w.Run, err == nil
	case KindEnded, KindPart:
		r, err := DecodeEnded(k, e.Value)
		return r, err == nil
	}

	return task.Run{}, false
}

// NewestRun returns the last of the records that DecodeRun accepts, or nil if there is none.
func NewestRun(keys Keys, all []*mvccpb.KeyValue) *task.Run {
	for _, e := range slices.Backward(all) {
		if run, ok := DecodeRun(keys, e); ok {
			return &run
		}
	}

	return nil
}

// ByTime is a comparison that orders runs from the newest to the oldest.
func ByTime(a, b task.Run) int {
	return cmp.Or(b.ScheduledTime.Compare(a.ScheduledTime.Time), strings.Compare(b.ID, a.ID))
}

// SortRuns returns the runs from the newest to the oldest.
func SortRuns(byID map[string]task.Run) []task.Run {
	runs := make([]task.Run, 0, len(byID))
	for _, r := range byID {
		runs = append(runs, r)
	}

	slices.SortFunc(runs, ByTime)

	return runs
}

// End is how and when a run ended, as far as the owner of a shard keeps it for lists. Times are Unix milliseconds; 0
// means none.
type End struct {
	State          task.State
	Started, Ended int64 // of the last attempt
	LatenessMS     int64 // of the first attempt
	IsRestored     bool  // a restore has lost how it ended
}

// IsFailure reports whether the run counts as a failure of its task, as task.Run.IsFailure.
func (e End) IsFailure() bool {
	return isFailure(e.State) && !e.IsRestored
}

// EndOf returns the end in the record of a run without decoding the rest, and without an allocation. It returns false if
// the record has no state or no end, or cannot be read.
func EndOf(value []byte) (End, bool) {
	e, usual := usualEndOf(value)
	if !usual {
		return unusualEndOf(value)
	}

	return e, e.State != "" && e.Ended != 0
}

// IsDeadFailure reports whether a dead run counts as a failure of its task. A workflow that was cancelled, or a retry of one that did not
// begin, does not: it is dead only so that it can be retried. Neither does a run that a restore has lost. A record that cannot be read
// counts.
func IsDeadFailure(value []byte) bool {
	e, ok := EndOf(value)
	return !ok || e.IsFailure()
}

// isFailure reports whether a run that ends in this state has failed.
func isFailure(s task.State) bool { return s == task.Failed || s == task.TimedOut || s == task.Lost }

// usualEndOf is EndOf for a record that begins as a writer begins nearly all of them: without spaces, escapes, null and
// nested values up to lateness_ms. It returns false for any other. It does not look at what follows, such as the output.
func usualEndOf(value []byte) (e End, usual bool) {
	if len(value) == 0 || value[0] != '{' {
		return e, false
	}

	for rest := value[1:]; ; {
		// A name and its value, which is a text or a number.
		name, rest2, ok := cutText(rest)
		if !ok || len(rest2) < 2 || rest2[0] != ':' {
			return e, false
		}

		rest = rest2[1:]

		if first := rest[0]; first != '"' {
			number, after, ok := cutNumber(rest)
			if !ok {
				return e, false
			}

			if string(name) == "lateness_ms" {
				e.LatenessMS = number
				return e, true
			}

			rest = after
		} else {
			text, after, ok := cutText(rest)
			if !ok || !e.takeText(name, text) {
				return e, false
			}
			rest = after
		}

		switch {
		case len(rest) > 0 && rest[0] == ',':
			rest = rest[1:]
		case len(rest) == 1 && rest[0] == '}':
			return e, true
		default:
			return e, false
		}
	}
}

// knownStates saves the allocation of a state's text.
var knownStates = task.States()

// takeText sets a field from its text. It returns false if that cannot be read.
func (e *End) takeText(name, text []byte) bool {
	var at *int64

	switch string(name) {
	case "state":
		for _, known := range knownStates {
			if string(text) == string(known) {
				e.State = known
			}
		}
		return e.State != ""
	case "reason":
		e.IsRestored = string(text) == task.ReasonRestored
		return true
	case "started_at":
		at = &e.Started
	case "ended_at":
		at = &e.Ended
	default:
		return true
	}

	var t task.Time
	if t.UnmarshalText(text) != nil {
		return false
	}

	*at = t.UnixMilli()

	return true
}

// cutText cuts a text without escapes off JSON. It returns false if there is none.
func cutText(b []byte) (text, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '"' {
		return nil, nil, false
	}

	n := bytes.IndexByte(b[1:], '"')
	if n < 0 || bytes.IndexByte(b[1:1+n], '\\') >= 0 {
		return nil, nil, false
	}

	return b[1 : 1+n], b[2+n:], true
}

// cutNumber cuts a whole number off JSON. It returns false if there is none, or if it has more than 18 digits.
func cutNumber(b []byte) (number int64, rest []byte, ok bool) {
	i, negative := 0, false
	if len(b) > 0 && b[0] == '-' {
		i, negative = 1, true
	}

	digits := i
	for ; i < len(b) && b[i]-'0' <= 9; i++ {
		number = number*10 + int64(b[i]-'0')
	}

	if negative {
		number = -number
	}

	return number, b[i:], i > digits && i-digits <= 18
}

// unusualEndOf is EndOf for any layout.
func unusualEndOf(value []byte) (e End, ok bool) {
	d := jx.GetDecoder()
	defer jx.PutDecoder(d)

	d.ResetBytes(value)
	r := reader{d: d}
	fields, err := d.ObjIter()
	if err != nil {
		return End{}, false
	}

	for r.err == nil && fields.Next() {
		if d.Next() == jx.Null {
			r.err = d.Null()
			continue
		}

		switch string(fields.Key()) {
		case "state":
			readWord(&r, &e.State)
		case "reason":
			var reason string
			r.readString(&reason)
			e.IsRestored = reason == task.ReasonRestored
		case "started_at":
			r.readMillis(&e.Started)
		case "ended_at":
			r.readMillis(&e.Ended)
		case "lateness_ms":
			r.readInt64(&e.LatenessMS)
		default:
			r.skipValue()
		}
	}

	return e, r.err == nil && fields.Err() == nil && e.State != "" && e.Ended != 0
}

// readMillis reads a time as Unix milliseconds.
func (r *reader) readMillis(v *int64) {
	var b []byte
	if b, r.err = r.d.StrBytes(); r.err != nil {
		return
	}

	var at task.Time
	if r.err = at.UnmarshalText(b); r.err == nil {
		*v = at.UnixMilli()
	}
}

// Dead is a dead run: its last attempt failed, timed out or was lost, and no attempt is left.
// It waits for a person, who repeats or dismisses it.
type Dead struct {
	task.Waiting
	Mod int64 // mod revision of the record
}

// deadTail is how much of the output is kept in the record of a dead run, in bytes. The history
// and the node have more.
const deadTail = 256

// NeedsDeadLetter reports whether a run that ended with end, and has no further attempt,
// becomes a dead run. A run that somebody requested to end does not, because nobody waits for
// it. A part does not either; the run to which it belongs does.
func NeedsDeadLetter(h Held, end task.Run) bool {
	return !h.CancelRequested && !task.IsPart(h.ID) && isFailure(end.State)
}

// EncodeDead encodes the record of a dead run. It keeps the last deadTail bytes of the output.
func EncodeDead(h Held, end task.Run) []byte {
	if n := len(end.OutputTail); n > deadTail {
		end.OutputTail = strings.ToValidUTF8(end.OutputTail[n-deadTail:], "")
	}
	return EncodeWaiting(task.Waiting{Run: end, Env: h.Env})
}

// DecodeDead decodes the record of a dead run. It returns false if the key is not that of a
// dead run, or the record cannot be read.
func DecodeDead(keys Keys, e *mvccpb.KeyValue) (Dead, bool) {
	k, ok := keys.ParseShard(string(e.Key))
	if !ok || k.Kind != KindDead {
		return Dead{}, false
	}

	w, err := DecodeWaiting(k, e.Value)
	return Dead{Waiting: w, Mod: e.ModRevision}, err == nil
}

// Idempotency is the record of a request that has queued a run or created a task, and must not do so again. Its key is derived
// from the idempotency key of the request, so that every copy of the request finds it.
type Idempotency struct {
	Run     string    `json:"run,omitempty"` // the id of the run. It begins with the time at which the request was served
	UID     string    `json:"uid,omitempty"` // of the task that the request has created
	At      task.Time `json:"at,omitzero"`   // when it has created the task
	Request string    `json:"request"`       // a digest of what was requested
}

// ServedAt returns when the request was served, or false if the record does not say so.
func (i Idempotency) ServedAt() (time.Time, bool) {
	if i.Run != "" {
		return task.TimeOfRunID(i.Run)
	}
	return i.At.Time, !i.At.IsZero()
}
