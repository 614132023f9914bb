package manifest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

const good = "name: a\nschedule: \"@hourly\"\naction: {noop: {}}\n"

// Files that are rejected as a whole, with the position and the message.
func TestRead_RefusesFilesThatCannotBeTasks(t *testing.T) {
	deep := strings.Repeat("[", 50) + strings.Repeat("]", 50)
	laughs := "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n"
	cases := []struct{ name, file, text, want string }{
		{"unknown field", "f.yaml", good + "overlop: skip\n", "f.yaml:4:1: overlop: is not a field"},
		{"unknown field within", "f.yaml", "name: a\nretry:\n  attempts: 2\n  bakoff: 1s\n", "f.yaml:4:3: retry.bakoff: is not a field"},
		{"unknown field in a list", "f.yaml", "- " + strings.ReplaceAll(strings.TrimSuffix(good, "\n"), "\n", "\n  ") + "\n- name: b\n  shedule: x\n", "f.yaml:5:3: shedule: is not a field"},
		{"odd case", "f.yaml", "Name: a\n", "f.yaml:1:1: Name: is not a field; did you mean name?"},
		{"key twice", "f.yaml", "name: a\nlabels:\n  x: y\n  x: z\n", "f.yaml:4:3: x: is given twice; first on line 3"},
		{"key twice in the second document", "f.yaml", good + "---\nname: a\nname: b\n", "f.yaml:6:1: name: is given twice; first on line 5"},
		{"bare star", "f.yaml", "name: a\nschedule: */5 * * * *\n", "f.yaml:2:15: a value that begins with * or @ needs quotes"},
		{"bare stars", "f.yaml", "name: a\nschedule: * * * * *\n", "f.yaml:2:"},
		{"bare at", "f.yaml", "name: a\nschedule: @hourly\n", "f.yaml:2:11: a value that begins with * or @ needs quotes"},
		{"bare at in a list", "f.yaml", "name: a\nschedule:\n  - @hourly\n", "f.yaml:3:5: a value that begins with * or @ needs quotes"},
		{"anchor", "f.yaml", "name: &n a\n", "f.yaml:1:7: anchors (&) are not supported"},
		{"alias", "f.yaml", "name: a\ndescription: *n\n", "f.yaml:2:14: aliases (*) are not supported"},
		{"aliases that explode", "f.yaml", laughs, "f.yaml:1:4: anchors (&) are not supported"},
		{"merge key", "f.yaml", "<<: {name: a}\n", "f.yaml:1:1: merge keys (<<) are not supported"},
		{"tag", "f.yaml", "name: !!binary aGk=\n", "f.yaml:1:7: tags (!) are not supported"},
		{"directive", "f.yaml", "%YAML 1.1\n---\nname: a\n", "f.yaml:1:1: "},
		{"octal", "f.yaml", "history: {keep: 010}\n", "f.yaml:1:17: \"010\": use a decimal number"},
		{"underscores", "f.yaml", "history: {keep: 1_000}\n", "use a decimal number"},
		{"hexadecimal", "f.yaml", "history: {keep: 0x10}\n", "use a decimal number"},
		{"infinity", "f.yaml", "retry: {factor: .inf}\n", "f.yaml:1:17: \".inf\" is not a supported number"},
		{"key that is no text", "f.yaml", "labels: {1: x}\n", "f.yaml:1:10: \"1\": a key must be a string"},
		{"number for a text", "f.yaml", "name: a\naction:\n  process:\n    command: [true]\n", "f.yaml:4:15: action.process.command[0]: true is not a string; put it in quotes: \"true\""},
		{"number for a variable", "f.yaml", "name: a\naction:\n  process:\n    env:\n      PORT: 8080\n", "f.yaml:5:13: action.process.env.PORT: 8080 is not a string; put it in quotes: \"8080\""},
		{"text for a number", "f.yaml", "history: {keep: many}\n", "f.yaml:1:11: history.keep: \"many\" is not a whole number"},
		{"truth of YAML 1.1", "f.yaml", "paused: yes\n", "f.yaml:1:1: paused: \"yes\" is not true or false"},
		{"bad duration", "f.yaml", "timeout: 10 minutes\n", "f.yaml:1:1: timeout: \"10 minutes\" is not a duration"},
		{"unclosed quote", "f.yaml", "name: 'a\n", "f.yaml:1:7: could not find end character"},
		{"unclosed list", "f.yaml", "schedule: [a\n", "f.yaml:1:11: "},
		{"tab", "f.yaml", "action:\n\tnoop: {}\n", "f.yaml:2:1: YAML does not allow tabs in the indentation; use spaces"},
		{"tab in a block", "f.yaml", "action:\n  process:\n    shell: |\n\techo hi\n", "f.yaml:4:1: YAML does not allow tabs in the indentation; use spaces"},
		{"lines of Windows", "f.yaml", strings.ReplaceAll(good, "\n", "\r\n") + "overlop: x\r\n", "f.yaml:4:1: overlop: is not a field"},
		{"byte order mark", "f.yaml", "\xef\xbb\xbf" + good + "overlop: x\n", "f.yaml:4:1: overlop: is not a field"},
		{"byte order mark of the second", "f.yaml", good + "---\n\xef\xbb\xbfnome: b\n", "f.yaml:5:1: nome: is not a field"},
		{"bare at in brackets", "f.yaml", "name: a\nschedule: [\"@daily\", @hourly]\n", "f.yaml:2:22: a value that begins with * or @ needs quotes"},
		{"deep", "f.yaml", "name: " + deep + "\n", "nests deeper"},
		{"deep JSON", "f.json", deep, "nests deeper"},
		{"very deep", "f.yaml", strings.Repeat("[", 200_000), "nests deeper"},
		{"very deep blocks", "f.yaml", strings.Repeat("- ", 100_000), "too large"},
		{"too many keys", "f.yaml", strings.Repeat("a: 1\n", 100_000), "f.yaml:6667:4: the document is too large"},
		{"no mapping", "f.yaml", "hello\n", "f.yaml:1:1: a task must be a mapping of fields"},
		{"a CronJob", "f.yaml", "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: a}\n", `f.yaml:2:1: kind: "CronJob" of Kubernetes is not a task; to convert CronJobs, use: carillon import kubernetes`},
		{"jobs of Dkron", "f.json", `[{"name": "a", "executor": "shell", "executor_config": {}}]`, "f.json:1:16: executor: a job of Dkron is not a task; to convert it, use: carillon import dkron"},
		{"a timer", "f.timer", "# x\n[Timer]\nOnCalendar=daily\n", "f.timer:2:1: a unit of systemd is not a task; to convert timers, use: carillon import systemd"},
		{"a crontab", "f", "SHELL=/bin/sh\n# m h\n*/5 1-3 * jan mon /bin/a\n", "f:3:1: a crontab is not a task; to convert it, use: carillon import crontab"},
		{"a crontab with a nickname", "f", "@daily root /bin/a: b\n", "f:1:1: a crontab is not a task"},
		{"list of lists", "f.yaml", "- - a\n", "f.yaml:1:3: a task must be a mapping of fields"},
		{"control character", "f.yaml", "name: a\ndescription: \"b\x1b[1m\"\n", "f.yaml:2:16: contains the control character U+001B"},
		{"NUL", "f.yaml", "name: a\x00\n", "f.yaml:1:8: contains the control character U+0000"},
		{"not UTF-8", "f.yaml", "name: \xff\n", "f.yaml:1:7: is not UTF-8"},
		{"JSON cut off", "f.json", `{"name": "a",`, "f.json:1:14: unexpected end of JSON"},
		{"JSON with a comma too many", "f.json", "{\n \"name\": \"a\",\n}", "f.json:3:1: "},
		{"JSON unknown field", "f.json", "{\n  \"name\": \"a\",\n  \"tags\": 1\n}", "f.json:3:3: tags: is not a field"},
		{"JSON on one line", "f.json", `[{"description": "äöü", "tags": 1}]`, "f.json:1:25: tags: is not a field"},
		{"JSON key twice", "f.json", "{\"name\": \"a\",\n \"name\": \"b\"}", "f.json:2:2: name: is given twice"},
		{"JSON key twice on stdin", "stdin", "{\"name\": \"a\",\n \"name\": \"b\"}", "stdin:2:2: name: is given twice"},
		{"too much", "f.yaml", strings.Repeat("#", manifest.MaxFile+1), "larger than 16777216 bytes"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			got, err := manifest.Read(c.file, []byte(c.text), "default")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v\nwant one with %q", err, c.want)
			}

			if got != nil {
				t.Errorf("objects came with the error: %v", got)
			}

			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("took %s", took)
			}

			var placed *manifest.Error
			if !errors.As(err, &placed) || placed.Line < 1 || placed.Column < 1 || placed.File != c.file {
				t.Errorf("no place in %#v", err)
			}

			if !errors.Is(err, task.ErrInvalid) {
				t.Errorf("%v is no task.ErrInvalid", err)
			}
		})
	}
}

