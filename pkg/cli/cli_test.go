package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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
	d.now = func() time.Time { return time.Date(2026, 11, 20, 22, 12, 0, 0, time.UTC) }
	d.terminal = func(any) (int, bool) { return 0, false }
	d.output, d.timeMode, d.color, d.timeout = asTable, timeRelative, "auto", time.Second
	return d
}

func at(s string) task.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return task.At(t)
}

func TestSpan_SaysTheTwoLargestUnits(t *testing.T) {
	for in, want := range map[time.Duration]string{
		0: "0ms", 12 * time.Millisecond: "12ms", 999*time.Millisecond + 999: "999ms", time.Second: "1s", 59*time.Second + 900*time.Millisecond: "59s",
		time.Minute: "1m", 61 * time.Second: "1m 1s", time.Hour: "1h", 3*time.Hour + 18*time.Minute + 59*time.Second: "3h 18m",
		24 * time.Hour: "1d", 57 * time.Hour: "2d 9h", 1000 * time.Hour: "41d 16h", 9000 * time.Hour: "375d", -90 * time.Second: "-1m 30s",
	} {
		if got := span(in); got != want {
			t.Errorf("span(%s) = %q, want %q", in, got, want)
		}
	}
}

func TestTimes_AreShownAsAsked(t *testing.T) {
	const berlin = "Europe/Berlin"
	cases := []struct {
		mode, what string
		got        func(d *desk) string
		want       string
	}{
		{timeRelative, "coming soon", func(d *desk) string { return d.coming(at("2026-11-21T01:30:00Z"), berlin) }, "Sat 02:30 CET"},
		{timeRelative, "coming, with seconds", func(d *desk) string { return d.coming(at("2026-11-21T01:30:05.25Z"), berlin) }, "Sat 02:30:05 CET"},
		{timeRelative, "coming later", func(d *desk) string { return d.coming(at("2026-12-01T01:30:00Z"), berlin) }, "Tue 1 Dec 02:30 CET"},
		{timeRelative, "coming next year", func(d *desk) string { return d.coming(at("2027-07-01T01:30:00Z"), berlin) }, "Thu 1 Jul 2027 03:30 CEST"},
		{timeRelative, "dated", func(d *desk) string { return d.dated(at("2026-11-21T01:30:00Z"), berlin) }, "Sat 21 Nov 02:30 CET"},
		{timeUTC, "coming", func(d *desk) string { return d.coming(at("2026-11-21T01:30:00Z"), berlin) }, "2026-11-21 01:30:00 UTC"},
		{timeTask, "coming", func(d *desk) string { return d.coming(at("2026-11-21T01:30:00.5Z"), berlin) }, "2026-11-21 02:30:00.500 CET"},
		{timeTask, "an unknown zone", func(d *desk) string { return d.coming(at("2026-11-21T01:30:00Z"), "Mars/X") }, "2026-11-21 01:30:00 UTC"},
		{timeRelative, "never", func(d *desk) string { return d.coming(task.Time{}, berlin) }, "–"},
		{timeRelative, "gone", func(d *desk) string { return d.gone(at("2026-11-20T01:12:00Z"), berlin) }, "21h ago"},
		{timeRelative, "just gone", func(d *desk) string { return d.gone(at("2026-11-20T22:11:59.9Z"), berlin) }, "now"},
		{timeUTC, "gone", func(d *desk) string { return d.gone(at("2026-11-20T01:12:00Z"), berlin) }, "2026-11-20 01:12:00 UTC"},
		{timeRelative, "left", func(d *desk) string { return d.left(at("2026-11-21T01:30:00Z")) }, "3h 18m"},
		{timeRelative, "nothing left", func(d *desk) string { return d.left(at("2026-11-20T22:12:00.5Z")) }, "now"},
	}
	for _, c := range cases {
		d := newDesk("")
		d.timeMode = c.mode
		if got := c.got(d); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.mode, c.what, got, c.want)
		}
	}
}

