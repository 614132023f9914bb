package selection

import (
	"cmp"
	"container/heap"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Place is the position of a task in a list that is not in the order of etcd's keys. Tasks are ordered by a
// number, then by namespace and name, so each has a unique place.
type Place struct {
	At  int64 // the number, such as a time in milliseconds
	Ref record.Ref
}

// compareTo orders places.
func (p Place) compareTo(q Place) int {
	return cmp.Or(cmp.Compare(p.At, q.At), strings.Compare(p.Ref.Namespace, q.Ref.Namespace), strings.Compare(p.Ref.Name, q.Ref.Name))
}

// encodeCursor returns the cursor of the page that begins after p.
func (p Place) encodeCursor() string {
	return httpapi.Cursor(strconv.FormatInt(p.At, 10), p.Ref.Namespace, p.Ref.Name)
}

// ParsePlace parses the cursor of a page.
func ParsePlace(s string) (Place, error) {
	parts := strings.Split(s, " ")
	if len(parts) == 3 {
		if at, err := strconv.ParseInt(parts[0], 10, 64); err == nil {
			return Place{at, record.Ref{Namespace: parts[1], Name: parts[2]}}, nil
		}
	}

	return Place{}, task.Invalid(client.CodeBadPage, "page", "is not a page token of this list")
}

// PageHeap keeps the first Most items after a place, of all items that are offered. So a page of a list of any
// length needs memory for one page only.
type PageHeap[T any] struct {
	After *Place      // nil: from the beginning
	Most  int         // the maximum number of items to keep
	Kept  []Placed[T] // a heap with the last item on top
	more  bool        // items follow those that are kept
}

// Placed is an item with its place.
type Placed[T any] struct {
	Place
	Of T
}

func (f *PageHeap[T]) Len() int           { return len(f.Kept) }
func (f *PageHeap[T]) Less(i, j int) bool { return f.Kept[i].compareTo(f.Kept[j].Place) > 0 } // the last item is on top
func (f *PageHeap[T]) Swap(i, j int)      { f.Kept[i], f.Kept[j] = f.Kept[j], f.Kept[i] }
func (f *PageHeap[T]) Push(x any)         { f.Kept = append(f.Kept, x.(Placed[T])) }
func (f *PageHeap[T]) Pop() any           { panic("PageHeap: nothing is popped") }

// Offer keeps an item if it is among the first. It returns false if the item comes after all items that can be
// kept. Items with a later place need not be offered then.
func (f *PageHeap[T]) Offer(p Place, of T) bool {
	switch {
	case f.After != nil && p.compareTo(*f.After) <= 0:
		return true
	case len(f.Kept) < f.Most:
		heap.Push(f, Placed[T]{p, of})
		return true
	}

	f.more = true
	if p.compareTo(f.Kept[0].Place) >= 0 {
		return false
	}

	// The item replaces the last one.
	f.Kept[0] = Placed[T]{p, of}
	heap.Fix(f, 0)

	return true
}

// Sorted returns the kept items in order, and the cursor of the next page, or "" if there is none. The heap
// must not be used afterwards.
func (f *PageHeap[T]) Sorted() (kept []Placed[T], after string) {
	slices.SortFunc(f.Kept, func(a, b Placed[T]) int { return a.compareTo(b.Place) })
	if f.more && len(f.Kept) > 0 {
		after = f.Kept[len(f.Kept)-1].encodeCursor()
	}
	return f.Kept, after
}

// Sorted returns a page of tasks in an order other than by name. It examines all matching tasks, and keeps one
// page of them.
func (h *Finder) Sorted(ctx context.Context, f Filter, order string, p httpapi.Paging) ([]record.Brief, string, error) {
	// The heap keeps the first tasks after the cursor, at most one page.
	first := PageHeap[struct{}]{Most: p.Limit}
	if p.After != "" {
		at, err := ParsePlace(p.After)
		if err != nil {
			return nil, "", err
		}
		first.After = &at
	}

	err := h.EachEntry(ctx, f, func(refs []record.Ref, entries []*task.Entry) error {
		at, err := h.placesOf(ctx, order, refs, entries)

		for i, ref := range refs {
			if err == nil {
				first.Offer(Place{at[i], ref}, struct{}{})
			}
		}

		return err
	})

	if err != nil {
		return nil, "", err
	}

	kept, after := first.Sorted()
	refs := make([]record.Ref, len(kept))
	for i, k := range kept {
		refs[i] = h.ref(k.Ref.Namespace, k.Ref.Name)
	}

	// Only the tasks of the page are read.
	found, err := h.store.BriefsOf(ctx, refs)

	return found, after, err
}

// neverDue is the number of a task without a time. It places the task after all others.
const neverDue = math.MaxInt64

// placesOf returns the numbers of tasks in an order. Descending orders use negative numbers.
func (h *Finder) placesOf(ctx context.Context, order string, refs []record.Ref, entries []*task.Entry) ([]int64, error) {
	at := make([]int64, len(refs))
	if order == client.SortNext {
		now := h.now.Stamp().Time

		for i, e := range entries {
			at[i] = neverDue

			if e == nil {
				continue
			}

			if next, ok, _ := views.NextTick(e, now); ok {
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
		at[i] = neverDue

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
