// Package selection finds the tasks that a request selects by namespace, names, labels and state, page by page
// and in the requested order.
//
// It reads as few records as the filter allows, and a limited number for each page. So a page may contain fewer
// items than its limit and still have a next page. Only one caller at a time examines all tasks of a cluster. A
// list is not a snapshot over its pages.
package selection

import (
	"context"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Finder finds tasks. It is safe for concurrent use.
type Finder struct {
	store    *store.Store
	ref      func(namespace, name string) record.Ref // maps a task to its shard
	shards   int                                     // the number of shards
	now      httpapi.Clock
	scanning chan struct{} // holds one element while a caller examines all tasks
}

// NewFinder returns a Finder for a cluster with this number of shards.
func NewFinder(st *store.Store, ref func(namespace, name string) record.Ref, shards int, now httpapi.Clock) *Finder {
	return &Finder{store: st, ref: ref, shards: shards, now: now, scanning: make(chan struct{}, 1)}
}

// Filter selects tasks. All conditions must hold.
type Filter struct {
	Namespace string        // "": all namespaces
	Within    []string      // with all namespaces: only these, in order; nil: all of them
	names     globs         // empty: all names
	Selector  task.Selector // nil: any labels
	Failing   bool          // only tasks with a dead run and no success since
	Paused    bool          // only paused tasks
}

// NameQuery are the parameters that select tasks by labels and names.
type NameQuery struct {
	Selector SelectorText `query:"selector" doc:"Labels: \"team = data, env in (prod, staging), !old\"."`
	Name     globs        `query:"name" doc:"Names or globs of tasks, separated by commas: \"web-*,db\"; with a namespace: \"prod/web-*\"."`
}

// SelectorText is a label selector as a query parameter.
type SelectorText struct{ task.Selector }

// UnmarshalText parses a selector.
func (s *SelectorText) UnmarshalText(text []byte) (err error) {
	s.Selector, err = task.ParseSelector(string(text))
	return err
}

// FilterOf returns the filter of a list of tasks. The namespace is that of the path, if the path has one.
func FilterOf(c *httpapi.Call, q NameQuery) (f Filter, err error) {
	f = Filter{names: q.Name, Selector: q.Selector.Selector}
	if c.Request.PathValue("ns") != "" {
		f.Namespace, err = c.Namespace()
	} else {
		f.Within = c.Rights().Readable(access.Tasks)
	}
	return f, err
}

// includes reports whether a namespace belongs to those that the filter is about.
func (f *Filter) includes(namespace string) bool {
	if f.Within == nil {
		return true
	}

	_, found := slices.BinarySearch(f.Within, namespace)

	return found
}

// MaxScan is the maximum number of tasks that a page examines to find matching ones. So a page may contain
// fewer tasks than its limit, even none, and still have a next page.
const MaxScan = 20_000

// ByName returns a page of tasks in the order of their names, and the cursor of the next page, or "" if there
// is none.
func (h *Finder) ByName(ctx context.Context, f Filter, p httpapi.Paging) (found []record.Brief, after string, err error) {
	next, err := h.candidateBatches(ctx, f, p)
	if err != nil {
		return nil, "", err
	}

	for scanned, more := 0, true; more && scanned < MaxScan; {
		var batch []record.Brief
		if batch, more, err = next(); err != nil {
			return nil, "", err
		}

		scanned += len(batch)

		// If the scan ends without a full page, the next page begins after the last examined task.
		if len(batch) > 0 {
			last := batch[len(batch)-1]
			after = last.Namespace + "/" + last.Name
		}

		some, err := h.filterMatching(ctx, f, batch)
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

// candidateBatches returns an iterator over batches of specs, in the order of names, which contains all matching
// tasks. It excludes as many others as the keys permit. more is true if another batch follows.
func (h *Finder) candidateBatches(ctx context.Context, f Filter, p httpapi.Paging) (next func() (batch []record.Brief, more bool, err error), err error) {
	const size = 1000
	refs, known, err := h.narrowByIndex(ctx, f)
	if err != nil {
		return nil, err
	}

	if !known && f.Within != nil {
		return h.batchesWithin(ctx, f, p, size), nil
	}

	if !known {
		after, small := p.After, f.Selector == nil && !f.Paused && len(f.names) == 0
		return func() ([]record.Brief, bool, error) {
			limit := size
			if small { // every task matches, so no more than a page is needed
				limit = p.Limit
			}

			var batch []record.Brief
			var err error
			batch, after, err = h.store.Briefs(ctx, f.Namespace, f.names.commonPrefix(), after, limit)

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

// batchesWithin is candidateBatches for some namespaces, one after another. It reads nothing outside them, so that neither
// the cursor of a page nor the time that it takes tells what other namespaces contain.
func (h *Finder) batchesWithin(ctx context.Context, f Filter, p httpapi.Paging, size int) func() ([]record.Brief, bool, error) {
	left, after := f.Within, p.After
	if from, _, ok := strings.Cut(after, "/"); ok {
		i, _ := slices.BinarySearch(left, from)
		left = left[i:]
	}

	return func() (batch []record.Brief, more bool, err error) {
		if len(left) == 0 {
			return nil, false, nil
		}
		if !strings.HasPrefix(after, left[0]+"/") {
			after = ""
		}

		batch, after, err = h.store.Briefs(ctx, left[0], "", after, size)
		if after == "" {
			left = left[1:]
		}

		return batch, len(left) > 0, err
	}
}

// narrowByIndex returns the tasks that can match, if exact names or the keys of dead runs determine them. known is
// false if any task can match.
func (h *Finder) narrowByIndex(ctx context.Context, f Filter) (refs []record.Ref, known bool, err error) {
	if names, exact := f.names.exactNames(f.Namespace); exact {
		for _, n := range names {
			if f.includes(n[0]) {
				refs = append(refs, h.ref(n[0], n[1]))
			}
		}
		return refs, true, nil
	}

	if !f.Failing {
		return nil, false, nil
	}

	refs, err = h.store.DeadTasks(ctx, h.shards, f.Namespace)
	refs = slices.DeleteFunc(refs, func(r record.Ref) bool { return !f.includes(r.Namespace) })
	return refs, true, err
}

// filterMatching returns the tasks of a batch that match. It first applies the conditions that need no further reads.
func (h *Finder) filterMatching(ctx context.Context, f Filter, batch []record.Brief) ([]record.Brief, error) {
	batch = slices.DeleteFunc(batch, func(b record.Brief) bool {
		return ctx.Err() != nil || !f.names.matchesName(b.Namespace, b.Name) || f.Selector != nil && !f.Selector.Matches(b.Labels()) ||
			f.Paused && !b.MayBePaused()
	})

	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if !f.Paused && !f.Failing {
		return batch, nil
	}

	// The remaining conditions need the entries and the outcomes. They are read for the whole batch at once.
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

// isPaused reports whether a pause is in force. An entry that cannot be read counts as not paused.
func isPaused(e *task.Entry, now task.Time) bool {
	if e == nil {
		return false
	}
	_, holds := views.PauseInForce(e, now.Time)
	return holds
}

// EachEntry calls tell with the entries of all matching tasks, in batches. An entry that cannot be read is nil.
// Only one caller at a time examines the tasks on a node, and others wait, because this is expensive.
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

	if refs, known, err := h.narrowByIndex(ctx, f); known || err != nil {
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

// eachMatching implements EachEntry for filters that need the specs.
func (h *Finder) eachMatching(ctx context.Context, f Filter, tell func([]record.Ref, []*task.Entry) error) error {
	next, err := h.candidateBatches(ctx, f, httpapi.Paging{})
	for more := true; more && err == nil; {
		var batch []record.Brief
		if batch, more, err = next(); err != nil {
			break
		}
		if batch, err = h.filterMatching(ctx, f, batch); err != nil {
			break
		}

		refs := make([]record.Ref, len(batch))
		for i, b := range batch {
			refs[i] = h.ref(b.Namespace, b.Name)
		}

		f := f
		f.names = nil // matching has already compared the names
		err = h.tellEntries(ctx, f, refs, tell)
	}

	return err
}

// tellEntries reads the entries of tasks in chunks and passes on those that match. MaxScan/20 entries at once
// bound the memory.
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

// tellWanted passes on the entries that match by name and pause.
func tellWanted(ctx context.Context, f Filter, refs []record.Ref, entries []*task.Entry, now task.Time, tell func([]record.Ref, []*task.Entry) error) error {
	if f.names == nil && !f.Paused && f.Within == nil {
		return tell(refs, entries)
	}

	var some []record.Ref
	var theirs []*task.Entry
	for i, r := range refs {
		if ctx.Err() != nil {
			return ctx.Err()
		}

		if f.includes(r.Namespace) && f.names.matchesName(r.Namespace, r.Name) && (!f.Paused || isPaused(entries[i], now)) {
			some, theirs = append(some, r), append(theirs, entries[i])
		}
	}

	return tell(some, theirs)
}
