package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Value is a value of a file that holds something other than tasks.
type Value struct{ node *node }

// Values reads the documents of a file, as strictly as Read does, and leaves to its
// caller what they mean. The error is an *Error.
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

// Line is the line that the value begins on.
func (v Value) Line() int { return v.node.at.line }

// Items are the elements of the list that the value has under a key; none if it has
// no such list.
func (v Value) Items(key string) []Value {
	var items []Value
	if list := v.node.valueOf(key); v.node.kind == kindObject && list != nil {
		for _, item := range list.items {
			items = append(items, Value{item})
		}
	}

	return items
}

// Decode reads the value as encoding/json reads JSON: keys that the type does not
// have are passed by, and numbers of no certain type are json.Number.
func (v Value) Decode(into any) error {
	d := json.NewDecoder(bytes.NewReader(v.node.toJSON()))
	d.UseNumber()

	if err := d.Decode(into); err != nil {
		return fmt.Errorf("read a value: %w", err)
	}

	return nil
}
