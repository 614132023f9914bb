package scheduler

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/rows"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
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
	ports   ports
	records state.Records
	agenda  agenda
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

	due state.Heap // tasks with a tick to come, by its due time, without those that are set aside
	// onTime is an instant, in Unix milliseconds, at which no task is behind. It is 0 if that is not known.
	onTime int64
	// uncovered are tasks that the watermark does not cover (created after Watermark.Seen) and that have
	// undecided ticks up to its time.
	uncovered map[*state.Task]struct{}
	active    state.ActiveTasks // tasks with waiting or active runs
	unread    needHistorySet    // tasks whose histories must be read

	// wantedPlans are plans of workflows that must be read, and badPlans why those of some tasks cannot be read. They are nil until
	// the first of them.
	wantedPlans map[wantedPlan]struct{}
	badPlans    map[*state.Task]badPlan

	purges map[string]int64 // history records to delete: key to mod revision

	// gone are the records that this owner's commits have deleted, and the revisions of these commits,
	// until the watch has reported the deletions. Queue records are named namespace/name/run, all others by
	// their key.
	gone map[string]int64

	// endedSince holds, by namespace/name/run, the revision at which a run ended since the shard was
	// opened. The scan for active attempts may still contain such runs. It is nil once the scan is applied.
	endedSince   map[string]int64
	skippedSpans map[*state.Task]*skippedSpan // by task, the record that its next skipped tick may extend
	// triggered is what is remembered about tasks whose triggers have got an outcome. It is nil until the first of them.
	triggered map[*state.Task]triggeredTask

	line        state.TokenLine // tasks that wait for a catch-up token
	opening     state.Opening   // how the shard was found when this owner first opened it
	reopenedFor map[string]bool // tasks whose failing commits caused a reopening of the shard
	aside       setAsideTasks   // tasks for which commits fail

	limits state.NamespaceChecks // of tasks by the records of their namespaces

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

	s.records.Tasks, s.records.Links, s.due, s.onTime = state.Tasks{}, state.Links{}, nil, 0
	s.triggered, s.wantedPlans, s.badPlans = nil, nil, nil
	s.uncovered, s.unread = map[*state.Task]struct{}{}, needHistorySet{}
	s.active = state.ActiveTasks{}
	s.agenda = agenda{lastRound: s.agenda.lastRound}
	s.purges, s.gone = map[string]int64{}, map[string]int64{}
	s.aside = setAsideTasks{retryAt: map[*state.Task]int64{}}
	s.endedSince = map[string]int64{}
	s.skippedSpans, s.line = map[*state.Task]*skippedSpan{}, state.TokenLine{}
	s.revised, s.revisedAt, s.overtaken, s.readAhead = 0, 0, 0, readAhead{}
	s.owner, s.watermarkKnown, s.firstPageApplied = true, true, false
}

// releaseAll gives back what the shard holds of shared resources: the slots of its attempts, and its place
// in line. It forgets all tasks.
func (s *shardState) releaseAll() {
	for t := range s.records.Tasks.All() {
		for _, a := range t.Active() {
			s.ports.placement.Release(a.Node, a.Pool)
		}
	}

	s.ports.tokens.Leave()

	// A worker that has ended is not dropped at once. Release the memory of the tasks now.
	s.records.Tasks, s.records.Links, s.due, s.active, s.uncovered = state.Tasks{}, state.Links{}, nil, state.ActiveTasks{}, nil
	s.aside = setAsideTasks{}
	s.queued, s.rows = 0, rows.NewWriter()
}

// A notice is a message for people, which the worker logs. Some notices are also counted. Fields that do
// not apply are zero.
type notice struct {
	kind       noticeKind
	task       string
	run        string
	failedRuns int // consecutive failures, for taskPaused
	err        error
}

type noticeKind int

const (
	taskPaused        noticeKind = iota // too many consecutive runs failed
	taskSetAside                        // commits for the task fail
	entryUnreadable                     // the task has no ticks
	queuedUnreadable                    // the run waits until its record changes
	partUnreadable                      // the part counts as failed
	partNowhere                         // no record of the part exists; it is lost
	triggerUnreadable                   // it starts nothing
	attemptUnreadable                   // the attempt's node is gone; it is lost after the longest lost_after
)

// addNotice stores a notice for the worker.
func (s *shardState) addNotice(n notice) { s.notices = append(s.notices, n) }

// ensureActivity returns t's activity, and creates it if t has none.
func (s *shardState) ensureActivity(t *state.Task) *state.Activity {
	if t.Activity == nil {
		t.Activity = &state.Activity{}
		s.active.Add(t)
	}
	return t.Activity
}

// dropTask forgets a task that has no entry, no runs and no triggers left. Another task object may have the same name by
// now, and stays.
func (s *shardState) dropTask(t *state.Task) {
	if t.Empty() && s.records.Tasks.Get(t.FullName()) == t && !s.hasTriggers(t) {
		s.records.Tasks.Delete(t.FullName())
		s.endSpan(t)
		delete(s.triggered, t)
		delete(s.badPlans, t)
		delete(s.aside.retryAt, t)
		s.agenda.later.remove(t)
	}
}

