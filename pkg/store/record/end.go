package record

import (
	"bytes"

	"github.com/go-faster/jx"

	"github.com/carillonhq/carillon/pkg/task"
)

// End is how and when a run ended, as far as the owner of a shard keeps it for lists. Times are Unix milliseconds; 0
// means none.
type End struct {
	State          task.State
	Started, Ended int64 // of the last attempt
	LatenessMS     int64 // of the first attempt
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
			readWord(&r, &e.State, knownStates)
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
