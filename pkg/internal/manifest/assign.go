package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Assignments collects values of a task's fields as a JSON merge patch: for each field its new value, or null for its
// default. The fields are those of the table task.SpecFields; a test can use others.
type Assignments struct {
	Patch  map[string]any
	fields []task.Field
	reset  map[string]bool // the paths of fields that have been reset as a whole
}

// NewAssignments returns an empty patch of the fields of a task.
func NewAssignments() *Assignments {
	return &Assignments{Patch: map[string]any{}, fields: task.SpecFields(), reset: map[string]bool{}}
}

// location is where a value belongs: a field, a key of a field that is a map, or the end of a field that is a list.
type location struct {
	task.Field
	parents []task.Field // from the outermost to the object that contains the field
	key     string       // the key of a map; "" for the field itself
	append  bool         // the path ends in []
}

// path returns the path of the value.
func (l location) path() string {
	if l.key != "" {
		return l.Path + "." + l.key
	}
	return l.Path
}

// Set sets a field to a value that a user has written: "retry.jitter", "0.3". A path can also be that of a key of a map,
// "labels.team", or of the next element of a list, "retry.on[]". A list is JSON, or its elements separated by commas. A map
// or an object is JSON, which is added to what is there. An empty value, or null, resets a field to its default, and removes
// a key. Setting a field of a group of fields that exclude each other resets the others.
//
// Set checks the value as far as the field alone allows. Errors are of type *task.Error.
func (a *Assignments) Set(path, text string) error {
	at, err := a.locate(path)
	if err != nil {
		return err
	}
	if at.append {
		element, err := parseElement(at.Field, text)
		if err != nil {
			return task.Under(at.Path, err)
		}
		return a.addElement(at, element)
	}
	if text == "" || text == "null" {
		return a.put(at, nil)
	}

	return a.putText(at, text)
}

// SetText is Set for the value of a field of its own, such as that of a flag: an empty value and null are values like others.
func (a *Assignments) SetText(path, text string) error {
	at, err := a.locate(path)
	if err != nil {
		return err
	}
	if at.append {
		return a.unknown(path)
	}

	return a.putText(at, text)
}

// putText reads a value from its text and writes it into the patch.
func (a *Assignments) putText(at location, text string) error {
	value, err := parseValue(at, text)
	if err != nil {
		return task.Under(at.path(), err)
	}

	return a.put(at, value)
}

// SetValue sets a field to a value as in JSON: a string, a json.Number, a bool, a list, a map, or nil for the default.
func (a *Assignments) SetValue(path string, value any) error {
	at, err := a.locate(path)
	if err != nil {
		return err
	}
	if at.append {
		return a.unknown(path)
	}
	if value != nil {
		if err := check(at, value); err != nil {
			return task.Under(path, err)
		}
	}

	return a.put(at, value)
}

// locate returns the location of a path.
func (a *Assignments) locate(path string) (location, error) {
	l := location{}
	fields := a.fields

	for {
		next, rest, ok := matchField(fields, path)
		switch {
		case !ok:
			return l, a.unknown(path)
		case rest == "":
			l.Field = next
			return l, nil
		case rest == "[]" && next.Go.Kind() == reflect.Slice:
			l.Field, l.append = next, true
			return l, nil
		case strings.HasPrefix(rest, "[") && next.Go.Kind() == reflect.Slice:
			return l, task.Invalid(task.CodeBadValue, path, "is an element of a list; set the whole list: %s=[…], or add an element: %s[]=…", next.Path, next.Path)
		case next.Path == task.StepsField && len(rest) > 1 && rest[0] == '.':
			name, _, _ := strings.Cut(rest[1:], ".")
			l.parents, fields = append(l.parents, next), []task.Field{task.StepField(name)}
			continue
		case next.Go.Kind() == reflect.Map && len(rest) > 1 && rest[0] == '.':
			l.Field, l.key = next, rest[1:]
			return l, nil
		case len(next.Inner) == 0 || next.Go.Kind() == reflect.Slice:
			return l, a.unknown(path)
		}

		l.parents = append(l.parents, next)
		fields = next.Inner
	}
}

// matchField returns the field with which a path begins, and the rest of the path.
func matchField(fields []task.Field, path string) (f task.Field, rest string, ok bool) {
	for _, f := range fields {
		rest, found := strings.CutPrefix(path, f.Path)
		if found && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return f, rest, true
		}
	}

	return task.Field{}, "", false
}

