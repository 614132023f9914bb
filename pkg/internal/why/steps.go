package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/task"
)

// StepFacts are what is known of the steps of a run of a workflow.
type StepFacts struct {
	Run    task.Run        // the run
	Steps  client.RunSteps // all its steps, with all their parts
	Freeze *task.Freeze    // the freeze that is in force; nil: none

	Timezone string // of the answer
	Now      time.Time
}

// stepWording describes the steps of a run to people.
type stepWording struct {
	*StepFacts
	speaker
}

// ForStep explains the state of a step, NAME, or of one of its items, NAME/ITEM: what it did, or the chain of causes because of which
// it waits, did not begin, or was stopped. The step must be one of the run.
func ForStep(f StepFacts, name string) task.Answer {
	zone, err := schedule.Location(f.Timezone)
	if err != nil {
		zone, f.Timezone = time.UTC, "UTC"
	}
	w := stepWording{&f, speaker{zone}}

	a := task.Answer{Namespace: f.Run.Namespace, Task: f.Run.Task, Asked: task.AskedTime{Timezone: f.Timezone}, Now: task.At(f.Now), Unknown: []string{}, Lines: []task.EvidenceLine{}}
	stepName, item, isItem := strings.Cut(name, "/")
	s := w.step(stepName)
	if s == nil {
		a.Verdict, a.Sentence = task.VerdictForgotten, makeSentence("the run has no step %s", task.Quote(name))
		return a
	}

	a.Verdict, a.Reason = stepVerdicts[workflow.State(s.State)], s.Reason
	if isItem {
		w.explainItem(&a, s, name, item)
	} else {
		w.explainStep(&a, s)
	}
	w.addStepEvidence(&a, s)

	return a
}

// stepVerdicts maps the states of steps to verdicts.
var stepVerdicts = map[workflow.State]task.Verdict{
	workflow.Waiting: task.VerdictWaiting, workflow.Ready: task.VerdictWaiting, workflow.Running: task.VerdictRunning, workflow.Succeeded: task.VerdictSucceeded,
	workflow.Failed: task.VerdictFailed, workflow.Skipped: task.VerdictSkipped, workflow.Cancelled: task.VerdictCancelled,
}

// step returns a step of the run, or nil.
func (w stepWording) step(name string) *client.RunStep {
	i := slices.IndexFunc(w.Steps.Steps, func(s client.RunStep) bool { return s.Name == name })
	if i < 0 {
		return nil
	}

	return &w.Steps.Steps[i]
}

// explainStep writes the sentence about a step.
func (w stepWording) explainStep(a *task.Answer, s *client.RunStep) {
	subject := "step " + s.Name

	// A step without a map is its only part.
	if !s.Map && len(s.Parts) == 1 && s.Kept == 0 {
		part := &s.Parts[0]
		if verdict := ofState[part.State]; part.State.Final() {
			a.Verdict, a.Reason = verdict, part.Reason
		}
		a.Sentence = makeSentence("%s %s", subject, w.partWords(s, part))
		return
	}

	a.Sentence = makeSentence("%s %s", subject, w.stepWords(s, len(w.Steps.Steps)))
}

// stepWords describes what a step did, or why it did not. depth bounds the chain of causes.
func (w stepWording) stepWords(s *client.RunStep, depth int) string {
	switch workflow.State(s.State) {
	case workflow.Succeeded:
		return w.successWords(s)
	case workflow.Failed:
		return w.failureWords(s)
	case workflow.Running:
		return w.runningWords(s)
	case workflow.Ready:
		return "has not begun yet: " + cmp.Or(w.heldWords(), "the owner of its shard has not started it yet")
	case workflow.Waiting:
		return w.waitWords(s, depth)
	case workflow.Cancelled:
		return fmt.Sprintf("was stopped: %s; %s", w.cutWords(s), itemsLeft(s))
	}

	return w.skipWords(s, depth)
}

