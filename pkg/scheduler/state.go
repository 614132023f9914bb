package scheduler

import (
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/scheduler/definition"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskState is what a worker knows of a task: its entry, what waits, what is
// active. There may be a million: it is small, holds few pointers, and leaves to
// others what tasks have alike. Times are Unix milliseconds; 0 is none.
type taskState struct {
	text     string // namespace/name, uid, action as JSON: in one piece, to spare what strings cost
	when     *definition.Timing
	how      *definition.Policy
	activity *activity // nil for most
	past     *past     // nil for most

	mod, create  int64 // revisions of the entry's key
	from, anchor int64
	next         int64 // the next tick that is not decided
	second       int64 // the tick after it
	delay        int32 // ms after its time that the next tick falls due: jitter
	generation   int32

	at      int32  // place in the heap, or -1
	change  int32  // place among the changes of the plan in the making; see plan.changed
	name    uint16 // length of namespace/name
	added   uint16 // records of history since the last trim
	uid     uint8  // length of the uid
	failed  uint8  // commits in a row that failed for a record of this task
	dead    uint8  // dead runs since the last trim
	present bool   // the entry exists; if bad, it cannot be read and has no ticks
	bad     bool
	paused  bool
	secret  bool // its attempts read secrets
	looked  bool // it is among the worker's looks
	kind    kind // as what the worker counts it
}

// activity is what a task has while something waits or runs.
type activity struct {
	queue      []*waiting // by run id
	active     []*attempt
	unreadable []string            // runs whose queue records cannot be read
	inLine     bool                // a late tick waits for its turn, in the worker's line
	returned   map[string]returned // parts that have ended, of runs that have not, by their ids

	among *activeTasks // where it is, and at which place
	at    int32
}

func (t *taskState) fullName() string { return t.text[:t.name] }
func (t *taskState) uidText() string  { return t.text[t.name : int(t.name)+int(t.uid)] }
func (t *taskState) action() string   { return t.text[int(t.name)+int(t.uid):] }

func (t *taskState) ref(shard int) record.Ref {
	namespace, name, _ := strings.Cut(t.fullName(), "/")
	return record.Ref{Namespace: namespace, Name: name, Shard: shard}
}

func (t *taskState) queue() []*waiting {
	if t.activity == nil {
		return nil
	}
	return t.activity.queue
}

func (t *taskState) active() []*attempt {
	if t.activity == nil {
		return nil
	}
	return t.activity.active
}

// ensureActivity returns t's activity, and makes it if t has none.
func (s *shardState) ensureActivity(t *taskState) *activity {
	if t.activity == nil {
		t.activity = &activity{}
		s.active.add(t)
	}
	return t.activity
}

// dropIdleActivity drops t's activity when there is nothing in it.
func (t *taskState) dropIdleActivity() {
	if l := t.activity; l != nil && len(l.queue) == 0 && len(l.active) == 0 && len(l.unreadable) == 0 && len(l.returned) == 0 {
		l.among.remove(t)
		t.activity = nil
	}
}

// activeTasks are the tasks of a worker of which something waits or runs.
type activeTasks struct{ tasks []*taskState }

func (l *activeTasks) add(t *taskState) {
	t.activity.among, t.activity.at = l, int32(len(l.tasks))
	l.tasks = append(l.tasks, t)
}

func (l *activeTasks) remove(t *taskState) {
	last := len(l.tasks) - 1
	l.tasks[t.activity.at] = l.tasks[last]
	l.tasks[t.activity.at].activity.at = t.activity.at
	l.tasks[last] = nil
	if l.tasks = l.tasks[:last]; cap(l.tasks) > 1024 && last < cap(l.tasks)/8 {
		l.tasks = append(make([]*taskState, 0, 2*last), l.tasks...) // after a stampede
	}
}

// schedule is when t ticks. Only of a task with an entry that can be read.
func (t *taskState) schedule() schedule.Schedule { return t.when.Schedule.Anchored(instant(t.anchor)) }

// after is t's first tick later than an instant; 0 if there is none.
func (t *taskState) after(at int64) int64 {
	s := t.schedule()
	tick, ok := s.Next(instant(at))
	if !ok {
		return 0
	}
	return tick.UnixMilli()
}

// due is when one of t's ticks falls due, which is the order of decisions: at its
// time, or with jitter a little later, but always before the next one does.
func (t *taskState) due(tick int64) int64 {
	if t.when == nil || !t.when.Jittered {
		return tick
	}
	s := t.schedule()
	return s.Due(instant(tick), t.uidText()).UnixMilli()
}

// dueAt is when t's next tick falls due.
func (t *taskState) dueAt() int64 { return t.next + int64(t.delay) }

// lastDue is an instant up to which are all of t's ticks that are due at another,
// and no others.
func (t *taskState) lastDue(at int64) int64 {
	if !t.when.Jittered {
		return at
	}
	s := t.schedule()
	tick, ok := s.LastDue(instant(at), t.uidText())
	if !ok {
		return 0
	}
	return tick.UnixMilli()
}

// instant is the time of ms.
func instant(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

type waiting struct {
	task.Waiting
	mod  int64
	seen int64 // when it came, by the owner's clock; 0: the owner made it
	parental
}

// parental is what an owner keeps of a run with parts beside its record.
type parental struct {
	away    map[string]time.Time // since when nodes of parts that are to be given out take nothing
	toldAt  time.Time            // when its record was written last
	missing time.Time            // since when parts of it are nowhere; zero: none is
}

type attempt struct {
	run    string
	node   string
	create int64  // fencing token
	since  int64  // when we dispatched it, ms; 0: another owner did
	watch  *watch // of an attempt whose node is gone, or whose task is
}

// watched is a's watch, made if need be.
func (a *attempt) watched() *watch {
	if a.watch == nil {
		a.watch = &watch{}
	}
	return a.watch
}

// clockSlack is how far the clock of a node may be ahead of the owner's.
const clockSlack = 5 * time.Second

// notBefore is when a waiting run may start. A retry's time was set by the clock of
// the node that ran the last attempt, which nobody guards: it waits no longer than
// its policy says since it came.
func (t *taskState) notBefore(q *waiting) time.Time {
	at := q.NotBefore.Time
	if q.seen == 0 || at.IsZero() || q.UnderWay() {
		return at
	}
	latest := instant(q.seen).Add(t.how.Retry.Wait(max(q.Attempt-1, 1), 1))
	if at.After(latest.Add(clockSlack)) {
		return latest
	}
	return at
}

// due is when the tick of a waiting run fell due.
func (q *waiting) due() time.Time {
	if !q.DueAt.IsZero() {
		return q.DueAt.Time
	}
	return q.ScheduledTime.Time
}

// dispatchedBefore reports whether a waiting run has been dispatched before, or has its parts.
func (q *waiting) dispatchedBefore() bool {
	return q.Attempt > 1 || q.Reason == task.ReasonHandBack || q.UnderWay()
}

// dispatchedWaiting is how many waiting runs have been dispatched before: they are active,
// though no attempt is. Runs of a deleted task of the same name do not count.
func (t *taskState) dispatchedWaiting() int {
	n := 0

	for _, q := range t.queue() {
		if q.dispatchedBefore() && !task.IsPart(q.ID) && !t.orphan(q.ID) {
			n++
		}
	}

	return n
}

// parents is how many runs have their parts. Runs of a deleted task of the same name do not count.
func (t *taskState) parents() int {
	n := 0

	for _, q := range t.queue() {
		if q.UnderWay() && !t.orphan(q.ID) {
			n++
		}
	}

	return n
}

// attempts is how many attempts in inboxes are of runs in one piece: of others the
// run counts, not its parts; here, if its own record cannot be read.
//
// Attempts of a deleted task of the same name do not count. They are being
// cancelled, which takes as long as their grace period, or as lost_after if their
// node is silent; the task that bears the name now is another one and does not
// wait for them.
func (t *taskState) attempts() int {
	n := 0

	for _, a := range t.active() {
		if !task.IsPart(a.run) && !t.orphan(a.run) {
			n++
		}
	}

	if t.activity == nil {
		return n
	}
	for _, id := range t.activity.unreadable {
		if t.orphan(id) {
			continue
		}
		if slices.ContainsFunc(t.activity.active, func(a *attempt) bool { parent, _, is := task.ParentOf(a.run); return is && parent == id }) {
			n++
		}
	}
	return n
}

// holds reports whether a run is in an inbox, or has a queue record that cannot
// be read: then there is no writing another.
func (t *taskState) holds(run string) bool {
	l := t.activity
	return l != nil && (slices.Contains(l.unreadable, run) || slices.ContainsFunc(l.active, func(a *attempt) bool { return a.run == run }))
}

// orphan reports whether a run's task is gone, though another may bear its name
// now. Of an entry that cannot be read nobody knows.
func (t *taskState) orphan(run string) bool {
	if !t.present || t.bad {
		return !t.present
	}
	return !task.RunBelongs(run, t.uidText())
}

func (t *taskState) empty() bool {
	t.dropIdleActivity()
	return !t.present && t.activity == nil
}

// fires reports whether the task has ticks, now or later.
func (t *taskState) fires() bool {
	if !t.present || t.bad || t.spent() {
		return false
	}
	if t.paused {
		_, ends := t.silence()
		return ends
	}
	return true
}

// drop forgets a task of which nothing is left. Another may bear its name by
// now: that one stays.
func (s *shardState) drop(t *taskState) {
	if t.empty() && s.tasks[t.fullName()] == t {
		delete(s.tasks, t.fullName())
		s.endSpan(t)
	}
}

// entry is t's entry, to be written.
func (t *taskState) entry() record.EntryParts {
	return record.EntryParts{
		UID: []byte(t.uidText()), Generation: int64(t.generation), From: task.At(instant(t.from)), Anchor: task.At(instant(t.anchor)),
		Paused: t.paused, Action: []byte(t.action()), Timing: []byte(t.when.Text), Policy: []byte(t.how.Text),
	}
}

// nextUndecided is the first tick that neither the entry's from nor the
// watermark decides; 0 if there is none.
func (s *shardState) nextUndecided(t *taskState) int64 {
	after, mark := t.from, s.mark.Time.UnixMilli()
	if t.paused {
		until, _ := t.silence()
		after = max(after, until)
	}
	covered := s.covered(t)
	if covered && mark > after {
		// The watermark's own instant may be decided for some tasks only.
		after = max(after, t.lastDue(mark-1))
	}
	tick := t.after(after)
	if covered && tick != 0 && s.mark.Decided(task.At(instant(t.due(tick))), t.fullName()) {
		return t.after(tick)
	}
	return tick
}

// reschedule finds the task's next undecided tick and puts it into the heap.
func (s *shardState) reschedule(t *taskState) {
	if !s.watermarkKnown {
		return // when the watermark is known, all are
	}
	tick := int64(0)
	if t.fires() {
		tick = s.nextUndecided(t)
	}
	delete(s.uncovered, t)
	if tick == 0 {
		s.due.set(t, 0)
		return
	}
	s.put(t, tick)
	if !s.covered(t) && t.dueAt() <= s.mark.Time.UnixMilli() {
		s.uncovered[t] = struct{}{}
	}
}

// ticked moves the task on to the tick after the one just decided.
func (s *shardState) ticked(t *taskState) {
	if t.second == 0 {
		s.due.set(t, 0)
		return
	}
	s.put(t, t.second)
}

func (s *shardState) put(t *taskState, tick int64) {
	t.second = t.after(tick)
	s.due.set(t, tick)
	if s.onTime != 0 && t.isBehind(s.onTime) {
		s.onTime = 0
	}
}

// isBehind reports whether several of the task's ticks are due at now, or one
// is past its grace.
func (t *taskState) isBehind(now int64) bool {
	return t.second != 0 && t.second <= now && t.due(t.second) <= now || now-t.dueAt() > t.how.Grace.Milliseconds()
}
