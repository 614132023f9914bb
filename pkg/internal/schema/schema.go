// Package schema describes a task as JSON Schema, derived from its Go type. Both the OpenAPI document and the
// schema for editors are built from it, so that they agree. What the Go type does not contain (defaults, ranges,
// allowed values) is added from the constants that package task enforces.
//
// A schema is less strict than the checks of packages task and schedule. They may reject what it accepts, such as a
// cron expression with an error.
package schema

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// requiredFields are the parts of a task, with the fields that each requires. The parts allow no unknown fields.
var requiredFields = map[string][]string{
	"Spec": {"name", "schedule", "action"}, "DST": nil, "Action": nil, "Process": nil, "Noop": nil, "MissedPolicy": nil,
	"Retry": nil, "Target": nil, "History": nil, "QueuePolicy": nil,
	"Limits": nil, "Success": nil, "Output": nil, "EnvFrom": nil, "Accept": nil, "Stdin": nil,
	"HTTP": {"url"}, "HTTPAuth": nil, "HTTPTLS": nil, "HTTPExpect": nil, "HTTPLimit": nil,
}

// Refine adds to the schemas of a task's parts what the Go types do not contain: defaults, allowed values, and
// which fields are required.
func Refine(all map[string]*huma.Schema) {
	for name, fields := range requiredFields {
		s := all[name]
		for _, p := range s.Properties {
			if p.Type == huma.TypeArray {
				p.Nullable = false
			}
		}

		s.AdditionalProperties, s.Required = false, fields
	}

	d := task.Defaults()
	Spec(all["Spec"])
	dst, action, process := all["DST"], all["Action"], all["Process"]
	setChoices(dst.Properties["gap"], d.DST.Gap, task.GapRunAfter, task.GapSkip)
	setChoices(dst.Properties["fold"], d.DST.Fold, task.FoldFirst, task.FoldBoth)
	dst.Description = "What a wall-clock schedule does where the clocks change: at a local time that does not exist, and at one that exists twice."
	dst.Properties["gap"].Description = "A local time that does not exist: run-after ticks once, right after the gap; skip does not."
	dst.Properties["fold"].Description = "A local time that exists twice: first ticks the first time, both ticks twice."
	one := 1
	action.Description = "What a run does: exactly one of these."
	action.MinProperties, action.MaxProperties = &one, &one
	all["Noop"].Description = "Succeeds at once: for benchmarks and tests."
	refineProcess(process)
	refineConfinement(process.Properties, all["Limits"].Properties)
	refineOutput(all["Output"].Properties)
	refineEnvFrom(all["EnvFrom"])
	refineAccept(all["Accept"])
	refineStdin(all["Stdin"])
	refineHTTP(all)

	m := all["MissedPolicy"].Properties
	setChoices(m["policy"], d.Missed.Policy, task.MissedLatest, task.MissedSkip, task.MissedAll)
	describeDuration(m["grace"], d.Missed.Grace)
	describeDuration(m["window"], d.Missed.Window)
	Within(m["limit"], 1, task.MaxMissed, d.Missed.Limit)
	refineRetry(all["Retry"].Properties, d.Retry)
	refineSuccess(all["Success"].Properties)

	q := all["QueuePolicy"].Properties
	Within(q["limit"], 1, task.MaxQueue, task.DefaultQueue)
	setChoices(q["drop"], task.DropNewest, task.DropNewest, task.DropOldest)
	target := all["Target"].Properties
	setChoices(target["strategy"], d.Target.Strategy, task.Strategies()...)
	refinePlace(target)
	target["count"].Default = d.Target.Count
	Within(target["parts"], 0, task.MaxParts, 0)
	target["stagger"].Pattern = durationPattern
	longest := task.MaxSelector
	target["selector"].MaxLength, target["selector"].Examples = &longest, []any{"role = db, zone in (a, b), !gpu, disk_free > 10Gi"}
	Within(all["History"].Properties["keep"], 1, task.MaxKeep, d.History.Keep)
	setChoices(all["History"].Properties["record"], d.History.Record, task.RecordAll, task.RecordFailures)
	for _, field := range []string{"keep_for", "ledger"} {
		all["History"].Properties[field].Pattern, all["History"].Properties[field].Nullable = durationPattern, false
	}
}

