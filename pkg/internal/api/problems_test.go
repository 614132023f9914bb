package api_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// The type of a problem is a link to a row of the page, which has every code.
func TestProblems_TypeIsALinkToTheCode(t *testing.T) {
	page, err := os.ReadFile("../../../docs/errors.md")
	must(t, err)

	code := regexp.MustCompile(`(?m)^\tCode\w+ += "([a-z_]+)"`)
	n := 0
	for _, dir := range []string{"../../client", "../../task"} {
		files, err := filepath.Glob(dir + "/*.go")
		must(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			must(t, err)
			for _, m := range code.FindAllStringSubmatch(string(text), -1) {
				if n++; !strings.Contains(string(page), `<a id="`+m[1]+`"></a>`) {
					t.Errorf("docs/errors.md does not have the code %s", m[1])
				}
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d codes were found", n)
	}

	w := newWorld(t)
	r := w.do(request{path: "/v1/namespaces/default/tasks/none"})
	if want := `"type":"` + client.ProblemType(client.CodeNotFound) + `"`; !strings.Contains(r.body, want) {
		t.Errorf("%s does not contain %s", r.body, want)
	}
}

func TestProblems_NameAllInvalidFieldsOfABody(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		what, body string
		status     int
		pointers   string // nothing: one problem, as always
	}{
		{"one value", `{"name": "a", "schedule": "0 25 * * *", "action": {"noop": {}}}`, 422, ""},
		{"one unknown field", `{"name": "a", "shedule": "@daily", "action": {"noop": {}}}`, 422, ""},
		{"values", `{"name": "Bad Name", "schedule": "0 25 * * *", "timeout": "1000d", "labels": {"app.kubernetes.io/name": "ü"}, "action": {"noop": {}}}`, 422, "#/name #/timeout #/labels/app.kubernetes.io~1name #/schedule"},
		{"fields", `{"name": 5, "shedule": "@daily", "timeout": "soon", "action": {"process": {"command": [1]}}}`, 422, "#/name #/shedule #/timeout #/action/process/command/0"},
	} {
		r := w.do(request{method: "POST", path: "/v1/namespaces/default/tasks", body: c.body})
		var p client.Problem
		must(t, json.Unmarshal([]byte(r.body), &p))

		var pointers []string
		for _, e := range p.Errors {
			if pointers = append(pointers, e.Pointer); e.Detail == "" || e.Code == "" || e.Field == "" {
				t.Errorf("%s: %+v", c.what, e)
			}
		}
		if r.status != c.status || strings.Join(pointers, " ") != c.pointers {
			t.Errorf("%s: %d %q: %s", c.what, r.status, pointers, r.body)
		}
		if len(p.Errors) > 0 && (p.Field != p.Errors[0].Field || p.Detail != p.Errors[0].Detail || p.Code != p.Errors[0].Code) {
			t.Errorf("%s: the first problem is not that of the answer: %s", c.what, r.body)
		}
	}

	// The same of a line of a batch, and for the client.
	r := w.do(request{method: "POST", path: "/v1/tasks:batch", body: `{"name": "Bad Name", "schedule": "@daily", "retry": {"attempts": -1}, "action": {"noop": {}}}` + "\n", header: map[string]string{"Content-Type": "application/x-ndjson"}})
	if strings.Count(r.body, `"pointer"`) != 2 {
		t.Errorf("a batch: %s", r.body)
	}

	bad := spec("Bad Name", "0 25 * * *")
	_, err := w.Tasks.Create(t.Context(), "default", bad)
	var e *client.Error
	if !errors.As(err, &e) || len(e.Errors) != 2 || e.Code != task.CodeBadName || e.Errors[1].Field != "schedule" {
		t.Errorf("the client: %+v", e)
	}
}
