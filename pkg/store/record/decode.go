package record

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/go-faster/jx"

	"github.com/carillonhq/carillon/pkg/task"
)

// reader reads what a record wrote, and fields in any order. Fields that it does
// not know, and null, it passes by.
type reader struct {
	d   *jx.Decoder
	w   jx.Writer // of those who keep text
	err error
}

// object calls field for each field of an object; the value is the callee's to
// read.
func object(value []byte, field func(r *reader, name []byte)) error {
	d := jx.GetDecoder()
	defer jx.PutDecoder(d)

	d.ResetBytes(value)
	r := reader{d: d}
	err := d.ObjBytes(func(d *jx.Decoder, name []byte) error {
		if d.Next() == jx.Null {
			return d.Null()
		}

		field(&r, name)

		if r.err != nil {
			return fmt.Errorf("%s: %w", name, r.err)
		}

		return nil
	})

	if err == nil && !errors.Is(d.Skip(), io.EOF) {
		err = errors.New("something follows the record")
	}

	if err != nil {
		return unreadable(err)
	}

	return nil
}

func (r *reader) skip() { r.err = r.d.Skip() }

// unknown keeps a field that this version does not know.
func (r *reader) unknown(to *task.Fields, name []byte) {
	*to = task.Fields(r.keep([]byte(*to), name))
}

func (r *reader) text(v *string) { *v, r.err = r.d.Str() }

func (r *reader) number(v *int64) { *v, r.err = r.d.Int64() }

func (r *reader) small(v *int) { *v, r.err = r.d.Int() }

func (r *reader) yes(v *bool) { *v, r.err = r.d.Bool() }

// parsed reads a time or a duration.
func (r *reader) parsed(v encoding.TextUnmarshaler) {
	var b []byte
	if b, r.err = r.d.StrBytes(); r.err == nil {
		r.err = v.UnmarshalText(b)
	}
}

// other reads what is rare by reflection.
func (r *reader) other(v any) {
	var b []byte
	if b, r.err = r.d.Raw(); r.err == nil {
		r.err = json.Unmarshal(b, v)
	}
}

// word reads one of a few words, of which not each record needs a copy, or another.
func word[T ~string](r *reader, v *T, known []T) {
	b, err := r.d.StrBytes()
	if r.err = err; err != nil {
		return
	}

	for _, w := range known {
		if string(b) == string(w) {
			*v = w
			return
		}
	}

	*v = T(b)
}

var (
	states   = task.States()
	triggers = []string{task.TriggerSchedule, task.TriggerManual, task.TriggerCatchUp, task.TriggerPart}
)

// run reads a field of a run; false if it is none.
func (r *reader) run(name []byte, v *task.Run) bool {
	switch string(name) {
	case "id", "namespace", "task", "shard": // the key says it
		r.skip()
	case "uid":
		r.text(&v.UID)
	case "scheduled_time":
		r.parsed(&v.ScheduledTime)
	case "due_at":
		r.parsed(&v.DueAt)
	case "start_before":
		r.parsed(&v.StartBefore)
	case "state":
		word(r, &v.State, states)
	case "reason":
		r.text(&v.Reason)
	case "trigger":
		word(r, &v.Trigger, triggers)
	case "node":
		r.text(&v.Node)
	case "owner":
		r.text(&v.Owner)
	case "attempt":
		r.small(&v.Attempt)
	case "attempts":
		r.other(&v.Attempts)
	case "token":
		r.number(&v.Token)
	case "created_at":
		r.parsed(&v.CreatedAt)
	case "dispatched_at":
		r.parsed(&v.DispatchedAt)
	case "started_at":
		r.parsed(&v.StartedAt)
	case "ended_at":
		r.parsed(&v.EndedAt)
	case "not_before":
		r.parsed(&v.NotBefore)
	case "exit_code":
		v.ExitCode = new(int)
		r.small(v.ExitCode)
	case "signal":
		r.text(&v.Signal)
	case "message":
		r.text(&v.Message)
	case "lateness_ms":
		v.LatenessMS = new(int64)
		r.number(v.LatenessMS)
	case "output_tail":
		r.text(&v.OutputTail)
	case "output_bytes":
		r.number(&v.OutputBytes)
	case "output_truncated":
		r.yes(&v.Truncated)
	case "cancelled_by":
		r.text(&v.CancelledBy)
	case "retry_of":
		r.text(&v.RetryOf)
	case "created_by":
		r.text(&v.CreatedBy)
	case "env_names":
		r.other(&v.EnvNames)
	case "dismissed_by":
		r.text(&v.DismissedBy)
	case "unenforced":
		r.other(&v.Unenforced)
	case "usage":
		r.usage(&v.Usage)
	case "last":
		r.parsed(&v.Last)
	case "count":
		r.number(&v.Count)
	case "results":
		r.other(&v.Results)
	case "checkpoint":
		r.text(&v.Checkpoint)
	case "status_bad_lines":
		r.small(&v.BadLines)
	case "paused_at":
		r.parsed(&v.PausedAt)
	case "paused_ms":
		r.number(&v.PausedMS)
	case "paused_by":
		r.text(&v.PausedBy)
	case "part_count":
		r.small(&v.PartCount)
	case "fan_out":
		v.Fan = new(task.Fan)
		r.other(v.Fan)
	default:
		return false
	}

	return true
}

