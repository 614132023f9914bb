package why

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// addEvidence adds the lines of evidence that the command line prints below the sentence.
func (an *answerer) addEvidence(a *task.Answer, g finding) {
	add := func(what, format string, args ...any) {
		a.Lines = append(a.Lines, task.EvidenceLine{What: what, Says: fmt.Sprintf(format, args...)})
	}

	if v := g.version; v != nil {
		dst := ""
		if d := v.DST; d != (task.DST{}) && d != task.Defaults().DST {
			dst = fmt.Sprintf(", gap %s, fold %s", d.Gap, d.Fold)
		}

		add("Schedule", "%s in %s%s", joinExpressions(v.Schedule), v.Timezone, dst)
		add("Version", "%s", an.versionWords(v))
	}

	if !g.due.Equal(g.tick) && !g.tick.IsZero() {
		add("Due", "%s, delayed by jitter", an.formatTime(g.due))
	}

	if g.pause != nil {
		add("Paused", "%s", an.pauseWords(g.pause))
	}

	if z := g.freeze; z != nil {
		end := ""
		if !z.Ended.IsZero() {
			end = ", ended " + an.formatTime(z.Ended.Time) + byClause(z.EndedBy)
		}
		add("Frozen", "%s, since %s%s%s%s", frozenWhat(z), an.formatTime(z.Since.Time), byClause(z.By), quoteReason(z.Reason), end)
	}

	switch {
	case g.line != nil:
		an.lineEvidence(add, g)
	case g.run != nil:
		an.runEvidence(add, g)
	}

	for _, r := range a.Active {
		if g.verdict == task.VerdictSkipped || g.verdict == task.VerdictWaiting {
			add("Active then", "%s, from %s%s", an.runWords(&r), an.formatTime(beganAt(&r)), an.untilWords(r.EndedAt.Time))
		}
	}

	for _, r := range a.Late {
		add("Late result", "attempt %d had been declared lost, but ended later: it %s", r.Attempt, endWords(&r))
	}

	an.addCircumstances(add, a, g)

	for _, u := range a.Unknown {
		add("Not on record", "%s", u)
	}
}

// versionWords describes a version: what made it, when, by whom, and until when it was in force.
func (an *answerer) versionWords(v *version) string {
	change := map[string]string{task.ChangeCreated: "created", task.ChangePaused: "paused", task.ChangeResumed: "resumed", task.ChangeRolledBack: "rolled back", task.ChangeUndeleted: "undeleted"}[v.Change]
	if change == "" {
		change = "changed"
		if v.Generation == 1 {
			change = "created"
		}
	}

	text := fmt.Sprintf("%d, %s %s%s", v.Generation, change, an.formatTime(v.startTime()), byClause(v.UpdatedBy))

	if v.until.IsZero() {
		return text + ", in force now"
	}

	return text + ", until " + an.formatTime(v.until) + byClause(v.by)
}

// untilWords returns the end of an active period.
func (an *answerer) untilWords(t time.Time) string {
	if t.IsZero() {
		return ", still active"
	}
	return " to " + an.formatTime(t)
}

