package wording

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// StateLook is how a state of a run looks.
type StateLook struct {
	Sign  string // a symbol, one column wide
	ASCII string // the same for terminals that lack the symbol
	Tone  string // good, bad, warn or busy: a color, which only repeats the word
}

// StateLooks are the looks of all states.
var StateLooks = map[task.State]StateLook{
	task.Queued:     {"…", ".", "busy"},
	task.Dispatched: {"▸", ">", "busy"},
	task.Running:    {"▶", ">", "busy"},
	task.Paused:     {"‖", "=", "warn"},
	task.Succeeded:  {"✓", "+", "good"},
	task.Failed:     {"✗", "x", "bad"},
	task.TimedOut:   {"✗", "x", "bad"},
	task.Lost:       {"?", "?", "bad"},
	task.Cancelled:  {"⊘", "/", "warn"},
	task.Skipped:    {"↷", "-", "warn"},
	task.Missed:     {"○", "o", "warn"},
}

// RunDuration returns how long an attempt ran, or has been running. It is negative if the attempt has not
// started.
func RunDuration(r task.Run, now time.Time) time.Duration {
	switch {
	case r.StartedAt.IsZero():
		return -1
	case r.EndedAt.IsZero():
		return max(now.Sub(r.StartedAt.Time), 0)
	}

	return max(r.EndedAt.Sub(r.StartedAt.Time), 0)
}

// RunResult describes the state of a run in a few words: "exit 1, attempt 2".
func RunResult(r task.Run, now time.Time) string {
	words := OneLine(strings.ReplaceAll(string(r.State), "_", " "))
	why := OneLine(strings.ReplaceAll(r.Reason, "_", " "))

	switch {
	case slices.Contains([]task.State{task.Failed, task.TimedOut, task.Lost}, r.State) && httpResult(r) != "":
		words = httpResult(r)
	case r.State == task.Failed && r.Reason == task.ReasonShutdown: // whatever its exit code is
		words = why
	case r.State == task.Failed && r.Reason == task.ReasonOutput:
		words = why
	case r.State == task.Failed && r.Reason == task.ReasonOOM: // whichever of its processes was killed
		words = "out of memory"
	case r.State == task.Failed && r.Reason == task.ReasonLimits: // by a signal, or by the exit code with which a shell reports that signal
		words = "over its limit"
	case r.State == task.Failed && slices.Contains([]string{task.ReasonHost, task.ReasonSecret, task.ReasonPolicy, task.ReasonNamespace, task.ReasonAccept}, r.Reason):
		words = fmt.Sprintf("not started (%s)", why)
		if r.HTTPStatus > 0 { // a request was answered, and its redirect or its response was refused
			words = fmt.Sprintf("failed (%s)", why)
		}
	case r.State == task.Failed && r.Signal != "":
		words = "signal " + OneLine(r.Signal)
	case r.State == task.Failed && r.ExitCode != nil:
		words = fmt.Sprintf("exit %d", *r.ExitCode)
	case r.State == task.Failed && r.Reason == task.ReasonStart:
		words = "could not start"
	case r.State == task.Failed && r.Reason == task.ReasonSteps && r.Message != "": // step load/1: exited with code 3
		step, _, _ := strings.Cut(r.Message, ":")
		words = OneLine(step) + " failed"
	case r.State == task.Paused:
		words += " (" + task.Duration(r.PausedFor(now)).Approximate() + ")"
	case isFlow(r) && !r.PausedAt.IsZero() && r.State.Active():
		words += " (paused)" // no step begins; the pauses of its parts are those of their own
	case r.State == task.Dispatched && r.PausedBy != nil:
		words += " (held)"
	case r.State == task.Running && r.PausedBy != nil:
		words += " (pausing)"
	case r.State == task.Cancelled && r.Reason == task.ReasonCancelled:
	case r.State == task.Skipped, r.State == task.Queued, r.State == task.Missed, r.State == task.Cancelled:
		if why != "" {
			words += " (" + why + ")"
		}
	}

	switch {
	case r.Fan != nil && r.Fan.Flow == nil:
		words += ", " + partsText(r)
	case isFlow(r) && r.State.Active() && len(r.Fan.Flow.Steps) > 0: // lists of runs have no steps
		words += ", " + begunText(r.Fan.Flow)
	}

	if r.Count > 1 {
		words += fmt.Sprintf(" ×%d", r.Count)
	}

	if r.Attempt > 1 {
		words += fmt.Sprintf(", attempt %d", r.Attempt)
	}

	return words
}

