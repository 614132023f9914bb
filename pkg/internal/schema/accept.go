package schema

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/carillonhq/carillon/pkg/task"
)

// refineAccept adds the allowed values of what a manual run may give.
func refineAccept(accept *huma.Schema) {
	vars := task.MaxEnv
	accept.Description = "What a manual run may give in addition to the task. Whoever may trigger the task may give all of it."

	f := accept.Properties
	Within(f["args"], 0, task.MaxAcceptArgs, 0)
	f["env"].Items = &huma.Schema{Type: huma.TypeString, Pattern: "^[^=]+$"}
	f["env"].MaxItems, f["env"].UniqueItems = &vars, true
	f["env"].Examples = []any{[]string{"DAY"}}
	f["target"].Default = false
}

// refineStdin adds the allowed values of the standard input of a process.
func refineStdin(stdin *huma.Schema) {
	longest := task.MaxStdinText
	stdin.Description = "The standard input of a process: exactly one of these. Default: empty."
	stdin.OneOf = []*huma.Schema{{Required: []string{"text"}}, {Required: []string{"secret"}}, {Required: []string{"file"}}}

	f := stdin.Properties
	f["text"].MaxLength = &longest
	f["secret"].Pattern, f["secret"].Examples = "^[^/]+/[A-Za-z_][A-Za-z0-9_]*$", []any{"db/password"}
	f["file"].Pattern = "^/"
}