// An invalid task does not affect the other tasks of its file.
func TestRead_KeepsWhatIsWrongWithValuesToTheObject(t *testing.T) {
	text := good + "---\nname: b\nschedule: \"*/75 * * * *\"\naction: {noop: {}}\n---\nname: Bad\nschedule: '@hourly'\naction: {noop: {}}\n" +
		"---\nname: c\nschedule:\n  - '@daily'\n  - '* * *'\naction: {noop: {}}\n---\nname: d\nschedule: '@hourly'\n"
	got, err := manifest.Read("f.yaml", []byte(text), "default")
	if err != nil {
		t.Fatal(err)
	}

	want := []string{"", "f.yaml:6:1: schedule: \"*/75 * * * *\"", "f.yaml:9:1: name: \"Bad\"", "f.yaml:16:5: schedule[1]: \"* * *\"", "f.yaml:19:1: action: is required"}
	if len(got) != len(want) {
		t.Fatalf("%d objects, want %d", len(got), len(want))
	}

	for i, w := range want {
		if w == "" && got[i].Err != nil || w != "" && (got[i].Err == nil || !strings.HasPrefix(got[i].Err.Error(), w)) {
			t.Errorf("object %d: %v, want %s", i, got[i].Err, w)
		}
	}
}

func TestRead_TakesEveryFormOfSeveral(t *testing.T) {
	one := `{"name":"a","schedule":"@hourly","action":{"noop":{}}}`
	two := strings.Replace(one, `"a"`, `"b"`, 1)
	cases := map[string]string{
		"documents":            good + "---\n" + strings.Replace(good, "name: a", "name: b", 1),
		"empty documents":      "---\n---\n" + good + "---\n# nothing\n---\n---\n" + strings.Replace(good, "name: a", "name: b", 1) + "...\n",
		"documents on a line":  "--- " + one + "\n--- " + two + "\n",
		"list":                 "- " + one + "\n- " + two + "\n",
		"JSON list":            "[" + one + ",\n" + two + "]",
		"JSON lines":           one + "\n" + two + "\n",
		"YAML in flow style":   "[{name: a, schedule: '@hourly', action: {noop: {}}}, {name: b, schedule: '@hourly', action: {noop: {}}}]",
		"byte order mark":      "\xef\xbb\xbf" + one + two,
		"carriage returns":     strings.ReplaceAll(good+"---\n"+strings.Replace(good, "name: a", "name: b", 1), "\n", "\r\n"),
		"comments in between":  "# first\n" + good + "# second\n---\n# third\n" + strings.Replace(good, "name: a", "name: b # c", 1),
		"fields of the server": strings.Replace(one, "{", `{"uid":"x","generation":3,"created_at":"2026-01-01T00:00:00.000Z","updated_at":"x","updated_by":{"subject":"ann"},"revision":7,"next":"x","left_ms":3,"active":1,"result":"created","last_run":{"id":"x","odd":[1]},`, 1) + two,
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := manifest.Read("stdin", []byte(text), "team")
			if err != nil {
				t.Fatal(err)
			}

			var names []string
			for _, o := range got {
				if o.Err != nil {
					t.Error(o.Err)
				}
				names = append(names, o.Spec.Namespace+"/"+o.Spec.Name)
			}

			if want := "[team/a team/b]"; fmt.Sprint(names) != want {
				t.Errorf("read %v, want %s", names, want)
			}
		})
	}
}

