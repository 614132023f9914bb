package record

import (
	"github.com/go-faster/jx"

	"github.com/carillonhq/carillon/pkg/task"
)

// EntryParts is an entry taken apart, for one who keeps a million: what is the
// task's own, and, as text, what many tasks have alike. Nothing is lost: fields
// that this version does not know are in Policy.
type EntryParts struct {
	UID          []byte
	Generation   int64
	From, Anchor task.Time
	Paused       bool
	Action       []byte // JSON
	Own          []byte // JSON of a task.Own; empty for most
	// Timing and Policy are fields of JSON, without braces: those of task.Timing;
	// all others.
	Timing, Policy []byte
}

// Split takes an entry apart. The parts are valid as long as value is not changed
// and e not split again. Timing and Policy are checked no further than that they
// are JSON.
func (e *EntryParts) Split(value []byte) error {
	*e = EntryParts{Timing: e.Timing[:0], Policy: e.Policy[:0]}
	return eachField(value, func(r *reader, name []byte) {
		switch string(name) {
		case "uid":
			e.UID, r.err = r.d.StrBytes()
		case "generation":
			r.readInt64(&e.Generation)
		case "from":
			r.readText(&e.From)
		case "anchor":
			r.readText(&e.Anchor)
		case "paused":
			r.readBool(&e.Paused)
		case "action":
			e.Action, r.err = r.d.Raw()
		case "own":
			e.Own, r.err = r.d.Raw()
		case "schedule", "timezone", "dst", "start", "end", "jitter":
			e.Timing = r.appendRaw(e.Timing, name)
		default:
			e.Policy = r.appendRaw(e.Policy, name)
		}
	})
}

// appendRaw appends a field as it is.
func (r *reader) appendRaw(to, name []byte) []byte {
	r.w.Buf = to

	if len(to) > 0 {
		r.w.Comma()
	}

	r.w.ByteStr(name)
	r.w.RawStr(":")
	var b jx.Raw
	b, r.err = r.d.Raw()
	r.w.Raw(b)

	return r.w.Buf
}

// DecodeTiming reads a Timing into the fields of an entry.
func DecodeTiming(timing string) (task.Entry, error) { return Decode[task.Entry](asObject(timing)) }

// DecodePolicy reads a Policy into the fields of an entry.
func DecodePolicy(policy string) (task.Entry, error) { return Decode[task.Entry](asObject(policy)) }

// DecodeOwn reads an Own.
func DecodeOwn(own []byte) (task.Own, error) { return Decode[task.Own](own) }

// EncodeOwn is o as EntryParts has it; nil if there is nothing in it.
func EncodeOwn(o *task.Own) []byte {
	if o == nil || o.Runs == 0 && o.Failures == 0 && o.Counted == 0 && len(o.Pauses) == 0 && o.Node == "" {
		return nil
	}
	return []byte(Encode(o))
}

func asObject(fields string) []byte { return []byte("{" + fields + "}") }

// EncodeParts puts an entry together again.
func EncodeParts(e EntryParts) []byte {
	return encodeWith(func(r *writer) {
		r.writeString("uid", string(e.UID))
		r.writeInt64("generation", e.Generation)
		r.writeRawFields(e.Timing)
		r.writeTime("from", e.From)
		r.writeTime("anchor", e.Anchor)
		r.writeTrueIfSet("paused", e.Paused)
		r.writeRaw("action", string(e.Action))
		r.writeRawFields(e.Policy)

		if len(e.Own) > 0 {
			r.writeRaw("own", string(e.Own))
		}
	})
}

// writeRawFields appends fields of JSON.
func (r *writer) writeRawFields(text []byte) {
	if len(text) == 0 {
		return
	}

	if r.more {
		r.w.Comma()
	}

	r.more = true
	r.w.Raw(text)
}

// DecodeAction reads an Action, and refuses what the API would have refused.
func DecodeAction(action []byte) (task.Action, error) {
	if string(action) == noopJSON {
		return task.Action{Noop: &task.Noop{}}, nil
	}

	a, err := Decode[task.Action](action)
	if err != nil {
		return a, err
	}

	return a, a.Validate()
}
