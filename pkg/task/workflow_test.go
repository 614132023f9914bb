package task_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// decodeWorkflow decodes and validates a task with these steps, given as JSON. more is added to the task.
func decodeWorkflow(steps, more string) (task.Spec, error) {
	s, err := task.DecodeSpec(fmt.Appendf(nil, `{"name":"a","schedule":"@daily","action":{"workflow":{"steps":%s}}%s}`, steps, more))
	if err == nil {
		err = s.Validate()
	}

	return s, err
}

// The steps of the example of the documentation.
const goodSteps = `{
	"extract": {"process": {"command": ["extract"]}, "timeout": "10m", "retry": {"attempts": 3}},
	"load": {"needs": ["extract"], "map": "${steps.extract.results.files}", "max_parallel": 8, "process": {"command": ["load"], "env": {"FILE": "${item}", "COST": "$${5}", "RUN": "${run.id}"}}},
	"pay": {"needs": ["load"], "http": {"url": "https://pay.example.com/${steps.extract.results.batch}"}},
	"fix": {"needs": ["pay"], "when": "failed", "noop": {}},
	"clean": {"needs": ["pay"], "when": "always", "timeout": "5m", "process": {"shell": "rm -rf /srv/tmp/orders", "stdin": {"text": "${step.name} ${steps.extract.results.batch}"}}}
}`

func TestWorkflow_AcceptsGoodSteps(t *testing.T) {
	s, err := decodeWorkflow(goodSteps, "")
	if err != nil {
		t.Fatal(err)
	}

	// A step may give some fields of a retry policy only.
	want := task.Defaults().Retry
	want.Attempts = 3
	if got := s.Action.Workflow.Steps["extract"].Retry; got == nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("retry: %+v, want %+v", got, want)
	}
	if r := s.Action.Workflow.Steps["load"].Retry; r != nil {
		t.Errorf("a step without retry has %+v", r)
	}

	// What was decoded is decoded again as the same.
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := task.DecodeSpec(b); err != nil || !reflect.DeepEqual(again, s) {
		t.Errorf("again: %+v, %v", again, err)
	}

	order, cycle := s.Action.Workflow.StepNames()
	if cycle != nil || !slices.Equal(order, []string{"extract", "load", "pay", "clean", "fix"}) {
		t.Errorf("order %v, cycle %v", order, cycle)
	}
}

