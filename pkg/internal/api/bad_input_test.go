package api_test

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// withSpec returns a complete spec with one field set to some JSON.
func withSpec(field, value string) string {
	fields := map[string]string{"name": `"a"`, "schedule": `"@daily"`, "action": `{"process": {"command": ["true"]}}`}
	fields[field] = value
	var parts []string
	for k, v := range fields {
		parts = append(parts, fmt.Sprintf("%q: %s", k, v))
	}

	return "{" + strings.Join(parts, ", ") + "}"
}

func cron(expr string) string { return withSpec("schedule", fmt.Sprintf("%q", expr)) }

func process(fields string) string { return withSpec("action", `{"process": {`+fields+`}}`) }

func TestBadBodies_AreRefusedWithNothingWritten(t *testing.T) {
	w := newWorld(t)
	w.create("there", "@daily")

	long := strings.Repeat("x", 200)
	for _, c := range []struct {
		what, body  string
		status      int
		code, field string
	}{
		{"no body", ``, 415, client.CodeContentType, "Content-Type"},
		{"not JSON", `{nonsense}`, 400, task.CodeBadJSON, ""},
		{"cut JSON", `{"name": "a"`, 400, task.CodeBadJSON, ""},
		{"YAML", "name: a\n", 400, task.CodeBadJSON, ""},
		{"trailing data", withSpec("name", `"a"`) + `{}`, 400, task.CodeBadJSON, ""},
		{"deep nesting", withSpec("labels", strings.Repeat(`{"a":`, 40)+"1"+strings.Repeat("}", 40)), 0, "", ""},
		{"very deep nesting", strings.Repeat(`[`, 200_000), 0, "", ""},
		{"a field of 100 KB", withSpec(strings.Repeat("x", 100_000), "1"), 422, task.CodeUnknown, strings.Repeat("x", 200) + "…"},
		{"not UTF-8", withSpec("description", "\"\xff\""), 400, task.CodeBadJSON, ""},
		{"a list", `[]`, 422, task.CodeBadValue, ""},
		{"null", `null`, 422, task.CodeRequired, "name"},
		{"too large", withSpec("description", `"`+strings.Repeat("x", 1<<20)+`"`), 413, client.CodeTooLarge, ""},
		{"unknown field", withSpec("shedule", `1`), 422, task.CodeUnknown, "shedule"},
		{"other case", withSpec("Timezone", `"UTC"`), 422, task.CodeUnknown, "Timezone"},
		{"unknown inner field", withSpec("retry", `{"atempts": 2}`), 422, task.CodeUnknown, "retry.atempts"},
		{"duplicate key", `{"name": "a", "name": "b"}`, 422, task.CodeDuplicate, "name"},
		{"duplicate inner key", process(`"command": ["true"], "env": {"A": "1", "A": "2"}`), 422, task.CodeDuplicate, "action.process.env.A"},
		{"wrong type", withSpec("retry", `{"attempts": "three"}`), 422, task.CodeBadValue, "retry.attempts"},
		{"fraction", withSpec("retry", `{"attempts": 1.5}`), 422, task.CodeBadValue, "retry.attempts"},

		{"no name", `{"schedule": "@daily", "action": {"noop": {}}}`, 422, task.CodeRequired, "name"},
		{"no action", `{"name": "a", "schedule": "@daily"}`, 422, task.CodeRequired, "action"},
		{"no schedule", `{"name": "a", "action": {"noop": {}}}`, 422, task.CodeRequired, "schedule"},
		{"another namespace", withSpec("namespace", `"other"`), 422, task.CodeBadValue, "namespace"},
		{"name with slash", withSpec("name", `"a/b"`), 422, task.CodeBadName, "name"},
		{"name with dots", withSpec("name", `"a..b"`), 422, task.CodeBadName, "name"},
		{"name in upper case", withSpec("name", `"A"`), 422, task.CodeBadName, "name"},
		{"name with NUL", withSpec("name", `"a\u0000b"`), 422, task.CodeBadName, "name"},
		{"name with escape", withSpec("name", `"a\u001b[31m"`), 422, task.CodeBadName, "name"},
		{"name of 129 bytes", withSpec("name", `"`+strings.Repeat("a", 129)+`"`), 422, task.CodeBadName, "name"},

		{"empty schedule", cron(""), 422, "", "schedule"},
		{"blank schedule", cron("  "), 422, "", "schedule"},
		{"no expressions", withSpec("schedule", `[]`), 422, "", "schedule"},
		{"over-long schedule", cron(strings.Repeat("1,", 5000) + "1 * * * *"), 422, "", "schedule"},
		{"non-ASCII schedule", cron("５ * * * *"), 422, "", "schedule"},
		{"zone in expression", cron("TZ=Europe/Berlin 0 0 * * *"), 422, "", "schedule"},
		{"cron zone in expression", cron("CRON_TZ=UTC 0 0 * * *"), 422, "", "schedule"},
		{"bare zone", cron("TZ="), 422, "", "schedule"},
		{"lone comma", cron(", * * * *"), 422, "", "schedule"},
		{"double comma", cron("1,,2 * * * *"), 422, "", "schedule"},
		{"star minus", cron("*-5 * * * *"), 422, "", "schedule"},
		{"backward range", cron("5-1 * * * *"), 422, "", "schedule"},
		{"step of zero", cron("*/0 * * * *"), 422, "", "schedule"},
		{"minute 60", cron("60 * * * *"), 422, "", "schedule"},
		{"four fields", cron("* * * *"), 422, "", "schedule"},
		{"seven fields", cron("* * * * * * *"), 422, "", "schedule"},
		{"control characters", cron("* * * *\t*\n"), 422, "", "schedule"},
		{"unsatisfiable date", cron("0 0 30 2 *"), 422, task.CodeNeverFires, "schedule"},
		{"every nothing", cron("@every 0s"), 422, "", "schedule"},
		{"every too short", cron("@every 50ms"), 422, "", "schedule"},
		{"every negative", cron("@every -1h"), 422, "", "schedule"},
		{"at before 2000", cron("@at 1999-12-24T18:00:00Z"), 422, "", "schedule"},
		{"at after 2100", cron("@at 2101-01-24T18:00:00Z"), 422, "", "schedule"},
		{"second of two", withSpec("schedule", `["@daily", "nope"]`), 422, "", "schedule[1]"},
		{"unknown zone", withSpec("timezone", `"Europe/Berln"`), 422, task.CodeBadTimezone, "timezone"},
		{"relative zone", withSpec("timezone", `"../UTC"`), 422, task.CodeBadTimezone, "timezone"},
		{"zone in odd case", withSpec("timezone", `"europe/berlin"`), 422, task.CodeBadTimezone, "timezone"},
		{"local zone", withSpec("timezone", `"Local"`), 422, task.CodeBadTimezone, "timezone"},
		{"unknown gap", withSpec("dst", `{"gap": "jump"}`), 422, "", "dst.gap"},

		{"two actions", withSpec("action", `{"noop": {}, "process": {"command": ["x"]}}`), 422, task.CodeBadValue, "action"},
		{"empty env name", process(`"command": ["x"], "env": {"": "1"}`), 422, task.CodeBadEnv, "action.process.env"},
		{"env with NUL", process(`"command": ["x"], "env": {"A": "\u0000"}`), 422, task.CodeBadValue, "action.process.env.A"},
		{"env of ours", process(`"command": ["x"], "env": {"CARILLON_TASK": "1"}`), 422, task.CodeBadEnv, "action.process.env"},
		{"argument with NUL", process(`"command": ["x", "\u0000"]`), 422, task.CodeBadValue, "action.process.command[1]"},
		{"argument beyond the kernel's limit", process(`"command": ["` + strings.Repeat("x", 70_000) + `"]`), 422, task.CodeTooLong, "action.process.command[0]"},
		{"too many arguments", process(`"command": ["x"` + strings.Repeat(`,"x"`, 2000) + `]`), 422, task.CodeTooMany, "action.process.command"},
		{"relative directory", process(`"command": ["x"], "dir": "tmp"`), 422, task.CodeBadValue, "action.process.dir"},
		{"negative timeout", withSpec("timeout", `"-1s"`), 422, task.CodeOutOfRange, "timeout"},
		{"timeout without unit", withSpec("timeout", `"10"`), 422, task.CodeBadDuration, "timeout"},
		{"timeout as number", withSpec("timeout", `10`), 422, "", "timeout"},
		{"absurd timeout", withSpec("timeout", `"99999h"`), 422, task.CodeOutOfRange, "timeout"},
		{"absurd retries", withSpec("retry", `{"attempts": 1000000}`), 422, task.CodeOutOfRange, "retry.attempts"},
		{"negative retries", withSpec("retry", `{"attempts": -1}`), 422, task.CodeOutOfRange, "retry.attempts"},
		{"absurd window", withSpec("missed", `{"window": "999999h"}`), 422, task.CodeOutOfRange, "missed.window"},
		{"negative limit", withSpec("missed", `{"limit": -1}`), 422, task.CodeOutOfRange, "missed.limit"},
		{"unknown overlap", withSpec("overlap", `"`+long+`"`), 422, task.CodeBadValue, "overlap"},
		{"bad selector", withSpec("target", `{"selector": "a ~ b"}`), 422, task.CodeBadSelector, "target.selector"},
		{"bad label", withSpec("labels", `{"team": "a b"}`), 422, task.CodeBadLabel, "labels.team"},
		{"control characters in text", withSpec("description", `"\u001b[2J"`), 422, task.CodeBadValue, "description"},
	} {
		t.Run(c.what, func(t *testing.T) {
			before := w.dump()
			r := w.do(request{method: "POST", path: "/v1/namespaces/default/tasks", body: c.body})

			if c.status == 0 { // it does not matter which of its faults is found first
				c.status, c.field = r.status, r.Field
				if r.status != 400 && r.status != 422 {
					t.Errorf("got %d", r.status)
				}
			}

			if r.status != c.status || c.code != "" && r.Code != c.code || r.Field != c.field {
				t.Errorf("got %d, code %s, field %q, %q; want %d, %s, %q", r.status, r.Code, r.Field, r.Detail, c.status, c.code, c.field)
			}

			if len(r.body) > 1500 {
				t.Errorf("the problem is %d bytes long", len(r.body))
			}

			if !maps.Equal(before, w.dump()) {
				t.Error("something was written")
			}

			if r.status != 415 && r.status != 413 && c.what != "another namespace" && c.what != "YAML" {
				// In a batch, the error is the same, except for texts about a body.
				got := w.batch("", c.body)[0].Error
				if got == nil || got.Status != r.status || got.Code != r.Code || got.Field != r.Field || got.Detail != r.Detail && c.what != "not UTF-8" {
					t.Errorf("as a line the result is %+v, alone it is %s", got, r.body)
				}
			}

			if c.status == 422 && c.code != task.CodeRequired && strings.HasPrefix(c.body, "{") {
				// PUT returns the same status.
				if r := w.do(request{method: "PUT", path: "/v1/namespaces/default/tasks/there", body: c.body}); r.status != 422 {
					t.Errorf("PUT: %d %s", r.status, r.body)
				}
			}
		})
	}
}