// refineRetry adds the allowed values of a retry policy.
func refineRetry(r map[string]*huma.Schema, d task.Retry) {
	Within(r["attempts"], 1, task.MaxAttempts, d.Attempts)
	Within(r["factor"], 1, 100, d.Factor)
	Within(r["jitter"], 0, 1, d.Jitter)
	describeDuration(r["backoff"], d.Backoff)
	describeDuration(r["max_backoff"], d.MaxBackoff)
	r["on"].Default = enumOf(d.On...)
	r["on"].Items = &huma.Schema{Type: huma.TypeString, Enum: enumOf(task.Failed, task.TimedOut, task.Lost)}
	r["on"].UniqueItems = true
	lowest, highest := 1.0, 255.0
	r["exit_codes"].Items = &huma.Schema{Type: huma.TypeInteger, Minimum: &lowest, Maximum: &highest}
	r["exit_codes"].UniqueItems = true
}

// refineSuccess adds the allowed values of the conditions for success.
func refineSuccess(s map[string]*huma.Schema) {
	lowest, highest, longest := 0.0, 255.0, task.MaxPattern
	s["exit_codes"].Items = &huma.Schema{Type: huma.TypeInteger, Minimum: &lowest, Maximum: &highest}
	s["exit_codes"].UniqueItems = true
	for _, field := range []string{"output", "not_output"} {
		s[field].MaxLength = &longest
	}

	s["output"].Examples = []any{"^backup complete$"}
	s["not_output"].Examples = []any{"(?i)error"}
}

// refinePlace adds the allowed values of the fields that determine on which node a run is placed.
func refinePlace(target map[string]*huma.Schema) {
	key, order, name := task.MaxKey, task.MaxOrder, task.MaxName
	target["key"].MaxLength = &key
	target["order"].MaxItems, target["order"].UniqueItems = &order, true
	target["order"].Items = &huma.Schema{Type: huma.TypeString, MaxLength: &name}
	target["strategy"].Description += " docs/how-to/place.md says what each does when a node is gone, full or draining."
}

// refineProcess adds the descriptions and the allowed values of a process.
func refineProcess(p *huma.Schema) {
	one, args, vars := 1, task.MaxArgs, task.MaxEnv
	p.Description = "Starts a program: either command or shell."
	p.OneOf = []*huma.Schema{{Required: []string{"command"}}, {Required: []string{"shell"}}}
	f := p.Properties
	f["command"].Description = "The program and its arguments, passed on as they are, without a shell."
	f["command"].MinItems, f["command"].MaxItems = &one, &args
	f["command"].Examples = []any{[]string{"pg_dump", "orders"}}
	f["shell"].Description, f["shell"].MinLength = "A line, or several, for /bin/sh -c.", &one
	f["env"].Description, f["env"].MaxProperties = "Environment variables; names that begin with CARILLON_ are set by Carillon.", &vars
	f["dir"].Pattern = "^/"
	sources := task.MaxEnvFrom
	f["env_from"].MaxItems = &sources
}

// refineEnvFrom adds the allowed values of a source of environment variables.
func refineEnvFrom(e *huma.Schema) {
	vars, name, variable := task.MaxEnv, task.MaxName, "^[A-Za-z_][A-Za-z0-9_]*$"
	e.Description = "Where variables come from whose values no task holds: either a file or a secret."
	e.OneOf = []*huma.Schema{{Required: []string{"file"}}, {Required: []string{"secret"}}}
	f := e.Properties
	f["file"].Pattern, f["prefix"].Pattern = "^/", variable
	f["secret"].MaxLength, f["secret"].Examples = &name, []any{"db"}
	f["keys"].MaxProperties, f["keys"].Examples = &vars, []any{map[string]string{"password": "PGPASSWORD"}}
	f["keys"].AdditionalProperties = &huma.Schema{Type: huma.TypeString, Pattern: variable}
}

