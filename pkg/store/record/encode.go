package record

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-faster/jx"

	"github.com/carillonhq/carillon/pkg/task"
)

// Encode encodes a value with encoding/json. The types of this package and of package task can
// always be encoded, so an error is a bug and causes a panic.
func Encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("record: encode %T: %v", v, err))
	}
	return string(b)
}

// A writer encodes one of the numerous records without reflection, which would cost as much as
// the rest of the work for a tick. codec_generated.go has a method for each struct. A writer
// omits what is the same in nearly every record:
//
//	dispatched_at  if it equals created_at
//	kill_grace     if it is 10s
//	retry          if there is only one attempt, and max_backoff is 5m
//	lost_after     if it is the default
type writer struct {
	out  jx.Writer
	more bool // the object or list is not empty, so a comma must precede the next field or element
}

// usualGrace is the value of a kill_grace that is omitted. It belongs to the format of the
// records, so it must not change together with the default for users.
const usualGrace = task.Duration(10 * time.Second)

// usualMaxBackoff is the max_backoff of a retry that is omitted. It belongs to the format of the records, like usualGrace.
const usualMaxBackoff = task.Duration(5 * time.Minute)

// omitsRetry reports whether the writer omits a retry policy. Without retries, a node needs only max_backoff, which bounds
// how long a run waits for its target.
func omitsRetry(r task.Retry) bool { return r.Attempts <= 1 && r.MaxBackoff == usualMaxBackoff }

// writeComma writes the comma before a field or an element, except before the first one.
func (w *writer) writeComma() {
	if w.more {
		w.out.Comma()
	}

	w.more = true
}

// writeName writes the name of a field. The value must follow.
func (w *writer) writeName(name string) {
	w.writeComma()
	b := append(append(w.out.Buf, '"'), name...) // names of fields need no escapes
	w.out.Buf = append(b, '"', ':')
}

// writeString writes a text. Most need no escapes and are copied.
func (w *writer) writeString(name, v string) {
	w.writeName(name)

	if !isPlainJSON(v) {
		w.out.Str(strings.ToValidUTF8(v, "\ufffd"))
		return
	}

	b := append(append(w.out.Buf, '"'), v...)
	w.out.Buf = append(b, '"')
}

