package why

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// wording describes facts to people, with times in the zone of the answer.
type wording struct {
	*Facts
	speaker
}

// sentenceFor returns the sentence for a finding.
func (w wording) sentenceFor(g finding) string {
	tick := "the tick of " + w.formatTime(g.tick)

	if g.line != nil && g.verdict != task.VerdictForgotten {
		return w.describeLine(g)
	}

	switch g.verdict {
	case task.VerdictPaused:
		there, paused := "there was no tick on", "was paused"
		if g.tick.After(w.Now) {
			there, paused = "there will be no tick on", "is paused"
		}

		if pauseEnd(g.pause).IsZero() {
			paused = "has been paused"
		}

		return makeSentence("%s %s: the task %s %s", there, w.formatTime(g.tick), paused, w.pauseWords(g.pause))
	case task.VerdictEnded:
		if g.detail != "" {
			return makeSentence("%s will probably not run: %s", tick, g.detail)
		}
		return makeSentence("there is no tick on %s: the task had reached max_runs (%d)", w.formatTime(g.tick), w.Entry.MaxRuns)
	case task.VerdictUndecided:
		return makeSentence("%s has not been decided yet: %s", tick, w.explainUndecided(g.due))
	case task.VerdictOvertaken:
		return makeSentence("%s was due, but no node had decided it when the task was %s", tick, w.cutWords(g))
	case task.VerdictForgotten:
		if g.version == nil && g.line == nil {
			return makeSentence("what happened on %s, and whether it was a tick, is no longer on record", w.formatTime(g.tick))
		}
		if g.line != nil {
			return makeSentence("%s %s", tick, g.detail)
		}
		return makeSentence("%s was decided, but its outcome is no longer on record", tick)
	case task.VerdictUnreadable:
		if g.detail != "" {
			return makeSentence("the task's %s cannot be read, so there is no answer; run carillon audit to find out what to do", g.detail)
		}
		return makeSentence("%s has an outcome on record, but the record cannot be read", tick)
	case task.VerdictNoTask:
		return w.describeNoTask(g.tick)
	case task.VerdictWillRun:
		return makeSentence("it will run: %s is due %s, if nothing changes%s", tick, w.inWords(g), w.besideWords(g))
	case task.VerdictFrozen:
		return makeSentence("it will not run unless something changes: %s is due %s, but %s", tick, w.inWords(g), w.frozenWords(g.freeze))
	case task.VerdictShadow:
		return makeSentence("it will start nothing: %s is due %s, and will be recorded as skipped, because %s", tick, w.inWords(g), reasonClause(g.reason))
	case task.VerdictForbidden:
		return makeSentence("it will fail unless something changes: %s is due %s, but %s", tick, w.inWords(g), w.forbidden())
	case task.VerdictNoNode:
		return makeSentence("it will not start unless something changes: %s is due %s, but %s", tick, w.inWords(g), w.noNodeWords())
	}

	return w.describeOutcome(g)
}

// inWords describes when a future tick is due.
func (w wording) inWords(g finding) string {
	in := "in " + formatSpan(g.due.Sub(w.Now))
	if g.due.Equal(g.tick) {
		return in
	}
	return fmt.Sprintf("at %s (jitter), %s", w.formatClock(g.due), in)
}

// besideWords describes what may still prevent a future tick from running: a pause until then, and the overlap
// policy.
func (w wording) besideWords(g finding) string {
	var text string
	if g.pause != nil {
		text = fmt.Sprintf("; until then the task is paused%s%s", pausedBy(g.pause), quoteReason(g.pause.Reason))
	}

	if w.Entry == nil {
		return text
	}
	if next, ok := g.version.nextTick(w.Now); ok && next.Before(g.tick) && g.pause == nil {
		return text // earlier ticks come first, so the current state does not predict this one
	}

	active := slices.DeleteFunc(w.activeRuns(w.Now, ""), func(r task.Run) bool { return r.State.Final() })
	var waiting []task.Run
	for _, r := range w.Runs {
		if r.State == task.Queued && r.Ticks() > 0 && !hasHadAttempt(&r) {
			waiting = append(waiting, r)
		}
	}

	return text + w.busyWords(active, waiting)
}

