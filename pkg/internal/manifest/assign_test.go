package manifest

import (
	"encoding/json"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// madeUp is a task with a field that no other code knows.
type madeUp struct {
	task.Spec
	Lucky struct {
		Numbers []int             `json:"numbers,omitempty" doc:"The numbers that bring luck." absent:"none" min:"1" max:"49" uniqueItems:"true"`
		Charms  map[string]string `json:"charms,omitempty" doc:"What to carry." absent:"none"`
		Until   task.Duration     `json:"until,omitzero" doc:"For how long." absent:"forever" max:"8d"`
	} `json:"lucky,omitzero" doc:"What brings luck."`
}

// A field that is added to the struct can be set, without another line of code.
func TestAssignments_SetAFieldThatIsAdded(t *testing.T) {
	fields := task.FieldsOf(madeUp{Spec: task.Defaults()})

	for _, c := range []struct{ path, text, want string }{
		{"lucky.numbers", "7,13", `{"lucky":{"numbers":[7,13]}}`},
		{"lucky.numbers[]", "7", `{"lucky":{"numbers":[7]}}`},
		{"lucky.numbers", "", `{"lucky":{"numbers":null}}`},
		{"lucky.charms.left.hand", "clover", `{"lucky":{"charms":{"left.hand":"clover"}}}`},
		{"lucky.charms.hand", "null", `{"lucky":{"charms":{"hand":null}}}`},
		{"lucky.until", "1w", `{"lucky":{"until":"1w"}}`},
		{"lucky", `{"until": "1h"}`, `{"lucky":{"until":"1h"}}`},
		{"lucky", "null", `{"lucky":null}`},
		{"lucky.numbers", "7,50", "lucky.numbers[1]: 50 is not between 1 and 49"},
		{"lucky.numbers[]", "x", `lucky.numbers: "x" is not a number`},
		{"lucky.until", "9d", "lucky.until: 216h is not between 0s and 192h"},
		{"lucky.untl", "1h", "lucky.untl: is not a field of a task; did you mean lucky.until?"},
		{"numbers", "7", "numbers: is not a field of a task; did you mean lucky.numbers?"},
		{"lucky.charms", "clover", `lucky.charms: "clover" is not a JSON object, such as {"KEY": "VALUE"}; to set one key, use lucky.charms.KEY=VALUE`},
		{"lucky.charms.", "x", "lucky.charms.: is not a field of a task; did you mean lucky.charms?"},
		{"lucky.numbers.x", "7", "lucky.numbers.x: is not a field of a task; did you mean lucky.numbers?"},
		{"", "x", "is not a field of a task"},
		{"action.process.command", `["a"`, `{"action":{"http":null,"noop":null,"process":{"command":["[\"a\""],"shell":null}}}`},
	} {
		a := &Assignments{Patch: map[string]any{}, fields: fields, reset: map[string]bool{}}
		got := ""
		if err := a.Set(c.path, c.text); err != nil {
			got = err.Error()
		} else if b, err := json.Marshal(a.Patch); err != nil {
			got = err.Error()
		} else {
			got = string(b)
		}

		if got != c.want {
			t.Errorf("%s=%s:\ngot  %s\nwant %s", c.path, c.text, got, c.want)
		}
	}
}

// The patch of assignments changes only what they name.
func TestAssignments_ApplyPatch(t *testing.T) {
	spec := task.Defaults()
	spec.Labels = map[string]string{"team": "data", "tier": "gold"}
	spec.Retry.Attempts, spec.Retry.Jitter = 3, 0.5
	spec.Action.HTTP = &task.HTTP{URL: "https://a", JSON: json.RawMessage(`{"z":null,"a":1.0}`)}

	a := NewAssignments()
	for path, text := range map[string]string{"labels.tier": "", "labels.x": "y", "retry.attempts": "", "action.http.method": "PUT"} {
		if err := a.Set(path, text); err != nil {
			t.Fatal(err)
		}
	}

	got, err := ApplyPatch(spec, a.Patch)
	if err != nil {
		t.Fatal(err)
	}

	want := spec
	want.Labels, want.Retry.Attempts = map[string]string{"team": "data", "x": "y"}, 1
	want.Action.HTTP = &task.HTTP{URL: "https://a", JSON: spec.Action.HTTP.JSON, Method: "PUT"}
	if changes := task.Differences(want, got); len(changes) > 0 {
		t.Errorf("got %q", changes)
	}
}