// successWords describes a step that succeeded.
func (w stepWording) successWords(s *client.RunStep) string {
	kept := fmt.Sprintf("run %s, which this run retries", w.Steps.Retries)

	switch {
	case s.Items == 0 && s.Kept > 0:
		return "was not repeated: it had succeeded in " + kept
	case s.Map && s.Items == 0:
		return "succeeded without running anything: its map has no items"
	case s.Map && s.Kept > 0:
		return fmt.Sprintf("succeeded: %s succeeded, and %s had succeeded in %s", itemCount(s.Succeeded), itemCount(s.Kept), kept)
	case s.Map && s.Succeeded == 1:
		return "succeeded: its only item did"
	case s.Map:
		return fmt.Sprintf("succeeded: all of its %d items did", s.Succeeded)
	case len(s.Parts) == 1:
		return w.partWords(s, &s.Parts[0])
	}

	return "succeeded"
}

// failureWords describes a step that failed.
func (w stepWording) failureWords(s *client.RunStep) string {
	if s.Items == 0 {
		return "could not begin: " + cmp.Or(strings.TrimRight(s.Message, "."), reasonClause(s.Reason), "the reason is not on record")
	}
	if !s.Map && len(s.Parts) == 1 {
		return w.partWords(s, &s.Parts[0])
	}

	var failed []string
	n := 0
	for i := range s.Parts {
		if p := &s.Parts[i]; p.State.Final() && p.State != task.Succeeded {
			if n++; len(failed) < 3 {
				failed = append(failed, p.Name+" "+partEnd(p))
			}
		}
	}
	if n = max(n, s.Ended-s.Succeeded); n > len(failed) && len(failed) > 0 {
		failed = append(failed, fmt.Sprintf("and %d more", n-len(failed)))
	}

	text := fmt.Sprintf("failed: %d of its %s did not succeed", n, itemCount(s.Items+s.Kept))
	if len(failed) > 0 {
		text += " (" + strings.Join(failed, ", ") + ")"
	}

	return text
}

// itemCount returns a number of items.
func itemCount(n int) string { return formatCount(int64(n), "item", "items") }

// runningWords describes a step that has begun.
func (w stepWording) runningWords(s *client.RunStep) string {
	if !s.Map && len(s.Parts) == 1 {
		return w.partWords(s, &s.Parts[0])
	}

	text := fmt.Sprintf("has been running since %s; %d of its %s ended", w.formatTime(s.OpenedAt.Time), s.Ended+s.Kept, itemsHave(s.Items+s.Kept))
	if failed := s.Ended - s.Succeeded; failed > 0 {
		text += fmt.Sprintf(", %d of them without success", failed)
	}
	if held := w.heldWords(); held != "" {
		text += "; no further item begins: " + held
	}

	return text
}

// itemsHave returns "3 items have".
func itemsHave(n int) string {
	if n == 1 {
		return "1 item has"
	}
	return itemCount(n) + " have"
}

// waitWords explains why a step waits: the chain of the steps before it, to one that does not wait.
func (w stepWording) waitWords(s *client.RunStep, depth int) string {
	need := w.step(s.Cause)
	if need == nil {
		return "waits: " + cmp.Or(w.heldWords(), "its run has not begun yet")
	}
	if depth <= 0 {
		return "waits for step " + need.Name
	}

	return fmt.Sprintf("waits for step %s, which %s", need.Name, w.stepWords(need, depth-1))
}

// skipWords explains why a step did not begin.
func (w stepWording) skipWords(s *client.RunStep, depth int) string {
	cause := w.step(s.Cause)

	switch {
	case s.Reason == task.ReasonStopped && cause != nil:
		return fmt.Sprintf("did not begin, because on_failure is stop and step %s %s", cause.Name, w.stepWords(cause, depth-1))
	case s.Reason == task.ReasonNeeds && task.When(s.When) == task.WhenFailed:
		return "did not begin, because it runs only after a failure, and " + w.noneFailed(s)
	case s.Reason == task.ReasonNeeds && cause != nil && depth > 0:
		return fmt.Sprintf("did not begin, because it needs the success of step %s, which %s", cause.Name, w.stepWords(cause, depth-1))
	case s.Reason == task.ReasonNeeds || s.Reason == task.ReasonStopped:
		return "did not begin, because " + reasonClause(s.Reason)
	}

	text := "did not begin, because " + w.cutWords(s)
	switch {
	case task.When(s.When) != task.WhenAlways:
	case w.Steps.Forced:
		text += " with --force, which also ends the cleanup"
	default:
		text += ", and no step before it had begun"
	}

	return text
}

