package record

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/carillonhq/carillon/pkg/task"
)

// Decode decodes a record with encoding/json. Its error wraps task.ErrInvalid.
func Decode[T any](b []byte) (T, error) {
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		return v, unreadableError(err)
	}
	return v, nil
}

// unreadableError returns the error for a record that cannot be decoded.
func unreadableError(err error) error {
	return fmt.Errorf("%w: unreadable record: %v", task.ErrInvalid, err)
}

// withKeyFields returns r with the fields that its key contains.
func withKeyFields(r task.Run, ref Ref, id string) task.Run {
	r.ID, r.Namespace, r.Task, r.Shard = id, ref.Namespace, ref.Name, ref.Shard
	return r
}

// DecodeEnded decodes a record of the history or of the ended parts.
func DecodeEnded(k ShardKey, value []byte) (task.Run, error) {
	r, err := DecodeRunValue(value)
	return withKeyFields(r, k.Ref, k.Run), err
}

// DecodeEndedInto is like DecodeEnded, but sets *r. A caller that reads many records can use the same one for all of them.
func DecodeEndedInto(r *task.Run, k ShardKey, value []byte) error {
	*r = task.Run{}
	err := decodeRunInto(r, value)
	r.ID, r.Namespace, r.Task, r.Shard = k.Run, k.Ref.Namespace, k.Ref.Name, k.Ref.Shard

	return err
}

// DecodeWaiting decodes a record of the queue.
func DecodeWaiting(k ShardKey, value []byte) (task.Waiting, error) {
	w, err := DecodeWaitingValue(value)
	w.Run = withKeyFields(w.Run, k.Ref, k.Run)
	return w, err
}

// DecodeAssigned decodes an inbox record. created is the create revision of the key, which is
// the fencing token.
func DecodeAssigned(k RunKey, created int64, value []byte) (a task.Assigned, err error) {
	err = decodeHeld(k, created, value, &a)
	return a, err
}

// decodeHeld decodes an inbox record into a.
func decodeHeld(k RunKey, created int64, value []byte, a *task.Assigned) error {
	err := DecodeAssignedValue(value, a)
	a.ID, a.Namespace, a.Task, a.Shard = k.Run, k.Ref.Namespace, k.Ref.Name, k.Ref.Shard
	a.Node, a.Token = k.Node, created

	return err
}

// DecodeEntry decodes an entry.
func DecodeEntry(value []byte) (task.Entry, error) { return Decode[task.Entry](value) }

// DecodeTask decodes a spec. modRevision is the mod revision of its key.
func DecodeTask(value []byte, modRevision int64) (task.Task, error) {
	t, err := Decode[task.Task](value)
	t.Revision = modRevision
	return t, err
}

// Watermark records that all ticks of a shard up to (Time, Last) are decided.
type Watermark struct {
	Time task.Time `json:"time"`
	// Last is the last task, as namespace/name, whose tick at Time is decided. If it is empty,
	// the ticks of all tasks at Time are decided.
	Last string `json:"last,omitempty"`
	// Seen is a revision. The watermark applies to entries that were created up to it. A task
	// that was created later is not covered, so that its first ticks are not lost (G4).
	Seen int64 `json:"seen"`
	// Nonce identifies one copy of one commit, so that an unknown outcome can be resolved (G3).
	Nonce string `json:"nonce"`
	// Unknown contains the fields that this version does not know. They are preserved.
	Unknown task.Fields `json:"-"`
}

// Decided reports whether the watermark has passed a tick of a task whose entry it covers. name
// is namespace/name.
func (w Watermark) Decided(tick task.Time, name string) bool {
	if !tick.Equal(w.Time.Time) {
		return tick.Before(w.Time.Time)
	}
	return w.Last == "" || name <= w.Last
}

// DecodeWatermark decodes a watermark. Without a time or a nonce the record counts as damaged,
// even if it is valid JSON. Otherwise its zero time would cause all ticks to be decided again.
func DecodeWatermark(value []byte) (Watermark, error) {
	var w Watermark
	err := eachField(value, func(r *reader, name []byte) {
		if !r.readWatermark(name, &w) {
			r.keepUnknownField(&w.Unknown, name)
		}
	})

	if err == nil && (w.Time.IsZero() || w.Nonce == "" || w.Seen < 0) {
		err = fmt.Errorf("%w: unreadable record: a watermark must have a time and a nonce", task.ErrInvalid)
	}

	return w, err
}

// KeepUnknownFields returns fresh with the fields of old that type t does not have, at each
// level that both contain. fresh is a value of type t that replaces old. So a write of this
// version preserves what a newer version has written.
func KeepUnknownFields(old []byte, fresh string, t reflect.Type) string {
	if len(old) == 0 || !hasUnknownFields(old, t) {
		return fresh
	}
	return string(keepUnknownFields(old, []byte(fresh), t))
}

var (
	actionType      = reflect.TypeFor[task.Action]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
)

// keepUnknownFields implements KeepUnknownFields for one object.
func keepUnknownFields(old, fresh []byte, t reflect.Type) []byte {
	var o, f map[string]json.RawMessage
	if json.Unmarshal(old, &o) != nil || json.Unmarshal(fresh, &f) != nil || f == nil {
		return fresh
	}

	// An action has exactly one field. If fresh has an action, it replaces an unknown one
	// instead of being added to it.
	another := t == actionType && len(f) > 0
	known := fieldsOf(t)

	for name, value := range o {
		of, knows := known[name]
		there, has := f[name]
		switch {
		case !knows && !another:
			f[name] = value
		case knows && has && of != nil:
			f[name] = keepUnknownFields(value, there, of)
		}
	}

	// The values are kept as they are. By default the encoder would escape <, > and & in them.
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)

	if e.Encode(f) != nil {
		return fresh
	}

	return bytes.TrimSpace(out.Bytes())
}

// hasUnknownFields reports whether an object, or an object in it, has fields that type t does
// not have.
func hasUnknownFields(value []byte, t reflect.Type) bool {
	known, found := fieldsOf(t), false
	_ = eachField(value, func(r *reader, name []byte) { // a value that is not an object has no fields
		of, knows := known[string(name)]
		var raw []byte
		raw, r.err = r.d.Raw()
		found = found || !knows || r.err == nil && of != nil && raw[0] == '{' && hasUnknownFields(raw, of)
	})

	return found
}

// fieldsByType caches the results of fieldsOf: reflect.Type → map[string]reflect.Type.
var fieldsByType sync.Map

// fieldsOf returns the JSON names of the fields of a struct. The value is the type of the field
// if that is encoded as an object with fields, otherwise nil.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if m, ok := fieldsByType.Load(t); ok {
		return m.(map[string]reflect.Type)
	}

	m := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() || name == "" || name == "-" {
			continue
		}

		of := f.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}

		if p := reflect.PointerTo(of); of.Kind() != reflect.Struct || p.Implements(textUnmarshaler) || p.Implements(jsonUnmarshaler) {
			of = nil
		}

		m[name] = of
	}

	fieldsByType.Store(t, m)

	return m
}