func TestReport_ChoosesTheExitCode(t *testing.T) {
	cases := []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), exitFailure},
		{usage("x"), exitUsage},
		{task.Invalid(task.CodeBadName, "name", "x"), exitUsage},
		{fmt.Errorf("within: %w", task.Invalid(task.CodeBadName, "name", "x")), exitUsage},
		{&manifest.Error{File: "f", Line: 1, Column: 1, Err: task.Invalid(task.CodeBadName, "name", "x")}, exitUsage},
		{&manifest.Error{File: "f", Line: 1, Column: 1, Err: remote(422, task.CodeBadSchedule)}, exitUsage},
		{&manifest.Error{File: "f", Line: 1, Column: 1, Err: remote(503, client.CodeUnavailable)}, exitUnavailable},
		{remote(400, client.CodeBadParameter), exitUsage},
		{remote(401, client.CodeUnauthorized), exitAuth},
		{remote(403, client.CodeForbidden), exitAuth},
		{remote(404, client.CodeNotFound), exitNotFound},
		{remote(409, client.CodeExists), exitConflict},
		{remote(409, client.CodeAmbiguous), exitConflict},
		{remote(412, client.CodeStale), exitConflict},
		{remote(422, task.CodeBadSchedule), exitUsage},
		{remote(500, client.CodeInternal), exitFailure},
		{remote(503, client.CodeUnavailable), exitUnavailable},
		{remote(504, client.CodeUnknown), exitUnavailable},
		{remote(507, client.CodeNoSpace), exitUnavailable},
		{remote(0, client.CodeUnavailable), exitUnavailable},
		{context.DeadlineExceeded, exitUnavailable},
		{interrupted(context.Canceled), exitInterrupted},
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
		} else if newDesk("").report(err) != exitUsage {
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
		{"2026-10-25T02:30", "", exitConflict}, // twice on that day
		{"2026-10-25T01:30:00Z", "b", 0},
		{"2026-10-25T02:30:00+02:00", "a", 0},
		{"2026-10-21T02:30", "range", 0},
		{"2026-10-28T02:30", "", exitNotFound}, // a manual run is no tick
		{"2026-10-23T02:30", "", exitNotFound},
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
		{"no", "n\n", many, false, nil, false, exitFailure},
		{"nothing typed", "\n", many, false, nil, false, exitFailure},
		{"nobody there after all", "", many, false, nil, false, exitFailure},
		{"severe, yes", "y\n", many, true, nil, false, exitFailure},
		{"severe, the number", "2\n", many, true, nil, true, 0},
		{"severe, another number", "3\n", many, true, nil, false, exitFailure},
		{"--yes", "", many, true, func(d *desk) { d.yes = true }, true, 0},
		{"--no-input", "y\n", many, false, func(d *desk) { d.noInput = true }, false, exitUsage},
		{"no terminal", "y\n", many, false, func(d *desk) { d.terminal = func(any) (int, bool) { return 0, false } }, false, exitUsage},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(c.in)
			d.terminal = func(any) (int, bool) { return 80, true }
			d.color = "never"
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

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

func TestGrid_IsCutForTerminalsOnly(t *testing.T) {
	for _, width := range []int{0, 40} {
		d := newDesk("")
		d.terminal = func(any) (int, bool) { return width, width > 0 }
		g := &grid{heads: []string{"NAME", "RESULT"}}
		g.add("a", d.symbol(task.Succeeded, strings.Repeat("long ", 20)))
		g.add("nightly", d.symbol(task.Failed, "exit 1"))
		text := g.render(d.app)
		for line := range strings.Lines(text) {
			visible := utf8.RuneCountInString(strings.TrimRight(escapes.ReplaceAllString(line, ""), "\n"))
			if width > 0 && visible > width {
				t.Errorf("%d columns in a terminal of %d: %q", visible, width, line)
			}
			if strings.HasSuffix(line, " \n") {
				t.Errorf("blanks at the end of %q", line)
			}
		}
		if whole := strings.Contains(text, strings.TrimSpace(strings.Repeat("long ", 20))); whole != (width == 0) {
			t.Errorf("width %d:\n%s", width, text)
		}
		if colours := strings.Contains(text, "\x1b["); colours != (width > 0) {
			t.Errorf("width %d:\n%q", width, text)
		}
	}
}

func TestGrid_KeepsTheResultOnANarrowTerminal(t *testing.T) {
	d := newDesk("")
	d.ascii, d.color = true, "never"
	d.terminal = func(any) (int, bool) { return 80, true }
	g := &grid{heads: []string{"NAME", "SCHEDULE", "NEXT", "LEFT", "LAST", "RESULT", "LAST 10"}}
	g.add("after-the-holidays", "30 3 * * *, */2 * * * * Berlin", "paused until Wed 6 Jan 2027 00:00 CET", "3h 18m", "1m 58s ago, 225ms", "x exit 69", "++++++x+++")
	text := g.render(d.app)
	for _, part := range []string{"after-the-holidays ", "3h 18m ", "x exit 69", "RESULT"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing:\n%s", part, text)
		}
	}
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	g = &grid{heads: []string{"TASK", "RUN", "TICK", "RESULT", "NODE", "LATE", "TOOK"}}
	g.add("every-order", "20261121T135616.218Z-3fxm-wt5c", "Sat 13:56:16 UTC (manual)", "x exit 3", "dev", "15ms", "1m 2s")
	if text := g.render(d.app); !strings.Contains(text, "20261121T135616.218Z-3fxm-wt5c ") || !strings.Contains(text, "x exit 3") || !strings.Contains(text, " ~\n") {
		t.Error(text)
	}
}

func TestColours_AreLeftOutWhereTheyAreNotWanted(t *testing.T) {
	cases := []struct {
		color string
		tty   bool
		env   map[string]string
		want  bool
	}{
		{"auto", true, nil, true},
		{"auto", false, nil, false},
		{"auto", true, map[string]string{"NO_COLOR": "1"}, false},
		{"auto", true, map[string]string{"TERM": "dumb"}, false},
		{"always", false, map[string]string{"NO_COLOR": "1"}, true},
		{"never", true, nil, false},
	}
	for _, c := range cases {
		d := newDesk("")
		d.color, d.terminal = c.color, func(any) (int, bool) { return 80, c.tty }
		if c.env != nil {
			d.env = c.env
		}
		if got := d.paint(red, "x") != "x"; got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestOutput_HoldsNothingThatATerminalObeys(t *testing.T) {
	d := newDesk("")
	r := task.Run{ID: "i", State: task.Failed, Message: "\x1b]0;owned\a", Reason: "\x1b[2J", Node: "n", OutputTail: "a\x1b[31mb\rc\n\td"}
	if err := emitOne(d.app, r, r.ID, func(w *details) { d.describeRun(w, r, "UTC") }); err != nil {
		t.Fatal(err)
	}
	if err := emitList(d.app, []task.Run{r}, runName, func(bool) *grid { return d.runGrid([]task.Run{r}, true, true, zones{}) }); err != nil {
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
