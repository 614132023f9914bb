package check

import (
	"cmp"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// flowJudge judges runs of workflows: what begins, and when (G65), and that cleanup runs to its end (G66). partJudge judges what
// such runs have in common with other runs that have parts.
//
// The record of a run says which steps have begun, and the ends of its parts what has become of them. flowView computes
// from these what may begin. The transactions compare the record of the run, so that what it says (the cancel) is judged exactly. Its owner may
// learn of ends late. So a failure counts only if the watermark of the commit says that the owner had seen it.
type flowJudge struct {
	judge
	fences *fenceJudge
	runs   map[runRef]*flowRun
	data   map[runRef]*task.RunData // what is stored
}

// flowRun is what the judge remembers of a run of a workflow.
type flowRun struct {
	plan *task.Plan
	// planned is the fan of a retry before it begins. It says what is kept.
	planned *task.Fan
	// kept are the results of the steps that a retry keeps, by step.
	kept map[string]map[string]string
	// paused reports whether its record says that it is paused, and wasPaused whether the one before did.
	paused, wasPaused bool
}

func newFlowJudge(j judge, fences *fenceJudge) *flowJudge {
	return &flowJudge{j, fences, map[runRef]*flowRun{}, map[runRef]*task.RunData{}}
}

// runOf returns what is remembered of a run, and creates it if it is new.
func (j *flowJudge) runOf(ref runRef) *flowRun {
	f := j.runs[ref]
	if f == nil {
		f = &flowRun{}
		j.runs[ref] = f
	}

	return f
}

// breach reports a violation that concerns a run of a workflow.
func (j *flowJudge) breach(promise string, ref runRef, key, format string, args ...any) {
	j.breachTask(promise, ref.ref, 0, key, format, args...)
}

// viewOf returns a run with all ends of parts up to the present revision. cancel is why it is ending.
func (j *flowJudge) viewOf(ref runRef, fan *task.Fan, cancel string) *flowView {
	return j.viewUpTo(ref, fan, cancel, j.cluster.revision)
}

// viewUpTo returns a run with the ends of parts up to a revision.
func (j *flowJudge) viewUpTo(ref runRef, fan *task.Fan, cancel string, revision int64) *flowView {
	runs := j.cluster.taskOf(ref.ref).runs

	return &flowView{fan: fan, cancel: cancel, stateOf: func(part int) task.State {
		if r := runs[task.PartID(ref.id, part)]; r != nil && r.ended && r.partEndRev <= revision {
			return r.state
		}
		return ""
	}}
}

// resultsOf returns what the steps of a run have reported. Only steps that have succeeded count.
func (j *flowJudge) resultsOf(ref runRef, fan *task.Fan) func(step string) map[string]string {
	runs := j.cluster.taskOf(ref.ref).runs

	return func(step string) map[string]string {
		for i := range fan.Flow.Steps {
			s := &fan.Flow.Steps[i]
			switch {
			case s.Name != step:
			case s.IsKept:
				return j.runOf(ref).kept[step]
			case s.IsOpened() && !s.IsMap:
				if r := runs[task.PartID(ref.id, s.First)]; r != nil && r.partEnd != nil && r.state == task.Succeeded {
					return r.partEnd.Results
				}
			}
		}

		return nil
	}
}

// applyListed applies the first list.
func (j *flowJudge) applyListed(d *delta) {
	j.applyData(d)

	for ref, ch := range d.runs {
		if ch.queued == nil || ch.queued.Fan == nil || ch.queued.Fan.Flow == nil {
			continue
		}

		f := j.runOf(ref)
		f.planned = ch.queued.Fan
		if data := j.data[ref]; data != nil {
			f.plan, f.kept = &data.Plan, data.Results
		}
	}
}

// applyData applies the changes of the data of runs.
func (j *flowJudge) applyData(d *delta) {
	for ref, ch := range d.runData {
		if ch.data == nil {
			delete(j.data, ref)
		} else {
			j.data[ref] = ch.data
		}
	}
}

// checkRevision judges what a revision does to runs of workflows. All changes of runs have been applied.
func (j *flowJudge) checkRevision(d *delta) {
	for _, ch := range d.sortedRuns() {
		r := j.cluster.taskOf(ch.ref).runs[ch.id]
		switch {
		case r == nil:
		case r.isPart():
			j.checkPart(d, ch, r)
		case ch.queued != nil && ch.queued.Fan != nil && ch.queued.Fan.Flow != nil && !ch.queued.UnderWay():
			j.checkQueued(d, ch)
		case ch.ended != nil && r.endedRev == j.cluster.revision && r.fan == nil && j.runs[ch.runRef] != nil:
			j.checkUnbegun(d, ch)
		case r.fan != nil && r.fan.Flow != nil && r.changed == j.cluster.revision && r.was == nil:
			j.checkBegin(d, ch, r)
		case r.fan != nil && r.fan.Flow != nil && r.changed == j.cluster.revision:
			j.checkProgress(d, ch, r)
		}
	}

	for _, ref := range slices.SortedFunc(maps.Keys(d.runData), func(a, b runRef) int { return strings.Compare(a.ref.String()+a.id, b.ref.String()+b.id) }) {
		j.checkData(d, ref, d.runData[ref])
	}

	j.applyData(d)
}

// checkData judges a change of the data of a run: it is written when the run begins or its retry is requested, keeps its plan, and
// exists as long as the run.
func (j *flowJudge) checkData(d *delta, ref runRef, ch *runDataChange) {
	r := j.cluster.taskOf(ref.ref).runs[ref.id]
	run := d.runs[ref]
	isOpen := r != nil && !r.ended && !r.purged && r.queued

	switch {
	case ch.data == nil && isOpen && !j.cluster.isOrphaned(d, ref.ref, r):
		j.breach("G65", ref, ch.key, "the data of run %s is deleted before the run has ended", ref.id)
	case ch.data == nil && j.isDead(d, ref) && !j.isTaskDeleted(d, ref):
		j.breach("G65", ref, ch.key, "the data of dead run %s is deleted", ref.id)
	case ch.data == nil:
	case ch.create && (run == nil || run.queued == nil || run.queued.Fan == nil || run.queued.Fan.Flow == nil):
		j.breach("G65", ref, ch.key, "run %s gets data, but does not begin", ref.id)
	case !ch.create && (run == nil || run.ended == nil):
		j.breach("G65", ref, ch.key, "the data of run %s is written again", ref.id)
	case !ch.create && j.data[ref] != nil && !sameJSON(j.data[ref].Plan, ch.data.Plan):
		j.breach("G65", ref, ch.key, "the plan of run %s has changed", ref.id)
	}
}

// isDead reports whether a run is among the dead runs after the revision.
func (j *flowJudge) isDead(d *delta, ref runRef) bool {
	if ch := d.dead[ref]; ch != nil {
		return ch.state != ""
	}
	return j.cluster.taskOf(ref.ref).dead[ref.id] != 0
}

// isTaskDeleted reports whether the task of a run exists no more after the revision, or is another one.
func (j *flowJudge) isTaskDeleted(d *delta, ref runRef) bool {
	t := j.cluster.taskOf(ref.ref)
	if after := d.entries[ref.ref]; after != nil {
		return after.deleted
	}
	return t.entry == nil || t.runs[ref.id] != nil && t.runs[ref.id].incarnation.uid != t.entry.UID
}

// dataAfter returns the data of a run after the revision, or nil.
func (j *flowJudge) dataAfter(d *delta, ref runRef) *task.RunData {
	if ch := d.runData[ref]; ch != nil {
		return ch.data
	}
	return j.data[ref]
}

// sameJSON compares two values by their JSON.
func sameJSON(a, b any) bool {
	x, err := json.Marshal(a)
	if err != nil {
		return false
	}
	y, err := json.Marshal(b)

	return err == nil && string(x) == string(y)
}

// checkFreezes judges for how long a run was frozen: no time counts twice, and none that is part of a pause.
func (j *flowJudge) checkFreezes(d *delta, ch *runChange, was, now *task.Flow) {
	if was.FrozenMS == now.FrozenMS && was.FrozenUntil.Equal(now.FrozenUntil.Time) {
		return
	}

	run := j.runOf(ch.runRef)
	from := ch.queued.DispatchedAt
	if was.FrozenUntil.After(from.Time) {
		from = was.FrozenUntil
	}
	added := now.FrozenMS - was.FrozenMS
	if added < 0 || now.FrozenUntil.Before(was.FrozenUntil.Time) || added > max(0, now.FrozenUntil.Sub(from.Time).Milliseconds()) || added > 0 && run.wasPaused {
		j.breach("G65", ch.runRef, ch.queueKey, "run %s: it was frozen for %d ms until %s, and now for %d ms until %s", ch.id, was.FrozenMS, was.FrozenUntil, now.FrozenMS, now.FrozenUntil)
	}

	// Users change this only together with a pause.
	if run.wasPaused == run.paused {
		j.fences.requireCommit(d, ch.ref, 0, ch.queueKey, "the time that a run was frozen")
	}
}

// checkProgress judges a change of the record of a run: which steps begin, and why the run ends early.
func (j *flowJudge) checkProgress(d *delta, ch *runChange, r *runHistory) {
	was, now := r.was, r.fan
	run := j.runOf(ch.runRef)
	run.wasPaused, run.paused = run.paused, !ch.queued.PausedAt.IsZero()
	wrong := func(format string, args ...any) {
		j.breach("G65", ch.runRef, ch.queueKey, "run %s: "+format, append([]any{ch.id}, args...)...)
	}

	switch {
	case len(was.Flow.Steps) != len(now.Flow.Steps) || was.Flow.Retries != now.Flow.Retries || was.Flow.OnFailure != now.Flow.OnFailure || was.Flow.Generation != now.Flow.Generation:
		wrong("its plan has changed")
		return
	case was.Flow.Forced && !now.Flow.Forced || now.Flow.Forced && now.Cancel == "":
		wrong("it is cancelled with force, but not any more, or not at all")
	}

	j.checkFreezes(d, ch, was.Flow, now.Flow)

	var begun []*task.FlowStep
	for i := range now.Flow.Steps {
		before, after := was.Flow.Steps[i], now.Flow.Steps[i]
		begins, fails := !before.IsOpened() && after.IsOpened(), before.Reason == "" && after.Reason != ""

		// Beginning changes only these fields.
		fixed := before
		if begins {
			fixed.OpenedAt, fixed.First, fixed.Count = after.OpenedAt, after.First, after.Count
		}
		if fails {
			fixed.Reason, fixed.Message = after.Reason, after.Message
		}
		if !reflect.DeepEqual(fixed, after) {
			wrong("step %s has changed", after.Name)
			continue
		}

		if begins || fails {
			j.fences.requireCommit(d, ch.ref, 0, ch.queueKey, "a step that begins")
			j.checkOpening(d, ch, r, i)
		}
		if begins {
			begun = append(begun, &now.Flow.Steps[i])
		}
	}

	// Several steps can begin in one commit, in any order: a step with an empty map ends at once, and others follow it.
	slices.SortStableFunc(begun, func(a, b *task.FlowStep) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Count, b.Count))
	})
	next := was.Count
	for _, s := range begun {
		if next != s.First {
			wrong("step %s begins with part %d; the next one is %d", s.Name, s.First, next)
		}
		next += s.Count
	}

	if now.Count != next {
		wrong("it has %d parts; its steps have %d", now.Count, next)
	}
}

