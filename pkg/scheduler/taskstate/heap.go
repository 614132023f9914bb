package taskstate

import "container/heap"

// Heap orders tasks by when their next tick is due, then by name. This is the order in which ticks are
// decided, and which the watermark follows. A task is in the heap if and only if its At is not -1.
type Heap []*Task

// Len returns how many tasks have a tick to come.
func (h Heap) Len() int { return len(h) }

// Less, Swap, Push and Pop implement heap.Interface. Use Set to change the heap.
func (h Heap) Less(i, j int) bool {
	if a, b := h[i].DueAt(), h[j].DueAt(); a != b {
		return a < b
	}
	return h[i].FullName() < h[j].FullName()
}
func (h Heap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].At, h[j].At = int32(i), int32(j)
}
func (h *Heap) Push(x any) {
	t := x.(*Task)
	t.At = int32(len(*h))
	*h = append(*h, t)
}
func (h *Heap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.At = -1

	return t
}

// AnyUpTo reports whether is returns true for any task with a tick that is due at the instant at (Unix
// milliseconds). It calls is for such tasks in no particular order, and stops at the first true.
func (h Heap) AnyUpTo(at int64, is func(*Task) bool) bool {
	var walk func(i int) bool

	// In a heap, no task below one that is due later is due earlier, so its subtree need not be visited.
	walk = func(i int) bool {
		return i < len(h) && h[i].DueAt() <= at && (is(h[i]) || walk(2*i+1) || walk(2*i+2))
	}
	return walk(0)
}

// UpTo returns the tasks with a tick that is due at the instant at (Unix milliseconds), in no particular
// order.
func (h Heap) UpTo(at int64) (list []*Task) {
	h.AnyUpTo(at, func(t *Task) bool { list = append(list, t); return false })
	return list
}

// InOrder visits the tasks in the order in which their ticks are due, until visit returns false. Visiting k
// tasks costs O(k log k), whatever the size of the heap. visit must not change the heap.
func (h Heap) InOrder(visit func(*Task) bool) {
	if len(h) == 0 {
		return
	}

	next := &frontier{of: h, places: []int{0}}
	for len(next.places) > 0 {
		i := heap.Pop(next).(int)
		if !visit(h[i]) {
			return
		}

		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			heap.Push(next, child)
		}
	}
}

// frontier is a heap of indexes into another heap: of the tasks that have not been visited and whose
// parents have.
type frontier struct {
	of     Heap
	places []int
}

func (f *frontier) Len() int           { return len(f.places) }
func (f *frontier) Less(i, j int) bool { return f.of.Less(f.places[i], f.places[j]) }
func (f *frontier) Swap(i, j int)      { f.places[i], f.places[j] = f.places[j], f.places[i] }
func (f *frontier) Push(x any)         { f.places = append(f.places, x.(int)) }
func (f *frontier) Pop() any {
	last := len(f.places) - 1
	i := f.places[last]
	f.places = f.places[:last]

	return i
}

// Set sets the next tick of t (Unix milliseconds) and moves t to its place in the heap. If next is 0, t is
// removed.
func (h *Heap) Set(t *Task, next int64) {
	t.Next = next
	if next != 0 {
		t.delay = int32(t.Due(next) - next)
	}

	switch {
	case next == 0 && t.At >= 0:
		heap.Remove(h, int(t.At))
	case next == 0:
	case t.At >= 0:
		heap.Fix(h, int(t.At))
	default:
		heap.Push(h, t)
	}
}