// partsText summarizes the states of a run's parts.
func partsText(r task.Run) string {
	f := r.Fan
	if !r.State.Final() {
		return f.String()
	}
	return fmt.Sprintf("%d of %d parts", f.Succeeded+f.Kept, f.Count)
}

func isFlow(r task.Run) bool { return r.Fan != nil && r.Fan.Flow != nil }

// begunText says how many steps of a workflow have begun, or are kept of the run that this one retries.
func begunText(f *task.Flow) string {
	begun := 0
	for i := range f.Steps {
		if s := &f.Steps[i]; s.IsOpened() || s.IsKept || s.Reason != "" {
			begun++
		}
	}

	return fmt.Sprintf("%d of %d steps begun", begun, len(f.Steps))
}

// RunRequestFields returns what a run was to do, and what it waits for. at formats times; it returns "" for those that are
// zero.
func RunRequestFields(r task.Run, at func(task.Time) string) []Field {
	var list fields
	if r.HTTPStatus > 0 {
		list.add("HTTP status", fmt.Sprintf("%d %s", r.HTTPStatus, http.StatusText(r.HTTPStatus)))
	}
	list.add("Not enforced", strings.Join(r.Unenforced, ", "))
	list.add("Trigger", strings.ReplaceAll(r.Trigger, "_", " "))
	list.add("Started by", CausesOf(r))
	list.add("Results of causes", causeResults(r))
	list.add("Period", at(r.Period))
	list.add("Requested by", r.CreatedBy.String())
	list.add("Extra arguments", CommandLine(r.Args))
	list.add("Extra env", strings.Join(r.EnvNames, ", "))
	if r.IsBootRun() {
		list.add("Boot of node", r.TargetNode)
	} else {
		list.add("Requested node", r.TargetNode)
	}
	if r.Trigger == task.TriggerAfter {
		list.add("Decided", at(r.ScheduledTime))
		if r.Count > 1 {
			list.add("Last", at(r.Last))
			list.add("Triggers", Grouped(int(r.Count)))
		}
	} else {
		list.add("Tick", at(r.ScheduledTime))
		if r.Count > 1 {
			list.add("Last tick", at(r.Last))
			list.add("Ticks", Grouped(int(r.Count)))
		}
	}
	if r.Alone {
		list.add("Alone", "its end starts no other task")
	}

	notBefore := at(r.NotBefore)
	if notBefore != "" && r.NotBeforeBy == task.NotBeforeByTarget {
		notBefore += ", because of the target"
	}
	list.add("Not before", notBefore)
	list.add("Not sent", UnsentText(r.Unsent))

	return list
}

// causeResults lists the results that a run got from its causes, a line for each.
func causeResults(r task.Run) string {
	var lines []string
	for _, c := range r.Causes {
		for _, name := range slices.Sorted(maps.Keys(c.Results)) {
			lines = append(lines, fmt.Sprintf("%s: %s=%s", c.Task, name, OneLine(c.Results[name])))
		}
	}

	return strings.Join(lines, "\n")
}

// RunAttemptFields returns what is known of the latest attempt of a run, beside its result and its times. If now is zero, it
// does not say how long a paused run has been paused, which changes all the time.
func RunAttemptFields(r task.Run, at func(task.Time) string, now time.Time) []Field {
	var list fields
	if r.LatenessMS != nil {
		list.add("Late", task.Duration(time.Duration(*r.LatenessMS)*time.Millisecond).Approximate())
	}
	list.add("Paused", pausedText(r, at, now))
	list.add("Used", UsageText(r.Usage))
	list.add("Node", r.Node)

	switch {
	case r.Attempt == 0 || r.Fan != nil: // only its parts have attempts
	case r.Token == 0: // no node has received it yet
		list.add("Attempt", fmt.Sprint(r.Attempt))
	default:
		list.add("Attempt", fmt.Sprintf("%d, token %d", r.Attempt, r.Token))
	}

	list.add("Step", r.StepName())
	if f := r.Fan; f != nil {
		if f.Flow == nil {
			list.add("Parts", PartsText(*f))
		}
		if !r.State.Final() {
			list.add("Ending", strings.ReplaceAll(f.Cancel, "_", " "))
		}
	}

	list.add("Cancelled by", r.CancelledBy.String())
	if r.BadLines > 0 {
		list.add("Bad lines", fmt.Sprintf("%d in CARILLON_STATUS_FILE", r.BadLines))
	}

	return list
}

