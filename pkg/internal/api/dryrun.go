package api

import (
	"net/http"
	"slices"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	dryRunAbout = "With dry_run=true everything is checked, nothing is written, and the answer tells in dry_run what would change."

	defaultTicks = 10
	maxTicks     = 2 * mostTicks // of before and after
)

// readDryRun reads whether the request is a dry run, and how many ticks it is to
// list. Routes that cannot do without writing do not have the parameters.
func (c *call) readDryRun() (err error) {
	if c.dry, err = c.bool(dryRunParam.name); err == nil {
		c.ticks, err = c.int(ticksParam.name, defaultTicks, 0, maxTicks)
	}
	if err == nil && !c.dry && c.query.Has(ticksParam.name) {
		err = task.Invalid(task.CodeBadValue, ticksParam.name, "is for %s=true", dryRunParam.name)
	}
	return err
}

// unborn is a new task as it would be: nobody knows its uid, which is made when it
// is written.
func unborn(st store.Stored) store.Stored {
	st.Task.UID, st.Entry.UID = "", ""
	st.EntryMod = 1 // there would be one
	return st
}

// over is a task as it would be, at the revision of the one that it changes.
func over(old, st store.Stored) store.Stored {
	st.Task.Revision, st.EntryMod = old.Task.Revision, max(old.EntryMod, 1)
	return st
}

// would is the change that makes of old, nil if nothing is there, what st is.
func (c *call) would(old *store.Stored, st store.Stored, result string) *client.Change {
	ch := &client.Change{Result: result, Fields: []client.FieldChange{}}
	if result == client.Unchanged {
		return ch
	}
	now := c.s.now()
	var before *task.Entry
	is := shownAs(st.Task.Spec, &st.Entry, now.Time)
	if old == nil {
		ch.Fields = stated(is)
	} else {
		was := settled(old.Task.Spec, now.Time)
		if before = entryIn(old); before != nil {
			was = shownAs(was, before, now.Time)
		}
		ch.Fields = task.Compare(was, is)
	}
	if c.ticks > 0 {
		ch.Ticks = compareTicks(before, &st.Entry, now, c.ticks)
	}
	return ch
}

// entryIn is the entry of a task that was read; nil if there is none that can be.
func entryIn(st *store.Stored) *task.Entry {
	if st.EntryMod == 0 || st.Entry.UID == "" {
		return nil
	}
	return &st.Entry
}

// stated is what a spec says that is not the default, beside its name.
func stated(s task.Spec) []client.FieldChange {
	std := task.Defaults()
	std.Name, std.Namespace = s.Name, s.Namespace
	list := slices.DeleteFunc(task.Compare(std, s), func(c task.FieldChange) bool { return c.Field == "action" }) // none, which no task has
	for i := range list {
		list[i].From = nil // it was not there
	}
	return list
}

// wouldDelete answers a dry run of a delete.
func (c *call) wouldDelete(ref store.Ref) (answer, error) {
	st, err := c.s.Store.Task(c.ctx(), ref)
	if entryBroken(st, err) {
		st.EntryMod, err = 0, nil
	}
	if err != nil {
		return answer{}, err
	}
	if err := c.matches(ref, st.Task.Revision); err != nil {
		return answer{}, err
	}
	c.change = &client.Change{Result: client.Deleted, Fields: []client.FieldChange{}}
	if c.ticks > 0 {
		c.change.Ticks = compareTicks(entryIn(&st), nil, c.s.now(), c.ticks)
	}
	return c.answerTask(http.StatusOK, st, client.Deleted)
}
