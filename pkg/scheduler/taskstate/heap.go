package taskstate

import "container/heap"

// Heap orders tasks by when their next tick falls due, then by name: the order
// in which ticks are decided and which the watermark follows.
type Heap []*Task

// Len is how many tasks have a tick to come.
func (h Heap) Len() int { return len(h) }

// Less, Swap, Push and Pop are for container/heap.
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

// AnyUpTo reports whether is holds for a task with a tick that is due at an instant. It
// asks of each, in no order, until it does.
func (h Heap) AnyUpTo(at int64, is func(*Task) bool) bool {
	var walk func(i int) bool // a heap: below one that is due later none is due earlier
	walk = func(i int) bool {
		return i < len(h) && h[i].DueAt() <= at && (is(h[i]) || walk(2*i+1) || walk(2*i+2))
	}
	return walk(0)
}

// UpTo lists the tasks with a tick that is due at an instant, in no order.
func (h Heap) UpTo(at int64) (list []*Task) {
	h.AnyUpTo(at, func(t *Task) bool { list = append(list, t); return false })
	return list
}

// CountUpTo is how many tasks have a tick that is due at an instant.
func (h Heap) CountUpTo(at int64) int {
	n := 0
	h.AnyUpTo(at, func(*Task) bool { n++; return false })
	return n
}

// InOrder visits the tasks as their ticks fall due, until visit has enough. It costs
// what is visited, not what there is.
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

// frontier is a heap of places in another: of those whose parents were visited.
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

// Set puts t where its next tick belongs; 0 takes it out.
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
