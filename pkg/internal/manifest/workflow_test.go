package manifest

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// flowYAML is a task with steps of all kinds.
const flowYAML = `name: orders
schedule: "0 2 * * *"
action:
  workflow:
    on_failure: continue
    steps:
      clean:
        needs:
          - load
        when: always
        process:
          command:
            - rm
            - "-rf"
            - /tmp/orders
        timeout: "5m"
      extract:
        process:
          command:
            - extract
        retry:
          attempts: 3
      load:
        needs:
          - extract
        map: "${steps.extract.results.files}"
        max_parallel: 4
        process:
          command:
            - load
          env:
            FILE: "${item}"
      notify:
        needs:
          - load
        when: failed
        http:
          method: POST
          url: "https://tickets.example.com/${step.name}"
          json:
            z: 1
            a: null
      shards:
        map: 20
        noop: {}
        retry:
          attempts: 1
          "on":
            - lost
        target:
          selector: role = db
`

// readFlow returns the task of flowYAML.
func readFlow(t *testing.T) task.Spec {
	t.Helper()
	objects, err := Read("orders.yaml", []byte(flowYAML), "default")
	if err != nil || objects[0].Err != nil {
		t.Fatalf("%v, %+v", err, objects)
	}

	return objects[0].Spec
}

// What is exported is what was written: a file with steps survives a round trip.
func TestMinimalSpec_OfAWorkflow(t *testing.T) {
	least, err := MinimalSpec(readFlow(t), true)
	if err != nil {
		t.Fatal(err)
	}
	got, err := WriteYAML(least)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != flowYAML {
		t.Errorf("got:\n%s", got)
	}
	if err := validate(t, compiled(t), "orders.yaml", got); err != nil {
		t.Error(err)
	}
}

// A change of one step changes nothing else, not even the order of the fields of a body.
func TestAssignments_SetFieldsOfSteps(t *testing.T) {
	a := NewAssignments()
	for _, set := range [][2]string{
		{"action.workflow.steps.load.timeout", "5m"},
		{"action.workflow.steps.load.process.env.MODE", "fast"},
		{"action.workflow.steps.load.max_parallel", ""},
		{"action.workflow.steps.clean.needs[]", "extract"},
		{"action.workflow.steps.shards.map", "30"},
		{"action.workflow.steps.check", `{"needs": ["load"], "noop": {}}`},
		{"action.workflow.steps.extract.http.url", "https://files.example.com"},
		{"action.workflow.on_failure", "stop"},
	} {
		if err := a.Set(set[0], set[1]); err != nil {
			t.Fatalf("%s: %v", set[0], err)
		}
	}

	before := readFlow(t)
	after, err := ApplyPatch(before, a.Patch)
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(&after); err != nil {
		t.Fatal(err)
	}

	steps := after.Action.Workflow.Steps
	got, _ := json.Marshal(map[string]any{"load": steps["load"], "clean": steps["clean"].Needs, "shards": steps["shards"].Map, "check": steps["check"], "extract": steps["extract"].Action().Kind(), "body": steps["notify"].HTTP.JSON})
	const want = `{"body":{"z":1,"a":null},"check":{"needs":["load"],"noop":{}},"clean":["extract"],"extract":"http",` +
		`"load":{"needs":["extract"],"map":"${steps.extract.results.files}","process":{"command":["load"],"env":{"FILE":"${item}","MODE":"fast"}},"timeout":"5m"},"shards":30}`
	if string(got) != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}

	// A step that is reset is removed.
	a = NewAssignments()
	if err := a.Set("action.workflow.steps.notify", ""); err != nil {
		t.Fatal(err)
	}
	if after, err = ApplyPatch(before, a.Patch); err != nil || len(after.Action.Workflow.Steps) != 4 {
		t.Errorf("%v, %d steps", err, len(after.Action.Workflow.Steps))
	}
}

func TestAssignments_RefuseFieldsOfSteps(t *testing.T) {
	for set, want := range map[string]string{
		"action.workflow.steps.load.timout=5m":    "action.workflow.steps.load.timout: is not a field of a task; did you mean action.workflow.steps.load.timeout?",
		"action.workflow.steps.load.when=never":   `action.workflow.steps.load.when: "never" is not one of succeeded, failed, always`,
		"action.workflow.steps.load=now":          `action.workflow.steps.load: "now" is not a JSON object`,
		"action.workflow.steps.load.map=all":      "",
		"action.workflow.steps.load.timeout=3":    `action.workflow.steps.load.timeout: "3" is not a duration`,
		"action.workflow.steps.load.noop.x=1":     "is not a field of a task",
		`action.workflow.steps={"a": {"nop": 1}}`: "action.workflow.steps.a.nop: is not a field",
	} {
		path, text, _ := strings.Cut(set, "=")
		err := NewAssignments().Set(path, text)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", set, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", set, err, want)
		}
	}
}

// The body of a step's request is kept as it is written, like that of an action.
func TestDecodePatch_KeepsBodiesOfSteps(t *testing.T) {
	doc, err := DecodePatch([]byte(`{"action": {"workflow": {"steps": {"a": {"http": {"json": {"z": null, "a": 12345678901234567890}}}, "b": {"noop": {}}, "c": null}}}}`))
	if err != nil {
		t.Fatal(err)
	}

	b, err := json.Marshal(mergePatch(nil, doc))
	if err != nil || !bytes.Contains(b, []byte(`{"z":null,"a":12345678901234567890}`)) {
		t.Errorf("%v: %s", err, b)
	}
}
