package task

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"unicode/utf8"
)

// MaxDepth is the maximum nesting depth of a user's JSON.
const MaxDepth = 32

// DecodeSpec decodes a task as a user wrote it. It is strict, and starts with the defaults. A field that is
// null keeps its default. An element of a list or a value of a map cannot be null. The result is not validated
// yet.
func DecodeSpec(b []byte) (Spec, error) {
	s := Defaults()
	err := decodeStrict(b, &s, false)
	fallback := Defaults()

	// Some tasks have defaults of their own. Whether a task is one of them is known only now.
	if err == nil && (s.Receiver != nil || s.Schedule.AtBoot() || len(s.After) > 0) {
		s, fallback = DefaultsOf(s), DefaultsOf(s)
		err = decodeStrict(b, &s, false)
		s.completeReceiver()
	}
	if err == nil && len(s.After) > 0 {
		err = s.requireOverlap(b)
	}

	if s.Retry.On == nil { // encoding/json sets a list to nil for null
		s.Retry.On = fallback.Retry.On
	}

	// An empty value means the default here, and is not written.
	s.DST.Gap = cmp.Or(s.DST.Gap, fallback.DST.Gap)
	s.DST.Fold = cmp.Or(s.DST.Fold, fallback.DST.Fold)
	if len(s.Success.ExitCodes) == 0 {
		s.Success.ExitCodes = nil
	}

	if err == nil && s.Overlap == OverlapQueue && s.Queue.Limit == 0 {
		err = refuseNoRoom(b)
		s.completeDependent()
	}

	if err == nil && s.Action.Process != nil && bytes.Contains(b, []byte(`"limits"`)) {
		err = s.Action.Process.Limits.refuseNone(b)
	}

	if err == nil && s.Action.HTTP != nil {
		err = normalizeHTTP(s.Action.HTTP)
	}

	if err == nil && s.Action.Workflow != nil {
		err = s.Action.Workflow.completeSteps(b)
	}

	if err == nil && s.Action.HTTP != nil && bytes.Contains(b, []byte(`"limit"`)) {
		err = s.Action.HTTP.Limit.refuseNone(b)
	}

	return s, err
}

// refuseNoRoom rejects an explicit queue.limit of 0. An absent limit is also stored as 0, which means the
// default.
func refuseNoRoom(b []byte) error {
	var said struct{ Queue struct{ Limit *int } }
	if json.Unmarshal(b, &said) == nil && said.Queue.Limit != nil {
		return Invalid(CodeOutOfRange, "queue.limit", "0 is not between 1 and %d; for no waiting runs, use overlap: skip", MaxQueue)
	}
	return nil
}

// refuseNone rejects an explicit limit of 0 where 0 would mean no limit.
func (l *Limits) refuseNone(b []byte) error {
	var said struct {
		Action struct {
			Process struct{ Limits map[string]json.RawMessage }
		}
	}
	if json.Unmarshal(b, &said) != nil {
		return nil
	}

	limits := reflect.ValueOf(l).Elem()
	for _, f := range reflect.VisibleFields(limits.Type()) {
		name := nameOf(f)
		if v, ok := said.Action.Process.Limits[name]; ok && string(v) != "null" && limits.FieldByIndex(f.Index).IsZero() {
			return Invalid(CodeOutOfRange, "action.process.limits."+name, "0 is not a limit; omit the field for no limit")
		}
	}

	return nil
}

// DecodeStrict decodes one JSON value into v. It rejects input that encoding/json accepts: duplicate keys, keys
// in another case, unknown keys, data after the value, deep nesting, invalid UTF-8, and null in a list. The error
// is an *Error, or several of them that errors.Join has joined, in the order of the document: see Problems.
func DecodeStrict(b []byte, v any) error { return decodeStrict(b, v, true) }