// runEvidence adds the lines about the run of a finding.
func (an *answerer) runEvidence(add func(string, string, ...any), g finding) {
	r := g.run
	outcome := string(r.State)
	if r.Reason != "" {
		outcome += " (" + r.Reason + ")"
	}

	add("Outcome", "%s", outcome)

	if r.Owner != "" {
		at := ""
		if !r.CreatedAt.IsZero() {
			at = " on " + an.formatExact(r.CreatedAt.Time)
		}
		add("Decided", "by %s%s", r.Owner, at)
	}

	if !r.DispatchedAt.IsZero() {
		text := fmt.Sprintf("to %s on %s", r.Node, an.formatExact(r.DispatchedAt.Time))
		switch {
		case r.Fan != nil && r.Fan.Flow != nil:
			text = fmt.Sprintf("in %s from %s on", formatCount(int64(len(r.Fan.Flow.Steps)), "step", "steps"), an.formatExact(r.DispatchedAt.Time))
		case r.Fan != nil:
			text = fmt.Sprintf("in %s from %s on", formatCount(int64(r.Fan.Count), "part", "parts"), an.formatExact(r.DispatchedAt.Time))
		}
		// The placement can be explained only if the previous attempt ran on the same node although the task moves its
		// retries.

		if late, ok := startLateness(g); ok && !r.StartedAt.IsZero() && r.Ticks() > 0 {
			what := "started"
			if len(r.Attempts) > 0 {
				what = "its first attempt had started"
			}
			text += fmt.Sprintf(", %s %s after it fell due", what, formatSpan(late))
		}

		if last := r.LastNode(); last != "" && last == r.Node && g.version != nil && g.version.Target.MovesRetries() {
			text += fmt.Sprintf(", where attempt %d had failed, because no other matching node had a free slot", r.Attempt-1)
		}

		add("Dispatched", "%s", text)
	}

	if u := r.Unsent; u != nil {
		text := fmt.Sprintf("%s, from %s to %s; they do not count for the retry policy", formatCount(int64(u.Count), "attempt", "attempts"), an.formatExact(u.First.Time), an.formatExact(u.Last.Time))
		if u.Node != "" {
			text += "; the last one on " + u.Node
		}
		add("Not sent", "%s", text)
	}

	for _, t := range r.Attempts {
		text := fmt.Sprintf("%d on %s %s", t.Attempt, t.Node, stateWords(t.State, t.ExitCode, t.Signal))
		if t.Reason != "" {
			text += " (" + t.Reason + ")"
		}
		if t.HTTPStatus > 0 {
			text += fmt.Sprintf(", HTTP status %d", t.HTTPStatus)
		}

		if !t.StartedAt.IsZero() {
			text += ", " + an.formatExact(t.StartedAt.Time)
		}

		if !t.EndedAt.IsZero() {
			text += " to " + an.formatExact(t.EndedAt.Time)
		}

		add("Attempt", "%s", text)
	}

	if !r.StartedAt.IsZero() {
		text := an.formatExact(r.StartedAt.Time)
		if !r.EndedAt.IsZero() {
			text += " to " + an.formatExact(r.EndedAt.Time)
		}
		add("Ran", "%s", text)
	}

	if d := r.PausedFor(an.Now); d > 0 {
		add("Paused", "for %s in total", formatSpan(d))
	}

	if !r.StartBefore.IsZero() {
		add("Start by", "%s, or it is missed", an.formatTime(r.StartBefore.Time))
	}

	if r.Count > 1 {
		what := formatCount(r.Count, "tick", "ticks")
		if r.Ticks() == 0 {
			what = formatCount(r.Count, "trigger", "triggers")
		}
		add("Record", "covers %s, from %s to %s", what, an.formatTime(r.ScheduledTime.Time), an.formatTime(r.Last.Time))
	}

	an.causeEvidence(add, r)

	if r.CreatedBy != nil {
		add("Requested", "by %s on %s", r.CreatedBy, an.formatExact(r.ScheduledTime.Time))
	}

	if len(r.EnvNames) > 0 {
		add("Extra env", "%s", strings.Join(r.EnvNames, ", "))
	}

	if len(r.Args) > 0 {
		quoted := make([]string, len(r.Args))
		for i, arg := range r.Args {
			quoted[i] = task.Quote(arg)
		}
		add("Extra arguments", "%s", strings.Join(quoted, " "))
	}

	switch {
	case r.IsBootRun():
		add("Boot", "of node %s (%s)", r.TargetNode, r.BootID)
	case r.TargetNode != "":
		add("Requested node", "%s", r.TargetNode)
	}

	if r.RetryOf != "" {
		retried := "%s, which had used up its attempts"
		if r.Fan != nil && r.Fan.Flow != nil {
			retried = "%s" // a workflow may have been cancelled, too
		}
		add("Retry of", retried, r.RetryOf)
	}

	if r.RerunOf != "" {
		add("Rerun of", "%s", r.RerunOf)
	}

	for _, id := range an.Dead {
		if id == r.ID {
			add("Dead", "%s", deadText(r))
		}
	}

	if r.HTTPStatus > 0 {
		add("HTTP status", "%d", r.HTTPStatus)
	}

	if r.Fan != nil && r.Fan.Flow != nil {
		add("Steps", "carillon run get %s shows them", r.ID)
		if step, ok := failedStep(r); ok {
			add("Step", "carillon why %s --step %s", r.ID, step)
		}
	}

	if line := lastLine(r.OutputTail); line != "" {
		add("Last output", "%s", shortenText(line))
	}

	add("Run", "%s", r.ID)
}

