package api

import (
	"cmp"
	"container/heap"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// A placed thing has its place in a list that is not in the order of etcd's keys:
// by a number, then by the task's namespace and name.
type placed struct {
	at  int64
	ref store.Ref
}

func (p placed) compare(q placed) int {
	return cmp.Or(cmp.Compare(p.at, q.at), strings.Compare(p.ref.Namespace, q.ref.Namespace), strings.Compare(p.ref.Name, q.ref.Name))
}

// cursor is where the page after p goes on.
func (p placed) cursor() string {
	return cursor(strconv.FormatInt(p.at, 10), p.ref.Namespace, p.ref.Name)
}

func parsePlaced(s string) (placed, error) {
	parts := strings.Split(s, " ")
	if len(parts) == 3 {
		if at, err := strconv.ParseInt(parts[0], 10, 64); err == nil {
			return placed{at, store.Ref{Namespace: parts[1], Name: parts[2]}}, nil
		}
	}
	return placed{}, task.Invalid(client.CodeBadPage, "page", "is not a page of this list")
}

// firsts keeps the first so many of all that it is offered, behind a place: what a
// page needs of a list of any length.
type firsts[T any] struct {
	after *placed // nil: from the beginning
	most  int
	kept  []standing[T]
	more  bool // some came behind those that are kept
}

type standing[T any] struct {
	placed
	of T
}

func (f *firsts[T]) Len() int           { return len(f.kept) }
func (f *firsts[T]) Less(i, j int) bool { return f.kept[i].compare(f.kept[j].placed) > 0 } // the last is at the top
func (f *firsts[T]) Swap(i, j int)      { f.kept[i], f.kept[j] = f.kept[j], f.kept[i] }
func (f *firsts[T]) Push(x any)         { f.kept = append(f.kept, x.(standing[T])) }
func (f *firsts[T]) Pop() any           { panic("firsts: nothing is popped") }

// offer takes a thing in, if it is among the first. It returns false if it comes
// behind all that can be kept: whatever comes behind it need not be offered.
func (f *firsts[T]) offer(p placed, of T) bool {
	switch {
	case f.after != nil && p.compare(*f.after) <= 0:
		return true
	case len(f.kept) < f.most:
		heap.Push(f, standing[T]{p, of})
		return true
	}
	f.more = true
	if p.compare(f.kept[0].placed) >= 0 {
		return false
	}
	f.kept[0] = standing[T]{p, of}
	heap.Fix(f, 0)
	return true
}

// list is what was kept, in order, and where the next page goes on; "" if there
// is none.
func (f *firsts[T]) list() (kept []standing[T], after string) {
	slices.SortFunc(f.kept, func(a, b standing[T]) int { return a.compare(b.placed) })
	if f.more && len(f.kept) > 0 {
		after = f.kept[len(f.kept)-1].cursor()
	}
	return f.kept, after
}

// sorted selects a page of tasks in another order than that of their names. It
// looks at all that match, and keeps no more than a page of them.
func (h *Finder) sorted(ctx context.Context, f taskFilter, order string, p paging) ([]store.Brief, string, error) {
	first := firsts[struct{}]{most: p.limit}
	if p.after != "" {
		at, err := parsePlaced(p.after)
		if err != nil {
			return nil, "", err
		}
		first.after = &at
	}
	err := h.eachEntry(ctx, f, func(refs []store.Ref, entries []*task.Entry) error {
		at, err := h.places(ctx, order, refs, entries)
		for i, ref := range refs {
			if err == nil {
				first.offer(placed{at[i], ref}, struct{}{})
			}
		}
		return err
	})
	if err != nil {
		return nil, "", err
	}
	kept, after := first.list()
	refs := make([]store.Ref, len(kept))
	for i, k := range kept {
		refs[i] = h.ref(k.ref.Namespace, k.ref.Name)
	}
	found, err := h.store.BriefsOf(ctx, refs)
	return found, after, err
}

// never is the place of what has no time: behind all that have one.
const never = math.MaxInt64

// places are the places of tasks in an order.
func (h *Finder) places(ctx context.Context, order string, refs []store.Ref, entries []*task.Entry) ([]int64, error) {
	at := make([]int64, len(refs))
	if order == client.SortNext {
		now := h.now.Stamp().Time
		for i, e := range entries {
			at[i] = never
			if e == nil {
				continue
			}
			if next, ok, _ := nextTick(e, now); ok {
				at[i] = next.UnixMilli()
			}
		}
		return at, nil
	}
	outcomes, err := h.store.Outcomes(ctx, refs, 0)
	if err != nil {
		return nil, err
	}
	for i, o := range outcomes {
		at[i] = never
		switch {
		case len(o.Runs) == 0:
		case order == client.SortLast:
			at[i] = -o.Runs[0].LastSeen().UnixMilli()
		case o.Runs[0].LatenessMS != nil:
			at[i] = -*o.Runs[0].LatenessMS
		}
	}
	return at, nil
}