// needHistorySet are the tasks about which nothing more is decided before their history has been read.
type needHistorySet map[*state.Task]struct{}

// noteOpening records the time of the opening and the watermark that it found. Later openings by the same
// worker belong to the same ownership and are not recorded.
func (s *shardState) noteOpening(mark record.Watermark, now time.Time) {
	if s.opening.At.IsZero() {
		s.opening = state.Opening{At: now, Mark: mark.Time.Time}
	}
}

// ports are what a shard's decisions depend on besides its own state. Decisions depend on nothing else: no
// clock, no network, no global random numbers. Tests and scripts replace all of them.
type ports struct {
	node         string // name of this node, which becomes the owner in run records
	commits      commitMaker
	definitions  state.Definitions
	plans        plans
	placement    placer
	tokens       tokens
	trims        trims
	sends        sends
	ends         endCounter
	nextAttempt  NextAttempt   // applies the retry policy
	clearedAfter time.Duration // see Config.ClearedAfter
	random       *rand.Rand    // for jitter of retries and of trims
}

// commitMaker makes empty commits. The result depends only on the arguments.
type commitMaker interface {
	NewCommit(shard int, f store.Fences, known int64, w record.Watermark) *store.Commit
}

// plans keeps plans of workflows, for all shards of a node. A plan that it does not keep any more is read again.
type plans interface {
	Plan(uid string, generation int64) *state.FlowPlan
	Keep(uid string, p *state.FlowPlan)
}

// trims accepts requests to cut a history to its length. Ask returns false if it is busy; the shard then
// asks again later.
type trims interface{ Ask(background.Trim) bool }

// sends accepts requests to send the triggers of a source to its dependents. Ask does not block.
type sends interface{ Ask(background.Send) }

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

// agenda holds which tasks the next plan examines, and when the worker must examine tasks again. It affects
// only when a task is examined, never what is decided. So it stays as it is when a commit fails.
type agenda struct {
	// toExamine are the tasks that the next plan examines, each once: something waits, or an attempt needs
	// attention.
	toExamine []*state.Task
	// later holds tasks that must be examined at a certain time. Each examination adds the task again if another one
	// will be needed.
	later laterTasks
	// examineAllAt is when to examine all tasks with waiting or active runs, or zero. It is for conditions that affect
	// many of them, such as an unavailable etcd.
	examineAllAt time.Time
	lastRound    time.Time // when the last round began
}

// examineAgainAt schedules an examination of the task at the given time or earlier. If an earlier examination is
// scheduled already, it will schedule this one again.
func (a *agenda) examineAgainAt(t *state.Task, at time.Time) {
	a.later.add(t, at.Add(time.Millisecond-time.Nanosecond).UnixMilli())
}

// moveDueTasks moves the tasks whose examination is due to toExamine. now is in Unix milliseconds.
func (a *agenda) moveDueTasks(now int64) {
	for len(a.later.heap) > 0 && a.later.heap[0].at <= now {
		a.examineNext(a.later.pop())
	}
}

// clockWasSetBack records the time of a round, which must have a monotonic reading, and reports whether the clock
// was set back since the previous round. In that case, tasks would be examined too late.
func (a *agenda) clockWasSetBack(now time.Time) bool {
	last := a.lastRound
	a.lastRound = now

	// Sub uses the monotonic readings, unless they are removed.
	passed := now.Round(0).Sub(last.Round(0))

	return !last.IsZero() && (passed < 0 || now.Sub(last)-passed > maxClockDrift)
}

// maxClockDrift is how far the wall clock may fall behind the monotonic clock between two rounds.
const maxClockDrift = 100 * time.Millisecond

// laterTasks is a priority queue of tasks, ordered by the time of their next examination.
type laterTasks struct {
	heap  laterHeap
	notes map[*state.Task]*laterNote
}

// laterNote is when to examine a task.
type laterNote struct {
	task  *state.Task
	at    int64 // Unix milliseconds
	index int   // in the heap
}

// add schedules a task, unless it is already scheduled for an earlier time.
func (l *laterTasks) add(t *state.Task, at int64) {
	if n := l.notes[t]; n != nil {
		if at < n.at {
			n.at = at
			heap.Fix(&l.heap, n.index)
		}
		return
	}

	n := &laterNote{task: t, at: at}
	if l.notes == nil {
		l.notes = map[*state.Task]*laterNote{}
	}

	l.notes[t] = n
	heap.Push(&l.heap, n)
}

// remove removes a task, if it is scheduled.
func (l *laterTasks) remove(t *state.Task) {
	if n := l.notes[t]; n != nil {
		heap.Remove(&l.heap, n.index)
		delete(l.notes, t)
	}
}

// pop removes the task with the earliest time and returns it. There must be one.
func (l *laterTasks) pop() *state.Task {
	n := heap.Pop(&l.heap).(*laterNote)
	delete(l.notes, n.task)

	return n.task
}

// next returns the earliest time in Unix milliseconds, and false if there is none.
func (l *laterTasks) next() (at int64, ok bool) {
	if len(l.heap) == 0 {
		return 0, false
	}
	return l.heap[0].at, true
}

