package scheduler

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A change is what a plan does with one task.
type change struct {
	task    *taskState
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

// changed returns the change of a task, or nil if there is none. A task has the place of its
// change. It may be that of a former plan, so it counts only if the change there is the task's.
func (l *taskChanges) changed(t *taskState) *change {
	i := int(t.change)
	if i < len(l.changes) && l.changes[i].task == t {
		return &l.changes[i]
	}

	return nil
}

// changeOf returns the change of a task, made if need be. It is valid until the next is made.
func (l *taskChanges) changeOf(t *taskState) *change {
	if c := l.changed(t); c != nil {
		return c
	}

	t.change = int32(len(l.changes))
	l.changes = append(l.changes, change{task: t})

	return &l.changes[t.change]
}

// starts reports whether a run of a task is dispatched or dropped.
func (l *taskChanges) starts(t *taskState) bool {
	c := l.changed(t)
	return c != nil && c.started
}

// changesEntry reports whether the entry of a task is written.
func (l *taskChanges) changesEntry(t *taskState) bool {
	c := l.changed(t)
	return c != nil && c.entry != nil
}

// changeEntry has the plan write a task's entry as modify leaves it: once, however often it is
// changed. The caller has made room for it.
func (p *plan) changeEntry(t *taskState, modify func(*entryChange)) {
	c := p.changeOf(t)
	again := c.entry != nil

	if !again {
		c.entry = &entryChange{from: t.from, anchor: t.anchor, paused: t.paused}
		if t.past != nil {
			c.entry.own = t.past.own
			c.entry.own.Pauses = slices.Clone(c.entry.own.Pauses)
		}
	}
	modify(c.entry)

	e := t.entry()
	e.From, e.Anchor = task.At(instant(c.entry.from)), task.At(instant(c.entry.anchor))
	e.Paused, e.Own = c.entry.paused, record.EncodeOwn(&c.entry.own)

	if again {
		p.commit.ChangeEntry(t.fullName(), e)
	} else {
		p.commit.PutEntry(t.fullName(), e, t.mod)
	}
}

// own is what has happened to a task, as the plan will leave it.
func (l *taskChanges) own(t *taskState) task.Own {
	if c := l.changed(t); c != nil && c.entry != nil {
		return c.entry.own
	}

	return t.own()
}

// apply takes into memory an entry change that was written at revision rev.
func (c *entryChange) apply(t *taskState, rev int64) {
	t.from, t.anchor, t.paused, t.mod = c.from, c.anchor, c.paused, rev
	t.setOwn(&c.own)
}

// ran counts a tick that became a run, of a task that may have only so many (max_runs).
func (p *plan) ran(t *taskState, tick int64) {
	if t.how.MaxRuns == 0 {
		return
	}

	p.changeEntry(t, func(c *entryChange) {
		c.own.Runs++
		c.from = max(c.from, tick)
	})
}

// spends reports whether the plan's runs of a task are the last that it may have.
func (l *taskChanges) spends(t *taskState) bool {
	return t.how.MaxRuns > 0 && l.own(t).Runs >= t.how.MaxRuns
}
