package scheduler

import (
	"math/rand/v2"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/known"
	"github.com/carillonhq/carillon/pkg/scheduler/nslimits"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/scheduler/rows"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// shardState is an owner's copy of its shard, and decides what the shard's next commit writes. It is a
// deterministic state machine without a clock, network, goroutine, lock, logger or metric. What it needs of
// these is passed to its methods or comes from a port.
//
// Only the worker's goroutine calls it. The worker delivers events (applyRecords), requests a plan
// (buildPlan), commits that plan, and reports the outcome (applyCommitted, applyConflict or
// applyAbandoned). Between buildPlan and the outcome it calls nothing that changes the state
// (mustBeSettled), because a plan points into the state from which it was made.
type shardState struct {
	ports
	known.Records
	agenda
	// fences are what every commit compares. A preload has none.
	fences store.Fences

	owner            bool // the shard has been opened; false during a preload
	watermarkKnown   bool // Watermark is valid, so next ticks can be computed
	firstPageApplied bool // the first page of the load is applied

	// applied is the revision up to which all events of the shard are applied.
	applied int64

	// lastPlan is the current plan, or the last one, whose slices the next plan reuses. It is settled if
	// its commit is nil.
	lastPlan plan

	// revised is the known mod revision of the shard's revised key, or 0 if the key does not exist.
	// revisedAt is the revision at which that was known. See learnRevised.
	revised   int64
	revisedAt int64
	readAhead readAhead
	overtaken int // commits in a row that failed because of edits that the watch had not delivered

	due taskstate.Heap // tasks with a tick to come, by its due time, without those that are set aside
	// onTime is an instant, in Unix milliseconds, at which no task is behind. It is 0 if that is not known.
	onTime int64
	// uncovered are tasks that the watermark does not cover (created after Watermark.Seen) and that have
	// undecided ticks up to its time.
	uncovered map[*taskstate.Task]struct{}
	active    taskstate.ActiveTasks // tasks with waiting or active runs
	unread    needHistorySet        // tasks whose histories are to be read
	purges    map[string]int64      // history records to delete: key to mod revision

	// gone are the records that this owner's commits have deleted, and the revisions of these commits,
	// until the watch has reported the deletions. Queue records are named namespace/name/run, all others by
	// their key.
	gone map[string]int64

	// endedSince holds, by namespace/name/run, the revision at which a run ended since the shard was
	// opened. The scan for active attempts may still contain such runs. It is nil once the scan is applied.
	endedSince   map[string]int64
	skippedSpans map[*taskstate.Task]*skippedSpan // by task, the record that its next skipped tick may extend
	line         taskstate.TokenLine              // tasks that wait for a catch-up token
	opening      known.Opening                    // how the shard was found when this owner first opened it
	reopenedFor  map[string]bool                  // tasks whose failing commits caused a reopening of the shard
	aside        setAsideTasks                    // tasks for which commits fail

	limits nslimits.Checks // of tasks by the records of their namespaces

	// rows writes what queries read. It is a port: nothing is read from it.
	rows rows.Writer

	queued int // number of runs in queues

	notices []notice // messages that the worker logs
}

// mustBeSettled panics if a plan is outstanding: its commit has been neither applied (applyCommitted) nor
// given up (applyAbandoned, applyConflict). The plan's effects point into the state, which must not change
// meanwhile.
func (s *shardState) mustBeSettled() {
	if s.lastPlan.commit != nil {
		panic("scheduler: the shard's state changes while a decision is outstanding")
	}
}

// forgetTasks forgets all tasks and everything about them, before a load. The watermark stays until the
// opening that follows replaces it, which is before any tick is decided. The first opening and the tasks
// that caused a reopening (reopenedFor) stay as well. owner is true from now on, because what is loaded next
// belongs to the owner's state.
func (s *shardState) forgetTasks() {
	s.mustBeSettled()
	s.releaseAll()

	s.Tasks, s.due, s.onTime = taskstate.Tasks{}, nil, 0
	s.uncovered, s.unread = map[*taskstate.Task]struct{}{}, needHistorySet{}
	s.active = taskstate.ActiveTasks{}
	s.agenda = agenda{lastRound: s.lastRound}
	s.purges, s.gone = map[string]int64{}, map[string]int64{}
	s.aside = setAsideTasks{retryAt: map[*taskstate.Task]int64{}}
	s.endedSince = map[string]int64{}
	s.skippedSpans, s.line = map[*taskstate.Task]*skippedSpan{}, taskstate.TokenLine{}
	s.revised, s.revisedAt, s.overtaken, s.readAhead = 0, 0, 0, readAhead{}
	s.owner, s.watermarkKnown, s.firstPageApplied = true, true, false
}

// releaseAll gives back what the shard holds of shared resources: the slots of its attempts, and its place
// in line. It forgets all tasks.
func (s *shardState) releaseAll() {
	for t := range s.Tasks.All() {
		for _, a := range t.Active() {
			s.placement.Release(a.Node, a.Pool)
		}
	}

	s.tokens.Leave()

	// A worker that has ended is not dropped at once. Release the memory of the tasks now.
	s.Tasks, s.due, s.active, s.uncovered = taskstate.Tasks{}, nil, taskstate.ActiveTasks{}, nil
	s.aside = setAsideTasks{}
	s.queued, s.rows = 0, rows.NewWriter()
}

// A notice is a message for people, which the worker logs. Some notices are also counted. Fields that do
// not apply are zero.
type notice struct {
	kind     noticeKind
	task     string
	run      string
	failures int // consecutive failures, for taskPaused
	err      error
}

type noticeKind int

const (
	taskPaused        noticeKind = iota // too many consecutive runs failed
	taskSetAside                        // commits for the task fail
	entryUnreadable                     // the task has no ticks
	queuedUnreadable                    // the run waits until its record changes
	partUnreadable                      // the part counts as failed
	partNowhere                         // no record of the part exists; it is lost
	attemptUnreadable                   // the attempt's node is gone; it is lost after the longest lost_after
)

// addNotice stores a notice for the worker.
func (s *shardState) addNotice(n notice) { s.notices = append(s.notices, n) }

// ensureActivity returns t's activity, and creates it if t has none.
func (s *shardState) ensureActivity(t *taskstate.Task) *taskstate.Activity {
	if t.Activity == nil {
		t.Activity = &taskstate.Activity{}
		s.active.Add(t)
	}
	return t.Activity
}

// dropTask forgets a task that has no entry and no runs left. Another task object may have the same name by now, and
// stays.
func (s *shardState) dropTask(t *taskstate.Task) {
	if t.Empty() && s.Tasks.Get(t.FullName()) == t {
		s.Tasks.Delete(t.FullName())
		s.endSpan(t)
		delete(s.aside.retryAt, t)
		s.later.remove(t)
	}
}

// needHistorySet are the tasks about which nothing more is decided before their history has been read.
type needHistorySet map[*taskstate.Task]struct{}

// noteOpening records the time of the opening and the watermark that it found. Later openings by the same
// worker belong to the same ownership and are not recorded.
func (s *shardState) noteOpening(mark record.Watermark, now time.Time) {
	if s.opening.At.IsZero() {
		s.opening = known.Opening{At: now, Mark: mark.Time.Time}
	}
}

// ports are what a shard's decisions depend on besides its own state. Decisions depend on nothing else: no
// clock, no network, no global random numbers. Tests and scripts replace all of them.
type ports struct {
	node         string // name of this node, which becomes the owner in run records
	commits      commitMaker
	definitions  known.Definitions
	placement    placer
	tokens       tokens
	trims        trims
	ends         endCounter
	nextAttempt  NextAttempt   // applies the retry policy
	clearedAfter time.Duration // see Config.ClearedAfter
	random       *rand.Rand    // for jitter of retries and of trims
}

// commitMaker makes empty commits. The result depends only on the arguments.
type commitMaker interface {
	NewCommit(shard int, f store.Fences, known int64, w record.Watermark) *store.Commit
}

// trims accepts requests to cut a history to its length. Ask returns false if it is busy; the shard then
// asks again later.
type trims interface{ Ask(retention.Trim) bool }

// Namespaces are the records of the namespaces at one revision. A plan uses one value throughout.
type Namespaces interface {
	// Namespace returns the record of a namespace, or nil if there is none. The record must not be changed.
	Namespace(name string) *task.Namespace
}

// OpenNamespaces has an open record of every namespace, for tests and benchmarks.
type OpenNamespaces struct{}

var openNamespace = task.Namespace{RunAs: []string{"*"}, Groups: []string{"*"}, Shell: true, EnvFiles: []string{"*"}}

// Namespace implements Namespaces.
func (OpenNamespaces) Namespace(string) *task.Namespace { return &openNamespace }

// endCounter counts how runs end.
type endCounter interface {
	AddEnded(now time.Time, failed bool)
}

// placer chooses nodes for runs. All shards of a node share one, which locks internally. It is a port and
// not part of the state, because whether a tick fires or waits depends on whether a node is free: a tick
// cannot be decided first and placed later.
type placer interface {
	// Reserve chooses a node and counts one of its slots as taken. It returns false if no node accepts the
	// run.
	Reserve(w placement.Want, now time.Time) (*task.Node, bool)
	// ReserveNamed is like Reserve, for the node with a given name. Only the pool and the secret of w apply.
	ReserveNamed(name string, w placement.Want, now time.Time) (*task.Node, bool)
	// Rank returns the names of the matching nodes, the best first. It counts nothing.
	Rank(w placement.Want, now time.Time) []string
	// Occupy counts an attempt that was found in a node's inbox.
	Occupy(node string, pool placement.Pool)
	// Release gives a slot back: it was not used, or its attempt has ended.
	Release(node string, pool placement.Pool)
	// Present returns a node, and whether it is present.
	Present(name string) (*task.Node, bool)
	// Suspect leaves a node out for a while, because a commit found that its session is not the one that is
	// known.
	Suspect(node string, session int64, now time.Time)
	// SuspectUntil returns when the first suspicion ends. It returns false if no node is suspect.
	SuspectUntil(now time.Time) (until time.Time, ok bool)
}

// tokens limits how fast runs of late ticks start. All shards of a node share one limiter.
type tokens interface {
	// Take takes a token. It returns false if there is none.
	Take(now time.Time) bool
	// Return gives back n tokens that were not used.
	Return(n int)
	// Turn returns how many tasks of this shard's line may have a token now, and after which time to ask
	// again.
	Turn(now time.Time) (n int, again time.Duration)
	// Leave declares that this shard's line is empty.
	Leave()
}
