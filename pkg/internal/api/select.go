package api

import (
	"context"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Finder finds the tasks that a request asks for.
type Finder struct {
	store    *store.Store
	ref      func(namespace, name string) store.Ref
	shards   int
	now      Clock
	scanning chan struct{} // holds one who looks at all tasks
}

// newFinder makes a Finder of the tasks of a cluster with so many shards. ref says where a task lives.
func newFinder(st *store.Store, ref func(namespace, name string) store.Ref, shards int, now Clock) *Finder {
	return &Finder{store: st, ref: ref, shards: shards, now: now, scanning: make(chan struct{}, 1)}
}

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

// taskFilter is the filter of a list of tasks: by the namespace in the path, if there is one.
func (c *call) taskFilter(q nameQuery) (f taskFilter, err error) {
	f = taskFilter{names: q.Name, selector: q.Selector.Selector}
	if c.r.PathValue("ns") != "" {
		f.namespace, err = c.namespace()
	}
	return f, err
}

// maxScan bounds how many tasks a page looks at in search of those that match; a
// page may hold fewer than its limit, even none, and still have a next.
const maxScan = 20_000

// byName selects a page of tasks in the order of their names.
func (h *Finder) byName(ctx context.Context, f taskFilter, p paging) (found []store.Brief, after string, err error) {
	next, err := h.candidates(ctx, f, p)
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
		some, err := h.matching(ctx, f, batch)
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
func (h *Finder) candidates(ctx context.Context, f taskFilter, p paging) (next func() (batch []store.Brief, more bool, err error), err error) {
	const size = 1000
	refs, known, err := h.narrow(ctx, f)
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
			batch, after, err = h.store.Briefs(ctx, f.namespace, f.names.prefix(), after, limit)
			return batch, after != "", err
		}, nil
	}
	slices.SortFunc(refs, func(a, b store.Ref) int { return strings.Compare(a.String(), b.String()) })
	refs = slices.Compact(refs)
	refs = slices.DeleteFunc(refs, func(r store.Ref) bool { return r.String() <= p.after })
	return func() ([]store.Brief, bool, error) {
		n := min(len(refs), size)
		batch, err := h.store.BriefsOf(ctx, refs[:n])
		refs = refs[n:]
		return batch, len(refs) > 0, err
	}, nil
}

// narrow finds the tasks that can match, if names or dead runs tell that; else
// false: any task can.
func (h *Finder) narrow(ctx context.Context, f taskFilter) (refs []store.Ref, known bool, err error) {
	if names, exact := f.names.exact(f.namespace); exact {
		for _, n := range names {
			refs = append(refs, h.ref(n[0], n[1]))
		}
		return refs, true, nil
	}
	if !f.failing {
		return nil, false, nil
	}
	refs, err = h.store.DeadTasks(ctx, h.shards, f.namespace)
	return refs, true, err
}

// matching is those of a batch that match.
func (h *Finder) matching(ctx context.Context, f taskFilter, batch []store.Brief) ([]store.Brief, error) {
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
		refs[i] = h.ref(b.Namespace, b.Name)
	}
	drop := make([]bool, len(batch))
	if f.paused {
		entries, err := h.store.Entries(ctx, refs)
		if err != nil {
			return nil, err
		}
		for i, e := range entries {
			drop[i] = !isPaused(e, h.now.Stamp())
		}
	}
	if f.failing {
		outcomes, err := h.store.Outcomes(ctx, refs, 0)
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
func (h *Finder) eachEntry(ctx context.Context, f taskFilter, tell func([]store.Ref, []*task.Entry) error) error {
	select {
	case h.scanning <- struct{}{}:
		defer func() { <-h.scanning }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if f.selector != nil || f.failing {
		return h.eachMatching(ctx, f, tell)
	}
	if refs, known, err := h.narrow(ctx, f); known || err != nil {
		if err != nil {
			return err
		}
		return h.tellEntries(ctx, f, refs, tell)
	}
	reader := h.store.NewEntryReader()
	for shard := range h.shards {
		refs, entries, err := reader.Shard(ctx, shard, f.namespace)
		if err != nil {
			return err
		}
		if err := tellWanted(ctx, f, refs, entries, h.now.Stamp(), tell); err != nil {
			return err
		}
	}
	return nil
}

// eachMatching is eachEntry by way of the specs.
func (h *Finder) eachMatching(ctx context.Context, f taskFilter, tell func([]store.Ref, []*task.Entry) error) error {
	next, err := h.candidates(ctx, f, paging{})
	for more := true; more && err == nil; {
		var batch []store.Brief
		if batch, more, err = next(); err != nil {
			break
		}
		if batch, err = h.matching(ctx, f, batch); err != nil {
			break
		}
		refs := make([]store.Ref, len(batch))
		for i, b := range batch {
			refs[i] = h.ref(b.Namespace, b.Name)
		}
		f := f
		f.names = nil // they were looked at
		err = h.tellEntries(ctx, f, refs, tell)
	}
	return err
}

func (h *Finder) tellEntries(ctx context.Context, f taskFilter, refs []store.Ref, tell func([]store.Ref, []*task.Entry) error) error {
	for chunk := range slices.Chunk(refs, maxScan/20) {
		entries, err := h.store.Entries(ctx, chunk)
		if err != nil {
			return err
		}
		if err := tellWanted(ctx, f, chunk, entries, h.now.Stamp(), tell); err != nil {
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