// pausedText describes since when a run is paused, and how long it was paused in total.
func pausedText(r task.Run, at func(task.Time) string, now time.Time) string {
	switch {
	case r.State == task.Paused, isFlow(r) && !r.PausedAt.IsZero() && r.State.Active():
		words := fmt.Sprintf("since %s by %s", at(r.PausedAt), cmp.Or(r.PausedBy.String(), "an unknown user"))
		if !now.IsZero() {
			words += fmt.Sprintf("; %s in total", task.Duration(r.PausedFor(now)).Approximate())
		}
		return words
	case r.PausedBy != nil && r.State == task.Dispatched && r.StartedAt.IsZero():
		return "requested by " + r.PausedBy.String() + "; the run does not start until you resume it"
	case r.PausedBy != nil:
		return "requested by " + r.PausedBy.String()
	case r.PausedMS > 0:
		return task.Duration(time.Duration(r.PausedMS)*time.Millisecond).Approximate() + " in total"
	}

	return ""
}

// UsageText describes the resources that the processes of a run used; "" if nothing is known.
func UsageText(u task.Usage) string {
	var words []string
	add := func(v int64, format, text string) {
		if v > 0 {
			words = append(words, fmt.Sprintf(format, text))
		}
	}

	add(u.CPUMS, "%s CPU", task.Duration(time.Duration(u.CPUMS)*time.Millisecond).Approximate())
	add(u.MemoryPeak, "%s memory", Bytes(u.MemoryPeak))
	add(u.IORead, "%s read", Bytes(u.IORead))
	add(u.IOWritten, "%s written", Bytes(u.IOWritten))

	return strings.Join(words, ", ")
}

// DecidedBy names the node and the shard that decided the tick of a run.
func DecidedBy(r task.Run) string {
	if r.Owner == "" {
		return fmt.Sprintf("shard %d", r.Shard)
	}
	return fmt.Sprintf("%s, shard %d", OneLine(r.Owner), r.Shard)
}

// PartsText says how many parts a run has, and how many of them have ended.
func PartsText(f task.Fan) string {
	words := fmt.Sprintf("%d: %d ended, %d succeeded, %d required", f.Count, f.Ended, f.Succeeded+f.Kept, f.Need)
	if f.Kept > 0 {
		words += fmt.Sprintf(", %d kept from the earlier run", f.Kept)
	}
	return words
}

// TickNote explains what is special about a tick's time, and why its run could not start as things are now.
func TickNote(o client.Occurrence) string {
	var words []string

	switch o.Note {
	case "":
	case schedule.NoteGap:
		words = append(words, "after a gap: the clocks go forward")
	case schedule.NoteFold:
		words = append(words, "in a fold: the clocks go back")
	default:
		words = append(words, OneLine(o.Note))
	}

	switch o.Obstacle {
	case "":
	case task.ReasonNamespace:
		words = append(words, "will fail: its namespace does not allow the task")
	case task.ReasonNoNode:
		words = append(words, "no matching node is available")
	case task.ReasonCount:
		words = append(words, "too few matching nodes are available")
	default:
		words = append(words, OneLine(o.Obstacle))
	}

	return strings.Join(words, "; ")
}

// OutcomesText returns the number of runs, and how they ended.
func OutcomesText(s client.TaskStats) string {
	var parts []string
	for _, state := range task.States() {
		if n := s.Outcomes[state]; n > 0 {
			parts = append(parts, Grouped(n)+" "+strings.ReplaceAll(string(state), "_", " "))
		}
	}

	text := Grouped(s.Runs)
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}

	return text
}

// Percent formats a share. Only a share of 1 is 100 %.
func Percent(share float64) string {
	const almost = 0.9995
	if share < 1 && share >= almost {
		share = 0.999
	}

	return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*share), ".0") + "%"
}

// QuantilesText formats a distribution; "" if there is none.
func QuantilesText(q *client.Quantiles, all bool) string {
	if q == nil {
		return ""
	}

	text := func(ms int64) string { return task.Duration(time.Duration(ms) * time.Millisecond).Approximate() }
	if !all {
		return fmt.Sprintf("p50 %s, p99 %s, max %s", text(q.P50MS), text(q.P99MS), text(q.MaxMS))
	}

	return fmt.Sprintf("p50 %s, p95 %s, p99 %s, max %s", text(q.P50MS), text(q.P95MS), text(q.P99MS), text(q.MaxMS))
}

