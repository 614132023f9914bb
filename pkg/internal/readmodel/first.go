package readmodel

import "slices"

// First keeps the first places of all that are offered, so that a scan of any length needs memory for one page only.
type First struct {
	limit int
	after *Place
	kept  []Place // a heap with the last place on top
	More  bool    // further places follow those that are kept
}

// NewFirst returns a First for the places that a query asks for.
func NewFirst(q *Query) *First { return &First{limit: q.Limit, after: q.After} }

// Offer keeps a place if it is among the first.
func (f *First) Offer(p Place) {
	if f.after != nil && p.Compare(f.after) <= 0 {
		return
	}

	if len(f.kept) < f.limit {
		f.kept = append(f.kept, p)
		f.siftUp(len(f.kept) - 1)

		return
	}

	f.More = true
	if f.limit > 0 && p.Compare(&f.kept[0]) < 0 {
		f.kept[0] = p
		f.siftDown(0)
	}
}

// siftUp moves the place at index i up until its parent comes after it.
func (f *First) siftUp(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if f.kept[i].Compare(&f.kept[parent]) <= 0 {
			return
		}

		f.kept[i], f.kept[parent] = f.kept[parent], f.kept[i]
		i = parent
	}
}

// siftDown moves the place at index i down until both children come before it.
func (f *First) siftDown(i int) {
	for {
		child := 2*i + 1
		if child >= len(f.kept) {
			return
		}

		if child+1 < len(f.kept) && f.kept[child+1].Compare(&f.kept[child]) > 0 {
			child++
		}
		if f.kept[child].Compare(&f.kept[i]) <= 0 {
			return
		}

		f.kept[i], f.kept[child] = f.kept[child], f.kept[i]
		i = child
	}
}

// Sorted returns the kept places in order. f must not be used afterwards.
func (f *First) Sorted() []Place {
	slices.SortFunc(f.kept, func(a, b Place) int { return a.Compare(&b) })
	return f.kept
}
