package why

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/task"
)

// Facts are the records of a task and its shard at one revision.
type Facts struct {
	Namespace, Name string
	Shard           int

	Task     *task.Task  // the spec; nil: there is none, or it cannot be read
	Entry    *task.Entry // the entry; nil: there is none, or it cannot be read
	Covered  bool        // the watermark applies to the entry: see record.Watermark.Seen
	Versions []task.Task // the former versions that are kept, the oldest first
	Deleted  *task.Deletion

	Runs []task.Run // queued and active runs, and those that ended around the time in question; in any order
	Late []task.Run // results that arrived after their attempts had been declared lost
	Dead []string   // the ids of dead runs
	// Ledger has the outcomes of ticks whose records were trimmed; nil: nothing.
	Ledger *ledger.Book
	Newer  int64     // the number of ended runs on record that are newer than all in Runs
	CutAt  time.Time // if not zero, ended runs of the range were read only up to here
	Unread []Period  // ticks that may have records which were not read, because there are too many
	// Broken contains the ids of runs whose records cannot be read. BrokenTask names the unreadable records of
	// the task itself: spec or entry.
	Broken     []string
	BrokenTask []string

	Triggers []task.Trigger // those of the task that have no outcome yet, in the order in which they are taken
	Sources  []SourceRuns   // the sources of the task

	Owner     *Owner // nil: the shard has never had an owner
	Watermark *Watermark
	Nodes     []task.Node     // with the labels that count
	Limits    *task.Namespace // the record of the task's namespace; nil: there is none
	Freezes   *task.Freezes

	Now      time.Time
	Revision int64

	// wholeSpans caches which spans of the ledger have an outcome for each of their ticks.
	wholeSpans map[interval]bool
}

// Period is a time from one tick to another, both inclusive.
type Period struct{ From, To time.Time }

// Owner is the assignment of the task's shard, with the previous assignments, the newest first.
type Owner struct {
	Node     string
	Since    time.Time
	Previous []task.Assignment
}

// Watermark is the time up to which the ticks of the task's shard are decided.
type Watermark struct {
	Time time.Time
	// All is true if the ticks of this task at exactly Time are decided as well.
	All bool
}

// isDecided reports whether a tick with this due time has been decided.
func (f *Facts) isDecided(tick, due time.Time) bool {
	if f.Entry == nil {
		return false
	}
	if !tick.After(f.Entry.From.Time) {
		return true
	}

	w := f.Watermark
	return w != nil && f.Covered && (due.Before(w.Time) || due.Equal(w.Time) && w.All)
}

// isOwn reports whether a run belongs to the task, and not to a deleted task of that name. Without a task, it is of interest
// whatever it belonged to.
func (f *Facts) isOwn(r *task.Run) bool {
	switch {
	case f.Task == nil:
		return true
	case r.UID == "":
		return task.RunBelongs(r.ID, f.Task.UID)
	}

	return r.UID == f.Task.UID
}

// findOutcome returns the record with the outcome of a tick, or nil. One record can cover a range of skipped or
// missed ticks.
func (f *Facts) findOutcome(tick time.Time) *task.Run {
	for i := range f.Runs {
		r := &f.Runs[i]
		switch {
		case r.Ticks() == 0:
		case r.ScheduledTime.Equal(tick):
			return r
		case r.Count > 1 && !tick.Before(r.ScheduledTime.Time) && !tick.After(r.Last.Time):
			return r
		}
	}

	return nil
}

// findRequestedRun returns a run without a tick, manual or triggered, from from (inclusive) to to (exclusive), or nil.
func (f *Facts) findRequestedRun(from, to time.Time) *task.Run {
	for i := range f.Runs {
		if r := &f.Runs[i]; r.Ticks() == 0 && !r.ScheduledTime.Before(from) && r.ScheduledTime.Before(to) {
			return r
		}
	}

	return nil
}

// activeRuns returns the runs, except for the one with the id but, that were active at an instant: from their
// first start or dispatch to their end.
func (f *Facts) activeRuns(at time.Time, but string) []task.Run {
	var list []task.Run
	for _, r := range f.Runs {
		began := beganAt(&r)

		switch {
		case r.ID == but, r.State == task.Skipped, r.State == task.Missed, began.IsZero(), began.After(at):
		case r.EndedAt.IsZero() && !r.State.Final(), r.EndedAt.After(at):
			list = append(list, r)
		}
	}

	slices.SortFunc(list, func(a, b task.Run) int { return a.ScheduledTime.Compare(b.ScheduledTime.Time) })

	return list
}

