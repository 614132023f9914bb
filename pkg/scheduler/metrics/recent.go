package metrics

import (
	"iter"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// recentSlot is the length of each part of the last minute.
	recentSlot = 5 * time.Second
	// recentSlots are the parts of a minute, and the one that is being filled.
	recentSlots = 13
)

// Recent counts what a node has decided in the last minute, and how runs ended. The zero value is empty. It
// is safe for concurrent use.
type Recent struct {
	mu    sync.Mutex
	slots [recentSlots]recentCounts
}

// recentCounts are the counts of one slot of time.
type recentCounts struct {
	number  int64                    // of the slot, counted from 1970
	skipped int64                    // ticks that did not run
	ok      int64                    // runs that succeeded
	failed  int64                    // runs that failed
	maxMS   int64                    // the greatest lateness, in ms
	late    [task.LateBuckets]uint32 // ticks that run, by lateness
}

// slotAt returns the slot of an instant, and clears it first if it holds an older one. The caller holds the
// lock.
func (r *Recent) slotAt(now time.Time) *recentCounts {
	number := now.UnixMilli() / recentSlot.Milliseconds()
	s := &r.slots[number%recentSlots]
	if s.number != number {
		*s = recentCounts{number: number}
	}

	return s
}

// AddDecided adds what one commit has decided: how many ticks do not run, and how late each of the others
// is. A negative lateness is that of a run that has waited, and is ignored.
func (r *Recent) AddDecided(now time.Time, skipped int64, lateness iter.Seq[time.Duration]) {
	r.mu.Lock()
	defer r.mu.Unlock()

	s := r.slotAt(now)
	s.skipped += skipped

	for late := range lateness {
		if late < 0 {
			continue
		}

		ms := late.Milliseconds()
		s.late[task.LateBucket(ms)]++
		s.maxMS = max(s.maxMS, ms)
	}
}

// AddEnded counts the end of a run.
func (r *Recent) AddEnded(now time.Time, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	s := r.slotAt(now)
	if failed {
		s.failed++
	} else {
		s.ok++
	}
}

// Tally returns the counts of the last minute before now.
func (r *Recent) Tally(now time.Time) task.Tally {
	r.mu.Lock()
	defer r.mu.Unlock()

	// A slot counts only if it belongs to the last minute. Others hold counts of an earlier one.
	newest := now.UnixMilli() / recentSlot.Milliseconds()
	t := task.Tally{Late: make([]int64, task.LateBuckets), Rate: make([]int64, 0, recentSlots-1)}

	for number := newest - recentSlots + 1; number <= newest; number++ {
		s, fired := &r.slots[number%recentSlots], int64(0)
		if s.number == number {
			t.Skipped, t.Succeeded, t.Failed, t.MaxMS = t.Skipped+s.skipped, t.Succeeded+s.ok, t.Failed+s.failed, max(t.MaxMS, s.maxMS)
			for i, n := range s.late {
				t.Late[i] += int64(n)
				fired += int64(n)
			}
		}

		if number < newest { // the last is not full yet
			t.Rate = append(t.Rate, fired)
		}
	}

	return t
}
