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
// the rest of the work for a tick. The fields have the names and the order of the types in
// package task. A writer omits what the key contains, and what is the same in nearly every
// record:
//
//	dispatched_at  if it equals created_at
//	kill_grace     if it is 10s
//	retry          if there is only one attempt, and max_backoff is 5m
type writer struct {
	w    jx.Writer
	more bool // the object has a field, so a comma must precede the next one
}

// usualGrace is the value of a kill_grace that is omitted. It belongs to the format of the
// records, so it must not change together with the default for users.
const usualGrace = task.Duration(10 * time.Second)

// usualMaxBackoff is the max_backoff of a retry that is omitted. It belongs to the format of the records, like usualGrace.
const usualMaxBackoff = task.Duration(5 * time.Minute)

// omitsRetry reports whether the writer omits a retry policy. Without retries, a node needs only max_backoff, which bounds
// how long a run waits for its target.
func omitsRetry(r task.Retry) bool { return r.Attempts <= 1 && r.MaxBackoff == usualMaxBackoff }

// writeName writes the name of a field. The value must follow.
func (r *writer) writeName(name string) {
	if r.more {
		r.w.Comma()
	}

	r.more = true
	b := append(append(r.w.Buf, '"'), name...) // names of fields need no escapes
	r.w.Buf = append(b, '"', ':')
}

