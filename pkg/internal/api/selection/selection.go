// Package selection finds the tasks that a request asks for, by namespace, names, labels and
// how they fare, page by page and in the order that is asked for.
//
// It reads as few records as the filter allows, and a bounded number for each page: a page may
// have fewer items than its limit and still have a next. One caller at a time looks at all tasks
// of a cluster. A list is not a snapshot over its pages.
package selection

import (
	"context"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Finder finds the tasks that a request asks for.
type Finder struct {
	store    *store.Store
	ref      func(namespace, name string) record.Ref
	shards   int
	now      httpapi.Clock
	scanning chan struct{} // holds one who looks at all tasks
}

// NewFinder makes a Finder of the tasks of a cluster with so many shards. ref says where a task lives.
func NewFinder(st *store.Store, ref func(namespace, name string) record.Ref, shards int, now httpapi.Clock) *Finder {
	return &Finder{store: st, ref: ref, shards: shards, now: now, scanning: make(chan struct{}, 1)}
}

// Filter says which tasks are asked for.
type Filter struct {
	Namespace string // "": all of them
	names     globs
	Selector  task.Selector
	Failing   bool
	Paused    bool
}

// NameQuery are the parameters that select tasks by their labels and names.
type NameQuery struct {
	Selector SelectorText `query:"selector" doc:"Labels: \"team = data, env in (prod, staging), !old\"."`
	Name     globs        `query:"name" doc:"Names or globs of tasks, separated by commas: \"web-*,db\"; with a namespace: \"prod/web-*\"."`
}

// SelectorText is a selector as it is in a request.
type SelectorText struct{ task.Selector }

// UnmarshalText parses a selector.
func (s *SelectorText) UnmarshalText(text []byte) (err error) {
	s.Selector, err = task.ParseSelector(string(text))
	return err
}

// FilterOf is the filter of a list of tasks: by the namespace in the path, if there is one.
func FilterOf(c *httpapi.Call, q NameQuery) (f Filter, err error) {
	f = Filter{names: q.Name, Selector: q.Selector.Selector}
	if c.Request.PathValue("ns") != "" {
		f.Namespace, err = c.Namespace()
	}
	return f, err
}

// MaxScan bounds how many tasks a page looks at in search of those that match; a
// page may hold fewer than its limit, even none, and still have a next.
const MaxScan = 20_000

// ByName selects a page of tasks in the order of their names.
func (h *Finder) ByName(ctx context.Context, f Filter, p httpapi.Paging) (found []record.Brief, after string, err error) {
	next, err := h.candidates(ctx, f, p)
	if err != nil {
		return nil, "", err
	}

	for scanned, more := 0, true; more && scanned < MaxScan; {
		var batch []record.Brief
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
			if len(found) == p.Limit {
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
func (h *Finder) candidates(ctx context.Context, f Filter, p httpapi.Paging) (next func() (batch []record.Brief, more bool, err error), err error) {
	const size = 1000
	refs, known, err := h.narrow(ctx, f)
	if err != nil {
		return nil, err
	}

	if !known {
		after, small := p.After, f.Selector == nil && !f.Paused && len(f.names) == 0
		return func() ([]record.Brief, bool, error) {
			limit := size
			if small { // all of them match
				limit = p.Limit
			}

			var batch []record.Brief
			var err error
			batch, after, err = h.store.Briefs(ctx, f.Namespace, f.names.prefix(), after, limit)

			return batch, after != "", err
		}, nil
	}

	slices.SortFunc(refs, func(a, b record.Ref) int { return strings.Compare(a.String(), b.String()) })
	refs = slices.Compact(refs)
	refs = slices.DeleteFunc(refs, func(r record.Ref) bool { return r.String() <= p.After })

	return func() ([]record.Brief, bool, error) {
		n := min(len(refs), size)
		batch, err := h.store.BriefsOf(ctx, refs[:n])
		refs = refs[n:]
		return batch, len(refs) > 0, err
	}, nil
}

// narrow finds the tasks that can match, if names or dead runs tell that; else
// false: any task can.
func (h *Finder) narrow(ctx context.Context, f Filter) (refs []record.Ref, known bool, err error) {
	if names, exact := f.names.exact(f.Namespace); exact {
		for _, n := range names {
			refs = append(refs, h.ref(n[0], n[1]))
		}
		return refs, true, nil
	}

	if !f.Failing {
		return nil, false, nil
	}

	refs, err = h.store.DeadTasks(ctx, h.shards, f.Namespace)
	return refs, true, err
}

// matching is those of a batch that match.
func (h *Finder) matching(ctx context.Context, f Filter, batch []record.Brief) ([]record.Brief, error) {
	batch = slices.DeleteFunc(batch, func(b record.Brief) bool {
		return ctx.Err() != nil || !f.names.match(b.Namespace, b.Name) || f.Selector != nil && !f.Selector.Matches(b.Labels()) ||
			f.Paused && !b.MayBePaused()
	})

	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if !f.Paused && !f.Failing {
		return batch, nil
	}

	refs := make([]record.Ref, len(batch))
	for i, b := range batch {
		refs[i] = h.ref(b.Namespace, b.Name)
	}

	drop := make([]bool, len(batch))
	if f.Paused {
		entries, err := h.store.Entries(ctx, refs)
		if err != nil {
			return nil, err
		}

		for i, e := range entries {
			drop[i] = !isPaused(e, h.now.Stamp())
		}
	}

	if f.Failing {
		outcomes, err := h.store.Outcomes(ctx, refs, 0)
		if err != nil {
			return nil, err
		}

		for i, o := range outcomes {
			drop[i] = drop[i] || !views.Fails(o)
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
	_, holds := views.PauseInForce(e, now.Time)
	return holds
}

// EachEntry calls f with the entries of all tasks that match, some at a time. One
// caller at a time does that at a node, and the others wait: it is a lot of work.
func (h *Finder) EachEntry(ctx context.Context, f Filter, tell func([]record.Ref, []*task.Entry) error) error {
	select {
	case h.scanning <- struct{}{}:
		defer func() { <-h.scanning }()
	case <-ctx.Done():
		return ctx.Err()
	}

	if f.Selector != nil || f.Failing {
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
		refs, entries, err := reader.Shard(ctx, shard, f.Namespace)
		if err != nil {
			return err
		}
		if err := tellWanted(ctx, f, refs, entries, h.now.Stamp(), tell); err != nil {
			return err
		}
	}

	return nil
}

// eachMatching is EachEntry by way of the specs.
func (h *Finder) eachMatching(ctx context.Context, f Filter, tell func([]record.Ref, []*task.Entry) error) error {
	next, err := h.candidates(ctx, f, httpapi.Paging{})
	for more := true; more && err == nil; {
		var batch []record.Brief
		if batch, more, err = next(); err != nil {
			break
		}
		if batch, err = h.matching(ctx, f, batch); err != nil {
			break
		}

		refs := make([]record.Ref, len(batch))
		for i, b := range batch {
			refs[i] = h.ref(b.Namespace, b.Name)
		}

		f := f
		f.names = nil // they were looked at
		err = h.tellEntries(ctx, f, refs, tell)
	}

	return err
}

func (h *Finder) tellEntries(ctx context.Context, f Filter, refs []record.Ref, tell func([]record.Ref, []*task.Entry) error) error {
	for chunk := range slices.Chunk(refs, MaxScan/20) {
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
func tellWanted(ctx context.Context, f Filter, refs []record.Ref, entries []*task.Entry, now task.Time, tell func([]record.Ref, []*task.Entry) error) error {
	if f.names == nil && !f.Paused {
		return tell(refs, entries)
	}

	var some []record.Ref
	var theirs []*task.Entry
	for i, r := range refs {
		if ctx.Err() != nil {
			return ctx.Err()
		}

		if f.names.match(r.Namespace, r.Name) && (!f.Paused || isPaused(entries[i], now)) {
			some, theirs = append(some, r), append(theirs, entries[i])
		}
	}

	return tell(some, theirs)
}
