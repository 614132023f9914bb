package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schema"
	"github.com/carillonhq/carillon/pkg/task"
)

// compiled returns the schema, which the validator has checked.
func compiled(t testing.TB) *jsonschema.Schema {
	t.Helper()
	b, err := Schema()
	if err != nil {
		t.Fatal(err)
	}

	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}

	c := jsonschema.NewCompiler()
	if err := c.AddResource("tasks.json", doc); err != nil {
		t.Fatal(err)
	}

	s, err := c.Compile("tasks.json")
	if err != nil {
		t.Fatal(err)
	}

	if s.DraftVersion != 2020 {
		t.Errorf("draft %d", s.DraftVersion)
	}

	return s
}

// validate checks each document of a text against the schema.
func validate(t testing.TB, s *jsonschema.Schema, file string, text []byte) error {
	t.Helper()
	docs, fault := splitDocuments(file, text)
	if fault != nil {
		t.Fatalf("%s: %v", file, fault)
	}

	for _, d := range docs {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(d.toJSON()))
		if err != nil {
			t.Fatal(err)
		}

		if err := s.Validate(v); err != nil {
			return err
		}
	}

	return nil
}

func TestSchema_TakesTheExamples(t *testing.T) {
	s := compiled(t)
	files, err := filepath.Glob("../../../examples/*.yaml")
	receivers, _ := filepath.Glob("../../../examples/receivers/*.yaml") // the pattern is valid
	files = append(files, receivers...)
	if err != nil || len(files) < 6 {
		t.Fatalf("%d examples, %v", len(files), err)
	}

	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		if err := validate(t, s, file, b); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}

	for _, text := range []string{
		"- {name: a, schedule: '@daily', action: {noop: {}}}\n- {name: b, schedule: ['@daily'], action: {noop: {}}}\n",
		"{name: a, action: {noop: {}}, receiver: {from: [b], repeat: 0s, for: 1m, output: false}, alerts: {notify: [b, c/d], failures: 0, success_within: 26h, success_by: '0 6 * * *'}}",
		"{name: a, schedule: '@daily', action: {process: {shell: x, umask: '027', groups: [], ionice: best-effort/7, limits: {core: 0, memory: 1.5Gi, swap: 64 MiB, cpu: 1.5, cpu_time: 1m}}}}",
		"{name: a, schedule: '@daily', action: {http: {url: 'https://a/${run.id}', json: [1, {a: null}], auth: {bearer: a/b}, expect: {status: [2xx, '302']}, limit: {body: 2Mi}, unsent_for: 0s, results: {id: /a, all: ''}}}}",
		"{name: a, action: {noop: {}}, after: b}", "{name: a, action: {noop: {}}, after: {task: b, when: failed, results: [rows]}}",
		"{name: a, action: {noop: {}}, after: [b, {task: c, when: ended}], join: any, queue: {limit: 1000}}",
		"{name: a, schedule: '@daily', action: {http: {url: secret:slack/url, method: PUT, body: secret:a/b, tls: {ca: secret:a/ca}, idempotent: true, headers: {X-A: '1'}}}}",
		"{name: a, schedule: '@daily', action: {workflow: {on_failure: continue, steps: {a: {process: {shell: x}, retry: {attempts: 3}}, b: {needs: [a], map: '${steps.a.results.x}', max_parallel: 2, http: {url: 'https://a/${item}'}}, c: {map: 3, noop: {}, target: {selector: role = db}}, d: {needs: [a, b], when: always, timeout: 5m, noop: {}}}}}}",
		"{name: a, schedule: '@daily', action: {noop: {}}, start: 2026-12-01 18:00, end: 2026-12-24T18:00:00+01:00, uid: x, next: 2026-12-24T18:00:00Z, revision: 17, active: 1}",
	} {
		if err := validate(t, s, "x.yaml", []byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Whatever the schema rejects, Read rejects, too. So an editor marks no file that could be applied.
//
// Verifies: G44
func TestSchema_RefusesWhatReadRefuses(t *testing.T) {
	s := compiled(t)
	const rest = ", schedule: '@daily', action: {noop: {}}"
	for _, text := range []string{
		"{schedule: '@daily', action: {noop: {}}}", "{name: a, action: {noop: {}}}", "{name: a, schedule: '@daily'}",
		"{name: A" + rest + "}", "{name: a..b" + rest + "}", "{name: a, overlop: skip" + rest + "}", "{name: a, overlap: Skip" + rest + "}",
		"{name: a, schedule: [], action: {noop: {}}}", "{name: a, schedule: 5, action: {noop: {}}}", "{name: a, schedule: '', action: {noop: {}}}",
		"{name: a, schedule: '@daily', action: {}}", "{name: a, schedule: '@daily', action: {noop: {}, process: {shell: x}}}",
		"{name: a, schedule: '@daily', action: {process: {}}}", "{name: a, schedule: '@daily', action: {process: {shell: x, command: [x]}}}",
		"{name: a, schedule: '@daily', action: {process: {command: []}}}", "{name: a, schedule: '@daily', action: {process: {command: x}}}",
		"{name: a, schedule: '@daily', action: {process: {shell: x, env: {A: 1}}}}", "{name: a, schedule: '@daily', action: {process: {shell: x, dir: y}}}",
		"{name: a, timeout: 10 minutes" + rest + "}", "{name: a, timeout: 10" + rest + "}", "{name: a, labels: {a: 1}" + rest + "}", "{name: a, labels: {a: 'x y'}" + rest + "}",
		"{name: a, start: tomorrow" + rest + "}", "{name: a, start: 2026-1-1" + rest + "}", "{name: a, retry: {attempts: 0}" + rest + "}", "{name: a, retry: {attempts: '3'}" + rest + "}",
		"{name: a, retry: {on: [succeeded]}" + rest + "}", "{name: a, retry: {on: [failed, failed]}" + rest + "}", "{name: a, retry: {exit_codes: [0]}" + rest + "}",
		"{name: a, dst: {gap: never}" + rest + "}", "{name: a, missed: {limit: 1.5}" + rest + "}", "{name: a, paused: 'yes'" + rest + "}", "[{name: a}]", "[[]]", "x",
		"{name: a, schedule: '@daily', action: {process: {shell: x, umask: '8'}}}", "{name: a, schedule: '@daily', action: {process: {shell: x, ionice: idle/3}}}",
		"{name: a, schedule: '@daily', action: {process: {shell: x, groups: [a, a]}}}", "{name: a, schedule: '@daily', action: {process: {shell: x, limits: {core: -1}}}}",
		"{name: a, schedule: '@daily', action: {process: {shell: x, limits: {memory: lots}}}}", "{name: a, schedule: '@daily', action: {process: {shell: x, limits: {memroy: 1Gi}}}}",
		"{name: a, schedule: '@daily', action: {process: {shell: x, limits: {core: 1.5}}}}", "{name: a, schedule: '@daily', action: {process: {shell: x, limits: {core: '1.5'}}}}",
		"{name: a, schedule: '@daily', action: {http: {}}}", "{name: a, schedule: '@daily', action: {http: {url: ftp://a}}}", "{name: a, schedule: '@daily', action: {http: {url: 'https:///x'}}}",
		"{name: a, schedule: '@daily', action: {http: {url: 'https://a', method: get}}}", "{name: a, schedule: '@daily', action: {http: {url: 'https://a', auth: {}}}}",
		"{name: a, schedule: '@daily', action: {http: {url: 'https://a', auth: {bearer: a/b, basic: a/b}}}}", "{name: a, schedule: '@daily', action: {http: {url: 'https://a', auth: {bearer: key}}}}",
		"{name: a, schedule: '@daily', action: {http: {url: 'https://a', tls: {ca: a/b}}}}", "{name: a, schedule: '@daily', action: {http: {url: 'https://a', form: {}}}}",
		"{name: a, schedule: '@daily', action: {http: {url: 'https://a', expect: {status: ['1xx']}}}}", "{name: a, schedule: '@daily', action: {http: {url: 'https://a', expect: {status: [200]}}}}",
		"{name: a, action: {noop: {}}, alerts: {}}", "{name: a, action: {noop: {}}, after: []}", "{name: a, action: {noop: {}}, after: {when: ended}}",
		"{name: a, action: {noop: {}}, after: {task: b, when: never}}", "{name: a, action: {noop: {}}, after: {task: b, if: ended}}", "{name: a, action: {noop: {}}, after: 5}",
		"{name: a, action: {noop: {}}, receiver: null}", "{name: a, action: {noop: {}}, receiver: {from: b}}",
		"{name: a, schedule: '@daily', action: {http: {url: 'https://a', results: {a: b}}}}", "{name: a, schedule: '@daily', action: {http: {url: 'https://a', headers: {A: 1}}}}",
		"{name: a, schedule: '@daily', action: {workflow: {steps: {a: {}}}}}", "{name: a, schedule: '@daily', action: {workflow: {steps: {a: {noop: {}, http: {url: 'https://a'}}}}}}",
		"{name: a, schedule: '@daily', action: {workflow: {steps: {a: {noop: {}, need: [b]}}}}}", "{name: a, schedule: '@daily', action: {workflow: {steps: {a: {noop: {}, when: never}}}}}",
		"{name: a, schedule: '@daily', action: {workflow: {steps: {a: {noop: {}, map: 0}}}}}", "{name: a, schedule: '@daily', action: {workflow: {steps: {a: {noop: {}, map: [1]}}}}}", "{name: a, schedule: '@daily', action: {workflow: {steps: {a: {noop: {}, map: '${run.id}'}}}}}",
		"{name: a, schedule: '@daily', action: {workflow: {steps: {a: {process: {shel: x}}}}}}",
		"{name: a, schedule: '@daily', action: {workflow: {steps: {a: {noop: {}, target: {count: 2}}}}}}", "{name: a, schedule: '@daily', action: {workflow: {on_failure: undo, steps: {a: {noop: {}}}}}}",
		"{name: a, max_runs: -1" + rest + "}", "{name: a, target: {count: some}" + rest + "}", "{name: a, history: {record: none}" + rest + "}",
	} {
		if validate(t, s, "x.yaml", []byte(text)) == nil {
			t.Errorf("the schema accepts %s", text)
		}

		objects, err := Read("x.yaml", []byte(text), "default")
		if err == nil && objects[0].Err == nil {
			t.Errorf("Read accepts %s", text)
		}
	}
}

// The limits and the values in the schema are those that are enforced: one more is rejected, and the last one is
// not.
func TestSchema_HasTheBoundsThatAreChecked(t *testing.T) {
	parts, err := schema.Parts()
	if err != nil {
		t.Fatal(err)
	}

	checked := 0
	var walk func(part, path string)
	walk = func(part, path string) {
		for name, v := range parts[part]["properties"].(map[string]any) {
			p, at := v.(map[string]any), strings.TrimPrefix(path+"."+name, ".")
			if p["description"] == nil && at != "dst" && !strings.HasPrefix(part, "Action") {
				t.Errorf("%s has no description", at)
			}

			if ref, ok := p["$ref"].(string); ok {
				if inner := strings.TrimPrefix(ref, "#/$defs/"); inner != "Noop" {
					walk(inner, at)
				}
				continue
			}

			if each, ok := p["additionalProperties"].(map[string]any); ok && each["$ref"] != nil {
				walk(strings.TrimPrefix(each["$ref"].(string), "#/$defs/"), at+".b") // the fields of a step
				continue
			}

			for bound, beyond := range map[string]float64{"minimum": -1, "maximum": 1} {
				if n, ok := p[bound].(float64); ok {
					checked++
					step := beyond
					if p["type"] == "number" {
						step /= 10
					}

					wantTaken(t, at, n, true)
					wantTaken(t, at, n+step, false)
				}
			}

			values, _ := p["enum"].([]any)
			for _, value := range values {
				checked++
				wantTaken(t, at, value, true)
				wantTaken(t, at, value.(string)+"x", false)
			}

			if d, ok := p["default"]; ok {
				wantTaken(t, at, d, true)
			}
		}
	}

	walk("Spec", "")

	if checked < 30 {
		t.Errorf("only %d bounds and values", checked)
	}
}

func processWith(field string, value any) map[string]any {
	return map[string]any{"process": map[string]any{"shell": "true", field: value}}
}

// stepB is the path of the step whose fields are checked.
const stepB = "action.workflow.steps.b"

// stepsWith returns a workflow in which step b, whose fields allow every other one, has a value.
func stepsWith(path []string, value any) map[string]any {
	b := map[string]any{"needs": []string{"a"}, "timeout": "5m", "map": 3, "process": map[string]any{"shell": "true"}}
	object := b
	for _, name := range path[:len(path)-1] {
		inner, ok := object[name].(map[string]any)
		if !ok {
			inner = map[string]any{}
			object[name] = inner
		}
		if name == "http" {
			delete(b, "process")
			inner["url"] = "https://a"
		}
		object = inner
	}
	object[path[len(path)-1]] = value

	return map[string]any{"workflow": map[string]any{"steps": map[string]any{"a": map[string]any{"noop": map[string]any{}}, "b": b}}}
}

// wantTaken checks whether a field may have a value, in a task that is otherwise valid.
func wantTaken(t *testing.T, path string, value any, want bool) {
	t.Helper()
	doc := map[string]any{"name": "a", "schedule": "@daily", "action": map[string]any{"noop": map[string]any{}}}

	switch group, inner, _ := strings.Cut(path, "."); {
	case strings.HasPrefix(path, "action.process.limits."):
		doc["action"] = processWith("limits", map[string]any{path[len("action.process.limits."):]: value})
	case strings.HasPrefix(path, "action.http.limit."):
		doc["action"] = map[string]any{"http": map[string]any{"url": "https://a", "limit": map[string]any{path[len("action.http.limit."):]: value}}}
	case strings.HasPrefix(path, "action.http."):
		doc["action"] = map[string]any{"http": map[string]any{"url": "https://a", path[len("action.http."):]: value}}
	case strings.HasPrefix(path, "action.process."):
		doc["action"] = processWith(path[len("action.process."):], value)
	case strings.HasPrefix(path, stepB+"."):
		doc["action"] = stepsWith(strings.Split(path[len(stepB+"."):], "."), value)
	case path == "action.workflow.on_failure":
		doc["action"] = map[string]any{"workflow": map[string]any{"on_failure": value, "steps": map[string]any{"a": map[string]any{"noop": map[string]any{}}}}}
	case group == "queue":
		doc["overlap"], doc["after"] = task.OverlapQueue, "b" // it has the largest limit
		doc[group] = map[string]any{inner: value}
	case path == "output.mail_when":
		doc["action"], doc[group] = processWith("dir", "/"), map[string]any{inner: value, "mail": []string{"ann@example.com"}}
	case path == "accept.args":
		doc["action"], doc[group] = processWith("dir", "/"), map[string]any{inner: value}
	case path == "join":
		doc["overlap"], doc["after"], doc[path] = task.OverlapQueue, []string{"b", "c"}, value
	case path == "max_active":
		doc["overlap"], doc[path] = task.OverlapAllow, value
	case path == "target.strategy" && value == task.StrategyFirst:
		doc[group] = map[string]any{inner: value, "order": []string{"n1"}}
	case inner != "":
		doc[group] = map[string]any{inner: value}
		switch group {
		case "receiver":
			delete(doc, "schedule")
		case "alerts":
			doc["history"] = map[string]any{"keep": 200}
		}
	default:
		doc[path] = value
	}

	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}

	objects, err := Read("x.json", b, "default")
	if err == nil {
		err = objects[0].Err
	}

	var fault *task.Error
	switch {
	case (err == nil) != want:
		t.Errorf("%s: %v is taken: %v; want %v (%v)", path, value, err == nil, want, err)
	case !want && errors.As(err, &fault) && fault.Field != path:
		t.Errorf("%s: %v is refused because of %v", path, value, err)
	}
}

// Read ignores what a server adds to a task, so that what a server shows can be applied.
func TestRead_PassesOverAllThatTheServerAdds(t *testing.T) {
	spec := reflect.TypeFor[task.Spec]()

	for _, f := range reflect.VisibleFields(reflect.TypeFor[client.Task]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if _, written := spec.FieldByName(f.Name); !f.Anonymous && !written && !serverFields[name] {
			t.Errorf("%s is not among what a server adds", name)
		}
	}
}

// The schema accepts exactly the fields that a server adds.
func TestSchema_KnowsTheFieldsOfTheServer(t *testing.T) {
	b, err := Schema()
	if err != nil {
		t.Fatal(err)
	}

	var doc struct {
		Defs map[string]struct {
			Properties map[string]struct{ ReadOnly bool }
		} `json:"$defs"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}

	var got []string
	for name, p := range doc.Defs["Spec"].Properties {
		if p.ReadOnly {
			got = append(got, name)
		}
	}

	slices.Sort(got)

	if want := slices.Sorted(maps.Keys(serverFields)); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	if bytes.Contains(b, []byte("#/components/")) {
		t.Error("it refers to the OpenAPI document")
	}
}
