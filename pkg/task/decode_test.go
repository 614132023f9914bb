package task

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// doc returns a complete task. The given fields replace fields with the same names.
func doc(fields string) string {
	s := `{"name": "backup", "schedule": "@daily", "action": {"noop": {}}`
	if fields != "" {
		s = `{` + fields
		for name, value := range map[string]string{"name": `"backup"`, "schedule": `"@daily"`, "action": `{"noop": {}}`} {
			if !strings.Contains(fields, `"`+name+`":`) {
				s += `, "` + name + `": ` + value
			}
		}
	}

	return s + `}`
}

// read decodes and validates, as code that receives a task from a user does.
func read(b string) (Spec, error) {
	s, err := DecodeSpec([]byte(b))
	if err == nil {
		err = s.Validate()
	}
	return s, err
}

func mustRead(t *testing.T, b string) Spec {
	t.Helper()
	s, err := read(b)
	if err != nil {
		t.Fatalf("%s: %v", Quote(b), err)
	}

	return s
}

func process(fields string) string { return `"action": {"process": {` + fields + `}}` }

// list returns a JSON list with n copies of a value.
func list(n int, value string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(value+",", n), ",") + "]"
}

// pairs returns a JSON object with n keys.
func pairs(n int, value string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d": %s`, i, value)
	}
	return "{" + strings.TrimPrefix(b.String(), ",") + "}"
}

func quoted(n int) string { return `"` + strings.Repeat("a", n) + `"` }

