package why

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Facts are what is on record of a task, as it was at one revision.
type Facts struct {
	Namespace, Name string
	Shard           int

	Task     *task.Task  // as its user wrote it; nil: there is none, or none that can be read
	Entry    *task.Entry // what its owner fires by; likewise
	Covered  bool        // the watermark speaks for the entry
	Versions []task.Task // former ones that are kept, the oldest first
	Deleted  *task.Deletion

	Runs  []task.Run // waiting, active, and ended around the time asked about; in any order
	Late  []task.Run // results that came after their attempts had been declared lost
	Dead  []string   // ids of runs that wait for a person
	Newer int64      // ended runs on record that are newer than all in Runs
	CutAt time.Time  // not zero: of the range asked about, ended runs were read only up to here
	// Broken are the ids of runs whose records cannot be read; BrokenTask is what of
	// the task itself cannot be.
	Broken     []string
	BrokenTask []string

	Owner     *Owner // nil: the shard has never had one
	Watermark *Watermark
	Nodes     []task.Node
	Freezes   *task.Freezes

	Now      time.Time
	Revision int64
}

// Owner is the assignment of the task's shard, with the one before, the newest first.
type Owner struct {
	Node     string
	Since    time.Time
	Previous []task.Assignment
}

// Watermark is up to where the ticks of the task's shard are decided.
type Watermark struct {
	Time time.Time
	// All: those at Time are, too, of this task.
	All bool
}

// isDecided reports whether a tick that falls due then was decided.
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

// findOutcome is the record that decides a tick; nil if there is none.
func (f *Facts) findOutcome(tick time.Time) *task.Run {
	for i := range f.Runs {
		r := &f.Runs[i]
		switch {
		case r.Trigger == task.TriggerManual:
		case r.ScheduledTime.Equal(tick):
			return r
		case r.Count > 1 && !tick.Before(r.ScheduledTime.Time) && !tick.After(r.Last.Time):
			return r
		}
	}

	return nil
}

// findRequestedRun is a run that a person asked for in a span of time; nil if there is none.
func (f *Facts) findRequestedRun(from, to time.Time) *task.Run {
	for i := range f.Runs {
		if r := &f.Runs[i]; r.Trigger == task.TriggerManual && !r.ScheduledTime.Before(from) && r.ScheduledTime.Before(to) {
			return r
		}
	}

	return nil
}

// activeRuns are the other runs that were active at an instant: from their first
// dispatch to their end.
func (f *Facts) activeRuns(at time.Time, but string) []task.Run {
	var list []task.Run
	for _, r := range f.Runs {
		began := r.DispatchedAt.Time
		if len(r.Attempts) > 0 && !r.Attempts[0].StartedAt.IsZero() {
			began = r.Attempts[0].StartedAt.Time
		}

		switch {
		case r.ID == but, r.State == task.Skipped, r.State == task.Missed, began.IsZero(), began.After(at):
		case r.EndedAt.IsZero() && !r.State.Final(), r.EndedAt.After(at):
			list = append(list, r)
		}
	}

	slices.SortFunc(list, func(a, b task.Run) int { return a.ScheduledTime.Compare(b.ScheduledTime.Time) })

	return list
}

// waitedRun is a run of a tick before an instant that waited at it to start for the
// first time; nil if none is on record.
func (f *Facts) waitedRun(at time.Time) *task.Run {
	for i := range f.Runs {
		r := &f.Runs[i]
		end := r.DispatchedAt.Time
		if end.IsZero() {
			end = r.EndedAt.Time
		}

		if r.Trigger != task.TriggerManual && r.Count <= 1 && len(r.Attempts) == 0 && r.ScheduledTime.Before(at) &&
			!r.CreatedAt.After(at) && (r.State == task.Queued || end.After(at)) {
			return r
		}
	}

	return nil
}

// endedAfter is how many runs on record ended after a tick: those of newer ticks,
// and those of older ticks that took longer. A task keeps the runs that ended last.
func (f *Facts) endedAfter(tick time.Time) int64 {
	n := f.Newer
	for _, r := range f.Runs {
		if r.State.Final() && (r.ScheduledTime.After(tick) || r.EndedAt.After(tick)) {
			n++
		}
	}

	return n
}

// nodeNamed is a node that is present; nil if it is not.
func (f *Facts) nodeNamed(name string) *task.Node {
	i := slices.IndexFunc(f.Nodes, func(n task.Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &f.Nodes[i]
}

// eligibleNodes are the nodes that take work now and may have the task's.
func (f *Facts) eligibleNodes() []string {
	return f.Entry.Target.Takers(f.Nodes, f.Entry.Action.NeedsKey())
}

// hasEnoughNodes reports whether there are nodes for a run that waits: a retry has all that it
// needs with one, whatever its task says of parts.
func (f *Facts) hasEnoughNodes(r *task.Run) bool {
	n := len(f.eligibleNodes())
	if r.Fan != nil || len(r.Attempts) > 0 {
		return n > 0
	}
	return f.Entry.Target.Enough(n)
}

// ownerAt is who owned the shard at an instant.
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
