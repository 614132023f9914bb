package tasks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/depgraph"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// group is a number of consecutive lines of a batch that are written together. Its own goroutine (work) changes
// it, except where a field says otherwise.
type group struct {
	text  []byte // of all lines; nil once they are decoded
	items []*item
	out   []byte // the answer of all lines as NDJSON

	behind  []*group      // earlier groups that write one of the same tasks; set by claim
	checked chan struct{} // closed when each item has a ref or an error
	claimed chan struct{} // closed when behind is complete
	done    chan struct{} // closed when out is complete
}

// newGroup returns an empty group with space for the maximum number of lines.
func newGroup() *group {
	return &group{
		text:    make([]byte, 0, groupText),
		items:   make([]*item, 0, groupLines),
		checked: make(chan struct{}), claimed: make(chan struct{}), done: make(chan struct{}),
	}
}

// item is one line of a batch, from its text to its result.
type item struct {
	number   int // of the line in the body, from 1
	from, to int // the line is text[from:to] of the group
	spec     task.Spec
	ref      record.Ref // where the task is stored; set by check

	found  *store.Found    // the stored task as last read; nil: nothing is known, and a create is tried
	st     store.Stored    // the task to be written, or as it is stored after the item is settled
	rights *httpapi.Rights // what the caller was allowed for this line; set with st
	result string          // one of the client's result words; "": not settled yet
	err    error           // why the line failed; only with the result client.Failed
	change *client.Change  // what a dry run found
	races  tickRaces       // of the writes of its group
}

// addLine appends a line. err is a problem of the line itself, such as its length; then the item is settled as
// failed.
func (g *group) addLine(number int, line []byte, err error) {
	from := len(g.text)
	g.text = append(g.text, line...)
	it := &item{number: number, from: from, to: len(g.text), races: tickRaces{grouped: true}}

	if err != nil {
		it.fail(err)
	}

	g.items = append(g.items, it)
}

// fail settles an item as failed.
func (it *item) fail(err error) { it.result, it.err = client.Failed, err }

// settle settles an item with its task and a result.
func (it *item) settle(st store.Stored, result string) { it.st, it.result = st, result }

// processGroup takes a group through all stages. It always closes checked and done, even after a panic, because the
// other stages and later groups wait for these channels.
func (b *batch) processGroup(ctx context.Context, g *group) {
	defer close(g.done)

	b.recoverPanic(g, func() { b.checkLines(g) })
	close(g.checked)
	<-g.claimed

	// Later lines win. A group that shares a task with this one must be written first.
	for _, before := range g.behind {
		<-before.done
	}

	g.behind = nil
	// The deadline counts from here, not from the arrival of the lines.
	ctx, cancel := context.WithTimeout(ctx, httpapi.RequestTimeout)
	defer cancel()

	b.recoverPanic(g, func() {
		b.checkToken(ctx, g)
		b.writeGroup(ctx, g)
	})

	b.releaseNames(g)
	b.recoverPanic(g, func() { b.renderAnswer(ctx, g) })
}

// recoverPanic runs f and recovers from a panic in it. A panic in this goroutine would end the whole node. The items
// that are not settled yet fail.
func (b *batch) recoverPanic(g *group, f func()) {
	if p := callgroup.Catch(f); p != nil {
		b.reportPanic(g, p)
	}
}

// reportPanic logs the panic of a group. The items that are not settled yet fail.
func (b *batch) reportPanic(g *group, p *callgroup.Panic) {
	b.Log.Error("panic while serving a request", zap.String("path", b.c.Request.URL.Path), zap.Any("panic", p.Value), zap.ByteString("stack", p.Stack))

	for _, it := range g.items {
		if it.result == "" {
			it.fail(httpapi.Fail(http.StatusInternalServerError, client.CodeInternal, "internal error; see the node's log"))
		}
	}
}

// checkLines decodes and validates the lines, with the same rules as a request for one task.
func (b *batch) checkLines(g *group) {
	for _, it := range g.items {
		if it.result != "" {
			continue
		}

		var err error
		if it.spec, err = task.DecodeSpec(g.text[it.from:it.to]); err == nil {
			err = b.Handlers.checkSpec(&it.spec)
		}

		if err != nil {
			it.fail(err)
			continue
		}

		it.ref = b.Ref(it.spec.Namespace, it.spec.Name)
	}

	g.text = nil
}