func TestBadPatches_AreRefused(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	before := w.dump()

	for _, c := range []struct {
		body        string
		status      int
		code, field string
	}{
		{`null`, 422, task.CodeBadValue, ""},
		{`[]`, 422, task.CodeBadValue, ""},
		{`{"bogus": null}`, 422, task.CodeUnknown, "bogus"},
		{`{"retry": {"bogus": null}}`, 422, task.CodeUnknown, "retry.bogus"},
		{`{"timeout": "1s", "timeout": "2s"}`, 422, task.CodeDuplicate, "timeout"},
		{`{"name": "b"}`, 422, task.CodeBadValue, "name"},
		{`{"namespace": "b"}`, 422, task.CodeBadValue, "namespace"},
		{`{"schedule": null}`, 422, "", "schedule"},
		{`{"schedule": "x"}`, 422, task.CodeBadSchedule, "schedule"},
		{`{"action": null}`, 422, task.CodeRequired, "action"},
		{`{"uid": "x"}`, 422, task.CodeUnknown, "uid"},
		{`{"retry": {"attempts": 1e400}}`, 422, "", "retry.attempts"},
		{`{} {}`, 400, task.CodeBadJSON, ""},
	} {
		r := w.do(request{method: "PATCH", path: "/v1/namespaces/default/tasks/a", body: c.body})
		if r.status != c.status || c.code != "" && r.Code != c.code || r.Field != c.field {
			t.Errorf("%s: got %d %s %q (%s), want %d %s %q", c.body, r.status, r.Code, r.Field, r.Detail, c.status, c.code, c.field)
		}
	}

	if !maps.Equal(before, w.dump()) {
		t.Error("something was written")
	}
}

