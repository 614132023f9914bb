package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskFilter says which tasks are asked for.
type taskFilter struct {
	namespace string // "": all of them
	names     globs
	selector  task.Selector
	failing   bool
	paused    bool
}

// nameQuery are the parameters that select tasks by their labels and names.
type nameQuery struct {
	Selector selectorText `query:"selector" doc:"Labels: \"team = data, env in (prod, staging), !old\"."`
	Name     globs        `query:"name" doc:"Names or globs of tasks, separated by commas: \"web-*,db\"; with a namespace: \"prod/web-*\"."`
}

// selectorText is a selector as it is in a request.
type selectorText struct{ task.Selector }

// UnmarshalText parses a selector.
func (s *selectorText) UnmarshalText(text []byte) (err error) {
	s.Selector, err = task.ParseSelector(string(text))
	return err
}

// listQuery are the parameters of a list of tasks.
type listQuery struct {
	nameQuery
	Failing bool      `query:"failing" default:"false" doc:"Only tasks of which a run has used up its attempts, and none has succeeded since."`
	Paused  bool      `query:"paused" default:"false" doc:"Only tasks that are paused."`
	Sort    listOrder `query:"sort" enum:"name,next,last,lateness" doc:"name, next, last (the latest first) or lateness (of the last run, the latest first). Default: name."`
	Recent  int       `query:"recent" minimum:"0" maximum:"100" default:"0" doc:"How many of the last runs each task is listed with."`
	Brief   bool      `query:"brief" default:"false" doc:"Only what the users wrote: nothing of how the tasks fare."`
	PageQuery
}

// listOrder is in which order tasks are asked for; "" is by name.
type listOrder string

// UnmarshalText reads an order.
func (o *listOrder) UnmarshalText(text []byte) error {
	switch *o = listOrder(text); *o {
	case "", client.SortName, client.SortNext, client.SortLast, client.SortLateness:
		return nil
	}
	return task.Invalid(task.CodeBadValue, "", "%s is not an order; they are name, next, last and lateness", task.Quote(string(text)))
}

// taskFilter is the filter of a list of tasks: by the namespace in the path, if there is one.
func (c *call) taskFilter(q nameQuery) (f taskFilter, err error) {
	f = taskFilter{names: q.Name, selector: q.Selector.Selector}
	if c.r.PathValue("ns") != "" {
		f.namespace, err = c.namespace()
	}
	return f, err
}

// listTasks serves GET of the tasks of a namespace, or of all.
func (s *server) listTasks(c *call, q listQuery) (answer, error) {
	f, err := c.taskFilter(q.nameQuery)
	if err != nil {
		return answer{}, err
	}
	f.failing, f.paused = q.Failing, q.Paused
	p, err := c.paging(q.PageQuery)
	if err != nil {
		return answer{}, err
	}
	order := cmp.Or(string(q.Sort), client.SortName)
	var found []store.Brief
	var after string
	if order == client.SortName {
		found, after, err = s.byName(c.ctx(), f, p)
	} else {
		found, after, err = s.sorted(c.ctx(), f, order, p)
	}
	if err != nil {
		return answer{}, err
	}
	tasks, refs := make([]task.Task, len(found)), make([]store.Ref, len(found))
	for i, b := range found {
		tasks[i], refs[i] = b.Task(), s.Ref(b.Namespace, b.Name)
	}
	if q.Brief {
		views := make([]client.Task, len(tasks))
		for i, t := range tasks {
			views[i].Task = tidy(t)
		}
		return page(c, p, views, after)
	}
	entries, err := s.Store.Entries(c.ctx(), refs)
	if err != nil {
		return answer{}, err
	}
	views, err := s.viewsWith(c.ctx(), tasks, entries, q.Recent)
	if err != nil {
		return answer{}, err
	}
	return page(c, p, views, after)
}

// maxScan bounds how many tasks a page looks at in search of those that match; a
// page may hold fewer than its limit, even none, and still have a next.
const maxScan = 20_000

// byName selects a page of tasks in the order of their names.
func (s *server) byName(ctx context.Context, f taskFilter, p paging) (found []store.Brief, after string, err error) {
	next, err := s.candidates(ctx, f, p)
	if err != nil {
		return nil, "", err
	}
	for scanned, more := 0, true; more && scanned < maxScan; {
		var batch []store.Brief
		if batch, more, err = next(); err != nil {
			return nil, "", err
		}
		scanned += len(batch)
		if len(batch) > 0 {
			last := batch[len(batch)-1]
			after = last.Namespace + "/" + last.Name
		}
		some, err := s.matching(ctx, f, batch)
		if err != nil {
			return nil, "", err
		}
		for i, b := range some {
			found = append(found, b)
			if len(found) == p.limit {
				if i == len(some)-1 && !more {
					return found, "", nil
				}
				return found, b.Namespace + "/" + b.Name, nil
			}
		}
		if !more {
			return found, "", nil
		}
	}
	return found, after, nil
}

