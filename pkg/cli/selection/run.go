package selection

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// RunHelp describes in --help how to name a run.
const RunHelp = `A run is named by
  TASK                       its latest run
  TASK@-1                    the run before that, and so on
  TASK@02:30                 the latest tick at 02:30 in the task's time zone
  TASK@2026-03-29T02:30      that tick
  20261120T220500.000Z-k3f9  its ID, or a unique prefix of it`

// RunWord is a parsed name of a run. Either ID is set, or Task with at most one of back and Tick.
type RunWord struct {
	ID   string
	Task string // NAME or NAMESPACE/NAME
	back int    // the number of runs before the latest one
	Tick string // a tick as the user typed it, in one of tickForms
}

// RunIDStart matches the id of a run or a prefix of it. Task names contain no upper-case letters, so the T
// distinguishes an id from a task named 20261120.
var RunIDStart = regexp.MustCompile(`^[0-9]{8}T[0-9.]*(Z(-[a-z0-9-]*)?)?$`)

// ParseRunWord parses the name of a run.
func ParseRunWord(word string) (RunWord, error) {
	name, at, found := strings.Cut(word, "@")
	switch {
	case !found && RunIDStart.MatchString(word):
		return RunWord{ID: word}, nil
	case !found:
		return RunWord{Task: word}, nil
	case name == "" || at == "":
		return RunWord{}, badRunWord(word)
	case RunIDStart.MatchString(at):
		return RunWord{Task: name, ID: at}, nil
	}

	if back, ok := strings.CutPrefix(at, "-"); ok {
		n, err := strconv.Atoi(back)
		if err != nil || n < 0 || back[0] < '0' || back[0] > '9' {
			return RunWord{}, badRunWord(word)
		}
		return RunWord{Task: name, back: n}, nil
	}

	if _, err := parseTick(at); err != nil {
		return RunWord{}, badRunWord(word)
	}

	return RunWord{Task: name, Tick: at}, nil
}

// badRunWord returns the error for a word that does not name a run.
func badRunWord(word string) error {
	return failure.Usage("%s is not the name of a run", task.Quote(word)).WithHint("use TASK, TASK@-1, TASK@02:30, TASK@2026-03-29T02:30 or an ID")
}

// tickForm is a format for ticks. A run's tick is formatted with layout and compared; fields that layout omits
// may have any value.
type tickForm struct {
	layout  string
	instant bool // the format includes an offset
}

var tickForms = []tickForm{
	{layout: "15:04"}, {layout: "15:04:05"},
	{layout: "2006-01-02T15:04"}, {layout: "2006-01-02T15:04:05"}, {layout: "2006-01-02T15:04:05.000"},
	{layout: time.RFC3339, instant: true}, {layout: time.RFC3339Nano, instant: true},
}

// parseTick returns the format of a tick.
func parseTick(s string) (tickForm, error) {
	for _, f := range tickForms {
		t, err := time.Parse(f.layout, s)
		if err == nil && (f.instant || t.Format(f.layout) == s) {
			return f, nil
		}
	}

	return tickForm{}, fmt.Errorf("%s is not a tick", task.Quote(s))
}

// matchesTick reports whether the tick of a run is the one that the user typed.
func (f tickForm) matchesTick(r task.Run, typed string, zone *time.Location) bool {
	if r.Trigger == task.TriggerManual || r.Trigger == task.TriggerAfter {
		return false
	}

	if f.instant {
		t, err := time.Parse(time.RFC3339Nano, typed)
		return err == nil && (r.ScheduledTime.Equal(t) || r.Count > 1 && !t.Before(r.ScheduledTime.Time) && !t.After(r.Last.Time))
	}

	if r.ScheduledTime.In(zone).Format(f.layout) == typed {
		return true
	}
	if r.Count <= 1 || !strings.HasPrefix(f.layout, "2006") {
		return false
	}

	// In the record of a range, all ticks between the first and the last have the same outcome.
	t, err := time.ParseInLocation(f.layout, typed, zone)

	return err == nil && !t.Before(r.ScheduledTime.Time) && !t.After(r.Last.Time)
}