// decodeStrict implements DecodeStrict. It uses the fast scanner first. Only if that is not certain of a valid
// document does it use the slower checker, which also determines the path of the error.
func decodeStrict(b []byte, v any, nullInMaps bool) error {
	if !utf8.Valid(b) {
		return Invalid(CodeBadJSON, "", "is not UTF-8") // encoding/json would replace the invalid bytes by U+FFFD
	}
	if isStrictJSON(b, reflect.TypeOf(v), nullInMaps) && json.Unmarshal(b, v) == nil {
		return nil
	}

	c := checker{Decoder: json.NewDecoder(bytes.NewReader(b)), nullInMaps: nullInMaps, root: reflect.TypeOf(v), problems: new([]error)}
	c.UseNumber()

	err := c.checkValue(reflect.TypeOf(v), nil, 0, true)
	if err == nil {
		if _, end := c.Token(); !errors.Is(end, io.EOF) {
			err = Invalid(CodeBadJSON, "", "unexpected data after the JSON value")
		}
	}

	if errors.Is(err, errManyProblems) {
		err = nil
	}

	switch found := *c.problems; {
	case len(found) == 0 && err == nil:
		return decodeError(json.Unmarshal(b, v))
	case len(found) == 0:
		return err
	case len(found) == 1 && err == nil:
		return found[0]
	default:
		return errors.Join(append(found, err)...)
	}
}

// checker walks a document together with the Go type that will receive it. It makes the checks that
// encoding/json does not make, and those for which encoding/json does not report the path.
type checker struct {
	*json.Decoder
	nullInMaps bool // a merge patch uses null to remove a key of a map
	root       reflect.Type
	problems   *[]error // found so far
}

// errManyProblems ends the check of a document.
var errManyProblems = errors.New("too many problems")

// addProblem records a problem with one field, and returns nil if the check can continue behind it.
func (c checker) addProblem(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	if *c.problems = append(*c.problems, err); len(*c.problems) >= maxProblems {
		return errManyProblems
	}

	return nil
}

// place is where a value is in a document. The path of a value is written only for a problem with it: the values below a long key
// would otherwise take as much memory as that key, each of them. A nil place is the document itself.
type place struct {
	within *place
	key    string // of a value in an object
	index  int    // of a value in a list
	inList bool
}

// maxKeyInPath is the number of bytes of a key that a path contains. Keys of a valid task are shorter, except those that are
// reported as too long.
const maxKeyInPath = 200

// path returns the path of a place, as in Error.Field. Its length is limited, because the depth and the keys are.
func (p *place) path() string {
	if p == nil {
		return ""
	}

	before := p.within.path()
	if p.inList {
		return fmt.Sprintf("%s[%d]", before, p.index)
	}

	key := p.key
	if len(key) > maxKeyInPath {
		key = strings.ToValidUTF8(key[:maxKeyInPath], "") + "…"
	}
	if before != "" {
		key = before + "." + key
	}

	return key
}

// checkValue reads one value and checks it against its type; t is nil if the type is not known.
func (c checker) checkValue(t reflect.Type, at *place, depth int, nullable bool) error {
	if depth > MaxDepth {
		return Invalid(CodeBadJSON, at.path(), "nests deeper than %d levels", MaxDepth)
	}

	tok, err := c.Token()
	if err != nil {
		return decodeError(err)
	}

	t = receivingType(t)

	if tok == nil {
		if !nullable && t != nil && t.Kind() != reflect.Interface {
			return c.addProblem(Invalid(CodeBadValue, at.path(), "cannot be null"))
		}
		return nil
	}

	if err := checkKind(tok, t, at); err != nil {
		if err := c.addProblem(err); err != nil {
			return err
		}
		t = nil // what is in a value of another kind is only read
	}

	switch tok {
	case json.Delim('{'):
		return c.checkObject(objectType(t), at, depth)
	case json.Delim('['):
		return c.checkList(t, at, depth)
	}

	return nil
}

