package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/schema"
	"github.com/carillonhq/carillon/pkg/task"
)

// MaxFile is how many bytes a file may have.
const MaxFile = 16 << 20

// Error is an error in a file, with its position. Line and column count from 1. Unwrap returns a *task.Error if the
// error concerns a field.
type Error struct {
	File         string
	Line, Column int
	Err          error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %v", e.File, e.Line, e.Column, e.Err)
}

// Unwrap returns the error without the position.
func (e *Error) Unwrap() error { return e.Err }

// Object is one task of a file.
type Object struct {
	Spec task.Spec
	// Err is an error in the values of this task: its name, its schedule, a range. The file as a whole can be read.
	Err error

	file string
	node *node
}

// Made returns an object for a task that was created from something else, at a line of a file.
func Made(file string, line int, spec task.Spec) Object {
	return Object{Spec: spec, file: file, node: &node{kind: kindObject, at: position{max(line, 1), 1}}}
}

// Locate adds file, line and column to an error that concerns one of the object's fields. If the file does not
// contain the field, the position is that of the object. Of errors that errors.Join has joined, each gets its own position.
func (o Object) Locate(err error) error {
	if all := task.Problems(err); len(all) > 1 {
		located := make([]error, len(all))
		for i, one := range all {
			located[i] = o.Locate(o.node.explainError(one))
		}

		return errors.Join(located...)
	}

	var placed *Error
	if errors.As(err, &placed) {
		placed.File = o.file
	}

	if err == nil || placed != nil {
		return err
	}

	var fault *task.Error
	field := ""
	if errors.As(err, &fault) {
		field = fault.Field
	}

	return o.LocateField(field, err)
}

// LocateField is Locate for an error that is not a *task.Error, such as an error of a server.
func (o Object) LocateField(field string, err error) error {
	_, at := o.node.findPath(field)
	return &Error{File: o.file, Line: at.line, Column: at.column, Err: err}
}

// Read reads the tasks of one file. Tasks without a namespace get the given one. An error means that the file
// cannot be read as tasks, and nothing of it may be used, even if the rest is valid. Errors in the values of a task
// are in its Err.
func Read(file string, b []byte, namespace string) ([]Object, error) {
	objects, err := readObjects(file, b, namespace)
	if err == nil {
		return objects, nil
	}
	if foreign := foreignText(file, b); foreign != nil {
		return nil, foreign
	}

	return nil, err
}

// readObjects implements Read.
func readObjects(file string, b []byte, namespace string) ([]Object, error) {
	docs, fault := splitDocuments(file, b)
	if fault != nil {
		fault.File = file
		return nil, fault
	}

	var objects []Object
	for _, doc := range docs {
		items := []*node{doc}
		if doc.kind == kindList {
			items = doc.items
		}

		for _, item := range items {
			o := Object{file: file, node: item}
			if err := o.decodeSpec(namespace); err != nil {
				return nil, o.Locate(err)
			}

			o.Err = o.Locate(checkForReader(&o.Spec))
			objects = append(objects, o)
		}
	}

	return objects, nil
}

// Check checks everything about a spec that can be checked without a server.
func Check(s *task.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return checkSchedules(s)
}

// checkForReader is CheckAll for a file. It costs what Check costs if the task is valid, as most of them are.
func checkForReader(s *task.Spec) error {
	if err := Check(s); err == nil {
		return nil
	}
	return CheckAll(s)
}

// CheckAll is Check for somebody who corrects a task: it returns several problems, joined by errors.Join.
func CheckAll(s *task.Spec) error {
	return errors.Join(s.ValidateAll(), checkSchedules(s))
}

// checkSchedules checks the expressions of a spec: its schedule, and the deadlines of its alerts.
func checkSchedules(s *task.Spec) error {
	err := schedule.Check(s.Timing())
	if err != nil || s.Alerts == nil || s.Alerts.SuccessBy == "" {
		return err
	}

	return alert.CheckSuccessBy(s.Alerts.SuccessBy, s.Timing())
}

// serverFields are the fields that a server adds to a task when it shows one.
var serverFields = map[string]bool{
	"uid": true, "generation": true, "created_at": true, "updated_at": true, "updated_by": true, "revision": true,
	"change": true, "next": true, "left_ms": true, "last_run": true, "active": true, "result": true, "replayed": true,
	"pause": true, "counted_runs": true, "failures_in_a_row": true, "no_next": true, "changed": true, "dry_run": true, "warnings": true, "warning_details": true, "state": true, "recent": true,
	"waiting_triggers": true, "dependents": true, "dropped_triggers": true,
}

