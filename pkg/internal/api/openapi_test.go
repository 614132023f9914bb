package api_test

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/task"
)

// builtDocument returns the OpenAPI document of the version that the nodes of the tests have.
// TestOpenAPI_IsWhatTheDocsAreMadeOf checks that they serve it.
func builtDocument() ([]byte, error) { return api.Document("1.2.3") }

// document reads the OpenAPI document.
func document(t *testing.T) map[string]any {
	t.Helper()
	b, err := builtDocument()
	must(t, err)
	var doc map[string]any
	must(t, json.Unmarshal(b, &doc))

	return doc
}

func at(v any, path ...string) any {
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}

func TestOpenAPI_IsWhole(t *testing.T) {
	w := newWorld(t)
	doc := document(t)
	if v, _ := doc["openapi"].(string); !strings.HasPrefix(v, "3.1.") || at(doc, "info", "version") != "1.2.3" {
		t.Errorf("openapi %v, info %v", doc["openapi"], doc["info"])
	}

	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				parts := strings.Split(ref, "/")
				if parts[0] != "#" || at(doc, parts[1:]...) == nil {
					t.Errorf("%s: %s leads nowhere", path, ref)
				}
			}

			for k, inner := range v {
				walk(path+"/"+k, inner)
			}
		case []any:
			for _, inner := range v {
				walk(path+"[]", inner)
			}
		}
	}

	walk("", doc)
	ids := map[string]bool{}
	count := 0
	for path, item := range doc["paths"].(map[string]any) {
		for method, v := range item.(map[string]any) {
			op, where := v.(map[string]any), method+" "+path
			id, _ := op["operationId"].(string)
			if id == "" || ids[id] || op["summary"] == "" {
				t.Errorf("%s: operationId %q, summary %q", where, id, op["summary"])
			}

			ids[id] = true
			count++

			if !strings.HasPrefix(path, "/v1/") {
				continue
			}

			for _, status := range []string{"401", "422", "503"} {
				if status == "401" && path == "/v1/login/providers" {
					continue // everybody may read it
				}
				if at(op, "responses", status, "content", "application/problem+json", "schema", "$ref") != "#/components/schemas/Problem" {
					t.Errorf("%s: no problem for %s", where, status)
				}
			}

			if op["security"] == nil {
				t.Errorf("%s: no security", where)
			}

			var in []string
			params, _ := op["parameters"].([]any)
			for _, p := range params {
				if at(p, "in") == "path" {
					in = append(in, at(p, "name").(string))
				}
			}

			if n := strings.Count(path, "{"); n != len(in) {
				t.Errorf("%s: parameters of the path: %v", where, in)
			}
		}
	}

	routes, err := os.ReadFile("testdata/routes.txt")
	must(t, err)

	if want := strings.Count(string(routes), "\n"); count != want {
		t.Errorf("%d operations, want %d", count, want)
	}

	if yaml := w.do(request{method: "GET", path: "/openapi.yaml"}); !strings.Contains(yaml.body, "openapi: 3.1.") {
		t.Errorf("YAML: %.80s", yaml.body)
	}
}

// Tools that read the document, such as redocly lint, require a server, the security of each operation, and a
// description of each tag.
func TestOpenAPI_SatisfiesLinters(t *testing.T) {
	doc := document(t)
	servers, _ := doc["servers"].([]any)
	if len(servers) != 1 || at(servers[0], "url") != "/" {
		t.Errorf("servers: %v", servers)
	}

	if at(doc, "info", "license", "identifier") != "Apache-2.0" {
		t.Errorf("info: %v", doc["info"])
	}

	described := map[string]bool{}
	tags, _ := doc["tags"].([]any)
	for _, tag := range tags {
		name, _ := at(tag, "name").(string)
		text, _ := at(tag, "description").(string)
		described[name] = text != ""
	}

	open := map[string]bool{
		"/healthz": true, "/readyz": true, "/openapi.json": true, "/openapi.yaml": true, "/v1/login/providers": true, "/v1/login/web": true, "/v1/login/web:finish": true, "/v1/login/device": true, "/v1/login/device:poll": true,
	}

	for path, item := range doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			security, _ := at(op, "security").([]any)
			if len(security) != 1 {
				t.Errorf("%s %s: security %v", method, path, security)
				continue
			}

			if requirement, _ := security[0].(map[string]any); (len(requirement) == 0) != open[path] {
				t.Errorf("%s %s: security %v", method, path, security)
			}

			names, _ := at(op, "tags").([]any)
			for _, name := range names {
				if text, _ := name.(string); !described[text] {
					t.Errorf("%s %s: the tag %s has no description", method, path, text)
				}
			}
		}
	}
}

