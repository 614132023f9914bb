package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// desk is an app with a fixed clock, whose streams a test reads.
type desk struct {
	*app
	out, errs bytes.Buffer
	env       map[string]string
}

func newDesk(in string) *desk {
	d := &desk{env: map[string]string{}}
	d.app = newApp(IO{In: strings.NewReader(in), Out: &d.out, Err: &d.errs, Env: func(k string) string { return d.env[k] }})
	d.Now = func() time.Time { return time.Date(2026, 11, 20, 22, 12, 0, 0, time.UTC) }
	d.Terminal = func(any) (int, bool) { return 0, false }
	d.Format, d.TimeMode, d.Color, d.timeout = output.FormatTable, output.TimeRelative, "auto", time.Second
	return d
}

func at(s string) task.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return task.At(t)
}

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
		d := newDesk("")
		if got := d.report(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
		if c.err != nil && !strings.HasPrefix(d.errs.String(), "error: ") {
			t.Errorf("%v: told as %q", c.err, d.errs.String())
		}
		if d.out.Len() > 0 {
			t.Errorf("%v: %q on the standard output", c.err, d.out.String())
		}
	}
}

type exitCode int

func (e exitCode) Error() string { return "a daemon's" }
func (e exitCode) ExitCode() int { return int(e) }

func TestReport_IsOneJSONObject(t *testing.T) {
	for _, args := range [][]string{{"x", "-o", "json"}, {"x", "-ojson"}, {"-o=jsonl", "x"}, {"--output=json"}, {"--output", "json", "--", "-o", "table"}} {
		d := newDesk("")
		d.args = args
		d.report(&manifest.Error{File: "f.yaml", Line: 3, Column: 5, Err: task.Invalid(task.CodeBadName, "name", "\x1b[1m <&>")})
		var p map[string]string
		if err := json.Unmarshal(d.errs.Bytes(), &p); err != nil || strings.Count(d.errs.String(), "\n") != 1 {
			t.Fatalf("%v: %v in %q", args, err, d.errs.String())
		}
		if p["code"] != task.CodeBadName || p["field"] != "name" || p["message"] != "f.yaml:3:5: \x1b[1m <&>" {
			t.Errorf("%v: %v", args, p)
		}
	}
	d := newDesk("")
	d.args = []string{"task", "create", "x", "--", "prog", "-o", "json"}
	d.report(errors.New("x\x1b[2J"))
	if got := d.errs.String(); got != "error: x\uFFFD[2J\n" {
		t.Errorf("told as %q", got)
	}
}

func TestParseRunWord(t *testing.T) {
	cases := map[string]runWord{
		"backup":                               {task: "backup"},
		"20261120":                             {task: "20261120"},
		"backup@-1":                            {task: "backup", back: 1},
		"backup@-0":                            {task: "backup"},
		"ns/backup@-12":                        {task: "ns/backup", back: 12},
		"backup@02:30":                         {task: "backup", tick: "02:30"},
		"backup@02:30:05":                      {task: "backup", tick: "02:30:05"},
		"backup@2026-03-29T02:30":              {task: "backup", tick: "2026-03-29T02:30"},
		"backup@2026-03-29T02:30:00Z":          {task: "backup", tick: "2026-03-29T02:30:00Z"},
		"backup@2026-03-29T02:30:00.500+02:00": {task: "backup", tick: "2026-03-29T02:30:00.500+02:00"},
		"20261120T220500.000Z-k3f9":            {id: "20261120T220500.000Z-k3f9"},
		"20261120T22":                          {id: "20261120T22"},
		"20261120T220500.000Z-k3f9-ab2c":       {id: "20261120T220500.000Z-k3f9-ab2c"},
		"backup@20261120T22":                   {task: "backup", id: "20261120T22"},
	}
	for word, want := range cases {
		if got, err := parseRunWord(word); err != nil || got != want {
			t.Errorf("%q: %+v, %v", word, got, err)
		}
	}
	for _, word := range []string{"@", "a@", "@-1", "a@-", "a@--1", "a@-x", "a@-+1", "a@+1", "a@2:3", "a@25:00", "a@2026-13-01T00:00", "a@yesterday", "a@-99999999999999999999"} {
		if got, err := parseRunWord(word); err == nil {
			t.Errorf("%q is %+v", word, got)
		} else if newDesk("").report(err) != failure.ExitUsage {
			t.Errorf("%q: %v is no usage error", word, err)
		}
	}
}

