package views

import (
	"sync"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// maxRecentReads is how many tasks a recentReads remembers. What it remembers of a task takes some 200 bytes.
const maxRecentReads = 4096

// recentReads remembers where the recent runs of tasks began when they were last read, so that pages that are read again and
// again read only the end of each history. It may be out of date: see store.Runs.OutcomesAfter. The zero value is empty.
type recentReads struct {
	mu     sync.Mutex
	oldest map[recentRead]string
}

// recentRead is a reading of the newest runs of a task.
type recentRead struct {
	ref record.Ref
	n   int
}

// oldestOf returns for each task the oldest record of the last reading of its n newest runs; "" if it is not known.
func (r *recentReads) oldestOf(refs []record.Ref, n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()

	list := make([]string, len(refs))
	for i, ref := range refs {
		list[i] = r.oldest[recentRead{ref, n}]
	}

	return list
}

// keep remembers a reading of the n newest runs of tasks.
func (r *recentReads) keep(refs []record.Ref, n int, outcomes []store.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.oldest == nil || len(r.oldest)+len(refs) > maxRecentReads {
		r.oldest = map[recentRead]string{}
	}
	for i, ref := range refs {
		if outcomes[i].Oldest != "" {
			r.oldest[recentRead{ref, n}] = outcomes[i].Oldest
		}
	}
}
