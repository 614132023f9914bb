package wording

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

var update = flag.Bool("update", false, "write the tables of fields in docs/tasks.md anew")

func TestFieldType(t *testing.T) {
	for path, want := range map[string]string{
		"retry.attempts":          "integer, 1 to 100",
		"retry.on":                "list of strings: failed, timed_out, lost",
		"overlap":                 "skip, queue, replace, allow",
		"description":             "string, at most 4096 bytes",
		"labels":                  "map of strings, at most 64",
		"success.exit_codes":      "list of integers, 0 to 255",
		"action.process.limits":   "object",
		"action.process.env_from": "list of objects, at most 32",
	} {
		if f, _ := task.FindField(task.SpecFields(), path); FieldType(f) != want {
			t.Errorf("%s: %q, want %q", path, FieldType(f), want)
		}
	}
}

func TestFieldsHelp_WrapsDescriptions(t *testing.T) {
	f, _ := task.FindField(task.SpecFields(), "target.strategy")
	const want = `target.strategy  (auto, round-robin, random, weighted, least-loaded, hash, first, sticky; default: auto)
    How a node is chosen among those that
    match. docs/how-to/place.md says what
    each strategy does when a node is gone,
    full or draining.
`
	if got := FieldsHelp([]task.Field{f}, 43); got != want {
		t.Errorf("got:\n%s", got)
	}
}

// fieldTable matches a table of fields in a page, with the selection of its fields: paths, paths with .* for all fields
// inside, and * for all fields that no other table has.
var fieldTable = regexp.MustCompile(`(?s)<!-- fields: ([^>]*) -->\n.*?<!-- end of fields -->\n`)

// The reference lists every field of a task, with what its tags say.
func TestDocs_TasksListsEveryField(t *testing.T) {
	const file = "../../../docs/tasks.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	rest := slices.Clone(task.ReferenceFields()) // the fields that no table has

	tables := fieldTable.FindAllStringSubmatch(string(b), -1)
	selected := map[string][]task.Field{}
	for _, table := range tables {
		for word := range strings.FieldsSeq(table[1]) {
			for _, f := range slices.Clone(rest) {
				if f.Path == word || strings.HasSuffix(word, ".*") && strings.HasPrefix(f.Path, strings.TrimSuffix(word, "*")) {
					selected[table[1]] = append(selected[table[1]], f)
					rest = slices.DeleteFunc(rest, func(r task.Field) bool { return r.Path == f.Path })
				}
			}
		}
	}

	want := fieldTable.ReplaceAllStringFunc(string(b), func(table string) string {
		selection := fieldTable.FindStringSubmatch(table)[1]
		fields := selected[selection]
		if slices.Contains(strings.Fields(selection), "*") {
			fields = append(fields, rest...)
			rest = nil
		}

		prefix := ""
		if strings.HasPrefix(selection, "action.") {
			prefix = strings.TrimSuffix(selection, "*")
		}

		return "<!-- fields: " + selection + " -->\n" + markdownTable(fields, prefix) + "<!-- end of fields -->\n"
	})

	switch {
	case len(rest) > 0:
		t.Errorf("no table has %s", rest[0].Path)
	case want == string(b):
	case *update:
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Error("the tables of docs/tasks.md do not agree with the fields; run go test ./pkg/internal/wording -run Docs -update")
	}
}

// markdownTable returns a table of fields. It omits prefix from their paths, and objects whose fields it lists.
func markdownTable(fields []task.Field, prefix string) string {
	var b strings.Builder
	b.WriteString("| field | values | default | description |\n|---|---|---|---|\n")
	for _, f := range fields {
		if f.Type == "object" && len(f.Inner) > 0 && !f.Required {
			continue
		}

		words := FieldDefault(f)
		if f.HasDefault {
			words = "`" + words + "`"
		}

		description := strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(f.Doc)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", strings.TrimPrefix(f.Path, prefix), FieldType(f), words, description)
	}

	return b.String()
}
