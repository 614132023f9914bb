package readmodel

import (
	"slices"
	"strings"
	"sync"
)

// maxRecentRuns is how many runs an Index remembers. Each takes about 100 bytes.
const maxRecentRuns = 256

// RunPlace identifies a run that waits or has ended, or ticks that did not run. Its id begins with its time.
type RunPlace struct {
	Task string `json:"task" doc:"The namespace and the name of the task."`
	Run  string `json:"run" doc:"The id of the run."`
}

// compareRuns orders runs by their ids, and so by their times.
func compareRuns(a, b RunPlace) int {
	if c := strings.Compare(a.Run, b.Run); c != 0 {
		return c
	}
	return strings.Compare(a.Task, b.Task)
}

// RunsRange asks for the newest runs that owners remember.
type RunsRange struct {
	Before string `json:"before,omitempty"` // only runs with smaller ids; "": no limit
	Limit  int    `json:"limit"`
}

// recentRuns are the newest runs in the queue and the history of a shard. Some may have left both: they are active.
type recentRuns struct {
	mu   sync.Mutex
	runs []RunPlace // the oldest first
	// after is the id after which all runs are in runs. Older ones are not all known: they are from before the shard was
	// loaded, or were dropped.
	after string
}

// NoteLoad notes that runs with ids up to one may be missing, because they are from before the shard was loaded.
func (in *Index) NoteLoad(after string) {
	r := &in.recent
	r.mu.Lock()
	defer r.mu.Unlock()

	r.forgetUpTo(after)
}

// forgetUpTo drops the runs with ids up to one. The caller must hold mu.
func (r *recentRuns) forgetUpTo(id string) {
	r.after = max(r.after, id)
	n := 0
	for n < len(r.runs) && r.runs[n].Run <= r.after {
		n++
	}
	r.runs = slices.Delete(r.runs, 0, n)
}

// AddRun adds a run whose record is in the queue or the history. It may be called again for the same run.
func (in *Index) AddRun(p RunPlace) {
	r := &in.recent
	r.mu.Lock()
	defer r.mu.Unlock()

	if p.Run <= r.after {
		return
	}

	at, known := slices.BinarySearchFunc(r.runs, p, compareRuns)
	if known {
		return
	}

	// They are parts of a key, and of a text that contains the whole action of the task.
	p.Run, p.Task = strings.Clone(p.Run), strings.Clone(p.Task)
	if r.runs = slices.Insert(r.runs, at, p); len(r.runs) > maxRecentRuns {
		r.forgetUpTo(r.runs[0].Run)
	}
}

// RemoveRun removes a run whose record in the history was deleted.
func (in *Index) RemoveRun(p RunPlace) {
	r := &in.recent
	r.mu.Lock()
	defer r.mu.Unlock()

	if at, known := slices.BinarySearchFunc(r.runs, p, compareRuns); known {
		r.runs = slices.Delete(r.runs, at, at+1)
	}
}

// addRuns adds to list the remembered runs of a shard that match a query, and returns the id after which they are
// complete.
func (in *Index) addRuns(q *Query, list []RunPlace) ([]RunPlace, string) {
	r := &in.recent
	r.mu.Lock()
	defer r.mu.Unlock()

	var row Row
	for _, p := range r.runs {
		if row.Name = p.Task; (q.Runs.Before == "" || p.Run < q.Runs.Before) && q.Filter.matches(&row, nil, q.Now) {
			list = append(list, p)
		}
	}

	return list, r.after
}

// RecentRuns are the newest runs that owners remember, the newest first. They are all that match with ids greater than
// After.
type RecentRuns struct {
	Runs  []RunPlace `json:"runs" doc:"The runs, the newest first."`
	After string     `json:"after" doc:"The list has all runs that match and whose ids are greater than this."`
}

// Merge adds the runs of other shards, and limits the list.
func (r *RecentRuns) Merge(others RecentRuns, limit int) {
	r.Runs, r.After = append(r.Runs, others.Runs...), max(r.After, others.After)
	slices.SortFunc(r.Runs, func(a, b RunPlace) int { return compareRuns(b, a) })

	if len(r.Runs) > limit {
		r.After = max(r.After, r.Runs[limit].Run)
		r.Runs = r.Runs[:limit]
	}
}