// laterHeap implements heap.Interface for laterTasks.
type laterHeap []*laterNote

func (h laterHeap) Len() int           { return len(h) }
func (h laterHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h laterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *laterHeap) Push(x any) {
	n := x.(*laterNote)
	n.index = len(*h)
	*h = append(*h, n)
}
func (h *laterHeap) Pop() any {
	last := len(*h) - 1
	n := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]

	return n
}

// takeToExamine returns the tasks to examine, ordered by name so that plans are deterministic, and empties the
// list. The caller clears Task.IsListed of each.
func (a *agenda) takeToExamine() []*state.Task {
	tasks := a.toExamine
	a.toExamine = nil
	slices.SortFunc(tasks, state.ByName)

	return tasks
}

// examineAll notes all tasks that have waiting or active runs, or triggers.
func (s *shardState) examineAll() {
	for _, t := range s.active.Tasks {
		s.agenda.examineNext(t)
	}

	for _, name := range s.records.Links.WithTriggers() {
		if t := s.records.Tasks.Get(name); t != nil {
			s.agenda.examineNext(t)
		}
	}
}

// examineAllBy makes the worker examine all tasks with waiting or active runs at t or earlier.
func (a *agenda) examineAllBy(t time.Time) {
	if a.examineAllAt.IsZero() || t.Before(a.examineAllAt) {
		a.examineAllAt = t
	}
}

// examineNext notes that the next plan must examine the task.
func (a *agenda) examineNext(t *state.Task) {
	if t.SetListed(true) {
		a.toExamine = append(a.toExamine, t)
	}
}

// hasWork reports whether there may be something to decide at now, or a history to read.
func (s *shardState) hasWork(now time.Time) bool {
	return len(s.due) > 0 && s.due[0].DueAt() <= now.UnixMilli() || len(s.agenda.toExamine) > 0 || len(s.uncovered) > 0 || len(s.purges) > 0 || len(s.unread) > 0 ||
		len(s.wantedPlans) > 0 ||
		len(s.aside.ready(now.UnixMilli())) > 0
}

// rescheduleTask computes the task's next undecided tick from its entry and the watermark, and updates the
// heap. It is called when the entry or the watermark has changed.
func (s *shardState) rescheduleTask(t *state.Task) {
	// During a preload, the watermark is the last record to be loaded. Then all tasks are scheduled.
	if !s.watermarkKnown {
		return
	}

	tick := int64(0)
	if t.Fires() {
		tick = s.records.NextUndecided(t)
	}

	delete(s.uncovered, t)

	if tick == 0 {
		s.rows.Touch(t)
		s.due.Set(t, 0)
		return
	}

	s.scheduleTick(t, tick)

	// The watermark's time has passed this tick although it is undecided. decideUncovered decides it (G4).
	if !s.records.CoveredByWatermark(t) && t.DueAt() <= s.records.Watermark.Time.UnixMilli() {
		s.uncovered[t] = struct{}{}
	}
}

// advanceToNextTick moves a task to the tick after the one that was just decided.
func (s *shardState) advanceToNextTick(t *state.Task) {
	if t.Second == 0 {
		s.rows.Touch(t)
		s.due.Set(t, 0)
		return
	}
	s.scheduleTick(t, t.Second)
}

// scheduleTick puts a task into the heap with the given next tick, and computes the one after it.
func (s *shardState) scheduleTick(t *state.Task, tick int64) {
	t.Second = t.After(tick)
	s.due.Set(t, tick)
	s.rows.Touch(t)

	if s.aside.has(t) {
		s.takeOffHeap(t)
		return
	}

	// The task is behind, so the remembered result of anyBehind is no longer true.
	if s.onTime != 0 && t.IsBehind(s.onTime) {
		s.onTime = 0
	}
}

// loadWatermark computes the next ticks of all tasks from the watermark in a page of a load. The watermark
// is in the last page. A damaged one is ignored here, because the opening of the shard reports it.
func (s *shardState) loadWatermark(b store.ShardBatch) {
	for i := len(b.Events) - 1; i >= 0; i-- {
		if b.Events[i].Kind != record.KindWatermark {
			continue
		}

		if mark, err := record.DecodeWatermark(b.Events[i].Value); err == nil {
			s.setWatermark(mark)
		}

		return
	}
}

// setWatermark sets a watermark that this worker has not written by a plan, and computes the next ticks of
// the tasks that it affects.
func (s *shardState) setWatermark(mark record.Watermark) {
	before := s.records.Watermark
	s.records.Watermark = mark

	// It is the first one, or it is lower than the one before: any task may be affected.
	if !s.watermarkKnown || mark.Time.Before(before.Time.Time) || mark.Seen < before.Seen {
		s.watermarkKnown = true
		for t := range s.records.Tasks.All() {
			s.rescheduleTask(t)
		}
		return
	}

	// Only tasks with a tick up to the new watermark are affected. For all others, the next tick stays the
	// same, whether or not the watermark covers the task.
	for _, t := range s.due.UpTo(mark.Time.UnixMilli()) {
		s.rescheduleTask(t)
	}
}
