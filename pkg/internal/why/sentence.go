package why

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// sentenceFor returns the sentence for a finding.
func (f *Facts) sentenceFor(s speaker, g finding) string {
	tick := "the tick of " + s.formatTime(g.tick)

	if g.line != nil && g.verdict != task.VerdictForgotten {
		return f.describeLine(s, g)
	}

	switch g.verdict {
	case task.VerdictPaused:
		there, paused := "there was no tick on", "was paused"
		if g.tick.After(f.Now) {
			there, paused = "there will be no tick on", "is paused"
		}

		if pauseEnd(g.pause).IsZero() {
			paused = "has been paused"
		}

		return makeSentence("%s %s: the task %s %s", there, s.formatTime(g.tick), paused, f.pauseWords(s, g.pause))
	case task.VerdictEnded:
		if g.detail != "" {
			return makeSentence("%s will probably not run: %s", tick, g.detail)
		}
		return makeSentence("there is no tick on %s: the task had reached max_runs (%d)", s.formatTime(g.tick), f.Entry.MaxRuns)
	case task.VerdictUndecided:
		return makeSentence("%s has not been decided yet: %s", tick, f.explainUndecided(s, g.due))
	case task.VerdictOvertaken:
		return makeSentence("%s was due, but no node had decided it when the task was %s", tick, f.cutWords(s, g))
	case task.VerdictForgotten:
		if g.version == nil && g.line == nil {
			return makeSentence("what happened on %s, and whether it was a tick, is no longer on record", s.formatTime(g.tick))
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
		return f.describeNoTask(s, g.tick)
	case task.VerdictWillRun:
		return makeSentence("it will run: %s is due %s, if nothing changes%s", tick, f.inWords(s, g), f.besideWords(s, g))
	case task.VerdictFrozen:
		return makeSentence("it will not run unless something changes: %s is due %s, but %s", tick, f.inWords(s, g), frozenWords(s, g.freeze))
	case task.VerdictShadow:
		return makeSentence("it will start nothing: %s is due %s, and will be recorded as skipped, because %s", tick, f.inWords(s, g), reasonClause(g.reason))
	case task.VerdictForbidden:
		return makeSentence("it will fail unless something changes: %s is due %s, but %s", tick, f.inWords(s, g), f.forbidden())
	case task.VerdictNoNode:
		return makeSentence("it will not start unless something changes: %s is due %s, but %s", tick, f.inWords(s, g), f.noNodeWords())
	}

	return f.describeOutcome(s, g)
}

// inWords describes when a future tick is due.
func (f *Facts) inWords(s speaker, g finding) string {
	in := "in " + formatSpan(g.due.Sub(f.Now))
	if g.due.Equal(g.tick) {
		return in
	}
	return fmt.Sprintf("at %s (jitter), %s", s.formatClock(g.due), in)
}

// besideWords describes what may still prevent a future tick from running: a pause until then, and the overlap
// policy.
func (f *Facts) besideWords(s speaker, g finding) string {
	var text string
	if g.pause != nil {
		text = fmt.Sprintf("; until then the task is paused%s%s", byClause(pausedBy(g.pause)), quoteReason(g.pause.Reason))
	}

	if f.Entry == nil {
		return text
	}
	if next, ok := g.version.nextTick(f.Now); ok && next.Before(g.tick) && g.pause == nil {
		return text // earlier ticks come first, so the current state does not predict this one
	}

	active := slices.DeleteFunc(f.activeRuns(f.Now, ""), func(r task.Run) bool { return r.State.Final() })
	var waiting []task.Run
	for _, r := range f.Runs {
		if r.State == task.Queued && r.Trigger != task.TriggerManual && !hasHadAttempt(&r) {
			waiting = append(waiting, r)
		}
	}

	return text + f.busyWords(s, active, waiting)
}

// busyWords describes what happens to a tick if the runs that are active or waiting now still are at that time.
func (f *Facts) busyWords(s speaker, active, waiting []task.Run) string {
	e := f.Entry

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
		return "a run has been active since " + s.formatTime(active[0].DispatchedAt.Time)
	}

	switch other := f.runAtTarget(); {
	case e.Overlap == task.OverlapAllow && other != nil && e.Action.HTTP != nil:
		return fmt.Sprintf("; %s waits for the target of its request (%s), and if that does not change, this one waits", runWords(s, other), unsentCause(other.Unsent.Message))
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
func (f *Facts) noNodeWords() string {
	target, n := f.Entry.Target, len(f.eligibleNodes())
	node := "node"
	if f.Entry.Action.NeedsKey() {
		node = "node with a key for secrets"
	}

	text := "no " + node + " is available"

	switch {
	case n > 0 && f.selectorWords() != "":
		text = formatCount(int64(n), "available node matches ", "available nodes match ") + f.selectorWords()
	case n > 0:
		text = formatCount(int64(n), "node is available", "nodes are available")
	case f.selectorWords() != "":
		text = "no available " + node + " matches " + f.selectorWords()
	}

	text += f.orderWords()

	switch {
	case n == 0:
	case n > task.MaxParts:
		text += fmt.Sprintf(", and a run has at most %d parts", task.MaxParts)
	case target.Count == task.All:
		text += fmt.Sprintf(", and %s must succeed", target.Succeed)
	default:
		text += fmt.Sprintf(", and target.count is %s", target.Count)
	}

	return text + f.passedOverWords()
}

// selectorWords names the selectors that a node must match: the task's, and its namespace's. It returns "" if any node
// matches.
func (f *Facts) selectorWords() string {
	var words []string
	if s := f.Entry.Target.Selector; s != "" {
		words = append(words, task.Quote(s))
	}
	if f.Limits != nil && strings.TrimSpace(f.Limits.Nodes) != "" {
		words = append(words, task.Quote(f.Limits.Nodes)+" of namespace "+f.Namespace)
	}

	return strings.Join(words, " and ")
}

// orderWords names the nodes to which strategy `first` restricts the task.
func (f *Facts) orderWords() string {
	if f.Entry.Target.Strategy != task.StrategyFirst {
		return ""
	}
	return " among " + strings.Join(firstNames(f.Entry.Target.Order), ", ")
}

// passedOverWords names the nodes that would match, but exceed their own limit, have no key for secrets, or announce a
// label that they may not have.
func (f *Facts) passedOverWords() string {
	var words []string
	for _, n := range f.Nodes {
		var because []string
		if len(n.Blocked) > 0 {
			because = append(because, task.DescribeBlocked(n.Blocked))
		}

		if f.Entry.Action.NeedsKey() && !n.HoldsKey() {
			because = append(because, "it has no readable key for secrets (see its log)")
		}

		n.Blocked = nil
		switch isMatch := func() bool { return len(f.target().Takers([]task.Node{n}, false)) > 0 }; {
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
func (f *Facts) pauseWords(s speaker, p *task.Pause) string {
	text := "since " + s.formatTime(p.Since.Time)

	if end := pauseEnd(p); !end.IsZero() {
		text = "from " + s.formatTime(p.Since.Time) + " until " + s.formatTime(end.Time)
	}

	return text + byClause(pausedBy(p)) + quoteReason(p.Reason)
}

// pauseEnd returns when a pause ended or will end; zero if no end is set.
func pauseEnd(p *task.Pause) task.Time {
	if p.Ended.IsZero() || !p.Until.IsZero() && p.Until.Before(p.Ended.Time) {
		return p.Until
	}
	return p.Ended
}

// pausedBy names who began a pause.
func pausedBy(p *task.Pause) string {
	if p.By == task.PausedByFailures {
		return "Carillon itself"
	}
	return p.By
}

// cutWords describes the change that dropped a tick before it was decided.
func (f *Facts) cutWords(s speaker, g finding) string {
	if g.cut == nil {
		return "paused on " + s.formatTime(g.pause.Since.Time) + byClause(g.pause.By) + quoteReason(g.pause.Reason)
	}

	what := map[string]string{task.ChangePaused: "paused", task.ChangeResumed: "resumed", task.ChangeRolledBack: "rolled back"}[g.cut.Change]
	if what == "" {
		what = "changed"
		if g.cut.Paused != g.version.Paused {
			what = map[bool]string{true: "paused", false: "resumed"}[g.cut.Paused]
		}
	}

	return fmt.Sprintf("%s (version %d) on %s%s; undecided ticks before that were dropped", what, g.cut.Generation, s.formatTime(g.cut.startTime()), byClause(g.cut.UpdatedBy))
}

// describeNoTask returns the sentence for a time at which the task did not exist.
func (f *Facts) describeNoTask(s speaker, at time.Time) string {
	name := "task " + f.Namespace + "/" + f.Name
	d := f.Deleted
	switch {
	case f.Task != nil:
		who := ""
		if f.Task.Generation == 1 {
			who = byClause(f.Task.UpdatedBy)
		} else if len(f.Versions) > 0 && f.Versions[0].Generation == 1 {
			who = byClause(f.Versions[0].UpdatedBy)
		}

		return makeSentence("%s did not exist on %s: it was created on %s%s", name, s.formatTime(at), s.formatTime(f.Task.CreatedAt.Time), who)
	case d == nil:
		return makeSentence("there is no %s", name)
	case at.Before(d.At.Time):
		return makeSentence("%s was deleted, together with its history, on %s%s%s; what happened on %s is no longer on record", name, s.formatTime(d.At.Time), byClause(d.By), quoteReason(d.Why), s.formatTime(at))
	case at.After(f.Now):
		return makeSentence("there is no %s: it was deleted on %s%s%s", name, s.formatTime(d.At.Time), byClause(d.By), quoteReason(d.Why))
	}

	return makeSentence("there was no %s on %s: it had been deleted on %s%s%s", name, s.formatTime(at), s.formatTime(d.At.Time), byClause(d.By), quoteReason(d.Why))
}
