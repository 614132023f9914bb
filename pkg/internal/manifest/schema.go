package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/carillonhq/carillon/pkg/internal/schema"
)

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

	for _, name := range timeFields {
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