func TestRunAtTick(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	run := func(id, tick string) task.Run {
		return task.Run{ID: id, ScheduledTime: at(tick), Trigger: task.TriggerSchedule}
	}
	missed := run("range", "2026-10-20T00:30:00Z")
	missed.Last, missed.Count = at("2026-10-22T00:30:00Z"), 3
	manual := run("manual", "2026-10-28T01:30:00Z")
	manual.Trigger = task.TriggerManual
	runs := []task.Run{manual, run("c", "2026-10-27T01:30:00Z"), run("b", "2026-10-25T01:30:00Z"), run("a", "2026-10-25T00:30:00Z"), missed}
	cases := []struct {
		tick, want string
		exit       int
	}{
		{"02:30", "c", 0},
		{"2026-10-27T02:30", "c", 0},
		{"2026-10-27T02:30:00", "c", 0},
		{"2026-10-25T02:30", "", failure.ExitConflict}, // twice on that day
		{"2026-10-25T01:30:00Z", "b", 0},
		{"2026-10-25T02:30:00+02:00", "a", 0},
		{"2026-10-21T02:30", "range", 0},
		{"2026-10-28T02:30", "", failure.ExitNotFound}, // a manual run is no tick
		{"2026-10-23T02:30", "", failure.ExitNotFound},
	}
	for _, c := range cases {
		d := newDesk("")
		got, err := d.runAtTick(ref{"default", "x"}, runs, c.tick, berlin)
		if got.ID != c.want || d.report(err) != c.exit {
			t.Errorf("%s: %q, %v", c.tick, got.ID, err)
		}
	}
}

func TestApprove_AsksOnlyWhereSomebodyAnswers(t *testing.T) {
	many := choice{refs: []ref{{"default", "a"}, {"default", "b"}}, broad: true}
	cases := []struct {
		name, in string
		ch       choice
		severe   bool
		edit     func(*desk)
		ok       bool
		exit     int
	}{
		{"one", "", choice{refs: many.refs[:1]}, true, nil, true, 0},
		{"named", "", choice{refs: many.refs}, true, nil, true, 0},
		{"yes", "y\n", many, false, nil, true, 0},
		{"yes in full", "YES\n", many, false, nil, true, 0},
		{"no", "n\n", many, false, nil, false, failure.ExitFailure},
		{"nothing typed", "\n", many, false, nil, false, failure.ExitFailure},
		{"nobody there after all", "", many, false, nil, false, failure.ExitFailure},
		{"severe, yes", "y\n", many, true, nil, false, failure.ExitFailure},
		{"severe, the number", "2\n", many, true, nil, true, 0},
		{"severe, another number", "3\n", many, true, nil, false, failure.ExitFailure},
		{"--yes", "", many, true, func(d *desk) { d.yes = true }, true, 0},
		{"--no-input", "y\n", many, false, func(d *desk) { d.noInput = true }, false, failure.ExitUsage},
		{"no terminal", "y\n", many, false, func(d *desk) { d.Terminal = func(any) (int, bool) { return 0, false } }, false, failure.ExitUsage},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(c.in)
			d.Terminal = func(any) (int, bool) { return 80, true }
			d.Color = "never"
			if c.edit != nil {
				c.edit(d)
			}
			ok, err := d.approve(t.Context(), "delete", c.ch, pick{}, c.severe)
			if ok != c.ok || d.report(err) != c.exit {
				t.Errorf("%v, %v", ok, err)
			}
			if d.out.Len() > 0 {
				t.Errorf("%q on the standard output", d.out.String())
			}
		})
	}
}

func TestOutput_HoldsNothingThatATerminalObeys(t *testing.T) {
	d := newDesk("")
	r := task.Run{ID: "i", State: task.Failed, Message: "\x1b]0;owned\a", Reason: "\x1b[2J", Node: "n", OutputTail: "a\x1b[31mb\rc\n\td"}
	if err := output.EmitOne(&d.app.Printer, r, r.ID, func(w *output.Details) { d.describeRun(w, r, "UTC") }); err != nil {
		t.Fatal(err)
	}
	if err := output.EmitList(&d.app.Printer, []task.Run{r}, runName, func(bool) *output.Table { return d.runGrid([]task.Run{r}, true, true, zones{}) }); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(d.out.String(), "\x1b\a\r") || !strings.Contains(d.out.String(), "\n\td") {
		t.Errorf("%q", d.out.String())
	}
}

func remote(status int, code string) error {
	return &client.Error{Status: status, Code: code, Message: "m"}
}

func TestReport_TellsAHintOnce(t *testing.T) {
	d := newDesk("")
	for range 3 {
		d.report(&client.Error{Status: 507, Code: client.CodeNoSpace, Message: "m", Hint: "make space"})
	}
	d.report(remote(401, client.CodeUnauthorized))
	if n, hints := strings.Count(d.errs.String(), "error:"), strings.Count(d.errs.String(), "hint:"); n != 4 || hints != 2 {
		t.Errorf("%d errors, %d hints:\n%s", n, hints, d.errs.String())
	}
}
