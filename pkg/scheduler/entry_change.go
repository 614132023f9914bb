package scheduler

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A change is what a plan does with one task.
type change struct {
	task *taskstate.Task
	// started means that the plan dispatches or drops a run of the task. Its queue is then left alone until
	// the next plan, so that a commit starts at most one run of a task (G11).
	started bool
	entry   *entryChange // the new content of the entry's fields, or nil if the entry is not written
}

// entryChange holds the fields of an entry that its owner may change, with the values that the plan gives
// them.
type entryChange struct {
	from, anchor int64 // Unix milliseconds
	paused       bool
	own          task.Own // counts, pauses and the sticky node
}

// taskChanges are the tasks that a plan changes. A task holds its index in the list (Task.Change).
type taskChanges struct{ changes []change }

// changeFor returns the change of a task, or nil if there is none. Task.Change may be a leftover of an
// earlier plan, so it is valid only if the change at that index belongs to the task.
func (l *taskChanges) changeFor(t *taskstate.Task) *change {
	i := int(t.Change)
	if i < len(l.changes) && l.changes[i].task == t {
		return &l.changes[i]
	}

	return nil
}

// changeOf returns the change of a task, and adds one if there is none. The pointer is valid until another
// change is added.
func (l *taskChanges) changeOf(t *taskstate.Task) *change {
	if c := l.changeFor(t); c != nil {
		return c
	}

	t.Change = uint16(len(l.changes)) // a commit has room for fewer
	l.changes = append(l.changes, change{task: t})

	return &l.changes[t.Change]
}

// isStarting reports whether the plan dispatches or drops a run of the task.
func (l *taskChanges) isStarting(t *taskstate.Task) bool {
	c := l.changeFor(t)
	return c != nil && c.started
}

// changesEntry reports whether the plan writes the task's entry.
func (l *taskChanges) changesEntry(t *taskstate.Task) bool {
	c := l.changeFor(t)
	return c != nil && c.entry != nil
}

// changeEntry writes a task's entry with the changes that modify makes. Several calls for one task result
// in one write, with all of their changes. The commit compares the entry's mod revision (G7). The caller
// has made room for it.
func (p *plan) changeEntry(t *taskstate.Task, modify func(*entryChange)) {
	c := p.changeOf(t)
	again := c.entry != nil

	if !again {
		c.entry = &entryChange{from: t.From, anchor: t.Anchor, paused: t.Paused}
		if t.Past != nil {
			c.entry.own = t.Past.Own

			// modify may change an element, and the task's own list must stay as it is until the commit has
			// succeeded.
			c.entry.own.Pauses = slices.Clone(c.entry.own.Pauses)
		}
	}

	modify(c.entry)

	e := t.Entry()
	e.From, e.Anchor = task.At(taskstate.Instant(c.entry.from)), task.At(taskstate.Instant(c.entry.anchor))
	e.Paused, e.Own = c.entry.paused, record.EncodeOwn(&c.entry.own)

	if again {
		p.commit.ChangeEntry(t.FullName(), e)
	} else {
		p.commit.PutEntry(t.FullName(), e, t.Mod)
	}
}

// ownFields returns the task's counts, pauses and sticky node as they will be after the commit.
func (l *taskChanges) ownFields(t *taskstate.Task) task.Own {
	if c := l.changeFor(t); c != nil && c.entry != nil {
		return c.entry.own
	}

	return t.Own()
}

// applyTo copies an entry change, which was written at revision rev, to the task.
func (c *entryChange) applyTo(t *taskstate.Task, rev int64) {
	t.From, t.Anchor, t.Paused, t.Mod = c.from, c.anchor, c.paused, rev
	t.SetOwn(&c.own)
}

// countRun counts a tick that becomes a run, if the number of the task's runs is limited (max_runs). The
// count is in the commit that creates the run, so it is exact (G24). The entry's from moves to the tick as
// well.
func (p *plan) countRun(t *taskstate.Task, tick int64) {
	if t.Policy.MaxRuns == 0 {
		return
	}

	p.changeEntry(t, func(c *entryChange) {
		c.own.Runs++
		c.from = max(c.from, tick)
	})
}

// usesRunBudget reports whether the task has used all runs that max_runs allows, those of this plan
// included.
func (l *taskChanges) usesRunBudget(t *taskstate.Task) bool {
	return t.Policy.MaxRuns > 0 && l.ownFields(t).Runs >= t.Policy.MaxRuns
}