// fieldDescriptions describe fields whose Go types have no description.
var fieldDescriptions = map[string]string{
	"namespace":   "Default: default; of a request's body the path's, or absent.",
	"description": "What the task is for.",
	"labels":      "To pick tasks by: -l team=data.",
	"dst":         "What a wall-clock schedule does where the clocks change.",
	"action":      "What a run does: exactly one of process, http and noop.",
	"queue":       "With overlap queue: how many ticks may wait.",
	"missed":      "What happens to ticks that come to light late.",
	"retry":       "Which failed attempts are followed by another, and when.",
	"target":      "On which nodes runs may run.",
	"history":     "What is kept of ended runs.",
	"success":     "What counts as success. Default: exit code 0.",
	"output":      "What is kept of what attempts print.",
	"paused":      "A paused task has no ticks; a manual trigger still runs.",
}

// Spec adds the allowed values of the fields of a task, in any schema that contains them.
func Spec(s *huma.Schema) {
	d, p := task.Defaults(), s.Properties
	for field, text := range fieldDescriptions {
		p[field].Description = text
	}

	p["namespace"].Default = d.Namespace
	p["timezone"].Default, p["timezone"].Examples = d.Timezone, []any{"Europe/Berlin", "America/New_York"}
	describeDuration(p["timeout"], d.Timeout)
	describeDuration(p["kill_grace"], d.KillGrace)

	for _, field := range []string{"jitter", "ttl", "start_deadline"} {
		p[field].Pattern = durationPattern
	}

	setChoices(p["kill_signal"], task.DefaultKillSignal, task.KillSignals()...)
	setChoices(p["overlap"], d.Overlap, task.OverlapSkip, task.OverlapQueue, task.OverlapReplace, task.OverlapAllow)
	Within(p["max_active"], 0, task.MaxActive, 0)
	Within(p["max_runs"], 0, task.MaxRuns, 0)
	Within(p["pause_after_failures"], 0, task.MaxFailures, 0)
	p["paused"].Default = false
	reason, name, description, labels, label := task.MaxReason, task.MaxName, task.MaxDescription, task.MaxLabels, task.MaxLabel

	p["pause_reason"].MaxLength = &reason
	for _, field := range []string{"name", "namespace"} {
		p[field].MaxLength, p[field].Pattern = &name, "^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$"
		p[field].Not = &huma.Schema{Pattern: `\.\.`}
	}

	p["name"].Examples = []any{"nightly-backup"}
	p["description"].MaxLength = &description
	p["labels"].MaxProperties = &labels
	p["labels"].AdditionalProperties = &huma.Schema{Type: huma.TypeString, MaxLength: &label, Pattern: "^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$"}
	p["labels"].Examples = []any{map[string]string{"team": "data"}}
}

// describeDuration adds the default and the form of a duration.
func describeDuration(s *huma.Schema, otherwise task.Duration) {
	s.Default, s.Pattern = otherwise.String(), durationPattern
}

