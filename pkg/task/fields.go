package task

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Field is a field of a task as users write it. The table of all fields is derived from the struct Spec and its tags. The
// checks of values, --set and its completion, "carillon task fields", the form of the Web UI, the JSON schema and the
// reference in docs/tasks.md all read this table, so a field is added by adding it to the struct. The tags are:
//
//	json       the name
//	doc        one or two sentences, without the default and the allowed values
//	absent     what it means that the field is not set: a value, or words; fields with a value in Defaults do without
//	enum       the allowed values, separated by commas; of a list, the allowed elements
//	min, max   the range of a number, a duration or a size, inclusive; of a list, the range of its elements
//	maxLength  the maximum number of bytes of a text; maxItems and maxProperties of the elements of a list or a map
//	uniqueItems  the elements of a list must differ
//	pattern    a regular expression for texts and for the elements of lists, for editors; it is not checked here
//	example    a value, for editors and the form
//	oneof      the name of a group of fields of which an object has at most one or, with ",required", exactly one
//
// Without omitempty or omitzero, the zero value is checked like every other value. With them, it means "not set".
type Field struct {
	Path       string       // in a task file: "retry.backoff"; of a field of the objects in a list: "action.process.env_from[].file"
	Type       string       // for people: "duration", "list of strings"
	Go         reflect.Type // the type of the value, without pointers
	Doc        string
	Default    string // the value of a task without this field, or words such as "none"
	HasDefault bool   // Default is a value, not words
	Enum       []string
	Min, Max   string // the range of a number, a duration or a size; "" if there is none
	Example    string
	MaxLen     int // the maximum number of bytes of a text, or of elements of a list or a map; 0 if there is none
	Required   bool
	// OneOf is the group of fields of which a task has at most one, with the path of their object; "" if there is none.
	OneOf       string
	OneRequired bool // a task that has the object has exactly one field of the group
	Inner       []Field

	index     []int // of the field in its struct
	optional  bool  // the zero value means that the field is not set, unless the field is a pointer
	pointer   bool
	checked   bool // the tags of the field, or of a field inside it, limit its values
	unique    bool // the elements of the list must differ
	low, high reflect.Value
}

// SpecFields returns the fields of a task in the order of their declaration. Callers must not change it.
var SpecFields = sync.OnceValue(func() []Field { return FieldsOf(Defaults()) })

// FieldsOf returns the fields of a struct that has tags like those of Spec. The values of the struct are the defaults. It
// panics if a tag is not valid.
func FieldsOf(defaults any) []Field { return structFields(reflect.ValueOf(defaults), "") }

// Flatten returns fields with all the fields inside them, each before those inside it.
func Flatten(fields []Field) []Field {
	var all []Field
	for _, f := range fields {
		all = append(append(all, f), Flatten(f.Inner)...)
	}

	return all
}

// FindField returns the field with a path, and whether there is one.
func FindField(fields []Field, path string) (Field, bool) {
	for _, f := range fields {
		if f.Path == path {
			return f, true
		}

		inside := strings.HasPrefix(path, f.Path+".") || strings.HasPrefix(path, f.Path+"[]")
		if inside && len(f.Inner) > 0 {
			return FindField(f.Inner, path)
		}
	}

	return Field{}, false
}

// structFields returns the fields of a struct whose path begins with prefix.
func structFields(defaults reflect.Value, prefix string) []Field {
	var list []Field
	for _, sf := range reflect.VisibleFields(defaults.Type()) {
		if name := nameOf(sf); name != "" {
			list = append(list, newField(sf, prefix, prefix+name, defaults.FieldByIndex(sf.Index)))
		}
	}

	return list
}