// writeString writes a text. Most need no escapes and are copied.
func (r *writer) writeString(name, v string) {
	r.writeName(name)

	if !isPlainJSON(v) {
		r.w.Str(strings.ToValidUTF8(v, "\ufffd"))
		return
	}

	b := append(append(r.w.Buf, '"'), v...)
	r.w.Buf = append(b, '"')
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

func (r *writer) writeStringIfSet(name, v string) {
	if v != "" {
		r.writeString(name, v)
	}
}

func (r *writer) writeInt64(name string, v int64) {
	r.writeName(name)
	r.w.Int64(v)
}

func (r *writer) writeInt64IfSet(name string, v int64) {
	if v != 0 {
		r.writeInt64(name, v)
	}
}

func (r *writer) writeTrueIfSet(name string, v bool) {
	if v {
		r.writeName(name)
		r.w.True()
	}
}

func (r *writer) writeTime(name string, t task.Time) {
	r.writeName(name)
	b, _ := t.AppendText(append(r.w.Buf, '"')) // never fails
	r.w.Buf = append(b, '"')
}

func (r *writer) writeTimeIfSet(name string, t task.Time) {
	if !t.IsZero() {
		r.writeTime(name, t)
	}
}

// writeAny writes a field that is rare with encoding/json.
func (r *writer) writeAny(name string, v any) { r.writeRaw(name, Encode(v)) }

// writeRaw writes a field whose value is JSON.
func (r *writer) writeRaw(name, json string) {
	r.writeName(name)
	r.w.RawStr(json)
}

// encodeWith returns the JSON object whose fields fill writes.
func encodeWith(fill func(*writer)) []byte {
	r := writerPool.Get().(*writer)
	defer writerPool.Put(r)

	r.w.Reset()
	r.more = false
	r.w.ObjStart()
	fill(r)
	r.w.ObjEnd()

	return slices.Clone(r.w.Buf)
}

var writerPool = sync.Pool{New: func() any { return new(writer) }}

// writeRun writes the fields of a run. dispatched means that the run was dispatched, so that
// an omitted dispatched_at equals created_at.
func (r *writer) writeRun(v *task.Run, dispatched bool) {
	r.writeString("uid", v.UID)
	r.writeTime("scheduled_time", v.ScheduledTime)
	r.writeTimeIfSet("due_at", v.DueAt)
	r.writeTimeIfSet("start_before", v.StartBefore)
	r.writeString("state", string(v.State))
	r.writeStringIfSet("reason", v.Reason)
	r.writeString("trigger", v.Trigger)
	r.writeStringIfSet("node", v.Node)
	r.writeStringIfSet("owner", v.Owner)
	r.writeInt64IfSet("attempt", int64(v.Attempt))

	if len(v.Attempts) > 0 {
		r.writeAny("attempts", v.Attempts)
	}

	r.writeInt64IfSet("token", v.Token)
	r.writeTimeIfSet("created_at", v.CreatedAt)

	if !dispatched || !v.DispatchedAt.Equal(v.CreatedAt.Time) {
		r.writeTimeIfSet("dispatched_at", v.DispatchedAt)
	}

	r.writeTimeIfSet("started_at", v.StartedAt)
	r.writeTimeIfSet("ended_at", v.EndedAt)
	r.writeTimeIfSet("not_before", v.NotBefore)
	r.writeStringIfSet("not_before_by", v.NotBeforeBy)

	if v.Unsent != nil {
		r.writeAny("unsent", v.Unsent)
	}

	if v.ExitCode != nil {
		r.writeInt64("exit_code", int64(*v.ExitCode))
	}

	r.writeStringIfSet("signal", v.Signal)
	r.writeInt64IfSet("http_status", int64(v.HTTPStatus))
	r.writeStringIfSet("message", v.Message)

	if v.LatenessMS != nil {
		r.writeInt64("lateness_ms", *v.LatenessMS)
	}

	r.writeStringIfSet("output_tail", v.OutputTail)
	r.writeInt64IfSet("output_bytes", v.OutputBytes)
	r.writeTrueIfSet("output_truncated", v.Truncated)
	r.writeStringIfSet("cancelled_by", v.CancelledBy)
	r.writeStringIfSet("retry_of", v.RetryOf)
	r.writeStringIfSet("created_by", v.CreatedBy)

	if len(v.EnvNames) > 0 {
		r.writeAny("env_names", v.EnvNames)
	}

	if len(v.Args) > 0 {
		r.writeAny("args", v.Args)
	}

	r.writeStringIfSet("target_node", v.TargetNode)
	r.writeStringIfSet("dismissed_by", v.DismissedBy)

	if len(v.Unenforced) > 0 {
		r.writeAny("unenforced", v.Unenforced)
	}

	r.writeUsage(v.Usage)
	r.writeTimeIfSet("last", v.Last)
	r.writeInt64IfSet("count", v.Count)

	if len(v.Results) > 0 {
		r.writeAny("results", v.Results)
	}

	r.writeStringIfSet("checkpoint", v.Checkpoint)
	r.writeInt64IfSet("status_bad_lines", int64(v.BadLines))
	r.writeTimeIfSet("paused_at", v.PausedAt)
	r.writeInt64IfSet("paused_ms", v.PausedMS)
	r.writeStringIfSet("paused_by", v.PausedBy)
	r.writeInt64IfSet("part_count", int64(v.PartCount))

	if v.Fan != nil {
		r.writeAny("fan_out", v.Fan)
	}
}

// writeUnknownFields writes the fields that this version does not know, as they were read.
func (r *writer) writeUnknownFields(f task.Fields) {
	if f == "" {
		return
	}

	if r.more {
		r.w.Comma()
	}

	r.more = true
	r.w.RawStr(string(f))
}

// hasBeen reports whether a run has been dispatched: then it has a token.
func hasBeen(v *task.Run) bool { return v.Token != 0 }

// EncodeEnded encodes a record of the history or of the ended parts.
func EncodeEnded(v task.Run) []byte {
	if v.State == task.Succeeded || !task.IsPart(v.ID) {
		// No attempt follows, so the checkpoint is not needed. It remains in the record of a dead
		// run, and in that of a failed part, which may be repeated with its run.
		v.Checkpoint = ""
	}

	return encodeWith(func(r *writer) {
		r.writeRun(&v, hasBeen(&v))
		r.writeUnknownFields(v.Unknown)
	})
}

// EncodeWaiting encodes a record of the queue.
func EncodeWaiting(v task.Waiting) []byte {
	return encodeWith(func(r *writer) {
		r.writeRun(&v.Run, hasBeen(&v.Run))
		if len(v.Env) > 0 {
			r.writeAny("env", v.Env)
		}
		r.writeUnknownFields(v.Unknown)
	})
}

// EncodeAssigned encodes an inbox record. It omits node and token, which the key contains.
// action is the action of v as JSON.
func EncodeAssigned(v *task.Assigned, action string) []byte {
	run := v.Run
	run.Node, run.Token = "", 0
	return encodeWith(func(r *writer) {
		r.writeRun(&run, true)
		r.writeString("instance", v.Instance)
		r.writeInt64("generation", v.Generation)
		r.writeRaw("action", action)

		if len(v.Env) > 0 {
			r.writeAny("env", v.Env)
		}

		if v.Timeout != 0 {
			r.writeString("timeout", v.Timeout.String())
		}

		if v.KillGrace != usualGrace {
			r.writeString("kill_grace", v.KillGrace.String())
		}

		if v.Output != (task.Output{}) {
			r.writeAny("output", v.Output)
		}

		if !omitsRetry(v.Retry) {
			r.writeAny("retry", v.Retry)
		}

		r.writeTrueIfSet("cancel_requested", v.CancelRequested)
		r.writeStringIfSet("cancel_reason", v.CancelReason)
		r.writeTrueIfSet("pause_requested", v.PauseRequested)
		r.writeStringIfSet("resumed_by", v.ResumedBy)
		r.writeStringIfSet("kill_signal", v.KillSignal)

		if v.Success.Any() {
			r.writeAny("success", v.Success)
		}

		if v.LostAfter != 0 && v.LostAfter != task.DefaultLostAfter {
			r.writeString("lost_after", v.LostAfter.String())
		}

		r.writeUnknownFields(v.Unknown)
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
	return encodeWith(func(r *writer) {
		r.writeTime("time", m.Time)
		r.writeStringIfSet("last", m.Last)
		r.writeInt64("seen", m.Seen)
		r.writeString("nonce", m.Nonce)
		r.writeUnknownFields(m.Unknown)
	})
}

// writeUsage writes the resource usage of an attempt. Nearly every record of a process has it,
// so it is encoded without reflection.
func (r *writer) writeUsage(u task.Usage) {
	if u == (task.Usage{}) {
		return
	}

	r.writeName("usage")
	r.w.ObjStart()
	r.more = false
	r.writeInt64IfSet("cpu_ms", u.CPUMS)
	r.writeInt64IfSet("memory_peak", u.MemoryPeak)
	r.writeInt64IfSet("io_read", u.IORead)
	r.writeInt64IfSet("io_written", u.IOWritten)
	r.w.ObjEnd()
	r.more = true
}

// readUsage reads what writeUsage has written.
func (r *reader) readUsage(v *task.Usage) {
	r.err = r.d.ObjBytes(func(d *jx.Decoder, name []byte) (err error) {
		if d.Next() == jx.Null {
			return d.Null()
		}

		switch string(name) {
		case "cpu_ms":
			v.CPUMS, err = d.Int64()
		case "memory_peak":
			v.MemoryPeak, err = d.Int64()
		case "io_read":
			v.IORead, err = d.Int64()
		case "io_written":
			v.IOWritten, err = d.Int64()
		default:
			err = d.Skip()
		}

		return err
	})
}
