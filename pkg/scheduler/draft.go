package scheduler

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// draft is what an owner changes in an entry, as a plan will leave it.
type draft struct {
	from, anchor int64
	paused       bool
	own          task.Own
}

// change has the plan write a task's entry, changed by f: once, however often it
// is changed. The caller has made room for it.
func (p *plan) change(t *taskState, f func(*draft)) {
	d := p.drafts[t]
	again := d != nil
	if !again {
		d = &draft{from: t.from, anchor: t.anchor, paused: t.paused}
		if t.past != nil {
			d.own = t.past.own
			d.own.Pauses = slices.Clone(d.own.Pauses)
		}
		if p.drafts == nil {
			p.drafts = map[*taskState]*draft{}
		}
		p.drafts[t] = d
	}
	f(d)
	e := t.entry()
	e.From, e.Anchor, e.Paused, e.Own = task.At(instant(d.from)), task.At(instant(d.anchor)), d.paused, store.EncodeOwn(&d.own)
	if again {
		p.commit.ChangeEntry(t.fullName(), e)
	} else {
		p.commit.PutEntry(t.fullName(), e, t.mod)
	}
}

// own is what has happened to a task, as the plan will leave it.
func (p *plan) own(t *taskState) task.Own {
	if d := p.drafts[t]; d != nil {
		return d.own
	}
	return t.own()
}

// keep takes a draft into memory that was written at revision rev.
func (d *draft) keep(t *taskState, rev int64) {
	t.from, t.anchor, t.paused, t.mod = d.from, d.anchor, d.paused, rev
	t.setOwn(&d.own)
}

// ran counts a tick that became a run, of a task that may have so many.
func (p *plan) ran(t *taskState, tick int64) {
	if t.how.maxRuns == 0 {
		return
	}
	p.change(t, func(d *draft) { d.own.Runs, d.from = d.own.Runs+1, max(d.from, tick) })
}

// spends reports whether the plan's runs of a task are the last that it may have.
func (p *plan) spends(t *taskState) bool {
	return t.how.maxRuns > 0 && p.own(t).Runs >= t.how.maxRuns
}
