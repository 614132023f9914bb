package evaluator

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// maxOpen is how many alerts of a namespace for one receiver a shard has open. If there are as many, further ones are
	// counted, until fewer than enoughRoom are open.
	maxOpen    = 50
	enoughRoom = 25
	// maxClosed is how many closed ones it keeps.
	maxClosed = 50

	// refreshEvery is how often the alerts of a shard, and each task with an alert, are read although nothing shows that they have
	// changed. A write whose answer was lost may have been applied long after it was sent.
	refreshEvery = 15 * time.Minute
	// readPause is how long a task is not read again whose alert must wait, and unknownPause one whose records do not tell. If the task
	// changes, it is read at once.
	readPause    = 15 * time.Second
	unknownPause = time.Minute
	// maxResting is how many tasks are remembered that need not be read yet.
	maxResting = 10_000
	// maxQueue is how many tasks the queue of one visit has. The next visit finds the others.
	maxQueue = 10 * tasksPerVisit
)

// kinds is the number of expectations of a task.
const kinds = len(alert.Kinds)

// shardAlerts is what an Evaluator knows of the alerts of a shard.
type shardAlerts struct {
	Shard

	rules    *alert.Rules // those of its index; nil: none were set
	isLoaded bool
	loadedAt time.Time
	// adopts is set if a visit must find the rows of the tasks with open alerts: their flags are not set yet.
	adopts bool

	visits   int64 // the number of visits
	applied  int64 // the revision of the index at the last one
	lastTime time.Time
	lastAged time.Time // when WatchedRow.Waiting has last grown

	tasks map[string]*taskAlerts // by namespace/name: those with alerts, those that are counted, and those that rest
	open  map[room]int           // the number of open alerts
	full  map[room]bool          // the rooms that were full and do not have enough room again
	more  map[room]*task.Alert   // records of counted alerts
	wrote map[room]time.Time     // when they were written
	// former is what the former owner of the shard counted. Until all tasks were judged once, nothing is known to be solved.
	former map[room]map[task.AlertKind]int

	unjudged int // tasks whose first verdict, or whose next one, is still to come, at the last visit

	notEvaluated int // tasks, at the last visit
}

// room is where the alerts of a namespace for one receiver have their place. The receiver is "" for alerts without receivers.
type room struct{ namespace, receiver string }

// taskAlerts is what an Evaluator knows of one task.
type taskAlerts struct {
	name    string
	records [kinds]*task.Alert // nil: there is none
	// counted has the flags of the expectations that are not met and have no open record, because there was no room.
	counted   readmodel.Flags
	receivers []string // of what is counted
	uid       string   // of the task that is counted
	base      int64    // Verdict.Base of the failures that are counted

	alerts    *task.Alerts // what was expected when the task was read last
	ends      ends         // of the row at that time
	readAt    time.Time    // zero: never
	readAgain time.Time    // the task is not read before, unless its row changes
	isJudged  bool         // all verdicts were known then, and written
	seen      int64        // the last visit that found its row
}

// ends is what a row says about how runs have ended, and about what verdicts depend on besides.
type ends struct {
	lastEnd     int64
	lastSuccess uint32
	failures    uint16
	flags       readmodel.Flags
	isActive    bool
}

// endsOf returns the ends of a row.
func endsOf(r *readmodel.Row) ends {
	return ends{
		lastEnd: r.LastEnd, lastSuccess: r.LastSuccess, failures: r.Failures, isActive: r.Active > 0 || r.Waiting > 0,
		flags: r.Flags & (readmodel.Paused | readmodel.Unreadable | readmodel.Failing | readmodel.History),
	}
}

// newShardAlerts returns the state of a shard that was just opened.
func newShardAlerts(s Shard) *shardAlerts {
	return &shardAlerts{
		Shard: s, tasks: map[string]*taskAlerts{},
		open: map[room]int{}, full: map[room]bool{}, more: map[room]*task.Alert{}, wrote: map[room]time.Time{}, former: map[room]map[task.AlertKind]int{},
	}
}

// load takes the alerts of the shard, in place of those that were known.
func (s *shardAlerts) load(alerts []task.Alert, now time.Time) {
	isFirst := s.loadedAt.IsZero()
	s.isLoaded, s.loadedAt, s.adopts = true, now, true
	for _, t := range s.tasks {
		t.records = [kinds]*task.Alert{}
	}
	clear(s.more)

	for i := range alerts {
		a := &alerts[i]
		if a.Kind == task.AlertMore {
			s.more[room{a.Namespace, a.Receiver}] = a
			if isFirst && a.IsOpen() {
				s.former[room{a.Namespace, a.Receiver}] = a.More
			}
			continue
		}

		if at := kindIndex(a.Kind); at >= 0 {
			s.taskNamed(a.Namespace + "/" + a.Task).records[at] = a
		}
	}
}

