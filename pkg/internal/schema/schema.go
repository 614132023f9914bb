// Package schema describes a task as JSON Schema, derived from its Go type and the tags of its fields. Both the OpenAPI
// document and the schema for editors are built from it, so that they agree.
//
// A schema is less strict than the checks of packages task and schedule. They may reject what it accepts, such as a
// cron expression with an error.
package schema

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Refine adds to the schemas of a task and its parts what the tags of task.Spec say and huma does not read: defaults,
// ranges, groups of fields that exclude each other, and which fields are required.
func Refine(all map[string]*huma.Schema) {
	refineObject(all, all["Spec"], task.SpecFields())
	all["Noop"].AdditionalProperties = false
	refineSteps(all)

	// A receiver of alerts and a task that runs after others have a schedule by default.
	spec := all["Spec"]
	spec.Required = slices.DeleteFunc(spec.Required, func(name string) bool { return name == "schedule" })
	spec.AnyOf = []*huma.Schema{{Required: []string{"schedule"}}, {Required: []string{"receiver"}}, {Required: []string{"after"}}}

	one := 1
	all["HTTPTLS"].MinProperties = &one

	// Patterns of the values of maps have no tag.
	const variable = "^[A-Za-z_][A-Za-z0-9_]*$"
	all["HTTP"].Properties["results"].AdditionalProperties = &huma.Schema{Type: huma.TypeString, Pattern: "^(/|$)"}
	all["EnvFrom"].Properties["keys"].AdditionalProperties = &huma.Schema{Type: huma.TypeString, Pattern: variable}
	refineNames(all["Spec"].Properties)
}

// refineSteps refines the schema of a step. The schemas of what it has in common with a task, such as a process, are refined already.
func refineSteps(all map[string]*huma.Schema) {
	fields := slices.Clone(task.StepFields())
	for i := range fields {
		if name := fields[i].Go.Name(); name != "StepTarget" {
			fields[i].Inner = nil
		}
	}

	refineObject(all, all["Step"], fields)
}

// Spec adds the same to the fields of a task in another schema that contains them.
func Spec(s *huma.Schema) {
	for _, f := range task.SpecFields() {
		refineField(s.Properties[f.Path], f)
	}
	refineNames(s.Properties)
}

// refineNames adds the rules of names and labels that a pattern alone cannot express.
func refineNames(p map[string]*huma.Schema) {
	for _, field := range []string{"name", "namespace"} {
		p[field].Not = &huma.Schema{Pattern: `\.\.`}
	}

	longest := task.MaxLabel
	p["labels"].AdditionalProperties = &huma.Schema{Type: huma.TypeString, MaxLength: &longest, Pattern: "^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$"}
}

// refineObject refines the schema of an object with these fields, and those of the objects inside it.
func refineObject(all map[string]*huma.Schema, s *huma.Schema, fields []task.Field) {
	s.AdditionalProperties, s.Required = false, nil
	groups := map[string][]string{}

	for _, f := range fields {
		name := f.Name()
		refineField(s.Properties[name], f)
		if f.Required {
			s.Required = append(s.Required, name)
		}
		if f.OneRequired {
			groups[f.OneOf] = append(groups[f.OneOf], name)
		}

		if len(f.Inner) > 0 {
			t := f.Go
			if t.Kind() == reflect.Slice {
				t = t.Elem()
			}
			all[t.Name()].Description = f.Doc
			refineObject(all, all[t.Name()], f.Inner)
		}
	}

	for _, names := range groups { // an object has at most one group of which a field is required
		for _, name := range names {
			s.OneOf = append(s.OneOf, &huma.Schema{Required: []string{name}})
		}
	}
}

// refineField adds what the tags of a field say.
func refineField(s *huma.Schema, f task.Field) {
	s.Nullable = false
	if f.Default != "" && !f.HasDefault {
		s.Description = f.Doc + " Default: " + f.Default + "."
	}

	values := s
	switch {
	case f.Go == reflect.TypeFor[task.Duration]():
		s.Pattern = durationPattern
	case f.Go.Kind() == reflect.Slice && s.Items != nil:
		values = s.Items
	}

	// Editors cannot compare durations and sizes, which are strings.
	if low, err := strconv.ParseFloat(f.Min, 64); err == nil && values.Type != huma.TypeString && len(values.OneOf) == 0 {
		high, _ := strconv.ParseFloat(f.Max, 64) // task.FieldsOf has parsed it
		values.Minimum, values.Maximum = &low, &high
	}

	if value, ok := f.DefaultValue(); ok {
		s.Default = value
	}
}

// Within limits a field to numbers from low to high, both inclusive, and sets its default.
func Within(s *huma.Schema, low, high float64, otherwise any) {
	s.Minimum, s.Maximum, s.Default = &low, &high, otherwise
}

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

// In a document, these represent types of package task whose JSON form differs from their Go form.
type (
	schedulesDoc struct{}
	sourcesDoc   struct{}
	durationDoc  struct{}
	stateDoc     struct{}
	sizeDoc      struct{}
	countDoc     struct{}
	succeedDoc   struct{}
	verdictDoc   struct{}
	alertDoc     struct{}
	receiverDoc  struct{}
	mapDoc       struct{}
)