// isPlainJSON reports whether a text needs no escapes in JSON, as nearly all texts in records.
func isPlainJSON(v string) bool {
	for i := range len(v) {
		if c := v[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}

	return true
}

func (w *writer) writeStringIfSet(name, v string) {
	if v != "" {
		w.writeString(name, v)
	}
}

func (w *writer) writeInt64(name string, v int64) {
	w.writeName(name)
	w.out.Int64(v)
}

func (w *writer) writeInt64IfSet(name string, v int64) {
	if v != 0 {
		w.writeInt64(name, v)
	}
}

func (w *writer) writeBoolIfSet(name string, v bool) {
	if v {
		w.writeName(name)
		w.out.True()
	}
}

func (w *writer) writeTime(name string, t task.Time) {
	w.writeName(name)
	b, _ := t.AppendText(append(w.out.Buf, '"')) // never fails
	w.out.Buf = append(b, '"')
}

func (w *writer) writeTimeIfSet(name string, t task.Time) {
	if !t.IsZero() {
		w.writeTime(name, t)
	}
}

func (w *writer) writeDurationIfSet(name string, d task.Duration) {
	if d != 0 {
		w.writeString(name, d.String())
	}
}

// writeAny writes a field that is rare with encoding/json.
func (w *writer) writeAny(name string, v any) { w.writeRaw(name, Encode(v)) }

// writeRaw writes a field whose value is JSON.
func (w *writer) writeRaw(name, json string) {
	w.writeName(name)
	w.out.RawStr(json)
}

// startObject begins a field that is an object. Its fields and endObject must follow.
func (w *writer) startObject(name string) {
	w.writeName(name)
	w.out.ObjStart()
	w.more = false
}

// startList begins a field that is a list of objects. For each of them startElement, its fields and endObject must follow,
// and then endList.
func (w *writer) startList(name string) {
	w.writeName(name)
	w.out.ArrStart()
	w.more = false
}

// startElement begins an object in a list.
func (w *writer) startElement() {
	w.writeComma()
	w.out.ObjStart()
	w.more = false
}

// endObject ends an object. Another field or element of the enclosing value may follow.
func (w *writer) endObject() {
	w.out.ObjEnd()
	w.more = true
}

// endList ends a list. Another field of the enclosing object may follow.
func (w *writer) endList() {
	w.out.ArrEnd()
	w.more = true
}

// writeUnknownFields writes the fields that this version does not know, as they were read.
func (w *writer) writeUnknownFields(f task.Fields) {
	if f != "" {
		w.writeComma()
		w.out.RawStr(string(f))
	}
}

// encodeWith returns the JSON object whose fields fill writes.
func encodeWith(fill func(*writer)) []byte {
	w := writerPool.Get().(*writer)
	defer writerPool.Put(w)

	w.out.Reset()
	w.more = false
	w.startElement()
	fill(w)
	w.endObject()

	return slices.Clone(w.out.Buf)
}

var writerPool = sync.Pool{New: func() any { return new(writer) }}

// wasDispatched reports whether a run has been dispatched: then it has a token.
func wasDispatched(v *task.Run) bool { return v.Token != 0 }

// omitDispatchedAt clears the dispatched_at of a run that was dispatched if it equals created_at. completeRun restores it.
func omitDispatchedAt(v *task.Run) {
	if v.DispatchedAt.Equal(v.CreatedAt.Time) {
		v.DispatchedAt = task.Time{}
	}
}

// EncodeEnded encodes a record of the history or of the ended parts.
func EncodeEnded(v task.Run) []byte {
	if v.State == task.Succeeded || !task.IsPart(v.ID) {
		// No attempt follows, so the checkpoint is not needed. It remains in the record of a dead
		// run, and in that of a failed part, which may be repeated with its run.
		v.Checkpoint = ""
	}

	if wasDispatched(&v) {
		omitDispatchedAt(&v)
	}

	return encodeWith(func(w *writer) {
		w.writeRun(&v)
		w.writeUnknownFields(v.Unknown)
	})
}

// EncodeWaiting encodes a record of the queue.
func EncodeWaiting(v task.Waiting) []byte {
	if wasDispatched(&v.Run) {
		omitDispatchedAt(&v.Run)
	}

	return encodeWith(func(w *writer) {
		w.writeWaiting(&v)
		w.writeUnknownFields(v.Unknown)
	})
}

// EncodeAssigned encodes an inbox record. It omits node and token, which the key contains.
// action is the action of v as JSON.
func EncodeAssigned(v *task.Assigned, action string) []byte {
	a := *v
	a.Node, a.Token = "", 0
	omitDispatchedAt(&a.Run)

	if a.LostAfter == task.DefaultLostAfter {
		a.LostAfter = 0
	}

	return encodeWith(func(w *writer) {
		w.writeAssigned(&a)
		w.writeRaw("action", action)

		if a.KillGrace != usualGrace {
			w.writeString("kill_grace", a.KillGrace.String())
		}

		if !omitsRetry(a.Retry) {
			w.writeAny("retry", a.Retry)
		}

		w.writeUnknownFields(a.Unknown)
	})
}

// WatermarkAfter returns a text that is greater than the records of all watermarks with a time
// up to t, and not greater than any other. It is for comparisons of a watermark's value in
// etcd.
func WatermarkAfter(t task.Time) string {
	text, _ := task.At(t.Add(time.Millisecond)).MarshalText() // never fails
	return `{"time":"` + string(text)
}

// EncodeWatermark encodes a watermark.
func EncodeWatermark(m Watermark) []byte {
	return encodeWith(func(w *writer) {
		w.writeWatermark(&m)
		w.writeUnknownFields(m.Unknown)
	})
}

// EncodeAudit encodes an audit record.
func EncodeAudit(v *task.AuditRecord) string {
	return string(encodeWith(func(w *writer) { w.writeAuditRecord(v) }))
}
