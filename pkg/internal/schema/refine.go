package schema

import (
	"github.com/danielgtaylor/huma/v2"

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
