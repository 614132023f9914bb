package readmodel

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// BoardRange says what a query asks for of a board.
type BoardRange struct {
	Span  time.Duration `json:"span"`  // how far ahead ticks are listed
	Limit int           `json:"limit"` // the maximum number of items in each list
}

// BoardAnswer is what the owners of shards show on a board. The counts cover all tasks that the query selects, and the lists
// contain the first items. Of one task, each list contains at most maxTaskRuns runs.
type BoardAnswer struct {
	Counts task.BoardCounts `json:"counts" doc:"The counts of the board, of these shards."`
	Lists  task.BoardLists  `json:"lists" doc:"The lists of the board, of these shards."`
	Tally  task.Tally       `json:"tally" doc:"The counters of the last minute, of all namespaces; empty if the query selects some."`
}

// boardScan collects the board of the shards of one node.
type boardScan struct {
	query       *Query
	line, until int64 // ticks that were due before line are overdue, and the others are listed up to until; Unix ms
	counts      task.BoardCounts

	failing       firstItems[task.BoardFailing]
	alerting      firstItems[task.BoardAlerting]
	overdue, next firstItems[task.BoardTick]
	away, active  firstItems[task.BoardRun]
	waits         firstItems[task.BoardWait]
}

// newBoardScan returns a boardScan without shards.
func newBoardScan(q *Query) *boardScan {
	limit := q.Board.Limit

	return &boardScan{
		query: q, line: q.Now - OverdueAfter.Milliseconds(), until: q.Now + q.Board.Span.Milliseconds(),
		counts:  task.BoardCounts{Waiting: map[string]int{}, Alerts: map[string]int{}},
		failing: newFirstItems(limit, failingOrder), alerting: newFirstItems(limit, alertingOrder),
		overdue: newFirstItems(limit, tickOrder), next: newFirstItems(limit, tickOrder),
		away: newFirstItems(limit, runOrder), active: newFirstItems(limit, runOrder),
		waits: newFirstItems(limit, waitOrder),
	}
}

// scan adds a shard.
func (s *boardScan) scan(x *Index) {
	x.each(s.query.Now, true, func(r *Row, d *Details, a *task.Alerts) {
		if !s.query.Filter.matches(r, a, s.query.Now) {
			return
		}

		if !r.Flags.Has(Gone) {
			s.addTask(r, d)
		}
		if d != nil && d.Runs != nil {
			s.addRuns(r.Name, d.Runs)
		}
	})
}

// addTask adds a task, without its runs.
func (s *boardScan) addTask(r *Row, d *Details) {
	s.counts.Tasks++

	if r.Flags.Has(Paused) {
		s.counts.Paused++
	}
	if r.Flags.Has(Unreadable) {
		s.counts.Unreadable++
	}
	if r.Flags.Has(Failing) {
		s.addFailing(r, d)
	}
	if r.Flags&AlertFlags != 0 {
		s.addAlerting(r)
	}

	if r.Next == 0 {
		return
	}

	// A tick that was due a moment ago is normal: it is being decided.
	list, due := &s.next, r.Due()
	switch {
	case due < s.line:
		s.counts.OverdueCount++
		list = &s.overdue
	case due > s.until:
		return
	}

	if !list.wants(due) {
		return
	}

	t := task.BoardTick{Time: task.At(time.UnixMilli(r.Next))}
	t.Namespace, t.Task = r.splitName()
	if r.Delay != 0 {
		t.DueAt = task.At(time.UnixMilli(due))
	}
	list.add(t)
}

// addFailing adds a failing task. The details of its failure may not be known. Those of its last run say nothing then: it
// may have been cancelled.
func (s *boardScan) addFailing(r *Row, d *Details) {
	s.counts.FailingCount++

	f := Failure{State: task.Failed}
	if d != nil && d.Failure != nil {
		f = *d.Failure
	}
	if !s.failing.wants(-f.Ended) {
		return
	}

	item := task.BoardFailing{
		Run: f.Run, State: f.State, Reason: f.Reason, ExitCode: f.ExitCode, Node: f.Node, InARow: max(int(r.Failures), 1),
	}
	item.Namespace, item.Task = r.splitName()
	if f.Ended != 0 {
		item.EndedAt = task.At(time.UnixMilli(f.Ended))
	}
	s.failing.add(item)
}

