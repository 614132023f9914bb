package settings

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

// ChangeFile reads the configuration, changes it, and replaces the file atomically, readable only by its owner.
// It keeps the rest of the file, including comments, if possible. Otherwise anew is set.
func (r *Resolver) ChangeFile(change func(*File) error) (f File, anew bool, err error) {
	path := r.Path()
	if path == "" {
		return File{}, false, failure.Usage("no configuration directory: CARILLON_CONFIG, XDG_CONFIG_HOME and HOME are not set")
	}

	f, _, err = ReadFile(path)
	if err != nil {
		return f, false, err
	}

	before, _, err := readFile(path)
	if err != nil {
		return f, false, err
	}

	was := File{f.Current, maps.Clone(f.Contexts)}

	if err := change(&f); err != nil {
		return f, false, err
	}

	text, kept, err := rewriteConfig(string(before), was, f)
	if err != nil {
		return f, false, err
	}

	return f, !kept, WritePrivateFile(path, []byte(text))
}

// rewriteConfig returns the text of a configuration after a change. kept is false if comments were lost,
// because the text does not have the usual form.
func rewriteConfig(text string, was, now File) (string, bool, error) {
	edited := editLines(text, was, now)
	// The edited lines are used only if they parse to exactly the intended configuration.
	var got File
	if manifest.Document("", []byte(edited), &got) == nil && sameConfig(got, now) {
		return edited, true, nil
	}

	b, err := json.Marshal(now)
	if err != nil {
		return "", false, fmt.Errorf("write the configuration: %w", err)
	}

	y, err := manifest.WriteYAML(b)

	return string(y), !strings.Contains(text, "#"), err
}

// sameConfig reports whether two configurations are equal.
func sameConfig(a, b File) bool {
	return a.Current == b.Current && maps.Equal(a.Contexts, b.Contexts)
}

// currentLine matches the line of the current context.
var currentLine = regexp.MustCompile(`(?m)^current:[^#\n]*(#.*)?\n?`)

// editLines changes the lines that a change concerns. It supports only the usual form, with one field in each
// line. The caller must check the result.
func editLines(text string, was, now File) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}

	// The line with the current context keeps its comment.
	if was.Current != now.Current {
		line := ""
		if now.Current != "" {
			line = "current: " + now.Current
		}

		switch m := currentLine.FindStringSubmatchIndex(text); {
		case m == nil:
			text = line + "\n" + text
		case line == "":
			text = text[:m[0]] + text[m[1]:]
		default:
			if m[2] >= 0 {
				line += " " + text[m[2]:m[3]]
			}
			text = text[:m[0]] + line + "\n" + text[m[1]:]
		}
	}

	// Contexts that are new or have changed.
	lines := slices.Collect(strings.Lines(text))
	for _, name := range slices.Sorted(maps.Keys(now.Contexts)) {
		if old, there := was.Contexts[name]; !there || old != now.Contexts[name] {
			lines = editContext(lines, name, fieldsOf(old), fieldsOf(now.Contexts[name]))
		}
	}

	// Contexts that were removed.
	for name := range was.Contexts {
		if _, there := now.Contexts[name]; there {
			continue
		}

		if from, to := contextLines(lines, name); from >= 0 {
			lines = slices.Delete(lines, from, to)
		}
	}

	if len(now.Contexts) == 0 {
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.TrimSpace(l) == "contexts:" })
	}

	return strings.Join(lines, "")
}

// fieldsOf returns the fields of a context in their YAML form, without empty ones.
func fieldsOf(c Context) map[string]string {
	fields := map[string]string{}
	v := reflect.ValueOf(c)

	for i, name := range FieldNames() {
		switch f := v.Field(i); {
		case f.IsZero():
		case f.Kind() == reflect.Bool:
			fields[name] = "true"
		default:
			fields[name] = quoteScalar(f.String())
		}
	}

	return fields
}

// barePattern matches texts that need no quotes in YAML.
var barePattern = regexp.MustCompile(`^[A-Za-z/~.][A-Za-z0-9_./:~-]*[A-Za-z0-9_/]$`)

// quoteScalar quotes a text if a YAML parser might not read it as a string.
func quoteScalar(s string) string {
	if barePattern.MatchString(s) && !slices.Contains([]string{"true", "false", "null", "yes", "no", "on", "off"}, strings.ToLower(s)) {
		return s
	}

	b, err := json.Marshal(s)
	if err != nil {
		return s // cannot happen: a string can always be encoded
	}

	return string(b)
}

// contextLines returns the range of lines of a context, including its name. from is -1 if it does not exist.
func contextLines(lines []string, name string) (from, to int) {
	inside := false
	from = -1
	for i, line := range lines {
		text := strings.TrimSpace(line)
		indent := len(line) - len(strings.TrimLeft(line, " "))
		blank := text == "" || text[0] == '#'
		switch {
		case from >= 0 && !blank && indent <= indentOf(lines[from]):
			return from, to
		case from >= 0:
			if !blank {
				to = i + 1
			}
		case blank:
		case indent == 0:
			inside = strings.HasPrefix(line, "contexts:")
		case inside && strings.TrimSpace(cutBefore(text, "#")) == name+":":
			from, to = i, i+1
		}
	}

	return from, to
}

// cutBefore returns the part of s before mark.
func cutBefore(s, mark string) string { s, _, _ = strings.Cut(s, mark); return s }

// indentOf returns the number of leading spaces.
func indentOf(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// editContext changes the lines of a context, or adds them.
func editContext(lines []string, name string, was, now map[string]string) []string {
	from, to := contextLines(lines, name)
	if from < 0 {
		at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "contexts:") })
		if at < 0 {
			lines = append(lines, "contexts:\n")
			at = len(lines) - 1
		}

		lines = slices.Insert(lines, at+1, "  "+name+":\n")
		from, to = at+1, at+2
	}

	// Existing fields define the indentation.
	indent := strings.Repeat(" ", indentOf(lines[from])+2)
	if from+1 < to {
		indent = strings.Repeat(" ", indentOf(lines[from+1]))
	}

	for _, key := range FieldNames() {
		if was[key] == now[key] {
			continue
		}

		at := slices.IndexFunc(lines[from+1:to], func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), key+":") })
		line := indent + key + ": " + now[key] + "\n"

		switch {
		case at >= 0 && now[key] == "":
			lines = slices.Delete(lines, from+1+at, from+2+at)
			to--
		case at >= 0:
			lines[from+1+at] = line
		case now[key] != "":
			lines = slices.Insert(lines, to, line)
			to++
		}
	}

	return lines
}

// WritePrivateFile replaces a file atomically with one that only its owner can read. If path is a symbolic
// link, its target is replaced.
func WritePrivateFile(path string, b []byte) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}

	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%s: %s", dir, failure.FileReason(err))
	}

	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // created with mode 0600
	if err != nil {
		return fmt.Errorf("%s: %s", dir, failure.FileReason(err))
	}

	_, err = f.Write(b)
	if serr := f.Sync(); err == nil {
		err = serr
	}

	if cerr := f.Close(); err == nil {
		err = cerr
	}

	if err == nil {
		err = os.Rename(f.Name(), path)
	}

	if err != nil {
		_ = os.Remove(f.Name()) // the first error is the one that matters
		return fmt.Errorf("%s: %s", path, failure.FileReason(err))
	}

	return nil
}

// AbsolutePath returns a path in the form in which the configuration stores it. It keeps ~/, because a shell
// does not expand it after "=".
func AbsolutePath(path string) string {
	if path == "" || strings.HasPrefix(path, "~/") {
		return path
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}

	return path
}