var (
	readsText = reflect.TypeFor[encoding.TextUnmarshaler]()
	readsJSON = reflect.TypeFor[json.Unmarshaler]()
	anyJSON   = reflect.TypeFor[json.RawMessage]()
)

// checkKind rejects a value that cannot be converted to t. Types with their own text or number format are
// parsed here, because the path of the field is known here.
func checkKind(tok json.Token, t reflect.Type, at *place) error {
	if t == nil || t.Kind() == reflect.Interface {
		return nil
	}

	s, isText := tok.(string)

	if reflect.PointerTo(t).Implements(readsText) {
		if n, ok := tok.(json.Number); ok && reflect.PointerTo(t).Implements(readsJSON) {
			return underPlace(at, reflect.New(t).Interface().(json.Unmarshaler).UnmarshalJSON([]byte(n)))
		}
		if !isText {
			return Invalid(CodeBadValue, at.path(), "%s is not a string", tokenWords(tok))
		}

		return underPlace(at, reflect.New(t).Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s)))
	}

	if reflect.PointerTo(t).Implements(readsJSON) {
		return nil
	}
	if got, want := tokenName(tok), kindName(t); got != want && !(got == "number" && want == "whole number") {
		return Invalid(CodeBadValue, at.path(), "%s is not %s", tokenWords(tok), kindWords(want))
	}

	return nil
}

// underPlace adds the path of a place to the field of an error, as Under does.
func underPlace(at *place, err error) error {
	if err == nil {
		return nil
	}
	return Under(at.path(), err)
}

// receivingType returns the type whose fields or elements a value fills: the one to which a pointer points, or nil if the
// value can be any JSON.
func receivingType(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}

	if t == anyJSON {
		return nil
	}

	return t
}

// objectType returns the type whose fields an object fills that stands for a value of type t. A single source needs no list.
func objectType(t reflect.Type) reflect.Type {
	if t == sourcesType {
		return sourceType
	}
	return t
}

// tokenWords describes a value in a message: the value itself if it is short, otherwise its kind.
func tokenWords(tok json.Token) string {
	switch v := tok.(type) {
	case string:
		return Quote(v)
	case bool, json.Number, float64:
		return fmt.Sprint(v)
	}

	return oneOfKind(tokenName(tok))
}

// kindWords describes the expected kind in a message.
func kindWords(kind string) string {
	if kind == "truth value" {
		return "true or false"
	}
	return oneOfKind(kind)
}

// tokenName returns the JSON kind of a token.
func tokenName(tok json.Token) string {
	switch tok.(type) {
	case json.Delim:
		if tok == json.Delim('{') {
			return "object"
		}
		return "list"
	case string:
		return "string"
	case bool:
		return "truth value"
	}

	return "number"
}

// checkList checks the elements of a list.
func (c checker) checkList(t reflect.Type, within *place, depth int) error {
	at := &place{within: within, inList: true}
	for ; c.More(); at.index++ {
		if err := c.checkValue(elemType(t), at, depth+1, false); err != nil {
			return err
		}
	}

	_, err := c.Token()
	return decodeError(err)
}

// checkObject checks the keys and values of an object.
func (c checker) checkObject(t reflect.Type, within *place, depth int) error {
	at := &place{within: within}
	seen := map[string]bool{}
	// A null resets a field. As a value in a map, it is accepted only if nullInMaps is set, as in a merge patch.
	nullable := t == nil || t.Kind() != reflect.Map || c.nullInMaps

	for c.More() {
		tok, err := c.Token()
		if err != nil {
			return decodeError(err)
		}

		key := tok.(string)
		at.key = key

		inner, ok := fieldType(t, key)
		var wrong error
		switch {
		case seen[key]:
			inner, wrong = nil, Invalid(CodeDuplicate, at.path(), "is given twice")
		case !ok:
			wrong = Invalid(CodeUnknown, at.path(), "is not a field%s", c.fieldMeant(t, key))
		}

		seen[key] = true
		if wrong != nil {
			if err := c.addProblem(wrong); err != nil {
				return err
			}
		}
		if err := c.checkValue(inner, at, depth+1, nullable); err != nil {
			return err
		}
	}

	_, err := c.Token()

	return decodeError(err)
}

