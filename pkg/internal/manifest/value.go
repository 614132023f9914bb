package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Value is a value of a file that does not contain tasks.
type Value struct{ node *node }

// Values parses the documents of a file, as strictly as Read does. The caller interprets them. The error is an
// *Error.
func Values(file string, b []byte) ([]Value, error) {
	docs, fault := splitDocuments(file, b)
	if fault != nil {
		fault.File = file
		return nil, fault
	}

	values := make([]Value, len(docs))
	for i, doc := range docs {
		values[i] = Value{doc}
	}

	return values, nil
}

// Line returns the line on which the value begins.
func (v Value) Line() int { return v.node.at.line }

// Items returns the elements of the list under a key, or nothing if there is no such list.
func (v Value) Items(key string) []Value {
	var items []Value
	if list := v.node.valueOf(key); v.node.kind == kindObject && list != nil {
		for _, item := range list.items {
			items = append(items, Value{item})
		}
	}

	return items
}

// Elements returns the elements of a list, and false if the value is not a list.
func (v Value) Elements() (items []Value, ok bool) {
	for _, item := range v.node.items {
		items = append(items, Value{item})
	}

	return items, v.node.kind == kindList
}

// Decode decodes the value as encoding/json does: it ignores keys that the type does not have, and numbers of an
// unspecified type are json.Number.
func (v Value) Decode(into any) error {
	d := json.NewDecoder(bytes.NewReader(v.node.toJSON()))
	d.UseNumber()

	if err := d.Decode(into); err != nil {
		return fmt.Errorf("read a value: %w", err)
	}

	return nil
}