// FindRun returns the run that a word names.
func FindRun(ctx context.Context, f *factory.Factory, c *client.Client, word string) (task.Run, error) {
	w, err := ParseRunWord(word)
	if err != nil {
		return task.Run{}, err
	}
	if w.Task == "" {
		return runByID(ctx, f, c, f.Namespace(), w.ID)
	}
	if ns, id, ok := strings.Cut(w.Task, "/"); ok && RunIDStart.MatchString(id) {
		return runByID(ctx, f, c, ns, id)
	}

	r, err := ParseRef(f, w.Task)
	if err != nil {
		return task.Run{}, err
	}

	if w.ID != "" {
		run, err := c.Runs.Get(ctx, r.Namespace, r.Name, w.ID)
		return run, ExplainMissing(ctx, f, c, r, err)
	}

	runs, err := c.Runs.ListByTask(ctx, r.Namespace, r.Name, client.RunListOptions{})
	if err != nil {
		// A number can be the name of a task or a prefix of a run's id. The task takes precedence.
		if run, byID := c.Runs.Find(ctx, r.Namespace, w.Task); byID == nil && errors.Is(err, task.ErrNotFound) && AreDigits(w.Task) {
			return run, nil
		}
		return task.Run{}, ExplainMissing(ctx, f, c, r, err)
	}

	if w.Tick == "" {
		return NthRun(f, r, runs, w.back)
	}

	t, err := c.Tasks.Get(ctx, r.Namespace, r.Name)
	if err != nil {
		return task.Run{}, ExplainMissing(ctx, f, c, r, err)
	}

	zone, err := schedule.Location(t.Timezone)
	if err != nil {
		return task.Run{}, err
	}

	return runAtTick(f, r, runs, w.Tick, zone)
}

// AreDigits reports whether a text consists only of digits.
func AreDigits(s string) bool { return strings.Trim(s, "0123456789") == "" }

// runByID returns the run with an id or a unique prefix of an id.
func runByID(ctx context.Context, f *factory.Factory, c *client.Client, namespace, id string) (task.Run, error) {
	if !f.AllNamespaces {
		return c.Runs.Find(ctx, namespace, id)
	}

	runs, err := c.Runs.List(ctx, client.RunListOptions{})
	if err != nil {
		return task.Run{}, err
	}

	var found []task.Run
	for _, r := range runs {
		if strings.HasPrefix(r.ID, id) {
			found = append(found, r)
		}
	}

	return OnlyRun(f, found, "run "+task.Quote(id))
}

// NthRun returns the latest run (back 0) or an earlier one. Ticks that did not run are not counted.
func NthRun(f *factory.Factory, r Ref, runs []task.Run, back int) (task.Run, error) {
	n := 0
	for _, run := range runs {
		if run.State == task.Skipped || run.State == task.Missed {
			continue
		}
		if n == back {
			return run, nil
		}

		n++
	}

	fail := failure.NotFound("%s has only %s", Show(f, r), output.Plural(int64(n), "run"))
	if n == 0 {
		fail = failure.NotFound("%s has not run yet", Show(f, r))
	}

	return task.Run{}, fail.WithHint("to list its runs: carillon task history %s", Show(f, r))
}

// runAtTick returns the run of a tick. A time of day means the latest tick at that time. A full local time that
// exists twice is ambiguous.
func runAtTick(f *factory.Factory, r Ref, runs []task.Run, typed string, zone *time.Location) (task.Run, error) {
	form, err := parseTick(typed)
	if err != nil {
		return task.Run{}, err
	}

	var found []task.Run
	for _, run := range runs {
		if form.matchesTick(run, typed, zone) {
			found = append(found, run)
		}
	}

	if len(found) > 1 && !strings.HasPrefix(form.layout, "2006") {
		found = found[:1] // runs is sorted from the newest to the oldest
	}

	run, err := OnlyRun(f, found, fmt.Sprintf("run of %s at %s (%s)", Show(f, r), typed, zone))
	var fail *failure.Error
	if errors.As(err, &fail) && fail.Exit == failure.ExitNotFound {
		fail.Hint = "to list its runs: carillon task history " + Show(f, r)
	}

	return run, err
}

// OnlyRun returns the only run in found, or an error.
func OnlyRun(f *factory.Factory, found []task.Run, what string) (task.Run, error) {
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return task.Run{}, failure.NotFound("no %s on record", what)
	}

	ids := make([]string, 0, 3)
	for _, r := range found[:min(len(found), 3)] {
		ids = append(ids, r.ID)
	}

	fail := &failure.Error{Exit: failure.ExitConflict, Problem: failure.Problem{Code: client.CodeAmbiguous, Message: fmt.Sprintf("%d runs match: %s", len(found), what)}}

	return task.Run{}, fail.WithHint("use the ID of one of them: %s", strings.Join(ids, ", "))
}

// RunName returns a run as -o name prints it.
func RunName(r task.Run) string { return r.ID }