// Every route of the contract exists, in the document and in the mux.
func TestOpenAPI_HasEveryRoute(t *testing.T) {
	w := newWorld(t)
	doc := document(t)
	routes, err := os.ReadFile("testdata/routes.txt")
	must(t, err)

	for line := range strings.Lines(string(routes)) {
		f := strings.Fields(line)
		method, path := f[0], f[1]
		if at(doc, "paths", path, strings.ToLower(method)) == nil {
			t.Errorf("%s %s is not in the document", method, path)
		}

		real := regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "x")
		if path == "/v1/audit" {
			real += "?pause=1" // not longer than necessary
		}

		if r := w.do(request{method: method, path: real}); r.status == http.StatusMethodNotAllowed || r.Code == "no_such_route" {
			t.Errorf("%s %s: %d %s", method, real, r.status, r.Code)
		}
	}
}

func TestOpenAPI_DescribesSpec(t *testing.T) {
	doc := document(t)
	schema := func(path ...string) any { return at(doc, append([]string{"components", "schemas"}, path...)...) }
	spec := schema("Spec", "properties").(map[string]any)

	// The fields match those of the Go type exactly, at every level that users write.
	b, err := json.Marshal(task.Defaults())
	must(t, err)
	var defaults map[string]any
	must(t, json.Unmarshal(b, &defaults))

	for field := range defaults {
		if spec[field] == nil {
			t.Errorf("%s is not described", field)
		}
	}

	for _, field := range []string{"start", "end", "jitter", "max_runs", "ttl", "queue", "max_active", "start_deadline", "pause_after_failures", "paused_until", "pause_reason"} {
		if spec[field] == nil || at(schema("SpecPatch", "properties"), field) == nil {
			t.Errorf("%s is not described", field)
		}
	}

	required := schema("Spec", "required").([]any)
	if !slices.Equal(required, []any{"name", "action"}) || len(schema("Spec", "anyOf").([]any)) != 3 || schema("Spec", "additionalProperties") != false {
		t.Errorf("required: %v, additional: %v", required, schema("Spec", "additionalProperties"))
	}

	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"duration", at(spec["kill_grace"], "type"), "string"},
		{"default of a duration", at(spec["kill_grace"], "default"), "10s"},
		{"schedule is a string", at(at(spec["schedule"], "oneOf").([]any)[0], "type"), "string"},
		{"schedule is a list", at(at(spec["schedule"], "oneOf").([]any)[1], "type"), "array"},
		{"zone", at(spec["timezone"], "default"), "UTC"},
		{"retries", schema("Retry", "properties", "attempts", "maximum"), float64(task.MaxAttempts)},
		{"a limit of runs", at(spec["max_active"], "maximum"), float64(task.MaxActive)},
		{"a default of the queue", schema("QueuePolicy", "properties", "limit", "default"), float64(task.DefaultQueue)},
		{"strict in the queue", schema("QueuePolicy", "additionalProperties"), false},
		{"exit codes", at(schema("Retry", "properties", "exit_codes"), "items", "maximum"), 255.0},
		{"a pause", schema("PauseRequest", "additionalProperties"), false},
		{"strict inside", schema("Retry", "additionalProperties"), false},
		{"open to more outside", schema("Run", "additionalProperties"), nil},
		{"time", schema("Run", "properties", "started_at", "format"), "date-time"},
		{"state", at(schema("Run", "properties", "state", "enum").([]any)[0]), "queued"},
		{"a task's own field", schema("Task", "properties", "next", "format"), "date-time"},
		{"a task's embedded field", schema("Task", "properties", "uid", "type"), "string"},
		{"a list is never null", schema("QueryListTask", "properties", "items", "type"), "array"},
		{"a patch takes null", at(schema("SpecPatch", "properties", "timeout", "anyOf").([]any)[1], "type"), "null"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", c.what, c.got, c.want)
		}
	}

	for _, overlap := range at(spec["overlap"], "enum").([]any) {
		s := task.Defaults()
		s.Name, s.Action, s.Overlap = "a", task.Action{Noop: &task.Noop{}}, overlap.(string)
		must(t, s.Validate())
	}
}

// The docs are generated from the document that nodes serve, and no operation is missing because of its tag.
func TestOpenAPI_IsWhatTheDocsAreMadeOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b, err := builtDocument()
	must(t, err)

	if string(b) != w.do(request{method: "GET", path: "/openapi.json"}).body {
		t.Error("it is another document")
	}

	var doc struct {
		Tags  []struct{ Name string }
		Paths map[string]map[string]struct{ Tags []string }
	}
	must(t, json.Unmarshal(b, &doc))

	for path, ops := range doc.Paths {
		for method, op := range ops {
			if !slices.ContainsFunc(doc.Tags, func(tag struct{ Name string }) bool { return slices.Contains(op.Tags, tag.Name) }) {
				t.Errorf("%s %s has tags %v, and none of them is described", method, path, op.Tags)
			}
		}
	}
}

// Generated clients and their users have nothing but the document, so each operation, parameter and field says what it is.
func TestOpenAPI_DescribesEverything(t *testing.T) {
	doc := document(t)
	isEmpty := func(v any) bool { text, _ := at(v, "description").(string); return text == "" }

	for path, item := range doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			if isEmpty(op) {
				t.Errorf("%s %s has no description", method, path)
			}

			params, _ := at(op, "parameters").([]any)
			for _, p := range params {
				if isEmpty(p) {
					t.Errorf("%s %s: the parameter %v has no description", method, path, at(p, "name"))
				}
			}
		}
	}

	for name, schema := range at(doc, "components", "schemas").(map[string]any) {
		properties, _ := at(schema, "properties").(map[string]any)
		for field, p := range properties {
			if isEmpty(p) {
				t.Errorf("%s.%s has no description", name, field)
			}
		}
	}
}