// busyWords describes what happens to a tick if the runs that are active or waiting now still are at that time.
func (w wording) busyWords(active, waiting []task.Run) string {
	e := w.Entry

	// Late ticks that are caught up on do not count against queue.limit.
	takingRoom := 0
	for _, r := range waiting {
		if r.Reason != task.ReasonCatchUp {
			takingRoom++
		}
	}

	one := func() string {
		if active[0].DispatchedAt.IsZero() {
			return "a run is waiting for its next attempt"
		}
		return "a run has been active since " + w.formatTime(active[0].DispatchedAt.Time)
	}

	switch other := w.runAtTarget(); {
	case e.Overlap == task.OverlapAllow && other != nil && e.Action.HTTP != nil:
		return fmt.Sprintf("; %s waits for the target of its request (%s), and if that does not change, this one waits", w.runWords(other), unsentCause(other.Unsent.Message))
	case e.Overlap == task.OverlapAllow && (e.MaxActive == 0 || len(active) < e.MaxActive):
		return ""
	case e.Overlap == task.OverlapAllow:
		return fmt.Sprintf("; %s active, the most that max_active allows, and if that does not change, this one waits", formatCount(int64(len(active)), "run is", "runs are"))
	case e.Overlap == task.OverlapQueue && takingRoom >= e.Queue.Room():
		what := "this one is skipped"
		if e.Queue.Drop == task.DropOldest {
			what = "the oldest of them is skipped"
		}
		return fmt.Sprintf("; %s waiting, the most that queue.limit allows, and if that does not change, %s", formatCount(int64(takingRoom), "run is", "runs are"), what)
	case len(active) == 0 && len(waiting) == 0:
		return ""
	case e.Overlap == task.OverlapQueue && len(active) > 0:
		return "; " + one() + ", and if it still is then, this one waits"
	case e.Overlap == task.OverlapQueue:
		return "; a run is waiting, and if it still is then, this one waits behind it"
	case len(active) == 0:
		what := map[string]string{task.OverlapSkip: "this one is skipped", task.OverlapReplace: "it is cancelled and replaced"}[e.Overlap]
		return fmt.Sprintf("; a run is waiting (%s), and if it still is then, %s", strings.ReplaceAll(waiting[0].Reason, "_", " "), what)
	}

	what := map[string]string{task.OverlapSkip: "this one is skipped", task.OverlapReplace: "it is cancelled and replaced"}[e.Overlap]

	return "; " + one() + ", and if it still is then, " + what
}

// noNodeWords explains why no node, or too few nodes, can run the task.
func (w wording) noNodeWords() string {
	target, n := w.Entry.Target, len(w.eligibleNodes())
	node := "node"
	if w.Entry.Action.NeedsKey() {
		node = "node with a key for secrets"
	}

	text := "no " + node + " is available"

	switch {
	case n > 0 && w.selectorWords() != "":
		text = formatCount(int64(n), "available node matches ", "available nodes match ") + w.selectorWords()
	case n > 0:
		text = formatCount(int64(n), "node is available", "nodes are available")
	case w.selectorWords() != "":
		text = "no available " + node + " matches " + w.selectorWords()
	}

	text += w.orderWords()

	switch {
	case n == 0:
	case n > task.MaxParts:
		text += fmt.Sprintf(", and a run has at most %d parts", task.MaxParts)
	case target.Count == task.All:
		text += fmt.Sprintf(", and %s must succeed", target.Succeed)
	default:
		text += fmt.Sprintf(", and target.count is %s", target.Count)
	}

	return text + w.passedOverWords()
}

// selectorWords names the selectors that a node must match: the task's, and its namespace's. It returns "" if any node
// matches.
func (w wording) selectorWords() string {
	var words []string
	if s := w.Entry.Target.Selector; s != "" {
		words = append(words, task.Quote(s))
	}
	if w.Limits != nil && strings.TrimSpace(w.Limits.Nodes) != "" {
		words = append(words, task.Quote(w.Limits.Nodes)+" of namespace "+w.Namespace)
	}

	return strings.Join(words, " and ")
}

// orderWords names the nodes to which strategy `first` restricts the task.
func (w wording) orderWords() string {
	if w.Entry.Target.Strategy != task.StrategyFirst {
		return ""
	}
	return " among " + strings.Join(firstNames(w.Entry.Target.Order), ", ")
}