// kindIndex returns the index of an expectation in alert.Kinds, or -1.
func kindIndex(kind task.AlertKind) int { return slices.Index(alert.Kinds[:], kind) }

// taskNamed returns the task with a name, and adds it if it is not known.
func (s *shardAlerts) taskNamed(name string) *taskAlerts {
	t := s.tasks[name]
	if t == nil {
		name = strings.Clone(name) // that of a row shares the memory of its task
		t = &taskAlerts{name: name}
		s.tasks[name] = t
	}

	return t
}

// notMet returns the flags of the expectations that are not met, as far as is known.
func (t *taskAlerts) notMet() readmodel.Flags {
	flags := t.counted
	for i, a := range t.records {
		if a != nil && a.IsOpen() {
			flags |= readmodel.AlertFlag(alert.Kinds[i])
		}
	}

	return flags
}

// isIdle reports whether there is nothing to remember of the task.
func (t *taskAlerts) isIdle(now time.Time) bool {
	return t.records == [kinds]*task.Alert{} && t.counted == 0 && !now.Before(t.readAgain)
}

// isWaiting reports whether the task is waiting for its next reading, because nothing has changed since the last one.
func (t *taskAlerts) isWaiting(now time.Time, w *readmodel.WatchedRow) bool {
	return t != nil && w.JudgeAt != 0 && now.Before(t.readAgain) && t.ends == endsOf(w.Row) && t.alerts == w.Alerts
}

// needsRefresh reports whether a task with alerts must be read although its row agrees with them: a run has ended, its receivers or
// labels have changed, it has not been read for long, or there is room for what is counted.
func (s *shardAlerts) needsRefresh(t *taskAlerts, w *readmodel.WatchedRow, now time.Time) bool {
	if t.alerts != w.Alerts || now.Sub(t.readAt) >= refreshEvery {
		return true
	}

	// A dismissal may have closed the alert, and another run may have failed since.
	if row := endsOf(w.Row); row.lastEnd != t.ends.lastEnd || row.failures != t.ends.failures {
		return true
	}

	for _, a := range t.records {
		if a != nil && a.IsOpen() && !maps.Equal(a.Labels, w.Row.Labels) {
			return true
		}
	}

	return t.counted != 0 && s.hasRoom(t.namespace(), t.receivers)
}

// namespace returns the namespace of the task.
func (t *taskAlerts) namespace() string {
	namespace, _, _ := strings.Cut(t.name, "/")
	return namespace
}

// visit compares the rows of the shard with its alerts, and adds the tasks to read to a queue.
func (s *shardAlerts) visit(now time.Time, line *queue) {
	if s.Index.Watched() == 0 && len(s.tasks) == 0 {
		s.notEvaluated, s.unjudged = 0, 0
		s.forgetFormer(now)

		return
	}

	applied := s.Index.Applied()
	if applied == s.applied && now.Sub(s.lastTime) < visitIdleEvery && !now.Before(s.lastTime) {
		return
	}

	s.visits++
	s.applied, s.lastTime = applied, now

	ages := now.Sub(s.lastAged) >= time.Minute || now.Before(s.lastAged)
	if ages {
		s.lastAged = now
	}

	s.updateRooms()
	s.notEvaluated, s.unjudged = 0, 0
	v := eye{now: now, opened: s.Opened, first: map[deadlineKey]uint32{}}
	s.Index.EachWatched(func(w *readmodel.WatchedRow) { s.visitRow(&v, w, ages, line) })
	s.adopts = false
	s.forgetFormer(now)

	// Alerts whose tasks are gone, or are not watched any more.
	for _, t := range s.tasks {
		if t.seen != s.visits && t.notMet() != 0 && !now.Before(t.readAgain) {
			line.add(job{shard: s, name: t.name, slot: readmodel.NoSlot})
		}
		if t.isIdle(now) {
			delete(s.tasks, t.name)
		}
	}

	// A map keeps the memory of its largest size. After an opening, it had all tasks of the shard.
	if len(s.tasks) == 0 {
		s.tasks = map[string]*taskAlerts{}
	}
}

// forgetFormer forgets what the former owner counted, when this one has judged all tasks, also those whose time passed before the
// shard was opened.
func (s *shardAlerts) forgetFormer(now time.Time) {
	if s.unjudged == 0 && !now.Before(s.Opened.Add(alert.CatchUpTime)) {
		clear(s.former)
	}
}

