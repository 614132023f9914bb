package tasks

import (
	"cmp"
	"container/heap"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// tickPlace is the position of a future tick in a list. Ticks are ordered by time, then by namespace and name, so each
// has a unique place.
type tickPlace struct {
	at  int64 // Unix ms
	ref record.Ref
}

// compareTo orders places.
func (p tickPlace) compareTo(q tickPlace) int {
	return cmp.Or(cmp.Compare(p.at, q.at), strings.Compare(p.ref.Namespace, q.ref.Namespace), strings.Compare(p.ref.Name, q.ref.Name))
}

// cursor returns the cursor of the page that begins after p.
func (p tickPlace) cursor() string {
	return httpapi.Cursor(strconv.FormatInt(p.at, 10), p.ref.Namespace, p.ref.Name)
}

// parseTickPlace parses the cursor of a page.
func parseTickPlace(s string) (tickPlace, error) {
	parts := strings.Split(s, " ")
	if len(parts) == 3 {
		if at, err := strconv.ParseInt(parts[0], 10, 64); err == nil {
			return tickPlace{at, record.Ref{Namespace: parts[1], Name: parts[2]}}, nil
		}
	}

	return tickPlace{}, task.Invalid(client.CodeBadPage, "page", "is not a page token of this list")
}

// futureTick is one future tick of a task, as the page of a list holds it.
type futureTick struct {
	tickPlace
	entry *task.Entry
	sched *schedule.Schedule
}

// tickHeap keeps the first ticks after a place, of all that are offered. So a page of a list of any length needs memory
// for one page only.
type tickHeap struct {
	after *tickPlace   // nil: from the beginning
	most  int          // the maximum number of ticks to keep
	kept  []futureTick // a heap with the last tick on top
	more  bool         // ticks follow those that are kept
}

func (h *tickHeap) Len() int           { return len(h.kept) }
func (h *tickHeap) Less(i, j int) bool { return h.kept[i].compareTo(h.kept[j].tickPlace) > 0 } // the last tick is on top
func (h *tickHeap) Swap(i, j int)      { h.kept[i], h.kept[j] = h.kept[j], h.kept[i] }
func (h *tickHeap) Push(x any)         { h.kept = append(h.kept, x.(futureTick)) }
func (h *tickHeap) Pop() any           { panic("tickHeap: nothing is popped") }

// offer keeps a tick if it is among the first. It returns false if the tick comes after all ticks that can be kept. Ticks
// with a later place need not be offered then.
func (h *tickHeap) offer(t futureTick) bool {
	switch {
	case h.after != nil && t.compareTo(*h.after) <= 0:
		return true
	case len(h.kept) < h.most:
		heap.Push(h, t)
		return true
	}

	h.more = true
	if t.compareTo(h.kept[0].tickPlace) >= 0 {
		return false
	}

	// The tick replaces the last one.
	h.kept[0] = t
	heap.Fix(h, 0)

	return true
}

// endsBefore reports whether the page is full, and all its ticks are before a time (Unix ms).
func (h *tickHeap) endsBefore(at int64) bool { return len(h.kept) == h.most && h.kept[0].at < at }

// sorted returns the kept ticks in order, and the cursor of the next page, or "" if there is none. The heap must not be
// used afterwards.
func (h *tickHeap) sorted() (kept []futureTick, after string) {
	slices.SortFunc(h.kept, func(a, b futureTick) int { return a.compareTo(b.tickPlace) })
	if h.more && len(h.kept) > 0 {
		after = h.kept[len(h.kept)-1].cursor()
	}
	return h.kept, after
}
