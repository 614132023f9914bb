package factory_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestReport_ChoosesTheExitCode(t *testing.T) {
	cases := []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), failure.ExitFailure},
		{failure.Usage("x"), failure.ExitUsage},
		{task.Invalid(task.CodeBadName, "name", "x"), failure.ExitUsage},
		{fmt.Errorf("within: %w", task.Invalid(task.CodeBadName, "name", "x")), failure.ExitUsage},
		{&manifest.Error{File: "f", Line: 1, Column: 1, Err: task.Invalid(task.CodeBadName, "name", "x")}, failure.ExitUsage},
		{&manifest.Error{File: "f", Line: 1, Column: 1, Err: remote(422, task.CodeBadSchedule)}, failure.ExitUsage},
		{&manifest.Error{File: "f", Line: 1, Column: 1, Err: remote(503, client.CodeUnavailable)}, failure.ExitUnavailable},
		{remote(400, client.CodeBadParameter), failure.ExitUsage},
		{remote(401, client.CodeUnauthorized), failure.ExitAuth},
		{remote(403, client.CodeForbidden), failure.ExitAuth},
		{remote(404, client.CodeNotFound), failure.ExitNotFound},
		{remote(409, client.CodeExists), failure.ExitConflict},
		{remote(409, client.CodeAmbiguous), failure.ExitConflict},
		{remote(412, client.CodeStale), failure.ExitConflict},
		{remote(422, task.CodeBadSchedule), failure.ExitUsage},
		{remote(500, client.CodeInternal), failure.ExitFailure},
		{remote(503, client.CodeUnavailable), failure.ExitUnavailable},
		{remote(504, client.CodeUnknown), failure.ExitUnavailable},
		{remote(507, client.CodeNoSpace), failure.ExitUnavailable},
		{remote(0, client.CodeUnavailable), failure.ExitUnavailable},
		{context.DeadlineExceeded, failure.ExitUnavailable},
		{failure.Interrupted(context.Canceled), failure.ExitInterrupted},
		{exitCode(77), 77},
	}
	for _, c := range cases {
		d := factorytest.New("")
		if got := d.Report(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}

		if c.err != nil && !strings.HasPrefix(d.Errs.String(), "error: ") {
			t.Errorf("%v: reported as %q", c.err, d.Errs.String())
		}

		if d.Out.Len() > 0 {
			t.Errorf("%v: %q on the standard output", c.err, d.Out.String())
		}
	}
}

type exitCode int

func TestReport_IsOneJSONObject(t *testing.T) {
	for _, args := range [][]string{{"x", "-o", "json"}, {"x", "-ojson"}, {"-o=jsonl", "x"}, {"--output=json"}, {"--output", "json", "--", "-o", "table"}} {
		d := factorytest.New("")
		d.Words = args
		d.Report(&manifest.Error{File: "f.yaml", Line: 3, Column: 5, Err: task.Invalid(task.CodeBadName, "name", "\x1b[1m <&>")})

		var p map[string]string
		if err := json.Unmarshal(d.Errs.Bytes(), &p); err != nil || strings.Count(d.Errs.String(), "\n") != 1 {
			t.Fatalf("%v: %v in %q", args, err, d.Errs.String())
		}

		if p["code"] != task.CodeBadName || p["field"] != "name" || p["message"] != "f.yaml:3:5: \x1b[1m <&>" {
			t.Errorf("%v: %v", args, p)
		}
	}

	d := factorytest.New("")
	d.Words = []string{"task", "create", "x", "--", "prog", "-o", "json"}
	d.Report(errors.New("x\x1b[2J"))

	if got := d.Errs.String(); got != "error: x\uFFFD[2J\n" {
		t.Errorf("reported as %q", got)
	}
}

func remote(status int, code string) error {
	return &client.Error{Status: status, Code: code, Message: "m"}
}

func TestReport_TellsAHintOnce(t *testing.T) {
	d := factorytest.New("")

	for range 3 {
		d.Report(&client.Error{Status: 507, Code: client.CodeNoSpace, Message: "m", Hint: "make space"})
	}

	d.Report(remote(401, client.CodeUnauthorized))

	if n, hints := strings.Count(d.Errs.String(), "error:"), strings.Count(d.Errs.String(), "hint:"); n != 4 || hints != 2 {
		t.Errorf("%d errors, %d hints:\n%s", n, hints, d.Errs.String())
	}
}

func (e exitCode) Error() string { return "a daemon's" }
func (e exitCode) ExitCode() int { return int(e) }

func TestReport_TellsNothingThatATerminalObeys(t *testing.T) {
	for _, evil := range factorytest.Hostile {
		for _, format := range []string{output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML} {
			d := factorytest.New("")
			d.Format, d.Terminal = format, func(any) (int, bool) { return 80, true }

			d.Report(&client.Error{Status: 404, Code: "c", Message: evil, Hint: evil})

			if what := factorytest.Obeyed(d.Errs.String()); what != "" {
				t.Errorf("%q, -o %s: the output contains %q", evil, format, what)
			}
		}
	}
}