func TestWorkflow_RefusesBadSteps(t *testing.T) {
	const field = "action.workflow.steps"
	noop := `"noop":{}`
	many := func(n int, step func(i int) string) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`"s%d":%s`, i, step(i)))
		}
		return "{" + strings.Join(list, ",") + "}"
	}

	for what, c := range map[string]struct {
		steps, more, code, field, says string
	}{
		"no steps":           {`{}`, "", task.CodeRequired, field, "at least one step"},
		"101 steps":          {many(101, func(int) string { return "{" + noop + "}" }), "", task.CodeTooMany, field, "101"},
		"repeated step":      {`{"a":{"noop":{}},"a":{"noop":{}}}`, "", task.CodeDuplicate, field + ".a", ""},
		"null":               {`{"a":null}`, "", task.CodeBadValue, field + ".a", "null"},
		"unknown field":      {`{"a":{"noop":{},"undo":{}}}`, "", task.CodeUnknown, field + ".a.undo", ""},
		"empty name":         {`{"":{"noop":{}}}`, "", task.CodeBadName, field, `""`},
		"name with a slash":  {`{"a/b":{"noop":{}}}`, "", task.CodeBadName, field, `"a/b"`},
		"name with a dot":    {`{"a.b":{"noop":{}}}`, "", task.CodeBadName, field, `"a.b"`},
		"long name":          {`{"` + strings.Repeat("a", 65) + `":{"noop":{}}}`, "", task.CodeBadName, field, "64 bytes"},
		"name with a NUL":    {`{"a\u0000":{"noop":{}}}`, "", task.CodeBadName, field, ""},
		"no action":          {`{"a":{}}`, "", task.CodeRequired, field + ".a", "process, http or noop"},
		"two actions":        {`{"a":{"noop":{},"process":{"command":["x"]}}}`, "", task.CodeBadValue, field + ".a", "both"},
		"nested":             {`{"a":{"workflow":{"steps":{}}}}`, "", task.CodeUnknown, field + ".a.workflow", ""},
		"bad action":         {`{"a":{"process":{"command":[""]}}}`, "", task.CodeRequired, field + ".a.process.command[0]", ""},
		"bad range":          {`{"a":{"process":{"command":["x"],"nice":99}}}`, "", task.CodeOutOfRange, field + ".a.process.nice", "99"},
		"bad env":            {`{"a":{"process":{"command":["x"],"env":{"A=B":"x"}}}}`, "", task.CodeBadEnv, field + ".a.process.env", ""},
		"bad selector":       {`{"a":{"noop":{},"target":{"selector":"a in ("}}}`, "", task.CodeBadSelector, field + ".a.target.selector", ""},
		"other target":       {`{"a":{"noop":{},"target":{"count":2}}}`, "", task.CodeUnknown, field + ".a.target.count", ""},
		"limit of 0":         {`{"a":{"process":{"command":["x"],"limits":{"memory":0}}}}`, "", task.CodeOutOfRange, field + ".a.process.limits.memory", "0 is not a limit"},
		"limit of 0 of HTTP": {`{"a":{"http":{"url":"https://a.example","limit":{"per_target":0}}}}`, "", task.CodeOutOfRange, field + ".a.http.limit.per_target", "0 is not a limit"},
		"retry of 0":         {`{"a":{"noop":{},"retry":{"attempts":0}}}`, "", task.CodeOutOfRange, field + ".a.retry.attempts", "0"},
		"retry of nothing":   {`{"a":{"process":{"command":["x"]},"retry":{"on":["lost"],"exit_codes":[1]}}}`, "", task.CodeBadValue, field + ".a.retry.exit_codes", ""},
		"short timeout":      {`{"a":{"noop":{},"timeout":"500ms"}}`, "", task.CodeOutOfRange, field + ".a.timeout", ""},
		"HTTP timeout":       {`{"a":{"http":{"url":"https://a.example"},"timeout":"2h"}}`, "", task.CodeOutOfRange, field + ".a.timeout", "HTTP"},
		"HTTP kill_signal":   {`{"a":{"http":{"url":"https://a.example"},"kill_signal":"SIGINT"}}`, "", task.CodeBadValue, field + ".a.kill_signal", "only to processes"},
		"noop kill_grace":    {`{"a":{"noop":{},"kill_grace":"1s"}}`, "", task.CodeBadValue, field + ".a.kill_grace", "noop"},
		"bad on_failure":     {`{"a":{"noop":{}}},"on_failure":"undo"`, "", task.CodeBadValue, "action.workflow.on_failure", "undo"},

		"unknown need":       {`{"load":{"noop":{}},"b":{"needs":["laod"],"noop":{}}}`, "", task.CodeBadValue, field + ".b.needs[0]", "did you mean"},
		"repeated need":      {`{"a":{"noop":{}},"b":{"needs":["a","a"],"noop":{}}}`, "", task.CodeBadValue, field + ".b.needs[1]", ""},
		"cycle":              {`{"x":{"noop":{}},"c":{"needs":["a"],"noop":{}},"a":{"needs":["b"],"noop":{}},"b":{"needs":["c","x"],"noop":{}}}`, "", task.CodeBadValue, field + ".a.needs", "a needs b needs c needs a"},
		"need of itself":     {`{"a":{"needs":["a"],"noop":{}}}`, "", task.CodeBadValue, field + ".a.needs", "a needs a"},
		"unknown when":       {`{"a":{"noop":{}},"b":{"needs":["a"],"when":"ended","noop":{}}}`, "", task.CodeBadValue, field + ".b.when", "ended"},
		"when without needs": {`{"a":{"when":"failed","noop":{}}}`, "", task.CodeRequired, field + ".a.needs", "when: failed"},
		"always, no timeout": {`{"a":{"noop":{}},"b":{"needs":["a"],"when":"always","noop":{}}}`, "", task.CodeRequired, field + ".b.timeout", "always"},
		"always, 2 h":        {`{"a":{"noop":{}},"b":{"needs":["a"],"when":"always","timeout":"2h","noop":{}}}`, "", task.CodeRequired, field + ".b.timeout", "1h"},
		"always, 4 attempts": {`{"a":{"noop":{}},"b":{"needs":["a"],"when":"always","timeout":"1m","retry":{"attempts":4},"noop":{}}}`, "", task.CodeOutOfRange, field + ".b.retry.attempts", "at most 3"},

		"map of 0":               {`{"a":{"map":0,"noop":{}}}`, "", task.CodeOutOfRange, field + ".a.map", "0 is not between 1 and 1000"},
		"map of 1001":            {`{"a":{"map":1001,"noop":{}}}`, "", task.CodeOutOfRange, field + ".a.map", "1001"},
		"map of -1":              {`{"a":{"map":-1,"noop":{}}}`, "", task.CodeBadValue, field + ".a.map", `"-1" is neither a number of items`},
		"map of a fraction":      {`{"a":{"map":1.5,"noop":{}}}`, "", task.CodeBadValue, field + ".a.map", "1.5"},
		"map of a list":          {`{"a":{"map":["x"],"noop":{}}}`, "", task.CodeBadValue, field + ".a.map", "a list is not a string"},
		"map of a text":          {`{"a":{"map":"files","noop":{}}}`, "", task.CodeBadValue, field + ".a.map", "files"},
		"map of a template":      {`{"a":{"noop":{}},"b":{"needs":["a"],"map":"x${steps.a.results.k}","noop":{}}}`, "", task.CodeBadValue, field + ".b.map", "neither"},
		"map of another value":   {`{"a":{"map":"${run.id}","noop":{}}}`, "", task.CodeBadValue, field + ".a.map", "neither"},
		"map of no ancestor":     {`{"a":{"noop":{}},"b":{"map":"${steps.a.results.k}","noop":{}}}`, "", task.CodeBadValue, field + ".b.map", "needs"},
		"map of a map":           {`{"a":{"map":2,"noop":{}},"b":{"needs":["a"],"map":"${steps.a.results.k}","noop":{}}}`, "", task.CodeBadValue, field + ".b.map", "has a map"},
		"max_parallel alone":     {`{"a":{"max_parallel":2,"noop":{}}}`, "", task.CodeBadValue, field + ".a.max_parallel", "requires map"},
		"max_parallel of 1001":   {`{"a":{"map":2,"max_parallel":1001,"noop":{}}}`, "", task.CodeOutOfRange, field + ".a.max_parallel", "1001"},
		"negative max_parallel":  {`{"a":{"map":2,"max_parallel":-1,"noop":{}}}`, "", task.CodeOutOfRange, field + ".a.max_parallel", "-1"},
		"result in a command":    {`{"a":{"noop":{}},"b":{"needs":["a"],"process":{"command":["x","-n${steps.a.results.n}"]}}}`, "", task.CodeBadValue, field + ".b.process.command[1]", "not replaced in commands"},
		"result in a shell":      {`{"a":{"noop":{}},"b":{"needs":["a"],"process":{"shell":"load ${steps.a.results.n}"}}}`, "", task.CodeBadValue, field + ".b.process.shell", "not replaced in commands"},
		"result of no step":      {`{"a":{"process":{"command":["x"],"env":{"K":"${steps.z.results.k}"}}}}`, "", task.CodeBadValue, field + ".a.process.env.K", `there is no step "z"`},
		"result of a later step": {`{"a":{"process":{"command":["x"],"env":{"K":"${steps.b.results.k}"}}},"b":{"needs":["a"],"noop":{}}}`, "", task.CodeBadValue, field + ".a.process.env.K", "add it to needs"},
		"result of itself":       {`{"a":{"process":{"command":["x"],"env":{"K":"${steps.a.results.k}"}}}}`, "", task.CodeBadValue, field + ".a.process.env.K", "add it to needs"},
		"result of a map":        {`{"a":{"map":2,"noop":{}},"b":{"needs":["a"],"http":{"url":"https://a.example/${steps.a.results.k}"}}}`, "", task.CodeBadValue, field + ".b.http.url", "has a map"},
		"bad name of a result":   {`{"a":{"noop":{}},"b":{"needs":["a"],"process":{"command":["x"],"env":{"K":"${steps.a.results.}"}}}}`, "", task.CodeBadValue, field + ".b.process.env.K", "not a known value"},
		"unknown root":           {`{"a":{"process":{"command":["x"],"env":{"K":"${HOME}"}}}}`, "", task.CodeBadValue, field + ".a.process.env.K", "$${"},
		"not closed":             {`{"a":{"process":{"command":["x"],"stdin":{"text":"${item"}}}}`, "", task.CodeBadValue, field + ".a.process.stdin.text", "not closed"},
		"item without map":       {`{"a":{"process":{"command":["x"],"env":{"K":"${item}"}}}}`, "", task.CodeBadValue, field + ".a.process.env.K", "with map"},
		"index without map":      {`{"a":{"http":{"url":"https://a.example","headers":{"X":"${item.index}"}}}}`, "", task.CodeBadValue, field + ".a.http.headers.X", "with map"},
		"part":                   {`{"a":{"map":2,"process":{"command":["x"],"env":{"K":"${part.index}"}}}}`, "", task.CodeBadValue, field + ".a.process.env.K", "item.index"},
		"secret in env":          {`{"a":{"process":{"command":["x"],"env":{"K":"${secret:s/k}"}}}}`, "", task.CodeBadValue, field + ".a.process.env.K", "env_from"},
		"variable":               {`{"a":{"http":{"url":"https://a.example/${env.DAY}"}}}`, "", task.CodeBadValue, field + ".a.http.url", "accept.env"},
		"cause without after":    {`{"a":{"process":{"command":["x"],"env":{"K":"${cause.task}"}}}}`, "", task.CodeBadValue, field + ".a.process.env.K", "after"},
		"cause not passed on":    {`{"a":{"process":{"command":["x"],"env":{"K":"${cause.results.k}"}}}}`, `,"overlap":"skip","after":{"task":"z"}`, task.CodeBadValue, field + ".a.process.env.K", "not passed on"},
		"17 results of a step": {strings.TrimSuffix(many(17, func(i int) string {
			return fmt.Sprintf(`{"needs":["a"],"process":{"command":["x"],"env":{"K":"${steps.a.results.k%d}"}}}`, i)
		}), "}") + `,"a":{"noop":{}}}`, "", task.CodeTooMany, "", "more than 16 results"},
		"large": {many(100, func(int) string {
			return `{"process":{"command":["x","` + strings.Repeat("x", 1400) + `"]}}`
		}), "", task.CodeTooLong, "action.workflow", "131072"},

		"count":       {`{"a":{"noop":{}}}`, `,"target":{"count":2}`, task.CodeBadValue, "target.count", "workflow"},
		"count all":   {`{"a":{"noop":{}}}`, `,"target":{"count":"all"}`, task.CodeBadValue, "target.count", "workflow"},
		"parts":       {`{"a":{"noop":{}}}`, `,"target":{"parts":3}`, task.CodeBadValue, "target.parts", "workflow"},
		"sticky":      {`{"a":{"noop":{}}}`, `,"target":{"strategy":"sticky"}`, task.CodeBadValue, "target.strategy", "workflow"},
		"at boot":     {`{"a":{"noop":{}}},"on_failure":"stop"`, `,"schedule":"@reboot"`, task.CodeDuplicate, "schedule", ""},
		"args":        {`{"a":{"noop":{}}}`, `,"accept":{"args":2}`, task.CodeBadValue, "accept.args", ""},
		"node of run": {`{"a":{"noop":{}}}`, `,"accept":{"target":true}`, task.CodeBadValue, "accept.target", "workflow"},
		"mail":        {`{"a":{"noop":{}}}`, `,"output":{"mail":["ann@example.com"]}`, task.CodeBadValue, "output.mail", ""},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := decodeWorkflow(c.steps, c.more)
			problems := task.Problems(err)
			if len(problems) == 0 {
				t.Fatalf("accepted; error %v", err)
			}

			got := problems[0]
			if got.Code != c.code || !strings.Contains(got.Message, c.says) || c.field != "" && got.Field != c.field {
				t.Errorf("%s %s: %s", got.Code, got.Field, got.Message)
			}
		})
	}
}

