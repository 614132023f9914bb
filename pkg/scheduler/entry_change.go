package scheduler

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A change is what a plan does with one task.
type change struct {
	task    *taskstate.Task
	started bool         // a run of it is dispatched or dropped: its queue is left alone until the next plan
	entry   *entryChange // nil: the entry stays
}

// entryChange is what an owner changes in an entry: the fields as the plan will leave them.
type entryChange struct {
	from, anchor int64
	paused       bool
	own          task.Own
}

// taskChanges are the tasks that a plan touches, and what it does with each of them.
type taskChanges struct{ changes []change }

// changeFor returns the change of a task, or nil if there is none. A task has the place of its
// change. It may be that of a former plan, so it counts only if the change there is the task's.
func (l *taskChanges) changeFor(t *taskstate.Task) *change {
	i := int(t.Change)
	if i < len(l.changes) && l.changes[i].task == t {
		return &l.changes[i]
	}

	return nil
}

// changeOf returns the change of a task, made if need be. It is valid until the next is made.
func (l *taskChanges) changeOf(t *taskstate.Task) *change {
	if c := l.changeFor(t); c != nil {
		return c
	}

	t.Change = int32(len(l.changes))
	l.changes = append(l.changes, change{task: t})

	return &l.changes[t.Change]
}

// isStarting reports whether a run of a task is dispatched or dropped.
func (l *taskChanges) isStarting(t *taskstate.Task) bool {
	c := l.changeFor(t)
	return c != nil && c.started
}

// changesEntry reports whether the entry of a task is written.
func (l *taskChanges) changesEntry(t *taskstate.Task) bool {
	c := l.changeFor(t)
	return c != nil && c.entry != nil
}

// changeEntry has the plan write a task's entry as modify leaves it: once, however often it is
// changed. The caller has made room for it.
func (p *plan) changeEntry(t *taskstate.Task, modify func(*entryChange)) {
	c := p.changeOf(t)
	again := c.entry != nil

	if !again {
		c.entry = &entryChange{from: t.From, anchor: t.Anchor, paused: t.Paused}
		if t.Past != nil {
			c.entry.own = t.Past.Own
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

// ownFields is what has happened to a task, as the plan will leave it.
func (l *taskChanges) ownFields(t *taskstate.Task) task.Own {
	if c := l.changeFor(t); c != nil && c.entry != nil {
		return c.entry.own
	}

	return t.Own()
}

// apply takes into memory an entry change that was written at revision rev.
func (c *entryChange) apply(t *taskstate.Task, rev int64) {
	t.From, t.Anchor, t.Paused, t.Mod = c.from, c.anchor, c.paused, rev
	t.SetOwn(&c.own)
}

// countRun counts a tick that became a run, of a task that may have only so many (max_runs).
func (p *plan) countRun(t *taskstate.Task, tick int64) {
	if t.Policy.MaxRuns == 0 {
		return
	}

	p.changeEntry(t, func(c *entryChange) {
		c.own.Runs++
		c.from = max(c.from, tick)
	})
}

// usesRunBudget reports whether the plan's runs of a task are the last that it may have.
func (l *taskChanges) usesRunBudget(t *taskstate.Task) bool {
	return t.Policy.MaxRuns > 0 && l.ownFields(t).Runs >= t.Policy.MaxRuns
}
