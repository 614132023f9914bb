package task

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Limits of workflows.
const (
	MaxSteps           = 100                    // steps of a workflow
	MaxMapItems        = 1000                   // items of a map
	MaxFlowParts       = MaxMapItems + MaxSteps // parts of a run: items, and steps without map
	MaxNamedResults    = 16                     // results of a step to which other steps refer
	MaxWorkflowBytes   = 128 << 10              // bytes of the JSON form
	MaxCleanupTimeout  = Duration(time.Hour)    // timeout of a step with when: always
	MaxCleanupAttempts = 3                      // attempts of such a step

	DefaultFlowTimeout = Duration(24 * time.Hour) // of a whole run
	DefaultMaxParallel = 10
)

// WhenAlways is a value of Step.When, beside WhenSucceeded (the default) and WhenFailed: the step begins whatever the steps in
// needs have done, also after a cancel or a timeout.
const WhenAlways When = "always"

// The values of Workflow.OnFailure: what happens to the other steps after a step has failed.
const (
	OnFailureStop     = "stop"
	OnFailureContinue = "continue"
)

// Workflow is an action with steps. The entry of its task contains an empty Workflow, because owners need the steps only
// while a run is active.
type Workflow struct {
	OnFailure string          `json:"on_failure,omitempty" doc:"After a step has failed, stop begins only steps with when: failed or always, and no further items of other maps. continue goes on with all steps whose needs allow it." absent:"stop" enum:"stop,continue"`
	Steps     map[string]Step `json:"steps,omitempty" doc:"The steps by name: letters, digits, '_' and '-', at most 64 bytes. Each has exactly one of process, http and noop." absent:"none" maxProperties:"100"`
}

// Step is a step of a workflow. Fields that are not set have the value of the task.
type Step struct {
	Needs []string `json:"needs,omitempty" doc:"The steps that must have ended before this one begins." absent:"none: it begins with the run" maxItems:"99" uniqueItems:"true"`
	When  When     `json:"when,omitempty" doc:"What the steps in needs must have done: all succeeded, at least one failed, or always. A step with always also runs after a cancel or a timeout, if a step before it has begun. It requires a timeout of at most 1h, and has at most 3 attempts." absent:"succeeded" enum:"succeeded,failed,always"`

	Map         MapSource `json:"map,omitempty" doc:"Runs the step once for each item: of a JSON array in a result of an earlier step, such as ${steps.extract.results.files}, or for a number of items. At most 1000." absent:"the step runs once"`
	MaxParallel int       `json:"max_parallel,omitempty" doc:"With map: how many items run at the same time." absent:"10" min:"1" max:"1000"`

	Process *Process `json:"process,omitempty" doc:"As action.process. Texts in env and stdin.text may refer to values, such as ${item} and ${steps.NAME.results.KEY}." oneof:"kind,required"`
	HTTP    *HTTP    `json:"http,omitempty" doc:"As action.http. Its templates may refer to the same values." oneof:"kind,required"`
	Noop    *Noop    `json:"noop,omitempty" doc:"Succeeds at once: for tests, and to join other steps." oneof:"kind,required"`

	Timeout    Duration    `json:"timeout,omitzero" doc:"Time limit of each attempt of the step." absent:"none; 30s with http" min:"1s" max:"8784h"`
	KillGrace  *Duration   `json:"kill_grace,omitempty" doc:"As kill_grace of a task." absent:"that of the task" min:"0s" max:"1h"`
	KillSignal string      `json:"kill_signal,omitempty" doc:"As kill_signal of a task." absent:"that of the task" enum:"SIGTERM,SIGINT,SIGQUIT,SIGHUP,SIGUSR1,SIGUSR2,SIGABRT,SIGALRM,SIGWINCH,SIGKILL"`
	Retry      *Retry      `json:"retry,omitempty" doc:"As retry of a task." absent:"that of the task"`
	Success    *Success    `json:"success,omitempty" doc:"As success of a task." absent:"that of the task"`
	Target     *StepTarget `json:"target,omitempty" doc:"On which nodes the step may run." absent:"those of the task"`
}

