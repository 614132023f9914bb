package task

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Differences says in a few words each what b has otherwise than a, in the order
// of the fields' names: "timeout: 10m → 20m", "labels.team: none → data". Nothing
// if they say the same.
func Differences(a, b Spec) []string {
	was, is := leaves(a), leaves(b)
	names := slices.Sorted(maps.Keys(was))
	for name := range is {
		if _, ok := was[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	list := []string{}
	for _, name := range names {
		if was[name] != is[name] {
			list = append(list, name+": "+fewWords(was[name])+" → "+fewWords(is[name]))
		}
	}
	return list
}

// leaves are the values of a spec by their paths: texts as they are, all else as JSON.
func leaves(s Spec) map[string]string {
	out := map[string]string{}
	b, err := json.Marshal(s)
	var doc map[string]json.RawMessage
	if err == nil && json.Unmarshal(b, &doc) == nil {
		flatten(out, "", doc)
	}
	return out
}

func flatten(out map[string]string, path string, doc map[string]json.RawMessage) {
	for name, value := range doc {
		var inner map[string]json.RawMessage
		var text string
		switch at := path + name; {
		case json.Unmarshal(value, &text) == nil:
			out[at] = text
		case json.Unmarshal(value, &inner) == nil && len(inner) > 0:
			flatten(out, at+".", inner)
		default:
			out[at] = string(value)
		}
	}
}

func fewWords(value string) string {
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