func TestBadInputIsRefusedWithItsFieldAndCode(t *testing.T) {
	for _, c := range []struct{ doc, field, code string }{
		// Invalid JSON, or more than one value.
		{``, "", CodeBadJSON},
		{`{`, "", CodeBadJSON},
		{`{"name": "a"`, "", CodeBadJSON},
		{`{"name" "a"}`, "", CodeBadJSON},
		{`{"name": }`, "", CodeBadJSON},
		{`{"name": "a",}`, "", CodeBadJSON},
		{`]`, "", CodeBadJSON},
		{`{"labels": {]}`, "", CodeBadJSON},
		{doc("") + `{}`, "", CodeBadJSON},
		{doc("") + `x`, "", CodeBadJSON},
		{doc("") + `]`, "", CodeBadJSON},
		{"\xef\xbb\xbf" + doc(""), "", CodeBadJSON},
		{doc("\"description\": \"\xff\""), "", CodeBadJSON},
		{doc("\"labels\": {\"\xff\": \"a\"}"), "", CodeBadJSON},

		// Keys.
		{doc(`"name": "a", "name": "a"`), "name", CodeDuplicate},
		{doc(`"n\u0061me": "a", "name": "a"`), "name", CodeDuplicate},
		{doc(`"labels": {"a": "1", "a": "1"}`), "labels.a", CodeDuplicate},
		{doc(`"retry": {"attempts": 1, "attempts": 2}`), "retry.attempts", CodeDuplicate},
		{doc(process(`"shell": "x", "env": {"A": "1", "A": "2"}`)), "action.process.env.A", CodeDuplicate},
		{doc(`"Name": "a"`), "Name", CodeUnknown},
		{doc(`"killGrace": "1s"`), "killGrace", CodeUnknown},
		{doc(`"retry": {"ATTEMPTS": 1}`), "retry.ATTEMPTS", CodeUnknown},
		{doc(`"retry": {"tries": 1}`), "retry.tries", CodeUnknown},
		{doc(`"": 1`), "", CodeUnknown},
		{doc(`"action": {"noop": {"x": 1}}`), "action.noop.x", CodeUnknown},
		{doc(`"action": {"https": {}}`), "action.https", CodeUnknown},

		// Depth.
		{doc(`"labels": ` + strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 100)), "labels.a", CodeBadValue},
		{doc(`"uid": ` + strings.Repeat(`[`, 100_000)), "uid", CodeUnknown},
		{strings.Repeat(`[`, 100_000), "", CodeBadValue},

		// Types.
		{`[]`, "", CodeBadValue},
		{`"backup"`, "", CodeBadValue},
		{`7`, "", CodeBadValue},
		{doc(`"name": 7`), "name", CodeBadValue},
		{doc(`"name": ["a"]`), "name", CodeBadValue},
		{doc(`"name": {"a": 1}`), "name", CodeBadValue},
		{doc(`"labels": ["a"]`), "labels", CodeBadValue},
		{doc(`"labels": {"a": 1}`), "labels.a", CodeBadValue},
		{doc(`"labels": {"a": {}}`), "labels.a", CodeBadValue},
		{doc(`"paused": "yes"`), "paused", CodeBadValue},
		{doc(`"paused": 1`), "paused", CodeBadValue},
		{doc(`"retry": []`), "retry", CodeBadValue},
		{doc(`"retry": "often"`), "retry", CodeBadValue},
		{doc(`"retry": {"attempts": "3"}`), "retry.attempts", CodeBadValue},
		{doc(`"retry": {"attempts": 1.5}`), "retry.attempts", CodeBadValue},
		{doc(`"retry": {"attempts": 1e400}`), "retry.attempts", CodeBadValue},
		{doc(`"retry": {"attempts": 99999999999999999999}`), "retry.attempts", CodeBadValue},
		{doc(`"retry": {"factor": 1e400}`), "retry.factor", CodeBadValue},
		{doc(`"retry": {"on": "failed"}`), "retry.on", CodeBadValue},
		{doc(`"retry": {"on": [1]}`), "retry.on[0]", CodeBadValue},
		{doc(`"timeout": 5`), "timeout", CodeBadValue},
		{doc(`"timeout": {}`), "timeout", CodeBadValue},
		{doc(`"timeout": ["5s"]`), "timeout", CodeBadValue},
		{doc(process(`"command": "ls -l"`)), "action.process.command", CodeBadValue},
		{doc(process(`"command": ["ls", 7]`)), "action.process.command[1]", CodeBadValue},
		{doc(process(`"command": ["ls", ["-l"]]`)), "action.process.command[1]", CodeBadValue},
		{doc(process(`"shell": "x", "env": {"A": 1}`)), "action.process.env.A", CodeBadValue},
		{doc(`"schedule": 7`), "schedule", CodeBadSchedule},
		{doc(`"schedule": {}`), "schedule", CodeBadSchedule},
		{doc(`"schedule": ["@daily", 7]`), "schedule[1]", CodeBadValue},

		// null, where it would silently become an empty text.
		{doc(`"name": null`), "name", CodeRequired},
		{doc(`"action": null`), "action", CodeRequired},
		{doc(`"action": {"noop": null}`), "action", CodeRequired},
		{doc(`"labels": {"a": null}`), "labels.a", CodeBadValue},
		{doc(`"schedule": ["@daily", null]`), "schedule[1]", CodeBadValue},
		{doc(`"retry": {"on": [null]}`), "retry.on[0]", CodeBadValue},
		{doc(process(`"command": ["rm", null]`)), "action.process.command[1]", CodeBadValue},
		{doc(process(`"shell": "x", "env": {"A": null}`)), "action.process.env.A", CodeBadValue},

		// Names.
		{doc(`"name": ""`), "name", CodeRequired},
		{doc(`"name": "A"`), "name", CodeBadName},
		{doc(`"name": "a/b"`), "name", CodeBadName},
		{doc(`"name": "a..b"`), "name", CodeBadName},
		{doc(`"name": ".."`), "name", CodeBadName},
		{doc(`"name": "."`), "name", CodeBadName},
		{doc(`"name": "-a"`), "name", CodeBadName},
		{doc(`"name": "a-"`), "name", CodeBadName},
		{doc(`"name": "a\n"`), "name", CodeBadName},
		{doc(`"name": "a\u0000"`), "name", CodeBadName},
		{doc(`"name": "\u001b[31m"`), "name", CodeBadName},
		{doc(`"name": "a b"`), "name", CodeBadName},
		{doc(`"name": "é"`), "name", CodeBadName},
		{doc(`"name": "a%2fb"`), "name", CodeBadName},
		{doc(`"name": ` + quoted(129)), "name", CodeBadName},
		{doc(`"namespace": ""`), "namespace", CodeRequired},
		{doc(`"namespace": "a/b"`), "namespace", CodeBadName},
		{doc(`"namespace": ` + quoted(129)), "namespace", CodeBadName},

		// Texts.
		{doc(`"description": ` + quoted(4097)), "description", CodeTooLong},
		{doc(`"description": "a\u0000"`), "description", CodeBadValue},
		{doc(`"description": "a\r"`), "description", CodeBadValue},
		{doc(`"description": "\u001b[2J"`), "description", CodeBadValue},
		{doc(`"description": "\u007f"`), "description", CodeBadValue},
		{doc(`"description": "\u009b2J"`), "description", CodeBadValue},

		// Labels.
		{doc(`"labels": {"": "a"}`), "labels", CodeBadLabel},
		{doc(`"labels": {"a b": "a"}`), "labels", CodeBadLabel},
		{doc(`"labels": {"a=b": "a"}`), "labels", CodeBadLabel},
		{doc(`"labels": {"-a": "a"}`), "labels", CodeBadLabel},
		{doc(`"labels": {` + quoted(64) + `: "a"}`), "labels", CodeBadLabel},
		{doc(`"labels": {"a": "b,c"}`), "labels.a", CodeBadLabel},
		{doc(`"labels": {"a": "b\n"}`), "labels.a", CodeBadLabel},
		{doc(`"labels": {"a": ` + quoted(64) + `}`), "labels.a", CodeBadLabel},
		{doc(`"labels": ` + pairs(65, `"v"`)), "labels", CodeTooMany},

		// Actions.
		{doc(`"action": {}`), "action", CodeRequired},
		{doc(`"action": {"noop": {}, "process": {"shell": "x"}}`), "action", CodeBadValue},
		{doc(process(``)), "action.process", CodeRequired},
		{doc(process(`"command": []`)), "action.process", CodeRequired},
		{doc(process(`"command": ["x"], "shell": "x"`)), "action.process", CodeRequired},
		{doc(process(`"command": [""]`)), "action.process.command[0]", CodeRequired},
		{doc(process(`"command": ["x", "a\u0000b"]`)), "action.process.command[1]", CodeBadValue},
		{doc(process(`"command": ["x", ` + quoted(MaxArg+1) + `]`)), "action.process.command[1]", CodeTooLong},
		{doc(process(`"command": ` + list(1024+1, `"x"`))), "action.process.command", CodeTooMany},
		{doc(process(`"command": ` + list(3, quoted(MaxArg)))), "action.process", CodeTooLong},
		{doc(process(`"shell": "a\u0000b"`)), "action.process.shell", CodeBadValue},
		{doc(process(`"shell": ` + quoted(MaxArg+1))), "action.process.shell", CodeTooLong},
		{doc(process(`"shell": "x", "dir": "tmp"`)), "action.process.dir", CodeBadValue},
		{doc(process(`"shell": "x", "dir": "/a\u0000"`)), "action.process.dir", CodeBadValue},
		{doc(process(`"shell": "x", "dir": "/` + strings.Repeat("a", 4095) + `"`)), "action.process.dir", CodeBadValue},
		{doc(process(`"shell": "x", "user": "a b"`)), "action.process.user", CodeBadValue},
		{doc(process(`"shell": "x", "user": "a:b"`)), "action.process.user", CodeBadValue},
		{doc(process(`"shell": "x", "user": "../root"`)), "action.process.user", CodeBadValue},
		{doc(process(`"shell": "x", "user": ` + quoted(257))), "action.process.user", CodeBadValue},

		// Environments.
		{doc(process(`"shell": "x", "env": {"": "a"}`)), "action.process.env", CodeBadEnv},
		{doc(process(`"shell": "x", "env": {"A=B": "a"}`)), "action.process.env", CodeBadEnv},
		{doc(process(`"shell": "x", "env": {"A\u0000": "a"}`)), "action.process.env", CodeBadEnv},
		{doc(process(`"shell": "x", "env": {"CARILLON_TASK": "a"}`)), "action.process.env", CodeBadEnv},
		{doc(process(`"shell": "x", "env": {` + quoted(257) + `: "a"}`)), "action.process.env", CodeBadEnv},
		{doc(process(`"shell": "x", "env": {"A": "a\u0000"}`)), "action.process.env.A", CodeBadValue},
		{doc(process(`"shell": "x", "env": {"A": ` + quoted(MaxArg+1) + `}`)), "action.process.env.A", CodeTooLong},
		{doc(process(`"shell": "x", "env": ` + pairs(MaxEnv+1, `"v"`))), "action.process.env", CodeTooMany},
		{doc(process(`"shell": "x", "env": ` + pairs(3, quoted(MaxArg)))), "action.process.env", CodeTooLong},

		// Durations.
		{doc(`"timeout": ""`), "timeout", CodeBadDuration},
		{doc(`"timeout": "5"`), "timeout", CodeBadDuration},
		{doc(`"timeout": "5 m"`), "timeout", CodeBadDuration},
		{doc(`"timeout": "1 day"`), "timeout", CodeBadDuration},
		{doc(`"timeout": "99999999999h"`), "timeout", CodeBadDuration},
		{doc(`"missed": {"grace": "soon"}`), "missed.grace", CodeBadDuration},
		{doc(`"timeout": "-1s"`), "timeout", CodeOutOfRange},
		{doc(`"timeout": "8785h"`), "timeout", CodeOutOfRange},
		{doc(`"kill_grace": "-1ns"`), "kill_grace", CodeOutOfRange},
		{doc(`"kill_grace": "61m"`), "kill_grace", CodeOutOfRange},

		// Policies.
		{doc(`"overlap": ""`), "overlap", CodeBadValue},
		{doc(`"overlap": "Skip"`), "overlap", CodeBadValue},
		{doc(`"overlap": "wait"`), "overlap", CodeBadValue},
		{doc(`"queue": {"limit": 3}`), "queue", CodeBadValue},
		{doc(`"overlap": "queue", "queue": {"limit": 0}`), "queue.limit", CodeOutOfRange},
		{doc(`"overlap": "queue", "queue": {"limit": 101}`), "queue.limit", CodeOutOfRange},
		{doc(`"overlap": "queue", "queue": {"drop": "all"}`), "queue.drop", CodeBadValue},
		{doc(`"max_active": 3`), "max_active", CodeBadValue},
		{doc(`"overlap": "allow", "max_active": -1`), "max_active", CodeOutOfRange},
		{doc(`"start": "1999-01-01T00:00:00Z"`), "start", CodeBadTime},
		{doc(`"end": "2101-01-01T00:00:00Z"`), "end", CodeBadTime},
		{doc(`"start": "2027-01-01T00:00:00Z", "end": "2026-01-01T00:00:00Z"`), "end", CodeBadTime},
		{doc(`"jitter": "-1s"`), "jitter", CodeOutOfRange},
		{doc(`"jitter": "25h"`), "jitter", CodeOutOfRange},
		{doc(`"max_runs": -1`), "max_runs", CodeOutOfRange},
		{doc(`"ttl": "1ms"`), "ttl", CodeOutOfRange},
		{doc(`"start_deadline": "1ms"`), "start_deadline", CodeOutOfRange},
		{doc(`"pause_after_failures": -1`), "pause_after_failures", CodeOutOfRange},
		{doc(`"output": {"streams": "both"}`), "output.streams", CodeBadValue},
		{doc(`"output": {"limit": "1023"}`), "output.limit", CodeOutOfRange},
		{doc(`"output": {"limit": "2Ti"}`), "output.limit", CodeOutOfRange},
		{doc(`"output": {"keep": "59s"}`), "output.keep", CodeOutOfRange},
		{doc(`"output": {"mask": "no"}`), "output.mask", CodeBadValue},
		{doc(`"output": {"compress": "no"}`), "output.compress", CodeBadValue},
		{doc(`"output": {"limits": "1Mi"}`), "output.limits", CodeUnknown},
		{doc(`"paused_until": "2027-01-01T00:00:00Z"`), "paused_until", CodeBadValue},
		{doc(`"pause_reason": "x"`), "pause_reason", CodeBadValue},
		{doc(`"retry": {"exit_codes": [0]}`), "retry.exit_codes[0]", CodeOutOfRange},
		{doc(`"retry": {"exit_codes": [75, 75]}`), "retry.exit_codes[1]", CodeBadValue},
		{doc(`"retry": {"on": ["lost"], "exit_codes": [75]}`), "retry.exit_codes", CodeBadValue},
		{doc(`"missed": {"policy": "none"}`), "missed.policy", CodeBadValue},
		{doc(`"missed": {"grace": "0s"}`), "missed.grace", CodeOutOfRange},
		{doc(`"missed": {"grace": "61m", "window": "2h"}`), "missed.grace", CodeOutOfRange},
		{doc(`"missed": {"grace": "30s", "window": "20s"}`), "missed.window", CodeOutOfRange},
		{doc(`"missed": {"window": "8785h"}`), "missed.window", CodeOutOfRange},
		{doc(`"missed": {"limit": 0}`), "missed.limit", CodeOutOfRange},
		{doc(`"missed": {"limit": -1}`), "missed.limit", CodeOutOfRange},
		{doc(`"missed": {"limit": 10001}`), "missed.limit", CodeOutOfRange},
		{doc(`"retry": {"attempts": 0}`), "retry.attempts", CodeOutOfRange},
		{doc(`"retry": {"attempts": -3}`), "retry.attempts", CodeOutOfRange},
		{doc(`"retry": {"attempts": 101}`), "retry.attempts", CodeOutOfRange},
		{doc(`"retry": {"backoff": "-1s"}`), "retry.backoff", CodeOutOfRange},
		{doc(`"retry": {"backoff": "169h"}`), "retry.backoff", CodeOutOfRange},
		{doc(`"retry": {"max_backoff": "-1s"}`), "retry.max_backoff", CodeOutOfRange},
		{doc(`"retry": {"max_backoff": "169h"}`), "retry.max_backoff", CodeOutOfRange},
		{doc(`"retry": {"factor": 0}`), "retry.factor", CodeOutOfRange},
		{doc(`"retry": {"factor": 101}`), "retry.factor", CodeOutOfRange},
		{doc(`"retry": {"jitter": -0.1}`), "retry.jitter", CodeOutOfRange},
		{doc(`"retry": {"jitter": 1.1}`), "retry.jitter", CodeOutOfRange},
		{doc(`"retry": {"on": ["succeeded"]}`), "retry.on[0]", CodeBadValue},
		{doc(`"retry": {"on": ["lost", "failed", "lost"]}`), "retry.on[2]", CodeBadValue},
		{doc(`"target": {"selector": "= db"}`), "target.selector", CodeBadSelector},
		{doc(`"target": {"selector": ` + quoted(1025) + `}`), "target.selector", CodeTooLong},
		{doc(`"target": {"selector": "disk_free > plenty"}`), "target.selector", CodeBadSelector},
		{doc(`"target": {"strategy": "fair"}`), "target.strategy", CodeBadValue},
		{doc(`"target": {"key": "customer-7"}`), "target.key", CodeBadValue},
		{doc(`"target": {"strategy": "hash", "key": ` + quoted(257) + `}`), "target.key", CodeTooLong},
		{doc(`"target": {"strategy": "hash", "key": "a\u0007"}`), "target.key", CodeBadValue},
		{doc(`"target": {"strategy": "first"}`), "target.order", CodeRequired},
		{doc(`"target": {"strategy": "first", "order": []}`), "target.order", CodeRequired},
		{doc(`"target": {"order": ["n1"]}`), "target.order", CodeBadValue},
		{doc(`"target": {"strategy": "first", "order": ["n1", "N2"]}`), "target.order[1]", CodeBadName},
		{doc(`"target": {"strategy": "first", "order": ["n1", "n2", "n1"]}`), "target.order[2]", CodeBadValue},
		{doc(`"target": {"count": 1001}`), "target.count", CodeOutOfRange},
		{doc(`"target": {"count": "all", "strategy": "random"}`), "target.strategy", CodeBadValue},
		{doc(`"target": {"count": 2, "strategy": "sticky"}`), "target.strategy", CodeBadValue},
		{doc(`"target": {"parts": 2, "strategy": "sticky"}`), "target.strategy", CodeBadValue},
		{doc(`"target": {"count": 3, "strategy": "first", "order": ["n1", "n2"]}`), "target.count", CodeOutOfRange},
		{doc(`"target": {"count": "some"}`), "target.count", CodeBadValue},
		{doc(`"target": {"count": "2"}`), "target.count", CodeBadValue},
		{doc(`"target": {"count": -1}`), "target.count", CodeBadValue},
		{doc(`"target": {"count": 1.5}`), "target.count", CodeBadValue},
		{doc(`"target": {"parts": 1001}`), "target.parts", CodeOutOfRange},
		{doc(`"target": {"parts": -1}`), "target.parts", CodeOutOfRange},
		{doc(`"target": {"parts": 2, "count": 2}`), "target.parts", CodeBadValue},
		{doc(`"target": {"parts": 2, "count": "all"}`), "target.parts", CodeBadValue},
		{doc(`"target": {"stagger": "1s"}`), "target.stagger", CodeBadValue},
		{doc(`"target": {"parts": 2, "stagger": "2h"}`), "target.stagger", CodeOutOfRange},
		{doc(`"target": {"parts": 2, "stagger": "-1s"}`), "target.stagger", CodeOutOfRange},
		{doc(`"target": {"succeed": "any"}`), "target.succeed", CodeBadValue},
		{doc(`"target": {"parts": 2, "succeed": "most"}`), "target.succeed", CodeBadValue},
		{doc(`"target": {"parts": 2, "succeed": 3}`), "target.succeed", CodeOutOfRange},
		{doc(`"target": {"parts": 2, "succeed": "0%"}`), "target.succeed", CodeBadValue},
		{doc(`"target": {"parts": 2, "succeed": "101%"}`), "target.succeed", CodeBadValue},
		{doc(`"target": {"parts": 2, "succeed": ["any"]}`), "target.succeed", CodeBadValue},
		{doc(`"target": {"count": 0}`), "target.count", CodeOutOfRange},
		{doc(`"history": {"keep": 0}`), "history.keep", CodeOutOfRange},
		{doc(`"history": {"keep": 10001}`), "history.keep", CodeOutOfRange},
		{doc(`"history": {"record": "none"}`), "history.record", CodeBadValue},

		// Ends of tasks and runs.
		{doc(`"kill_signal": "TERM"`), "kill_signal", CodeBadValue},
		{doc(`"kill_signal": "SIGSTOP"`), "kill_signal", CodeBadValue},
		{doc(`"kill_signal": "15"`), "kill_signal", CodeBadValue},
		{doc(`"success": {"exit_codes": [-1]}`), "success.exit_codes[0]", CodeOutOfRange},
		{doc(`"success": {"exit_codes": [0, 256]}`), "success.exit_codes[1]", CodeOutOfRange},
		{doc(`"success": {"exit_codes": [3, 0, 3]}`), "success.exit_codes[2]", CodeBadValue},
		{doc(`"success": {"output": "("}`), "success.output", CodeBadValue},
		{doc(`"success": {"output": "(?=x)"}`), "success.output", CodeBadValue},
		{doc(`"success": {"not_output": "a{1001}"}`), "success.not_output", CodeBadValue},
		{doc(`"success": {"not_output": "(?:aaaaaaaaaaaa){1000}"}`), "success.not_output", CodeTooLong},
		{doc(`"success": {"output": ".{1000}.{1000}"}`), "success.output", CodeTooLong},
		{doc(`"success": {"output": ` + quoted(MaxPattern+1) + `}`), "success.output", CodeTooLong},
	} {
		_, err := read(c.doc)
		var e *Error
		switch {
		case err == nil:
			t.Errorf("%s was taken", cut(c.doc))
		case !errors.As(err, &e) || !errors.Is(err, ErrInvalid):
			t.Errorf("%s: %v is not an *Error, or not ErrInvalid", cut(c.doc), err)
		case e.Field != c.field || e.Code != c.code:
			t.Errorf("%s: field %q, code %s (%v); want %q, %s", cut(c.doc), e.Field, e.Code, err, c.field, c.code)
		case len(err.Error()) > 400:
			t.Errorf("%s: the message floods: %d bytes", cut(c.doc), len(err.Error()))
		}
	}
}