// cancelBefore returns why a run was ending before the revision.
func cancelBefore(r *runHistory, revision int64) string {
	if was := r.fanBefore(revision); was != nil {
		return was.Cancel
	}
	return ""
}

// seenBy returns the revision up to which the owner of a shard has seen it when it made the commit of this revision, or 0.
func seenBy(d *delta, shard int) int64 {
	if mark := d.watermarks[shard]; mark != nil && !mark.deleted && !mark.unreadable {
		return mark.watermark.Seen
	}
	return 0
}

// checkOpening judges a step that begins, or that fails because it cannot begin.
func (j *flowJudge) checkOpening(d *delta, ch *runChange, r *runHistory, i int) {
	s, cancel := r.fan.Flow.Steps[i], cancelBefore(r, j.cluster.revision)
	wrong := func(format string, args ...any) {
		j.breach("G65", ch.runRef, ch.queueKey, "step %s of run %s "+format, append([]any{s.Name, ch.id}, args...)...)
	}

	// The state of the run just before: without what this revision does to the step.
	fan, flow := *r.fan, *r.fan.Flow
	fan.Flow, flow.Steps, flow.Forced = &flow, slices.Clone(flow.Steps), r.was.Flow.Forced
	flow.Steps[i].OpenedAt, flow.Steps[i].Reason = task.Time{}, ""

	// What the step needs is judged by all ends, because no end changes, and what keeps it from beginning by those that the owner had seen.
	switch beginning := j.viewOf(ch.runRef, &fan, cancel).beginning(i); beginning {
	case stepWaits:
		wrong("begins before a step that it needs has ended")
	case stepIdle:
		wrong("begins, but the steps that it needs did not do what its when requires: %q", s.When)
	}
	if why := j.viewUpTo(ch.runRef, r.was, cancel, seenBy(d, ch.ref.Shard)).barred(i); why != "" {
		wrong("begins, but %s", why)
	}
	if j.runOf(ch.runRef).wasPaused && cancel == "" {
		j.breach("G53", ch.runRef, ch.queueKey, "step %s of run %s begins, but the run is paused", s.Name, ch.id)
	}
	if s.IsKept {
		wrong("begins, but it was kept of the run that this one retries")
	}

	run := j.runOf(ch.runRef)
	if run.plan == nil {
		return
	}
	p, results := run.plan.Workflow.Steps[s.Name], j.resultsOf(ch.runRef, r.fan)
	items, known := itemsOf(p.Map, results)

	switch {
	case s.Reason != "" && p.Map == "":
		if _, ok := valuesOf(s.Name, p, 0, results); ok && s.Reason == task.ReasonValues {
			wrong("fails because of its values, which exist")
		}
	case s.Reason == task.ReasonValues && exceedsPartLimit(r, i, len(items)):
	case s.Reason != "" && known && s.Reason == task.ReasonValues && (len(items) == 0 || j.hasValues(s.Name, p, results)):
		wrong("fails because of its items, which exist")
	case s.Reason != "":
	case p.Map == "" && s.Count != 1:
		wrong("has %d parts", s.Count)
	case p.Map != "" && !known:
		wrong("begins, but its map has no items")
	case p.Map != "" && s.Items == nil && s.Count != len(items) || s.Items != nil && s.Count != len(s.Items):
		wrong("has %d parts; its map has %d items, and it repeats %v", s.Count, len(items), s.Items)
	}
}

