package schema

import (
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// In a document, these represent types of package task whose JSON form differs from their Go form.
type (
	schedulesDoc struct{}
	durationDoc  struct{}
	stateDoc     struct{}
	sizeDoc      struct{}
	countDoc     struct{}
	succeedDoc   struct{}
)

// Schema describes task.Schedules.
func (schedulesDoc) Schema(huma.Registry) *huma.Schema {
	one, most := 1, schedule.MaxExpressions
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeString, MinLength: &one},
		{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString, MinLength: &one}, MinItems: &one, MaxItems: &most},
	}, Examples: []any{"30 2 * * *", "@every 90s", "@daily", "0 9 * * MON-FRI", "H * * * *", "@manual", []string{"0 9 * * *", "0 18 * * *"}}}
}

// durationPattern matches what time.ParseDuration accepts.
const durationPattern = `^[-+]?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`

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
	reg.RegisterTypeAlias(reflect.TypeFor[task.Duration](), reflect.TypeFor[durationDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Size](), reflect.TypeFor[sizeDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.State](), reflect.TypeFor[stateDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Count](), reflect.TypeFor[countDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Succeed](), reflect.TypeFor[succeedDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Time](), reflect.TypeFor[time.Time]())
	reg.Schema(reflect.TypeFor[task.Spec](), true, "")
}
