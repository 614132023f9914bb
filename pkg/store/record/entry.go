package record

import (
	"github.com/go-faster/jx"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// EntryParts is an entry that has been split for an owner of a million tasks: into the fields
// that differ for each task and, as text, the fields that many tasks have in common. Nothing is
// lost: fields that this version does not know are in Policy.
type EntryParts struct {
	UID          []byte
	Generation   int64
	From, Anchor task.Time
	Paused       bool
	Action       []byte // JSON
	Own          []byte // JSON of a task.Own; usually empty
	Labels       []byte // JSON; empty if there are none
	// Timing and Policy are lists of JSON fields without braces: Timing the fields of
	// task.Timing, Policy all others.
	Timing, Policy []byte
}

// Split splits an entry. The parts are valid until value is modified or e is used for another
// entry. Timing and Policy are checked only for being valid JSON.
func (e *EntryParts) Split(value []byte) error {
	*e = EntryParts{Timing: e.Timing[:0], Policy: e.Policy[:0]}
	return eachField(value, func(r *reader, name []byte) {
		switch string(name) {
		case "uid":
			e.UID, r.err = r.d.StrBytes()
		case "generation":
			r.readInt64(&e.Generation)
		case "from":
			r.readTime(&e.From)
		case "anchor":
			r.readTime(&e.Anchor)
		case "paused":
			r.readBool(&e.Paused)
		case "action":
			e.Action, r.err = r.d.Raw()
		case "own":
			e.Own, r.err = r.d.Raw()
		case "labels":
			e.Labels, r.err = r.d.Raw()
		case "schedule", "timezone", "dst", "start", "end", "jitter": // the fields of task.Timing
			e.Timing = r.appendRaw(e.Timing, name)
		default:
			e.Policy = r.appendRaw(e.Policy, name)
		}
	})
}

// appendRaw appends a field with its value as it is.
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

// DecodeTiming decodes a Timing into the fields of an entry.
func DecodeTiming(timing string) (task.Entry, error) { return Decode[task.Entry](asObject(timing)) }

// DecodePolicy decodes a Policy into the fields of an entry.
func DecodePolicy(policy string) (task.Entry, error) { return Decode[task.Entry](asObject(policy)) }

// DecodeLabels decodes Labels.
func DecodeLabels(labels []byte) (map[string]string, error) {
	return Decode[map[string]string](labels)
}

// DecodeOwn decodes an Own.
func DecodeOwn(own []byte) (task.Own, error) { return Decode[task.Own](own) }

// EncodeOwn returns the encoding of o for EntryParts, or nil if o is empty.
func EncodeOwn(o *task.Own) []byte {
	if o == nil || o.Runs == 0 && o.Failures == 0 && o.Counted == 0 && len(o.Pauses) == 0 && o.Node == "" {
		return nil
	}
	return []byte(Encode(o))
}

// asObject adds the braces to a list of JSON fields.
func asObject(fields string) []byte { return []byte("{" + fields + "}") }

// EncodeParts encodes an entry from its parts.
func EncodeParts(e EntryParts) []byte {
	return encodeWith(func(w *writer) {
		w.writeString("uid", string(e.UID))
		w.writeInt64("generation", e.Generation)
		w.writeRawFields(e.Timing)
		w.writeTime("from", e.From)
		w.writeTime("anchor", e.Anchor)
		w.writeBoolIfSet("paused", e.Paused)
		w.writeRaw("action", string(e.Action))
		w.writeRawFields(e.Policy)

		if len(e.Labels) > 0 {
			w.writeRaw("labels", string(e.Labels))
		}

		if len(e.Own) > 0 {
			w.writeRaw("own", string(e.Own))
		}
	})
}

// writeRawFields writes a list of JSON fields.
func (w *writer) writeRawFields(text []byte) {
	if len(text) > 0 {
		w.writeComma()
		w.out.Raw(text)
	}
}

// DecodeAction decodes an Action. It also rejects an action that the API would have rejected.
func DecodeAction(action []byte) (task.Action, error) {
	if string(action) == noopJSON {
		return task.Action{Noop: &task.Noop{}}, nil
	}

	// The entry of a workflow has no steps.
	if string(action) == workflowJSON {
		return task.Action{Workflow: &task.Workflow{}}, nil
	}

	var a task.Action
	err := eachField(action, func(r *reader, name []byte) {
		if !r.readAction(name, &a) {
			r.skipValue()
		}
	})
	if err != nil {
		return a, err
	}

	return a, a.Validate()
}

// Brief is a spec of a list that has not been decoded completely. A list filters specs by a few
// fields and needs only some of them.
type Brief struct {
	Namespace, Name string

	value []byte // the record
	mod   int64  // its mod revision
}

// Labels returns the labels of the task, or none if the spec cannot be read.
func (b Brief) Labels() map[string]string {
	var labels map[string]string
	_ = eachField(b.value, func(r *reader, name []byte) {
		if string(name) == "labels" {
			r.readAny(&labels)
			return
		}
		r.skipValue()
	})

	return labels
}

// Task decodes the spec. If that fails, the result has only the name, and the error as its
// description.
func (b Brief) Task() task.Task {
	t, err := DecodeTask(b.value, b.mod)
	if err != nil {
		t = task.Task{Spec: task.Spec{Namespace: b.Namespace, Name: b.Name, Description: "unreadable: " + err.Error()}, Revision: b.mod}
	}
	return t
}

// DecodeBrief returns the record of a spec without decoding it. It returns false if the key is
// not that of a spec.
func DecodeBrief(keys Keys, e *mvccpb.KeyValue) (Brief, bool) {
	ns, name, ok := keys.ParseSpec(string(e.Key))
	return Brief{ns, name, e.Value, e.ModRevision}, ok
}

// Tombstone records the deletion of a task. It exists until a task of the same name is created,
// or until the leader removes it a week later.
type Tombstone struct {
	UID        string      `json:"uid,omitempty"`
	Generation int64       `json:"generation,omitempty"`
	DeletedAt  task.Time   `json:"deleted_at"`
	DeletedBy  *task.Actor `json:"deleted_by,omitempty"`
	Why        string      `json:"why,omitempty"` // a description, if the task was not deleted by a user

	// Spec is what undelete creates again, with the pause in force. nil: the deletion was to make room, or the spec could not
	// be read. What the tombstone of an older version lacks is nil, too.
	Spec *task.Spec `json:"spec,omitempty"`
}

// DecodeTombstone decodes a tombstone. It returns nil if e is nil.
func DecodeTombstone(e *mvccpb.KeyValue) (*Tombstone, error) {
	if e == nil {
		return nil, nil
	}
	t, err := Decode[Tombstone](e.Value)
	return &t, err
}