// writeGroup settles all items, in one or more rounds: see splitRound.
func (b *batch) writeGroup(ctx context.Context, g *group) {
	b.failCycles(g)

	for left := g.items; len(left) > 0; {
		var now []*item
		now, left = b.splitRound(left)
		b.writeTogether(ctx, now)
	}
}

// splitRound returns the items that are written together, and those that are written later. The items of one transaction must have
// different names, so lines with the same name follow in further rounds, in their order. Nor may it contain a task and a source of
// it, because a source must exist: the source comes first, in whichever order the lines are.
func (b *batch) splitRound(items []*item) (now, later []*item) {
	open := make(map[record.Ref]bool, len(items)) // to be written in this round or later
	for _, it := range items {
		if it.result == "" {
			open[it.ref] = true
		}
	}

	names := make(map[record.Ref]bool, len(items))
	split := func(waits func(*item) bool) {
		now, later = nil, nil
		clear(names)

		for _, it := range items {
			switch {
			case it.result != "":
			case names[it.ref] || waits(it):
				later = append(later, it)
				names[it.ref] = true // the lines of a task stay in their order
			default:
				names[it.ref] = true
				now = append(now, it)
			}
		}
	}

	split(func(it *item) bool {
		return slices.ContainsFunc(it.spec.After, func(s task.Source) bool { return open[b.Ref(it.ref.Namespace, s.Task)] })
	})
	// Lines that wait for each other, such as an earlier version of a task in the same file, are refused if they are wrong.
	if len(now) == 0 && len(later) > 0 {
		split(func(*item) bool { return false })
	}

	return now, later
}

// failCycles fails the items whose tasks would run after themselves. The last line of each task counts.
func (b *batch) failCycles(g *group) {
	last := map[record.Ref]*item{}
	graphs := map[string]*depgraph.Graph{} // by namespace
	for _, it := range g.items {
		if it.result == "" {
			last[it.ref] = it
		}
	}
	for ref, it := range last {
		if len(it.spec.After) == 0 {
			continue
		}
		if graphs[ref.Namespace] == nil {
			graphs[ref.Namespace] = depgraph.New()
		}
		for _, l := range depgraph.LinksOf(ref.Name, it.spec.After) {
			graphs[ref.Namespace].Add(l)
		}
	}

	for ref, it := range last {
		if graph := graphs[ref.Namespace]; graph != nil {
			if cycle := graph.Cycle(ref.Name); cycle != nil {
				it.fail(cycleError(fmt.Sprintf("after[%d]", slices.Index(it.spec.After.Names(), cycle[len(cycle)-2])), cycle))
			}
		}
	}
}

// maxGroupWrites is how often tasks are written in one transaction. The first attempt may only show which tasks
// exist. If a later one fails too, another writer is changing one of the tasks, and each task is written alone,
// so that one contested task does not delay the others.
const maxGroupWrites = 3

// writeTogether settles items of different names: it decides from what is known, commits, and repeats this with what
// a failed commit has read.
func (b *batch) writeTogether(ctx context.Context, items []*item) {
	if b.query.DryRun {
		b.simulateWrites(ctx, items)
		return
	}

	// Whether a link closes a cycle depends on the sources that the other tasks have now.
	hasSources := slices.ContainsFunc(items, func(it *item) bool { return len(it.spec.After) > 0 })
	if hasSources || b.tasksExisted.Load() && len(items) > 0 {
		b.readStored(ctx, items)
	}

	for range maxGroupWrites {
		var changes []store.Change
		if items, changes = b.decideChanges(ctx, items); len(items) == 0 {
			return
		}

		// One transaction may be too large for etcd, so the changes are written in as few transactions as fit.
		conflict := false
		for rest := items; len(rest) > 0; {
			n := store.Fitting(changes)
			rev, failed := b.commitChanges(ctx, rest[:n], changes[:n])
			conflict = conflict || failed
			followLinks(rev, changes[:n], changes[n:])
			rest, changes = rest[n:], changes[n:]
		}

		if !conflict {
			return
		}

		// A conflict means that some task exists or has changed. commit has stored what it read in the items.
		b.tasksExisted.Store(true)
	}

	b.writeOneByOne(ctx, items)
}