// deadText says why a run is dead, and what retries it. A run of a workflow has no attempts of its own, and a retry repeats only what
// did not succeed. It is also dead if it was cancelled.
func deadText(r *task.Run) string {
	switch {
	case r.Fan == nil || r.Fan.Flow == nil:
		return fmt.Sprintf("it has used up its attempts; carillon run retry %s runs it again", r.ID)
	case r.State == task.Cancelled:
		return fmt.Sprintf("it was cancelled; carillon run retry %s repeats the steps that did not succeed", r.ID)
	}

	return fmt.Sprintf("it did not succeed; carillon run retry %s repeats the steps that did not succeed", r.ID)
}

// failedStep returns the step that the message of a failed run names: step load/1: exited with code 3.
func failedStep(r *task.Run) (string, bool) {
	rest, ok := strings.CutPrefix(r.Message, "step ")
	name, _, found := strings.Cut(rest, ":")

	return name, ok && found && r.Reason == task.ReasonSteps && !strings.ContainsAny(name, " \t")
}

// formatExact formats an instant in milliseconds, for comparison with logs and other records.
func (an *answerer) formatExact(t time.Time) string {
	return t.In(an.zone).Format("2006-01-02 15:04:05.000 MST")
}

// addCircumstances adds the lines about the owner of the shard, the watermark and the nodes.
func (an *answerer) addCircumstances(add func(string, string, ...any), a *task.Answer, g finding) {
	if o := a.Owner; o != nil {
		switch {
		case o.Node == "" && o.Next == "":
			add("Owner", "shard %d has never had one", o.Shard)
		case o.Node == "":
			a.Unknown = append(a.Unknown, fmt.Sprintf("the owner of shard %d before %s, when it was assigned to %s", o.Shard, an.formatTime(o.Until.Time), o.Next))
		default:
			text := fmt.Sprintf("shard %d was assigned to %s from %s", o.Shard, o.Node, an.formatTime(o.Since.Time))
			if !o.Until.IsZero() {
				text += fmt.Sprintf(" until %s, then to %s", an.formatTime(o.Until.Time), o.Next)
			} else if !o.Present {
				text += ", which is not present"
			}

			add("Owner", "%s", text)
		}
	}

	switch g.verdict {
	case task.VerdictUndecided, task.VerdictForgotten, task.VerdictOvertaken:
		if m := an.Watermark; m != nil && an.Entry != nil {
			add("Decided up to", "%s", an.formatTime(m.Time))
		}
	case task.VerdictNoNode, task.VerdictWaiting, task.VerdictWillRun:
		if an.Entry != nil {
			names := an.eligibleNodes()
			if !an.Entry.Target.Enough(len(names)) {
				add("Nodes", "%s; present: %s", an.noNodeWords(), an.nodeWords())
			} else if selectors := an.selectorWords(); selectors != "" {
				add("Nodes", "%s match %s now", strings.Join(firstNames(names), ", "), selectors)
			}
		}
	}
}

// nodeWords lists the present nodes, each with the reason why it takes no runs of the task.
func (an *answerer) nodeWords() string {
	var names []string
	for _, n := range an.Nodes {
		text := n.Name
		if n.State != task.NodeReady {
			text += " (" + n.State + ")"
		} else if !n.Has(task.RoleExecutor) {
			text += " (not an executor)"
		} else if len(n.Blocked) > 0 {
			text += " (accepts no runs: " + strings.Join(n.Blocked, ", ") + ")"
		} else if an.Entry.Action.NeedsKey() && !n.HoldsKey() {
			text += " (no key for secrets)"
		}

		names = append(names, text)
	}

	if len(names) == 0 {
		return "none"
	}

	return strings.Join(firstNames(names), ", ")
}

// firstNames shortens a list of names.
func firstNames(names []string) []string {
	const most = 8
	if len(names) > most {
		return append(names[:most:most], fmt.Sprintf("%d more", len(names)-most))
	}
	return names
}