// setChoices limits a field to some values. One of them is its default.
func setChoices(s *huma.Schema, otherwise string, allowed ...string) {
	s.Default, s.Enum = otherwise, enumOf(allowed...)
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

// refineAccept adds the allowed values of what a manual run may give.
func refineAccept(accept *huma.Schema) {
	vars := task.MaxEnv
	accept.Description = "What a manual run may give in addition to the task. A caller who may trigger the task may give all of it."

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

// refineConfinement adds the allowed values of the fields that confine a process, and of its limits.
func refineConfinement(p, limits map[string]*huma.Schema) {
	groups := task.MaxGroups
	p["groups"].MaxItems, p["groups"].UniqueItems = &groups, true
	p["umask"].Pattern, p["umask"].Examples = "^0?[0-7]{1,3}$", []any{"027"}
	Within(p["nice"], task.MinNice, task.MaxNice, nil)
	p["ionice"].Pattern, p["ionice"].Examples = "^(idle|(best-effort|realtime)(/[0-7])?)$", []any{"idle", "best-effort/7"}
	setChoices(p["enforce"], task.EnforceRequire, task.EnforceRequire, task.EnforceReport)

	for _, field := range []string{"no_new_privs", "private_tmp", "scratch"} {
		p[field].Default = false
	}

	limits["cpu_time"].Pattern = durationPattern
	for field, of := range map[string]struct{ least, most float64 }{
		"open_files": {task.MinOpenFiles, task.MaxOpenFiles}, "processes": {1, task.MaxPIDs}, "pids": {1, task.MaxPIDs}, "cpu": {task.MinCPU, task.MaxCPU},
	} {
		limits[field].Minimum, limits[field].Maximum = &of.least, &of.most
	}
}

// secretRefPattern matches NAME/KEY of a secret.
const secretRefPattern = "^[a-z0-9]([a-z0-9._-]*[a-z0-9])?/[A-Za-z_][A-Za-z0-9_]*$"

// refineHTTP adds the descriptions and the allowed values of an HTTP action and its parts.
func refineHTTP(all map[string]*huma.Schema) {
	h := all["HTTP"]
	h.Description = "Sends one request. An attempt writes it at most once."

	f := h.Properties
	f["method"].Enum = enumOf(task.HTTPMethods()...)
	f["url"].Pattern = "^([hH][tT][tT][pP][sS]?://[^/?#@\\s]|secret:)"
	f["url"].Examples = []any{"https://api.example.com/orders/${run.scheduled_time}", "secret:slack/url"}
	f["headers"].Examples = []any{map[string]string{"X-Key": "${secret:api/key}"}}
	f["json"].Examples = []any{map[string]string{"day": "${run.scheduled_time}"}}
	f["unsent_for"].Pattern, f["unsent_for"].Default = durationPattern, task.DefaultUnsentFor.String()
	Within(f["redirects"], 0, task.MaxRedirects, 0)
	f["output"].Enum = enumOf(task.HTTPOutputKeep)
	f["results"].AdditionalProperties = &huma.Schema{Type: huma.TypeString, Pattern: "^(/|$)"}
	f["results"].Examples = []any{map[string]string{"id": "/order/id"}}

	headers, results, one := task.MaxHeaders, task.MaxResults, 1
	f["headers"].MaxProperties, f["form"].MaxProperties, f["results"].MaxProperties = &headers, &headers, &results
	f["form"].MinProperties = &one
	f["limit"].Description = "What a request may use."

	refineHTTPAuth(all["HTTPAuth"], all["HTTPTLS"])

	expect, longest := all["HTTPExpect"].Properties, task.MaxPattern
	expect["status"].Items = &huma.Schema{Type: huma.TypeString, Pattern: "^[2-5]([0-9][0-9]|xx)$"}
	expect["status"].MaxItems, expect["status"].UniqueItems = &headers, true
	expect["body"].MaxLength = &longest

	Within(all["HTTPLimit"].Properties["per_target"], 1, task.MaxPerTarget, task.DefaultPerTarget)
	all["HTTPLimit"].Properties["body"].Default = task.DefaultHTTPBody.String()
}

// refineHTTPAuth adds the allowed values of credentials and certificates.
func refineHTTPAuth(auth, tls *huma.Schema) {
	auth.OneOf = []*huma.Schema{{Required: []string{"bearer"}}, {Required: []string{"basic"}}, {Required: []string{"signature"}}}
	for _, p := range auth.Properties {
		p.Pattern, p.Examples = secretRefPattern, []any{"api/key"}
	}

	one := 1
	tls.MinProperties = &one
	for _, p := range tls.Properties {
		p.Pattern, p.Examples = "^secret:"+secretRefPattern[1:], []any{"secret:api/ca"}
	}
}

// refineOutput adds the allowed values of the fields of a task's output.
func refineOutput(o map[string]*huma.Schema) {
	setChoices(o["streams"], task.StreamsMerged, task.StreamsMerged, task.StreamsApart)
	o["keep"].Pattern = durationPattern
	o["mask"].Default, o["mask"].Nullable = true, false
	o["compress"].Default, o["compress"].Nullable = true, false
}

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
