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

// A reader decodes what a writer has encoded, with the fields in any order. It skips fields
// whose value is null. The first error is in err and ends the decoding.
type reader struct {
	d   *jx.Decoder
	w   jx.Writer // for callers that keep the text of fields
	err error
}

// eachField calls field for each field of a JSON object. field must read or skip the value. Its
// error names the field and wraps task.ErrInvalid.
func eachField(value []byte, field func(r *reader, name []byte)) error {
	d := jx.GetDecoder()
	defer jx.PutDecoder(d)

	d.ResetBytes(value)
	r := reader{d: d}
	// A field that is null is the same as an absent one, as for encoding/json.
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

	// A second value after the object would be lost on the next write, so the record is damaged.
	if err == nil && !errors.Is(d.Skip(), io.EOF) {
		err = errors.New("unexpected data after the record")
	}

	if err != nil {
		return unreadableError(err)
	}

	return nil
}

// skipValue skips the value of a field.
func (r *reader) skipValue() { r.err = r.d.Skip() }

// keepUnknownField adds a field that this version does not know to a list of such fields.
func (r *reader) keepUnknownField(to *task.Fields, name []byte) {
	*to = task.Fields(r.appendRaw([]byte(*to), name))
}

func (r *reader) readString(v *string) { *v, r.err = r.d.Str() }

func (r *reader) readInt64(v *int64) { *v, r.err = r.d.Int64() }

func (r *reader) readInt(v *int) { *v, r.err = r.d.Int() }

func (r *reader) readBool(v *bool) { *v, r.err = r.d.Bool() }

// readText reads a time or a duration.
func (r *reader) readText(v encoding.TextUnmarshaler) {
	var b []byte
	if b, r.err = r.d.StrBytes(); r.err == nil {
		r.err = v.UnmarshalText(b)
	}
}

// readAny reads a field that is rare with encoding/json.
func (r *reader) readAny(v any) {
	var b []byte
	if b, r.err = r.d.Raw(); r.err == nil {
		r.err = json.Unmarshal(b, v)
	}
}

// readWord reads a text that is usually one of a few known ones. It uses the known string
// instead of a copy for each record.
func readWord[T ~string](r *reader, v *T, known []T) {
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
	knownStates   = task.States()
	knownTriggers = []string{task.TriggerSchedule, task.TriggerManual, task.TriggerCatchUp, task.TriggerPart}
)

// readRunField reads a field of a run. It returns false, and reads nothing, if the run has no
// such field.
func (r *reader) readRunField(name []byte, v *task.Run) bool {
	switch string(name) {
	case "id", "namespace", "task", "shard": // the key contains them
		r.skipValue()
	case "uid":
		r.readString(&v.UID)
	case "scheduled_time":
		r.readText(&v.ScheduledTime)
	case "due_at":
		r.readText(&v.DueAt)
	case "start_before":
		r.readText(&v.StartBefore)
	case "state":
		readWord(r, &v.State, knownStates)
	case "reason":
		r.readString(&v.Reason)
	case "trigger":
		readWord(r, &v.Trigger, knownTriggers)
	case "node":
		r.readString(&v.Node)
	case "owner":
		r.readString(&v.Owner)
	case "attempt":
		r.readInt(&v.Attempt)
	case "attempts":
		r.readAny(&v.Attempts)
	case "token":
		r.readInt64(&v.Token)
	case "created_at":
		r.readText(&v.CreatedAt)
	case "dispatched_at":
		r.readText(&v.DispatchedAt)
	case "started_at":
		r.readText(&v.StartedAt)
	case "ended_at":
		r.readText(&v.EndedAt)
	case "not_before":
		r.readText(&v.NotBefore)
	case "not_before_by":
		r.readString(&v.NotBeforeBy)
	case "unsent":
		v.Unsent = new(task.Unsent)
		r.readAny(v.Unsent)
	case "exit_code":
		v.ExitCode = new(int)
		r.readInt(v.ExitCode)
	case "signal":
		r.readString(&v.Signal)
	case "http_status":
		r.readInt(&v.HTTPStatus)
	case "message":
		r.readString(&v.Message)
	case "lateness_ms":
		v.LatenessMS = new(int64)
		r.readInt64(v.LatenessMS)
	case "output_tail":
		r.readString(&v.OutputTail)
	case "output_bytes":
		r.readInt64(&v.OutputBytes)
	case "output_truncated":
		r.readBool(&v.Truncated)
	case "cancelled_by":
		r.readString(&v.CancelledBy)
	case "retry_of":
		r.readString(&v.RetryOf)
	case "created_by":
		r.readString(&v.CreatedBy)
	case "env_names":
		r.readAny(&v.EnvNames)
	case "args":
		r.readAny(&v.Args)
	case "target_node":
		r.readString(&v.TargetNode)
	case "dismissed_by":
		r.readString(&v.DismissedBy)
	case "unenforced":
		r.readAny(&v.Unenforced)
	case "usage":
		r.readUsage(&v.Usage)
	case "last":
		r.readText(&v.Last)
	case "count":
		r.readInt64(&v.Count)
	case "results":
		r.readAny(&v.Results)
	case "checkpoint":
		r.readString(&v.Checkpoint)
	case "status_bad_lines":
		r.readInt(&v.BadLines)
	case "paused_at":
		r.readText(&v.PausedAt)
	case "paused_ms":
		r.readInt64(&v.PausedMS)
	case "paused_by":
		r.readString(&v.PausedBy)
	case "part_count":
		r.readInt(&v.PartCount)
	case "fan_out":
		v.Fan = new(task.Fan)
		r.readAny(v.Fan)
	default:
		return false
	}

	return true
}