// fieldType returns the type of a key's value. The case of the key must match exactly.
func fieldType(t reflect.Type, key string) (inner reflect.Type, ok bool) {
	if t == nil || t.Kind() == reflect.Interface {
		return nil, true
	}
	if t.Kind() == reflect.Map {
		return t.Elem(), true
	}
	if t.Kind() != reflect.Struct {
		return nil, true // json.Unmarshal reports the error
	}

	inner, ok = fieldsOf(t).types[key]

	return inner, ok
}

// fieldMeant returns the end of a message about an unknown key: a similar field, or a field of the same name
// elsewhere in the document.
func (c checker) fieldMeant(t reflect.Type, key string) string {
	if near := didYouMean(key, fieldsOf(t).names); near != "" {
		return near
	}

	var there []string
	for _, path := range fieldPaths(c.root, "", nil) {
		if path[strings.LastIndex(path, ".")+1:] == key {
			there = append(there, path)
		}
	}

	if len(there) == 0 {
		return ""
	}

	return " here; did you mean " + strings.Join(there, " or ") + "?"
}

// fieldPaths returns the paths of all fields of a type, including nested ones: "retry.backoff".
func fieldPaths(t reflect.Type, within string, paths []string) []string {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}

	if t == nil || t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(readsText) || strings.Count(within, ".") > MaxDepth {
		return paths
	}

	f := fieldsOf(t)
	for _, name := range f.names {
		paths = fieldPaths(f.types[name], within+name+".", append(paths, within+name))
	}

	return paths
}

// fields are the fields of a struct by their JSON names.
type fields struct {
	names []string // in the order of declaration
	types map[string]reflect.Type
}

// knownFields caches the fields of types, because collecting them takes longer than decoding.
var knownFields sync.Map // reflect.Type: *fields

// fieldsOf returns the fields of a struct type.
func fieldsOf(t reflect.Type) *fields {
	if f, ok := knownFields.Load(t); ok {
		return f.(*fields)
	}

	f := &fields{types: map[string]reflect.Type{}}
	for _, v := range reflect.VisibleFields(t) {
		if name := nameOf(v); name != "" {
			if _, twice := f.types[name]; !twice {
				f.types[name] = v.Type
			}
			f.names = append(f.names, name)
		}
	}

	knownFields.Store(t, f)

	return f
}

// nameOf returns a field's JSON name, or "" if it has none.
func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "-" {
		return ""
	}
	return name
}

// normalizeKey removes differences in case and in separators, for comparison.
func normalizeKey(s string) string { return strings.ToLower(withoutMarks.Replace(s)) }

var withoutMarks = strings.NewReplacer("_", "", "-", "") // created once, because creating it takes longer than using it

// elemType returns the element type of a list, or nil.
func elemType(t reflect.Type) reflect.Type {
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		return t.Elem()
	}
	return nil
}

// decodeError converts an error of encoding/json to an *Error.
func decodeError(err error) error {
	var typed *json.UnmarshalTypeError
	var ours *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ours):
		return ours
	case errors.As(err, &typed):
		return Invalid(CodeBadValue, typed.Field, "a JSON %s is not %s", typed.Value, kindWords(kindName(typed.Type)))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Invalid(CodeBadJSON, "", "unexpected end of JSON")
	}

	return Invalid(CodeBadJSON, "", "%s", err)
}

// oneOfKind adds the indefinite article.
func oneOfKind(kind string) string {
	if kind == "object" {
		return "an object"
	}
	return "a " + kind
}

// kindName returns the JSON kind that a Go type accepts.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "object"
	case reflect.Slice, reflect.Array:
		return "list"
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "truth value"
	case reflect.Float32, reflect.Float64:
		return "number"
	}

	return "whole number"
}
