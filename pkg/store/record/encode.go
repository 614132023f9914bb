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

// Encode writes a value as JSON. The types of this package and of package task
// can always be written; anything else is a mistake of ours.
func Encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("record: encode %T: %v", v, err))
	}
	return string(b)
}

// A writer writes one of the records of which there are many, by hand: by
// reflection it would cost as much as all else that is done for a tick. Fields
// have the names and the order that package task gives them. What the key says
// is left out, and what is so in nearly every record:
//
//	dispatched_at  if it is created_at
//	kill_grace     if it is 10s
//	retry          if there is but one attempt
type writer struct {
	w    jx.Writer
	more bool
}

// usualGrace is what a kill_grace that is left out stands for. It belongs to the
// format: it stays, whatever the default for users becomes.
const usualGrace = task.Duration(10 * time.Second)

func (r *writer) field(name string) {
	if r.more {
		r.w.Comma()
	}

	r.more = true
	b := append(append(r.w.Buf, '"'), name...) // ours: there is nothing to escape
	r.w.Buf = append(b, '"', ':')
}

func (r *writer) text(name, v string) {
	r.field(name)

	if !plain(v) {
		r.w.Str(strings.ToValidUTF8(v, "\ufffd"))
		return
	}

	b := append(append(r.w.Buf, '"'), v...)
	r.w.Buf = append(b, '"')
}

