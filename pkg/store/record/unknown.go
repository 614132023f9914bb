package record

import (
	"bytes"
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"sync"

	"github.com/carillonhq/carillon/pkg/task"
)

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
	_ = eachField(value, func(r *reader, name []byte) { // a value that is no object has no fields
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
