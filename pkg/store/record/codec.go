package record

import (
	"encoding/json"
	"fmt"

	"github.com/carillonhq/carillon/pkg/task"
)

// Decode reads a record that is plain JSON. The error wraps task.ErrInvalid.
func Decode[T any](b []byte) (T, error) {
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		return v, unreadableError(err)
	}
	return v, nil
}

func unreadableError(err error) error {
	return fmt.Errorf("%w: unreadable record: %v", task.ErrInvalid, err)
}

// withKeyFields is r with what its key says.
func withKeyFields(r task.Run, ref Ref, id string) task.Run {
	r.ID, r.Namespace, r.Task, r.Shard = id, ref.Namespace, ref.Name, ref.Shard
	return r
}

// DecodeEnded reads a record of history.
func DecodeEnded(k ShardKey, value []byte) (task.Run, error) {
	r, err := DecodeRunValue(value)
	return withKeyFields(r, k.Ref, k.Run), err
}

// DecodeWaiting reads a record of the queue.
func DecodeWaiting(k ShardKey, value []byte) (task.Waiting, error) {
	w, err := DecodeWaitingValue(value)
	w.Run = withKeyFields(w.Run, k.Ref, k.Run)
	return w, err
}

// DecodeAssigned reads a record of an inbox. created is the key's create
// revision: the fencing token.
func DecodeAssigned(k RunKey, created int64, value []byte) (a task.Assigned, err error) {
	err = decodeHeld(k, created, value, &a)
	return a, err
}

func decodeHeld(k RunKey, created int64, value []byte, a *task.Assigned) error {
	err := DecodeAssignedValue(value, a)
	a.ID, a.Namespace, a.Task, a.Shard = k.Run, k.Ref.Namespace, k.Ref.Name, k.Ref.Shard
	a.Node, a.Token = k.Node, created

	return err
}

// DecodeEntry reads an entry.
func DecodeEntry(value []byte) (task.Entry, error) { return Decode[task.Entry](value) }

// DecodeTask reads a spec. modRevision is its key's.
func DecodeTask(value []byte, modRevision int64) (task.Task, error) {
	t, err := Decode[task.Task](value)
	t.Revision = modRevision
	return t, err
}

// Watermark says that all ticks of a shard up to (Time, Last) are decided.
type Watermark struct {
	Time task.Time `json:"time"`
	// Last is the last task, as namespace/name, that was decided at Time; ""
	// means all of them.
	Last string `json:"last,omitempty"`
	// Seen: every entry created at a revision up to here is covered.
	Seen int64 `json:"seen"`
	// Nonce belongs to one content of one commit: it settles whose write is there.
	Nonce string `json:"nonce"`
	// Unknown are fields that this version does not know; they stay.
	Unknown task.Fields `json:"-"`
}

// Decided reports whether the watermark covers a tick of a covered task.
func (w Watermark) Decided(tick task.Time, name string) bool {
	if !tick.Equal(w.Time.Time) {
		return tick.Before(w.Time.Time)
	}
	return w.Last == "" || name <= w.Last
}

// DecodeWatermark reads a watermark. One without a time or a nonce is none, even
// if it is JSON: taken at its word, it would have all ticks decided again.
func DecodeWatermark(value []byte) (Watermark, error) {
	var w Watermark
	err := eachField(value, func(r *reader, name []byte) {
		switch string(name) {
		case "time":
			r.readText(&w.Time)
		case "last":
			r.readString(&w.Last)
		case "seen":
			r.readInt64(&w.Seen)
		case "nonce":
			r.readString(&w.Nonce)
		default:
			r.keepUnknownField(&w.Unknown, name)
		}
	})

	if err == nil && (w.Time.IsZero() || w.Nonce == "" || w.Seen < 0) {
		err = fmt.Errorf("%w: unreadable record: a watermark has a time and a nonce", task.ErrInvalid)
	}

	return w, err
}
