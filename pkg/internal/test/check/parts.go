package check

import (
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// partJudge judges runs with parts, and their parts.
//
// A run with parts has a queue record while it is under way. Its parts are runs themselves: in inboxes, and after
// they have ended in records below parts/. The guarantees about a task's runs (G3, G4, G8, G24) apply to the
// parent, those about attempts (G2, G9, G10, G11, G12) to the parts. In addition, a part is given out once, while
// its parent lists it as left. The parent ends when all parts have ended, records how each ended, and has the
// outcome that its rule gives.
type partJudge struct {
	judge
	fences *fenceJudge
	flows  *flowJudge // judges in addition runs of workflows
}

// isStep reports whether a run is a part of a workflow.
func (j *partJudge) isStep(ch *runChange) bool {
	parent, _ := j.cluster.parentOf(ch.ref, ch.id)
	return parent != nil && parent.fan != nil && parent.fan.Flow != nil
}

// generationOf returns the generation of the task with which the workflow of a part has begun.
func (j *partJudge) generationOf(ch *runChange) int64 {
	parent, _ := j.cluster.parentOf(ch.ref, ch.id)
	return parent.fan.Flow.Generation
}

// checkParent judges the queue record of a run that has parts: its first one, or a rewrite.
func (j *partJudge) checkParent(d *delta, ch *runChange, r *runHistory) {
	f, was := r.fan, r.was
	switch {
	// The first record that lists the parts.
	case was == nil:
		j.checkFanOut(d, ch, r, f)
		return
	case (was.Flow == nil) != (f.Flow == nil):
		j.breachTask("form", ch.ref, r.tick, ch.queueKey, "run %s has become a workflow, or is none any more", ch.id)
		return
	// The parts of a workflow get their numbers when their step begins.
	case f.Flow == nil && was.Count != f.Count || was.Need != f.Need || was.Kept != f.Kept || !slices.Equal(was.Nodes, f.Nodes) || !slices.Equal(was.Only, f.Only):
		j.breachTask("G24", ch.ref, r.tick, ch.queueKey, "the parts of run %s have changed", ch.id)
	case was.Cancel != "" && f.Cancel != was.Cancel:
		j.breachTask("state", ch.ref, r.tick, ch.queueKey, "a cancel of run %s was overwritten", ch.id)
	}

	if e := j.cluster.taskOf(ch.ref).entry; was.Cancel == "" && f.Cancel == task.ReasonReplaced && e != nil && e.incarnation == r.incarnation && e.Overlap != task.OverlapReplace {
		j.breachTask("G24", ch.ref, r.tick, ch.queueKey, "run %s is replaced, but overlap is %q", ch.id, e.Overlap)
	}

	// Users may only request a cancel, or begin or end a pause, which flowJudge judges. Every other change, and a cancel in favor of a newer tick, needs a commit.
	same := *f
	same.Cancel = was.Cancel
	if f.Flow != nil {
		flow := *f.Flow
		flow.Forced, flow.FrozenMS, flow.FrozenUntil, same.Flow = was.Flow.Forced, was.Flow.FrozenMS, was.Flow.FrozenUntil, &flow
	}
	if encodeFan(same) != encodeFan(*was) || f.Cancel == task.ReasonReplaced && was.Cancel == "" {
		j.fences.requireCommit(d, ch.ref, r.tick, ch.queueKey, "a run with parts")
	}

	// A part that was given out must not return to the list (G9).
	for _, i := range f.Left {
		if !slices.Contains(was.Left, i) && (f.Flow == nil || i < was.Count) {
			j.breachTask("G9", ch.ref, r.tick, ch.queueKey, "part %d of run %s is to be dispatched again", i, ch.id)
		}
	}

	// A part that leaves the list must be dispatched or ended in the same revision, or it would be lost (G4).
	for _, i := range was.Left {
		if slices.Contains(f.Left, i) {
			continue
		}

		if p := d.runs[runRef{ch.ref, task.PartID(ch.id, i)}]; p == nil || len(p.puts) == 0 && p.ended == nil {
			j.breachTask("G4", ch.ref, r.tick, ch.queueKey, "part %d of run %s is no longer waiting, but was not dispatched", i, ch.id)
		}
	}

	// The parent's counts may be behind the ends of its parts, but never ahead.
	if ended, succeeded := j.cluster.endedParts(ch.ref, ch.id); f.Ended > ended || f.Succeeded > succeeded {
		j.breachTask("G24", ch.ref, r.tick, ch.queueKey, "the record says that %d parts of run %s ended and %d succeeded; actually %d ended and %d succeeded", f.Ended, ch.id, f.Succeeded, ended, succeeded)
	}
}

// encodeFan returns a fan as JSON, for comparisons.
func encodeFan(f task.Fan) string { return encodeRun(task.Run{FanOut: task.FanOut{Fan: &f}}) }

// checkFanOut judges the first record of a run that has parts.
func (j *partJudge) checkFanOut(d *delta, ch *runChange, r *runHistory, f *task.Fan) {
	j.fences.requireCommit(d, ch.ref, r.tick, ch.queueKey, "a run with parts")
	t := j.cluster.taskOf(ch.ref)
	switch {
	case f.Flow != nil: // flowJudge judges its steps
	case !slices.Equal(f.Left, f.Numbers()):
		j.breachTask("G4", ch.ref, r.tick, ch.queueKey, "run %s begins without some of its parts", ch.id)
	case len(f.Nodes) > 0 && len(f.Nodes) != f.Count:
		j.breachTask("G24", ch.ref, r.tick, ch.queueKey, "run %s has %d parts for %d nodes", ch.id, f.Count, len(f.Nodes))
	case !distinctNodes(f.Nodes):
		j.breachTask("G24", ch.ref, r.tick, ch.queueKey, "run %s has several parts for one node: %s", ch.id, strings.Join(f.Nodes, ", "))
	case t.entry != nil && t.entry.incarnation == r.incarnation && f.Only == nil && !t.entry.Target.FansOut():
		j.breachTask("G7", ch.ref, r.tick, ch.queueKey, "run %s has parts, but its task has none", ch.id)
	case t.entry != nil && t.entry.incarnation == r.incarnation && f.Only == nil && t.entry.Target.Count != task.All && f.Count != max(t.entry.Target.Parts, int(t.entry.Target.Count)):
		j.breachTask("G7", ch.ref, r.tick, ch.queueKey, "run %s has %d parts; its task has %d, or one on each of %d nodes", ch.id, f.Count, t.entry.Target.Parts, t.entry.Target.Count)
	}

	if z := j.cluster.freezes.Of(ch.ref.Namespace); z != nil && !j.cluster.freezes.unreadable {
		j.breachTask("G21", ch.ref, r.tick, ch.queueKey, "run %s gets its parts, although %s has been frozen since %s", ch.id, frozenScope(z), formatTime(z.Since.Time))
	}
}

// distinctNodes reports whether no two parts are bound to the same node. Empty names are ignored: a part that may
// run on any node has none.
func distinctNodes(nodes []string) bool {
	seen := map[string]bool{}
	for _, n := range nodes {
		if n != "" && seen[n] {
			return false
		}
		seen[n] = true
	}

	return true
}

// checkFirstRecord judges the first record of a part. Its parent listed it as left before this revision, and does
// not any more (G9).
func (j *partJudge) checkFirstRecord(d *delta, ch *runChange, r *runHistory, rec *task.Run, key string) {
	j.fences.requireCommit(d, ch.ref, 0, key, "a part")
	parent, index := j.cluster.parentOf(ch.ref, ch.id)

	if j.cluster.isOrphaned(d, ch.ref, r) {
		return
	}

	if parent == nil || parent.fan == nil {
		j.breachTask("G3", ch.ref, 0, key, "part %s belongs to a run without parts", ch.id)
		return
	}

	was := parent.fanBefore(j.cluster.revision)
	if was != nil && was.Flow != nil {
		// flowJudge judges cancels: cleanup is given out after them.
		if parent.changed != j.cluster.revision || !slices.Contains(was.Left, index) && index < was.Count || index >= parent.fan.Count || slices.Contains(parent.fan.Left, index) {
			j.breachTask("G9", ch.ref, 0, key, "part %s is dispatched, but it was not waiting, or still is", ch.id)
		}
		return
	}

	switch {
	case parent.changed != j.cluster.revision || was == nil || !slices.Contains(was.Left, index) || slices.Contains(parent.fan.Left, index):
		j.breachTask("G9", ch.ref, 0, key, "part %s is dispatched, but it was not waiting, or still is", ch.id)
	case was.Cancel != "":
		j.breachTask("state", ch.ref, 0, key, "part %s is dispatched, but its run is ending", ch.id)
	}

	if rec.PartCount != parent.fan.Count {
		j.breachTask("form", ch.ref, 0, key, "part %s is one of %d parts, but its run has %d", ch.id, rec.PartCount, parent.fan.Count)
	}
}

// checkDispatch judges a new attempt of a part: on the node that the parent assigned, and not after a cancel.
func (j *partJudge) checkDispatch(ch *runChange, put inboxPut) {
	parent, index := j.cluster.parentOf(ch.ref, ch.id)
	if parent == nil || parent.fan == nil {
		return // checkFirstRecord has reported it
	}

	if nodes := parent.fan.Nodes; index < len(nodes) && nodes[index] != put.node {
		j.breachTask("G24", ch.ref, 0, put.key, "part %s is for node %s, but is dispatched to %s", ch.id, nodes[index], put.node)
	}

	if parent.fan.Flow != nil {
		return // flowJudge judges these
	}

	if was := parent.fanBefore(j.cluster.revision); parent.ended || was != nil && was.Cancel != "" {
		j.breachTask("state", ch.ref, 0, put.key, "part %s is dispatched, but its run is ending or has ended", ch.id)
	}
}

// checkEndDeleted checks that the record of a part's end is deleted only when its parent has ended or is gone
// (G12). Until then, the parent's outcome depends on it.
func (j *partJudge) checkEndDeleted(d *delta, ch *runChange, r *runHistory) {
	parent, _ := j.cluster.parentOf(ch.ref, ch.id)
	if parent != nil && parent.underWay() && !j.cluster.isOrphaned(d, ch.ref, r) {
		j.breachTask("G12", ch.ref, 0, ch.partKey, "the end of part %s is deleted before its run has ended", ch.id)
	}
}

// checkConclusion judges the end of a run with parts: all parts have ended (G4), the record gives the end of each
// (G12), and the outcome follows the rule (G24).
func (j *partJudge) checkConclusion(d *delta, ch *runChange, r *runHistory) {
	j.fences.requireCommit(d, ch.ref, r.tick, ch.endedKey, "the end of a run with parts")
	e, f := ch.ended, r.fan
	if e.Fan == nil {
		j.breachTask("G12", ch.ref, r.tick, ch.endedKey, "run %s ends without the results of its parts", ch.id)
		return
	}

	byIndex := map[int]task.Part{}
	for _, p := range e.Fan.Parts {
		byIndex[p.Index] = p
	}

	// cut reports whether the cancel had an effect: it kept a part from being given out, or ended one. If all parts
	// had ended before, their outcome counts.
	succeeded, cut := f.Kept, false

	// Compare what the parent records of each part with what happened. A part that was never given out may only be
	// cancelled.
	for _, i := range f.Numbers() {
		said, told := byIndex[i]
		p := j.cluster.taskOf(ch.ref).runs[task.PartID(ch.id, i)]
		left := slices.Contains(f.Left, i)
		cut = cut || left

		switch {
		case !told && left && f.Flow != nil: // an item that has not begun
		case !told:
			j.breachTask("G4", ch.ref, r.tick, ch.endedKey, "run %s ends without the result of part %d", ch.id, i)
		case left && (f.Cancel == "" && f.Flow == nil || said.State != stateOfCut(f.Cancel) || p != nil):
			j.breachTask("G4", ch.ref, r.tick, ch.endedKey, "run %s ends although part %d waits; its record says %s", ch.id, i, said.State)
		case left:
		case p == nil || !p.ended:
			j.breachTask("G4", ch.ref, r.tick, ch.endedKey, "run %s ends before its part %d", ch.id, i)
		case p.state != said.State || p.token != said.Token:
			j.breachTask("G12", ch.ref, r.tick, ch.endedKey, "run %s records that part %d ended as %s with token %d; it ended as %s with token %d", ch.id, i, said.State, said.Token, p.state, p.token)
		default:
			cut = cut || p.state == task.Cancelled || p.reason == task.ReasonRestored
			if p.state == task.Succeeded {
				succeeded++
			}
		}
	}

	if f.Flow != nil {
		j.flows.checkConclusion(d, ch, r)
		return
	}

	// The rule: enough parts succeeded, unless a cancel had an effect.
	want := task.Failed

	switch {
	case f.Cancel != "" && cut:
		want = stateOfCut(f.Cancel)
	case succeeded >= f.Need:
		want = task.Succeeded
	}

	if e.State != want {
		j.breachTask("G24", ch.ref, r.tick, ch.endedKey, "run %s ends as %s; %d of %d parts succeeded, %d required: expected %s", ch.id, e.State, succeeded, f.Count, f.Need, want)
	}
}
