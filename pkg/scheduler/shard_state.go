package scheduler

import (
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/failures"
	"github.com/carillonhq/carillon/pkg/scheduler/known"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// shardState is what an owner knows of its shard, and decides by it: a deterministic state
// machine. It has no clock, network, goroutine, lock, logger or metric. Whatever it needs of
// these it gets with a call, or from a port.
//
// Only the worker's goroutine calls it. The worker gives it events (applyRecords), asks it for a plan
// (buildPlan), commits that, and says what became of it (applyCommitted, applyConflict or applyAbandoned).
// In between it calls nothing else (mustBeSettled): a plan points into the state that it was made from.
type shardState struct {
	ports
	known.Records
	agenda
	fences store.Fences

	owner            bool // the shard has been opened: what is known counts
	watermarkKnown   bool // Watermark is known, so that the next ticks can be
	firstPageApplied bool // the shard's first page is applied

	applied int64 // all events up to here are applied

	lastPlan plan // the one under way, or the last: the next one reuses its slices

	revised   int64 // the mod revision of the shard's key revised; 0: it is not there
	revisedAt int64 // the revision at which that was so
	readAhead readAhead
	overtaken int // commits in a row that were lost to edits the watch had not told of

	due       taskstate.Heap
	onTime    int64                        // no task is behind at this instant, in Unix milliseconds; 0: nobody has looked
	uncovered map[*taskstate.Task]struct{} // created after Watermark.Seen, with ticks up to Watermark.Time
	active    taskstate.ActiveTasks        // of which something waits or runs
	unread    needHistorySet               // their histories are to be read
	purges    map[string]int64             // records of history that are to go: key and mod revision

	// gone are the records that commits of ours deleted, and the revisions of these commits, until the
	// watch has told so. Those of the queue are named namespace/name/run, others by their key.
	gone map[string]int64

	endedSince   map[string]int64                 // runs that ended since the shard was opened; nil once the scan is in
	parts        record.EntryParts                // of the entry read last
	skippedSpans map[*taskstate.Task]*skippedSpan // of tasks whose last ticks were skipped
	line         line                             // late ticks that wait for their turn
	opening      opening                          // how it found the shard at first
	stubborn     map[string]bool                  // tasks for which the shard was opened again

	failures failures.Set // which tasks are failing, for the board

	census taskstate.Census // how many tasks of which kind
	queued int              // runs in queues

	notices []notice // for a person; the worker logs them
}

// mustBeSettled panics if a decision is outstanding: a plan whose commit has neither been taken into memory
// (applyCommitted) nor given up (applyAbandoned, applyConflict). Its effects point into the state, which nobody else may change
// meanwhile.
func (s *shardState) mustBeSettled() {
	if s.lastPlan.commit != nil {
		panic("scheduler: the shard's state changes while a decision is outstanding")
	}
}

// reset forgets all tasks and what concerns them: the shard is to be loaded. The watermark, how the shard was
// found at first (opening) and the tasks for which it was opened again (stubborn) stay: the opening that follows
// replaces the watermark before any tick is decided. owner says already that what is loaded now counts.
func (s *shardState) reset() {
	s.mustBeSettled()
	s.releaseAll()

	s.Tasks, s.due, s.onTime = map[string]*taskstate.Task{}, nil, 0
	s.uncovered, s.unread = map[*taskstate.Task]struct{}{}, needHistorySet{}
	s.active, s.census, s.failures = taskstate.ActiveTasks{}, taskstate.Census{}, failures.NewSet()
	s.agenda = agenda{rests: map[*taskstate.Task]int64{}, looked: s.looked}
	s.purges, s.gone = map[string]int64{}, map[string]int64{}
	s.endedSince = map[string]int64{}
	s.skippedSpans, s.line = map[*taskstate.Task]*skippedSpan{}, line{}
	s.revised, s.revisedAt, s.overtaken, s.readAhead = 0, 0, 0, readAhead{}
	s.owner, s.watermarkKnown, s.firstPageApplied = true, true, false
}

// releaseAll gives back what the shard has of all that shards share: the slots of its attempts, and
// its place in line.
func (s *shardState) releaseAll() {
	for _, t := range s.Tasks {
		for _, a := range t.Active() {
			s.placement.Release(a.Node)
		}
	}

	s.tokens.Leave()

	// All that holds many tasks: the board may know the worker when its shard is long another's.
	s.Tasks, s.due, s.active, s.uncovered = nil, nil, taskstate.ActiveTasks{}, nil
	s.census, s.queued = taskstate.Census{}, 0
}

// A notice is something that a person should read.
type notice struct {
	kind     noticeKind
	task     string
	run      string
	failures int
	err      error
}

type noticeKind int

const (
	taskPaused        noticeKind = iota // too many of its runs in a row failed
	taskSetAside                        // every commit for it fails
	entryUnreadable                     // the task does not fire
	queuedUnreadable                    // the run waits for ever
	partUnreadable                      // it counts as failed
	partNowhere                         // a part of a run is on no record, and is lost
	attemptUnreadable                   // its node is gone; it is lost when that has been long enough
)

// addNotice keeps a notice for the worker.
func (s *shardState) addNotice(n notice) { s.notices = append(s.notices, n) }

// settings is what a plan decides by, beside the shard's state: as it is now.
type settings struct {
	clock       time.Time
	cluster     task.Cluster
	freezes     *task.Freezes // nil: none
	freezesRead int64         // the mod revision of their record
}

// ensureActivity returns t's activity, and makes it if t has none.
func (s *shardState) ensureActivity(t *taskstate.Task) *taskstate.Activity {
	if t.Activity == nil {
		t.Activity = &taskstate.Activity{}
		s.active.Add(t)
	}
	return t.Activity
}

// dropTask forgets a task of which nothing is left. Another may bear its name by
// now: that one stays.
func (s *shardState) dropTask(t *taskstate.Task) {
	if t.Empty() && s.Tasks[t.FullName()] == t {
		delete(s.Tasks, t.FullName())
		s.endSpan(t)
	}
}

// needHistorySet are the tasks whose history is to be read before more is decided of them.
type needHistorySet map[*taskstate.Task]struct{}
