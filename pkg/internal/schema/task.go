package schema

import (
	"encoding/json"
	"fmt"

	"github.com/danielgtaylor/huma/v2"
)

// Parts returns the schemas of a task and its parts, which refer to each other as #/$defs/NAME. "Spec" is the task.
func Parts() (map[string]map[string]any, error) {
	reg := huma.NewMapRegistry("#/$defs/", huma.DefaultSchemaNamer)
	Register(reg)
	Refine(reg.Map())

	b, err := json.Marshal(reg.Map())
	if err != nil {
		return nil, fmt.Errorf("write the schema of a task: %w", err)
	}

	var parts map[string]map[string]any
	if err := json.Unmarshal(b, &parts); err != nil {
		return nil, fmt.Errorf("read the schema of a task: %w", err)
	}

	return parts, nil
}