// visitRow compares one row with its alerts.
func (s *shardAlerts) visitRow(v *eye, w *readmodel.WatchedRow, ages bool, line *queue) {
	var t *taskAlerts
	if w.NotMet != 0 || s.adopts || len(s.tasks) > 0 && w.Row.Flags.Has(readmodel.Failing) {
		t = s.tasks[w.Row.Name]
	}

	if s.adopts && t != nil {
		w.NotMet = t.notMet()
	}

	lastSuccess := uint32(0)
	if t != nil {
		lastSuccess = t.ends.lastSuccess
	}
	look := v.look(w, lastSuccess)

	if w.NotMet != 0 {
		if t != nil {
			t.seen = s.visits
		}
		if look == agrees && (t == nil || s.needsRefresh(t, w, v.now)) {
			look = differs
		}
	}

	if t == nil && look == differs {
		t = s.tasks[w.Row.Name]
	}

	// The records of a task may say something else than its row. For example, the row of a task that was paused after failures
	// looks like that of one that a person has paused.
	isJudged := look == differs && t.isWaiting(v.now, w) && t.isJudged

	switch {
	case look == agrees || isJudged:
		w.Waiting, w.Unknown = 0, false
	case ages && w.Waiting < 127:
		w.Waiting++
	}

	if w.Waiting >= maxUnknownMinutes || w.Waiting >= maxUnreadMinutes && !w.Unknown {
		s.notEvaluated++
	}

	// What has had no verdict for long may never get one. It counts as not evaluated, and nothing waits for it.
	if look != agrees && !isJudged && w.Waiting < maxUnknownMinutes {
		s.unjudged++
	}

	if look == differs {
		if t != nil {
			t.seen = s.visits
		}

		if !t.isWaiting(v.now, w) {
			line.add(job{
				shard: s, name: w.Row.Name, slot: w.Slot, isFailing: w.Row.Flags.Has(readmodel.Failing),
				alerts: w.Alerts, ends: endsOf(w.Row),
			})
			w.JudgeAt = max(w.JudgeAt, alwaysDue)

			// The queue may be full, and the reading may fail. Then the next visit adds the task again.
			if t != nil {
				t.readAgain = time.Time{}
			}
		}
	}
}

// updateRooms counts the open alerts of each room, and notes which rooms are full and which have enough room again.
func (s *shardAlerts) updateRooms() {
	clear(s.open)
	for _, t := range s.tasks {
		for _, a := range t.records {
			if a != nil && a.IsOpen() {
				s.addOpen(a.Namespace, a.Notify)
			}
		}
	}

	for r := range s.full {
		if s.open[r] < enoughRoom {
			delete(s.full, r)
		}
	}
}

// addOpen counts an alert that opens.
func (s *shardAlerts) addOpen(namespace string, receivers []string) {
	for _, r := range roomsOf(namespace, receivers) {
		if s.open[r]++; s.open[r] >= maxOpen {
			s.full[r] = true
		}
	}
}

// hasRoom reports whether an alert of a namespace with these receivers can be opened: one of the receivers has room.
func (s *shardAlerts) hasRoom(namespace string, receivers []string) bool {
	return slices.ContainsFunc(roomsOf(namespace, receivers), func(r room) bool { return !s.full[r] })
}

// roomsOf returns the rooms in which an alert has a place.
func roomsOf(namespace string, receivers []string) []room {
	if len(receivers) == 0 {
		return []room{{namespace: namespace}}
	}

	rooms := make([]room, len(receivers))
	for i, receiver := range receivers {
		rooms[i] = room{namespace, receiver}
	}

	return rooms
}

// job is a task to read.
type job struct {
	shard     *shardAlerts
	name      string // namespace/name; may share the memory of a row
	slot      int32  // readmodel.NoSlot: its row is not known
	isFailing bool

	// What its row had.
	alerts *task.Alerts
	ends   ends
}

// queue holds the tasks to read of one visit.
type queue struct {
	urgent, others map[string][]job // by namespace: tasks whose runs have failed, and all others
	size           int
}

// add adds a task, unless there are many.
func (q *queue) add(j job) {
	if q.size == maxQueue {
		return
	}

	if q.urgent == nil {
		q.urgent, q.others = map[string][]job{}, map[string][]job{}
	}

	list := q.others
	if j.isFailing {
		list = q.urgent
	}

	namespace, _, _ := strings.Cut(j.name, "/")
	if len(list[namespace]) < tasksPerVisit {
		list[namespace] = append(list[namespace], j)
		q.size++
	}
}

// inTurn returns the first tasks, at most limit: those whose runs have failed first, and the namespaces in turn.
func (q *queue) inTurn(limit int) (jobs []job) {
	for _, byNamespace := range []map[string][]job{q.urgent, q.others} {
		lists := slices.SortedFunc(maps.Values(byNamespace), func(a, b []job) int { return cmp.Compare(a[0].name, b[0].name) })

		for n := 0; len(lists) > 0; n++ {
			lists = slices.DeleteFunc(lists, func(list []job) bool { return n >= len(list) })
			for _, list := range lists {
				if len(jobs) == limit {
					return jobs
				}
				jobs = append(jobs, list[n])
			}
		}
	}

	return jobs
}
