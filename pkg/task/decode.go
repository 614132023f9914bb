package task

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// MaxDepth is how deep a user's JSON may nest.
const MaxDepth = 32

// DecodeSpec reads a task as a user wrote it: strictly, onto the defaults.
// The result is not yet validated.
func DecodeSpec(b []byte) (Spec, error) {
	s := Defaults()
	err := DecodeStrict(b, &s)
	return s, err
}

// DecodeStrict reads one JSON value into v, and refuses what encoding/json lets
// pass: keys that stand twice, keys in another case, unknown keys, more data
// behind the value, deep nesting. Errors are *Error.
func DecodeStrict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := checkValue(d, reflect.TypeOf(v), "", 0); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Invalid(CodeBadJSON, "", "there is more data behind the JSON value")
	}
	return decodeError(json.Unmarshal(b, v))
}

// checkValue walks one value, and the Go type that will receive it beside it,
// for the checks that encoding/json does not make.
func checkValue(d *json.Decoder, t reflect.Type, path string, depth int) error {
	if depth > MaxDepth {
		return Invalid(CodeBadJSON, path, "nests deeper than %d levels", MaxDepth)
	}
	tok, err := d.Token()
	if err != nil {
		return decodeError(err)
	}
	switch tok {
	case json.Delim('{'):
		return checkObject(d, t, path, depth)
	case json.Delim('['):
		for i := 0; d.More(); i++ {
			if err := checkValue(d, elem(t), fmt.Sprintf("%s[%d]", path, i), depth+1); err != nil {
				return err
			}
		}
		_, err = d.Token()
		return decodeError(err)
	}
	if s, ok := tok.(string); ok {
		return checkTextual(s, t, path)
	}
	return nil
}

// checkTextual lets a type that reads itself from text try it here, where the
// field's path is known.
func checkTextual(s string, t reflect.Type, path string) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil {
		return nil
	}
	if u, ok := reflect.New(t).Interface().(encoding.TextUnmarshaler); ok {
		return Under(path, u.UnmarshalText([]byte(s)))
	}
	return nil
}

func checkObject(d *json.Decoder, t reflect.Type, path string, depth int) error {
	seen := map[string]bool{}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return decodeError(err)
		}
		key := tok.(string)
		at := key
		if path != "" {
			at = path + "." + key
		}
		if seen[key] {
			return Invalid(CodeDuplicate, at, "stands there twice")
		}
		seen[key] = true
		inner, near, ok := field(t, key)
		if !ok {
			if near != "" {
				return Invalid(CodeUnknown, at, "is not a field; did you mean %s?", near)
			}
			return Invalid(CodeUnknown, at, "is not a field")
		}
		if err := checkValue(d, inner, at, depth+1); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return decodeError(err)
}

// field finds the type of a key's value: exactly as spelt. near is a field that
// is spelt alike.
func field(t reflect.Type, key string) (inner reflect.Type, near string, ok bool) {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() == reflect.Interface {
		return nil, "", true
	}
	if t.Kind() == reflect.Map {
		return t.Elem(), "", true
	}
	if t.Kind() != reflect.Struct {
		return nil, "", true // json.Unmarshal will say what is wrong
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		if name == key {
			return f.Type, "", true
		}
		if plain(name) == plain(key) || (len(key) > 3 && strings.HasPrefix(name, key)) {
			near = name
		}
	}
	return nil, near, false
}

func plain(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s))
}

func elem(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		return t.Elem()
	}
	return nil
}

// decodeError makes an *Error of what encoding/json says.
func decodeError(err error) error {
	var typed *json.UnmarshalTypeError
	var ours *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ours):
		return ours
	case errors.As(err, &typed):
		return Invalid(CodeBadValue, typed.Field, "a JSON %s cannot be a %s", typed.Value, kindName(typed.Type))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Invalid(CodeBadJSON, "", "the JSON ends too early")
	}
	return Invalid(CodeBadJSON, "", "%s", err)
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "JSON object here"
	case reflect.Slice, reflect.Array:
		return "list here"
	case reflect.String:
		return "string here"
	case reflect.Bool:
		return "truth value here"
	}
	return "number here"
}