// newField returns a field of a struct.
func newField(sf reflect.StructField, prefix, path string, value reflect.Value) Field {
	t := sf.Type
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}

	_, options, _ := strings.Cut(sf.Tag.Get("json"), ",")
	f := Field{
		Path: path, Go: t, Type: typeWords(t), Doc: sf.Tag.Get("doc"), Example: sf.Tag.Get("example"),
		index: sf.Index, pointer: sf.Type.Kind() == reflect.Pointer, optional: strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero"),
	}
	if values := sf.Tag.Get("enum"); values != "" {
		f.Enum = strings.Split(values, ",")
	}
	if group, rule, _ := strings.Cut(sf.Tag.Get("oneof"), ","); group != "" {
		f.OneOf, f.OneRequired = prefix+group, rule == "required"
	}

	for _, tag := range []string{"maxLength", "maxItems", "maxProperties"} {
		if text := sf.Tag.Get(tag); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				panic(fmt.Sprintf("field %s: tag %s: %v", path, tag, err))
			}
			f.MaxLen = n
		}
	}

	if f.Max = sf.Tag.Get("max"); f.Max != "" {
		f.Min = sf.Tag.Get("min")
		f.low, f.high = f.parseBound(f.Min), f.parseBound(f.Max)
	}
	f.unique = sf.Tag.Get("uniqueItems") == "true"

	f.Default, f.HasDefault = f.defaultOf(sf.Tag.Get("absent"), value)
	f.Required = !f.optional && value.IsZero()

	switch {
	case isObject(t):
		inner := reflect.New(t).Elem()
		if value.Kind() == reflect.Struct {
			inner = value
		}
		f.Inner = structFields(inner, path+".")
	case t.Kind() == reflect.Slice && isObject(t.Elem()):
		f.Inner = structFields(reflect.New(t.Elem()).Elem(), path+"[].")
	}

	f.checked = f.high.IsValid() || len(f.Enum) > 0 || f.MaxLen > 0 || f.unique ||
		slices.ContainsFunc(f.Inner, func(inner Field) bool { return inner.checked })

	return f
}

// defaultOf returns the default from the tag absent or, without it, from the value in a task with defaults. ok is false
// if it is not a value but words.
func (f Field) defaultOf(absent string, value reflect.Value) (text string, ok bool) {
	switch {
	case absent != "":
		if f.Go.Kind() == reflect.String || f.Go == anyJSON || f.Go == sourcesType { // words would be the name of a source
			return absent, slices.Contains(f.Enum, absent)
		}
		_, err := parseValue(f.Go, absent)
		return absent, err == nil
	case f.Go.Kind() == reflect.Bool && value.Kind() == reflect.Bool:
		return strconv.FormatBool(value.Bool()), true
	case value.IsZero() || len(f.Inner) > 0 || isObject(f.Go):
		return "", false
	}

	return textOf(value), true
}

// Name returns the name of a field in its object.
func (f Field) Name() string { return f.Path[strings.LastIndexByte(f.Path, '.')+1:] }

// DefaultValue returns the default as it is decoded from JSON. ok is false if there is none, or if it is words.
func (f Field) DefaultValue() (value any, ok bool) {
	if !f.HasDefault {
		return nil, false
	}

	if f.Go.Kind() == reflect.Slice {
		list := []any{}
		for word := range strings.SplitSeq(f.Default, ",") {
			list = append(list, word)
		}
		return list, true
	}

	if err := json.Unmarshal([]byte(f.Default), &value); err != nil {
		return f.Default, true
	}

	return value, true
}

// textOf returns a value as in --set.
func textOf(value reflect.Value) string {
	if value.Kind() == reflect.Slice {
		var words []string
		for i := range value.Len() {
			words = append(words, textOf(value.Index(i)))
		}
		return strings.Join(words, ",")
	}

	return fmt.Sprint(value.Interface())
}

// isObject reports whether a value of a type is a JSON object with known fields.
func isObject(t reflect.Type) bool {
	return t == sourceType || t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(readsText) && !reflect.PointerTo(t).Implements(readsJSON)
}

// typeWords returns the type of a field for people.
func typeWords(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Duration]():
		return "duration"
	case reflect.TypeFor[Size]():
		return "size"
	case reflect.TypeFor[Time]():
		return "time"
	case reflect.TypeFor[Count]():
		return "integer or all"
	case reflect.TypeFor[MapSource]():
		return "integer or reference"
	case reflect.TypeFor[Schedules]():
		return "string or list"
	case sourcesType:
		return "string, object or list"
	case anyJSON:
		return "any JSON"
	}

	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Float64:
		return "number"
	case reflect.Struct:
		return "object"
	case reflect.Map:
		return "map of " + typeWords(t.Elem()) + "s"
	case reflect.Slice:
		return "list of " + typeWords(t.Elem()) + "s"
	}

	return "integer"
}

// parseValue reads a value of a type from its text: JSON, or a string without its quotes.
func parseValue(t reflect.Type, text string) (reflect.Value, error) {
	v := reflect.New(t)
	err := json.Unmarshal([]byte(text), v.Interface())
	if err != nil {
		quoted, _ := json.Marshal(text) // a string can always be encoded
		err = json.Unmarshal(quoted, v.Interface())
	}

	return v.Elem(), err
}