// unknown returns the error for a path that is not a field, with a similar field, or fields of the same name elsewhere.
func (a *Assignments) unknown(path string) error {
	var all, sameName []string
	name := path[strings.LastIndexByte(path, '.')+1:]

	fields := task.Flatten(a.fields)
	if rest, found := strings.CutPrefix(path, task.StepsField+"."); found {
		step, _, _ := strings.Cut(rest, ".")
		fields = task.Flatten(task.StepField(step).Inner)
	}

	for _, f := range fields {
		if strings.Contains(f.Path, "[]") {
			continue
		}

		all = append(all, f.Path)
		if f.Name() == name {
			sameName = append(sameName, f.Path)
		}
	}

	meant := strings.Join(sameName, " or ")
	if meant == "" {
		meant = task.Nearest(path, all)
	}
	if meant != "" {
		meant = "; did you mean " + meant + "?"
	}

	return task.Invalid(task.CodeUnknown, path, "is not a field of a task%s", meant)
}

// parseValue reads the value for a location from its text.
func parseValue(at location, text string) (any, error) {
	if at.key != "" {
		return text, nil // all maps have strings as values
	}

	kind := at.Go.Kind()
	if kind != reflect.String { // space around JSON and numbers has no meaning; a file ends with a newline
		text = strings.TrimSpace(text)
	}

	isJSON := json.Valid([]byte(text))
	switch {
	case at.Type == "any JSON":
		if !isJSON {
			return nil, task.Invalid(task.CodeBadJSON, "", "%s is not JSON", task.Quote(text))
		}
		return checked(at, json.RawMessage(text))
	case kind == reflect.Map, len(at.Inner) > 0 && kind == reflect.Struct, at.Go == reflect.TypeFor[task.Noop]():
		if !isJSON || text[0] != '{' {
			return nil, task.Invalid(task.CodeBadValue, "", "%s is not a JSON object, such as %s", task.Quote(text), objectExample(at.Field))
		}
		return checked(at, json.RawMessage(text))
	case kind == reflect.Slice && isJSON && strings.HasPrefix(text, "["):
		return checked(at, json.RawMessage(text))
	case at.Go == reflect.TypeFor[task.Schedules](): // one expression, which can contain commas
		return checked(at, text)
	case kind == reflect.Slice:
		return parseList(at, text)
	}

	value, err := parseScalar(at.Go, text)
	if err != nil {
		return nil, err
	}

	return checked(at, value)
}

// objectExample returns what to write for a field that is an object.
func objectExample(f task.Field) string {
	if f.Go.Kind() == reflect.Map {
		return fmt.Sprintf(`{"KEY": "VALUE"}; to set one key, use %s.KEY=VALUE`, f.Path)
	}
	if len(f.Inner) > 0 {
		return fmt.Sprintf(`{"%s": …}; to set one field, use %s=…`, f.Inner[0].Name(), f.Inner[0].Path)
	}

	return "{}"
}