// passedOverWords names the nodes that would match, but exceed their own limit, have no key for secrets, or announce a
// label that they may not have.
func (w wording) passedOverWords() string {
	var words []string
	for _, n := range w.Nodes {
		var because []string
		if len(n.Blocked) > 0 {
			because = append(because, task.DescribeBlocked(n.Blocked))
		}

		if w.Entry.Action.NeedsKey() && !n.HoldsKey() {
			because = append(because, "it has no readable key for secrets (see its log)")
		}

		n.Blocked = nil
		switch isMatch := func() bool { return len(w.target().Takers([]task.Node{n}, false)) > 0 }; {
		case len(because) > 0 && isMatch():
			words = append(words, fmt.Sprintf("%s accepts no runs: %s", n.Name, strings.Join(because, "; ")))
		case len(because) == 0 && len(n.IgnoredLabels) > 0:
			n.Labels = maps.Clone(n.Labels)
			if n.Labels == nil {
				n.Labels = map[string]string{}
			}
			maps.Copy(n.Labels, n.IgnoredLabels)
			if isMatch() {
				words = append(words, fmt.Sprintf("labels of %s do not count, because its limit does not allow them: %s", n.Name, labelWords(n.IgnoredLabels)))
			}
		}
	}

	if len(words) == 0 {
		return ""
	}

	return " (" + strings.Join(firstNames(words), "; ") + ")"
}

// labelWords lists labels.
func labelWords(labels map[string]string) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, k+"="+labels[k])
	}

	return strings.Join(words, ", ")
}

// frozenWhat names the scope of a freeze.
func frozenWhat(z *task.Freeze) string {
	if z.Namespace == "" {
		return "the cluster"
	}
	return "namespace " + z.Namespace
}

// pauseWords describes a pause: from when to when, by whom and why.
func (w wording) pauseWords(p *task.Pause) string {
	text := "since " + w.formatTime(p.Since.Time)

	if end := pauseEnd(p); !end.IsZero() {
		text = "from " + w.formatTime(p.Since.Time) + " until " + w.formatTime(end.Time)
	}

	return text + pausedBy(p) + quoteReason(p.Reason)
}

// pauseEnd returns when a pause ended or will end; zero if no end is set.
func pauseEnd(p *task.Pause) task.Time {
	if p.Ended.IsZero() || !p.Until.IsZero() && p.Until.Before(p.Ended.Time) {
		return p.Until
	}
	return p.Ended
}

// pausedBy names who began a pause, as a clause.
func pausedBy(p *task.Pause) string {
	if p.By.Is(task.PausedByFailures) {
		return " by Carillon itself"
	}
	return byClause(p.By)
}

// cutWords describes the change that dropped a tick before it was decided.
func (w wording) cutWords(g finding) string {
	if g.cut == nil {
		return "paused on " + w.formatTime(g.pause.Since.Time) + byClause(g.pause.By) + quoteReason(g.pause.Reason)
	}

	what := map[string]string{task.ChangePaused: "paused", task.ChangeResumed: "resumed", task.ChangeRolledBack: "rolled back"}[g.cut.Change]
	if what == "" {
		what = "changed"
		if g.cut.Paused != g.version.Paused {
			what = map[bool]string{true: "paused", false: "resumed"}[g.cut.Paused]
		}
	}

	return fmt.Sprintf("%s (version %d) on %s%s; undecided ticks before that were dropped", what, g.cut.Generation, w.formatTime(g.cut.startTime()), byClause(g.cut.UpdatedBy))
}

// describeNoTask returns the sentence for a time at which the task did not exist.
func (w wording) describeNoTask(at time.Time) string {
	name := "task " + w.Namespace + "/" + w.Name
	d := w.Deleted
	switch {
	case w.Task != nil:
		who := ""
		if w.Task.Generation == 1 {
			who = byClause(w.Task.UpdatedBy)
		} else if len(w.Versions) > 0 && w.Versions[0].Generation == 1 {
			who = byClause(w.Versions[0].UpdatedBy)
		}

		return makeSentence("%s did not exist on %s: it was created on %s%s", name, w.formatTime(at), w.formatTime(w.Task.CreatedAt.Time), who)
	case d == nil:
		return makeSentence("there is no %s", name)
	case at.Before(d.At.Time):
		return makeSentence("%s was deleted, together with its history, on %s%s%s; what happened on %s is no longer on record", name, w.formatTime(d.At.Time), byClause(d.By), quoteReason(d.Why), w.formatTime(at))
	case at.After(w.Now):
		return makeSentence("there is no %s: it was deleted on %s%s%s", name, w.formatTime(d.At.Time), byClause(d.By), quoteReason(d.Why))
	}

	return makeSentence("there was no %s on %s: it had been deleted on %s%s%s", name, w.formatTime(at), w.formatTime(d.At.Time), byClause(d.By), quoteReason(d.Why))
}
