package scheduler

import (
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/scheduler/node"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/state"
	"github.com/carillonhq/carillon/pkg/scheduler/triggers"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// A plan is one decision: a list of effects, and what it has reserved for them.
//
//   - An effect is a change that the shard's next commit makes. It changes memory only after the commit has
//     succeeded (applyCommitted).
//   - A reservation is taken while deciding, because the decision depends on it: a slot of a node, a catch-up token,
//     a task off the heap. If the commit does not succeed, all of them are given back (applyAbandoned).
//
// Nothing else that a plan does changes what is decided, so it stays whatever the outcome of the commit: when a
// task is examined again (agenda), which histories and deletions are requested, and what is true in any case. That is
// since when the node of a part has been away, or a part has had no record or no node (PartsMemory), which records of parts can be
// deleted, and the results of checks against the records of namespaces (state.NamespaceChecks).
//
// A worker has one plan at a time. It applies no event until the outcome of the plan's commit is known,
// because effects point into the state from which they were made.
type plan struct {
	s        *shardState
	settings settings
	now      time.Time // the time of the round; settings.clock is that of this plan

	// commit collects the writes and their comparisons. It is nil once the plan is settled: applied,
	// abandoned or empty.
	commit     *store.Commit
	changes    []change // one for each task that the plan changes
	effects    []effect // in the order in which they apply
	dispatched []attemptDispatched
	reserved   reservations

	counts    outcomes               // for metrics and the board
	deletions []*background.Deletion // requested whatever the outcome of the commit

	// full means that the plan takes no more changes: the commit has no room, or it is for a task that is set
	// aside.
	full bool
	// alone means that the plan is for a task that is set aside.
	alone bool
	// keepWatermark means that due ticks are recorded as decided in the from of their entries, and the time
	// of the watermark stays. Such a commit does not compare the shard's revised key (see learnRevised).
	keepWatermark bool
	attempt       task.Assigned // scratch space for building attempts, reused for each
	namespace     planNamespace // the namespace of the task that was examined last
	// flows contains the plans with which runs of workflows begin, nil for those that are not known. See knownPlanOfTask.
	flows map[*state.Task]*state.FlowPlan
}

// settings are what a plan depends on besides the shard's state, read when the plan is made.
type settings struct {
	clock       time.Time // the current time, for catch-up tokens
	cluster     task.Cluster
	freezes     *task.Freezes // nil if there are none
	freezesRead int64         // the mod revision of the freezes record, which the commit compares
	namespaces  Namespaces    // nil while they are not known; then no plan is made
}

// outcomes counts ticks by outcome, and attempts that were declared lost.
type outcomes struct {
	run, lost int64
	triggers  [triggers.Outcomes]int64 // triggers that got an outcome
	notRun    []node.TickCount         // ticks that wait, are skipped or are missed, by outcome and reason
	lateness  []time.Duration          // of each tick that starts at once
}

// addNotRun counts ticks that do not run, or not yet.
func (o *outcomes) addNotRun(outcome task.State, reason string, ticks int64) {
	for i := range o.notRun {
		if c := &o.notRun[i]; c.Outcome == outcome && c.Reason == reason {
			c.Ticks += ticks
			return
		}
	}

	o.notRun = append(o.notRun, node.TickCount{Outcome: outcome, Reason: reason, Ticks: ticks})
}

// neverRun returns how many ticks are skipped or missed.
func (o *outcomes) neverRun() (ticks int64) {
	for _, c := range o.notRun {
		if c.Outcome != task.Queued {
			ticks += c.Ticks
		}
	}

	return ticks
}

// buildPlan returns a plan with as many decisions as fit into one commit. now is the time of the round. The
// caller must settle the plan before the next call: with applyCommitted, applyConflict or applyAbandoned,
// or by setting its commit to nil if it is empty.
func (s *shardState) buildPlan(now time.Time, as settings) *plan {
	p := s.newPlan(now, as)

	// Commits for other tasks must not delay tasks that are set aside forever.
	if len(s.aside.retryAt) > 0 && s.aside.commits >= maxCommitsBetweenRetries && p.decideSetAside() {
		return p
	}

	// First decide what is overdue: ticks of entries that the watermark does not cover, then tasks that are
	// behind. Both are recorded in the from of the entries, so the time of the watermark stays. If a commit
	// contains any of them, other due ticks wait for the next one. So the watermark never passes an
	// undecided tick (G4).
	seen, overdue := s.seenUpTo(), false
	if len(s.uncovered) > 0 {
		seen, overdue = p.decideUncovered(seen)
	}

	p.commit.Watermark.Seen = max(s.records.Watermark.Seen, seen)

	switch {
	case overdue:
	case s.anyBehind(now.UnixMilli()):
		p.catchUp()
	default:
		p.decideDueTicks()
	}

	if len(s.agenda.toExamine) > 0 {
		p.examineTasks()
	}

	if len(s.purges) > 0 {
		p.purgeRecords()
	}

	if len(s.aside.retryAt) > 0 && p.commit.Empty() {
		p.decideSetAside()
	}

	return p
}

// newPlan returns an empty plan, which reuses the memory of the previous one. That is safe because a worker
// has one plan at a time. The slices are cleared so that they keep no tasks or records alive.
func (s *shardState) newPlan(now time.Time, as settings) *plan {
	s.mustBeSettled()

	// Clear the whole slices, not only their lengths.
	old := &s.lastPlan
	clear(old.changes)
	clear(old.effects)
	clear(old.dispatched)
	clear(old.deletions)
	clear(old.reserved.slots)
	clear(old.reserved.due)
	clear(old.reserved.joined)

	*old = plan{
		s: s, settings: as, now: now, keepWatermark: s.overtaken >= maxOvertaken || s.aside.anyDue(now.UnixMilli()),
		commit:  s.ports.commits.NewCommit(s.records.Shard, s.fences, s.records.WatermarkRev, s.records.Watermark),
		changes: old.changes[:0], effects: old.effects[:0], dispatched: old.dispatched[:0], deletions: old.deletions[:0],
		reserved: reservations{
			placement: s.ports.placement, pace: s.ports.tokens, line: &s.line,
			slots: old.reserved.slots[:0], due: old.reserved.due[:0], joined: old.reserved.joined[:0],
		},
		counts: outcomes{notRun: old.counts.notRun[:0], lateness: old.counts.lateness[:0]},
	}
	old.commit.Freezes = as.freezesRead

	return old
}

// reserveRoom reserves room in the commit for a change of task t with up to the given number of records and
// bytes. The caller must then add the change. It returns false if the commit is full. From then on the plan
// is full.
func (p *plan) reserveRoom(t *state.Task, records, bytes int) bool {
	return p.admitChange(t, p.commit.Fits(records, bytes))
}

// admitChange adds t to the tasks that the plan changes, if room is true. t becomes the subject of the comparisons that follow, so their
// failures count for t.
func (p *plan) admitChange(t *state.Task, room bool) bool {
	if !room {
		p.full = true
	}

	if p.full {
		return false
	}

	p.changeOf(t)
	p.commit.Subject = int(t.Change)

	return true
}

// roomForRecord is a generous estimate of the size of a record in bytes, without the action.
const roomForRecord = 2048

// roomForTask is an estimate of the largest size in bytes of a run record of t. A record in an inbox
// contains the action, which is part of t.Text.
func roomForTask(t *state.Task) int {
	if t.Policy != nil && (t.Policy.Target.FansOut() || t.IsWorkflow()) {
		return roomForRecord + roomForFan + len(t.Text)
	}
	return roomForRecord + len(t.Text)
}

// examineAfterCommit makes the worker examine t again after the commit has succeeded. If it fails, all tasks that the
// plan changes are examined.
func (p *plan) examineAfterCommit(t *state.Task) { p.addEffect(taskNoted{t}) }

// examineTasks examines the tasks that are noted in the agenda. If the commit is full, the tasks that are
// left stay noted, including the one at which it became full.
func (p *plan) examineTasks() {
	s := p.s

	if p.full {
		return
	}

	tasks := s.agenda.takeToExamine()
	for i, t := range tasks {
		t.SetListed(false)

		// It has a plan of its own.
		if s.aside.has(t) {
			continue
		}

		p.examineTask(t)

		// Keep this task, which may be unfinished, and all that follow.
		if p.full {
			for _, rest := range tasks[i+1:] {
				rest.SetListed(false)
			}

			for _, rest := range tasks[i:] {
				s.agenda.examineNext(rest)
			}

			return
		}

		s.dropTask(t)
	}
}

// examineTask ends or cancels attempts of a task, serves its queue, takes its triggers, deletes records of parts, and
// draws conclusions from how runs ended, as far as there is room.
func (p *plan) examineTask(t *state.Task) {
	p.endAttempts(t)
	p.serveQueue(t)
	p.takeTriggers(t)
	p.forgetParts(t)
	p.followUp(t)
}

// purgeRecords deletes history records whose task no longer exists, as far as there is room.
func (p *plan) purgeRecords() {
	p.commit.Subject = store.NoSubject

	for key, mod := range p.s.purges {
		if p.full || !p.commit.Fits(1, roomForRecord) {
			return
		}
		p.addEffect(recordPurged{key, mod})
	}
}

// applyCommitted applies a plan whose commit has succeeded at revision rev. It must be called before any
// event is applied. The commit's own events arrive later through the watch and have no further effect,
// because their mod revisions are not newer.
func (s *shardState) applyCommitted(p *plan, rev int64) {
	s.records.WatermarkRev, s.records.Watermark = rev, p.commit.Watermark

	switch {
	case len(p.reserved.due) == 0: // no due tick was decided, so the commit proves nothing about edits
	case s.overtaken >= maxOvertaken:
		s.overtaken = maxOvertaken - 1 // the next plan tries once to move the watermark
	case p.keepWatermark: // for a task that is set aside
	default:
		s.overtaken = 0
	}

	for _, e := range p.effects {
		e.applyTo(s, rev, p.now)
	}

	s.aside.commits++

	for i := range p.changes {
		t := p.changes[i].task
		t.FailedCommits = 0
		s.endSetAside(t)

		// The task's records can be committed after all.
		if len(s.reopenedFor) > 0 {
			delete(s.reopenedFor, t.FullName())
		}
	}

	// The watermark's seen may have moved past some entries.
	for t := range s.uncovered {
		if s.records.CoveredByWatermark(t) {
			delete(s.uncovered, t)
		}
	}

	s.rows.Flush(s.applied)
	s.rows.Index.NoteCommitted(rev)

	// Mark the plan as settled, and release the commit's memory.
	p.commit = nil
}

// applyAbandoned gives back what the plan has reserved. Nothing of it was written, and nothing of it was
// applied to memory. All tasks that it would have changed are examined again.
func (s *shardState) applyAbandoned(p *plan) {
	p.reserved.giveBack()

	for _, t := range p.reserved.joined {
		s.agenda.examineNext(t)
	}

	// The ticks are still undecided, so they go back into the heap.
	for _, t := range p.reserved.due {
		s.due.Set(t, t.Next)
	}

	for i := range p.changes {
		s.agenda.examineNext(p.changes[i].task)
	}

	p.commit = nil
}

// A change is what a plan has done with one task so far.
type change struct {
	task *state.Task
	// started means that the plan dispatches or drops a run of the task. Its queue is then left alone until
	// the next plan, so that a commit starts at most one run of a task (G11).
	started bool
	// spanEnded means that a tick of the task has an outcome that ends its range of skipped ticks.
	spanEnded bool
	entry     *entryChanged // nil if the entry is not written
}

// changeFor returns the change of a task, or nil if there is none. Task.Change may be a leftover of an
// earlier plan, so it is valid only if the change at that index belongs to the task.
func (p *plan) changeFor(t *state.Task) *change {
	i := int(t.Change)
	if i < len(p.changes) && p.changes[i].task == t {
		return &p.changes[i]
	}

	return nil
}

// changeOf returns the change of a task, and adds one if there is none. The pointer is valid until another
// change is added.
func (p *plan) changeOf(t *state.Task) *change {
	if c := p.changeFor(t); c != nil {
		return c
	}

	t.Change = uint16(len(p.changes)) // a commit has room for fewer
	p.changes = append(p.changes, change{task: t})

	return &p.changes[t.Change]
}

// isStarting reports whether the plan dispatches or drops a run of the task.
func (p *plan) isStarting(t *state.Task) bool {
	c := p.changeFor(t)
	return c != nil && c.started
}

// changesEntry reports whether the plan writes the task's entry.
func (p *plan) changesEntry(t *state.Task) bool {
	c := p.changeFor(t)
	return c != nil && c.entry != nil
}

// changeEntry writes a task's entry with the changes that modify makes. Several calls for one task result
// in one write, with all of their changes. The commit compares the entry's mod revision (G7). The caller
// has made room for it.
func (p *plan) changeEntry(t *state.Task, modify func(*entryChanged)) {
	c := p.changeOf(t)

	if c.entry != nil {
		modify(c.entry)
		c.entry.rewriteTo(p.commit)
		return
	}

	c.entry = newEntryChanged(t)
	modify(c.entry)
	p.addEffect(c.entry)
}

// ownFields returns the task's counts, pauses and sticky node as they will be after the commit.
func (p *plan) ownFields(t *state.Task) task.Own {
	if c := p.changeFor(t); c != nil && c.entry != nil {
		return c.entry.own
	}

	return t.Own()
}

// countRun counts a tick that becomes a run of a task with max_runs. The count is in the commit that creates the run,
// so it is exact (G24). The entry's from moves to the tick as well.
func (p *plan) countRun(t *state.Task, tick int64) {
	p.changeEntry(t, func(e *entryChanged) {
		e.own.Runs++
		e.from = max(e.from, tick)
	})
}

// usesRunBudget reports whether the task has used all runs that max_runs allows, those of this plan
// included.
func (p *plan) usesRunBudget(t *state.Task) bool {
	return t.Policy.MaxRuns > 0 && p.ownFields(t).Runs >= t.Policy.MaxRuns
}

// reservations are what a plan has taken: slots of nodes, catch-up tokens, places in the shard's line for tokens,
// and tasks off the heap. They are taken while deciding, because whether a tick fires depends on them. They are given
// back if the commit does not succeed.
type reservations struct {
	placement placer
	pace      tokens
	line      *state.TokenLine

	slots   []reservedSlot
	tokens  int           // tokens taken, for runs of late ticks
	granted int           // how many of these had been granted to tasks of the line
	joined  []*state.Task // tasks that joined the line, because there was no token for them
	due     []*state.Task // tasks off the heap, because the plan decides their next tick
}

// reservedSlot is a slot that was taken on a node.
type reservedSlot struct {
	node *task.Node // as it was known at that time
	pool placement.Pool
}

// pickNode chooses a node for a run of t and counts a slot of it. If it finds none, but one may become available
// without an event (a suspicion ends, facts change), the worker wakes up for that.
func (p *plan) pickNode(t *state.Task, w placement.Want) (*task.Node, bool) {
	n, ok := p.s.ports.placement.Reserve(w, p.now)
	if !ok {
		p.examineWhenNodesMayAppear(t)
	}

	return n, ok
}

// pickForAttempt is like pickNode for a run in the queue. If the run has had an attempt, the next one
// avoids the node on which that failed. A run whose request named a node waits for that node.
func (p *plan) pickForAttempt(t *state.Task, q *state.Waiting) (*task.Node, bool) {
	if q.TargetNode != "" {
		return p.pickNode(t, p.namespaceOf(t).onNode(t, q.TargetNode))
	}

	w := p.wantOf(t)
	w.Avoid = q.LastNode()

	return p.pickNode(t, w)
}

// pickPart is like pickForAttempt for a part that may run on any node. With the hash strategy, the parts of
// a run have different keys, so that they spread over the nodes. id is that of the part, and q is the part's record if it has had
// attempts, else nil.
func (p *plan) pickPart(t *state.Task, id string, q *state.Waiting) (*task.Node, bool) {
	w := t.WantOf(id)
	w.Selector = p.namespaceOf(t).selectorFor(t)
	if q != nil {
		w.Avoid = q.LastNode()
	}

	if w.Strategy == task.StrategyHash {
		_, index, _ := task.ParentOf(id)
		w.Key = hashKeyOfPart(w.Key, index)
	}

	return p.pickNode(t, w)
}

// hashKeyOfPart returns the key of a part for the hash strategy.
func hashKeyOfPart(key string, part int) string { return key + "/" + strconv.Itoa(part) }

// examineWhenNodesMayAppear makes the worker examine waiting runs again when a node may become available without an
// event.
func (p *plan) examineWhenNodesMayAppear(t *state.Task) {
	if until, suspect := p.s.ports.placement.SuspectUntil(p.now); suspect {
		p.s.agenda.examineAgainAt(t, until)
	}

	if p.namespaceOf(t).selectorFor(t).Compares() {
		p.s.agenda.examineAgainAt(t, p.now.Add(lookForFacts))
	}
}

// lookForFacts is how often runs are examined that wait for a node whose facts match, such as its load.
// Nodes publish their facts about as often.
const lookForFacts = 5 * time.Second

// wantOf returns the requirements of a run of t on its node: those of the task, and the node selector of its
// namespace.
func (p *plan) wantOf(t *state.Task) placement.Want {
	w := t.Want()
	w.Selector = p.namespaceOf(t).selectorFor(t)

	return w
}

// selectorFor returns the selector that the node of a task's run must match: the task's, and the namespace's.
func (n planNamespace) selectorFor(t *state.Task) task.Selector {
	return n.join(t.Policy.Target.Selector, t.Policy.Selector)
}

// join returns a selector, of which text is the text, and that of the namespace: both must hold.
func (n planNamespace) join(text string, s task.Selector) task.Selector {
	if n.record == nil || n.record.Nodes == "" {
		return s
	}

	return n.s.limitsOf(n.name, n.record).JoinSelector(text, s)
}

// onNode returns the requirements of a run of t whose request named a node: the node itself, and the node selector of the
// namespace. They replace those of the task's target.
func (n planNamespace) onNode(t *state.Task, node string) placement.Want {
	w := placement.Want{Strategy: task.StrategyFirst, Order: []string{node}, Pool: t.Pool(), Secret: t.Secret}
	if n.record != nil && n.record.Nodes != "" {
		w.Selector = n.s.limitsOf(n.name, n.record).Selector()
	}

	return w
}

// accepts reports whether the node selector of the namespace lets its tasks run on a node. It is for runs that are
// bound to a node; pickNode takes the selector into account.
func (n planNamespace) accepts(node *task.Node) bool {
	return n.record == nil || n.record.Nodes == "" || n.s.limitsOf(n.name, n.record).Accepts(node)
}

// reserveSlot records a slot that the placement has counted, so that giveBack returns it.
func (r *reservations) reserveSlot(n *task.Node, pool placement.Pool) {
	r.slots = append(r.slots, reservedSlot{n, pool})
}

// takeToken takes a catch-up token for a run of t. It returns false, and puts t into the line, if there is
// no token or if other tasks of the shard have waited longer.
func (r *reservations) takeToken(t *state.Task, now time.Time) bool {
	l := r.line
	if l.Len() > 0 && l.Granted == 0 || !r.pace.Take(now) {
		if l.Add(t) {
			r.joined = append(r.joined, t)
		}
		return false
	}

	if l.Granted > 0 {
		l.Granted--
		r.granted++
	}

	r.tokens++

	return true
}

// returnToken gives back the token that was taken last, because its run does not start after all.
func (r *reservations) returnToken() {
	r.tokens--
	r.pace.Return(1)
}

// giveBack returns slots, tokens and places in the line, because nothing of the plan was written. It must be called at
// most once.
func (r *reservations) giveBack() {
	for _, slot := range r.slots {
		r.placement.Release(slot.node.Name, slot.pool)
	}

	if r.tokens > 0 {
		r.pace.Return(r.tokens)
	}

	r.line.Granted += r.granted
	r.line.RemoveLast(r.joined)
}

// grantTokens asks the node's limiter for tokens, and notes as many tasks of the line for examination as
// there are tokens. The tokens are only promised: the plan takes each one when it starts a run. So a round
// examines no more late tasks than can start.
func (s *shardState) grantTokens(now time.Time) {
	l := &s.line
	l.Granted = 0

	// A turn that is further away than MaxTurn means that the clock was set back. Ask again in that
	// case.
	if l.Len() == 0 || now.Before(l.Turn) && l.Turn.Sub(now) <= node.MaxTurn {
		return
	}

	var again time.Duration
	l.Granted, again = s.ports.tokens.Turn(now)
	l.Turn = now.Add(again)
	for range l.Granted {
		t := l.Next()
		if t == nil {
			break
		}
		s.agenda.examineNext(t)
	}

	if l.Len() == 0 {
		s.ports.tokens.Leave()
	}
}