// parseList reads a list whose elements are separated by commas.
func parseList(at location, text string) (any, error) {
	list := []any{}
	for word := range strings.SplitSeq(text, ",") {
		element, err := parseElement(at.Field, strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		list = append(list, element)
	}

	return checked(at, list)
}

// parseElement reads an element of a list.
func parseElement(f task.Field, text string) (any, error) {
	t := f.Go.Elem()
	if t.Kind() == reflect.String {
		return text, nil
	}

	text = strings.TrimSpace(text)
	if t.Kind() != reflect.Struct {
		return parseScalar(t, text)
	}
	if !json.Valid([]byte(text)) || text[0] != '{' {
		return nil, task.Invalid(task.CodeBadValue, "", "%s is not a JSON object, such as {%q: …}", task.Quote(text), f.Inner[0].Name())
	}

	return json.RawMessage(text), nil
}

// parseScalar reads a value that is not a list or an object. The check of the value reports what is not valid.
func parseScalar(t reflect.Type, text string) (any, error) {
	isNumber := json.Valid([]byte(text)) && strings.ContainsAny(text[:1], "-0123456789")

	switch {
	case t == reflect.TypeFor[task.Duration](): // a string, although its kind is a number
	case t == reflect.TypeFor[task.Size](), t == reflect.TypeFor[task.Count]():
		if isNumber {
			return json.Number(text), nil
		}
	case t.Kind() == reflect.Bool:
		switch text {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
		return nil, task.Invalid(task.CodeBadValue, "", "%s is not true or false", task.Quote(text))
	case t.Kind() != reflect.String && t.Kind() != reflect.Struct:
		if isNumber {
			return json.Number(text), nil
		}
		return nil, task.Invalid(task.CodeBadValue, "", "%s is not a number", task.Quote(text))
	}

	return text, nil
}

// checked returns a value for a location, if it is valid.
func checked(at location, value any) (any, error) { return value, check(at, value) }

// check checks a value for a location: its type, and the tags of the field. Times are checked later, because they can be
// local.
func check(at location, value any) error {
	if at.key != "" || at.Go == reflect.TypeFor[task.Time]() {
		return nil
	}

	b, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write the value as JSON: %w", err)
	}

	v := reflect.New(at.Go)
	if err := task.DecodeStrict(b, v.Interface()); err != nil {
		return withoutPath(at.Path, err)
	}

	return withoutPath(at.Path, at.CheckRange(v.Elem()))
}

// withoutPath removes a path from the beginning of the field of an error.
func withoutPath(path string, err error) error {
	var fault *task.Error
	if errors.As(err, &fault) {
		fault.Field = strings.TrimPrefix(strings.TrimPrefix(fault.Field, path), ".")
	}

	return err
}

// put writes a value into the patch, and resets the fields that it excludes.
func (a *Assignments) put(at location, value any) error {
	object, siblings := a.Patch, a.fields
	for _, f := range append(at.parents, at.Field) {
		if a.reset[f.Path] {
			return task.Invalid(task.CodeBadValue, at.Path, "cannot be set, because %s is reset", f.Path)
		}
		if f.OneOf != "" && value != nil {
			if err := resetOthers(object, siblings, f); err != nil {
				return err
			}
		}
		if f.Path == at.Path {
			break
		}

		object, siblings = inner(object, f.Name()), f.Inner
	}

	name := at.Name()
	if at.key != "" {
		object, name = inner(object, name), at.key
	}
	switch {
	case object[name] == nil || at.append:
	case value == nil:
		return task.Invalid(task.CodeBadValue, at.path(), "cannot be reset, because a part of it is set")
	default:
		return task.Invalid(task.CodeDuplicate, at.path(), "is given twice")
	}

	object[name] = value
	if value == nil && at.key == "" {
		a.reset[at.Path] = true
	}

	return nil
}

// addElement adds an element to the list that the patch has for a field.
func (a *Assignments) addElement(at location, element any) error {
	object := a.Patch
	for _, f := range at.parents {
		object = inner(object, f.Name())
	}

	list, err := elementsOf(object[at.Name()])
	if err != nil {
		return err
	}

	list = append(list, element)
	if err := check(at, list); err != nil {
		return task.Under(at.Path, err)
	}

	return a.put(at, list)
}

// elementsOf returns the elements of a list in a patch, whatever its type is.
func elementsOf(list any) ([]any, error) {
	if list == nil {
		return nil, nil
	}

	b, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("write the list as JSON: %w", err)
	}

	var raw []json.RawMessage
	if json.Unmarshal(b, &raw) != nil {
		raw = []json.RawMessage{b} // a single expression of a schedule
	}

	elements := make([]any, len(raw))
	for i, element := range raw {
		elements[i] = element
	}

	return elements, nil
}

// inner returns the object with a name in an object of the patch. It creates it if necessary.
func inner(object map[string]any, name string) map[string]any {
	in, ok := object[name].(map[string]any)
	if ok {
		return in
	}

	in = map[string]any{}
	if raw, isRaw := object[name].(json.RawMessage); isRaw { // an object that was given as JSON
		var fields map[string]json.RawMessage
		_ = json.Unmarshal(raw, &fields) // it has been checked

		for key, value := range fields {
			in[key] = value // as it is written: large numbers, and the body of a request, must not change
			if string(value) == "null" {
				in[key] = nil
			}
		}
	}
	object[name] = in

	return in
}

// resetOthers resets the fields of an object that exclude a field. It is an error if one of them has been set, too.
func resetOthers(object map[string]any, siblings []task.Field, f task.Field) error {
	for _, other := range siblings {
		if other.OneOf != f.OneOf || other.Path == f.Path {
			continue
		}
		if object[other.Name()] != nil {
			return task.Invalid(task.CodeBadValue, f.Path, "cannot be combined with %s", other.Path)
		}

		object[other.Name()] = nil
	}

	return nil
}