// exceedsPartLimit reports whether the run has no room for the items of a step. Each other step that had not begun before this revision
// needs at least one part.
func exceedsPartLimit(r *runHistory, step, items int) bool {
	if s := &r.fan.Flow.Steps[step]; s.Items != nil {
		items = len(s.Items)
	}

	others := 0
	for i := range r.was.Flow.Steps {
		if s := &r.was.Flow.Steps[i]; i != step && !s.IsOpened() && !s.IsKept && s.Reason == "" {
			others++
		}
	}

	return r.fan.Count+items+others > task.MaxFlowParts
}

// hasValues reports whether all values to which an item of a step refers exist.
func (j *flowJudge) hasValues(name string, p task.Step, results func(string) map[string]string) bool {
	_, ok := valuesOf(name, p, 0, results)
	return ok
}

// flowOfPart returns the run of a workflow to which a part belongs, with the step, or nil.
func (j *flowJudge) flowOfPart(ref record.Ref, id string) (parent *runHistory, part int, s *task.FlowStep) {
	parent, part = j.cluster.parentOf(ref, id)
	if parent == nil || parent.fan == nil || parent.fan.Flow == nil {
		return nil, 0, nil
	}

	return parent, part, parent.fan.Flow.StepOf(part)
}

// checkPart judges the changes of a part of a workflow: its attempts, and the requests to end it.
func (j *flowJudge) checkPart(d *delta, ch *runChange, r *runHistory) {
	parent, part, s := j.flowOfPart(ch.ref, ch.id)
	if parent == nil || j.cluster.isOrphaned(d, ch.ref, r) {
		return
	}

	rec, key := ch.recordedRun()
	if rec == nil {
		return
	}
	if s == nil || rec.Step != s.Name || s.IsMap != (rec.Item != nil) || s.IsMap && *rec.Item != s.ItemOf(part) {
		j.breach("G65", ch.runRef, key, "part %s does not name its step and item", ch.id)
		return
	}

	for _, put := range ch.puts {
		if put.create == put.mod {
			j.checkAttempt(d, ch, parent, part, s, put)
			continue
		}

		// A commit is the owner's. A user may end a part of cleanup by itself.
		if put.CancelRequested && put.mod == j.cluster.revision && d.watermarks[ch.ref.Shard] != nil && isProtected(parent, s) {
			j.breach("G66", ch.runRef, put.key, "part %s of cleanup is asked to end, but its run was not cancelled with force", ch.id)
		}
	}

	if ch.ended != nil && ch.ended.State == task.Cancelled && d.watermarks[ch.ref.Shard] != nil && isProtected(parent, s) && len(ch.removedFrom) == 0 {
		j.breach("G66", ch.runRef, key, "part %s of cleanup is ended, but its run was not cancelled with force", ch.id)
	}
}

