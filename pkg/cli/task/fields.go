package task

import (
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// fieldRow is the JSON form of a field.
type fieldRow struct {
	Path        string   `json:"path"`
	Type        string   `json:"type"`
	Required    bool     `json:"required,omitempty"`
	Default     string   `json:"default,omitempty"`
	Values      []string `json:"values,omitempty"`
	Min         string   `json:"min,omitempty"`
	Max         string   `json:"max,omitempty"`
	MaxLength   int      `json:"max_length,omitempty"`
	Description string   `json:"description"`
}

// FieldsTopic returns the help topic about the fields of a task.
func FieldsTopic() *cobra.Command {
	return &cobra.Command{Use: "fields", Short: "The fields of a task", Long: fieldsText()}
}

// fieldsText describes all fields. It is the same for each command tree, and tests make hundreds of them.
var fieldsText = sync.OnceValue(func() string {
	return "These are the fields of a task, as in a task file, and for --set of carillon task create and\n" +
		"carillon task update. Durations look like 90s, 10m and 1h30m, sizes like 512Ki, 64Mi and 10G, and times\n" +
		"like 2026-12-24T18:00:00Z. carillon task fields PATH shows some of them.\n\n" +
		strings.TrimSuffix(wording.FieldsHelp(task.ReferenceFields(), 100), "\n")
})

// fieldsCommand returns "carillon task fields".
func fieldsCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fields [PATH...]",
		Short: "Describe the fields of a task",
		Long: "Describe the fields of a task, with their values and defaults. A path selects a field with all fields inside it,\n" +
			"or the fields whose name it is. The paths are those of task files and of --set.",
		Example: `  carillon task fields
  carillon task fields retry
  carillon task fields action.process.limits memory
  carillon task fields -o json`,
		ValidArgsFunction: completeFields,
	}
	factory.LimitFormats(cmd, output.FormatTable, output.FormatJSON, output.FormatJSONL, output.FormatYAML, output.FormatName)
	factory.WithoutConfig(cmd)
	cmd.RunE = func(_ *cobra.Command, words []string) error {
		fields, err := selectFields(words)
		if err != nil {
			return err
		}
		if f.ForPeople() {
			return f.Print(wording.FieldsHelp(fields, 100))
		}

		rows := make([]fieldRow, len(fields))
		for i, f := range fields {
			rows[i] = fieldRow{f.Path, f.Type, f.Required, f.Default, f.Enum, f.Min, f.Max, f.MaxLen, f.Doc}
		}

		return output.EmitList(&f.Printer, rows, func(r fieldRow) string { return r.Path }, nil)
	}

	return cmd
}

// selectFields returns the fields that words select, or all.
func selectFields(words []string) ([]task.Field, error) {
	all := task.ReferenceFields()
	if len(words) == 0 {
		return all, nil
	}

	var selected []task.Field
	for _, word := range words {
		matches := func(f task.Field) bool {
			inside := strings.HasPrefix(f.Path, word+".") || strings.HasPrefix(f.Path, word+"[]")
			return f.Path == word || inside || f.Name() == word
		}
		if !slices.ContainsFunc(all, matches) {
			e := failure.NotFound("%s is not a field of a task", task.Quote(word))
			if near := task.Nearest(word, fieldPaths(all)); near != "" {
				return nil, e.WithHint("did you mean: carillon task fields %s", near)
			}
			return nil, e.WithHint("for all fields: carillon task fields")
		}

		for _, f := range all {
			if matches(f) {
				selected = append(selected, f)
			}
		}
	}

	return selected, nil
}

// fieldPaths returns the paths of fields.
func fieldPaths(fields []task.Field) []string {
	paths := make([]string, len(fields))
	for i, f := range fields {
		paths[i] = f.Path
	}

	return paths
}

// settableFields returns the fields that --set can set: all but those of the objects in a list. If typed begins with the path of a
// step, it returns the fields of this step instead.
func settableFields(typed string) []task.Field {
	fields := task.Flatten(task.SpecFields())
	if rest, found := strings.CutPrefix(typed, task.StepsField+"."); found {
		if name, _, more := strings.Cut(rest, "."); more {
			fields = task.Flatten(task.StepField(name).Inner)
		}
	}

	return slices.DeleteFunc(fields, func(f task.Field) bool {
		return f.Path == "name" || f.Path == "namespace" || strings.Contains(f.Path, "[]")
	})
}

// completeFields completes the path of a field.
func completeFields(_ *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var offers []complete.Offer
	for _, f := range settableFields("") {
		offers = append(offers, complete.Offer{Word: f.Path, About: wording.FirstSentence(f.Doc)})
	}

	return complete.Matching(offers, done, typed)
}

// completeSet completes PATH=VALUE: the path first, then the values that the field allows.
func completeSet(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var offers []complete.Offer
	path, _, hasValue := strings.Cut(typed, "=")

	for _, f := range settableFields(typed) {
		about := wording.FirstSentence(f.Doc)
		switch {
		case !hasValue && len(f.Inner) > 0 && f.Type == "object":
		case !hasValue && strings.HasPrefix(f.Type, "map"):
			offers = append(offers, complete.Offer{Word: f.Path + ".", About: about})
		case !hasValue:
			offers = append(offers, complete.Offer{Word: f.Path + "=", About: about})
		case strings.TrimSuffix(path, "[]") != f.Path:
		case f.Type == "boolean":
			offers = append(offers, complete.Offer{Word: path + "=true"}, complete.Offer{Word: path + "=false"})
		default:
			for _, value := range f.Enum {
				offers = append(offers, complete.Offer{Word: path + "=" + value})
			}
		}
	}

	words, directive := complete.Matching(offers, nil, typed)
	if !hasValue {
		directive |= cobra.ShellCompDirectiveNoSpace
	}

	return words, directive
}

// completeSetFile completes PATH=FILE: the path, and then the name of a file.
func completeSetFile(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if strings.Contains(typed, "=") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return completeSet(cmd, done, typed)
}