// StepTarget says which nodes may run a step.
type StepTarget struct {
	Selector string `json:"selector,omitempty" doc:"The nodes that may run the step, by labels and facts, instead of those of the task. With target: {}, any node may run it." absent:"that of the task" maxLength:"1024"`
}

// Action returns what the step does.
func (s Step) Action() Action { return Action{Process: s.Process, HTTP: s.HTTP, Noop: s.Noop} }

// EffectiveWhen returns what the steps in needs must have done.
func (s Step) EffectiveWhen() When { return cmp.Or(s.When, WhenSucceeded) }

// MapSource says for what a step is repeated: a reference to a result that is a JSON array or a number, or the number itself.
type MapSource string

// MarshalJSON encodes a number or a string.
func (m MapSource) MarshalJSON() ([]byte, error) {
	if n, ok := m.Number(); ok {
		return strconv.AppendInt(nil, int64(n), 10), nil
	}
	return json.Marshal(string(m))
}

// UnmarshalJSON accepts a number or a string.
func (m *MapSource) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] >= '0' && b[0] <= '9' {
		*m = MapSource(b)
		return nil
	}

	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return Invalid(CodeBadValue, "", "%s is neither a number of items nor a reference such as ${steps.NAME.results.KEY}", Quote(string(b)))
	}

	return m.UnmarshalText([]byte(text))
}

// UnmarshalText accepts every text. It is checked with the other steps.
func (m *MapSource) UnmarshalText(b []byte) error {
	*m = MapSource(b)
	return nil
}

// Number returns the number of items, if the source is one.
func (m MapSource) Number() (int, bool) {
	n, err := strconv.Atoi(string(m))
	return n, err == nil
}

// Result returns the step and the result to which the source refers.
func (m MapSource) Result() (step, name string, ok bool) {
	t, err := ParseTemplate(string(m))
	if err != nil || len(t) != 1 {
		return "", "", false
	}
	return ParseStepRef(t[0].Ref)
}

// The references to values that only steps of workflows have.
const (
	StepRefPrefix = "steps." // steps.NAME.results.KEY is a result of an earlier step
	ItemRef       = "item"
	ItemIndexRef  = "item.index"
	StepNameRef   = "step.name"
)

// ParseStepRef splits steps.NAME.results.KEY.
func ParseStepRef(ref string) (step, result string, ok bool) {
	rest, ok := strings.CutPrefix(ref, StepRefPrefix)
	if !ok {
		return "", "", false
	}
	step, result, ok = strings.Cut(rest, ".results.")

	return step, result, ok && stepName.MatchString(step) && ResultName.MatchString(result)
}

// IsStepRef reports whether a reference has a value only in a step of a workflow.
func IsStepRef(ref string) bool {
	return ref == ItemRef || ref == ItemIndexRef || ref == StepNameRef || strings.HasPrefix(ref, StepRefPrefix)
}