// noneFailed says that none of the steps that a step needs has failed.
func (w stepWording) noneFailed(s *client.RunStep) string {
	if len(s.Needs) == 1 {
		if need := w.step(s.Needs[0]); need != nil {
			return fmt.Sprintf("step %s %s", need.Name, w.stepWords(need, 1))
		}
	}

	return "none of the steps " + strings.Join(s.Needs, ", ") + " failed"
}

// cutWords says what has ended a run early, or what stopped one of its steps.
func (w stepWording) cutWords(s *client.RunStep) string {
	switch cmp.Or(s.Reason, w.Steps.Cancel) {
	case task.ReasonCancelled:
		if w.Run.CancelledBy != nil {
			return "the run was cancelled" + byClause(w.Run.CancelledBy)
		}
		return "a user cancelled the run"
	case task.ReasonTimeout:
		return "the run exceeded its timeout"
	case task.ReasonReplaced:
		return "a newer tick or ended run replaced the run"
	case task.ReasonDeleted:
		return "the task was deleted"
	case task.ReasonStopped:
		if cause := w.step(s.Cause); cause != nil {
			return fmt.Sprintf("on_failure is stop, and step %s %s", cause.Name, w.stepWords(cause, 0))
		}
	}

	return cmp.Or(reasonClause(s.Reason), "the run ended early")
}

// itemsLeft says how many items of a step that was stopped had ended, and how many did not begin.
func itemsLeft(s *client.RunStep) string {
	if !s.Map {
		return "it did not end by itself"
	}

	return fmt.Sprintf("%d of its %s succeeded", s.Succeeded+s.Kept, itemsHave(s.Items+s.Kept))
}

// heldWords says why nothing of the run begins now, or "".
func (w stepWording) heldWords() string {
	switch {
	case !w.Steps.PausedAt.IsZero():
		return fmt.Sprintf("the run has been paused since %s%s", w.formatTime(w.Steps.PausedAt.Time), byClause(w.Steps.PausedBy))
	case w.Freeze != nil:
		return w.frozenWords(w.Freeze)
	}

	return ""
}

// explainItem writes the sentence about an item of a step.
func (w stepWording) explainItem(a *task.Answer, s *client.RunStep, name, item string) {
	i := slices.IndexFunc(s.Parts, func(p client.StepPart) bool { return p.Name == name })
	if i >= 0 {
		part := &s.Parts[i]
		if verdict := ofState[part.State]; part.State != task.Queued {
			a.Verdict, a.Reason = verdict, part.Reason
		}
		a.Sentence = makeSentence("item %s of step %s %s", item, s.Name, w.partWords(s, part))
		return
	}

	switch {
	case s.Kept > 0:
		a.Verdict = task.VerdictSucceeded
		a.Sentence = makeSentence("item %s of step %s is not one of those that this run repeats; if it exists, it had succeeded in run %s", item, s.Name, w.Steps.Retries)
	case s.Items > 0:
		a.Verdict = task.VerdictForgotten
		a.Sentence = makeSentence("step %s has no item %s; its items are 0 to %d", s.Name, item, s.Items-1)
	default:
		a.Sentence = makeSentence("item %s of step %s did not begin: the step %s", item, s.Name, w.stepWords(s, len(w.Steps.Steps)))
	}
}