// decodeSpec decodes the spec of an object, after it has removed the server's fields, added the namespace, and
// converted local times.
func (o *Object) decodeSpec(namespace string) error {
	if o.node.kind != kindObject {
		return task.Invalid(task.CodeBadValue, "", "a task must be a mapping of fields such as name, schedule and action")
	}
	if err := o.node.foreignObject(); err != nil {
		return err
	}

	n := o.node.withoutKeys(serverFields)
	if n.valueOf("namespace") == nil {
		n.pairs = append(n.pairs, pair{key: "namespace", at: n.at, value: &node{kind: kindString, scalar: quoteJSON(namespace), at: n.at}})
	}

	if err := n.localTimes(); err != nil {
		return err
	}

	spec, err := task.DecodeSpec(n.toJSON())
	o.Spec = spec

	return n.explainError(err)
}

// explainError replaces one of the decoder's messages by one for people who write YAML: a text that looks like a
// number or a boolean needs quotes.
func (n *node) explainError(err error) error {
	var fault *task.Error
	if len(task.Problems(err)) > 1 {
		return err // Locate explains each of them
	}
	if !errors.As(err, &fault) || fault.Code != task.CodeBadValue || !strings.HasSuffix(fault.Message, " is not a string") {
		return err
	}

	at, _ := n.findPath(fault.Field)
	culprit := at.firstUnquoted()
	if culprit == nil {
		return err
	}

	return &Error{Line: culprit.at.line, Column: culprit.at.column, Err: task.Invalid(fault.Code, fault.Field,
		"%s is not a string; put it in quotes: %q", culprit.text, culprit.text)}
}

// splitDocuments parses a file as JSON or YAML, depending on its name and its first character.
func splitDocuments(file string, b []byte) ([]*node, *Error) {
	if len(b) > MaxFile {
		return nil, faultAt(position{1, 1}, task.CodeTooLong, "", "the file is larger than %d bytes; use a .ndjson file, which has no size limit", MaxFile)
	}

	b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))
	if fault := checkText(b); fault != nil {
		return nil, fault
	}

	isJSON := strings.HasSuffix(file, ".json") || IsJSONLines(file)
	if start := bytes.TrimSpace(b); isJSON || (len(start) > 0 && (start[0] == '{' || start[0] == '[')) {
		docs, fault := readJSON(b, 1)

		// A file without the extension may also be YAML that begins with a brace: { name: x }
		if fault == nil || isJSON || fault.errorCode() == task.CodeDuplicate {
			return docs, fault
		}
	}

	return readYAML(b)
}

// errorCode returns the code of the *task.Error, or "".
func (e *Error) errorCode() string {
	var fault *task.Error
	if errors.As(e.Err, &fault) {
		return fault.Code
	}
	return ""
}

// checkText rejects characters that no text file contains, before a parser interprets them.
func checkText(b []byte) *Error {
	at := position{1, 1}
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return faultAt(at, task.CodeBadValue, "", "is not UTF-8")
		case r < ' ' && r != '\n' && r != '\r' && r != '\t', r == 0x7f:
			return faultAt(at, task.CodeBadValue, "", "contains the control character %U", r)
		case r == '\n':
			at = position{at.line + 1, 0}
		}

		at.column++
		i += size
	}

	return nil
}

// Document reads a file with one document, such as settings, into v, as strictly as Read reads tasks. An empty file
// changes nothing.
func Document(file string, b []byte, v any) error {
	return Checked(file, b, v, func() error { return nil })
}

// Checked is Document with a check of v afterwards. It adds the position to a *task.Error of a field.
func Checked(file string, b []byte, v any, check func() error) error {
	docs, fault := splitDocuments(file, b)
	if fault == nil && len(docs) > 1 {
		fault = faultAt(docs[1].at, task.CodeBadValue, "", "the file must contain only one document")
	}

	if fault != nil {
		fault.File = file
		return fault
	}

	if len(docs) == 0 {
		return check()
	}

	o := Object{file: file, node: docs[0]}
	if o.node.kind != kindObject {
		return o.Locate(task.Invalid(task.CodeBadValue, "", "the settings must be a mapping of names to values"))
	}
	if err := task.DecodeStrict(o.node.toJSON(), v); err != nil {
		return o.Locate(o.node.explainError(err))
	}

	return o.Locate(check())
}

