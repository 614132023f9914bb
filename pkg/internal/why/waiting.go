package why

import (
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// waitedFor describes how long a run has been waiting.
func (w wording) waitedFor(r *task.Run) string {
	since := r.CreatedAt.Time

	switch n := len(r.Attempts); {
	case r.WaitsForTarget():
		since = r.Unsent.First.Time
	case n > 0: // before that, it was running
		since = r.Attempts[n-1].EndedAt.Time
	}

	if since.IsZero() {
		return "is waiting"
	}

	return "has been waiting for " + formatSpan(w.Now.Sub(since))
}

// noSelector replaces the explanation "no node matches" for a run whose request named a node, and for a task without a
// selector, in a namespace without one.
func (w wording) noSelector(g finding, text string) string {
	if g.run.Reason == task.ReasonNoNode && g.run.IsBootRun() {
		return "node " + g.run.TargetNode + ", for whose boot the run is, is not available"
	}
	if g.run.Reason == task.ReasonNoNode && g.run.TargetNode != "" {
		return "node " + g.run.TargetNode + ", which its request named, is not available"
	}

	hasSelector := w.Limits != nil && w.Limits.Nodes != ""
	if g.run.Reason == task.ReasonNoNode && g.version != nil && g.version.Target.Selector == "" && !hasSelector {
		return "no node was available"
	}
	return text
}

// mayTurn reports whether a reason to wait may be outdated. With these reasons, the record of a run is not
// rewritten when its time has come and something else delays it.
func mayTurn(reason string) bool {
	return slices.Contains([]string{"", task.ReasonManual, task.ReasonRetry, task.ReasonHandBack, task.ReasonCatchUp, task.ReasonFrozen, task.ReasonTarget}, reason)
}

// waitWords explains why a run is waiting. The reason in its record comes first, then what else delays it now.
func (w wording) waitWords(g finding) string {
	r := g.run
	text := w.noSelector(g, reasonWords(r))
	if r.Reason == task.ReasonTarget {
		text = w.targetWords(r)
	}

	// The target of the task does not apply to a run whose request named a node.
	asTarget := w.Entry != nil && r.TargetNode == ""
	noNode := asTarget && mayTurn(r.Reason) && !r.NotBefore.After(w.Now) && !w.hasEnoughNodes(r)
	if noNode || r.Reason == task.ReasonCount && asTarget && !w.hasEnoughNodes(r) {
		text = w.noNodeWords()
	}

	if r.Reason == task.ReasonNoNode && asTarget {
		if words := w.selectorWords(); words != "" {
			text += " (" + words + ")"
		}

		if len(w.eligibleNodes()) > 0 {
			text += ", or none did a moment ago"
		} else {
			text += w.orderWords() + w.passedOverWords()
		}
	}

	if g.freeze != nil { // a freeze holds up the run in any case
		if mayTurn(r.Reason) && !noNode {
			text = w.frozenWords(g.freeze)
		} else {
			text += "; in addition, " + w.frozenWords(g.freeze)
		}
	}

	if len(r.Attempts) > 0 {
		a := r.Attempts[len(r.Attempts)-1]
		text += fmt.Sprintf("; attempt %d %s on %s", a.Attempt, stateWords(a.State, a.ExitCode, a.Signal), a.Node)
	}

	if r.NotBefore.After(w.Now) {
		text += ", and the next starts no earlier than " + w.formatClock(r.NotBefore.Time)
	}

	text += w.elsewhereWords(r)
	if o := w.Owner; o != nil && w.nodeNamed(o.Node) == nil {
		text += fmt.Sprintf("; its shard has no owner now: %s is not present", o.Node)
	}

	return text
}

// elsewhereWords names the nodes to which the next attempt can go, if it avoids the node of the failed attempt:
// see Want.Avoid in package placement.
func (w wording) elsewhereWords(r *task.Run) string {
	last := r.LastNode()
	if last == "" || w.Entry == nil || r.TargetNode != "" || !w.Entry.Target.MovesRetries() {
		return ""
	}

	var others []string
	for _, name := range w.eligibleNodes() {
		if name != last {
			others = append(others, name)
		}
	}

	switch len(others) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("; it will go to %s if that node has a free slot", others[0])
	}

	return fmt.Sprintf("; it will go to a node other than %s if one has a free slot", last)
}

// frozenWords describes a freeze: since when, by whom and why.
func (s speaker) frozenWords(z *task.Freeze) string {
	return fmt.Sprintf("%s has been frozen since %s%s%s", frozenWhat(z), s.formatTime(z.Since.Time), byClause(z.By), quoteReason(z.Reason))
}

// hasHadAttempt reports whether an attempt of a run has ended, whether its request was sent or not.
func hasHadAttempt(r *task.Run) bool { return len(r.Attempts) > 0 || r.UnsentCount() > 0 }

// targetWords explains why a run waits for the target of a request: its own, or that of another run of the task.
func (w wording) targetWords(r *task.Run) string {
	if r.Unsent != nil {
		return reasonWords(r) + ": " + w.unsentWords(r.Unsent)
	}

	if other := w.runAtTarget(); other != nil {
		return fmt.Sprintf("%s waits for the target of its request: %s", w.runWords(other), w.unsentWords(other.Unsent))
	}

	return "the target of the task's requests was unreachable or asked to wait, and another run tries it again"
}

// runAtTarget returns the oldest run that waits for the target of its request, or nil.
func (f *Facts) runAtTarget() (oldest *task.Run) {
	for i := range f.Runs {
		if r := &f.Runs[i]; r.WaitsForTarget() && (oldest == nil || r.ScheduledTime.Before(oldest.ScheduledTime.Time)) {
			oldest = r
		}
	}

	return oldest
}

// unsentWords describes the attempts of a run that were not sent: the cause, how many they were, and since when.
func (s speaker) unsentWords(u *task.Unsent) string {
	count := formatCount(int64(u.Count), "attempt was", "attempts were")
	return fmt.Sprintf("%s (%s not sent since %s)", unsentCause(u.Message), count, s.formatClock(u.First.Time))
}

// notSent begins the messages of attempts that were not sent (process.NotSentPrefix), which the sentence says already.
const notSent = "nothing was sent: "

// unsentCause returns what prevented a request.
func unsentCause(message string) string {
	message = strings.TrimRight(strings.TrimPrefix(message, notSent), ".")
	if message == "" {
		return "the cause is not on record"
	}
	return message
}

// unsentEnd returns the sentence for a run that ended because its request could not be sent.
func (s speaker) unsentEnd(subject string, r *task.Run) string {
	text := fmt.Sprintf("%s failed: its request was not sent: %s", subject, unsentCause(r.Message))
	if u := r.Unsent; u != nil {
		text += fmt.Sprintf("; before that, %s not sent since %s", formatCount(int64(u.Count), "attempt was", "attempts were"), s.formatTime(u.First.Time))
	}

	return makeSentence("%s", text)
}