// followLinks has the changes of later transactions compare the key of the graph as the transaction with earlier changes has left it, at
// a revision. They were all checked together, so what that transaction added is not new to them. If it was not written (0), the links
// that it was to remove still exist. Then later changes that add links must not be written, but checked again.
func followLinks(rev int64, earlier, later []store.Change) {
	for _, c := range earlier {
		graph := rev
		switch {
		case rev > 0 && len(c.New.Links.Added) == 0, rev == 0 && len(c.New.Links.Removed) == 0:
			continue
		case rev == 0:
			graph = noRevision
		}

		for _, next := range later {
			if next.New.Ref.Namespace == c.New.Ref.Namespace && next.New.Links.GraphMod != noRevision {
				next.New.Links.GraphMod = graph
			}
		}
	}
}

// noRevision is a mod revision that no key has, so that a comparison with it fails.
const noRevision = -1

// simulateWrites settles items of different names as a write would, without writing (dry run).
func (b *batch) simulateWrites(ctx context.Context, items []*item) {
	if len(items) == 0 {
		return
	}

	b.readStored(ctx, items)
	left, _ := b.decideChanges(ctx, items)
	for _, it := range left {
		old := it.oldTask()
		if old == nil {
			it.settle(asNewTask(it.st), client.Created)
		} else {
			it.settle(asUpdatedTask(*old, it.st), client.Configured)
		}
	}

	for _, it := range items {
		if it.err == nil {
			it.change = b.wouldChange(it.oldTask(), it.st, it.result, b.query.Ticks)
		}
	}
}

// commitChanges writes changes in one transaction and settles their items. It returns the revision of the write, or true on a
// conflict: some task differs from what was known, nothing was written, and found of each item contains what is stored now. Any
// other error fails the items, also if the outcome is unknown; the caller of the API decides whether to try again.
func (b *batch) commitChanges(ctx context.Context, items []*item, changes []store.Change) (rev int64, conflict bool) {
	// The audit record and the rights are those of the lines that this transaction writes.
	rights := b.c.Rights().Part()
	for _, it := range items {
		rights.Include(it.rights)
	}

	rev, found, err := b.Store.As(rights).ChangeTasks(ctx, changes)
	conflict = errors.Is(err, task.ErrConflict)

	for i, it := range items {
		switch {
		case err == nil:
			it.st.Task.Revision, it.st.EntryMod = rev, rev
			it.result = resultOf(changes[i])
		case conflict:
			it.found = &found[i]
		default:
			it.fail(httpapi.About(it.ref.String(), err))
		}
	}

	return rev, conflict
}

// resultOf returns the result word of a change that was written.
func resultOf(c store.Change) string {
	if c.Old == nil {
		return client.Created
	}
	return client.Configured
}

// readStored reads the stored tasks of items. It also sets b.there, which decides whether the next group reads before
// its first write.
func (b *batch) readStored(ctx context.Context, items []*item) {
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

	b.tasksExisted.Store(there)
}

// decideChanges settles the items that need no write, and returns the others with their changes.
func (b *batch) decideChanges(ctx context.Context, items []*item) (left []*item, changes []store.Change) {
	wanted, linked := make([]*item, 0, len(items)), make([]*store.Stored, 0, len(items))
	for _, it := range items {
		if it.result != "" {
			continue
		}

		if err := b.computeNewTask(it); err != nil {
			it.fail(httpapi.About(it.ref.String(), err))
		}

		if it.result == "" {
			wanted, linked = append(wanted, it), append(linked, &it.st)
		}
	}

	var known func(record.Ref) bool
	if b.query.DryRun {
		known = b.wouldExist
	}

	left, changes = make([]*item, 0, len(wanted)), make([]store.Change, 0, len(wanted))
	for i, err := range b.checkAllLinks(ctx, linked, known) {
		it := wanted[i]
		if err != nil {
			it.fail(httpapi.About(it.ref.String(), err))
			continue
		}

		left = append(left, it)
		changes = append(changes, store.Change{Old: it.oldTask(), New: &it.st})
	}

	return left, changes
}

