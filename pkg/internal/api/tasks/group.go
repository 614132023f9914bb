package tasks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// group is some lines of a batch, which are written together.
type group struct {
	text  []byte // of all lines
	items []*item
	out   []byte // the answer

	behind  []*group      // those that must be done before it is written
	checked chan struct{} // closed when each item has a ref or an error
	claimed chan struct{} // closed when behind is known
	done    chan struct{} // closed when out is there
}

func newGroup() *group {
	return &group{
		items:   make([]*item, 0, groupLines),
		checked: make(chan struct{}), claimed: make(chan struct{}), done: make(chan struct{}),
	}
}

// item is one line.
type item struct {
	number   int
	from, to int // in the group's text
	spec     task.Spec
	ref      record.Ref

	found  *store.Found // what is there, as far as is known; nil: nothing
	st     store.Stored // what is to be, or is there now
	result string       // "": not settled yet
	err    error
	change *client.Change // what a dry run found
}

func (g *group) add(number int, line []byte, err error) {
	from := len(g.text)
	g.text = append(g.text, line...)
	it := &item{number: number, from: from, to: len(g.text)}

	if err != nil {
		it.fail(err)
	}

	g.items = append(g.items, it)
}

func (it *item) fail(err error) { it.result, it.err = client.Failed, err }

func (it *item) settle(st store.Stored, result string) { it.st, it.result = st, result }

// work sees a group through.
func (b *batch) work(ctx context.Context, g *group) {
	defer close(g.done)

	b.guard(g, func() { b.check(g) })
	close(g.checked)
	<-g.claimed

	for _, before := range g.behind {
		<-before.done
	}

	g.behind = nil
	ctx, cancel := context.WithTimeout(ctx, httpapi.RequestTimeout)
	defer cancel()

	b.guard(g, func() {
		b.checkToken(ctx, g)
		b.write(ctx, g)
	})

	b.unclaim(g)
	b.guard(g, func() { b.render(ctx, g) })
}

// guard keeps a panic in a goroutine of ours from taking the node down.
func (b *batch) guard(g *group, f func()) {
	defer func() {
		if p := recover(); p != nil {
			b.Log.Error("panic while serving a request", zap.String("path", b.c.Request.URL.Path), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))

			for _, it := range g.items {
				if it.result == "" {
					it.fail(httpapi.Fail(http.StatusInternalServerError, client.CodeInternal, "the server failed; its log says more"))
				}
			}
		}
	}()

	f()
}

// check decodes and validates the lines, as a request of one task is.
func (b *batch) check(g *group) {
	for _, it := range g.items {
		if it.result != "" {
			continue
		}

		var err error
		if it.spec, err = task.DecodeSpec(g.text[it.from:it.to]); err == nil {
			err = b.Handlers.check(&it.spec)
		}

		if err != nil {
			it.fail(err)
			continue
		}

		it.ref = b.Ref(it.spec.Namespace, it.spec.Name)
	}

	g.text = nil
}

// write settles all items. Of those with the same name, one comes after the other.
func (b *batch) write(ctx context.Context, g *group) {
	left := g.items
	for len(left) > 0 {
		var now, later []*item
		names := make(map[record.Ref]bool, len(left))
		for _, it := range left {
			switch {
			case it.result != "":
			case names[it.ref]:
				later = append(later, it)
			default:
				names[it.ref] = true
				now = append(now, it)
			}
		}

		b.together(ctx, now)
		left = later
	}
}

// togethers is how often tasks are written in one transaction: the first time
// shows what is there. After that somebody else is at work on one of them, and
// each goes alone.
const togethers = 3

// together settles items of different names.
func (b *batch) together(ctx context.Context, items []*item) {
	if b.query.DryRun {
		b.pretend(ctx, items)
		return
	}

	if b.there.Load() && len(items) > 0 {
		b.look(ctx, items)
	}

	for range togethers {
		var changes []store.Change
		if items, changes = b.decide(items); len(items) == 0 {
			return
		}

		conflict := false
		for rest := items; len(rest) > 0; {
			n := store.Fitting(changes)
			conflict = b.commit(ctx, rest[:n], changes[:n]) || conflict
			rest, changes = rest[n:], changes[n:]
		}

		if !conflict {
			return
		}

		b.there.Store(true)
	}

	b.alone(ctx, items)
}

// pretend settles items of different names as a write would, and writes nothing.
func (b *batch) pretend(ctx context.Context, items []*item) {
	if len(items) == 0 {
		return
	}

	b.look(ctx, items)
	left, _ := b.decide(items)
	for _, it := range left {
		old := it.old()
		if old == nil {
			it.settle(unborn(it.st), client.Created)
		} else {
			it.settle(over(*old, it.st), client.Configured)
		}
	}

	for _, it := range items {
		if it.err == nil {
			it.change = b.would(it.old(), it.st, it.result, b.query.Ticks)
		}
	}
}

// commit makes changes in one transaction, and settles their items; true if
// something is otherwise than was known, and nothing was done.
func (b *batch) commit(ctx context.Context, items []*item, changes []store.Change) (conflict bool) {
	rev, found, err := b.Store.ChangeTasks(ctx, changes)
	conflict = errors.Is(err, task.ErrConflict)

	for i, it := range items {
		switch {
		case err == nil:
			it.st.Task.Revision, it.st.EntryMod = rev, rev
			it.result = outcome(changes[i])
		case conflict:
			it.found = &found[i]
		default:
			it.fail(httpapi.About(it.ref.String(), err))
		}
	}

	return conflict
}

func outcome(c store.Change) string {
	if c.Old == nil {
		return client.Created
	}
	return client.Configured
}

