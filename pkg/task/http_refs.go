package task

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fieldRef is a reference in a template, with the field that contains it.
type fieldRef struct{ field, ref string }

// refs returns the references in all templates of the action, in the order of its fields. It skips templates that
// cannot be parsed.
func (h *HTTP) refs() []fieldRef {
	const field = "action.http"
	var list []fieldRef

	add := func(field, s string) {
		t, err := ParseTemplate(s)
		if err != nil {
			return
		}
		for _, p := range t {
			if p.Ref != "" {
				list = append(list, fieldRef{field, p.Ref})
			}
		}
	}

	if _, secret := h.URLSecret(); !secret {
		add(field+".url", h.URL)
	}

	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		add(field+".headers."+name, h.Headers[name])
	}

	for _, name := range slices.Sorted(maps.Keys(h.Form)) {
		add(field+".form."+name, h.Form[name])
	}

	if len(h.JSON) > 0 {
		d := json.NewDecoder(bytes.NewReader(h.JSON))
		d.UseNumber() // accepts numbers that do not fit into a float

		var v any
		if d.Decode(&v) == nil {
			eachString(field+".json", v, add)
		}
	}

	return list
}

// eachString calls visit for each string in a decoded JSON value, with the path of the string.
func eachString(field string, v any, visit func(field, s string)) {
	switch v := v.(type) {
	case string:
		visit(field, v)
	case []any:
		for i, inner := range v {
			eachString(fmt.Sprintf("%s[%d]", field, i), inner, visit)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			eachString(field+"."+key, v[key], visit)
		}
	}
}

// secretRefs returns each NAME/KEY of a secret that the request needs.
func (h *HTTP) secretRefs() []string {
	var list []string
	for _, s := range []string{h.URL, h.Body} {
		if ref, is := strings.CutPrefix(s, SecretRefPrefix); is {
			list = append(list, ref)
		}
	}

	if h.Auth != nil {
		list = append(list, h.Auth.Bearer, h.Auth.Basic, h.Auth.Signature)
	}
	if h.TLS != nil {
		list = append(list, strings.TrimPrefix(h.TLS.CA, SecretRefPrefix), strings.TrimPrefix(h.TLS.Cert, SecretRefPrefix))
	}

	for _, r := range h.refs() {
		if ref, is := strings.CutPrefix(r.ref, SecretRefPrefix); is {
			list = append(list, ref)
		}
	}

	return slices.DeleteFunc(list, func(ref string) bool { return ref == "" })
}

// SecretNames returns the sorted names of the secrets whose values an attempt reads.
func (a Action) SecretNames() []string {
	var names []string

	if a.Process != nil {
		for _, f := range a.Process.EnvFrom {
			if f.Secret != "" {
				names = append(names, f.Secret)
			}
		}

		if in := a.Process.Stdin; in != nil && in.Secret != "" {
			name, _, _ := strings.Cut(in.Secret, "/")
			names = append(names, name)
		}
	}

	if a.HTTP != nil {
		for _, ref := range a.HTTP.secretRefs() {
			name, _, _ := strings.Cut(ref, "/")
			names = append(names, name)
		}
	}

	slices.Sort(names)

	return slices.Compact(names)
}

// NeedsKey reports whether an attempt reads a secret, for which its node must have a key.
func (a Action) NeedsKey() bool { return len(a.SecretNames()) > 0 }
