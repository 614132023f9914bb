package record

import (
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

		return r.nameError(name)
	})
	if r.err != nil {
		err = r.err // without what the decoder adds
	}

	// A second value after the object would be lost on the next write, so the record is damaged.
	if err == nil && !errors.Is(d.Skip(), io.EOF) {
		err = errors.New("unexpected data after the record")
	}

	if err != nil {
		return unreadableError(err)
	}

	return nil
}

// nameError adds the name of the field that was being read to the error, if there is one.
func (r *reader) nameError(name []byte) error {
	if r.err != nil {
		r.err = fmt.Errorf("%s: %w", name, r.err)
	}

	return r.err
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

func (r *reader) readTime(v *task.Time) {
	var b []byte
	if b, r.err = r.d.StrBytes(); r.err == nil {
		r.err = v.UnmarshalText(b)
	}
}

func (r *reader) readDuration(v *task.Duration) {
	var b []byte
	if b, r.err = r.d.StrBytes(); r.err == nil {
		r.err = v.UnmarshalText(b)
	}
}

// readStrings reads a list of texts. As for encoding/json, an element that is null is empty.
func (r *reader) readStrings(list *[]string) {
	*list = []string{}
	err := r.d.Arr(func(d *jx.Decoder) error {
		text := ""
		if d.Next() == jx.Null {
			r.err = d.Null()
		} else {
			r.readString(&text)
		}

		*list = append(*list, text)

		return r.err
	})
	if r.err == nil {
		r.err = err
	}
}

// readAny reads a field that is rare with encoding/json.
func (r *reader) readAny(v any) {
	var b []byte
	if b, r.err = r.d.Raw(); r.err == nil {
		r.err = json.Unmarshal(b, v)
	}
}

// readObject reads a field that is an object. It skips fields that this version does not know.
func readObject[T any](r *reader, v *T, readField func(*reader, []byte, *T) bool) {
	err := r.d.ObjBytes(func(d *jx.Decoder, name []byte) error {
		if d.Next() == jx.Null {
			return d.Null()
		}

		if !readField(r, name, v) {
			return d.Skip()
		}

		return r.nameError(name)
	})
	if r.err == nil {
		r.err = err
	}
}

// readList reads a field that is a list of objects. As for encoding/json, an element that is null is empty.
func readList[T any](r *reader, list *[]T, readField func(*reader, []byte, *T) bool) {
	*list = []T{}
	err := r.d.Arr(func(d *jx.Decoder) error {
		var v T
		if d.Next() == jx.Null {
			r.err = d.Null()
		} else {
			readObject(r, &v, readField)
		}

		*list = append(*list, v)

		return r.err
	})
	if r.err == nil {
		r.err = err
	}
}

// readWord reads a text that is usually one of a few known ones. It uses the known string
// instead of a copy for each record.
func readWord[T ~string](r *reader, v *T) {
	b, err := r.d.StrBytes()
	if r.err = err; err != nil {
		return
	}

	for _, w := range knownWords {
		if string(b) == w {
			*v = T(w)
			return
		}
	}

	*v = T(b)
}

// knownWords are the texts of fields with the struct tag record:"word".
var knownWords = append(task.StateNames(), task.TriggerSchedule, task.TriggerManual, task.TriggerCatchUp, task.TriggerPart, task.TriggerAfter)

// completeRun sets the fields that a writer has omitted.
func completeRun(v *task.Run, dispatched bool) {
	if dispatched && v.DispatchedAt.IsZero() {
		v.DispatchedAt = v.CreatedAt
	}
}

// requireValidSteps returns an error if the steps in a run's record cannot be used. err is the error of decoding it.
func requireValidSteps(v *task.Run, err error) error {
	if err != nil {
		return err
	}

	if err := v.Fan.ValidateFlow(); err != nil {
		return unreadableError(fmt.Errorf("fan_out: %w", err))
	}

	return nil
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
		if !r.readRun(name, v) {
			r.keepUnknownField(&v.Unknown, name)
		}
	})

	completeRun(v, wasDispatched(v))

	return requireValidSteps(v, err)
}

// DecodeWaitingValue is like DecodeRunValue for a record of the queue.
func DecodeWaitingValue(value []byte) (v task.Waiting, err error) {
	err = eachField(value, func(r *reader, name []byte) {
		if !r.readWaiting(name, &v) {
			r.keepUnknownField(&v.Unknown, name)
		}
	})

	completeRun(&v.Run, wasDispatched(&v.Run))

	return v, requireValidSteps(&v.Run, err)
}

// DecodeAssignedValue is like DecodeRunValue for an inbox record.
func DecodeAssignedValue(value []byte, v *task.Assigned) error {
	// These are the values of fields that a writer omits.
	v.KillGrace, v.Retry = usualGrace, task.Retry{Attempts: 1, MaxBackoff: usualMaxBackoff}
	err := eachField(value, func(r *reader, name []byte) {
		if r.readAssigned(name, v) {
			return
		}

		switch string(name) {
		case "action":
			readObject(r, &v.Action, (*reader).readAction)
		case "kill_grace":
			r.readDuration(&v.KillGrace)
		case "retry":
			r.readAny(&v.Retry)
		default:
			r.keepUnknownField(&v.Unknown, name)
		}
	})

	completeRun(&v.Run, true)

	return requireValidSteps(&v.Run, err)
}

// noopJSON is the encoding of the action that does nothing.
const noopJSON = `{"noop":{}}`

// workflowJSON is the encoding of a workflow in an entry.
const workflowJSON = `{"workflow":{}}`