// isProtected reports whether the owner must not end parts of a step.
func isProtected(parent *runHistory, s *task.FlowStep) bool {
	return s.When == task.WhenAlways && !(parent.fan.Cancel != "" && parent.fan.Flow.Forced)
}

// checkAttempt judges a new attempt of a part: it may begin, and has the action and the values of its step.
func (j *flowJudge) checkAttempt(d *delta, ch *runChange, parent *runHistory, part int, s *task.FlowStep, put inboxPut) {
	ref, revision := runRef{ch.ref, parent.id}, j.cluster.revision
	wrong := func(format string, args ...any) {
		j.breach("G65", ref, put.key, "part %s (step %s) "+format, append([]any{ch.id, s.Name}, args...)...)
	}

	was, cancel := parent.fanBefore(revision), cancelBefore(parent, revision)
	if was == nil {
		wrong("is dispatched before its run has begun")
		return
	}

	isPaused := j.runOf(ref).paused
	if parent.changed == revision {
		isPaused = j.runOf(ref).wasPaused
	}
	if isPaused && cancel == "" {
		j.breach("G53", ref, put.key, "part %s (step %s) is dispatched, but its run is paused", ch.id, s.Name)
	}

	first := len(j.cluster.taskOf(ch.ref).runs[ch.id].tokens) == 1
	view := j.viewUpTo(ref, was, cancel, seenBy(d, ch.ref.Shard))

	switch {
	case parent.ended:
		wrong("is dispatched, but its run has ended")
	case cancel != "" && (was.Flow.Forced || s.When != task.WhenAlways):
		wrong("is dispatched, but its run is ending: %s", cancel)
	case first && s.IsOpened() && was.Flow.StepOf(part) != nil:
		if why := view.barred(stepNumber(was.Flow, s.Name)); why != "" && !j.viewOf(ref, was, "").hasFailed(stepNumber(was.Flow, s.Name)) {
			wrong("is dispatched, but %s", why)
		}
	}

	if s.IsMap {
		_, _, _, active := j.viewOf(ref, parent.fan, "").countParts(stepNumber(parent.fan.Flow, s.Name))
		if active > s.MaxParallel {
			wrong("is dispatched, so that %d items are active; at most %d are allowed", active, s.MaxParallel)
		}
	}

	plan := j.runOf(ref).plan
	if plan == nil {
		return
	}

	p := plan.Workflow.Steps[s.Name]
	values, ok := valuesOf(s.Name, p, s.ItemOf(part), j.resultsOf(ref, parent.fan))
	switch {
	case !sameJSON(p.Action(), put.Action):
		wrong("does not do what the plan of its run says")
	case put.Timeout != p.Timeout && !(p.HTTP != nil && p.Timeout == 0):
		wrong("has the timeout %s; the plan of its run says %s", put.Timeout, p.Timeout)
	case !ok:
		wrong("is dispatched without a value to which it refers")
	case len(values) != len(put.Values) && !(len(values) == 0 && len(put.Values) == 0) || !maps.Equal(values, put.Values):
		wrong("gets the values %v; the steps before it have reported %v", put.Values, values)
	}
}

// stepNumber returns the number of a step, or -1.
func stepNumber(f *task.Flow, name string) int {
	return slices.IndexFunc(f.Steps, func(s task.FlowStep) bool { return s.Name == name })
}
