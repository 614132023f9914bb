package scheduler

import (
	"container/heap"
	"time"
)

// dueHeap orders tasks by their next tick, then by name: the order in which
// ticks are decided and which the watermark follows.
type dueHeap []*taskState

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	if !h[i].next.Equal(h[j].next) {
		return h[i].next.Before(h[j].next)
	}
	return h[i].name < h[j].name
}
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *dueHeap) Push(x any) {
	t := x.(*taskState)
	t.at = len(*h)
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

// set puts t where its next tick belongs; the zero time takes it out.
func (h *dueHeap) set(t *taskState, next time.Time) {
	t.next = next
	switch {
	case next.IsZero() && t.at >= 0:
		heap.Remove(h, t.at)
	case next.IsZero():
	case t.at >= 0:
		heap.Fix(h, t.at)
	default:
		heap.Push(h, t)
	}
}
