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

func newRegistry(cfg *huma.Config) huma.Registry {
	reg := cfg.Components.Schemas
	schema.Register(reg)
	return reg
}

// strict are the objects that users write, beside tasks: unknown fields are refused,
// and all but a few fields may be left out.
var strict = map[string][]string{
	"TriggerRequest": nil, "ScheduleRequest": {"schedule"},
	"PauseRequest": nil, "RollbackRequest": nil, "ClusterSettings": nil, "Repairs": {"findings"}, "RepairRequest": {"kind", "key"},
}

// refine adds to the schemas what the Go types do not say: defaults, the values
// that are possible, and what may be left out.
func refine(reg huma.Registry) {
	all := reg.Map()
	for name, s := range all {
		for _, p := range s.Properties {
			if p.Type == huma.TypeArray {
				p.Nullable = false // lists are [], never null
			}
		}

		s.AdditionalProperties = nil // fields are added, never renamed
		if required, ok := strict[name]; ok {
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

// patchOf is the schema of a merge patch: any field may be left out, or be null.
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