// stepName matches the names of steps. They have no dot and no slash, because steps.NAME.results.KEY and NAME/ITEM contain them.
var stepName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]{0,62}[A-Za-z0-9])?$`)

// Refs returns the distinct references in the texts of a step: in env, in stdin.text, and in the templates of a request.
func (s Step) Refs() []string {
	var list []string
	for _, r := range s.fieldRefs() {
		list = append(list, r.ref)
	}
	slices.Sort(list)

	return slices.Compact(list)
}

// fieldRefs returns the references of a step with their fields. It skips templates that cannot be parsed.
func (s Step) fieldRefs() []fieldRef {
	if s.HTTP != nil {
		return s.HTTP.refs()
	}

	var list []fieldRef
	for _, f := range s.templates() {
		t, err := ParseTemplate(f.text)
		if err != nil {
			continue
		}
		for _, p := range t {
			if p.Ref != "" {
				list = append(list, fieldRef{f.field, p.Ref})
			}
		}
	}

	return list
}

// fieldText is the text of a field.
type fieldText struct{ field, text string }

// templates returns the texts of a process that are templates.
func (s Step) templates() []fieldText {
	p := s.Process
	if p == nil {
		return nil
	}

	var list []fieldText
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		list = append(list, fieldText{"action.process.env." + name, p.Env[name]})
	}
	if p.Stdin != nil && p.Stdin.Text != "" {
		list = append(list, fieldText{"action.process.stdin.text", p.Stdin.Text})
	}

	return list
}

// refInCommand returns the field of a command that refers to a result of a step, or "". Commands are no templates, so that no value
// can become part of a command line, and no shell has a variable with such a name.
func (s Step) refInCommand() string {
	p := s.Process
	if p == nil {
		return ""
	}

	if strings.Contains(p.Shell, "${"+StepRefPrefix) {
		return "action.process.shell"
	}
	for i, arg := range p.Command {
		if strings.Contains(arg, "${"+StepRefPrefix) {
			return fmt.Sprintf("action.process.command[%d]", i)
		}
	}

	return ""
}

// StepNames returns the names of the steps in an order in which each step follows those that it needs. Steps that could be
// swapped are ordered by name. It returns the path of a cycle if there is one, such as [a b a].
func (w *Workflow) StepNames() (order, cycle []string) {
	done, visiting := map[string]bool{}, map[string]bool{}
	var path []string

	var visit func(name string) bool
	visit = func(name string) bool {
		if done[name] {
			return true
		}
		path = append(path, name)
		if visiting[name] {
			cycle = slices.Clone(path[slices.Index(path, name):])
			return false
		}
		visiting[name] = true

		needs := slices.Clone(w.Steps[name].Needs)
		slices.Sort(needs)
		for _, need := range needs {
			if _, known := w.Steps[need]; known && !visit(need) {
				return false
			}
		}

		path = path[:len(path)-1]
		done[name] = true
		order = append(order, name)

		return true
	}

	for _, name := range slices.Sorted(maps.Keys(w.Steps)) {
		if !visit(name) {
			return nil, cycle
		}
	}

	return order, nil
}

// ancestors returns all steps that end before a step begins. The steps must have no cycle.
func (w *Workflow) ancestors(name string) map[string]bool {
	all := map[string]bool{}
	var add func(string)
	add = func(name string) {
		for _, need := range w.Steps[name].Needs {
			if !all[need] {
				all[need] = true
				add(need)
			}
		}
	}
	add(name)

	return all
}

// validate checks the steps of a workflow.
func (w *Workflow) validate() error {
	const field = "action.workflow.steps"

	if len(w.Steps) == 0 {
		return Invalid(CodeRequired, field, "is required: at least one step")
	}

	for _, name := range slices.Sorted(maps.Keys(w.Steps)) {
		if !stepName.MatchString(name) {
			return Invalid(CodeBadName, field, "%s is not the name of a step: letters, digits, '_' and '-', beginning and ending with a letter or digit, at most 64 bytes", Quote(name))
		}
		if err := w.validateStep(name); err != nil {
			return underStep(name, err)
		}
	}

	order, cycle := w.StepNames()
	if cycle != nil {
		return Invalid(CodeBadValue, field+"."+cycle[0]+".needs", "is a cycle: %s", strings.Join(cycle, " needs "))
	}

	named := map[string]map[string]bool{} // the results of each step to which others refer
	for _, name := range order {
		if err := w.validateRefs(name, named); err != nil {
			return underStep(name, err)
		}
	}

	b, err := json.Marshal(w)
	if err != nil {
		return Invalid(CodeBadValue, "action.workflow", "%s", err)
	}
	if len(b) > MaxWorkflowBytes {
		return Invalid(CodeTooLong, "action.workflow", "is %d bytes as JSON; at most %d are allowed", len(b), MaxWorkflowBytes)
	}

	return nil
}

// underStep puts the field of a step's error below the step.
func underStep(name string, err error) error {
	e, ok := err.(*Error)
	if !ok {
		return err
	}

	moved := *e
	moved.Field = "action.workflow.steps." + name + "." + strings.TrimPrefix(e.Field, "action.")
	if e.Field == "action" {
		moved.Field = "action.workflow.steps." + name
	}

	return &moved
}

// validateStep checks the fields of a step that do not depend on the order of the steps.
func (w *Workflow) validateStep(name string) error {
	s := w.Steps[name]

	for i, need := range s.Needs {
		if _, known := w.Steps[need]; !known {
			return NoneOf(CodeBadValue, fmt.Sprintf("needs[%d]", i), need, slices.Sorted(maps.Keys(w.Steps))...)
		}
	}

	if err := s.checkStepTags(); err != nil {
		return err
	}
	if s.Action().Kind() == "" {
		return Invalid(CodeRequired, "action", "requires %s, %s or %s", KindProcess, KindHTTP, KindNoop)
	}
	if err := s.Action().Validate(); err != nil {
		return err
	}

	for _, f := range s.templates() {
		if _, err := ParseTemplate(f.text); err != nil {
			return Invalid(CodeBadValue, f.field, "%s; write $${ for the text ${", err)
		}
	}

	switch {
	case s.When == WhenAlways && (s.Timeout == 0 || s.Timeout > MaxCleanupTimeout):
		return Invalid(CodeRequired, "timeout", "of a step with when: always must be set, to at most %s: the step also runs after a cancel", MaxCleanupTimeout)
	case s.When == WhenAlways && s.Retry != nil && s.Retry.Attempts > MaxCleanupAttempts:
		return Invalid(CodeOutOfRange, "retry.attempts", "%d: a step with when: always has at most %d", s.Retry.Attempts, MaxCleanupAttempts)
	case s.When != "" && s.When != WhenSucceeded && len(s.Needs) == 0:
		return Invalid(CodeRequired, "needs", "is required with when: %s", s.When)
	case s.MaxParallel != 0 && s.Map == "":
		return Invalid(CodeBadValue, "max_parallel", "requires map")
	case s.HTTP != nil && s.Timeout > MaxHTTPTimeout:
		return Invalid(CodeOutOfRange, "timeout", "%s is more than %s, the maximum for an HTTP action", s.Timeout, MaxHTTPTimeout)
	}
	if err := s.validateKind(); err != nil {
		return err
	}

	if s.Target != nil {
		if _, err := ParseSelector(s.Target.Selector); err != nil {
			return Under("target.selector", err)
		}
	}
	if s.Retry != nil {
		if err := s.Retry.validate(); err != nil {
			return err
		}
	}
	if s.Success != nil {
		return s.Success.validate()
	}

	return nil
}

// validateKind refuses fields of a step that only processes have.
func (s Step) validateKind() error {
	if s.Process != nil {
		return nil
	}

	for _, f := range []struct {
		field string
		set   bool
	}{
		{"kill_grace", s.KillGrace != nil}, {"kill_signal", s.KillSignal != ""}, {"success", s.Success != nil},
		{"retry.exit_codes", s.Retry != nil && len(s.Retry.ExitCodes) > 0},
	} {
		if f.set {
			return Invalid(CodeBadValue, f.field, "applies only to processes, but the action is %s", s.Action().Kind())
		}
	}

	return nil
}

// StepFields returns the fields of a step. Callers must not change it.
var StepFields = sync.OnceValue(func() []Field { return FieldsOf(Step{}) })

// StepsField is the path of the map of steps, which has no inner fields in the table of all fields.
const StepsField = "action.workflow.steps"

// StepField returns the step with a name as a field, with the fields of a step inside it.
func StepField(name string) Field {
	path := StepsField + "." + name
	return Field{Path: path, Type: "object", Go: reflect.TypeFor[Step](), Inner: structFields(reflect.ValueOf(Step{}), path+".")}
}

// ReferenceFields returns the fields of a task as references list them: those of [SpecFields] with the fields inside them, and
// after the map of steps the fields of a step. What a step has in common with a task, such as the fields of a process, is not
// repeated.
var ReferenceFields = sync.OnceValue(func() []Field {
	var all []Field
	for _, f := range Flatten(SpecFields()) {
		all = append(all, f)
		if f.Path != StepsField {
			continue
		}

		for _, of := range StepField("NAME").Inner {
			inner := of.Inner
			if of.Go != reflect.TypeFor[StepTarget]() {
				of.Inner, inner = nil, nil
			}
			all = append(append(all, of), inner...)
		}
	}

	return all
})

// checkStepTags checks the fields of a step against their tags.
func (s Step) checkStepTags() (err error) {
	checkRanges(reflect.ValueOf(s), StepFields(), func(problem error) bool {
		err = problem
		return false
	})

	return err
}

// validateRefs checks the references of a step to other steps and to items. named collects the results to which steps refer.
func (w *Workflow) validateRefs(name string, named map[string]map[string]bool) error {
	s, before := w.Steps[name], w.ancestors(name)

	checkResult := func(field, text, step, result string) error {
		switch _, known := w.Steps[step]; {
		case !known:
			return Invalid(CodeBadValue, field, "%s: there is no step %s", Quote(text), Quote(step))
		case !before[step]:
			return Invalid(CodeBadValue, field, "%s: step %s does not always end before this one; add it to needs", Quote(text), step)
		case w.Steps[step].Map != "":
			return Invalid(CodeBadValue, field, "%s: step %s has a map, so each of its items has results of its own", Quote(text), step)
		}

		if named[step] == nil {
			named[step] = map[string]bool{}
		}
		if named[step][result] = true; len(named[step]) > MaxNamedResults {
			return Invalid(CodeTooMany, field, "%s: other steps refer to more than %d results of step %s", Quote(text), MaxNamedResults, step)
		}

		return nil
	}

	if field := s.refInCommand(); field != "" {
		return Invalid(CodeBadValue, field, "${%s…} is not replaced in commands; use it in env, and the variable in the command", StepRefPrefix)
	}

	if s.Map != "" {
		n, isNumber := s.Map.Number()
		step, result, isRef := s.Map.Result()
		switch {
		case isNumber && (n < 1 || n > MaxMapItems):
			return Invalid(CodeOutOfRange, "map", "%d is not between 1 and %d", n, MaxMapItems)
		case !isNumber && !isRef:
			return Invalid(CodeBadValue, "map", "%s is neither a number of items nor a reference such as ${steps.NAME.results.KEY}", Quote(string(s.Map)))
		case isRef:
			if err := checkResult("map", string(s.Map), step, result); err != nil {
				return err
			}
		}
	}

	for _, r := range s.fieldRefs() {
		text := "${" + r.ref + "}"
		step, result, isRef := ParseStepRef(r.ref)
		switch {
		case isRef:
			if err := checkResult(r.field, text, step, result); err != nil {
				return err
			}
		case (r.ref == ItemRef || r.ref == ItemIndexRef) && s.Map == "":
			return Invalid(CodeBadValue, r.field, "%s has a value only in a step with map", Quote(text))
		case strings.HasPrefix(r.ref, "part."):
			return Invalid(CodeBadValue, r.field, "%s is not for steps; use ${item.index}", Quote(text))
		case s.Process != nil && (strings.HasPrefix(r.ref, SecretRefPrefix) || strings.HasPrefix(r.ref, EnvRefPrefix)):
			return Invalid(CodeBadValue, r.field, "%s: a process gets secrets by env_from", Quote(text))
		}
	}

	return nil
}

// completeSteps fills in the defaults of the retry policies of steps, of which a document may give some fields only, and rejects
// explicit limits of 0, as those of a task.
func (w *Workflow) completeSteps(b []byte) error {
	var said struct {
		Action struct {
			Workflow struct {
				Steps map[string]json.RawMessage `json:"steps"`
			} `json:"workflow"`
		} `json:"action"`
	}
	if err := json.Unmarshal(b, &said); err != nil {
		return err
	}

	for _, name := range slices.Sorted(maps.Keys(w.Steps)) {
		step := w.Steps[name]
		if err := step.complete(said.Action.Workflow.Steps[name]); err != nil {
			return underStep(name, err)
		}
		w.Steps[name] = step
	}

	return nil
}

// complete does for a step, which was decoded from b, what completeSteps does for all steps.
func (s *Step) complete(b []byte) error {
	var said struct {
		Retry       json.RawMessage `json:"retry"`
		MaxParallel *int            `json:"max_parallel"`
	}
	if err := json.Unmarshal(b, &said); err != nil {
		return err
	}

	if s.Retry != nil {
		retry := Defaults().Retry
		if err := json.Unmarshal(said.Retry, &retry); err != nil {
			return err
		}
		if retry.On == nil {
			retry.On = Defaults().Retry.On
		}
		s.Retry = &retry
	}

	// The checks of limits read the action of a task.
	asTask := slices.Concat([]byte(`{"action":`), b, []byte(`}`))
	switch {
	case said.MaxParallel != nil && *said.MaxParallel == 0:
		return Invalid(CodeOutOfRange, "max_parallel", "0 is not between 1 and %d", MaxMapItems)
	case s.Process != nil:
		return s.Process.Limits.refuseNone(asTask)
	case s.HTTP != nil:
		if err := normalizeHTTP(s.HTTP); err != nil {
			return err
		}
		return s.HTTP.Limit.refuseNone(asTask)
	}

	return nil
}

// validateWorkflow refuses fields of a task that have no meaning for a workflow, or that its steps cannot follow.
func (s *Spec) validateWorkflow() error {
	if s.Action.Workflow == nil {
		return nil
	}

	for _, f := range []struct {
		field string
		set   bool
	}{
		{"target.count", s.Target.Count != 1}, {"target.parts", s.Target.Parts != 0}, {"target.stagger", s.Target.Stagger != 0}, {"target.succeed", s.Target.Succeed != ""},
		{"receiver", s.Receiver != nil}, {"accept.args", s.Accept.Args > 0}, {"accept.target", s.Accept.Target}, {"output.mail", len(s.Output.Mail) > 0},
	} {
		if f.set {
			return Invalid(CodeBadValue, f.field, "cannot be combined with a workflow; omit this field")
		}
	}

	switch {
	case s.Target.Strategy == StrategySticky:
		return Invalid(CodeBadValue, "target.strategy", "%s cannot be combined with a workflow, whose steps run on several nodes", StrategySticky)
	case s.Schedule.AtBoot():
		return Invalid(CodeBadValue, "schedule", "%s cannot be combined with a workflow", BootSchedule)
	}

	for _, name := range slices.Sorted(maps.Keys(s.Action.Workflow.Steps)) {
		if err := s.validateStepInTask(s.Action.Workflow.Steps[name]); err != nil {
			return underStep(name, err)
		}
	}

	return nil
}

// validateStepInTask checks references of a step to values that depend on other fields of its task.
func (s *Spec) validateStepInTask(step Step) error {
	refs := step.fieldRefs()
	for _, r := range refs {
		if variable, ok := strings.CutPrefix(r.ref, EnvRefPrefix); ok && !slices.Contains(s.Accept.Env, variable) {
			return Invalid(CodeBadValue, r.field, "%s has a value only if manual runs may set it: add %s to accept.env", Quote("${"+r.ref+"}"), variable)
		}
	}

	return s.checkCauseRefs(refs)
}