// A task that runs at boot, and a receiver, have no steps.
func TestWorkflow_IsNotForBootAndReceivers(t *testing.T) {
	steps := &task.Workflow{Steps: map[string]task.Step{"a": {Noop: &task.Noop{}}}}

	boot := task.Spec{Name: "a", Schedule: task.Schedules{task.BootSchedule}, Action: task.Action{Workflow: steps}}.WithDefaults()
	if e := task.Problems(boot.Validate()); len(e) != 1 || e[0].Field != "schedule" {
		t.Errorf("at boot: %v", e)
	}

	receiver := task.Spec{Name: "a", Receiver: &task.Receiver{}, Action: task.Action{Workflow: steps}}.WithDefaults()
	if e := task.Problems(receiver.Validate()); len(e) == 0 {
		t.Error("a receiver with steps was accepted")
	}
}

// A task with a workflow may have alerts, sources and variables of manual runs.
func TestWorkflow_WithTheRestOfATask(t *testing.T) {
	_, err := decodeWorkflow(`{"a":{"process":{"command":["x"],"env":{"P":"${run.period}","K":"${cause.results.k}"}}},"b":{"http":{"url":"https://a.example/${env.DAY}"}}}`,
		`,"timeout":"12h","overlap":"queue","after":{"task":"z","results":["k"]},"accept":{"env":["DAY"]},"alerts":{"failures":3},"retry":{"attempts":9}`)
	if err != nil {
		t.Error(err)
	}
}

