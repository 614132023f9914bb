package wording

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// FieldType describes which values a field of a task can have: "integer, 1 to 100".
func FieldType(f task.Field) string {
	words := []string{f.Type}
	if f.Max != "" {
		words = append(words, cmp.Or(f.Min, "0")+" to "+f.Max)
	}
	if len(f.Enum) > 0 {
		words = []string{strings.Join(f.Enum, ", ")}
		if f.Go.Kind() == reflect.Slice {
			words[0] = f.Type + ": " + words[0]
		}
	}

	switch {
	case f.MaxLen > 0 && f.Go.Kind() == reflect.String:
		words = append(words, fmt.Sprintf("at most %d bytes", f.MaxLen))
	case f.MaxLen > 0:
		words = append(words, fmt.Sprintf("at most %d", f.MaxLen))
	}

	return strings.Join(words, ", ")
}

// FieldDefault describes the value of a task without a field: "required" if there must be one, "" for an object.
func FieldDefault(f task.Field) string {
	switch {
	case f.Path == "schedule":
		return "required, unless after is set"
	case f.Required:
		return "required"
	}
	return f.Default
}

// FirstSentence returns the first sentence of a description, without its period.
func FirstSentence(text string) string {
	first, _, _ := strings.Cut(text, ". ")
	return strings.TrimSuffix(first, ".")
}

// FieldsHelp describes fields of a task for a terminal: the path, the values and the default, and below them the
// description in lines of at most width bytes.
func FieldsHelp(fields []task.Field, width int) string {
	var b strings.Builder
	for _, f := range fields {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}

		fmt.Fprintf(&b, "%s  (%s", f.Path, FieldType(f))
		if words := FieldDefault(f); f.Required {
			b.WriteString("; " + words)
		} else if words != "" {
			b.WriteString("; default: " + words)
		}

		b.WriteString(")\n" + wrapText(f.Doc, "    ", width))
	}

	return b.String()
}

// wrapText breaks a text between words into indented lines.
func wrapText(text, indent string, width int) string {
	var b strings.Builder
	line := indent
	for _, word := range strings.Fields(text) {
		if len(line)+len(word)+1 > width && strings.TrimSpace(line) != "" {
			b.WriteString(line + "\n")
			line = indent
		}
		if strings.TrimSpace(line) != "" {
			line += " "
		}
		line += word
	}

	return b.String() + line + "\n"
}
