package wording

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/task"
)

// workflowFields returns the fields of a workflow: a line for each step, in an order in which each follows those that it needs.
func workflowFields(w *task.Workflow) []Field {
	order, _ := w.StepNames()
	lines := make([]string, len(order))
	for i, name := range order {
		lines[i] = name + ": " + StepText(w.Steps[name])
	}

	var list fields
	list.addCode("Steps", strings.Join(lines, "\n"))
	after := "begin only steps with when: failed or always"
	if w.OnFailure == task.OnFailureContinue {
		after = "begin all steps whose needs allow it"
	}
	list.add("After a failure", after)

	return list
}

// StepText describes a step in one line: load "$FILE"; after extract; for each item in result files of extract, 8 at once.
func StepText(s task.Step) string {
	words := []string{StepAction(s)}

	if len(s.Needs) > 0 {
		words = append(words, "after "+strings.Join(s.Needs, ", ")+whenText(s))
	}

	if s.Map != "" {
		words = append(words, fmt.Sprintf("%s, %d at once", MapText(s.Map), cmp.Or(s.MaxParallel, task.DefaultMaxParallel)))
	}
	if s.Timeout > 0 {
		words = append(words, "timeout "+s.Timeout.String())
	}
	if s.Retry != nil && s.Retry.Attempts > 1 {
		words = append(words, fmt.Sprintf("%d attempts", s.Retry.Attempts))
	}
	if s.Target != nil {
		words = append(words, "on "+cmp.Or(s.Target.Selector, "any node"))
	}

	return strings.Join(words, "; ")
}

// StepAction describes what a step does.
func StepAction(s task.Step) string {
	switch {
	case s.HTTP != nil:
		return s.HTTP.EffectiveMethod() + " " + OneLine(s.HTTP.URL)
	case s.Process == nil:
		return "nothing (noop)"
	case s.Process.Shell != "":
		return firstLine(s.Process.Shell)
	}

	return OneLine(CommandLine(s.Process.Command))
}

// firstLine returns the first line of a text, with … if there are more.
func firstLine(text string) string {
	const most = 60
	first, rest, more := strings.Cut(strings.TrimSpace(text), "\n")
	if letters := []rune(first); len(letters) > most {
		return OneLine(string(letters[:most])) + "…"
	}
	if more && strings.TrimSpace(rest) != "" {
		first += " …"
	}

	return OneLine(first)
}

// whenText says what the needs of a step must have done, if that is not their success.
func whenText(s task.Step) string {
	switch s.EffectiveWhen() {
	case task.WhenFailed:
		return " if one of them failed"
	case task.WhenAlways:
		return ", whatever happens"
	}

	return ""
}

// MapText says for what a step is repeated.
func MapText(m task.MapSource) string {
	if n, ok := m.Number(); ok {
		return fmt.Sprintf("%s times", Grouped(n))
	}
	step, result, _ := m.Result()

	return fmt.Sprintf("for each item in result %s of %s", result, step)
}

// StepResult describes the state of a step of a run in a few words: "2 of 3 items", "exit 1, attempt 2", "skipped (load failed)".
func StepResult(s client.RunStep, now time.Time) string { return OneLine(stepResult(s, now)) }

// stepResult is StepResult before what a terminal would obey is removed.
func stepResult(s client.RunStep, now time.Time) string {
	items := ""
	if s.Map && s.Items+s.Kept > 0 {
		items = fmt.Sprintf("%d of %d items", s.Succeeded+s.Kept, s.Items+s.Kept)
	}

	switch workflow.State(s.State) {
	case workflow.Waiting:
		if s.Cause != "" {
			return "waiting for " + s.Cause
		}
	case workflow.Running:
		if s.Map {
			return fmt.Sprintf("%d of %d items", s.Ended+s.Kept, s.Items+s.Kept)
		}
		if len(s.Parts) == 1 {
			return RunResult(StepPartRun(s.Parts[0]), now)
		}
	case workflow.Succeeded:
		switch {
		case s.Items == 0 && s.Kept > 0:
			return "kept"
		case s.Map && s.Items == 0:
			return "no items"
		case s.Map:
			return cmp.Or(items, "succeeded")
		}
	case workflow.Failed:
		switch {
		case s.Items == 0 && s.Reason == task.ReasonValues:
			return "not started (value)"
		case s.Items == 0:
			return "not started"
		case s.Map:
			return fmt.Sprintf("%d of %d failed", s.Ended-s.Succeeded, s.Items+s.Kept)
		case len(s.Parts) == 1:
			return RunResult(StepPartRun(s.Parts[0]), now)
		}
	case workflow.Cancelled:
		if s.Map {
			return "cancelled, " + items
		}
	case workflow.Skipped:
		switch s.Reason {
		case task.ReasonStopped:
			return fmt.Sprintf("skipped (%s failed)", s.Cause)
		case task.ReasonNeeds:
			return fmt.Sprintf("skipped (needs %s)", s.Cause)
		case task.ReasonCancelled:
			return "skipped (cancelled)"
		}
		return fmt.Sprintf("skipped (%s)", strings.ReplaceAll(s.Reason, "_", " "))
	}

	return s.State
}

// StepPartRun returns a part as a run, as far as its result is concerned.
func StepPartRun(p client.StepPart) task.Run {
	return task.Run{State: p.State, Reason: p.Reason, ExitCode: p.ExitCode, Signal: p.Signal, Attempt: p.Attempt, StartedAt: p.StartedAt, EndedAt: p.EndedAt,
		PauseState: task.PauseState{PausedBy: p.PausedBy, PausedAt: p.PausedAt, PausedMS: p.PausedMS}}
}