// parseBound reads a bound of the field, or of its elements, from a tag. An empty tag is the zero value.
func (f Field) parseBound(text string) reflect.Value {
	t := f.Go
	if t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if text == "" {
		return reflect.Zero(t)
	}

	v, err := parseValue(t, text)
	if err != nil {
		panic(fmt.Sprintf("field %s: %s is not a bound: %v", f.Path, text, err))
	}

	return v
}

// CheckRange checks the value of a field against its tags. It does not check the fields inside the value.
func (f *Field) CheckRange(v reflect.Value) error {
	if f.optional && !f.pointer && v.IsZero() {
		return nil
	}

	switch v.Kind() {
	case reflect.Slice:
		if err := f.checkLength(v); err != nil {
			return err
		}
		return f.checkElements(v)
	case reflect.Map:
		return f.checkLength(v)
	case reflect.String:
		if f.MaxLen > 0 && v.Len() > f.MaxLen {
			return Invalid(CodeTooLong, f.Path, "is %d bytes long; at most %d are allowed", v.Len(), f.MaxLen)
		}
	}

	if err := f.checkValue(v); err != nil {
		return Under(f.Path, err)
	}

	return nil
}

// checkLength checks the number of elements of a list or a map.
func (f *Field) checkLength(v reflect.Value) error {
	if f.MaxLen > 0 && v.Len() > f.MaxLen {
		return Invalid(CodeTooMany, f.Path, "has %d elements; at most %d are allowed", v.Len(), f.MaxLen)
	}
	return nil
}

// checkElements checks the elements of a list.
func (f *Field) checkElements(v reflect.Value) error {
	if !f.high.IsValid() && len(f.Enum) == 0 && !f.unique {
		return nil
	}

	for i := range v.Len() {
		element := v.Index(i)
		if err := f.checkValue(element); err != nil {
			return Under(fmt.Sprintf("%s[%d]", f.Path, i), err)
		}

		for earlier := range i {
			if f.unique && element.Equal(v.Index(earlier)) {
				return Invalid(CodeBadValue, fmt.Sprintf("%s[%d]", f.Path, i), "%s is given twice", Quote(fmt.Sprint(element.Interface())))
			}
		}
	}

	return nil
}

// checkValue checks a value, or an element of a list, against the range and the allowed values. Its errors have no field.
func (f *Field) checkValue(v reflect.Value) error {
	if f.high.IsValid() && !isBetween(v, f.low, f.high) {
		return Invalid(CodeOutOfRange, "", "%v is not between %v and %v", v.Interface(), f.low.Interface(), f.high.Interface())
	}
	if len(f.Enum) > 0 && !slices.Contains(f.Enum, v.String()) {
		return NoneOf(CodeBadValue, "", v.String(), f.Enum...)
	}

	return nil
}

// isBetween reports whether a number is in a range, inclusive. It is false for NaN.
func isBetween(v, low, high reflect.Value) bool {
	if v.CanFloat() {
		return v.Float() >= low.Float() && v.Float() <= high.Float()
	}
	return v.Int() >= low.Int() && v.Int() <= high.Int()
}

// checkRanges checks all fields of a struct against their tags. It calls report with each problem, until report returns
// false.
func checkRanges(v reflect.Value, fields []Field, report func(error) bool) bool {
	for i := range fields {
		f := &fields[i]
		if !f.checked {
			continue
		}

		value := v.FieldByIndex(f.index)
		if f.optional && value.IsZero() { // not set
			continue
		}
		if f.pointer {
			value = value.Elem()
		}

		if err := f.CheckRange(value); err != nil && !report(err) {
			return false
		}
		if len(f.Inner) > 0 && !checkInside(value, f, report) {
			return false
		}
	}

	return true
}

// checkInside is checkRanges for the fields inside a struct, or inside the structs in a list.
func checkInside(v reflect.Value, f *Field, report func(error) bool) bool {
	if v.Kind() == reflect.Struct {
		return checkRanges(v, f.Inner, report)
	}

	for i := range v.Len() {
		inElement := func(err error) bool {
			if e, ok := err.(*Error); ok {
				e.Field = strings.Replace(e.Field, "[]", fmt.Sprintf("[%d]", i), 1)
			}
			return report(err)
		}
		if !checkRanges(v.Index(i), f.Inner, inElement) {
			return false
		}
	}

	return true
}
