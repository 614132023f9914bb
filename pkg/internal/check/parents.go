package check

import (
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// A run with parts is in the queue while it is under way; its parts are runs of their
// own in inboxes, and when they have ended, below parts/. The promises about runs of a
// task (G3, G4, G8, G24) are about the parent; those about attempts (G2, G9, G10, G11,
// G12) about its parts. Besides: a part is given out once, as one that its parent has
// left; the parent ends when all of them have, as they did, and by its rule.

// parenthood is what a parent's record says, and said before the present revision.
type parenthood struct {
	fan, was *task.Fan // nil: it has no parts yet
	changed  int64     // revision
}

// underWay reports whether the run has parts, and has not ended.
func (r *run) underWay() bool { return r.fan != nil && !r.ended }

// isPart reports whether the run is a part.
func (r *run) isPart() bool { return r.trigger == task.TriggerPart }

// fanBefore is the fan as it was before a revision.
func (p *parenthood) fanBefore(revision int64) *task.Fan {
	if p.changed == revision {
		return p.was
	}
	return p.fan
}

// parentOf is the run that a part belongs to; nil if there is none.
func (c *checker) parentOf(ref store.Ref, part string) (parent *run, index int) {
	id, index, _ := task.ParentOf(part)
	return c.task(ref).runs[id], index
}

// judgeParent judges a record of a run that has its parts.
func (c *checker) judgeParent(d *delta, ch *runChange, r *run) {
	f, was := ch.queued.Fan, r.fan
	r.parenthood = parenthood{fan: f, was: was, changed: c.revision}
	switch {
	case was == nil:
		c.judgeFanOut(d, ch, r, f)
		return
	case was.Count != f.Count || was.Need != f.Need || was.Kept != f.Kept || !slices.Equal(was.Nodes, f.Nodes) || !slices.Equal(was.Only, f.Only):
		c.breachOf("G24", ch.ref, r.tick, ch.queueKey, "the parts of run %s are others than they were", ch.id)
	case was.Cancel != "" && f.Cancel != was.Cancel:
		c.breachOf("state", ch.ref, r.tick, ch.queueKey, "a cancel of run %s was overwritten", ch.id)
	}
	if e := c.task(ch.ref).entry; was.Cancel == "" && f.Cancel == task.ReasonReplaced && e != nil && e.line == r.line && e.Overlap != task.OverlapReplace {
		c.breachOf("G24", ch.ref, r.tick, ch.queueKey, "run %s is replaced, and overlap is %q", ch.id, e.Overlap)
	}
	same := *f
	same.Cancel = was.Cancel
	if encodedFan(same) != encodedFan(*was) || f.Cancel == task.ReasonReplaced && was.Cancel == "" {
		c.needCommit(d, ch.ref, r.tick, ch.queueKey, "a run with parts")
	}
	for _, i := range f.Left {
		if !slices.Contains(was.Left, i) {
			c.breachOf("G9", ch.ref, r.tick, ch.queueKey, "part %d of run %s is to be given out again", i, ch.id)
		}
	}
	for _, i := range was.Left {
		if slices.Contains(f.Left, i) {
			continue
		}
		if p := d.runs[runRef{ch.ref, task.PartID(ch.id, i)}]; p == nil || len(p.puts) == 0 && p.ended == nil {
			c.breachOf("G4", ch.ref, r.tick, ch.queueKey, "part %d of run %s is not left any more, and nothing was done about it", i, ch.id)
		}
	}
	if ended, succeeded := c.back(ch.ref, ch.id); f.Ended > ended || f.Succeeded > succeeded {
		c.breachOf("G24", ch.ref, r.tick, ch.queueKey, "%d parts of run %s are said to have ended, %d to have succeeded; %d had, %d did", f.Ended, ch.id, f.Succeeded, ended, succeeded)
	}
}

func encodedFan(f task.Fan) string { return encoded(task.Run{Fan: &f}) }

// judgeFanOut judges that a run gets its parts.
func (c *checker) judgeFanOut(d *delta, ch *runChange, r *run, f *task.Fan) {
	c.needCommit(d, ch.ref, r.tick, ch.queueKey, "a run with parts")
	t := c.task(ch.ref)
	switch {
	case !slices.Equal(f.Left, f.Numbers()):
		c.breachOf("G4", ch.ref, r.tick, ch.queueKey, "run %s begins without some of its parts", ch.id)
	case len(f.Nodes) > 0 && len(f.Nodes) != f.Count:
		c.breachOf("G24", ch.ref, r.tick, ch.queueKey, "run %s has %d parts for %d nodes", ch.id, f.Count, len(f.Nodes))
	case !distinct(f.Nodes):
		c.breachOf("G24", ch.ref, r.tick, ch.queueKey, "run %s has several parts for one node: %s", ch.id, strings.Join(f.Nodes, ", "))
	case t.entry != nil && t.entry.line == r.line && f.Only == nil && !t.entry.Target.FansOut():
		c.breachOf("G7", ch.ref, r.tick, ch.queueKey, "run %s has parts, and its task has none", ch.id)
	case t.entry != nil && t.entry.line == r.line && f.Only == nil && t.entry.Target.Count != task.All && f.Count != max(t.entry.Target.Parts, int(t.entry.Target.Count)):
		c.breachOf("G7", ch.ref, r.tick, ch.queueKey, "run %s has %d parts; its task has %d, or one on each of %d nodes", ch.id, f.Count, t.entry.Target.Parts, t.entry.Target.Count)
	}
	if z := c.freezes.Of(ch.ref.Namespace); z != nil && !c.freezes.bad {
		c.breachOf("G21", ch.ref, r.tick, ch.queueKey, "run %s gets its parts, and %s has been frozen since %s", ch.id, frozen(z), stamp(z.Since.Time))
	}
}

// distinct reports whether no two nodes are the same. Parts that are not repeated have none.
func distinct(nodes []string) bool {
	seen := map[string]bool{}
	for _, n := range nodes {
		if n != "" && seen[n] {
			return false
		}
		seen[n] = true
	}
	return true
}

// back counts the parts of a run that had ended before the present revision.
func (c *checker) back(ref store.Ref, parent string) (ended, succeeded int) {
	fan := c.task(ref).runs[parent].fan
	for _, i := range fan.Numbers() {
		if p := c.task(ref).runs[task.PartID(parent, i)]; p != nil && p.ended {
			ended++
			if p.state == task.Succeeded {
				succeeded++
			}
		}
	}
	return ended, succeeded
}

// judgePartBirth judges the first record of a part: its parent had it left, and in
// this revision has not any more.
func (c *checker) judgePartBirth(d *delta, ch *runChange, r *run, rec *task.Run, key string) {
	r.state = task.Queued // with its parent, until now
	c.needCommit(d, ch.ref, 0, key, "a part")
	parent, index := c.parentOf(ch.ref, ch.id)
	if c.orphaned(d, ch.ref, r) {
		return
	}
	if parent == nil || parent.fan == nil {
		c.breachOf("G3", ch.ref, 0, key, "part %s is of a run that has none", ch.id)
		return
	}
	was := parent.fanBefore(c.revision)
	switch {
	case parent.changed != c.revision || was == nil || !slices.Contains(was.Left, index) || slices.Contains(parent.fan.Left, index):
		c.breachOf("G9", ch.ref, 0, key, "part %s is given out, and its run had none left of that number, or has it still", ch.id)
	case was.Cancel != "":
		c.breachOf("state", ch.ref, 0, key, "part %s is given out, and its run is to end", ch.id)
	}
	if rec.PartCount != parent.fan.Count {
		c.breachOf("form", ch.ref, 0, key, "part %s is one of %d; its run has %d", ch.id, rec.PartCount, parent.fan.Count)
	}
}

// judgePartPlace judges a new attempt of a part.
func (c *checker) judgePartPlace(ch *runChange, put attemptPut) {
	parent, index := c.parentOf(ch.ref, ch.id)
	if parent == nil || parent.fan == nil {
		return // said at its birth
	}
	if nodes := parent.fan.Nodes; index < len(nodes) && nodes[index] != put.node {
		c.breachOf("G24", ch.ref, 0, put.key, "part %s is for node %s, and is given to %s", ch.id, nodes[index], put.node)
	}
	if was := parent.fanBefore(c.revision); parent.ended || was != nil && was.Cancel != "" {
		c.breachOf("state", ch.ref, 0, put.key, "part %s is given out, and its run is to end, or has ended", ch.id)
	}
}

// judgePartGone judges that the record of a part's end is deleted: when its run is on
// record, or gone, and not before (G12).
func (c *checker) judgePartGone(d *delta, ch *runChange, r *run) {
	parent, _ := c.parentOf(ch.ref, ch.id)
	if parent != nil && parent.underWay() && !c.orphaned(d, ch.ref, r) {
		c.breachOf("G12", ch.ref, 0, ch.partKey, "the end of part %s is deleted before its run has ended", ch.id)
	}
}

// orphaned reports whether the task of a run is gone.
func (c *checker) orphaned(d *delta, ref store.Ref, r *run) bool {
	t, after := c.task(ref), d.entries[ref]
	return t.entry == nil || t.entry.UID != r.line.uid || after != nil && after.gone
}

// judgeConclusion judges the end of a run with parts: all of them have ended, it says
// how each did, and its outcome is by its rule.
func (c *checker) judgeConclusion(d *delta, ch *runChange, r *run) {
	c.needCommit(d, ch.ref, r.tick, ch.endedKey, "the end of a run with parts")
	e, f := ch.ended, r.fan
	if e.Fan == nil {
		c.breachOf("G12", ch.ref, r.tick, ch.endedKey, "run %s ends without a word of its parts", ch.id)
		return
	}
	byIndex := map[int]task.Part{}
	for _, p := range e.Fan.Parts {
		byIndex[p.Index] = p
	}
	succeeded, cut := f.Kept, false
	for _, i := range f.Numbers() {
		said, told := byIndex[i]
		p := c.task(ch.ref).runs[task.PartID(ch.id, i)]
		left := slices.Contains(f.Left, i)
		cut = cut || left
		switch {
		case !told:
			c.breachOf("G4", ch.ref, r.tick, ch.endedKey, "run %s ends, and does not say how part %d did", ch.id, i)
		case left && (f.Cancel == "" || said.State != task.Cancelled || p != nil):
			c.breachOf("G4", ch.ref, r.tick, ch.endedKey, "run %s ends with part %d left to give out, as %s", ch.id, i, said.State)
		case left:
		case p == nil || !p.ended:
			c.breachOf("G4", ch.ref, r.tick, ch.endedKey, "run %s ends before its part %d", ch.id, i)
		case p.state != said.State || p.token != said.Token:
			c.breachOf("G12", ch.ref, r.tick, ch.endedKey, "run %s says that part %d ended as %s with token %d; it did as %s with token %d", ch.id, i, said.State, said.Token, p.state, p.token)
		default:
			cut = cut || p.state == task.Cancelled
			if p.state == task.Succeeded {
				succeeded++
			}
		}
	}
	want := task.Failed
	switch {
	case f.Cancel != "" && cut:
		want = task.Cancelled
	case succeeded >= f.Need:
		want = task.Succeeded
	}
	if e.State != want {
		c.breachOf("G24", ch.ref, r.tick, ch.endedKey, "run %s ends as %s; %d of %d parts succeeded, %d have to: that is %s", ch.id, e.State, succeeded, f.Count, f.Need, want)
	}
}
