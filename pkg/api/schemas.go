package api

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/carillonhq/carillon/pkg/task"
)

// These stand in the document for types of package task that are not on the
// wire what they are in Go.
type (
	schedulesDoc struct{}
	durationDoc  struct{}
	stateDoc     struct{}
)

// Schema describes task.Schedules.
func (schedulesDoc) Schema(huma.Registry) *huma.Schema {
	one := 1
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeString},
		{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}, MinItems: &one},
	}, Examples: []any{"30 2 * * *", []string{"@every 90s"}}}
}

// Schema describes task.Duration.
func (durationDoc) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Examples: []any{"10m", "1h30m", "90s"}}
}

// Schema describes task.State.
func (stateDoc) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: values(task.States()...)}
}

func values[T ~string](list ...T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

func newRegistry(cfg *huma.Config) huma.Registry {
	reg := cfg.Components.Schemas
	reg.RegisterTypeAlias(reflect.TypeFor[task.Schedules](), reflect.TypeFor[schedulesDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Duration](), reflect.TypeFor[durationDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.State](), reflect.TypeFor[stateDoc]())
	reg.RegisterTypeAlias(reflect.TypeFor[task.Time](), reflect.TypeFor[time.Time]())
	reg.Schema(reflect.TypeFor[task.Spec](), true, "")
	return reg
}

// strict are the objects that users write: unknown fields are refused, and all
// but a few fields may be left out.
var strict = map[string][]string{
	"Spec": {"name", "schedule", "action"}, "DST": nil, "Action": nil, "Process": nil, "Noop": nil, "MissedPolicy": nil,
	"Retry": nil, "Target": nil, "History": nil, "TriggerRequest": nil, "ScheduleRequest": {"schedule"},
	"QueuePolicy": nil, "PauseRequest": nil, "RollbackRequest": nil, "ClusterSettings": nil, "Repairs": {"findings"}, "RepairRequest": {"kind", "key"},
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
	d := task.Defaults()
	for _, name := range []string{"Spec", "Task"} {
		if s := all[name]; s != nil {
			refineSpec(s, d)
		}
	}
	refineParts(all, d)
	all["SpecPatch"] = patchOf(all["Spec"])
}

func refineSpec(s *huma.Schema, d task.Spec) {
	p := s.Properties
	p["namespace"].Default = d.Namespace
	p["namespace"].Description = "Of a request's body: the path's, or absent."
	p["timezone"].Default = d.Timezone
	p["timeout"].Default = d.Timeout.String()
	p["kill_grace"].Default = d.KillGrace.String()
	choice(p["overlap"], d.Overlap, task.OverlapSkip, task.OverlapQueue, task.OverlapReplace, task.OverlapAllow)
	within(p["max_active"], 0, task.MaxActive, 0)
	within(p["max_runs"], 0, task.MaxRuns, 0)
	within(p["pause_after_failures"], 0, task.MaxFailures, 0)
	p["paused"].Default = false
	reason := task.MaxReason
	p["pause_reason"].MaxLength = &reason
	for _, field := range []string{"name", "namespace"} {
		most := task.MaxName
		p[field].MaxLength, p[field].Pattern = &most, "^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$"
	}
	most := task.MaxDescription
	p["description"].MaxLength = &most
}

func refineParts(all map[string]*huma.Schema, d task.Spec) {
	choice(all["DST"].Properties["gap"], d.DST.Gap, task.GapRunAfter, task.GapSkip)
	choice(all["DST"].Properties["fold"], d.DST.Fold, task.FoldFirst, task.FoldBoth)
	all["DST"].Description = "What a wall-clock schedule does where the clocks change: at a local time that does not exist, and at one that exists twice."
	all["Action"].Description = "What a run does: exactly one of these."
	all["Process"].Description = "Starts a program: either command or shell."

	m := all["MissedPolicy"].Properties
	choice(m["policy"], d.Missed.Policy, task.MissedLatest, task.MissedSkip, task.MissedAll)
	m["grace"].Default, m["window"].Default = d.Missed.Grace.String(), d.Missed.Window.String()
	within(m["limit"], 1, task.MaxMissed, d.Missed.Limit)

	r := all["Retry"].Properties
	within(r["attempts"], 1, task.MaxAttempts, d.Retry.Attempts)
	within(r["factor"], 1, 100, d.Retry.Factor)
	within(r["jitter"], 0, 1, d.Retry.Jitter)
	r["backoff"].Default, r["max_backoff"].Default = d.Retry.Backoff.String(), d.Retry.MaxBackoff.String()
	r["on"].Default = values(d.Retry.On...)
	r["on"].Items = &huma.Schema{Type: huma.TypeString, Enum: values(task.Failed, task.TimedOut, task.Lost)}
	r["on"].UniqueItems = true
	lowest, highest := 1.0, 255.0
	r["exit_codes"].Items = &huma.Schema{Type: huma.TypeInteger, Minimum: &lowest, Maximum: &highest}
	r["exit_codes"].UniqueItems = true

	q := all["QueuePolicy"].Properties
	within(q["limit"], 1, task.MaxQueue, task.DefaultQueue)
	choice(q["drop"], task.DropNewest, task.DropNewest, task.DropOldest)
	within(all["ClusterSettings"].Properties["catch_up_rate"], 0, maxCatchUpRate, nil)

	choice(all["Target"].Properties["strategy"], d.Target.Strategy, task.StrategyAuto)
	within(all["Target"].Properties["count"], 1, 1, d.Target.Count)
	within(all["History"].Properties["keep"], 1, task.MaxKeep, d.History.Keep)
	choice(all["History"].Properties["record"], d.History.Record, task.RecordAll, task.RecordFailures)
	within(all["ScheduleRequest"].Properties["count"], 1, maxCount, defaultCount)
}

func choice(s *huma.Schema, otherwise string, allowed ...string) {
	s.Default, s.Enum = otherwise, values(allowed...)
}

func within(s *huma.Schema, low, high float64, otherwise any) {
	s.Minimum, s.Maximum, s.Default = &low, &high, otherwise
}

// patchOf is the schema of a merge patch: any field may be left out, or be null.
func patchOf(spec *huma.Schema) *huma.Schema {
	p := &huma.Schema{
		Type: huma.TypeObject, AdditionalProperties: false, Properties: map[string]*huma.Schema{},
		Description: "A JSON merge patch of a Spec: what is left out stays, null is back to the default, objects are merged, lists are replaced.",
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Properties)) {
		field := *spec.Properties[name]
		field.Default = nil
		any := []*huma.Schema{&field, {Type: "null"}}
		if inner, ok := strings.CutPrefix(field.Ref, "#/components/schemas/"); ok {
			any[0] = &huma.Schema{Type: huma.TypeObject, Description: "A merge patch of " + inner + "."}
		}
		if field.AdditionalProperties != nil {
			any[0] = &huma.Schema{Type: huma.TypeObject, Description: "What is null goes, the rest is added."}
		}
		p.Properties[name] = &huma.Schema{AnyOf: any}
	}
	return p
}