// A program does not split a text to learn who did something: such a property is always the object Actor.
func TestOpenAPI_ActorsAreObjects(t *testing.T) {
	doc := document(t)
	others := map[string]string{
		"not_before_by": "what decided a time: the word target",
		"success_by":    "a cron expression",
	}

	actors := 0
	var walk func(path string, v any)
	walk = func(path string, v any) {
		if list, ok := v.([]any); ok {
			for _, inner := range list {
				walk(path+"[]", inner)
			}
		}

		schema, _ := v.(map[string]any)
		properties, _ := schema["properties"].(map[string]any)

		for name, p := range properties {
			if name != "actor" && name != "by" && !strings.HasSuffix(name, "_by") || others[name] != "" {
				continue
			}

			actors++
			if at(p, "$ref") != "#/components/schemas/Actor" {
				t.Errorf("%s: the property %s is %v, not the object Actor", path, name, p)
			}
		}

		for name, inner := range schema {
			walk(path+"/"+name, inner)
		}
	}
	walk("", doc)

	if actors < 30 {
		t.Errorf("%d properties name an actor", actors)
	}
	for _, field := range []string{"subject", "token", "certificate"} {
		if at(doc, "components", "schemas", "Actor", "properties", field, "type") != "string" {
			t.Errorf("Actor.%s is %v", field, at(doc, "components", "schemas", "Actor", "properties", field))
		}
	}
}

// A client that is too early or too fast finds in the answer when to try again.
func TestOpenAPI_SaysWhenToTryAgain(t *testing.T) {
	for path, item := range document(t)["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			for _, status := range []string{"429", "503"} {
				if r := at(op, "responses", status); r != nil && at(r, "headers", "Retry-After", "schema", "type") != "integer" {
					t.Errorf("%s %s: %s has no Retry-After", method, path, status)
				}
			}
		}
	}
}

// What an answer can say is a type of its own in generated clients.
func TestOpenAPI_ListsTheValuesOfAnswers(t *testing.T) {
	doc := document(t)
	values := func(schema, field string) (list []string) {
		p := at(doc, "components", "schemas", schema, "properties", field)
		if items := at(p, "items"); items != nil {
			p = items
		}
		all, _ := at(p, "enum").([]any)
		for _, v := range all {
			list = append(list, v.(string))
		}

		return list
	}

	var verdicts, kinds []string
	for _, v := range task.Verdicts() {
		verdicts = append(verdicts, string(v.Verdict))
	}
	kinds = append(task.EventKinds(), task.EventGap)

	for _, c := range []struct {
		schema, field string
		want          []string
	}{
		{"Answer", "verdict", verdicts},
		{"Stretch", "verdict", verdicts},
		{"Event", "kind", kinds},
		{"Run", "trigger", []string{task.TriggerSchedule, task.TriggerManual, task.TriggerCatchUp, task.TriggerPart, task.TriggerAfter}},
		{"Cancelled", "trigger", []string{task.TriggerSchedule, task.TriggerManual, task.TriggerCatchUp, task.TriggerPart, task.TriggerAfter}},
		{"Event", "trigger", []string{task.TriggerSchedule, task.TriggerManual, task.TriggerCatchUp, task.TriggerPart, task.TriggerAfter}},
		{"Node", "state", []string{task.NodeReady, task.NodeCordoned, task.NodeDraining}},
		{"BoardNode", "state", []string{task.NodeReady, task.NodeCordoned, task.NodeDraining}},
		{"Task", "change", []string{task.ChangeCreated, task.ChangeUpdated, task.ChangePaused, task.ChangeResumed, task.ChangeRolledBack, task.ChangeUndeleted}},
		{"Task", "state", []string{client.TaskUnreadable, client.TaskFailing, client.TaskFrozen, client.TaskPaused, client.TaskRunning, client.TaskWaiting, client.TaskEnded, client.TaskOK}},
		{"BatchResult", "result", []string{client.Created, client.Configured, client.Unchanged, client.Failed}},
		{"Token", "kind", []string{task.TokenKindSession, task.TokenKindLink}},
		{"Finding", "severity", []string{task.Grave, task.Mild}},
		{"RepairResult", "result", []string{task.Repaired, task.NotAsFound, task.NotRepairable, task.RepairFailed}},
		{"AuditRecord", "outcome", []string{task.AuditIntended, task.AuditDone, task.AuditFailed, task.AuditRefused, task.AuditRead, task.AuditForwarded}},
	} {
		if got := values(c.schema, c.field); !slices.Equal(got, c.want) {
			t.Errorf("%s.%s: %v, want %v", c.schema, c.field, got, c.want)
		}
	}
}