// look reads what is there of items, and whether it is of use to read that of
// the next.
func (b *batch) look(ctx context.Context, items []*item) {
	refs := make([]record.Ref, len(items))
	for i, it := range items {
		refs[i] = it.ref
	}

	found, err := b.Store.FindTasks(ctx, refs)
	there := false
	for i, it := range items {
		if err != nil {
			it.fail(err)
			continue
		}

		it.found = &found[i]
		there = there || !errors.Is(found[i].Err, task.ErrNotFound)
	}

	b.there.Store(there)
}

// decide settles the items for which there is nothing to write, and returns the
// others with what they write.
func (b *batch) decide(items []*item) (left []*item, changes []store.Change) {
	left, changes = make([]*item, 0, len(items)), make([]store.Change, 0, len(items))
	for _, it := range items {
		if it.result != "" {
			continue
		}

		if err := b.become(it); err != nil {
			it.fail(httpapi.About(it.ref.String(), err))
		}

		if it.result == "" {
			left = append(left, it)
			changes = append(changes, store.Change{Old: it.old(), New: &it.st})
		}
	}

	return left, changes
}

// old is the task that is there; nil if there is none.
func (it *item) old() *store.Stored {
	if it.found == nil || errors.Is(it.found.Err, task.ErrNotFound) {
		return nil
	}
	return &it.found.Stored
}

// become says what an item makes of what is there.
func (b *batch) become(it *item) (err error) {
	if it.old() == nil {
		it.st, err = b.fresh(b.c, it.spec)
		return err
	}

	old, err := it.found.Stored, it.found.Err
	broken := entryBroken(old, err)
	switch {
	case b.query.CreateOnly:
		return fmt.Errorf("create task %s: %w", it.ref, task.ErrExists)
	case err != nil && !broken:
		return err
	}

	mend := broken || old.EntryMod == 0
	if !mend && b.nothingNew(old, it.spec, false) {
		it.settle(old, client.Unchanged)
		return nil
	}

	it.st, err = b.next(b.c, old, it.spec, as(it.spec), mend)
	it.found.MarkBy = it.st.MarkBy

	return err
}

// alone settles those that are left one by one, as requests of their own would.
func (b *batch) alone(ctx context.Context, items []*item) {
	c := *b.c
	c.Request, c.IfNoneMatch = c.Request.WithContext(ctx), b.query.CreateOnly

	for _, it := range items {
		if it.result != "" {
			continue
		}

		st, result, err := b.apply(&taskWrite{Call: &c}, it.ref, it.spec)
		if err != nil {
			it.fail(err)
			continue
		}

		it.settle(st, result)
	}
}

// render writes the answer.
func (b *batch) render(ctx context.Context, g *group) {
	var shown map[*item]*client.Task
	if b.query.Full {
		shown = b.shown(ctx, g)
	}

	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	now := b.Now.Stamp()

	var nodes []task.Node
	if b.Nodes != nil {
		nodes = b.Nodes()
	}

	for _, it := range g.items {
		r := client.BatchResult{Line: it.number, Name: httpapi.Shorten(it.spec.Name), Result: it.result}
		if r.Name != "" {
			r.Namespace = httpapi.Shorten(it.spec.Namespace)
		}

		if it.err != nil {
			f := httpapi.AsFailure(it.err)
			b.logOnce(f)
			r.Error = &f.Problem
		} else {
			r.Revision, r.Task, r.Change = it.st.Task.Revision, shown[it], it.change
			if b.Nodes != nil {
				r.WarningDetails = placementWarnings(it.st.Task.Spec, nodes)
				r.Warnings = task.WarningTexts(r.WarningDetails)
			}

			if it.st.EntryMod != 0 {
				if next, ok, _ := views.NextTick(&it.st.Entry, now.Time); ok {
					r.Next = next
				}
				_, r.Paused = views.PauseInForce(&it.st.Entry, now.Time)
			}
		}

		_ = e.Encode(r) // into memory
	}

	g.out, g.items = out.Bytes(), nil
}

// logOnce logs a failure, but of those that have a code only the first: a full
// etcd fails every line of a batch, of which there may be a million.
func (b *batch) logOnce(f *httpapi.Failure) {
	if f.Status < http.StatusInternalServerError {
		return
	}

	b.mu.Lock()
	first := !b.logged[f.Code]
	b.logged[f.Code] = true
	b.mu.Unlock()

	if first {
		b.Problems.LogFailure(b.c.Request, f)
	}
}

// shown is how the tasks of a group are shown.
func (b *batch) shown(ctx context.Context, g *group) map[*item]*client.Task {
	var created, others []*item
	for _, it := range g.items {
		switch {
		case it.err != nil:
		case it.result == client.Created:
			created = append(created, it)
		default:
			others = append(others, it)
		}
	}

	shown := make(map[*item]*client.Task, len(created)+len(others))
	add := func(items []*item, list []client.Task, err error) {
		for i, it := range items {
			v := client.Task{Task: views.FillLists(it.st.Task)} // written it is, whatever adorns it
			if err == nil {
				v = list[i]
			}

			v.Result, v.DryRun = it.result, it.change
			shown[it] = &v
		}
	}

	if len(created) > 0 {
		stored := make([]store.Stored, len(created))
		for i, it := range created {
			stored[i] = it.st
		}

		list, err := b.Views.NewTasks(ctx, stored)
		add(created, list, err)
	}

	if len(others) > 0 {
		tasks, entries := make([]task.Task, len(others)), make([]*task.Entry, len(others))
		for i, it := range others {
			tasks[i], entries[i] = it.st.Task, &it.st.Entry
		}

		list, err := b.Views.Tasks(ctx, tasks, entries)
		add(others, list, err)
	}

	return shown
}
