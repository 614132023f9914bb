package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

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
