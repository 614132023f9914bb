package manifest

import (
	"encoding/json"
	"fmt"

	"github.com/carillonhq/carillon/pkg/task"
)

// MinimalSpec returns a task as JSON, with only the fields that differ from the default, in the order in which people
// write them. Read yields the same task from it. With bare, the namespace is omitted: the reader provides it.
func MinimalSpec(s task.Spec, bare bool) (json.RawMessage, error) {
	n, err := nodeOf(s)
	if err != nil {
		return nil, err
	}

	std, err := nodeOf(task.Defaults())
	if err != nil {
		return nil, err
	}

	least := n.withoutDefaults(std.withoutKeys(map[string]bool{"name": true, "namespace": true, "schedule": true}))
	if bare {
		least = least.withoutKeys(map[string]bool{"namespace": true})
	}

	return least.toJSON(), nil
}

// nodeOf returns a spec as a document.
func nodeOf(s task.Spec) (*node, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write a task as JSON: %w", err)
	}

	docs, fault := readJSON(b, 1)
	if fault != nil {
		return nil, fault
	}

	return docs[0], nil
}

// withoutDefaults returns an object without the fields that are equal in std.
func (n *node) withoutDefaults(std *node) *node {
	m := *n
	m.pairs = nil
	for _, p := range n.pairs {
		other := std.valueOf(p.key)
		switch {
		case other == nil:
		case p.value.kind == kindObject && other.kind == kindObject:
			if p.value = p.value.withoutDefaults(other); len(p.value.pairs) == 0 {
				continue
			}
		case string(p.value.toJSON()) == string(other.toJSON()):
			continue
		}

		m.pairs = append(m.pairs, p)
	}

	return &m
}