// completeRun sets the fields that a writer has omitted.
func completeRun(v *task.Run, dispatched bool) {
	if dispatched && v.DispatchedAt.IsZero() {
		v.DispatchedAt = v.CreatedAt
	}
}

// DecodeRunValue decodes the value of a history record. It does not set the fields that the key
// contains.
func DecodeRunValue(value []byte) (v task.Run, err error) {
	err = decodeRunInto(&v, value)
	return v, err
}

// decodeRunInto is like DecodeRunValue for a run that is the zero value.
func decodeRunInto(v *task.Run, value []byte) error {
	err := eachField(value, func(r *reader, name []byte) {
		if !r.readRunField(name, v) {
			r.keepUnknownField(&v.Unknown, name)
		}
	})

	completeRun(v, hasBeen(v))

	return err
}

// DecodeWaitingValue is like DecodeRunValue for a record of the queue.
func DecodeWaitingValue(value []byte) (v task.Waiting, err error) {
	err = eachField(value, func(r *reader, name []byte) {
		switch {
		case r.readRunField(name, &v.Run):
		case string(name) == "env":
			r.readAny(&v.Env)
		default:
			r.keepUnknownField(&v.Unknown, name)
		}
	})

	completeRun(&v.Run, hasBeen(&v.Run))

	return v, err
}

// DecodeAssignedValue is like DecodeRunValue for an inbox record.
func DecodeAssignedValue(value []byte, v *task.Assigned) error {
	// These are the values of fields that a writer omits.
	v.KillGrace, v.Retry = usualGrace, task.Retry{Attempts: 1, MaxBackoff: usualMaxBackoff}
	err := eachField(value, func(r *reader, name []byte) {
		if r.readRunField(name, &v.Run) {
			return
		}

		switch string(name) {
		case "instance":
			r.readString(&v.Instance)
		case "generation":
			r.readInt64(&v.Generation)
		case "action":
			r.readAction(&v.Action)
		case "env":
			r.readAny(&v.Env)
		case "timeout":
			r.readText(&v.Timeout)
		case "kill_grace":
			r.readText(&v.KillGrace)
		case "output":
			r.readAny(&v.Output)
		case "retry":
			r.readAny(&v.Retry)
		case "cancel_requested":
			r.readBool(&v.CancelRequested)
		case "cancel_reason":
			r.readString(&v.CancelReason)
		case "pause_requested":
			r.readBool(&v.PauseRequested)
		case "resumed_by":
			r.readString(&v.ResumedBy)
		case "kill_signal":
			r.readString(&v.KillSignal)
		case "success":
			r.readAny(&v.Success)
		case "lost_after":
			r.readText(&v.LostAfter)
		default:
			r.keepUnknownField(&v.Unknown, name)
		}
	})

	completeRun(&v.Run, true)

	return err
}

// readAction reads an action. It decodes the no-op without reflection.
func (r *reader) readAction(v *task.Action) {
	var b []byte
	if b, r.err = r.d.Raw(); r.err != nil {
		return
	}

	if string(b) == noopJSON {
		v.Noop = &task.Noop{}
		return
	}

	r.err = json.Unmarshal(b, v)
}

// noopJSON is the encoding of the action that does nothing.
const noopJSON = `{"noop":{}}`