// oldTask returns the stored task, or nil if none is known to exist.
func (it *item) oldTask() *store.Stored {
	if it.found == nil || errors.Is(it.found.Err, task.ErrNotFound) {
		return nil
	}
	return &it.found.Stored
}

// computeNewTask computes the task that an item writes over what is stored. It settles the item if the stored task is
// already equal.
func (b *batch) computeNewTask(it *item) (err error) {
	it.rights = b.c.Rights().Part()

	if it.oldTask() == nil {
		if err := b.authorizeChange(it.rights, nil, &it.spec); err != nil {
			return err
		}

		if it.st, err = b.newTask(b.c, it.spec); err == nil {
			describeTask(it.rights, it.st)
		}
		return err
	}

	// What follows depends on the stored task, so the caller must be allowed to read it. The operation itself requires
	// nothing, because each line names a namespace.
	if err := it.rights.Require(access.Need{Verb: access.Read, Kind: access.Tasks, Namespace: it.spec.Namespace}); err != nil {
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

	// An entry that is missing or unreadable is rewritten, even if the spec is unchanged.
	mend := broken || old.EntryMod == 0
	if !mend && b.nothingNew(old, it.spec, false) {
		it.settle(old, client.Unchanged)
		return nil
	}

	if err := b.authorizeUpdate(it.rights, old, it.spec, false); err != nil {
		return err
	}

	it.st, err = b.nextStored(b.c, old, it.spec, replaceSpec(it.spec), mend, &it.races)
	describeTask(it.rights, it.st)
	it.found.MarkBy = it.st.MarkBy

	return err
}

// writeOneByOne settles the remaining items one by one, as separate requests would be.
func (b *batch) writeOneByOne(ctx context.Context, items []*item) {
	c := *b.c
	c.Request, c.IfNoneMatch = c.Request.WithContext(ctx), b.query.CreateOnly

	for _, it := range items {
		if it.result != "" {
			continue
		}

		c.Request = c.Request.WithContext(httpapi.WithRights(ctx, b.c.Rights().Part()))
		st, result, err := b.applySpec(&taskWrite{Call: &c}, it.ref, it.spec)
		if err != nil {
			it.fail(err)
			continue
		}

		it.settle(st, result)
	}
}

// renderAnswer encodes the results of a group as NDJSON into g.out.
func (b *batch) renderAnswer(ctx context.Context, g *group) {
	var shown map[*item]*client.Task
	if b.query.Full {
		shown = b.renderTasks(ctx, g)
	}

	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	now := b.Now.Stamp()

	var nodes []task.Node
	known := b.c.Rights().View()
	if b.Nodes != nil {
		nodes = known.LimitNodes(b.Nodes())
	}

	stored := make([]store.Stored, len(g.items))
	for i, it := range g.items {
		if it.err == nil {
			stored[i] = it.st
		}
	}
	warnings := b.alertWarnings(ctx, stored)

	for i, it := range g.items {
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
				r.WarningDetails = views.WriteWarnings(known.Namespace(it.ref.Namespace), it.st.Task.Spec, nodes)
			}
			if r.WarningDetails = append(r.WarningDetails, warnings[i]...); r.WarningDetails != nil {
				r.Warnings = task.WarningTexts(r.WarningDetails)
			}

			if it.st.EntryMod != 0 {
				if next, ok, _ := views.NextTick(&it.st.Entry, now.Time); ok {
					r.Next = next
				}
				_, r.Paused = views.PauseInForce(&it.st.Entry, now.Time)
			}
		}

		_ = e.Encode(r) // cannot fail: out is in memory
	}

	g.out, g.items = out.Bytes(), nil
}

// logOnce logs only the first failure with each code. If etcd is full, every line of a batch fails, and a batch
// can have a million lines.
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

// renderTasks returns the views of a group's tasks, for batches that request full results. If a view cannot be
// computed, the plain task takes its place, because the task has been written.
func (b *batch) renderTasks(ctx context.Context, g *group) map[*item]*client.Task {
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
			v := client.Task{Task: views.FillLists(it.st.Task)} // the task is written, even if its details cannot be read
			if err == nil {
				v = list[i]
			}

			v.Result, v.DryRun = it.result, it.change
			shown[it] = &v
		}
	}

	// New tasks have no runs and no queue, so their views need fewer reads.
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