// A Go program may leave out the fields of a retry policy that have a default.
func TestWithDefaults_CompletesTheRetriesOfSteps(t *testing.T) {
	given := &task.Workflow{Steps: map[string]task.Step{
		"a": {Noop: &task.Noop{}, Retry: &task.Retry{Attempts: 2}},
		"b": {Noop: &task.Noop{}, Retry: &task.Retry{Attempts: 2, Factor: 1, On: []task.State{task.Lost}}},
		"c": {Noop: &task.Noop{}},
	}}
	s := task.Spec{Name: "a", Schedule: task.Schedules{"@daily"}, Action: task.Action{Workflow: given}}.WithDefaults()
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}

	steps := s.Action.Workflow.Steps
	want := task.Defaults().Retry
	want.Attempts = 2
	if !reflect.DeepEqual(*steps["a"].Retry, want) || steps["b"].Retry.Backoff != 0 || steps["c"].Retry != nil {
		t.Errorf("%+v", steps)
	}
	if given.Steps["a"].Retry.Factor != 0 {
		t.Error("the workflow of the program has changed")
	}

	complete := task.Defaults()
	complete.Name, complete.Schedule, complete.Action.Workflow = "a", task.Schedules{"@daily"}, given
	if got := complete.WithDefaults(); got.Action.Workflow.Steps["a"].Retry.Factor != 0 {
		t.Errorf("a complete task became %+v", got.Action.Workflow)
	}
}

// The entry has no steps, so that owners need little memory, and is valid without them.
func TestWorkflow_IsNotInTheEntry(t *testing.T) {
	s, err := decodeWorkflow(goodSteps, "")
	if err != nil {
		t.Fatal(err)
	}

	e := task.NewEntry(task.Task{Spec: s, UID: "u"}, task.At(time.Now()), task.At(time.Now()))
	if b, _ := json.Marshal(e.Action); string(b) != `{"workflow":{}}` {
		t.Errorf("the entry has %s", b)
	}
	if err := e.Validate(); err != nil {
		t.Error(err)
	}
	if len(s.Action.Workflow.Steps) != 5 {
		t.Error("the task lost its steps")
	}
}