// fileExtensions are the extensions of files that are read in a directory.
var fileExtensions = []string{".yaml", ".yml", ".json", ".jsonl", ".ndjson"}

// Files returns the file that a path names, or the task files of a directory and its subdirectories, ordered by
// name. Hidden files and directories are skipped.
func Files(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, withoutSyscall(path, err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}

	var files []string
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return withoutSyscall(p, err)
		case p != path && d.Name()[0] == '.' && d.IsDir():
			return fs.SkipDir
		case !d.IsDir() && d.Name()[0] != '.' && slices.Contains(fileExtensions, filepath.Ext(p)):
			files = append(files, p)
		}

		return nil
	})

	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: contains no task files; their names end in .yaml, .yml, .json, .jsonl or .ndjson", path)
	}

	return files, err
}

// Load reads a file, up to one byte more than MaxFile. Read rejects such a file.
func Load(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, withoutSyscall(path, err)
	}

	defer f.Close()

	return LoadFrom(path, f)
}

// LoadFrom is Load for a stream, such as standard input.
func LoadFrom(name string, r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, withoutSyscall(name, err)
	}
	return b, nil
}

// withoutSyscall replaces a file system error by one without the name of the system call.
func withoutSyscall(path string, err error) error {
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		err = inner.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// FindDuplicates returns an error for each task that occurs in several places, because it is not known which of them is
// intended.
func FindDuplicates(objects []Object) []error {
	var faults []error
	first := make(map[string]*Object, len(objects))
	for i := range objects {
		o := &objects[i]
		if o.Spec.Name == "" {
			continue
		}

		key := o.Spec.Namespace + "/" + o.Spec.Name
		before, again := first[key]
		if !again {
			first[key] = o
			continue
		}

		faults = append(faults, o.Locate(task.Invalid(task.CodeDuplicate, "name", "%s is defined twice; also in %s", task.Quote(o.Spec.Name), before.positionOf("name"))))
	}

	return faults
}

// positionOf returns the file and line of a field of the object.
func (o *Object) positionOf(field string) string {
	_, at := o.node.findPath(field)
	return fmt.Sprintf("%s:%d", o.file, at.line)
}

// timePattern matches RFC 3339, or a local time in the task's zone.
const timePattern = `^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?([Zz]|[-+][0-9]{2}:[0-9]{2})?)?$`

// Schema returns a JSON Schema, draft 2020-12, of a document that Read accepts: a task, or a list of tasks. Each
// document of a YAML file, and each line of a file with lines, is one. Read may reject what the schema accepts,
// such as an error in a schedule.
func Schema() ([]byte, error) {
	parts, err := schema.Parts()
	if err != nil {
		return nil, err
	}

	spec := parts["Spec"]
	fields := spec["properties"].(map[string]any)

	for _, name := range TimeFields() {
		field := fields[name].(map[string]any)
		delete(field, "format")
		field["pattern"] = timePattern
		field["examples"] = []any{"2026-12-24", "2026-12-24 18:00", "2026-12-24T18:00:00+01:00"}
	}

	fields["namespace"].(map[string]any)["description"] = "Default: the namespace given with -n, or default."
	for name := range serverFields {
		fields[name] = map[string]any{"description": "Added by Carillon when it shows a task; ignored.", "readOnly": true}
	}

	spec["title"] = "Task"
	spec["description"] = "A task as a user writes it. Omitted fields have their defaults."
	spec["examples"] = []any{json.RawMessage(`{"name": "nightly-backup", "schedule": "30 2 * * *", "timezone": "Europe/Berlin",
		"action": {"process": {"command": ["pg_dump", "orders"]}}, "timeout": "10m"}`)}
	task := map[string]any{"$ref": "#/$defs/Spec"}
	doc := map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title":   "Carillon tasks",
		"$defs":   parts,
		// Not anyOf, so that an editor shows the error in the task, and not that it is not a list either.
		"if":   map[string]any{"type": "array"},
		"then": map[string]any{"items": task},
		"else": task,
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")

	if err := e.Encode(doc); err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}

	return b.Bytes(), nil
}
