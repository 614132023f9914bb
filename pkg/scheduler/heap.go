package scheduler

import "container/heap"

// dueHeap orders tasks by when their next tick falls due, then by name: the order
// in which ticks are decided and which the watermark follows.
type dueHeap []*taskState

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	if a, b := h[i].dueAt(), h[j].dueAt(); a != b {
		return a < b
	}
	return h[i].fullName() < h[j].fullName()
}
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = int32(i), int32(j)
}
func (h *dueHeap) Push(x any) {
	t := x.(*taskState)
	t.at = int32(len(*h))
	*h = append(*h, t)
}
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.at = -1
	return t
}

// anyUpTo reports whether is holds for a task with a tick that is due at an instant. It
// asks of each, in no order, until it does.
func (h dueHeap) anyUpTo(at int64, is func(*taskState) bool) bool {
	var walk func(i int) bool // a heap: below one that is due later none is due earlier
	walk = func(i int) bool {
		return i < len(h) && h[i].dueAt() <= at && (is(h[i]) || walk(2*i+1) || walk(2*i+2))
	}
	return walk(0)
}

// upTo lists the tasks with a tick that is due at an instant, in no order.
func (h dueHeap) upTo(at int64) (list []*taskState) {
	h.anyUpTo(at, func(t *taskState) bool { list = append(list, t); return false })
	return list
}

// countUpTo is how many tasks have a tick that is due at an instant.
func (h dueHeap) countUpTo(at int64) int {
	n := 0
	h.anyUpTo(at, func(*taskState) bool { n++; return false })
	return n
}

// inOrder visits the tasks as their ticks fall due, until visit has enough. It costs
// what is visited, not what there is.
func (h dueHeap) inOrder(visit func(*taskState) bool) {
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
	of     dueHeap
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

// set puts t where its next tick belongs; 0 takes it out.
func (h *dueHeap) set(t *taskState, next int64) {
	t.next = next
	if next != 0 {
		t.delay = int32(t.due(next) - next)
	}
	switch {
	case next == 0 && t.at >= 0:
		heap.Remove(h, int(t.at))
	case next == 0:
	case t.at >= 0:
		heap.Fix(h, int(t.at))
	default:
		heap.Push(h, t)
	}
}