// candidates yields the specs, batch by batch and in order, among which those are
// that match, as narrowly as keys can tell; more: there are others.
func (s *server) candidates(ctx context.Context, f taskFilter, p paging) (next func() (batch []store.Brief, more bool, err error), err error) {
	const size = 1000
	refs, known, err := s.narrow(ctx, f)
	if err != nil {
		return nil, err
	}
	if !known {
		after, small := p.after, f.selector == nil && !f.paused && len(f.names) == 0
		return func() ([]store.Brief, bool, error) {
			limit := size
			if small { // all of them match
				limit = p.limit
			}
			var batch []store.Brief
			var err error
			batch, after, err = s.Store.Briefs(ctx, f.namespace, f.names.prefix(), after, limit)
			return batch, after != "", err
		}, nil
	}
	slices.SortFunc(refs, func(a, b store.Ref) int { return strings.Compare(a.String(), b.String()) })
	refs = slices.Compact(refs)
	refs = slices.DeleteFunc(refs, func(r store.Ref) bool { return r.String() <= p.after })
	return func() ([]store.Brief, bool, error) {
		n := min(len(refs), size)
		batch, err := s.Store.BriefsOf(ctx, refs[:n])
		refs = refs[n:]
		return batch, len(refs) > 0, err
	}, nil
}

// narrow finds the tasks that can match, if names or dead runs tell that; else
// false: any task can.
func (s *server) narrow(ctx context.Context, f taskFilter) (refs []store.Ref, known bool, err error) {
	if names, exact := f.names.exact(f.namespace); exact {
		for _, n := range names {
			refs = append(refs, s.Ref(n[0], n[1]))
		}
		return refs, true, nil
	}
	if !f.failing {
		return nil, false, nil
	}
	refs, err = s.Store.DeadTasks(ctx, s.Cluster.Shards, f.namespace)
	return refs, true, err
}

// matching is those of a batch that match.
func (s *server) matching(ctx context.Context, f taskFilter, batch []store.Brief) ([]store.Brief, error) {
	batch = slices.DeleteFunc(batch, func(b store.Brief) bool {
		return ctx.Err() != nil || !f.names.match(b.Namespace, b.Name) || f.selector != nil && !f.selector.Matches(b.Labels()) ||
			f.paused && !b.MayBePaused()
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if !f.paused && !f.failing {
		return batch, nil
	}
	refs := make([]store.Ref, len(batch))
	for i, b := range batch {
		refs[i] = s.Ref(b.Namespace, b.Name)
	}
	drop := make([]bool, len(batch))
	if f.paused {
		entries, err := s.Store.Entries(ctx, refs)
		if err != nil {
			return nil, err
		}
		for i, e := range entries {
			drop[i] = !isPaused(e, s.now())
		}
	}
	if f.failing {
		outcomes, err := s.Store.Outcomes(ctx, refs, 0)
		if err != nil {
			return nil, err
		}
		for i, o := range outcomes {
			drop[i] = drop[i] || !fails(o)
		}
	}
	kept := batch[:0]
	for i, b := range batch {
		if !drop[i] {
			kept = append(kept, b)
		}
	}
	return kept, nil
}

func isPaused(e *task.Entry, now task.Time) bool {
	if e == nil {
		return false
	}
	_, holds := inForce(e, now.Time)
	return holds
}

// eachEntry calls f with the entries of all tasks that match, some at a time. One
// caller at a time does that at a node, and the others wait: it is a lot of work.
func (s *server) eachEntry(ctx context.Context, f taskFilter, tell func([]store.Ref, []*task.Entry) error) error {
	select {
	case s.scanning <- struct{}{}:
		defer func() { <-s.scanning }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if f.selector != nil || f.failing {
		return s.eachMatching(ctx, f, tell)
	}
	if refs, known, err := s.narrow(ctx, f); known || err != nil {
		if err != nil {
			return err
		}
		return s.tellEntries(ctx, f, refs, tell)
	}
	reader := s.Store.NewEntryReader()
	for shard := range s.Cluster.Shards {
		refs, entries, err := reader.Shard(ctx, shard, f.namespace)
		if err != nil {
			return err
		}
		if err := tellWanted(ctx, f, refs, entries, s.now(), tell); err != nil {
			return err
		}
	}
	return nil
}

// eachMatching is eachEntry by way of the specs.
func (s *server) eachMatching(ctx context.Context, f taskFilter, tell func([]store.Ref, []*task.Entry) error) error {
	next, err := s.candidates(ctx, f, paging{})
	for more := true; more && err == nil; {
		var batch []store.Brief
		if batch, more, err = next(); err != nil {
			break
		}
		if batch, err = s.matching(ctx, f, batch); err != nil {
			break
		}
		refs := make([]store.Ref, len(batch))
		for i, b := range batch {
			refs[i] = s.Ref(b.Namespace, b.Name)
		}
		f := f
		f.names = nil // they were looked at
		err = s.tellEntries(ctx, f, refs, tell)
	}
	return err
}

func (s *server) tellEntries(ctx context.Context, f taskFilter, refs []store.Ref, tell func([]store.Ref, []*task.Entry) error) error {
	for chunk := range slices.Chunk(refs, maxScan/20) {
		entries, err := s.Store.Entries(ctx, chunk)
		if err != nil {
			return err
		}
		if err := tellWanted(ctx, f, chunk, entries, s.now(), tell); err != nil {
			return err
		}
	}
	return nil
}

// tellWanted tells those that names and a pause let pass.
func tellWanted(ctx context.Context, f taskFilter, refs []store.Ref, entries []*task.Entry, now task.Time, tell func([]store.Ref, []*task.Entry) error) error {
	if f.names == nil && !f.paused {
		return tell(refs, entries)
	}
	var some []store.Ref
	var theirs []*task.Entry
	for i, r := range refs {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if f.names.match(r.Namespace, r.Name) && (!f.paused || isPaused(entries[i], now)) {
			some, theirs = append(some, r), append(theirs, entries[i])
		}
	}
	return tell(some, theirs)
}
