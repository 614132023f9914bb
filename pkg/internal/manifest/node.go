package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxDepth limits the recursion here. task.DecodeStrict enforces the exact limit.
const maxDepth = task.MaxDepth + 8

// kind is the type of a node in JSON.
type kind int

const (
	kindNull kind = iota
	kindBool
	kindNumber
	kindString
	kindList
	kindObject
)

// node is a value of a document with its position: what YAML and JSON have in common.
type node struct {
	kind   kind
	scalar string // as JSON; of null, bool, number and string
	text   string // as it is in the file; of scalars
	pairs  []pair // of an object, in the order of the file
	items  []*node
	at     position
}

type pair struct {
	key   string
	at    position
	value *node
}

// position counts from 1; columns are characters.
type position struct{ line, column int }

// faultAt returns an error with a position.
func faultAt(at position, code, field, format string, args ...any) *Error {
	return &Error{Line: at.line, Column: at.column, Err: task.Invalid(code, field, format, args...)}
}

// addPair adds a pair to an object. A duplicate key is an error.
func (n *node) addPair(p pair) *Error {
	for _, have := range n.pairs {
		if have.key == p.key {
			return faultAt(p.at, task.CodeDuplicate, p.key, "is given twice; first on line %d", have.at.line)
		}
	}

	n.pairs = append(n.pairs, p)

	return nil
}

// valueOf returns the value of a key, or nil.
func (n *node) valueOf(key string) *node {
	for _, p := range n.pairs {
		if p.key == key {
			return p.value
		}
	}

	return nil
}

// withoutKeys returns a copy of n without some keys.
func (n *node) withoutKeys(drop map[string]bool) *node {
	m := *n
	m.pairs = nil
	for _, p := range n.pairs {
		if !drop[p.key] {
			m.pairs = append(m.pairs, p)
		}
	}

	return &m
}

// toJSON returns the node as JSON.
func (n *node) toJSON() []byte {
	var b bytes.Buffer
	n.writeJSON(&b)
	return b.Bytes()
}

// writeJSON appends the node as JSON, with its keys in the order of the file.
func (n *node) writeJSON(b *bytes.Buffer) {
	switch n.kind {
	case kindObject:
		b.WriteByte('{')

		for i, p := range n.pairs {
			if i > 0 {
				b.WriteByte(',')
			}

			b.WriteString(quoteJSON(p.key))
			b.WriteByte(':')
			p.value.writeJSON(b)
		}

		b.WriteByte('}')
	case kindList:
		b.WriteByte('[')

		for i, item := range n.items {
			if i > 0 {
				b.WriteByte(',')
			}
			item.writeJSON(b)
		}

		b.WriteByte(']')
	default:
		b.WriteString(n.scalar)
	}
}

// quoteJSON returns a string as JSON.
func quoteJSON(s string) string {
	b, _ := json.Marshal(s) // a string always marshals
	return string(b)
}

// findPath follows the path of a field ("retry.on[0]", "labels.team") as far as it exists. It returns the last node
// and the position of its key.
func (n *node) findPath(path string) (*node, position) {
	at := n.at
	for path != "" {
		next, where, rest := n.nextStep(path)
		if next == nil {
			break
		}
		n, at, path = next, where, rest
	}

	return n, at
}

// nextStep follows the first part of a path. Keys may contain dots, so the keys that exist determine where a part
// ends.
func (n *node) nextStep(path string) (next *node, at position, rest string) {
	var index int
	if _, err := fmt.Sscanf(path, "[%d]", &index); err == nil && n.kind == kindList {
		if index < 0 || index >= len(n.items) {
			return nil, n.at, path
		}

		item := n.items[index]
		_, rest, _ = strings.Cut(path, "]")
		return item, item.at, strings.TrimPrefix(rest, ".")
	}

	longest := -1
	at, rest = n.at, path
	for _, p := range n.pairs {
		after, ok := strings.CutPrefix(path, p.key)
		if ok && len(p.key) > longest && (after == "" || after[0] == '.' || after[0] == '[') {
			longest = len(p.key)
			next, at, rest = p.value, p.at, strings.TrimPrefix(after, ".")
		}
	}

	return next, at, rest
}

// firstUnquoted returns the first scalar at or in n that is not a string, for the hint that it needs quotes.
func (n *node) firstUnquoted() *node {
	switch n.kind {
	case kindBool, kindNumber:
		return n
	case kindObject:
		for _, p := range n.pairs {
			if u := p.value.firstUnquoted(); u != nil {
				return u
			}
		}
	case kindList:
		for _, item := range n.items {
			if u := item.firstUnquoted(); u != nil {
				return u
			}
		}
	}

	return nil
}

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

// Instant parses a time of a field with schedule.ReadInstant. Local times are in the given zone. A zero now refuses times that
// are relative to it, because a file must mean the same whenever it is applied.
func Instant(field, text, timezone string, now time.Time) (task.Time, error) {
	zone, err := schedule.Location(timezone)
	if err != nil {
		return task.Time{}, err
	}

	at, err := schedule.ReadInstant(text, schedule.TimeBase{Now: now, Zone: zone, Direction: schedule.Future})

	return task.At(at), task.Under(field, err)
}

// TimeFields returns the fields of a task that contain times. They are not inside other fields.
func TimeFields() (paths []string) {
	for _, f := range task.SpecFields() {
		if f.Go == reflect.TypeFor[task.Time]() {
			paths = append(paths, f.Path)
		}
	}

	return paths
}

// localTimes replaces local times, which are in the task's zone, by RFC 3339.
func (n *node) localTimes() error {
	zone := task.Defaults().Timezone

	if z := n.valueOf("timezone"); z != nil && z.kind == kindString {
		_ = json.Unmarshal([]byte(z.scalar), &zone) // valid JSON: it was parsed as a string
	}

	times := TimeFields()
	for i, p := range n.pairs {
		for _, field := range times {
			if p.key != field || p.value.kind != kindString {
				continue
			}

			var text string
			_ = json.Unmarshal([]byte(p.value.scalar), &text)

			at, err := Instant(field, text, zone, time.Time{})
			if err != nil {
				return err
			}

			// Replace the value in a copy, because nodes may be shared.
			written, err := json.Marshal(at)
			if err != nil {
				return err
			}

			value := *p.value
			value.scalar = string(written)
			n.pairs[i].value = &value
		}
	}

	return nil
}