// SuccessfulText describes how long successful runs took, those of the ledger included; "" if the ledger counts none of
// them, because then the quantiles tell more.
func SuccessfulText(s client.TaskStats) string {
	if s.Ledger == nil || s.Successful == nil {
		return ""
	}

	text := func(ms int64) string { return task.Duration(time.Duration(ms) * time.Millisecond).Approximate() }

	return fmt.Sprintf("mean %s, max %s, %s late at most", text(s.Successful.MeanMS), text(s.Successful.MaxMS), text(s.Successful.MaxLatenessMS))
}

// FailureText describes why runs did not succeed, without their number.
func FailureText(f client.FailureCount) string {
	return RunResult(task.Run{State: f.State, Reason: f.Reason, ExitCode: f.ExitCode, Signal: f.Signal, HTTPStatus: f.HTTPStatus}, time.Time{})
}

// ReasonsText returns the number of ticks that did not run, and why; "" if there are none.
func ReasonsText(reasons map[string]int64) string {
	var sum int64
	names := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(reasons[b], reasons[a]), strings.Compare(a, b))
	})

	parts := make([]string, len(names))
	for i, name := range names {
		sum += reasons[name]
		parts[i] = fmt.Sprintf("%s %d", strings.ReplaceAll(name, "_", " "), reasons[name])
	}

	if sum == 0 {
		return ""
	}

	return fmt.Sprintf("%s: %s", Plural(sum, "tick"), strings.Join(parts, ", "))
}

// LedgerText describes what a line of a ledger says about its ticks or runs: "86,312 succeeded", or "exit 1, attempt 2".
func LedgerText(l task.LedgerLine) string {
	switch l.Kind {
	case task.LedgerSucceeded:
		if l.Count == 1 {
			return "succeeded"
		}
		return Grouped(int(l.Count)) + " succeeded"

	case task.LedgerHour:
		return fmt.Sprintf("%s did not succeed: %s", Grouped(int(l.Count)), CausesText(l.Causes))

	case task.LedgerRequestedMore:
		return fmt.Sprintf("%s: %s", Plural(l.Count, "more manual run"), CausesText(l.Causes))

	case task.LedgerUnreadable:
		return Plural(l.Count, "record") + " could not be read"
	}

	run := task.Run{State: l.State, Attempt: l.Attempt, TickRange: task.TickRange{Count: l.Count}}
	run.Reason, run.ExitCode, run.Signal, run.HTTPStatus = task.ParseLedgerReason(l.Reason)
	words := RunResult(run, time.Time{})
	if l.Late {
		words += ", with a late result"
	}

	return words
}

// CausesText lists states and reasons with their counts, the most frequent first: "exit 1 ×300, timed out ×12".
func CausesText(causes map[string]int64) string {
	names := slices.SortedFunc(maps.Keys(causes), func(a, b string) int {
		return cmp.Or(cmp.Compare(causes[b], causes[a]), strings.Compare(a, b))
	})

	parts := make([]string, len(names))
	for i, name := range names {
		state, reason, _ := strings.Cut(name, ": ")
		run := task.Run{State: task.State(state)}
		run.Reason, run.ExitCode, run.Signal, run.HTTPStatus = task.ParseLedgerReason(reason)
		parts[i] = fmt.Sprintf("%s ×%s", RunResult(run, time.Time{}), Grouped(int(causes[name])))
	}

	return strings.Join(parts, ", ")
}

// LedgerState returns the state by which a line is marked: failed if any of its runs did not succeed, and "" if it is not
// known how they ended.
func LedgerState(l task.LedgerLine) task.State {
	switch l.Kind {
	case task.LedgerSucceeded:
		return task.Succeeded
	case task.LedgerException, task.LedgerRequested:
		return l.State
	case task.LedgerUnreadable:
		return ""
	}

	for cause := range l.Causes {
		if cause != string(task.Succeeded) {
			return task.Failed
		}
	}

	return task.Succeeded
}

// LedgerSettingText describes the setting of the cluster for how long ledgers remember ticks.
func LedgerSettingText(d task.Duration) string {
	if d == 0 {
		return "off, unless history.ledger of a task says otherwise"
	}

	return fmt.Sprintf("remember ticks for %s, unless history.ledger of a task says otherwise", d.Approximate())
}