// plain reports whether a text is the same in JSON, as nearly all of ours are.
func plain(v string) bool {
	for i := range len(v) {
		if c := v[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}

	return true
}

func (r *writer) optional(name, v string) {
	if v != "" {
		r.text(name, v)
	}
}

func (r *writer) number(name string, v int64) {
	r.field(name)
	r.w.Int64(v)
}

func (r *writer) count(name string, v int64) {
	if v != 0 {
		r.number(name, v)
	}
}

func (r *writer) yes(name string, v bool) {
	if v {
		r.field(name)
		r.w.True()
	}
}

func (r *writer) time(name string, t task.Time) {
	r.field(name)
	b, _ := t.AppendText(append(r.w.Buf, '"')) // never fails
	r.w.Buf = append(b, '"')
}

func (r *writer) moment(name string, t task.Time) {
	if !t.IsZero() {
		r.time(name, t)
	}
}

// other writes what is rare by reflection.
func (r *writer) other(name string, v any) { r.raw(name, Encode(v)) }

func (r *writer) raw(name, json string) {
	r.field(name)
	r.w.RawStr(json)
}

// encoded is the text of a record; fill writes its fields.
func encoded(fill func(*writer)) []byte {
	r := writers.Get().(*writer)
	defer writers.Put(r)

	r.w.Reset()
	r.more = false
	r.w.ObjStart()
	fill(r)
	r.w.ObjEnd()

	return slices.Clone(r.w.Buf)
}

var writers = sync.Pool{New: func() any { return new(writer) }}

func (r *writer) run(v *task.Run, dispatched bool) {
	r.text("uid", v.UID)
	r.time("scheduled_time", v.ScheduledTime)
	r.moment("due_at", v.DueAt)
	r.moment("start_before", v.StartBefore)
	r.text("state", string(v.State))
	r.optional("reason", v.Reason)
	r.text("trigger", v.Trigger)
	r.optional("node", v.Node)
	r.optional("owner", v.Owner)
	r.count("attempt", int64(v.Attempt))

	if len(v.Attempts) > 0 {
		r.other("attempts", v.Attempts)
	}

	r.count("token", v.Token)
	r.moment("created_at", v.CreatedAt)

	if !dispatched || !v.DispatchedAt.Equal(v.CreatedAt.Time) {
		r.moment("dispatched_at", v.DispatchedAt)
	}

	r.moment("started_at", v.StartedAt)
	r.moment("ended_at", v.EndedAt)
	r.moment("not_before", v.NotBefore)

	if v.ExitCode != nil {
		r.number("exit_code", int64(*v.ExitCode))
	}

	r.optional("signal", v.Signal)
	r.optional("message", v.Message)

	if v.LatenessMS != nil {
		r.number("lateness_ms", *v.LatenessMS)
	}

	r.optional("output_tail", v.OutputTail)
	r.count("output_bytes", v.OutputBytes)
	r.yes("output_truncated", v.Truncated)
	r.optional("cancelled_by", v.CancelledBy)
	r.optional("retry_of", v.RetryOf)
	r.optional("created_by", v.CreatedBy)

	if len(v.EnvNames) > 0 {
		r.other("env_names", v.EnvNames)
	}

	r.optional("dismissed_by", v.DismissedBy)

	if len(v.Unenforced) > 0 {
		r.other("unenforced", v.Unenforced)
	}

	r.usage(v.Usage)
	r.moment("last", v.Last)
	r.count("count", v.Count)

	if len(v.Results) > 0 {
		r.other("results", v.Results)
	}

	r.optional("checkpoint", v.Checkpoint)
	r.count("status_bad_lines", int64(v.BadLines))
	r.moment("paused_at", v.PausedAt)
	r.count("paused_ms", v.PausedMS)
	r.optional("paused_by", v.PausedBy)
	r.count("part_count", int64(v.PartCount))

	if v.Fan != nil {
		r.other("fan_out", v.Fan)
	}
}

// unknown writes again what was read past.
func (r *writer) unknown(f task.Fields) {
	if f == "" {
		return
	}

	if r.more {
		r.w.Comma()
	}

	r.more = true
	r.w.RawStr(string(f))
}

// hasBeen reports whether a run on record has been dispatched: its token says so.
func hasBeen(v *task.Run) bool { return v.Token != 0 }

// EncodeEnded encodes a record of history.
func EncodeEnded(v task.Run) []byte {
	if v.State == task.Succeeded || !task.IsPart(v.ID) {
		v.Checkpoint = "" // no attempt follows: of a dead run it is with that, of a part its run has it repeated with it
	}

	return encoded(func(r *writer) {
		r.run(&v, hasBeen(&v))
		r.unknown(v.Unknown)
	})
}

// EncodeWaiting encodes a record of the queue.
func EncodeWaiting(v task.Waiting) []byte {
	return encoded(func(r *writer) {
		r.run(&v.Run, hasBeen(&v.Run))
		if len(v.Env) > 0 {
			r.other("env", v.Env)
		}
		r.unknown(v.Unknown)
	})
}

// EncodeAssigned leaves node and token out: they are the key's. action is that
// of v as JSON.
func EncodeAssigned(v *task.Assigned, action string) []byte {
	run := v.Run
	run.Node, run.Token = "", 0
	return encoded(func(r *writer) {
		r.run(&run, true)
		r.text("instance", v.Instance)
		r.number("generation", v.Generation)
		r.raw("action", action)

		if len(v.Env) > 0 {
			r.other("env", v.Env)
		}

		if v.Timeout != 0 {
			r.text("timeout", v.Timeout.String())
		}

		if v.KillGrace != usualGrace {
			r.text("kill_grace", v.KillGrace.String())
		}

		if v.Output != (task.Output{}) {
			r.other("output", v.Output)
		}

		if v.Retry.Attempts > 1 {
			r.other("retry", v.Retry)
		}

		r.yes("cancel_requested", v.CancelRequested)
		r.optional("cancel_reason", v.CancelReason)
		r.yes("pause_requested", v.PauseRequested)
		r.optional("resumed_by", v.ResumedBy)
		r.optional("kill_signal", v.KillSignal)

		if v.Success.Any() {
			r.other("success", v.Success)
		}

		if v.LostAfter != 0 && v.LostAfter != task.DefaultLostAfter {
			r.text("lost_after", v.LostAfter.String())
		}

		r.unknown(v.Unknown)
	})
}

// WatermarkAfter is later, as text, than the records of all watermarks up to t, and of
// no others.
func WatermarkAfter(t task.Time) string {
	text, _ := task.At(t.Add(time.Millisecond)).MarshalText() // never fails
	return `{"time":"` + string(text)
}

// EncodeWatermark encodes a watermark.
func EncodeWatermark(m Watermark) []byte {
	return encoded(func(r *writer) {
		r.time("time", m.Time)
		r.optional("last", m.Last)
		r.number("seen", m.Seen)
		r.text("nonce", m.Nonce)
		r.unknown(m.Unknown)
	})
}