// partWords describes a part: the whole step, or one of its items.
func (w stepWording) partWords(s *client.RunStep, p *client.StepPart) string {
	node := ""
	if p.Node != "" {
		node = " on " + p.Node
	}

	switch {
	case p.State.Final() && p.StartedAt.IsZero() && p.Node == "":
		return "did not start: it " + partEnd(p)
	case p.State.Final():
		text := "ran" + node + " and " + partEnd(p)
		if p.Attempt > 1 {
			text += fmt.Sprintf(", on attempt %d", p.Attempt)
		}
		if cut := w.Steps.Cancel; p.State == task.Cancelled && cut != "" {
			text += ": " + w.cutWords(s)
		}
		return text
	case p.State == task.Paused:
		return fmt.Sprintf("is paused%s, since %s%s", node, w.formatTime(p.PausedAt.Time), byClause(p.PausedBy))
	case p.State.Active() && p.StartedAt.IsZero():
		return fmt.Sprintf("was assigned to %s, but is not known to have started", p.Node)
	case p.State.Active():
		return fmt.Sprintf("has been running%s since %s", node, w.formatTime(p.StartedAt.Time))
	}

	if stopped := workflow.State(s.State); stopped == workflow.Failed || stopped == workflow.Cancelled {
		return "did not begin: " + w.leftWords(s)
	}

	return "waits: " + cmp.Or(w.heldWords(), w.turnWords(s), "it waits for a free node, or for its next attempt")
}

// leftWords says why an item of a step that has ended did not begin.
func (w stepWording) leftWords(s *client.RunStep) string {
	if workflow.State(s.State) == workflow.Failed && s.Reason == "" {
		return cmp.Or(reasonClause(w.Steps.Cancel), "its step had failed")
	}
	return w.cutWords(s)
}

// turnWords says that as many items run as max_parallel allows, or "".
func (w stepWording) turnWords(s *client.RunStep) string {
	active := 0
	for i := range s.Parts {
		if s.Parts[i].State.Active() {
			active++
		}
	}

	if s.MaxParallel > 0 && active >= s.MaxParallel {
		return fmt.Sprintf("%s of the step run at once, the most that max_parallel allows", itemCount(active))
	}

	return ""
}

// partEnd describes how a part ended.
func partEnd(p *client.StepPart) string {
	run := task.Run{State: p.State, Reason: p.Reason, ExitCode: p.ExitCode, Signal: p.Signal, StartedAt: p.StartedAt, EndedAt: p.EndedAt, Message: p.Message}
	if p.State == task.Cancelled {
		return "was cancelled"
	}

	return endWords(&run)
}

// addStepEvidence adds the lines below the sentence: what the step needs, its items that did not succeed, and what to do.
func (w stepWording) addStepEvidence(a *task.Answer, s *client.RunStep) {
	add := func(what, format string, args ...any) {
		a.Lines = append(a.Lines, task.EvidenceLine{What: what, Says: fmt.Sprintf(format, args...)})
	}

	add("Run", "%s, %s", w.Run.ID, strings.ReplaceAll(string(w.Run.State), "_", " "))
	if s.When != "" && task.When(s.When) != task.WhenSucceeded {
		add("When", "%s", s.When)
	}
	for _, name := range s.Needs {
		if need := w.step(name); need != nil {
			add("Needs", "%s: %s", name, need.State)
		}
	}

	const most = 8
	listed := 0
	for i := range s.Parts {
		p := &s.Parts[i]
		if !s.Map || !p.State.Final() || p.State == task.Succeeded || listed == most {
			continue
		}
		listed++

		node := ""
		if p.Node != "" {
			node = " on " + p.Node
		}
		add("Item", "%s %s%s", p.Name, partEnd(p), node)
	}
	if n := s.Ended - s.Succeeded - listed; s.Map && n > 0 {
		add("Item", "%s more", itemCount(n))
	}

	if !s.OpenedAt.IsZero() {
		text := w.formatTime(s.OpenedAt.Time)
		if !s.EndedAt.IsZero() {
			text += ", ended " + w.formatTime(s.EndedAt.Time)
		}
		add("Began", "%s", text)
	}

	// The output of what failed says more than its exit code.
	for i := range s.Parts {
		if p := &s.Parts[i]; p.Node != "" && p.State.Final() && p.State != task.Succeeded {
			add("Output", "carillon run logs %s --step %s", w.Run.ID, p.Name)
			break
		}
	}
}
