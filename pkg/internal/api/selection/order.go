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

// A Place is that of a task in a list that is not in the order of etcd's keys:
// by a number, then by the task's namespace and name.
type Place struct {
	At  int64 // the number
	Ref record.Ref
}

func (p Place) compare(q Place) int {
	return cmp.Or(cmp.Compare(p.At, q.At), strings.Compare(p.Ref.Namespace, q.Ref.Namespace), strings.Compare(p.Ref.Name, q.Ref.Name))
}

// cursor is where the page after p goes on.
func (p Place) cursor() string {
	return httpapi.Cursor(strconv.FormatInt(p.At, 10), p.Ref.Namespace, p.Ref.Name)
}

// ParsePlace reads the place where a page ended.
func ParsePlace(s string) (Place, error) {
	parts := strings.Split(s, " ")
	if len(parts) == 3 {
		if at, err := strconv.ParseInt(parts[0], 10, 64); err == nil {
			return Place{at, record.Ref{Namespace: parts[1], Name: parts[2]}}, nil
		}
	}

	return Place{}, task.Invalid(client.CodeBadPage, "page", "is not a page of this list")
}

// PageHeap keeps the first so many of all that it is offered, behind a place: what a
// page needs of a list of any length.
type PageHeap[T any] struct {
	After *Place      // nil: from the beginning
	Most  int         // how many are kept
	Kept  []Placed[T] // a heap, the last at its top
	more  bool        // some came behind those that are kept
}

// Placed is what has a place.
type Placed[T any] struct {
	Place
	Of T
}

func (f *PageHeap[T]) Len() int           { return len(f.Kept) }
func (f *PageHeap[T]) Less(i, j int) bool { return f.Kept[i].compare(f.Kept[j].Place) > 0 } // the last is at the top
func (f *PageHeap[T]) Swap(i, j int)      { f.Kept[i], f.Kept[j] = f.Kept[j], f.Kept[i] }
func (f *PageHeap[T]) Push(x any)         { f.Kept = append(f.Kept, x.(Placed[T])) }
func (f *PageHeap[T]) Pop() any           { panic("PageHeap: nothing is popped") }

// Offer takes a thing in, if it is among the first. It returns false if it comes
// behind all that can be kept: whatever comes behind it need not be offered.
func (f *PageHeap[T]) Offer(p Place, of T) bool {
	switch {
	case f.After != nil && p.compare(*f.After) <= 0:
		return true
	case len(f.Kept) < f.Most:
		heap.Push(f, Placed[T]{p, of})
		return true
	}

	f.more = true
	if p.compare(f.Kept[0].Place) >= 0 {
		return false
	}

	f.Kept[0] = Placed[T]{p, of}
	heap.Fix(f, 0)

	return true
}

// Sorted is what was kept, in order, and where the next page goes on; "" if there
// is none.
func (f *PageHeap[T]) Sorted() (kept []Placed[T], after string) {
	slices.SortFunc(f.Kept, func(a, b Placed[T]) int { return a.compare(b.Place) })
	if f.more && len(f.Kept) > 0 {
		after = f.Kept[len(f.Kept)-1].cursor()
	}
	return f.Kept, after
}

// Sorted selects a page of tasks in another order than that of their names. It
// looks at all that match, and keeps no more than a page of them.
func (h *Finder) Sorted(ctx context.Context, f Filter, order string, p httpapi.Paging) ([]record.Brief, string, error) {
	first := PageHeap[struct{}]{Most: p.Limit}
	if p.After != "" {
		at, err := ParsePlace(p.After)
		if err != nil {
			return nil, "", err
		}
		first.After = &at
	}

	err := h.EachEntry(ctx, f, func(refs []record.Ref, entries []*task.Entry) error {
		at, err := h.places(ctx, order, refs, entries)

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

	found, err := h.store.BriefsOf(ctx, refs)

	return found, after, err
}

// never is the place of what has no time: behind all that have one.
const never = math.MaxInt64

// places are the places of tasks in an order.
func (h *Finder) places(ctx context.Context, order string, refs []record.Ref, entries []*task.Entry) ([]int64, error) {
	at := make([]int64, len(refs))
	if order == client.SortNext {
		now := h.now.Stamp().Time

		for i, e := range entries {
			at[i] = never

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
