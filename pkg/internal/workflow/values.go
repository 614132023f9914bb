package workflow

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/carillonhq/carillon/pkg/task"
)

// Results returns the results of a step that has succeeded, or nil.
type Results func(step string) map[string]string

// result returns a result of a step. The error is for people.
func (r Results) result(step, name string) (string, error) {
	value, ok := r(step)[name]
	if !ok {
		return "", fmt.Errorf("step %s has reported no result %s", step, task.Quote(name))
	}
	return value, nil
}

// Items returns the items of the map of a step: their texts and their number, or only their number if the source is a number. An
// error says for people why the step cannot begin.
func Items(source task.MapSource, results Results) (items []string, n int, err error) {
	if n, ok := source.Number(); ok {
		return nil, n, nil
	}

	step, name, _ := source.Result()
	text, err := results.result(step, name)
	if err != nil {
		return nil, 0, err
	}

	from := fmt.Sprintf("result %s of step %s", task.Quote(name), step)
	if n, err := strconv.Atoi(text); err == nil {
		if n < 0 || n > task.MaxMapItems {
			return nil, 0, fmt.Errorf("%s is %d; a map has 0 to %d items", from, n, task.MaxMapItems)
		}
		return nil, n, nil
	}

	var list []json.RawMessage
	if err := json.Unmarshal([]byte(text), &list); err != nil || list == nil {
		return nil, 0, fmt.Errorf("%s is neither a JSON array nor a number", from)
	}
	if len(list) > task.MaxMapItems {
		return nil, 0, fmt.Errorf("%s has %d elements; a map has 0 to %d items", from, len(list), task.MaxMapItems)
	}

	items = make([]string, len(list))
	for i, raw := range list {
		items[i] = itemText(raw)
	}

	return items, len(items), nil
}

// itemText returns an element of an array as text: a string as it is, everything else as JSON.
func itemText(raw json.RawMessage) string {
	var text string
	if bytes.HasPrefix(raw, []byte(`"`)) && json.Unmarshal(raw, &text) == nil {
		return text
	}

	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}

	return b.String()
}

// Values returns the values to which a step refers and which its node does not know: its name, its item and the results of
// other steps. item is the index of its item if it has a map. An error says for people which value does not exist.
func Values(name string, s task.Step, item int, results Results) (map[string]string, error) {
	values := map[string]string{}

	if s.Map != "" {
		items, n, err := Items(s.Map, results)
		if err != nil {
			return nil, err
		}
		if item >= n {
			return nil, fmt.Errorf("its map has no item %d any more", item)
		}

		// Without a list, the index is the item.
		values[task.ItemRef], values[task.ItemIndexRef] = strconv.Itoa(item), strconv.Itoa(item)
		if items != nil {
			values[task.ItemRef] = items[item]
		}
	}

	for _, ref := range s.Refs() {
		if ref == task.StepNameRef {
			values[ref] = name
			continue
		}

		step, result, ok := task.ParseStepRef(ref)
		if !ok {
			continue // the node knows it
		}
		value, err := results.result(step, result)
		if err != nil {
			return nil, err
		}
		values[ref] = value
	}

	return values, nil
}
