package manifest

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

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
		{"retry.attempts", "3\n", `{"retry":{"attempts":3}}`}, // as in a file
		{"lucky.numbers", " 7, 13\n", `{"lucky":{"numbers":[7,13]}}`},
		{"lucky", "\n{\"until\": \"1h\"}\n", `{"lucky":{"until":"1h"}}`},
		{"action.process.command", `["a"`, `{"action":{"http":null,"noop":null,"process":{"command":["[\"a\""],"shell":null},"workflow":null}}`},
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

// What is given as an object, as a list or by a flag of its own is completed, not replaced or rewritten.
func TestAssignments_CombineValues(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(a *Assignments) error
		want string
	}{
		{"element after schedules", func(a *Assignments) error {
			return errors.Join(a.SetValue("schedule", task.Schedules{"@hourly"}), a.Set("schedule[]", "@daily"))
		}, `{"schedule":["@hourly","@daily"]}`},
		{"element after a command", func(a *Assignments) error {
			return errors.Join(a.SetValue("action.process.command", []string{"echo", "hi"}), a.Set("action.process.command[]", "more"))
		}, `{"action":{"http":null,"noop":null,"process":{"command":["echo","hi","more"],"shell":null},"workflow":null}}`},
		{"field of an object with a body", func(a *Assignments) error {
			return errors.Join(a.Set("action.http", `{"url":"https://a","json":{"id":12345678901234567890,"n":null}}`), a.Set("action.http.method", "PUT"))
		}, `{"action":{"http":{"json":{"id":12345678901234567890,"n":null},"method":"PUT","url":"https://a"},"noop":null,"process":null,"workflow":null}}`},
		{"null as a text", func(a *Assignments) error {
			return errors.Join(a.SetText("action.process.env.X", "null"), a.SetText("action.process.env.Y", ""), a.SetText("description", "null"))
		}, `{"action":{"http":null,"noop":null,"process":{"env":{"X":"null","Y":""}},"workflow":null},"description":"null"}`},
	} {
		a := NewAssignments()
		if err := c.set(a); err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if got, _ := json.Marshal(a.Patch); string(got) != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, got, c.want)
		}
	}

	if err := NewAssignments().SetText("timeout", ""); err == nil {
		t.Error("a flag without a value resets its field")
	}
	if err := NewAssignments().SetValue("retry.on[]", nil); err == nil {
		t.Error("resetting an element resets the list")
	}
}

// Local times are in UTC if the patch resets the time zone.
func TestResolveTimes_ZoneIsReset(t *testing.T) {
	patch := map[string]any{"start": "2026-12-24 18:00", "timezone": nil}
	if err := ResolveTimes(patch, time.Time{}, func() (string, error) { return "Europe/Berlin", nil }); err != nil {
		t.Fatal(err)
	}
	if b, _ := json.Marshal(patch["start"]); string(b) != `"2026-12-24T18:00:00.000Z"` {
		t.Errorf("got %s", b)
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