// addAlerting adds a task with open alerts. Failing tasks are on the board already, so that their alerts are only counted.
func (s *boardScan) addAlerting(r *Row) {
	item := task.BoardAlerting{Kinds: alertKinds(r.Flags), Severity: task.AlertSeverity(r.Labels)}
	s.counts.Alerts[item.Severity] += len(item.Kinds)
	if r.Flags.Has(Failing) {
		return
	}

	s.counts.AlertingCount++
	if !s.alerting.wants(alertingOrder(item).key) {
		return
	}

	item.Namespace, item.Task = r.splitName()
	if r.LastSuccess != 0 {
		item.LastSuccess = task.At(time.Unix(int64(r.LastSuccess), 0))
	}
	s.alerting.add(item)
}

// addRuns adds the runs of a task.
func (s *boardScan) addRuns(name string, runs *Runs) {
	namespace, short, _ := strings.Cut(name, "/")
	s.counts.ActiveCount += runs.attempts
	s.counts.AwayCount += runs.attemptsAway

	for _, c := range runs.reasons {
		s.counts.WaitingCount += c.Runs
		s.counts.Waiting[c.Reason] += c.Runs
	}

	addAttempts(&s.active, namespace, short, runs.active)
	addAttempts(&s.away, namespace, short, runs.away)

	for i := range runs.waiting {
		q := &runs.waiting[i]
		if !s.waits.wants(int64(q.urgency())) {
			break
		}

		since, _ := task.TimeOfRunID(q.Run)
		s.waits.add(task.BoardWait{Namespace: namespace, Task: short, Run: q.Run, Reason: q.Reason, Since: task.At(since), NotBefore: q.NotBefore, Unsent: q.Unsent})
	}
}

// addAttempts adds the attempts of a task, the oldest first.
func addAttempts(list *firstItems[task.BoardRun], namespace, name string, attempts []*Attempt) {
	for _, a := range attempts {
		if !list.wants(a.Since) {
			return
		}

		tick, _ := task.TimeOfRunID(a.Run)
		r := task.BoardRun{Namespace: namespace, Task: name, Run: a.Run, Node: a.Node, ScheduledTime: task.At(tick), Ending: a.Ending}
		if a.Known {
			r.Since = task.At(time.UnixMilli(a.Since))
		}
		list.add(r)
	}
}

// board returns the result. s must not be used afterwards.
func (s *boardScan) board() *BoardAnswer {
	b := &BoardAnswer{Counts: s.counts, Lists: task.BoardLists{
		Stuck: []task.BoardShard{}, Failing: s.failing.sorted(), Alerting: s.alerting.sorted(), Overdue: s.overdue.sorted(), Away: s.away.sorted(),
		Waits: s.waits.sorted(), Next: s.next.sorted(), Active: s.active.sorted(),
	}}
	b.ownStrings()

	return b
}

// ownStrings copies the strings of the lists. They are parts of the owner's keys and records, which a board that is kept
// must not keep in memory.
func (b *BoardAnswer) ownStrings() {
	own := func(texts ...*string) {
		for _, t := range texts {
			*t = strings.Clone(*t)
		}
	}

	l := &b.Lists
	for i := range l.Failing {
		own(&l.Failing[i].Namespace, &l.Failing[i].Task)
	}
	for i := range l.Alerting {
		own(&l.Alerting[i].Namespace, &l.Alerting[i].Task)
	}
	for _, list := range [][]task.BoardTick{l.Overdue, l.Next} {
		for i := range list {
			own(&list[i].Namespace, &list[i].Task)
		}
	}
	for _, list := range [][]task.BoardRun{l.Away, l.Active} {
		for i := range list {
			own(&list[i].Namespace, &list[i].Task, &list[i].Run, &list[i].Node)
		}
	}
	for i := range l.Waits {
		own(&l.Waits[i].Namespace, &l.Waits[i].Task, &l.Waits[i].Run)
	}
}