// complete fills in what is left out of a run that has been dispatched.
func complete(v *task.Run, dispatched bool) {
	if dispatched && v.DispatchedAt.IsZero() {
		v.DispatchedAt = v.CreatedAt
	}
}

// DecodeRunValue reads what the value of a record of history says of a run, and
// nothing of what its key says.
func DecodeRunValue(value []byte) (v task.Run, err error) {
	err = object(value, func(r *reader, name []byte) {
		if !r.run(name, &v) {
			r.unknown(&v.Unknown, name)
		}
	})

	complete(&v, hasBeen(&v))

	return v, err
}

// DecodeWaitingValue is DecodeRunValue for a record of the queue.
func DecodeWaitingValue(value []byte) (v task.Waiting, err error) {
	err = object(value, func(r *reader, name []byte) {
		switch {
		case r.run(name, &v.Run):
		case string(name) == "env":
			r.other(&v.Env)
		default:
			r.unknown(&v.Unknown, name)
		}
	})

	complete(&v.Run, hasBeen(&v.Run))

	return v, err
}

// DecodeAssignedValue is DecodeRunValue for a record of an inbox.
func DecodeAssignedValue(value []byte, v *task.Assigned) error {
	v.KillGrace, v.Retry.Attempts = usualGrace, 1
	err := object(value, func(r *reader, name []byte) {
		if r.run(name, &v.Run) {
			return
		}

		switch string(name) {
		case "instance":
			r.text(&v.Instance)
		case "generation":
			r.number(&v.Generation)
		case "action":
			r.action(&v.Action)
		case "env":
			r.other(&v.Env)
		case "timeout":
			r.parsed(&v.Timeout)
		case "kill_grace":
			r.parsed(&v.KillGrace)
		case "output":
			r.other(&v.Output)
		case "retry":
			r.other(&v.Retry)
		case "cancel_requested":
			r.yes(&v.CancelRequested)
		case "cancel_reason":
			r.text(&v.CancelReason)
		case "pause_requested":
			r.yes(&v.PauseRequested)
		case "resumed_by":
			r.text(&v.ResumedBy)
		case "kill_signal":
			r.text(&v.KillSignal)
		case "success":
			r.other(&v.Success)
		case "lost_after":
			r.parsed(&v.LostAfter)
		default:
			r.unknown(&v.Unknown, name)
		}
	})

	complete(&v.Run, true)

	return err
}

// action reads the action; the one that does nothing without reflection.
func (r *reader) action(v *task.Action) {
	var b []byte
	if b, r.err = r.d.Raw(); r.err != nil {
		return
	}

	if string(b) == noop {
		v.Noop = &task.Noop{}
		return
	}

	r.err = json.Unmarshal(b, v)
}

const noop = `{"noop":{}}`