// Schema describes task.Schedules.
func (schedulesDoc) Schema(huma.Registry) *huma.Schema {
	one, most := 1, schedule.MaxExpressions
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeString, MinLength: &one},
		{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString, MinLength: &one}, MinItems: &one, MaxItems: &most},
	}, Examples: []any{"30 2 * * *", "@every 90s", "@daily", "0 9 * * MON-FRI", "H * * * *", "@manual", []string{"0 9 * * *", "0 18 * * *"}}}
}

// Schema describes task.Sources.
func (sourcesDoc) Schema(r huma.Registry) *huma.Schema {
	one, most, longest := 1, task.MaxSources, task.MaxName
	name := &huma.Schema{Type: huma.TypeString, MinLength: &one, MaxLength: &longest}
	object := r.Schema(reflect.TypeFor[task.Source](), true, "")

	return &huma.Schema{OneOf: []*huma.Schema{
		name, object,
		{Type: huma.TypeArray, Items: &huma.Schema{OneOf: []*huma.Schema{name, object}}, MinItems: &one, MaxItems: &most},
	}, Examples: []any{"import", map[string]any{"task": "import", "when": "failed"}, []any{"import", map[string]any{"task": "load", "when": "ended"}}}}
}

// durationPattern matches what task.ParseDuration accepts.
const durationPattern = `^([-+]?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)|([0-9]{1,6}w( ?[0-9]{1,6}d)?|[0-9]{1,6}d|([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))( ?([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*)$`

// Schema describes task.Duration.
func (durationDoc) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Examples: []any{"10m", "1h30m", "90s"}}
}

// sizePattern matches what task.ParseSize accepts.
const sizePattern = `^\s*([0-9]{1,15}\s*|[0-9]{1,15}(\.[0-9]{1,6})?\s*[kKMGT]i?)[bB]?\s*$`

// Schema describes task.Size.
func (sizeDoc) Schema(huma.Registry) *huma.Schema {
	lowest := 0.0
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeString, Pattern: sizePattern}, {Type: huma.TypeInteger, Minimum: &lowest}},
		Examples: []any{"64Mi", "1.5Gi", "10G"}}
}

// Schema describes task.State.
func (stateDoc) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: enumOf(task.States()...)}
}

// Schema describes task.Verdict.
func (verdictDoc) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString}
	for _, v := range task.Verdicts() {
		s.Enum = append(s.Enum, string(v.Verdict))
	}

	return s
}

// Schema describes task.AlertKind.
func (alertDoc) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: enumOf(append(slices.Clone(task.TaskAlertKinds[:]), task.AlertMore, task.AlertCluster)...)}
}

// Schema describes task.AlertReceiverState.
func (receiverDoc) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: enumOf(task.ReceiverNotified, task.ReceiverSending, task.ReceiverFailed, task.ReceiverWaiting, task.ReceiverSettled)}
}

// Schema describes task.Count.
func (countDoc) Schema(huma.Registry) *huma.Schema {
	one, most := 1.0, float64(task.MaxParts)
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeInteger, Minimum: &one, Maximum: &most}, {Type: huma.TypeString, Enum: []any{task.All.String()}},
	}}
}

// Schema describes task.Succeed.
func (succeedDoc) Schema(huma.Registry) *huma.Schema {
	one, most := 1.0, float64(task.MaxParts)
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeInteger, Minimum: &one, Maximum: &most}, {Type: huma.TypeString, Pattern: "^(all|any|[1-9][0-9]{0,3}%?)$"},
	}, Examples: []any{"all", "any", 3, "80%"}}
}

// Schema describes task.MapSource.
func (mapDoc) Schema(huma.Registry) *huma.Schema {
	one, most := 1.0, float64(task.MaxMapItems)
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeInteger, Minimum: &one, Maximum: &most}, {Type: huma.TypeString, Pattern: `^(\$\{steps\.[^.}]+\.results\.[^}]+\}|[1-9][0-9]{0,3})$`},
	}, Examples: []any{"${steps.extract.results.files}", 10}}
}

// enumOf returns the values of an enumeration in the form that a schema requires.
func enumOf[T ~string](list ...T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

// Register adds package task's types to a registry, and task.Spec as "Spec".
func Register(reg huma.Registry) {
	reg.RegisterTypeAlias(reflect.TypeFor[task.Schedules](), reflect.TypeFor[schedulesDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Sources](), reflect.TypeFor[sourcesDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Duration](), reflect.TypeFor[durationDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Size](), reflect.TypeFor[sizeDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.State](), reflect.TypeFor[stateDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Count](), reflect.TypeFor[countDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Succeed](), reflect.TypeFor[succeedDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Verdict](), reflect.TypeFor[verdictDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.AlertKind](), reflect.TypeFor[alertDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.AlertReceiverState](), reflect.TypeFor[receiverDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.MapSource](), reflect.TypeFor[mapDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Time](), reflect.TypeFor[time.Time]())
	reg.Schema(reflect.TypeFor[task.Spec](), true, "")
}
