package state

import (
	"container/heap"
	"hash/maphash"
	"iter"
	"strings"
	"time"
)

// Tasks are the tasks of a shard by their full names. The zero value is empty and ready to use.
//
// The keys are hashes of the names, because each task has its name already. A map with names as keys takes 18 bytes more
// for each task: a string, and its share of the slots that a map leaves free.
type Tasks struct {
	byHash map[uint64]*Task
	// collided holds, by name, tasks whose hash another task had when they were added. It is nearly always empty.
	collided map[string]*Task

	hash func(name string) uint64 // nil: hashName. Tests set it to let names collide
}

// nameSeed makes the hashes unpredictable, so that nobody can choose names that collide.
var nameSeed = maphash.MakeSeed()

// hashName returns the hash of a name.
func hashName(name string) uint64 { return maphash.String(nameSeed, name) }

// hashOf returns the key of a name.
func (ta *Tasks) hashOf(name string) uint64 {
	if ta.hash != nil {
		return ta.hash(name)
	}
	return hashName(name)
}

// Get returns the task with a full name, or nil.
func (ta *Tasks) Get(name string) *Task {
	if t := ta.byHash[ta.hashOf(name)]; t != nil && t.FullName() == name {
		return t
	}
	return ta.collided[name]
}

// Put adds a task, in place of another one of its name. It must be called again after Text has changed.
func (ta *Tasks) Put(t *Task) {
	name := t.FullName()
	hash := ta.hashOf(name)

	// A task stays where it is, also if the hash is free by now. Otherwise it would be in both maps.
	first := ta.byHash[hash]
	if ta.collided[name] != nil || first != nil && first.FullName() != name {
		if ta.collided == nil {
			ta.collided = map[string]*Task{}
		}
		ta.collided[name] = t // the key becomes a part of the new text, so that the old one can be freed

		return
	}

	if ta.byHash == nil {
		ta.byHash = map[uint64]*Task{}
	}
	ta.byHash[hash] = t
}

// Delete removes the task with a full name, if there is one.
func (ta *Tasks) Delete(name string) {
	hash := ta.hashOf(name)
	if t := ta.byHash[hash]; t != nil && t.FullName() == name {
		delete(ta.byHash, hash)
		return
	}

	delete(ta.collided, name)
}

// Len returns the number of tasks.
func (ta *Tasks) Len() int { return len(ta.byHash) + len(ta.collided) }

// All returns all tasks, in no particular order. The caller may delete tasks meanwhile.
func (ta *Tasks) All() iter.Seq[*Task] {
	return func(yield func(*Task) bool) {
		for _, t := range ta.byHash {
			if !yield(t) {
				return
			}
		}

		for _, t := range ta.collided {
			if !yield(t) {
				return
			}
		}
	}
}

// ByName orders tasks by their full names.
func ByName(a, b *Task) int { return strings.Compare(a.FullName(), b.FullName()) }

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

// ActiveTasks are the tasks of a shard that have waiting or active runs, in no particular order.
type ActiveTasks struct{ Tasks []*Task }

// Add adds a task, which must have an Activity and must not be in such a list.
func (a *ActiveTasks) Add(t *Task) {
	t.Activity.among, t.Activity.At = a, int32(len(a.Tasks))
	a.Tasks = append(a.Tasks, t)
}

func (a *ActiveTasks) removeTask(t *Task) {
	last := len(a.Tasks) - 1
	a.Tasks[t.Activity.At] = a.Tasks[last]
	a.Tasks[t.Activity.At].Activity.At = t.Activity.At
	a.Tasks[last] = nil

	// Release memory after a peak.
	if a.Tasks = a.Tasks[:last]; cap(a.Tasks) > 1024 && last < cap(a.Tasks)/8 {
		a.Tasks = append(make([]*Task, 0, 2*last), a.Tasks...)
	}
}

// TokenLine is the queue of a shard's tasks that wait for a catch-up token, in the order in which they came. A task may
// be in it although it no longer needs a token.
type TokenLine struct {
	Turn    time.Time // when to ask for tokens again
	Granted int       // tokens that the current round may use for tasks that were taken off the line

	tasks []*Task
}

// Len returns the number of tasks in the line.
func (l *TokenLine) Len() int { return len(l.tasks) }

// Add puts a task at the end of the line, and reports whether it was not in the line before. A task without waiting or
// active runs is not added: its tick waits in the queue only after the commit, and then joins.
func (l *TokenLine) Add(t *Task) bool {
	if t.Activity == nil || t.Activity.InLine {
		return false
	}

	t.Activity.InLine = true

	if len(l.tasks) == 0 {
		// The line was empty, so the shard asks for tokens at once.
		l.Turn = time.Time{}
	}

	l.tasks = append(l.tasks, t)

	return true
}

// RemoveLast removes the tasks that joined the line last, in the plan that is being abandoned.
func (l *TokenLine) RemoveLast(joined []*Task) {
	for _, t := range joined {
		// A task whose activity was dropped meanwhile has nothing left that waits.
		if t.Activity != nil {
			t.Activity.InLine = false
		}
	}

	left := len(l.tasks) - len(joined)
	clear(l.tasks[left:])
	l.tasks = l.tasks[:left]
}

// Next removes the first task that still waits from the line and returns it, or nil if there is none.
func (l *TokenLine) Next() *Task {
	for len(l.tasks) > 0 {
		t := l.tasks[0]
		l.tasks[0] = nil
		if l.tasks = l.tasks[1:]; len(l.tasks) == 0 {
			l.tasks = nil
		}

		if t.Activity != nil && t.Activity.InLine {
			t.Activity.InLine = false
			return t
		}
	}

	return nil
}