// mergeBoards combines the boards of nodes.
func mergeBoards(q *BoardRange, boards []*BoardAnswer) *BoardAnswer {
	sum := &BoardAnswer{Counts: task.BoardCounts{Waiting: map[string]int{}, Alerts: map[string]int{}}}
	l := &sum.Lists

	for _, b := range boards {
		sum.Counts.Add(b.Counts)
		sum.Tally.Add(b.Tally)
		l.Stuck, l.Failing = append(l.Stuck, b.Lists.Stuck...), append(l.Failing, b.Lists.Failing...)
		l.Alerting = append(l.Alerting, b.Lists.Alerting...)
		l.Overdue, l.Next = append(l.Overdue, b.Lists.Overdue...), append(l.Next, b.Lists.Next...)
		l.Away, l.Active = append(l.Away, b.Lists.Away...), append(l.Active, b.Lists.Active...)
		l.Waits = append(l.Waits, b.Lists.Waits...)
	}

	l.Stuck, l.Failing = firstOf(l.Stuck, q.Limit, stuckOrder), firstOf(l.Failing, q.Limit, failingOrder)
	l.Alerting = firstOf(l.Alerting, q.Limit, alertingOrder)
	l.Overdue, l.Next = firstOf(l.Overdue, q.Limit, tickOrder), firstOf(l.Next, q.Limit, tickOrder)
	l.Away, l.Active = firstOf(l.Away, q.Limit, runOrder), firstOf(l.Active, q.Limit, runOrder)
	l.Waits = firstOf(l.Waits, q.Limit, waitOrder)

	return sum
}

// itemOrder is the position of an item in a list of a board: by key, then by run, then by task. Ids of runs begin with
// their time.
type itemOrder struct {
	key                  int64
	run, namespace, task string
}

func (it itemOrder) compare(b itemOrder) int {
	return cmp.Or(cmp.Compare(it.key, b.key), strings.Compare(it.run, b.run), strings.Compare(it.namespace, b.namespace), strings.Compare(it.task, b.task))
}

// stuckOrder, failingOrder, alertingOrder, tickOrder, runOrder and waitOrder are the orders of the lists.

func stuckOrder(s task.BoardShard) itemOrder {
	return itemOrder{key: s.Since.UnixMilli(), task: s.Node}
}

func failingOrder(f task.BoardFailing) itemOrder {
	return itemOrder{-f.EndedAt.UnixMilli(), "", f.Namespace, f.Task}
}

func alertingOrder(a task.BoardAlerting) itemOrder {
	return itemOrder{int64(slices.Index(task.AlertSeverities(), a.Severity)), "", a.Namespace, a.Task}
}

func tickOrder(t task.BoardTick) itemOrder {
	return itemOrder{t.Due().UnixMilli(), "", t.Namespace, t.Task}
}

func runOrder(r task.BoardRun) itemOrder {
	return itemOrder{r.Began().UnixMilli(), r.Run, r.Namespace, r.Task}
}

func waitOrder(w task.BoardWait) itemOrder {
	return itemOrder{int64(task.WaitUrgency(w.Reason, w.Unsent)), w.Run, w.Namespace, w.Task}
}

// firstItems keeps the first items of a list, of all that are added. It uses memory for about twice as many.
type firstItems[T any] struct {
	limit int
	order func(T) itemOrder
	items []T
	bound int64 // items with a greater key come too late
}

// newFirstItems returns an empty list for limit items.
func newFirstItems[T any](limit int, order func(T) itemOrder) firstItems[T] {
	return firstItems[T]{limit: limit, order: order, bound: math.MaxInt64}
}

// wants reports whether an item with a key may be among the first. It costs less than to make the item.
func (f *firstItems[T]) wants(key int64) bool { return key <= f.bound }

// add adds an item.
func (f *firstItems[T]) add(item T) {
	f.items = append(f.items, item)
	if len(f.items) < 2*f.limit+16 {
		return
	}

	f.items = f.sorted()
	if f.bound = math.MinInt64; f.limit > 0 {
		f.bound = f.order(f.items[f.limit-1]).key
	}
}

// sorted returns the first items in their order. The slice is valid until the next add.
func (f *firstItems[T]) sorted() []T { return firstOf(f.items, f.limit, f.order) }

// firstOf sorts a list, and returns its first items. The result is never nil, because the API returns [] and not null.
func firstOf[T any](list []T, limit int, order func(T) itemOrder) []T {
	slices.SortFunc(list, func(a, b T) int { return order(a).compare(order(b)) })

	if list == nil {
		return []T{}
	}

	return list[:min(len(list), limit)]
}