func TestRead_AnEmptyFileHasNoTasks(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "---\n---\n", "[]", "[]\n", "--- []\n"} {
		if got, err := manifest.Read("f.yaml", []byte(text), "default"); err != nil || len(got) != 0 {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestLocate_FindsKeysWithDots(t *testing.T) {
	got, err := manifest.Read("f.yaml", []byte(good+"labels:\n  a.b: c\n  a.b.c: d\n"), "default")
	if err != nil {
		t.Fatal(err)
	}

	for field, want := range map[string]string{"labels.a.b": "f.yaml:5:3", "labels.a.b.c": "f.yaml:6:3", "labels": "f.yaml:4:1", "timeout": "f.yaml:1:1"} {
		if at := got[0].LocateField(field, errors.New("x")).Error(); at != want+": x" {
			t.Errorf("%s is at %s, want %s", field, at, want)
		}
	}
}

// hard are texts that some YAML parser interprets as something else.
var hard = []string{"", " ", "a", "yes", "No", "null", "~", "1", "1e3", "0x1f", "-", "- a", "a: b", "a #b", "#a", "*/5 * * * *", "@every 5s", "%a", "&a", "!a",
	"'a'", "\"a\"", "a\nb\n", "a\nb", "\na\nb", "a\n\nb\n", "a\n  b\n c\n", " a\nb\n", "a \nb\n", "a\tb", "\n", "a\n\n", "---", "...", "--- a", "a\n---\nb\n", "2026-01-01",
	"12:30:45", "{a}", "[a]", "a,b", "ü✓", "\u2028", "\u0085", "a:", ":a", "?", "|", ">", "<<", "=", "\\n", "a\rb", "${X}", "echo \"$X\" | wc -l\n# no comment\nexit 3\n", ".5", "+1", "0o7", "1_000", ".inf", "on", "y"}

// Whatever is shown can be applied again.
func TestWriteYAML_ReadsBackAsItWas(t *testing.T) {
	for _, text := range hard {
		s := task.Defaults()
		s.Name, s.Schedule = "a", task.Schedules{"*/5 * * * *", "@hourly"}
		s.Action.Process = &task.Process{Command: []string{"x", text}, Env: map[string]string{"A.b c": text, "yes": "no"}, Shell: text}
		s.Description = text
		s.Labels = map[string]string{"true": "1"}

		j, err := json.Marshal(task.Task{Spec: s, UID: "u", Revision: 3})
		if err != nil {
			t.Fatal(err)
		}

		y, err := manifest.WriteYAML(j)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}

		got, err := manifest.Read("f.yaml", y, "default")
		if err != nil {
			t.Fatalf("%q: %v\n%s", text, err, y)
		}

		if !reflect.DeepEqual(got[0].Spec, s) {
			t.Errorf("%q came back as %+v\n%s", text, got[0].Spec.Action.Process, y)
		}
	}
}

func TestWriteYAML_LooksAsOneWouldWriteIt(t *testing.T) {
	in := `{"name":"a","schedule":["*/5 * * * *"],"action":{"process":{"shell":"a |\nb\n","env":{}}},"n":[{"x":1,"y":[true,null]},[]],"s":""}`
	want := "name: a\nschedule:\n  - \"*/5 * * * *\"\naction:\n  process:\n    shell: |\n      a |\n      b\n    env: {}\n\"n\":\n  - x: 1\n    \"y\":\n      - true\n      - null\n  - []\ns: \"\"\n"
	got, err := manifest.WriteYAML([]byte(in))
	if err != nil || string(got) != want {
		t.Errorf("got\n%s\nwant\n%s (%v)", got, want, err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(good)
	f.Add("- name: a\n  labels: {x: 'y'}\n---\n[]")
	f.Add(`{"name":"a","schedule":["@hourly"]}`)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}

		objects, err := manifest.Read("f.yaml", []byte(text), "default")
		if err != nil && len(objects) > 0 {
			t.Errorf("objects with the error %v", err)
		}

		for _, o := range objects {
			if o.Err != nil {
				continue
			}

			j, err := json.Marshal(o.Spec)
			if err != nil {
				t.Fatal(err)
			}

			y, err := manifest.WriteYAML(j)
			if err != nil {
				t.Fatal(err)
			}

			again, err := manifest.Read("f.yaml", y, "default")
			if err != nil || len(again) != 1 || !reflect.DeepEqual(again[0].Spec, o.Spec) {
				t.Errorf("%+v came back as %+v (%v)\n%s", o.Spec, again, err, y)
			}
		}
	})
}