// beganAt returns since when a run is active, as far as its record shows that; zero: it has not been dispatched.
func beganAt(r *task.Run) time.Time {
	switch {
	case len(r.Attempts) > 0 && !r.Attempts[0].StartedAt.IsZero():
		return r.Attempts[0].StartedAt.Time
	case r.Unsent != nil: // its first attempt was not sent
		return r.Unsent.First.Time
	}

	return r.DispatchedAt.Time
}

// waitedRun returns a run of an earlier tick that was waiting for its first start at an instant, or nil.
func (f *Facts) waitedRun(at time.Time) *task.Run {
	for i := range f.Runs {
		r := &f.Runs[i]
		end := r.DispatchedAt.Time
		if end.IsZero() {
			end = r.EndedAt.Time
		}

		if r.Ticks() > 0 && r.Count <= 1 && !hasHadAttempt(r) && r.ScheduledTime.Before(at) &&
			!r.CreatedAt.After(at) && (r.State == task.Queued || end.After(at)) {
			return r
		}
	}

	return nil
}

// endedAfter returns the number of runs on record that ended after a tick: runs of newer ticks, and runs of
// older ticks that took longer. Retention keeps the runs that ended last.
func (f *Facts) endedAfter(tick time.Time) int64 {
	n := f.Newer
	for _, r := range f.Runs {
		if r.State.Final() && (r.ScheduledTime.After(tick) || r.EndedAt.After(tick)) {
			n++
		}
	}

	return n
}

// isUnread reports whether a tick may have a record that was not read.
func (f *Facts) isUnread(tick time.Time) bool {
	return slices.ContainsFunc(f.Unread, func(p Period) bool { return !tick.Before(p.From) && !tick.After(p.To) })
}

// isComplete reports whether a tick whose run has ended is certainly in the history or in the ledger, unless its record was
// deleted while etcd was full.
func (f *Facts) isComplete(tick time.Time) bool { return f.Ledger == nil || f.Ledger.IsComplete(tick) }

// nodeNamed returns a present node, or nil.
func (f *Facts) nodeNamed(name string) *task.Node {
	i := slices.IndexFunc(f.Nodes, func(n task.Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &f.Nodes[i]
}

// eligibleNodes returns the names of the nodes that accept runs now and match the task's target and the node selector of
// its namespace.
func (f *Facts) eligibleNodes() []string {
	return f.target().Takers(f.Nodes, f.Entry.Action.NeedsKey())
}

// target returns the task's target, with the node selector of its namespace.
func (f *Facts) target() task.Target {
	t := f.Entry.Target
	t.Selector = access.JoinSelector(f.Limits, t.Selector)

	return t
}

// forbidden returns what of the task its namespace does not allow, for people; "" if it allows the task.
func (f *Facts) forbidden() string {
	if f.Limits == nil {
		return "there is no namespace " + f.Namespace + " any more"
	}

	if _, err := task.ParseSelector(f.Limits.Nodes); err != nil {
		return "the node selector of namespace " + f.Namespace + " cannot be read"
	}

	if what := access.Forbidden(f.Limits, &f.Entry.Action); what != "" {
		return "namespace " + f.Namespace + " does not allow " + what
	}

	return ""
}

// hasEnoughNodes reports whether enough nodes are available for a waiting run. A retry needs only one node,
// even if its task has parts.
func (f *Facts) hasEnoughNodes(r *task.Run) bool {
	n := len(f.eligibleNodes())
	if r.Fan != nil || hasHadAttempt(r) {
		return n > 0
	}
	return f.Entry.Target.Enough(n)
}

// ownerAt returns the owner of the shard at an instant. Node is empty if the instant is before the assignments
// on record.
func (f *Facts) ownerAt(at time.Time) *task.Ownership {
	o := &task.Ownership{Shard: f.Shard}

	if f.Owner == nil {
		return o
	}

	list := append([]task.Assignment{{Node: f.Owner.Node, Since: task.At(f.Owner.Since)}}, f.Owner.Previous...)
	for i, a := range list {
		if a.Since.After(at) {
			continue
		}

		o.Node, o.Since, o.Present = a.Node, a.Since, f.nodeNamed(a.Node) != nil
		if i > 0 {
			o.Until, o.Next = list[i-1].Since, list[i-1].Node
		}

		return o
	}

	last := list[len(list)-1]
	o.Until, o.Next = last.Since, last.Node

	return o
}
