package task

import (
	"reflect"
	"strings"
)

// maxProblems is how many problems with the fields of a document are reported at once.
const maxProblems = 50

// Problems returns the problems with fields that an error contains, in their order: one for an *Error, and several if such errors
// were joined by errors.Join. Of several about the same field, it returns the first one. It leaves out that a field is missing or
// wrong if something within it was reported before.
func Problems(err error) (list []*Error) {
	add := func(e *Error) {
		for _, before := range list {
			below, isPrefix := strings.CutPrefix(before.Field, e.Field)
			if isPrefix && (below == "" || e.Field != "" && (below[0] == '.' || below[0] == '[')) {
				return
			}
		}
		list = append(list, e)
	}

	var walk func(err error)
	walk = func(err error) {
		switch x := err.(type) { //nolint:errorlint // it unwraps each error itself
		case *Error:
			add(x)
		case interface{ Unwrap() []error }:
			for _, inner := range x.Unwrap() {
				walk(inner)
			}
		case interface{ Unwrap() error }:
			walk(x.Unwrap())
		}
	}
	walk(err)

	return list
}

// JSONPointer returns the JSON pointer (RFC 6901) of a field as the fragment of a URI, as problems (RFC 9457) have it. The path of
// the field is as in Error.Field: "action.process.command[0]" is "#/action/process/command/0". t is the type of the document. Keys
// of maps may contain dots, so the type decides where a key ends.
func JSONPointer(t reflect.Type, field string) string {
	var b strings.Builder
	b.WriteByte('#')

	for field != "" {
		var part string
		part, field, t = cutPath(t, field)
		b.WriteByte('/')
		b.WriteString(escapePointer(part))
	}

	return b.String()
}

// cutPath cuts the first part from the path of a field in a document of type t. The type of the part is nil if it is not known.
func cutPath(t reflect.Type, field string) (part, rest string, inner reflect.Type) {
	t = receivingType(t)

	if after, isIndex := strings.CutPrefix(field, "["); isIndex {
		part, rest, _ = strings.Cut(after, "]")
		return part, strings.TrimPrefix(rest, "."), elemType(t)
	}

	if t != nil && t.Kind() == reflect.Map {
		// A key with dots: the rest of the path, unless the values are objects.
		if value := receivingType(t.Elem()); value == nil || value.Kind() != reflect.Struct {
			return field, "", nil
		}
	}

	end := strings.IndexAny(field, ".[")
	if end < 0 {
		return field, "", nil
	}

	part, rest = field[:end], strings.TrimPrefix(field[end:], ".")
	switch {
	case t == nil:
	case t.Kind() == reflect.Map:
		inner = t.Elem()
	case t.Kind() == reflect.Struct:
		inner = fieldsOf(t).types[part]
	}

	return part, rest, inner
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1") // created once, because creating it takes longer than using it

// escapePointer escapes a part of a JSON pointer in a fragment.
func escapePointer(part string) string {
	part = pointerEscapes.Replace(part)

	const plain = "-._~!$&'()*+,;=:@" // what a fragment may contain besides letters and digits
	var b strings.Builder
	for _, c := range []byte(part) {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte(plain, c) >= 0 {
			b.WriteByte(c)
			continue
		}

		const hex = "0123456789ABCDEF"
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}

	return b.String()
}