func cut(s string) string {
	if len(s) > 120 {
		return s[:120] + "…"
	}
	return s
}

func TestInputAtItsLimitsIsTaken(t *testing.T) {
	for _, fields := range []string{
		`"name": "a"`, `"name": "a.b-c_d"`, `"name": ` + quoted(128), `"namespace": ` + quoted(128),
		`"description": ` + quoted(4096), `"description": "Zeile 1\n\tZeile 2 – ü"`,
		`"labels": {"a.b/c": ""}`, `"labels": {` + quoted(63) + `: ` + quoted(63) + `}`, `"labels": ` + pairs(64, `"v"`),
		process(`"command": ["x", "", "a b", "` + strings.Repeat("é", 10) + `"]`), process(`"command": ` + list(1024, `"x"`)),
		process(`"shell": ` + quoted(MaxArg)),
		process(`"shell": "x", "env": {"A": "", "b.c": "\n"}, "dir": "/", "user": "backup"`), process(`"shell": "x", "env": ` + pairs(MaxEnv, `"v"`)),
		`"timeout": "8784h"`, `"timeout": "0s"`, `"kill_grace": "0s"`, `"kill_grace": "1h"`,
		`"missed": {"grace": "1s", "window": "1s", "limit": 10000, "policy": "all"}`, `"missed": {"grace": "1h"}`,
		`"retry": {"attempts": 100, "backoff": "168h", "max_backoff": "168h", "factor": 100, "jitter": 1, "on": ["lost", "failed", "timed_out"]}`,
		`"history": {"keep": 10000}`, `"history": {"keep": 1}`,
		`"kill_signal": "SIGKILL"`, `"kill_signal": ""`, `"success": {"exit_codes": [0, 255], "output": ` + quoted(MaxPattern) + `, "not_output": "(?i)\\berror\\b"}`,
	} {
		if _, err := read(doc(fields)); err != nil {
			t.Errorf("%s was refused: %v", cut(fields), err)
		}
	}
}

