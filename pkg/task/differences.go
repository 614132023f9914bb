package task

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// FieldChange is a field whose value differs between two specs, or two other records.
type FieldChange struct {
	Field string `json:"field" doc:"Its path: timeout, labels.team, action.process.command."`
	From  any    `json:"from,omitempty" doc:"Absent where the field was not set."`
	To    any    `json:"to,omitempty" doc:"Absent where the field is not set any more."`
}

// String returns the change as text: "timeout: 10m → 20m".
func (c FieldChange) String() string {
	return c.Field + ": " + shortenValue(valueText(c.From)) + " → " + shortenValue(valueText(c.To))
}

// Compare returns the fields that differ between a and b, sorted by name. The result is empty if the records are
// equal. Values have their JSON types; numbers are json.Number.
func Compare[T any](a, b T) []FieldChange {
	one, other := fieldsAsJSON(a), fieldsAsJSON(b)
	for name, v := range one { // most fields are equal and need not be compared in detail
		if w, ok := other[name]; ok && bytes.Equal(v, w) {
			delete(one, name)
			delete(other, name)
		}
	}

	was, is := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	flattenInto(was, "", one)
	flattenInto(is, "", other)

	names := slices.Collect(maps.Keys(was))
	for name := range is {
		if _, ok := was[name]; !ok {
			names = append(names, name)
		}
	}

	slices.Sort(names)
	list := []FieldChange{}
	for _, name := range names {
		if !bytes.Equal(was[name], is[name]) {
			list = append(list, FieldChange{Field: name, From: decodeValue(was[name]), To: decodeValue(is[name])})
		}
	}

	return list
}

// Differences returns the changes of Compare as text: "timeout: 10m → 20m", "labels.team: none → data".
func Differences(a, b Spec) []string {
	list := []string{}
	for _, c := range Compare(a, b) {
		list = append(list, c.String())
	}
	return list
}

// fieldsAsJSON returns the top-level fields of a record.
func fieldsAsJSON(record any) map[string]json.RawMessage {
	var doc map[string]json.RawMessage
	if b, err := json.Marshal(record); err == nil {
		_ = json.Unmarshal(b, &doc) // cannot fail: it was encoded just now
	}
	return doc
}

// flattenInto adds the values of a document to out, keyed by their paths.
func flattenInto(out map[string]json.RawMessage, path string, doc map[string]json.RawMessage) {
	for name, value := range doc {
		if path == "" && name == "after" && flattenSources(out, value) {
			continue
		}

		var inner map[string]json.RawMessage
		if len(value) > 0 && value[0] == '{' && json.Unmarshal(value, &inner) == nil && len(inner) > 0 {
			flattenInto(out, path+name+".", inner)
			continue
		}

		out[path+name] = value
	}
}

// flattenSources adds the sources of a task to out, each with the ends that count, so that a source that is added or removed is one
// change. It returns false if the value has another form.
func flattenSources(out map[string]json.RawMessage, value json.RawMessage) bool {
	var sources Sources
	if json.Unmarshal(value, &sources) != nil {
		return false
	}

	for _, s := range sources {
		out["after."+s.Task], _ = json.Marshal(cmp.Or(s.When, WhenSucceeded)) // a string
		if len(s.Results) > 0 {
			out["after."+s.Task+".results"], _ = json.Marshal(s.Results)
		}
	}

	return true
}

// decodeValue decodes a JSON value; nil if it is absent.
func decodeValue(b json.RawMessage) (v any) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	_ = d.Decode(&v) // cannot fail: it was encoded by this package

	return v
}

// valueText formats a value for people: a string without quotes, anything else as JSON.
func valueText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		if v == "" {
			return `""`
		}
		return v
	}

	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // cannot fail: it was decoded from JSON

	return strings.TrimSuffix(b.String(), "\n")
}

// shortenValue shortens a value for one line of text.
func shortenValue(value string) string {
	const most = 60
	switch value = strings.ToValidUTF8(value, "\ufffd"); {
	case value == "":
		return "none"
	case len(value) > most:
		cut := most
		for !utf8.RuneStart(value[cut]) {
			cut--
		}
		return value[:cut] + "…"
	}

	return value
}
