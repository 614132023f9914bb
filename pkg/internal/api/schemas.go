package api

import (
	"maps"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/carillonhq/carillon/pkg/internal/api/cluster"
	"github.com/carillonhq/carillon/pkg/internal/api/tasks"
	"github.com/carillonhq/carillon/pkg/internal/schema"
)

// newRegistry returns the registry of schemas, with the types that describe themselves.
func newRegistry(cfg *huma.Config) huma.Registry {
	reg := cfg.Components.Schemas
	schema.Register(reg)
	return reg
}

// strictObjects names the objects that users send, apart from tasks, with their required fields. Unknown fields are
// rejected, and all other fields are optional.
var strictObjects = map[string][]string{
	"TriggerRequest": nil, "ScheduleRequest": {"schedule"},
	"PauseRequest": nil, "RollbackRequest": nil, "ClusterSettings": nil, "Repairs": {"findings"}, "RepairRequest": {"kind", "key"},
	"TokenRequest": nil, "TokenScope": {"role"},
}

// refineSchemas adds to the schemas what the Go types do not express: defaults, allowed values, and which fields are
// optional.
func refineSchemas(reg huma.Registry) {
	all := reg.Map()
	for name, s := range all {
		for _, p := range s.Properties {
			if p.Type == huma.TypeArray {
				p.Nullable = false // the API always writes [] instead of null
			}
		}

		s.AdditionalProperties = nil // clients must accept unknown fields: later versions may add some
		if required, ok := strictObjects[name]; ok {
			s.AdditionalProperties, s.Required = false, required
		}
	}

	schema.Refine(all)

	if t := all["Task"]; t != nil {
		schema.Spec(t)
	}

	schema.Within(all["ClusterSettings"].Properties["catch_up_rate"], 0, cluster.MaxCatchUpRate, nil)
	schema.Within(all["ScheduleRequest"].Properties["count"], 1, tasks.MaxCount, tasks.DefaultCount)
	all["SpecPatch"] = patchOf(all["Spec"])
}

// patchOf returns the schema of a merge patch, in which any field may be absent or null.
func patchOf(spec *huma.Schema) *huma.Schema {
	p := &huma.Schema{
		Type: huma.TypeObject, AdditionalProperties: false, Properties: map[string]*huma.Schema{},
		Description: "A JSON merge patch of a Spec. Omitted fields stay, null restores the default, objects are merged, lists are replaced.",
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Properties)) {
		field := *spec.Properties[name]
		field.Default = nil
		any := []*huma.Schema{&field, {Type: "null"}}
		if inner, ok := strings.CutPrefix(field.Ref, "#/components/schemas/"); ok {
			any[0] = &huma.Schema{Type: huma.TypeObject, Description: "A merge patch of " + inner + "."}
		}

		if field.AdditionalProperties != nil {
			any[0] = &huma.Schema{Type: huma.TypeObject, Description: "null removes a name, other values are added."}
		}

		p.Properties[name] = &huma.Schema{AnyOf: any}
	}

	return p
}