// A byte of text may need six bytes in JSON. Two copies of an action must fit into a request of 1.5 MiB.
func TestAnActionIsMeasuredAsItIsStored(t *testing.T) {
	for _, text := range []string{"<", "\u0001", "\u2028"} {
		spec := Defaults()
		spec.Name, spec.Schedule = "a", Schedules{"@daily"}
		spec.Action.Process = &Process{Command: []string{strings.Repeat(text, 20_000), strings.Repeat(text, 20_000)}}
		var e *Error
		if err := spec.Validate(); !errors.As(err, &e) || e.Code != CodeTooLong || e.Field != "action.process" {
			t.Errorf("40,000 × %q: %v", text, err)
		}

		env := map[string]string{"A": strings.Repeat(text, 20_000), "B": strings.Repeat(text, 20_000)}
		if err := CheckEnv("env", env); !errors.As(err, &e) || e.Code != CodeTooLong || e.Field != "env" {
			t.Errorf("an environment of 40,000 × %q: %v", text, err)
		}
	}
}

func TestUnknownFieldsAreToldWhatTheyResemble(t *testing.T) {
	for key, want := range map[string]string{"Name": "name", "killGrace": "kill_grace", "kill-grace": "kill_grace", "desc": "description"} {
		_, err := DecodeSpec([]byte(`{"` + key + `": 1}`))
		if err == nil || !strings.HasSuffix(err.Error(), "did you mean "+want+"?") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestWhatIsNotGivenKeepsItsDefault(t *testing.T) {
	whole := mustRead(t, doc(""))

	for _, fields := range []string{
		`"retry": {}`, `"missed": {}`, `"target": {}`, `"history": {}`, `"dst": {}`,
		`"retry": null`, `"missed": null`, `"labels": null`, `"timeout": null`, `"kill_grace": null`, `"overlap": null`, `"paused": null`,
		`"description": null`, `"retry": {"attempts": null, "on": null, "backoff": null, "factor": null}`, `"dst": {"gap": null}`, `"dst": {"gap": "", "fold": ""}`,
		`"timezone": null, "namespace": null`, `"action": {"noop": {}, "process": null}`,
	} {
		if got := mustRead(t, doc(fields)); !reflect.DeepEqual(got, whole) {
			t.Errorf("%s: %+v, want %+v", fields, got, whole)
		}
	}

	want := whole
	want.Retry.Attempts, want.Missed.Policy, want.DST.Fold, want.History.Keep = 5, MissedAll, FoldBoth, 3
	got := mustRead(t, doc(`"retry": {"attempts": 5}, "missed": {"policy": "all"}, "dst": {"fold": "both"}, "history": {"keep": 3}`))
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestAScheduleThatIsNullIsNotGiven(t *testing.T) {
	s, err := DecodeSpec([]byte(`{"schedule": null}`))
	if err != nil || len(s.Schedule) != 0 {
		t.Fatalf("schedule %q, error %v; want none, which package schedule refuses as required", s.Schedule, err)
	}
}

func TestExplicitZerosAreKept(t *testing.T) {
	s := mustRead(t, doc(`"timeout": "0s", "kill_grace": "0s", "retry": {"backoff": "0s", "max_backoff": "0", "jitter": 0, "on": []}, "paused": false`))
	if s.Timeout != 0 || s.KillGrace != 0 || s.Retry.Backoff != 0 || s.Retry.MaxBackoff != 0 || s.Retry.Jitter != 0 ||
		s.Retry.On == nil || len(s.Retry.On) != 0 {
		t.Errorf("explicit zeros gave %+v", s)
	}

	if s.Retry.Factor != 2 || s.Retry.Attempts != 1 {
		t.Errorf("the others lost their defaults: %+v", s.Retry)
	}
}

func TestOneDocumentDoesNotChangeTheDefaultsOfTheNext(t *testing.T) {
	mustRead(t, doc(`"retry": {"on": ["lost"]}`))
	if got := Defaults().Retry.On; !slices.Equal(got, []State{Failed, TimedOut}) {
		t.Fatalf("the default is now %v", got)
	}
}

// In a merge patch, null removes a label.
func TestDecodeStrict_TakesNullInMapsAndNotInLists(t *testing.T) {
	s := Spec{}
	if err := DecodeStrict([]byte(`{"labels": {"a": null}, "retry": null}`), &s); err != nil {
		t.Errorf("refused: %v", err)
	}

	var e *Error
	if err := DecodeStrict([]byte(`{"retry": {"on": [null]}}`), &s); !errors.As(err, &e) || e.Field != "retry.on[0]" {
		t.Errorf("null in a list: %v", err)
	}

	var anything map[string]any
	if err := DecodeStrict([]byte(`{"a": [null, {"b": null}], "c": 1e400, "d": "x"}`), &anything); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("a number beyond float64: %v", err)
	}

	if err := DecodeStrict([]byte(`{"a": [null, {"b": null}]}`), &anything); err != nil {
		t.Errorf("null where anything goes: %v", err)
	}

	if err := DecodeStrict([]byte(strings.Repeat(`{"a":`, 33)+`1`+strings.Repeat(`}`, 33)), &anything); !errors.As(err, &e) || e.Code != CodeBadJSON {
		t.Errorf("33 levels: %v", err)
	}

	if err := DecodeStrict([]byte(strings.Repeat(`{"a":`, 32)+`1`+strings.Repeat(`}`, 32)), &anything); err != nil {
		t.Errorf("32 levels: %v", err)
	}

	var times struct {
		At []Time `json:"at"`
	}
	if err := DecodeStrict([]byte(`{"at": ["2026-01-01T00:00:00Z", "yesterday"]}`), &times); !errors.As(err, &e) || e.Field != "at[1]" || e.Code != CodeBadTime {
		t.Errorf("an invalid time: %v", err)
	}
}

func TestUnder_PutsAPathBeforeAField(t *testing.T) {
	for inner, want := range map[string]string{"": "a", "b": "a.b", "[0]": "a[0]", "b[1].c": "a.b[1].c"} {
		if e := Under("a", Invalid(CodeBadValue, inner, "m")).(*Error); e.Field != want {
			t.Errorf("%q became %q, want %q", inner, e.Field, want)
		}
	}

	if Under("a", nil) != nil || Under("a", ErrExists) != ErrExists {
		t.Error("an unrelated error was changed")
	}
}

func TestQuote_CutsBetweenCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"a\x1b[0m":                    "\"a\\x1b[0m\"",
		strings.Repeat("a", 40):       `"` + strings.Repeat("a", 40) + `"`,
		strings.Repeat("a", 41):       `"` + strings.Repeat("a", 40) + `…"`,
		strings.Repeat("é", 2000):     `"` + strings.Repeat("é", 20) + `…"`,
		"a" + strings.Repeat("é", 20): `"a` + strings.Repeat("é", 19) + `…"`,
	} {
		if got := Quote(in); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestNewEntry_TakesAllThatFiringNeeds(t *testing.T) {
	full := Task{Spec: mustRead(t, doc(`"dst": {"gap": "skip"}, "timeout": "1m", "paused": true, "labels": {"a": "b"}, "target": {"selector": "a"},
		"start": "2026-01-01T00:00:00Z", "end": "2027-01-01T00:00:00Z", "jitter": "1s", "max_runs": 9, "ttl": "1h", "overlap": "queue", "queue": {"limit": 3},
		"start_deadline": "1m", "pause_after_failures": 5, "shadow": true, "metrics": false,
		"kill_signal": "SIGINT", "success": {"exit_codes": [3]}, "output": {"limit": "1Mi"}, "accept": {"target": true},
		"alerts": {"notify": ["ops/slack"]}`)), UID: "u", Generation: 3}
	full.MaxActive, full.Receiver, full.Join = 2, &Receiver{}, JoinAny // not possible with queue
	now := At(time.Now())
	e := NewEntry(full, now, now)
	e.Own = &Own{} // the spec cannot set what has happened
	e.NamespaceRev = 1
	e.Links = []Link{{Task: "import", Generation: 3}}

	v, spec := reflect.ValueOf(e), reflect.ValueOf(full.Spec)
	for _, f := range reflect.VisibleFields(v.Type()) {
		if from := spec.FieldByName(f.Name); from.IsValid() && !reflect.DeepEqual(v.FieldByIndex(f.Index).Interface(), from.Interface()) {
			t.Errorf("the entry's %s is not the task's", f.Name)
		}

		if v.FieldByIndex(f.Index).IsZero() {
			t.Errorf("the entry's %s is not set", f.Name)
		}
	}

	not := map[string]bool{"After": true, "PausedUntil": true, "PauseReason": true, "Name": true, "Namespace": true, "Description": true}
	fields := maps.Collect(func(yield func(string, bool) bool) {
		for _, f := range reflect.VisibleFields(spec.Type()) {
			yield(f.Name, true)
		}
	})

	for name := range fields {
		if !not[name] && !v.FieldByName(name).IsValid() {
			t.Errorf("%s of a task is not in its entry", name)
		}
	}

	// Validate sees the fields that it can judge. Shadow and paused have no invalid values.
	for _, change := range []func(*Entry){
		func(e *Entry) { e.Timeout = -1 }, func(e *Entry) { e.KillSignal = "SIGSTOP" }, func(e *Entry) { e.Retry.Attempts = -1 },
		func(e *Entry) { e.Output.Streams = "x" }, func(e *Entry) { e.Success.Output = "(" }, func(e *Entry) { e.Overlap = "x" },
		func(e *Entry) { e.Missed.Policy = "x" }, func(e *Entry) { e.Target.Strategy = "x" }, func(e *Entry) { e.History.Record = "x" },
		func(e *Entry) { e.DST.Gap = "x" }, func(e *Entry) { e.Jitter = -1 }, func(e *Entry) { e.MaxRuns = -1 }, func(e *Entry) { e.Accept.Args = -1 },
	} {
		valid := NewEntry(Task{Spec: mustRead(t, doc(""))}, now, now)
		if err := valid.Validate(); err != nil {
			t.Fatal(err)
		}

		if change(&valid); valid.Validate() == nil {
			t.Errorf("%+v is accepted", valid)
		}
	}
}

func TestSameTicks_LooksAtWhatMovesTicks(t *testing.T) {
	a := mustRead(t, doc(""))

	for _, c := range []struct {
		change func(*Spec)
		same   bool
	}{
		{func(s *Spec) {}, true},
		{func(s *Spec) { s.Paused, s.Description, s.Timeout = true, "x", 1 }, true},
		{func(s *Spec) { s.Schedule = Schedules{"@hourly"} }, false},
		{func(s *Spec) { s.Schedule = Schedules{"@daily", "@hourly"} }, false},
		{func(s *Spec) { s.Timezone = "Europe/Berlin" }, false},
		{func(s *Spec) { s.DST.Gap = GapSkip }, false},
	} {
		b := a
		if c.change(&b); SameTicks(a, b) != c.same {
			t.Errorf("%+v and %+v: same ticks is %v", a, b, !c.same)
		}
	}
}

func TestDecodeSpec_NamesTheKindsOfAWrongValue(t *testing.T) {
	for text, want := range map[string]string{
		`[]`: "a list is not an object", `{"labels": 1}`: "1 is not an object", `{"paused": {}}`: "an object is not true or false",
		`{"history": {"keep": "many"}}`: `"many" is not a whole number`, `{"overlap": ["skip"]}`: "a list is not a string",
	} {
		if _, err := DecodeSpec([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