func TestBadRequests_AreRefused(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	before := w.dump()
	ok := withSpec("name", `"b"`)
	const tasks, a = "/v1/namespaces/default/tasks", "/v1/namespaces/default/tasks/a"
	h := func(k, v string) map[string]string { return map[string]string{k: v} }
	for _, c := range []struct {
		request
		status      int
		code, field string
	}{
		{request{method: "POST", path: tasks, body: ok, header: h("Content-Type", "text/plain")}, 415, client.CodeContentType, "Content-Type"},
		{request{method: "POST", path: tasks, body: ok, header: h("Content-Type", "")}, 415, client.CodeContentType, "Content-Type"},
		{request{method: "POST", path: tasks, body: ok, header: h("Content-Type", "application/json; charset=latin1")}, 415, client.CodeContentType, "Content-Type"},
		{request{method: "POST", path: tasks, body: ok, header: h("Content-Type", "application/merge-patch+json")}, 415, client.CodeContentType, "Content-Type"},
		{request{method: "POST", path: tasks, body: ok, header: h("Content-Encoding", "gzip")}, 415, client.CodeContentType, "Content-Encoding"},
		{request{method: "POST", path: tasks + "?dryrun=1", body: ok}, 422, task.CodeUnknown, "dryrun"},
		{request{method: "POST", path: tasks, body: ok, header: h("If-Match", `"3"`)}, 422, task.CodeBadValue, "If-Match"},
		{request{method: "POST", path: a + "/resume", body: `{}`}, 400, task.CodeBadJSON, ""},
		{request{method: "DELETE", path: a, body: `{}`}, 400, task.CodeBadJSON, ""},
		{request{method: "GET", path: a + "?x=1"}, 422, task.CodeUnknown, "x"},
		{request{method: "GET", path: a + "?%zz"}, 400, client.CodeBadParameter, ""},

		{request{method: "DELETE", path: a, header: h("If-Match", `3`)}, 422, task.CodeBadValue, "If-Match"},
		{request{method: "DELETE", path: a, header: h("If-Match", `W/"3"`)}, 422, task.CodeBadValue, "If-Match"},
		{request{method: "DELETE", path: a, header: h("If-Match", `*`)}, 422, task.CodeBadValue, "If-Match"},
		{request{method: "DELETE", path: a, header: h("If-Match", `""`)}, 422, task.CodeBadValue, "If-Match"},
		{request{method: "DELETE", path: a, header: h("If-Match", `"`)}, 422, task.CodeBadValue, "If-Match"},
		{request{method: "DELETE", path: a, header: h("If-Match", `"0"`)}, 422, task.CodeBadValue, "If-Match"},
		{request{method: "DELETE", path: a, header: h("If-Match", `"-1"`)}, 422, task.CodeBadValue, "If-Match"},
		{request{method: "DELETE", path: a, header: h("If-Match", `"+7"`)}, 422, task.CodeBadValue, "If-Match"},
		{request{method: "DELETE", path: a, header: h("If-Match", `"99999999999999999999"`)}, 422, task.CodeBadValue, "If-Match"},
		{request{method: "DELETE", path: a, header: h("If-Match", `"1", "2"`)}, 422, task.CodeBadValue, "If-Match"},
		{request{method: "DELETE", path: a, header: h("If-Match", `"1"`)}, 412, client.CodeStale, "If-Match"},
		{request{method: "PUT", path: a, body: withSpec("name", `"a"`), header: h("If-None-Match", `"1"`)}, 422, task.CodeBadValue, "If-None-Match"},
		{request{method: "PUT", path: a, body: withSpec("name", `"c"`)}, 422, task.CodeBadValue, "name"},

		{request{method: "GET", path: tasks + "?limit=0"}, 422, task.CodeOutOfRange, "limit"},
		{request{method: "GET", path: tasks + "?limit=5001"}, 422, task.CodeOutOfRange, "limit"},
		{request{method: "GET", path: tasks + "?limit=many"}, 422, task.CodeBadValue, "limit"},
		{request{method: "GET", path: tasks + "?limit=1&limit=2"}, 422, task.CodeDuplicate, "limit"},
		{request{method: "GET", path: tasks + "?q=selector:%22a+~+b%22"}, 422, task.CodeBadSelector, "q"},
		{request{method: "GET", path: tasks + "?q=a%00"}, 422, task.CodeBadValue, "q"},
		{request{method: "GET", path: "/v1/namespaces/UPPER/tasks"}, 422, task.CodeBadName, "namespace"},
		{request{method: "GET", path: "/v1/namespaces/a%2Fb/tasks"}, 422, task.CodeBadName, "namespace"},
		{request{method: "GET", path: tasks + "/a%00"}, 422, task.CodeBadName, "name"},
		{request{method: "GET", path: tasks + "/a..b"}, 422, task.CodeBadName, "name"},
		{request{method: "GET", path: tasks + "/" + strings.Repeat("a", 129)}, 422, task.CodeBadName, "name"},
		{request{method: "GET", path: tasks + "/%2e%2e"}, 404, client.CodeNoRoute, ""},
		{request{method: "GET", path: "/v1//tasks"}, 404, client.CodeNoRoute, ""},
		{request{method: "GET", path: tasks + "/"}, 404, client.CodeNoRoute, ""},

		{request{method: "GET", path: a + "/next?count=0"}, 422, task.CodeOutOfRange, "count"},
		{request{method: "GET", path: a + "/next?count=1001"}, 422, task.CodeOutOfRange, "count"},
		{request{method: "GET", path: a + "/next?from=soon"}, 422, task.CodeBadTime, "from"},
		{request{method: "GET", path: a + "/next?from=1970-01-01T00:00:00Z"}, 422, task.CodeBadTime, "from"},
		{request{method: "GET", path: "/v1/runs?state=done"}, 422, task.CodeBadValue, "state"},
		{request{method: "GET", path: "/v1/runs?task=a"}, 422, task.CodeUnknown, "task"},
		{request{method: "GET", path: "/v1/runs?node=UP"}, 422, task.CodeBadName, "node"},
		{request{method: "GET", path: a + "/runs/x%2Fy"}, 422, task.CodeBadValue, "run"},
		{request{method: "GET", path: a + "/runs/x/logs?attempt=0"}, 422, task.CodeOutOfRange, "attempt"},
		{request{method: "GET", path: a + "/runs/x/logs?tail=-1"}, 422, task.CodeOutOfRange, "tail"},
		{request{method: "POST", path: a + "/trigger", body: `{"env": {"": "x"}}`}, 422, task.CodeBadEnv, "env"},
		{request{method: "POST", path: a + "/trigger", body: `{"env": {"A": "x"}}`}, 422, task.CodeNotAllowed, "env"},
		{request{method: "POST", path: a + "/trigger", body: `{"args": ["x"]}`}, 422, task.CodeNotAllowed, "args"},
		{request{method: "POST", path: a + "/trigger", body: `{"args": ["a\u0000"]}`}, 422, task.CodeBadValue, "args[0]"},
		{request{method: "POST", path: a + "/trigger", body: `{"args": [null]}`}, 422, task.CodeBadValue, "args[0]"},
		{request{method: "POST", path: a + "/trigger", body: `{"target": "n1"}`}, 422, task.CodeNotAllowed, "target"},
		{request{method: "POST", path: a + "/trigger", body: `{"target": "role = db"}`}, 422, task.CodeBadName, "target"},
		{request{method: "POST", path: a + "/trigger", body: `{"environment": {}}`}, 422, task.CodeUnknown, "environment"},
		{request{method: "POST", path: a + "/trigger", body: `{"env": {"A": "` + strings.Repeat("x", 60_000) + `", "B": "` + strings.Repeat("x", 60_000) + `", "C": "` + strings.Repeat("x", 60_000) + `"}}`}, 422, task.CodeTooLong, "env"},
		{request{method: "POST", path: a + "/pause", body: `{"until": "2020-01-01T00:00:00Z"}`}, 422, task.CodeBadTime, "until"},
		{request{method: "POST", path: a + "/pause", body: `{"until": "2101-01-01T00:00:00Z"}`}, 422, task.CodeBadTime, "until"},
		{request{method: "POST", path: a + "/pause", body: `{"until": "18:00"}`}, 422, task.CodeBadTime, "until"},
		{request{method: "POST", path: a + "/pause", body: `{"until": "2030-01-01T00:00:00Z", "for": "1h"}`}, 422, task.CodeBadValue, "for"},
		{request{method: "POST", path: a + "/pause", body: `{"for": "0s"}`}, 422, task.CodeOutOfRange, "for"},
		{request{method: "POST", path: a + "/pause", body: `{"for": "-1h"}`}, 422, task.CodeOutOfRange, "for"},
		{request{method: "POST", path: a + "/pause", body: `{"reason": "` + strings.Repeat("x", 257) + `"}`}, 422, task.CodeTooLong, "reason"},
		{request{method: "POST", path: a + "/pause", body: `{"by": "me"}`}, 422, task.CodeUnknown, "by"},
		{request{method: "POST", path: a + "/rollback", body: `{"to": -1}`}, 422, task.CodeOutOfRange, "to"},
		{request{method: "POST", path: a + "/rollback", body: `{"to": 7}`}, 404, client.CodeNotFound, "to"},
		{request{method: "POST", path: a + "/rollback"}, 409, client.CodeConflict, "to"},
		{request{method: "PATCH", path: "/v1/cluster", body: `{"catch_up_rate": -1}`}, 422, task.CodeOutOfRange, "catch_up_rate"},
		{request{method: "PATCH", path: "/v1/cluster", body: `{"lost_after": "11s"}`}, 422, task.CodeOutOfRange, "lost_after"},
		{request{method: "PATCH", path: "/v1/cluster", body: `{"lost_after": "25h"}`}, 422, task.CodeOutOfRange, "lost_after"},
		{request{method: "PATCH", path: "/v1/cluster", body: `{"lost_after": "soon"}`}, 422, task.CodeBadDuration, "lost_after"},
		{request{method: "PATCH", path: "/v1/cluster", body: `{"ledger": "-1h"}`}, 422, task.CodeOutOfRange, "ledger"},
		{request{method: "PATCH", path: "/v1/cluster", body: `{"ledger": "2161h"}`}, 422, task.CodeOutOfRange, "ledger"},
		{request{method: "PATCH", path: "/v1/cluster", body: `{"ledger_limit": "24h"}`}, 422, task.CodeUnknown, "ledger_limit"},
		{request{method: "PATCH", path: "/v1/cluster", body: `{"catch_up_rate": 100001}`}, 422, task.CodeOutOfRange, "catch_up_rate"},
		{request{method: "PATCH", path: "/v1/cluster", body: `{"shards": 3}`}, 422, task.CodeUnknown, "shards"},
		{request{method: "POST", path: "/v1/schedule/next", body: `{"schedule": "@daily", "count": 0}`}, 422, task.CodeOutOfRange, "count"},
		{request{method: "POST", path: "/v1/schedule/next", body: `{"schedule": "@daily", "from": "1999-01-01T00:00:00Z"}`}, 422, task.CodeBadTime, "from"},
		{request{method: "POST", path: "/v1/schedule/next", body: `{"schedule": "@daily", "timezone": "Mars"}`}, 422, task.CodeBadTimezone, "timezone"},
		{request{method: "POST", path: "/v1/schedule/next", body: `{}`}, 422, "", "schedule"},
		{request{method: "GET", path: "/v1/nodes/UP"}, 422, task.CodeBadName, "node"},
		{request{method: "GET", path: "/v1/nodes/none"}, 404, client.CodeNotFound, ""},
		{request{method: "GET", path: "/v1/nothing"}, 404, client.CodeNoRoute, ""},
		{request{method: "GET", path: "/nothing"}, 404, client.CodeNoRoute, ""},
		{request{method: "PUT", path: "/v1/nodes"}, 405, client.CodeMethod, ""},
		{request{method: "BREW", path: tasks}, 405, client.CodeMethod, ""},
		{request{method: "POST", path: "/healthz"}, 405, client.CodeMethod, ""},
	} {
		r := w.do(c.request)
		if r.status != c.status || c.code != "" && r.Code != c.code || r.Field != c.field {
			t.Errorf("%s %s %v: got %d, code %s, field %q, %q; want %d, %s, %q",
				c.method, c.path, c.header, r.status, r.Code, r.Field, r.Detail, c.status, c.code, c.field)
		}
	}

	if !maps.Equal(before, w.dump()) {
		t.Error("something was written")
	}
}

func TestMethods_HeadAndOptions(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")

	const a = "/v1/namespaces/default/tasks/a"
	if r := w.do(request{method: "HEAD", path: a}); r.status != 200 || r.body != "" || r.header.Get("ETag") == "" {
		t.Errorf("HEAD: %+v", r)
	}

	if r := w.do(request{method: "HEAD", path: a + "x"}); r.status != 404 || r.body != "" {
		t.Errorf("HEAD of nothing: %+v", r)
	}

	r := w.do(request{method: "OPTIONS", path: a, noToken: true})
	if got := r.header.Get("Allow"); r.status != http.StatusNoContent || got != "GET, HEAD, PUT, PATCH, DELETE, OPTIONS" {
		t.Errorf("OPTIONS: %d, Allow %q", r.status, got)
	}

	if r := w.do(request{method: "POST", path: a}); r.status != 405 || !strings.Contains(r.header.Get("Allow"), "PATCH") {
		t.Errorf("POST: %d, Allow %q", r.status, r.header.Get("Allow"))
	}
}
